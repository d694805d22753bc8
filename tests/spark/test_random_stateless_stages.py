"""Run random graphs with stateless stages and corrections of target rows on Spark.

a ─▶ filter ─┬▶ window ─▶ filter ─▶ window ─▶ target (merge: late rows correct what it holds)
b ─▶ filter ─┴▶ join ───▶ filter ───────────▶ target (append)

Rows arrive late, runs crash at kill points, and the number of shards changes. Each stage that no late row can reach
must give the batch result over the rows that its inputs emitted. A window whose allowed lateness covers every late row
must have the batch result in its target after its corrections.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from tests.laws.generators import random_stage_graph_runs
from tests.laws.generators.fixed_stage_graph_runs import _to_microseconds
from tests.laws.generators.random_stage_graph_runs import COUNTED, MS, Row
from tests.support.case_selection import select_cases

import slackwater as sw
from slackwater.config.stage import stage_inputs
from slackwater.engine.kill_points import KILL_POINTS
from slackwater.testing.local_pipeline import LocalPipeline

pytestmark = pytest.mark.spark

SCHEMA = {"k": "string", "v": "bigint"}
SOURCES = ("a", "b")
FOREVER_MS = 1_000_000
FILTERS: dict[str, Callable[[int | None], list[int | None]]] = {  # NULL comes from rows without a match in a join
    "SELECT k, v * 2 AS v, _event_ts FROM source WHERE v % 3 <> 1": lambda v: (
        [] if v is None or v % 3 == 1 else [v * 2]
    ),
    "SELECT k, v + 1 AS v, _event_ts FROM source": lambda v: [None if v is None else v + 1],
    "SELECT k, explode(array(v, 10 + v)) AS v, _event_ts FROM source": lambda v: [v, None if v is None else 10 + v],
}


def draw_window(draw: random.Random, is_read: bool, lateness_ms: int) -> sw.Window:
    """Return a window that emits once for its readers, or one that always corrects its target."""
    shape: dict[str, Any] = draw.choice(
        [
            {"kind": "tumbling", "duration_ms": draw.choice([5, 20, 200]), "max_groups_per_window": 1000},
            {"kind": "hopping", "duration_ms": 40, "hop_ms": 20, "max_groups_per_window": 1000},
            {"kind": "session", "gap_ms": 15, "max_session_duration_ms": draw.choice([20, 33, 120])},
        ]
    )
    corrects = {"late_data": "reopen", "allowed_lateness_ms": FOREVER_MS, "emit": draw.choice(["on_close", "updates"])}
    return sw.Window(
        **shape,
        **({} if is_read else corrects),
        group_by=["k"],
        aggregations=COUNTED,
        lateness_ms=lateness_ms,
        source_idleness_ms=FOREVER_MS,
    )


def draw_stages(draw: random.Random, lateness_ms: int) -> list[sw.Stage]:
    """Return three to six stages, at least one of them stateless.

    Each stage reads sources or earlier stages, and the last stage reads a stage.
    """
    count = draw.randrange(3, 7)
    kinds = ["filter", *(draw.choice(["filter", "window", "join"]) for _ in range(count - 1))]
    draw.shuffle(kinds)
    inputs: list[tuple[str, ...]] = []
    for number, kind in enumerate(kinds):
        names = [f"s{n}" for n in range(number)] or list(SOURCES)
        names = names if number == count - 1 or draw.random() < 0.6 else [*SOURCES]
        inputs.append(
            tuple(draw.sample(names, min(len(names), {"join": 2, "filter": 1}.get(kind, draw.choice([1, 2])))))
        )
    read = {name for some_inputs in inputs for name in some_inputs}
    stages = []
    for number, (kind, names) in enumerate(zip(kinds, inputs, strict=True)):
        name = f"s{number}"
        if kind == "join" and len(names) == 2:
            stages.append(sw.Stage(name=name, join=random_stage_graph_runs.draw_join(draw, *names, lateness_ms)))
        elif kind == "filter":
            stages.append(sw.Stage(name=name, from_=names[0], sql=draw.choice(list(FILTERS))))
        else:
            stages.append(sw.Stage(name=name, from_=list(names), window=draw_window(draw, name in read, lateness_ms)))
    return stages


def pipeline_with_stages(stages: Sequence[sw.Stage]) -> sw.Pipeline:
    read = {name for names in stage_inputs(stages, SOURCES).values() for name in names}
    return sw.pipeline(
        name="law",
        sources=[sw.Source(name=name, dataframe=object()) for name in SOURCES if name in read],
        connections={"t": sw.DeltaConnection()},
        stages=stages,
        targets=[
            sw.Target(
                name=f"of-{s.name}", from_=s.name, connection="t", path=s.name, mode="append" if s.window is None else "merge"
            )
            for s in stages
            if s.name not in read
        ],
        state_store=sw.StateStore(kind="files", path="state"),
    )  # fmt: skip


def compute_stage_rows(stage: sw.Stage, inputs: Mapping[str, list[Row]], names: Sequence[str]) -> list[Row]:
    """Return the result of a stage over all rows of its inputs at once."""
    if stage.sql is None or stage.window is not None:
        return random_stage_graph_runs.compute_batch_result(stage, inputs, names)
    rows = inputs[names[0]]
    return [{"k": r["k"], "v": v, "ts": r["ts"]} for r in rows for v in FILTERS[stage.sql](r["v"])]


def read_emitted_rows(stage: sw.Stage, frame: Any) -> list[Row]:
    """Return the rows of a stage's result, with the event time that they have for the next stage."""
    if stage.window is not None or stage.join is not None:
        return random_stage_graph_runs.emitted_rows(stage, frame)
    return [{"k": r["k"], "v": r["v"], "ts": _to_microseconds(r["_event_ts"])} for r in frame.to_dicts()]


