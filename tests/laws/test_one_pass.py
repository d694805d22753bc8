"""A stage behind others lets out in the pass that reads what it knows to be due: its watermark is theirs, and theirs is known.

rows 1 2 | 11 12 | 21      seconds, a row each; three epochs on one shard
first     [0,10) ▶  [10,20) ▶               windows of 10 s, one at a time
second      opens [0,20)  closes            of 20 s over them: the second result brings the watermark to 20 s
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import slackwater as sw
from slackwater.operators.base import ShardTask
from slackwater.testing.kit import LocalPipeline
from slackwater.testing.local import LocalEngine

S = 1_000_000


def chained() -> Any:
    def stage(name: str, seconds: int, of: str, column: str | None) -> Any:
        aggregation = sw.Aggregation(agg=of, column=column, as_="n")
        window = sw.Window(
            kind="tumbling",
            duration_ms=1000 * seconds,
            lateness_ms=0,
            group_by=["k"],
            aggregations=[aggregation],
            max_groups_per_window=9,
        )
        return sw.Stage(name=name, window=window)

    return sw.pipeline(
        name="p",
        sources=[sw.Source(name="rows", dataframe=object())],
        stages=[stage("first", 10, "count", None), stage("second", 20, "sum", "n")],
        connections={"tables": sw.DeltaConnection()},
        target=sw.Target(connection="tables", path="out", mode="merge"),
    )


def test_what_a_stage_knows_to_be_due_comes_out_in_the_pass_that_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []  # the duration of the windows that were asked a second time
    passes: list[int] = []  # how many files of results came out of each pass that emitted
    emit, ingest = LocalEngine.emit, LocalEngine.ingest

    def emitting(engine: LocalEngine, tasks: Sequence[ShardTask]) -> Any:
        asked.append(tasks[0].operator.window.duration_ms)  # type: ignore[attr-defined]
        return emit(engine, tasks)

    def ingesting(engine: LocalEngine, batch: Any, tasks: Sequence[ShardTask], *more: Any) -> Any:
        found = ingest(engine, batch, tasks, *more)
        passes.extend(len(r.emitted.outputs) for r in found.reports if r.emitted is not None)
        return found

    monkeypatch.setattr(LocalEngine, "emit", emitting)
    monkeypatch.setattr(LocalEngine, "ingest", ingesting)
    with LocalPipeline(chained(), schema={"k": "string"}, shards=1) as test:
        for seconds in ([1, 2], [11, 12], [21]):
            test.pipe([{"k": "a", "ts": s * S} for s in seconds])
        rows = test.result().rows
        assert [r["n"] for r in rows] == [4]
        assert asked == [10_000, 10_000]  # the first stage: its watermark follows from its rows
        assert passes == [0, 1]
        test.flush()
    assert asked[2:] == [10_000, 20_000]  # behind a flush the last watermark is not known before
