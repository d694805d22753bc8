"""Seeded runs whose target must match the window definition after each epoch, as computed by `epoch_oracle.py`.

    python -m tests.laws.generators.window_update_runs --runs 5000 --seed 1        # emit = "updates"; prints a failing seed
    python -m tests.laws.generators.window_update_runs --only 4711                 # repeats one run
    python -m tests.laws.generators.final_emission_runs --runs 5000                   # the same law for emit = "final" and "on_close"

Each seed makes a window (mostly sessions whose cap is barely above their gap), rows on the edges, several keys and epochs,
crashes at named steps, changed shard counts after a crash or a stop, and a target that replaces rows or only adds them.

After every item of the script, and after the flush, the table of the target is compared with the table of the model:
the windows, and for each window the keys, `window_end`, aggregates, `_final_at`, `_revision`, and whether
`_emit_reason` says open, closed or cut. A run also fails if it emits an unchanged row again, supersedes a missing
window, or counts another number of late rows than the model.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.laws.generators import seed_runner
from tests.laws.oracles import naive_oracle
from tests.laws.oracles.epoch_oracle import EmittedRow, EpochOracle, PaneOracle, SessionOracle
from tests.support.local_pipeline_script import (
    KILL_POINTS,
    DriverCrash,
    LocalResult,
    MicroBatch,
    PipelineRestart,
    QuietInterval,
    run_local_script,
)

from slackwater.config.window import Aggregation, Window
from slackwater.state.protocol import StateStore

MS = 1000
SCHEMA = {"u": "string", "id": "bigint", "f": "double", "g": "bigint"}
AGGREGATIONS = (("n", "count", None), ("ids", "sum", "id"), ("top", "max", "f"), ("first", "first", "f"))
NEAR = ((20, 22), (20, 21), (20, 26), (5, 6), (5, 8), (3, 4), (2, 5), (10, 21), (10, 35))  # gap, cap in ms
REASONS = {"close": {"close", "late", "flush"}, "cap": {"cap"}, "update": {"update"}}

Item = MicroBatch | QuietInterval | DriverCrash | PipelineRestart


@dataclass(frozen=True)
class UpdateRun:
    """One seeded run: the window, its input and its disturbances."""

    window: Window
    model: EpochOracle
    script: tuple[Item, ...]
    shards: int
    upserts: bool


def plan_update_run(seed: int, emits: Sequence[str] = ("updates",), kinds: Sequence[str] = ()) -> UpdateRun:
    """Build the run of a seed."""
    rng = random.Random(seed)
    kind = rng.choice(kinds or ("session", "session", "session", "dynamic", "tumbling", "hopping"))
    gap, cap = rng.choice(NEAR)
    duration, hop = rng.choice([(12, 5), (12, 4), (20, 5)]) if kind == "hopping" else (rng.choice([7, 12]), 0)
    offset = rng.choice([0, -2, 3])
    emit = rng.choice(emits)
    late = rng.choice(["reopen", "reopen", "dlq", "drop", "standalone"])
    lateness = rng.choice([0, 0, 3, gap, cap, 3 * cap, 1000])
    settings: dict[str, Any] = {"lateness_ms": lateness, "late_data": late, "emit": emit, "emit_metadata": True}
    allowed = lateness
    if late == "reopen" and rng.random() < 0.9:
        allowed = settings["allowed_lateness_ms"] = rng.choice([0, 2, gap, cap, 3 * cap, 500])
    allowed = allowed * MS if late == "reopen" else 0
    if emit == "updates" and rng.random() < 0.3:
        settings["emit_interval_ms"] = 500
    if kind in ("session", "dynamic"):
        shape: dict[str, Any] = {"gap_ms": gap if kind == "session" else "g", "max_session_duration_ms": cap}
    else:
        shape = {"duration_ms": duration, "offset_ms": offset, "max_groups_per_window": 1000}
        shape |= {"hop_ms": hop} if hop else {}
    window = Window(
        kind="session" if kind == "dynamic" else kind,
        group_by=["u"],
        aggregations=[Aggregation(agg=a, column=c, as_=name) for name, a, c in AGGREGATIONS],
        **shape,
        **settings,
    )
    spec = naive_oracle.WindowSpec(
        window.kind,
        ["u"],
        AGGREGATIONS,
        duration_us=duration * MS,
        hop_us=hop * MS,
        offset_us=offset * MS,
        gap_us=gap * MS if kind == "session" else 0,
        cap_us=cap * MS,
    )
    model = (SessionOracle if window.kind == "session" else PaneOracle)(
        spec,
        lateness_us=lateness * MS + (allowed if emit == "final" else 0),
        retained_us=0 if emit == "final" else allowed,
        allowed_us=allowed,
        updates=emit == "updates",
        interval_us=window.emit_interval_ms * MS,
    )
    rows = list(_draw_rows(rng, gap, cap, kind == "dynamic"))
    return UpdateRun(
        window,
        model,
        tuple(_add_disturbances(rng, _split_rows(rng, rows), "emit_interval_ms" in settings)),
        rng.choice([1, 1, 2, 3]),
        late != "standalone" and rng.random() < 0.5,
    )


def _draw_rows(rng: random.Random, gap: int, cap: int, dynamic: bool) -> Iterator[dict[str, Any]]:
    """Yield rows in arrival order, with times that advance and jump back by steps near the edges of windows.

    `id` is a power of two, so that a sum identifies its rows.
    """
    now_ms, users = rng.randint(-50, 20), rng.choice([["a"], ["a", "a", "b"], ["a", "b", "c", None]])
    edges = [0, 1, 1, 2, gap - 1, gap, gap + 1, cap - gap, cap - 1, cap, cap + 1]
    steps = [e for e in edges for _ in range(rng.choice([0, 1, 1, 3]))] + [1, gap, 4 * cap]
    back = [0] * rng.choice([3, 6, 12]) + [*edges, gap, 2 * gap, 2 * cap, 5 * cap]
    for n in range(rng.choice([4, 9, 16, 30])):
        now_ms += rng.choice(steps)
        brought = rng.choice([1, 2, gap, cap - 1]) if dynamic else gap
        value = rng.choice([None, float("nan"), -0.0, 0.0, 2.5, -1.0])
        yield {"ts": (now_ms - rng.choice(back)) * MS, "u": rng.choice(users), "id": 1 << n, "f": value, "g": brought}


def _split_rows(rng: random.Random, rows: list[Any]) -> list[list[Any]]:
    edges = sorted(rng.sample(range(len(rows) + 1), min(len(rows), rng.choice([0, 1, 2, 3, 5, 8, 12]))))
    return [rows[a:b] for a, b in zip([0, *edges], [*edges, len(rows)], strict=True) if b > a]


def _add_disturbances(rng: random.Random, batches: Sequence[list[Any]], timed: bool) -> Iterator[Item]:
    """Yield the batches with crashes, quiet periods and restarts.

    With `timed`, open windows wait for their emit interval. A start with another shard count checks them early.
    The model detects such a start only at a `PipelineRestart`, so crashes do not change the shard count.
    """
    troubled = rng.random() < 0.5
    for rows in batches:
        if troubled and rng.random() < 0.3:
            step, shards = rng.choice(KILL_POINTS), rng.choice([None, None, 1, 2, 3])
            yield DriverCrash(step, None if timed else shards)
        yield MicroBatch({"a": rows})
        if rng.random() < 0.2:
            yield QuietInterval(rng.choice([100, 500]))
        if troubled and rng.random() < 0.1:
            yield PipelineRestart(shards=rng.choice([1, 2, 3]))


def check_update_run(run: UpdateRun, store: Callable[[], StateStore] | None = None) -> LocalResult:
    """Check a run, on the files store by default. Raise AssertionError if the target differs from the model."""
    result = run_local_script(run.window, run.script, SCHEMA, shards=run.shards, store=store, upserts=run.upserts)
    counters, model, table, came = result.counters, run.model, TargetTable(result), -1
    for item, epoch in zip(run.script, result.epochs, strict=True):
        if isinstance(item, MicroBatch):
            dynamic = isinstance(run.window.gap_ms, str)
            model.process_epoch([r | ({"gap_us": r["g"] * MS} if dynamic else {}) for r in item.rows["a"]])
        elif isinstance(item, QuietInterval):
            model.advance_clock(item.ms * MS)
        elif isinstance(item, PipelineRestart):
            model.waiting = model.waiting or epoch > came
        came = epoch
        table.apply_epochs(epoch)
        assert_target_matches_oracle(table.rows, model, f"after epoch {epoch}")
    model.flush()
    table.apply_epochs(1 << 60)
    assert_target_matches_oracle(table.rows, model, "after the flush")
    assert counters.rows_late == len(model.late), "late rows"
    assert (
        counters.rows_in
        == counters.rows_used + counters.rows_late
        == sum(len(i.rows["a"]) for i in run.script if isinstance(i, MicroBatch))
    )
    return result


class TargetTable:
    """Target table of a run, epoch by epoch. Each epoch changes an identity at most once.

    A target that upserts receives the removed rows separately. An append-only target receives a row for each removal.
    """

    def __init__(self, result: LocalResult) -> None:
        gone = [{**row, "_emit_reason": "supersede"} for row in result.gone]
        self._coming = sorted([*result.rows, *gone], key=lambda r: r["_epoch"], reverse=True)
        self.rows: dict[Any, Mapping[str, Any]] = {}

    def apply_epochs(self, epoch: int) -> None:
        done: set[Any] = set()
        while self._coming and self._coming[-1]["_epoch"] <= epoch:
            row = self._coming.pop()
            name = (row["window_start"], (naive_oracle.hashable_value(row["u"]),))
            if row["_emit_reason"] == "standalone":
                assert row["_revision"] == 1, f"a row by itself replaces none: {row}"
                continue
            assert (row["_epoch"], name) not in done, f"twice in one epoch: {row}"
            done.add((row["_epoch"], name))
            if row["_emit_reason"] == "supersede":
                assert name in self.rows, f"supersedes what was not there: {row}"
                assert row.get("n") is None and row.get("window_end") is None
                del self.rows[name]
                continue
            before = self.rows.get(name)
            assert before is None or window_content(before) != window_content(row), f"emitted again unchanged: {row}"
            self.rows[name] = row


def window_content(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a row that describe its window."""
    return {
        k: naive_oracle.hashable_value(v)
        for k, v in row.items()
        if k not in ("_epoch", "_revision", "_emit_reason", "session_id")
    }


