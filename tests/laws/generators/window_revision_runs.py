"""Seeded runs of revised windows (reopen, final, updates), compared with the plain loops of `naive_oracle.py`.

    python -m tests.laws.generators.window_revision_runs --runs 10000 --seed 1        # prints the seed of a failing run
    python -m tests.laws.generators.window_revision_runs --only 4711                  # repeats one run

Each seed draws a window, disordered rows, micro-batches, kills at named steps, shards, and a restart. The emitted rows
are folded into a table, as in an upsert target. The table must equal the table of the oracle, which omits rows that are
too late.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.laws.generators import seed_runner
from tests.laws.oracles import naive_oracle
from tests.support.local_pipeline_script import (
    KILL_POINTS,
    DriverCrash,
    LocalResult,
    MicroBatch,
    QuietInterval,
    run_local_script,
)

from slackwater.config.window import Aggregation, Window
from slackwater.state.protocol import StateStore

MS = 1000
GAP, DURATION, HOP = 5, 12, 5  # milliseconds
SCHEMA = {"u": "string", "id": "bigint", "f": "double"}
AGGREGATIONS = (("n", "count", None), ("ids", "sum", "id"), ("top", "max", "f"), ("first", "first", "f"))


@dataclass(frozen=True)
class RevisionRun:
    """One seeded run: its window, input and faults."""

    window: Window
    spec: naive_oracle.WindowSpec
    script: tuple[MicroBatch | QuietInterval | DriverCrash, ...]
    lateness_us: int
    allowed_us: int
    shards: int
    reshard_after: int | None
    upserts: bool

    @property
    def epoch_rows(self) -> list[Sequence[Mapping[str, Any]]]:
        return [item.rows["a"] for item in self.script if isinstance(item, MicroBatch)]


def plan_revision_run(seed: int, cap_binds: bool = False) -> RevisionRun:
    """Return the run of a seed."""
    rng = random.Random(seed)
    kind = rng.choice(["session", "session", "tumbling", "hopping"])
    cap = rng.choice([11, 16, 24]) if cap_binds else 100_000
    shape: dict[str, Any] = {
        "session": {"gap_ms": GAP, "max_session_duration_ms": cap},
        "tumbling": {"duration_ms": DURATION, "offset_ms": rng.choice([0, 5]), "max_groups_per_window": 1000},
        "hopping": {
            "duration_ms": DURATION,
            "hop_ms": rng.choice([HOP, 4]),
            "offset_ms": rng.choice([0, -2]),
            "max_groups_per_window": 1000,
        },
    }[kind]
    lateness, late = rng.choice([0, 0, 4, 15]), rng.choice(["reopen", "reopen", "dlq", "drop"])
    allowed = rng.choice([0, 3, 10, 40, 200])
    emit = rng.choice(["on_close", "on_close", "final", "updates", "updates"])
    settings: dict[str, Any] = {"lateness_ms": lateness, "late_data": late, "emit": emit, "emit_metadata": True}
    if late == "reopen" and rng.random() < 0.9:
        settings["allowed_lateness_ms"] = allowed
    waits = (settings.get("allowed_lateness_ms", lateness) if late == "reopen" else 0) * MS
    window = Window(
        kind=kind,
        group_by=["u"],
        aggregations=[Aggregation(agg=a, column=c, as_=name) for name, a, c in AGGREGATIONS],
        **shape,
        **settings,
    )
    spec = naive_oracle.WindowSpec(
        kind,
        ["u"],
        AGGREGATIONS,
        duration_us=shape.get("duration_ms", 0) * MS,
        hop_us=shape.get("hop_ms", shape.get("duration_ms", 0)) * MS,
        offset_us=shape.get("offset_ms", 0) * MS,
        gap_us=GAP * MS,
        cap_us=cap * MS,
    )
    script: list[MicroBatch | QuietInterval | DriverCrash] = []
    for rows in _split_rows(rng, _draw_rows(rng)):
        if rng.random() < 0.3:
            script.append(DriverCrash(rng.choice(KILL_POINTS)))
        script.append(MicroBatch({"a": rows}))
        if rng.random() < 0.1:
            script.append(QuietInterval(500))
    reshard = rng.randrange(len(script)) if rng.random() < 0.2 else None
    shards, upserts = rng.choice([1, 2, 3]), rng.random() < 0.5
    return RevisionRun(window, spec, tuple(script), lateness * MS, waits, shards, reshard, upserts)


def _draw_rows(rng: random.Random) -> list[dict[str, Any]]:
    """Return rows in arrival order. Times advance and jump back. `id` is a power of two, so a sum names its rows."""
    now_ms, rows = rng.randint(-50, 20), list[dict[str, Any]]()
    for n in range(rng.randint(1, 28)):
        now_ms += rng.choice([0, 1, 2, GAP - 1, GAP, GAP + 1, DURATION, 25])
        back = rng.choice([0, 0, 0, 1, GAP, 2 * GAP, DURATION, 40, 80])
        value = rng.choice([None, float("nan"), -0.0, 0.0, 2.5, -1.0])
        rows.append({"ts": (now_ms - back) * MS, "u": rng.choice(["a", "a", "b", None]), "id": 1 << n, "f": value})
    return rows


def _split_rows(rng: random.Random, rows: list[Any]) -> list[list[Any]]:
    edges = sorted(rng.sample(range(len(rows) + 1), min(len(rows), rng.choice([0, 1, 2, 2, 3, 3, 4, 7]))))
    return [rows[a:b] for a, b in zip([0, *edges], [*edges, len(rows)], strict=True) if b > a]


def row_identity(row: Mapping[str, Any]) -> tuple[Any, Any]:
    return (row["window_start"], row["u"])


def final_target_table(result: LocalResult, upto: int | None = None) -> dict[tuple[Any, Any], Mapping[str, Any]]:
    """Return the table of a run up to an epoch. Each epoch changes an identity at most once.

    An upsert target receives superseded rows separately. An append-only target receives them as rows.
    """
    table: dict[tuple[Any, Any], Mapping[str, Any]] = {}
    revisions: dict[tuple[Any, Any], int] = {}
    done: set[tuple[int, Any]] = set()
    gone = [{**row, "_emit_reason": "supersede"} for row in result.gone]
    for row in sorted([*result.rows, *gone], key=lambda r: r["_epoch"]):
        if upto is not None and row["_epoch"] > upto:
            break
        name = row_identity(row)
        assert (row["_epoch"], name) not in done, f"twice in one epoch: {row}"
        done.add((row["_epoch"], name))
        if row["_emit_reason"] == "supersede":
            assert name in table, f"supersedes what was not there: {row}"
            assert row.get("n") is None and row.get("window_end") is None
            assert row.get("_revision", 1 << 40) > revisions[name], f"a superseded row has an older revision: {row}"
            del table[name]
            continue
        before = table.get(name)
        assert before is None or comparable_row(before) != comparable_row(row), f"emitted again unchanged: {row}"
        assert row["_revision"] > revisions.get(name, 0), f"revision does not grow: {row}"
        revisions[name] = row["_revision"]
        table[name] = row
    return table


def comparable_row(row: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [
        (k, naive_oracle.hashable_value(v))
        for k, v in sorted(row.items())
        if not k.startswith("_") and k != "session_id"
    ]


def comparable_rows(rows: Any) -> list[str]:
    return sorted(repr(comparable_row(r)) for r in rows)


class RevisionOracle:
    """Oracle of a run, which advances epoch by epoch."""

    def __init__(self, run: RevisionRun) -> None:
        self.panes = run.spec.kind != "session"
        lateness = run.lateness_us + (run.allowed_us if run.window.emit == "final" else 0)
        allowed = 0 if run.window.emit == "final" else run.allowed_us
        self.model: Any = (
            naive_oracle.PaneEpochOracle(run.spec, {"a": lateness}, allowed_us=allowed)
            if self.panes
            else naive_oracle.SessionEpochOracle(run.spec, lateness, allowed_us=allowed)
        )

    def process_epoch(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.model.add_epoch({"a": rows} if self.panes else rows)


def check_revision_run(
    seed: int, cap_binds: bool = False, store: Callable[[], StateStore] | None = None
) -> LocalResult:
    """Run a seed, by default on the files store. Raises AssertionError if a law is violated."""
    run = plan_revision_run(seed, cap_binds)
    result = run_local_script(
        run.window,
        run.script,
        SCHEMA,
        shards=run.shards,
        reshard_after=run.reshard_after,
        store=store,
        upserts=run.upserts,
    )
    counters = result.counters
    total = sum(map(len, run.epoch_rows))
    assert counters.rows_in == counters.rows_used + counters.rows_late == total
    if run.window.late_data in ("reopen", "dlq"):
        assert len(result.letters) == counters.letters.get("late", 0) >= counters.rows_late
        assert run.spec.kind == "hopping" or len(result.letters) == counters.rows_late
        assert sum(letter["windows_missed"] for letter in result.letters) == counters.late_windows
    table = final_target_table(result)
    members: Counter[int] = Counter()
    for row in table.values():
        members.update(n for n in range(40) if row["ids"] >> n & 1)
    if run.spec.kind != "hopping":
        assert set(members.values()) <= {1}, "a row in two windows"
        assert len(members) == counters.rows_used
    if cap_binds:
        check_session_intervals(run, table)
        return result
    judge = RevisionOracle(run)
    epoch_of = {s.counters.rows_in: s.epoch for s in result.statuses if s.rows}  # a kill may have suppressed a status
    came = 0
    for rows in run.epoch_rows:
        judge.process_epoch(rows)
        came += len(rows)
        if run.window.emit == "updates" and came in epoch_of:
            assert comparable_rows(final_target_table(result, epoch_of[came]).values()) == comparable_rows(
                judge.model.window_rows()
            ), epoch_of[came]
    assert counters.rows_late == len(judge.model.late)
    assert comparable_rows(table.values()) == comparable_rows(judge.model.window_rows())
    return result


def check_session_intervals(run: RevisionRun, table: Mapping[Any, Mapping[str, Any]]) -> None:
    """Check the sessions of each key: none overlaps another, none reaches the cap, and each starts at a row."""
    by_id = {r["id"]: r for rows in run.epoch_rows for r in rows}
    for user in {u for _, u in table}:
        held = []
        for row in (r for (_, u), r in table.items() if u == user):
            times = sorted(by_id[1 << n]["ts"] for n in range(40) if row["ids"] >> n & 1)
            assert run.spec.kind != "session" or times[0] == row["window_start"]
            held.append((times[0], times[-1]))
        if run.spec.kind == "session":
            held.sort()
            assert all(last - first < run.spec.cap_us for first, last in held), "a session reaches the cap"
            assert all(a[1] < b[0] for a, b in itertools.pairwise(held)), "sessions overlap"


def check_seed(seed: int) -> tuple[int, int]:
    """Check a seed, every fifth with a low cap. Return (late rows, revisions). An error names the seed."""
    seed_runner.hide_warnings()
    cap_binds = seed % 5 == 0
    try:
        result = check_revision_run(seed, cap_binds)
    except BaseException as error:
        raise AssertionError(
            f"seed {seed}, cap binds: {cap_binds}: {plan_revision_run(seed, cap_binds).window}"
        ) from error
    return result.counters.rows_late, sum(r["_revision"] > 1 for r in result.rows)


if __name__ == "__main__":
    seed_runner.run_seeds(check_seed, __doc__ or "", ("late rows", "revisions"), 10_000)
