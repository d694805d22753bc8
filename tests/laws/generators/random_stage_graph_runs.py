"""Seeded random graphs of two to six stages: emitted rows are never late for the stages that read them.

a ─▶ sessions, cut ─┬▶ window ──┐
b ─▶ join ──────────┘           ├▶ window over both, …       sources fall silent, are late, or change their order
c ─▶ window ─────────▶ join ────┘

Runs include kills at kill points, resharding, flushes, and config changes between two starts. A stage that reads only
stages must give the batch answer over their emitted rows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.laws.generators.fixed_stage_graph_runs import _to_microseconds, join_rows
from tests.laws.oracles import window_oracle

import slackwater as sw
from slackwater.config.stage import stage_inputs
from slackwater.engine.kill_points import KILL_POINTS
from slackwater.testing.local_pipeline import LocalPipeline

MS = 1000
SCHEMA = {"k": "string", "v": "bigint"}
SOURCES = ("a", "b", "c")
IDLE_CLOSE_MS = 3000
Row = dict[str, Any]
COUNTED = [sw.Aggregation(agg="count", as_="n"), sw.Aggregation(agg="sum", column="v", as_="v")]


NEAR_CAP: dict[str, Any] = {"kind": "session", "gap_ms": 15, "max_session_duration_ms": 20}


def draw_window(rng: random.Random, is_read: bool, lateness_ms: int, near_cap: bool) -> sw.Window:
    """Return a random window. `near_cap`: sessions that reach their cap within the gap."""
    shape: dict[str, Any] = (
        NEAR_CAP
        if near_cap
        else rng.choice(
            [
                {"kind": "tumbling", "duration_ms": rng.choice([5, 20, 200]), "max_groups_per_window": 1000},
                {"kind": "hopping", "duration_ms": 40, "hop_ms": 20, "max_groups_per_window": 1000},
                {
                    "kind": "session",
                    "gap_ms": rng.choice([9, 15]),
                    "max_session_duration_ms": rng.choice([20, 33, 120]),
                },
                {"kind": "session", "gap_ms": 15, "max_session_duration_ms": rng.choice([20, 33])},
            ]
        )
    )
    emit = rng.choice(["on_close", "on_close", "final"] if is_read else ["on_close", "final", "updates"])
    late: dict[str, Any] = {}
    if emit == "final" or (not is_read and rng.random() < 0.3):
        late = {"late_data": "reopen", "allowed_lateness_ms": 30}
    return sw.Window(
        **shape,
        **late,
        group_by=["k"],
        aggregations=COUNTED,
        emit=emit,
        lateness_ms=lateness_ms,
        source_idleness_ms=1000,
        idle_close_ms=rng.choice([None, None, None, IDLE_CLOSE_MS]),
    )


def draw_join(rng: random.Random, left_source: str, right_source: str, lateness_ms: int) -> sw.Join:
    return sw.Join(
        kind=rng.choice(["inner", "left", "right", "full"]),
        left_source=left_source,
        right_source=right_source,
        left_keys=["k"],
        right_keys=["k"],
        lower_ms=-rng.choice([0, 10, 30]),
        upper_ms=rng.choice([0, 10, 30]),
        event_time=rng.choice(["later", "left", "right"]),
        lateness_ms=lateness_ms,
        source_idleness_ms=1000,
        left_prefix="",
        right_prefix="r_",
        output_left_columns=["k", "v"],
        output_right_columns=["v"],
    )


def draw_stages(rng: random.Random, lateness_ms: int) -> list[sw.Stage]:
    """Return random stages. Each reads sources or earlier stages, and the last one reads only stages."""
    count, stages = rng.randrange(2, 7), list[sw.Stage]()
    inputs: list[tuple[str, ...]] = []
    for number in range(count):
        candidates = [
            *SOURCES[: rng.randrange(1, 4)],
            *(f"s{n}" for n in range(number)),
            *(f"s{n}" for n in range(number)),
        ]
        if number == count - 1:
            candidates = [f"s{n}" for n in range(number)]
        some = tuple(dict.fromkeys(rng.choice(candidates) for _ in range(rng.choice([1, 1, 2, 2, 3]))))
        inputs.append(some)
    read, near_cap = {name for some in inputs for name in some}, rng.random() < 0.5
    for number, some in enumerate(inputs):
        name = f"s{number}"
        if len(some) == 2 and rng.random() < 0.5:
            stages.append(sw.Stage(name=name, join=draw_join(rng, *some, lateness_ms)))
        else:
            stages.append(
                sw.Stage(
                    name=name,
                    from_=list(some),
                    window=draw_window(rng, name in read, lateness_ms, not number and near_cap),
                )
            )
    return stages


def build_stage_pipeline(stages: Sequence[sw.Stage]) -> sw.Pipeline:
    every = stage_inputs(stages, SOURCES)
    taken = {name for some in every.values() for name in some}
    targets = []
    for stage in stages:
        if stage.name not in taken:
            mode: Any = "append" if stage.join is not None else "merge"
            targets.append(
                sw.Target(name=f"of-{stage.name}", from_=stage.name, connection="t", path=stage.name, mode=mode)
            )
    return sw.pipeline(
        name="law",
        sources=[sw.Source(name=name, dataframe=object()) for name in SOURCES if name in taken],
        connections={"t": sw.DeltaConnection()},
        stages=stages,
        targets=targets,
        state_store=sw.StateStore(kind="files", path="state"),
    )


def change_stages(rng: random.Random, stages: Sequence[sw.Stage]) -> list[sw.Stage]:
    """Return the stages with one change that is allowed for an existing state."""
    changed_stages = list(stages)
    for index in rng.sample(range(len(stages)), len(stages)):
        stage = stages[index]
        update: dict[str, Any] = {}
        if stage.join is not None:
            update = rng.choice([{"event_time": t} for t in ("later", "left", "right")])
            step: Any = {"join": stage.join.model_copy(update=update)}
        else:
            assert stage.window is not None
            if stage.window.kind == "session":
                update = rng.choice([{"gap_ms": 3}, {"gap_ms": 19}, {"max_session_duration_ms": 200}])
            else:
                update = {"lateness_ms": stage.window.lateness_ms + rng.choice([10, 100])}
            step = {"window": stage.window.model_copy(update=update)}
        changed_stages[index] = stage.model_copy(update=step)
        if changed_stages[index] != stage:
            return changed_stages
    return changed_stages


def compute_batch_result(stage: sw.Stage, inputs: Mapping[str, list[Row]], read: Sequence[str]) -> list[Row]:
    """Return the rows that a stage emits for all input rows at once."""
    if stage.join is not None:
        joined_rows = join_rows(stage.join, inputs[stage.join.left_source], inputs[stage.join.right_source])
        return [{"k": r["left_k"], "v": r["left_v"], "r_v": r["right_v"], "ts": r["ts"]} for r in joined_rows]
    assert stage.window is not None
    return window_oracle.compute_windows_over_all_rows(stage.window, [row for name in read for row in inputs[name]])


def emitted_rows(stage: sw.Stage, frame: Any) -> list[Row]:
    """Return the emitted rows of a stage, with their event times for the next stage."""
    rows = frame.to_dicts()
    if stage.join is not None:
        return [{**r, "ts": _to_microseconds(r["_event_ts"])} for r in rows]
    assert stage.window is not None
    instant = 0 if stage.window.kind == "session" else 1
    times = [{**r, **{c: _to_microseconds(r[c]) for c in ("window_start", "window_end")}} for r in rows]
    return [{**r, "ts": r["window_end"] - instant} for r in times]


def comparable_rows(stage: sw.Stage, rows: Sequence[Row]) -> list[str]:
    names = ["k", "v", "r_v", "ts"] if stage.join is not None else ["k", "window_start", "window_end", "n", "v"]
    return sorted(repr([r[n] for n in names]) for r in rows)


def check_random_graph_run(seed: int, store: Callable[[], Any] | None = None) -> int:
    """Run a seed, and return the number of rows that all stages emitted."""
    rng = random.Random(seed)
    is_late, may_change, may_flush = rng.random() < 0.5, rng.random() < 0.3, rng.random() < 0.3
    lateness = rng.choice([0, 10, 40]) if is_late else 0
    stages = draw_stages(rng, lateness)
    spec, now_ms, sent = build_stage_pipeline(stages), 0, {name: list[Row]() for name in SOURCES}
    names = [s.name for s in spec.sources]
    watched = [s.name for s in stages if s.name not in {t.from_ for t in spec.targets}]
    awake, was_changed, was_behind = set(names), False, is_late
    closes_idle = any(s.window is not None and s.window.idle_close_ms is not None for s in stages)
    shards, quiet_ms = rng.choice([1, 2, 3]), 0
    with LocalPipeline(spec, SCHEMA, shards=shards, store=store, capture_losses=False, extra_stages=watched) as test:
        for _ in range(rng.randrange(5, 25)):
            if rng.random() < 0.3:
                awake = set(rng.sample(names, rng.randrange(1, len(names) + 1)))
            epoch_rows: dict[str, list[Row]] = {}
            for source in rng.sample(sorted(awake), rng.randrange(1, len(awake) + 1)):
                epoch_rows[source] = []
                for _ in range(rng.choice([0, 1, 1, 2, 2, 5])):
                    now_ms += rng.choice([0, 1, 3, 4, 6, 8, 11] if rng.random() < 0.95 else [40, 200])
                    ts = (now_ms - (rng.choice([0, 0, 0, 5, 30]) if is_late else 0)) * MS
                    epoch_rows[source].append(
                        {"k": rng.choice(["x", "x", "y", "y", None]), "v": rng.randrange(9), "ts": ts}
                    )
                sent[source] += epoch_rows[source]
            if rng.random() < 0.2:
                test.crash(rng.choice(KILL_POINTS), shards=rng.choice([None, 2, 3]))
            test.pipe(epoch_rows)
            if rng.random() < 0.4:
                quiet = rng.choice([600, 1100])
                test.quiet(quiet)
                quiet_ms += quiet
                # the watermark advances while all sources are silent for `idle_close_ms`, and rows after that are late
                was_behind = was_behind or awake != set(names) or (closes_idle and quiet_ms >= IDLE_CLOSE_MS)
            if rng.random() < 0.1:
                test.restart(shards=rng.choice([1, 2, 4]))
            if may_flush and rng.random() < 0.1:
                test.flush()
                was_behind = True
            if may_change and rng.random() < 0.2:
                stages, was_changed = change_stages(rng, stages), True
                test.restart(build_stage_pipeline(stages))
        test.flush()
        run_result, state = test.result(), test._driver.state
    results = {s.name: emitted_rows(s, run_result.stages[s.name]) for s in stages}
    inputs, read = {**sent, **results}, stage_inputs(stages, SOURCES)
    counted = {s.name: s.counters for s in state.stages}
    for stage in stages:
        counters = counted[stage.name]
        of_stages = not set(read[stage.name]) & set(SOURCES)
        if of_stages:
            assert not counters.get("late"), f"{stage.name}: results are late: {counters['late']}"
            assert not counters.get("rows_bad"), "no limit of a source judges results"
            keyless = sum(side.get("keyless", 0) for side in counters.get("sides", {}).values())
            assert counters.get("rows_in", 0) == counters.get("rows_used", 0) + keyless
        if not was_changed and (of_stages or not was_behind):
            assert comparable_rows(stage, results[stage.name]) == comparable_rows(
                stage, compute_batch_result(stage, inputs, read[stage.name])
            ), stage.name
    if not was_changed:
        reached = {s.name: s for s in state.stages}
        for stage in stages:
            before = [reached[n].promised_us for n in read[stage.name] if n in reached]
            assert reached[stage.name].watermark_us <= min(before, default=1 << 62), (
                "a reader is ahead of what it reads"
            )
        assert run_result.counters.late_between_stages == 0, "what comes late on the way"
    return sum(len(results[n]) for n in results)