def assert_target_matches_oracle(table: Mapping[Any, Mapping[str, Any]], model: EpochOracle, when: str) -> None:
    actual = {name: (window_content(row), row["_revision"]) for name, row in table.items()}
    expected = {name: (_expected_columns(emitted), emitted.revision) for name, emitted in model.target.items()}
    assert actual == expected, f"{when}: {_first_difference(actual, expected)}"
    for name, row in table.items():
        reason = model.target[name].reason
        assert row["_emit_reason"] in REASONS[reason], f"{when}: {row['_emit_reason']!r} for {reason!r} of {name}"


def _expected_columns(emitted: EmittedRow) -> dict[str, Any]:
    values = {name: naive_oracle.hashable_value(value) for name, value in emitted.values.items()}
    return {"window_start": emitted.start, "window_end": emitted.end, "_final_at": emitted.final, **values}


def _first_difference(actual: Mapping[Any, Any], expected: Mapping[Any, Any]) -> str:
    name = min((n for n in actual.keys() | expected.keys() if actual.get(n) != expected.get(n)), key=repr)
    return f"{name}: {actual.get(name)}, expected {expected.get(name)}"


def check_seed(seed: int, plan: Callable[[int], UpdateRun] = plan_update_run) -> tuple[int, int, int]:
    """Check a seed. Return (epochs, late rows, revisions). Name a failing seed."""
    seed_runner.hide_warnings()
    run = plan(seed)
    try:
        result = check_update_run(run)
    except BaseException as error:
        raise AssertionError(f"seed {seed}: {error}: {run.window}") from error
    return len(result.epochs), result.counters.rows_late, sum((r["_revision"] or 0) > 1 for r in result.rows)


if __name__ == "__main__":
    seed_runner.run_seeds(check_seed, __doc__ or "", ("epochs", "late rows", "revisions"), 5000)
