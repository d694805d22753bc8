"""Seeded checks of state views: a view shows the rows that are emitted if no more rows arrive.

    python -m tests.laws.generators.state_views --runs 2000 --seed 1          # prints the seed of a failing run
    python -m tests.laws.generators.state_views --only 4711                   # repeats one run

The runs are those of `revisions`. Each seed runs twice: with a flush, which gives the final table, and without one,
which leaves the state for the view.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import polars as pl
from tests.laws.generators import revisions, seeds
from tests.support.script import run_local

from slackwater.query.state_view import StateView
from slackwater.state.files.store import FilesStore
from slackwater.state.protocol import StateStore

Make = Callable[[], StateStore]


def check(seed: int, cap_binds: bool = False, store: Make | None = None) -> tuple[int, int]:
    """Run a seed. Return the checked (open windows, retained windows). Raises AssertionError if a law is violated."""
    run = revisions.plan_run(seed, cap_binds)
    run_options: dict[str, Any] = {"shards": run.shards, "reshard_after": run.reshard_after, "upserts": run.upserts}
    table = revisions.final_table(run_local(run.window, run.script, revisions.SCHEMA, **run_options))
    with tempfile.TemporaryDirectory() as directory:
        make = store or (lambda: FilesStore(directory, "law"))
        run_local(run.window, run.script, revisions.SCHEMA, store=make, flush=False, **run_options)
        with StateView(make()) as view:
            watermark = view.manifest().watermark_us
            horizon = watermark - (0 if run.window.emit == "final" else run.allowed_us)
            shown = view.scan()
            shown_rows = _rows(shown)
            for name, row in shown_rows.items():
                assert name in table, f"no such window: {row}"
                assert revisions.content(_public(row)) == revisions.content(_public(table[name]))
                closes = _us(row["_closes_at"])
                assert closes > horizon
                assert row["_status"] == ("open" if closes > watermark else "retained")
            missing = [table[name] for name in table if name not in shown_rows]
            for row in missing:
                assert _latest_close(run, row) <= max(horizon, watermark if row["_emit_reason"] == "cap" else horizon)
            for user in {u for _, u in shown_rows}:
                of_key = view.fetch(user)
                assert of_key.equals(shown.filter(pl.col("u").eq_missing(pl.lit(user, pl.String))))
            ends = view.scan("_status = 'open'")
            assert ends.height == sum(r["_status"] == "open" for r in shown_rows.values())
    return ends.height, len(shown_rows) - ends.height


def _rows(shown: pl.DataFrame) -> dict[tuple[Any, Any], Mapping[str, Any]]:
    times = [c for c in ("window_start", "window_end") if c in shown.columns]
    frame = shown.with_columns(pl.col(c).dt.timestamp("us") for c in times)
    rows_by_identity = {revisions.identity(r): r for r in frame.iter_rows(named=True)}
    assert len(rows_by_identity) == shown.height, "a window twice"
    return rows_by_identity


def _public(row: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in row.items() if not k.startswith("_")}


def _us(timestamp: Any) -> int:
    return int(pl.Series([timestamp]).dt.timestamp("us")[0])


def _latest_close(run: revisions.Run, row: Mapping[str, Any]) -> int:
    """Return the latest watermark that closes a window. A cut session closes at start + cap."""
    if run.spec.kind != "session":
        return int(row["window_end"])
    if row["_emit_reason"] == "cap":
        return int(row["window_end"])
    return int(row["window_end"]) + 1


def check_seed(seed: int) -> tuple[int, int]:
    """Check a seed, every fifth with a low cap. An error names the seed."""
    seeds.hide_warnings()
    cap_binds = seed % 5 == 0
    try:
        return check(seed, cap_binds)
    except BaseException as error:
        raise AssertionError(f"seed {seed}, cap binds: {cap_binds}") from error


if __name__ == "__main__":
    seeds.main(check_seed, __doc__ or "", ("open windows", "retained windows"), 2000)
