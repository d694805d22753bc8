"""Seeded runs of joins against brute force over the rows that were not late.

    python -m tests.laws.generators.join_runs --runs 5000 --seed 1             # prints the seed of a run that fails
    python -m tests.laws.generators.join_runs --only 4711                      # one run again

Each seed draws a join, rows of both sides in any disorder, micro-batches, silent sources, crashes at named steps, a
number of shards and a restart with another number.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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

from slackwater.config.join import Join
from slackwater.state.protocol import StateStore

MS = 1000
SCHEMA = {"k": "string", "f": "double", "id": "bigint"}
IDLE_MS = 1000


@dataclass(frozen=True)
class JoinRun:
    """One seeded run: the join, its input and its disturbances."""

    join: Join
    script: tuple[MicroBatch | QuietInterval | DriverCrash, ...]
    shards: int
    reshard_after: int | None


def plan_run(seed: int) -> JoinRun:
    """Draw the run of a seed."""
    rng = random.Random(seed)
    bounds = rng.choice([{"time_window_ms": rng.choice([0, 4, 12])}, draw_bounds(rng)])
    late = rng.choice(["drop", "drop", "dlq", "reopen"])
    settings: dict[str, Any] = {"late_data": late}
    if late == "reopen":
        settings["allowed_lateness_ms"] = rng.choice([0, 5, 30])
    join = _draw_join(rng, bounds, settings)
    script: list[MicroBatch | QuietInterval | DriverCrash] = []
    dies = rng.random() < 0.6  # a crash loses uncommitted quiet times, which the oracle does not model
    now_ms = {"a": rng.randint(-50, 20), "b": rng.randint(-50, 20)}
    number = 0
    for _ in range(rng.randint(1, 7)):
        if dies and rng.random() < 0.4:
            script.append(DriverCrash(rng.choice(KILL_POINTS)))
        epoch_rows: dict[str, list[dict[str, Any]]] = {}
        for source in ("a", "b"):
            if rng.random() < 0.15:
                continue
            epoch_rows[source] = []
            for _ in range(rng.randint(0, 9)):
                now_ms[source] += rng.choice([0, 1, 2, 4, 12, 25])
                back = rng.choice([0, 0, 0, 1, 4, 12, 40])
                row = {"ts": (now_ms[source] - back) * MS, "k": rng.choice(["x", "x", "y", "z", None]), "id": number}
                row["f"] = rng.choice([0.0, -0.0, float("nan"), 1.5, None])
                number += 1
                epoch_rows[source].append(row)
                if rng.random() < 0.1:
                    epoch_rows[source].append(dict(row))
        if any(epoch_rows.values()):
            script.append(MicroBatch({s: rows for s, rows in epoch_rows.items() if rows}))
        if not dies and rng.random() < 0.3:
            script.append(QuietInterval(rng.choice([400, IDLE_MS])))
    reshard = rng.randrange(len(script)) if script and dies and rng.random() < 0.4 else None
    return JoinRun(join, tuple(script), rng.choice([1, 2, 3]), reshard)


def _draw_join(rng: random.Random, bounds: Mapping[str, Any], settings: Mapping[str, Any]) -> Join:
    keys = ["k", "f"] if rng.random() < 0.3 else ["k"]
    return Join(
        kind=rng.choice(["inner", "left", "right", "full"]),
        left_source="a",
        right_source="b",
        left_keys=keys,
        right_keys=keys,
        lateness_ms=rng.choice([0, 0, 3, 20]),
        source_idleness_ms=IDLE_MS,
        event_time=rng.choice(["later", "left", "right"]),
        **bounds,
        **settings,
    )


def draw_bounds(rng: random.Random) -> dict[str, int]:
    lower, upper = sorted((rng.randint(-15, 15), rng.randint(-15, 15)))
    return {"lower_ms": lower, "upper_ms": upper}


@dataclass
class JoinOracle:
    """Brute force, epoch by epoch: the late rows, and all pairs of the other rows."""

    join: Join
    allowed_us: int
    clock: naive_oracle.PaneEpochOracle = field(init=False)
    rows_in_time: dict[str, list[Mapping[str, Any]]] = field(default_factory=lambda: {"a": [], "b": []})
    late: list[Mapping[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = naive_oracle.PaneEpochOracle(
            naive_oracle.WindowSpec("tumbling", duration_us=1),
            dict.fromkeys("ab", self.join.lateness_ms * MS),
            IDLE_MS * MS,
        )

    def process_epoch(self, rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        watermark = self.clock.watermark
        for source, source_rows in rows.items():
            for row in source_rows:
                is_late = watermark is not None and watermark > row["ts"] + self.allowed_us
                (self.late if is_late else self.rows_in_time[source]).append(row)
        self.clock.add_epoch(rows)

    def count_joined_rows(self) -> Counter[str]:
        """Return the matching pairs, and the unmatched rows of outer sides, as counted lines."""
        return Counter(self._pair_text(*pair) for pair in self.compute_row_pairs())

    def compute_output_rows(self) -> list[dict[str, Any]]:
        """Return the expected rows with `ts` and the columns of the output."""
        output_rows = []
        for left_row, right_row in self.compute_row_pairs():
            sides = (("left", left_row), ("right", right_row))
            values = {f"{name}_{c}": None if row is None else row[c] for name, row in sides for c in ("k", "f", "id")}
            output_rows.append({"ts": self._event_time(left_row, right_row), **values})
        return output_rows

    def compute_row_pairs(self) -> list[tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]]:
        lower, upper = (MS * ms for ms in self.join.bounds_ms)
        row_pairs: list[tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]] = []
        lonely = {source: list(rows) for source, rows in self.rows_in_time.items()}
        for left_row in self.rows_in_time["a"]:
            for right_row in self.rows_in_time["b"]:
                if lower <= right_row["ts"] - left_row["ts"] <= upper and self._keys_match(left_row, right_row):
                    row_pairs.append((left_row, right_row))
                    lonely["a"] = [r for r in lonely["a"] if r is not left_row]
                    lonely["b"] = [r for r in lonely["b"] if r is not right_row]
        left_outer, right_outer = self.join.outer
        row_pairs += [(row, None) for row in lonely["a"] if left_outer]
        row_pairs += [(None, row) for row in lonely["b"] if right_outer]
        return row_pairs

    def _keys_match(self, left_row: Mapping[str, Any], right_row: Mapping[str, Any]) -> bool:
        pairs = [(left_row[a], right_row[b]) for a, b in zip(self.join.left_keys, self.join.right_keys, strict=True)]
        return all(
            a is not None and b is not None and naive_oracle.hashable_value(a) == naive_oracle.hashable_value(b)
            for a, b in pairs
        )

    def _event_time(self, left_row: Mapping[str, Any] | None, right_row: Mapping[str, Any] | None) -> int:
        times = [side["ts"] for side in (left_row, right_row) if side is not None]
        time_us = max(times)
        if left_row is not None and right_row is not None and self.join.event_time != "later":
            time_us = (left_row if self.join.event_time == "left" else right_row)["ts"]
        return int(time_us)

    def _pair_text(self, left_row: Mapping[str, Any] | None, right_row: Mapping[str, Any] | None) -> str:
        time_us = self._event_time(left_row, right_row)
        sides = (None if side is None else (side["id"], side["k"], repr(side["f"])) for side in (left_row, right_row))
        return repr((time_us, *sides))

    def count_null_key_rows(self) -> int:
        """Return the number of rows with a NULL key on inner sides."""
        names = {"a": self.join.left_keys, "b": self.join.right_keys}
        inner = [s for s, outer in zip("ab", self.join.outer, strict=True) if not outer]
        return sum(any(r[k] is None for k in names[s]) for s in inner for r in self.rows_in_time[s])


def output_row_text(row: Mapping[str, Any]) -> str:
    """Return an output row in the format of the oracle."""
    sides = (
        None if row[f"{side}_id"] is None else (row[f"{side}_id"], row[f"{side}_k"], repr(row[f"{side}_f"]))
        for side in ("left", "right")
    )
    return repr((row["_event_ts"], *sides))


def check_run(seed: int, store: Callable[[], StateStore] | None = None) -> LocalResult:
    """Run a seed, by default on the files store. Raise AssertionError if a law is broken."""
    run = plan_run(seed)
    result = run_local_script(
        run.join,
        run.script,
        SCHEMA,
        sources=("a", "b"),
        shards=run.shards,
        reshard_after=run.reshard_after,
        store=store,
    )
    allowed = (run.join.allowed_lateness_ms or 0) * MS if run.join.late_data == "reopen" else 0
    judge = JoinOracle(run.join, allowed)
    for item in run.script:
        if isinstance(item, MicroBatch):
            judge.process_epoch(item.rows)
        elif isinstance(item, QuietInterval):
            judge.clock.pass_quiet_time(item.ms * MS)
    actual_counts = Counter(map(output_row_text, result.rows))
    expected_counts = judge.count_joined_rows()
    assert actual_counts == expected_counts, (
        f"missing {expected_counts - actual_counts}, too many {actual_counts - expected_counts}"
    )
    counters = result.counters
    total = sum(len(rows) for item in run.script if isinstance(item, MicroBatch) for rows in item.rows.values())
    assert counters.rows_late == len(judge.late)
    assert counters.rows_in == total == counters.rows_used + counters.rows_late + judge.count_null_key_rows()
    if run.join.late_data in ("dlq", "reopen"):
        assert len(result.letters) == counters.letters.get("late", 0) == len(judge.late)
    assert sum(counters.emitted.values()) == len(result.rows)
    return result


def check_seed(seed: int) -> tuple[int, int]:
    """Check a seed and return (late rows, rows out). A failure names its seed."""
    seed_runner.hide_warnings()
    try:
        result = check_run(seed)
    except BaseException as error:
        raise AssertionError(f"seed {seed}: {plan_run(seed).join}") from error
    return result.counters.rows_late, len(result.rows)


if __name__ == "__main__":
    seed_runner.run_seeds(check_seed, __doc__ or "", ("late rows", "rows out"), 5000)