def comparable_rows(stage: sw.Stage, rows: Sequence[Row]) -> list[str]:
    if stage.window is not None or stage.join is not None:
        return random_stage_graph_runs.comparable_rows(stage, rows)
    return sorted(repr([r["k"], r["v"], r["ts"]]) for r in rows)


def is_reachable_by_late_rows(stage: str, stages: Mapping[str, sw.Stage], inputs: Mapping[str, Sequence[str]]) -> bool:
    """Return whether rows of a source reach a stage without passing a stateful stage."""
    for name in inputs[stage]:
        above = stages.get(name)
        if above is None or (
            above.window is None and above.join is None and is_reachable_by_late_rows(name, stages, inputs)
        ):
            return True
    return False


@pytest.mark.parametrize("seed", select_cases(range(10), keep=2))
def test_stages_of_random_graphs_give_the_batch_result_of_their_inputs(spark: Any, seed: int) -> None:
    draw = random.Random(seed)
    is_late = draw.random() < 0.6
    stages = draw_stages(draw, draw.choice([0, 10]) if is_late else 0)
    spec, now, sent = pipeline_with_stages(stages), 0, {name: list[Row]() for name in SOURCES}
    sources = [s.name for s in spec.sources]
    watched = [s.name for s in stages if s.name not in {t.from_ for t in spec.targets}]
    with LocalPipeline(
        spec, SCHEMA, session=spark, shards=draw.choice([1, 2]), capture_losses=False, extra_stages=watched
    ) as test:
        for _ in range(draw.randrange(3, 6)):
            rows: dict[str, list[Row]] = {name: [] for name in sources}
            for name in sources:
                for _ in range(draw.choice([0, 2, 6, 12])):
                    now += draw.choice([0, 1, 4, 8, 11, 40])
                    ts = (now - (draw.choice([0, 0, 30, 90]) if is_late else 0) + 1000) * MS
                    rows[name].append({"k": draw.choice(["x", "y"]), "v": draw.randrange(9), "ts": ts})
                sent[name] += rows[name]
            if draw.random() < 0.4:
                test.crash(draw.choice(KILL_POINTS), shards=draw.choice([None, 3]))
            test.pipe(
                {
                    name: [{"k": r["k"], "v": r["v"], "_event_ts": iso_time(r["ts"])} for r in some_rows]
                    for name, some_rows in rows.items()
                }
            )
        test.flush()
        outcome, state = test.result(), test._driver.state
    read, by_name, inputs = stage_inputs(stages, SOURCES), {s.name: s for s in stages}, dict(sent)
    for stage in stages:
        if stage.name in outcome.stages:
            inputs[stage.name] = read_emitted_rows(stage, outcome.stages[stage.name])
        else:  # its SQL is a part of the stages that read it
            inputs[stage.name] = compute_stage_rows(stage, inputs, read[stage.name])
    late = {s.name: s.counters.get("late") for s in state.stages}
    for stage in stages:
        corrects = stage.window is not None and stage.window.late_data == "reopen"
        stateless = stage.window is None and stage.join is None
        exposed = is_reachable_by_late_rows(stage.name, by_name, read)
        if not exposed or corrects:
            assert not late.get(stage.name), f"{stage.name}: rows are late: {late[stage.name]}"
        if stateless or corrects or not exposed or not is_late:
            expected = comparable_rows(stage, compute_stage_rows(stage, inputs, read[stage.name]))
            assert comparable_rows(stage, inputs[stage.name]) == expected, f"{stage.name} of {[s.name for s in stages]}"
    assert outcome.counters.late_between_stages == 0


def iso_time(us: int) -> str:
    return (dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=us)).isoformat()
