"""Seeded checks of state views: a view shows the rows that are emitted if no more rows arrive.

    python -m tests.laws.generators.state_view_runs --runs 2000 --seed 1          # prints the seed of a failing run
    python -m tests.laws.generators.state_view_runs --only 4711                   # repeats one run

The runs are those of `window_revision_runs`. Each seed runs twice: with a flush, which gives the final table, and without one,
which leaves the state for the view.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import polars as pl
from tests.laws.generators import seed_runner, window_revision_runs
from tests.support.local_pipeline_script import run_local_script

from slackwater.query.state_view import StateView
from slackwater.state.files.store import FilesStore
from slackwater.state.protocol import StateStore

Make = Callable[[], StateStore]


def compare_view_with_emitted_rows(seed: int, cap_binds: bool = False, store: Make | None = None) -> tuple[int, int]:
    """Run a seed. Return the checked (open windows, retained windows). Raises AssertionError if a law is violated."""
    run = window_revision_runs.plan_revision_run(seed, cap_binds)
    run_options: dict[str, Any] = {"shards": run.shards, "reshard_after": run.reshard_after, "upserts": run.upserts}
    table = window_revision_runs.final_target_table(
        run_local_script(run.window, run.script, window_revision_runs.SCHEMA, **run_options)
    )
    with tempfile.TemporaryDirectory() as directory:
        make = store or (lambda: FilesStore(directory, "law"))
        run_local_script(run.window, run.script, window_revision_runs.SCHEMA, store=make, flush=False, **run_options)
        with StateView(make()) as view:
            watermark = view.manifest().watermark_us
            horizon = watermark - (0 if run.window.emit == "final" else run.allowed_us)
            shown = view.scan()
            shown_rows = _index_rows(shown)
            for name, row in shown_rows.items():
                assert name in table, f"no such window: {row}"
                assert window_revision_runs.comparable_row(_public_columns(row)) == window_revision_runs.comparable_row(
                    _public_columns(table[name])
                )
                closes = _to_microseconds(row["_closes_at"])
                assert closes > horizon
                assert row["_status"] == ("open" if closes > watermark else "retained")
            missing = [table[name] for name in table if name not in shown_rows]
            for row in missing:
                assert _latest_closing_watermark(run, row) <= max(
                    horizon, watermark if row["_emit_reason"] == "cap" else horizon
                )
            for user in {u for _, u in shown_rows}:
                of_key = view.fetch(user)
                assert of_key.equals(shown.filter(pl.col("u").eq_missing(pl.lit(user, pl.String))))
            ends = view.scan("_status = 'open'")
            assert ends.height == sum(r["_status"] == "open" for r in shown_rows.values())
    return ends.height, len(shown_rows) - ends.height


def _index_rows(shown: pl.DataFrame) -> dict[tuple[Any, Any], Mapping[str, Any]]:
    times = [c for c in ("window_start", "window_end") if c in shown.columns]
    frame = shown.with_columns(pl.col(c).dt.timestamp("us") for c in times)
    rows_by_identity = {window_revision_runs.row_identity(r): r for r in frame.iter_rows(named=True)}
    assert len(rows_by_identity) == shown.height, "a window twice"
    return rows_by_identity


def _public_columns(row: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in row.items() if not k.startswith("_")}


def _to_microseconds(timestamp: Any) -> int:
    return int(pl.Series([timestamp]).dt.timestamp("us")[0])


def _latest_closing_watermark(run: window_revision_runs.RevisionRun, row: Mapping[str, Any]) -> int:
    """Return the latest watermark that closes a window. A cut session closes at start + cap."""
    if run.spec.kind != "session":
        return int(row["window_end"])
    if row["_emit_reason"] == "cap":
        return int(row["window_end"])
    return int(row["window_end"]) + 1


def compare_view_with_emitted_rows_by_seed(seed: int) -> tuple[int, int]:
    """Check a seed, every fifth with a low cap. An error names the seed."""
    seed_runner.hide_warnings()
    cap_binds = seed % 5 == 0
    try:
        return compare_view_with_emitted_rows(seed, cap_binds)
    except BaseException as error:
        raise AssertionError(f"seed {seed}, cap binds: {cap_binds}") from error


if __name__ == "__main__":
    seed_runner.run_seeds(
        compare_view_with_emitted_rows_by_seed, __doc__ or "", ("open windows", "retained windows"), 2000
    )
