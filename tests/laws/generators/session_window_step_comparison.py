"""Compare the session step by the walk with the former step by whole arrays: state, counts and late rows of each seed.

    python -m tests.laws.generators.session_window_step_comparison --runs 100000 --seed 1        # prints the seed of a run that fails
    python -m tests.laws.generators.session_window_step_comparison --only 4711                   # repeats one run

Each seed makes a window, keys, and epochs of rows. Most windows have a cap slightly above the gap. All emit modes,
late-data modes and gaps from rows occur. Keys have distinct hashes, a few shared hashes or one common hash. Rows lie on
the edges of sessions, and some are far behind. Both steps get the same units, and the run continues with the units of
the walk through emission.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import polars as pl
from polars.testing import assert_frame_equal
from tests.laws.generators import seed_runner
from tests.support import session_window_reference

from slackwater.config.window import Aggregation, Window
from slackwater.core.schema import Field
from slackwater.core.sorted_arrays import distinct_values, is_in_sorted
from slackwater.operators.registry import bind_window
from slackwater.watermark import NO_WATERMARK
from slackwater.windows import session_emission, session_ingest
from slackwater.windows.compiled_session_window import CompiledSessionWindow, IntervalBatch
from slackwater.windows.compiled_window import EmitResult, IngestResult
from slackwater.windows.session_ingest import build_session_state
from slackwater.windows.state_layout import FAR, NEVER, TOMBSTONE

MS = 1000
NEAR = ((20, 22), (20, 21), (20, 26), (5, 6), (5, 8), (3, 4), (2, 5), (10, 21), (10, 35), (5, 1000))  # gap, cap in ms
COLUMNS = {"u": "string", "d": "double", "id": "bigint", "f": "double", "g": "bigint"}
AGGREGATIONS = (
    ("n", "count", None),
    ("ids", "sum", "id"),
    ("mean", "avg", "f"),
    ("low", "min", "f"),
    ("top", "max", "f"),
    ("most", "max", "id"),
    ("text", "max", "u"),
    ("first", "first", "f"),
    ("every", "collect_list", "id"),
)


def draw_session_window(rng: random.Random) -> CompiledSessionWindow:
    """Return a session window, which may belong to a changed pipeline."""
    gap, cap = rng.choice(NEAR)
    late, emit = rng.choice(["reopen", "reopen", "drop", "standalone"]), rng.choice(["on_close", "final", "updates"])
    settings: dict[str, Any] = {"lateness_ms": 0, "late_data": late, "emit": emit, "emit_metadata": True}
    if late == "reopen":
        settings["allowed_lateness_ms"] = rng.choice([1, 3, gap, cap, 3 * cap, 1000])
    if late == "standalone" or (emit == "updates" and late == "standalone"):
        settings["emit"] = "on_close"
    window = Window(
        kind="session",
        gap_ms="g" if rng.random() < 0.3 else gap,
        max_session_duration_ms=cap,
        group_by=rng.choice([["u"], ["u"], ["u", "d"], ["d"], ["id"]]),
        aggregations=[
            Aggregation(agg=a, column=c, as_=name, **({"max_values_per_group": 9999} if a == "collect_list" else {}))
            for name, a, c in rng.sample(AGGREGATIONS, rng.randint(1, 4))
        ],
        **settings,
    )
    logic = bind_window("law", window, {name: Field(name, field_type) for name, field_type in COLUMNS.items()})
    assert isinstance(logic, CompiledSessionWindow)
    if rng.random() < 0.1:
        logic = replace(logic, revised=True)
    return logic


def draw_rows(
    rng: random.Random, logic: CompiledSessionWindow, now: int, hashes: int, extra: bool, dense: bool
) -> pl.DataFrame:
    """Return the lifted rows of one epoch. Times advance from `now` (ms) with jumps back. `dense` makes long runs."""
    gap, cap = logic.gap_us // MS or 7, logic.cap_us // MS
    steps = [0, 0, 1, 2, gap - 1, gap, gap + 1, max(cap - gap, 0), cap - 1, cap, 40]
    backs = [0, 0, 0, 0, 1, gap, gap + 1, cap, 2 * cap, 80]
    users = ["a", "a", "b", None, "c"][: rng.randint(1, 5)]
    if dense:  # rows behind the watermark fall into the long runs
        steps, backs, users = [0, 1, 2, gap - 1, gap], [0, 0, gap, cap, 2 * cap], ["a"]
    rows = []
    for n in range(rng.choice([1, 2, 5, 12, 30, 90])):
        now += rng.choice(steps)
        ts = now - rng.choice(backs)
        user, number = rng.choice(users), rng.choice([None, 0.0, 1.5, float("nan")])
        row_gap = rng.choice([1, 2, gap, max(cap - 1, 1)])
        rows.append(
            (ts * MS, user, number, rng.choice([0, 1 << n % 60, -(1 << 40)]), rng.choice([None, number, -2.5]), row_gap)
        )
    frame = pl.DataFrame(
        rows,
        schema={"__ts": pl.Int64, "u": pl.String, "d": pl.Float64, "id": pl.Int64, "f": pl.Float64, "g": pl.Int64},
        orient="row",
    )
    if "id" in logic.key_names:
        frame = frame.with_columns(pl.col("id") % 3)
    names = frame.select(pl.concat_str([pl.col(k).cast(pl.String).fill_null("?") for k in logic.key_names])).to_series()
    number = names.hash(7).reinterpret(signed=True)
    frame = frame.with_columns(__kh=number if not hashes else number % hashes)
    if logic.dynamic:
        frame = frame.with_columns(__end=pl.col("__ts") + pl.col("g").clip(1, max(cap - 1, 1)) * MS)
    lifted = logic.lift_rows(frame)
    if extra:
        marks = {"__idle": [rng.random() < 0.5 for _ in rows], "__row": list(range(len(rows)))}
        lifted = lifted.with_columns(**{name: pl.Series(values) for name, values in marks.items()})
    return lifted


def select_rows_of_hashes(state: pl.DataFrame, hashes: np.ndarray) -> pl.DataFrame:
    return state.filter(pl.Series(is_in_sorted(state["__h"].to_numpy(), distinct_values(hashes))))


def replace_rows_of_hashes(state: pl.DataFrame, new: pl.DataFrame, hashes: np.ndarray) -> pl.DataFrame:
    """Return the state with `new` in place of the units with these hashes."""
    unchanged = state.filter(~pl.Series(is_in_sorted(state["__h"].to_numpy(), distinct_values(hashes))))
    return pl.concat([unchanged, new.filter(pl.col("__kind") != TOMBSTONE)]).sort("__h", maintain_order=True)


def build_and_check_session_state(
    logic: CompiledSessionWindow, unit: IntervalBatch, floors: np.ndarray, watermark: int
) -> pl.DataFrame:
    """Call `build_session_state` for emission, and check the result against whole arrays."""
    built = build_session_state(logic, unit, floors, watermark)
    first = np.full(int(unit.key[-1]) + 1, FAR)
    np.minimum.at(first, unit.key, unit.start)
    limit = np.minimum(first, watermark)[unit.key] + logic.cap_us
    run, reach = session_window_reference.number_runs(logic, unit)
    fragment = session_window_reference.number_session_pieces(logic, unit, reach, run, limit)
    expected_unit = session_window_reference.SessionIntervals(
        unit.frame, unit.key, unit.kind, unit.start, unit.last, unit.due, unit.end
    )
    expected = session_window_reference.build_state_rows(logic, expected_unit, run, fragment, floors, watermark)
    assert built.equals(expected), f"{built.to_dicts()}\nexpected\n{expected.to_dicts()}"
    return built


def drop_and_check_expired_rows(logic: CompiledSessionWindow, state: pl.DataFrame, watermark: int) -> pl.DataFrame:
    """Call `drop_expired`, and check the result against whole arrays."""
    if state.is_empty():
        return state
    retained, horizon = logic.drop_expired(state, watermark), logic.horizon(watermark)
    unit = session_window_reference.SessionIntervals.from_frame(logic, state)
    needed = unit.compute_floors(logic.reach_us, horizon)[unit.key] != NO_WATERMARK
    expected = unit.frame.filter(pl.Series(~unit.mask_expired(horizon) | needed)).sort("__h", maintain_order=True)
    assert retained.equals(expected), f"{retained.to_dicts()}\nexpected\n{expected.to_dicts()}"
    return retained


def sort_rows_within_hashes(rows: pl.DataFrame) -> pl.DataFrame:
    """Sort the rows of units. Units are in order of their hashes, but the rows within a unit have no order."""
    assert rows["__h"].is_sorted()
    by = [c for c, dtype in rows.schema.items() if not isinstance(dtype, pl.List)]
    return rows.sort(by, nulls_last=False)


def assert_same_ingest_result(seed: int, epoch: int, actual: IngestResult, expected: IngestResult) -> None:
    where = f"seed {seed}, epoch {epoch}"
    assert actual.counts == expected.counts, f"{where}: {actual.counts}, expected {expected.counts}"
    for name in ("state", "late"):
        actual_frame, expected_frame = getattr(actual, name), getattr(expected, name)
        if actual_frame.equals(expected_frame):
            continue
        actual_frame, expected_frame = sort_rows_within_hashes(actual_frame), sort_rows_within_hashes(expected_frame)
        assert actual_frame.schema == expected_frame.schema, (
            f"{where}: {name}: {actual_frame.schema}, expected {expected_frame.schema}"
        )
        assert actual_frame.equals(expected_frame), (
            f"{where}: {name}:\n{actual_frame.to_dicts()}\nexpected\n{expected_frame.to_dicts()}"
        )


def assert_same_emit_result(seed: int, epoch: int, whole: EmitResult, parts: EmitResult) -> None:
    """Check that emission in parts gives the same results and state. The results of one epoch have no order."""
    try:
        assert_frame_equal(whole.rows, parts.rows, check_row_order=False)
        assert_frame_equal(whole.superseded, parts.superseded, check_row_order=False)
        assert_frame_equal(whole.state, parts.state)
        assert (whole.groups, whole.windows) == (parts.groups, parts.windows)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}, epoch {epoch}: emission in parts differs") from error


def check_session_step_seed(seed: int) -> tuple[int, int, int, int]:
    """Run a seed. Return the numbers of epochs, rows, late rows and refused rows."""
    seed_runner.hide_warnings()
    rng = random.Random(seed)
    logic = draw_session_window(rng)
    hashes, room, extra = rng.choice([0, 0, 2, 1]), rng.choice([None] * 8 + [0, 1, 3]), rng.random() < 0.3
    state, watermark, now = logic.empty_state(), NEVER, rng.randint(-50, 20)
    epochs = rng.choice([1, 2, 2, 3, 5])
    rows_in = late = refused = 0
    for epoch in range(epochs):
        rows = draw_rows(rng, logic, now, hashes, extra, dense=seed % 2 == 0)
        touched = rows["__kh"].to_numpy()
        before = select_rows_of_hashes(state, touched)
        step_result = session_ingest.ingest_session_rows(logic, rows, before, watermark, room)
        assert_same_ingest_result(
            seed, epoch, step_result, session_window_reference.ingest_rows(logic, rows, before, watermark, room)
        )
        rows_in, late, refused = (
            rows_in + rows.height,
            late + step_result.counts.late,
            refused + step_result.counts.refused,
        )
        if not step_result.state.is_empty():
            state = replace_rows_of_hashes(state, step_result.state, step_result.state["__h"].to_numpy())
        now = rng.choice([now, int(rows["__ts"].max()) // MS])
        since, watermark = watermark, max(watermark, (now - rng.choice([0, 0, 5, 20, 60])) * MS)
        early = logic.updates and rng.random() < 0.7
        due = state.filter(
            pl.Series(
                logic.due_between(since, watermark, early).mask(
                    *(state[c].to_numpy() for c in ("__kind", "__start", "__due"))
                )
            )
        )
        if due.height:
            visited = select_rows_of_hashes(state, due["__h"].to_numpy())
            with patch.object(session_ingest, "build_session_state", build_and_check_session_state):
                done = session_emission.emit_sessions(logic, visited, since, watermark, early)
                with patch.object(session_emission, "_ROWS_AT_ONCE", rng.choice([1, 2, 5])):
                    assert_same_emit_result(
                        seed, epoch, done, session_emission.emit_sessions(logic, visited, since, watermark, early)
                    )
            state = replace_rows_of_hashes(state, done.state, done.state["__h"].to_numpy())
        if rng.random() < 0.2:
            state = drop_and_check_expired_rows(logic, state, watermark)
        if rng.random() < 0.05:
            logic = replace(logic, rows_from_us=watermark - rng.choice([0, 5, 30]) * MS)
    return epochs, rows_in, late, refused


if __name__ == "__main__":
    seed_runner.run_seeds(check_session_step_seed, __doc__ or "", ("epochs", "rows", "late", "refused"), runs=100_000)
