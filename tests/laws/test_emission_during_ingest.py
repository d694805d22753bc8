"""Emit due windows in the pass that reads the rows, if the watermark is known before.

The watermark of an earlier stage is known. The watermark of a source is known if its statistics are available early.

rows 1 2 | 11 12 | 21      seconds, a row each; three epochs on one shard
first     [0,10) ▶  [10,20) ▶               windows of 10 s, one at a time
second      opens [0,20)  closes            of 20 s over them: the second result brings the watermark to 20 s
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from tests.support.local_pipeline_script import LocalPipeline

import slackwater as sw
from slackwater.connectors.source import Batch
from slackwater.operators.base import ShardTask
from slackwater.testing.local_engine import LocalEngine
from slackwater.watermark import CONFIRMS

S = 1_000_000


def tumbling_window(seconds: int, aggregation: Any, **more: Any) -> sw.Window:
    return sw.Window(
        kind="tumbling",
        duration_ms=1000 * seconds,
        lateness_ms=0,
        group_by=["k"],
        aggregations=[aggregation],
        max_groups_per_window=9,
        **more,
    )


def two_stage_pipeline() -> Any:
    def stage(name: str, seconds: int, function: str, column: str | None) -> Any:
        return sw.Stage(
            name=name, window=tumbling_window(seconds, sw.Aggregation(agg=function, column=column, as_="n"))
        )

    return sw.pipeline(
        name="p",
        sources=[sw.Source(name="rows", dataframe=object())],
        stages=[stage("first", 10, "count", None), stage("second", 20, "sum", "n")],
        connections={"tables": sw.DeltaConnection()},
        target=sw.Target(connection="tables", path="out", mode="merge"),
    )


STATISTICS_BEFORE_READ = LocalEngine.statistics_before_read  # before any test replaces it


@dataclass
class EngineCallRecorder:
    """Records the passes over the shards.

    `repeated_durations`: the window duration of each second pass, which only emits.
    `passes`: the window duration and the number of result files of each reading pass that emitted.
    """

    repeated_durations: list[int] = field(default_factory=list)
    passes: list[tuple[int, int]] = field(default_factory=list)


@pytest.fixture
def engine_call_recorder(monkeypatch: pytest.MonkeyPatch) -> EngineCallRecorder:
    recorder = EngineCallRecorder()
    emit, ingest = LocalEngine.emit, LocalEngine.ingest

    def duration(tasks: Sequence[ShardTask]) -> int:
        return int(tasks[0].operator.window.duration_ms)  # type: ignore[attr-defined]

    def emitting(engine: LocalEngine, tasks: Sequence[ShardTask]) -> Any:
        recorder.repeated_durations.append(duration(tasks))
        return emit(engine, tasks)

    def ingesting(engine: LocalEngine, batch: Any, tasks: Sequence[ShardTask], *more: Any) -> Any:
        outcome = ingest(engine, batch, tasks, *more)
        emitted = [r.emitted for r in outcome.reports if r.emitted is not None]
        recorder.passes.extend((duration(tasks), len(report.outputs)) for report in emitted)
        return outcome

    monkeypatch.setattr(LocalEngine, "emit", emitting)
    monkeypatch.setattr(LocalEngine, "ingest", ingesting)
    return recorder


def set_source_statistics_known_before_read(monkeypatch: pytest.MonkeyPatch, sources: bool) -> None:
    """Set whether the statistics of the sources are known before their rows are read."""

    def statistics_before_read(engine: LocalEngine, batch: Batch, clock_us: int) -> Any:
        return STATISTICS_BEFORE_READ(replace(engine, early_statistics=sources), batch, clock_us)

    monkeypatch.setattr(LocalEngine, "statistics_before_read", statistics_before_read)


def test_due_windows_of_a_later_stage_are_emitted_during_ingest(
    monkeypatch: pytest.MonkeyPatch, engine_call_recorder: EngineCallRecorder
) -> None:
    set_source_statistics_known_before_read(monkeypatch, False)
    with LocalPipeline(two_stage_pipeline(), schema={"k": "string"}, shards=1) as test:
        for seconds in ([1, 2], [11, 12], [21]):
            test.pipe([{"k": "a", "ts": s * S} for s in seconds])
        rows = test.result().rows
        assert [r["n"] for r in rows] == [4]
        assert engine_call_recorder.repeated_durations == [
            10_000,
            10_000,
        ]  # the watermark of the first stage follows from its rows
        assert engine_call_recorder.passes == [(20_000, 0), (20_000, 1)]
        test.flush()
    assert engine_call_recorder.repeated_durations[2:] == [
        10_000,
        20_000,
    ]  # the last watermark of a flush is not known before


def test_due_windows_are_emitted_during_ingest_if_source_statistics_precede_the_read(
    monkeypatch: pytest.MonkeyPatch, engine_call_recorder: EngineCallRecorder
) -> None:
    set_source_statistics_known_before_read(monkeypatch, True)
    with LocalPipeline(two_stage_pipeline(), schema={"k": "string"}, shards=1) as test:
        for seconds in ([1, 2], [11, 12], [21]):
            test.pipe([{"k": "a", "ts": s * S} for s in seconds])
        rows = test.result().rows
    assert [r["n"] for r in rows] == [4]
    assert not engine_call_recorder.repeated_durations
    assert engine_call_recorder.passes == [(10_000, 0), (10_000, 1), (20_000, 0), (10_000, 1), (20_000, 1)]


def test_possible_time_jump_does_not_emit_windows_early(
    monkeypatch: pytest.MonkeyPatch, engine_call_recorder: EngineCallRecorder
) -> None:
    """rows 1 1 1 … | 4 | 60 | 12      60 is more than 10 s ahead, so it is held back until more rows confirm it"""
    set_source_statistics_known_before_read(monkeypatch, True)
    window = tumbling_window(10, sw.Aggregation(agg="count", as_="n"), max_jump_ms="10s")
    with LocalPipeline(window, schema={"k": "string"}, shards=1) as test:
        for seconds in ([1] * CONFIRMS, [4], [60], [12]):
            test.pipe([{"k": "a", "ts": s * S} for s in seconds])
        rows = test.result().rows
    assert [r["n"] for r in rows] == [CONFIRMS + 1]
    assert engine_call_recorder.passes == [(10_000, 0), (10_000, 1)], "of the second epoch and the fourth"
    assert not engine_call_recorder.repeated_durations, "nor was anything due in the others"
