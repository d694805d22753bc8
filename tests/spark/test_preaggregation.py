"""Pre-aggregation does not change the results of windows. Spark does it before the shuffle, or the shard after it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.case_selection import select_cases
from tests.support.sample_events_and_windows import (
    SCHEMA,
    build_every_aggregation,
    build_rows_of_every_type,
    build_window_with_every_aggregation,
    format_iso_time,
    to_comparable_rows,
)
from tests.support.spark_pipeline_runner import SparkPipelineRunner

import slackwater as sw
from slackwater.core.schema import Field
from slackwater.operators.registry import bind_window
from slackwater.operators.reports import IngestReport
from slackwater.spark.tuning.shuffle_tuning import MANY_ROWS_PER_PANE, PreaggregationPolicy

OPERATOR = bind_window(
    "p",
    sw.Window(
        kind="tumbling",
        duration_ms="1m",
        max_groups_per_window=9,
        group_by=["k"],
        aggregations=[sw.Aggregation(agg="count", as_="n")],
    ),
    {"k": Field("k", "string")},
)


def build_ingest_reports(*shards: tuple[int, int]) -> list[IngestReport]:
    """Build reports from the numbers of rows and panes of each shard."""
    return [IngestReport(shard=n, segments=(), rows=rows, panes=panes) for n, (rows, panes) in enumerate(shards)]


@pytest.mark.parametrize(
    ("shards", "behind"),
    [
        ([(500, 100), (500, 100)], True),
        ([(500 * MANY_ROWS_PER_PANE, 500), (500 * MANY_ROWS_PER_PANE, 500)], False),
        ([(500 * MANY_ROWS_PER_PANE - 1, 500), (500 * MANY_ROWS_PER_PANE, 500)], True),
        ([(700, 100), (300, 100)], True),
        ([(800, 100), (200, 100)], False),  # a hot key makes one of two shards slow
        ([(1000, 900), (10, 10), (10, 10)], False),
        ([(3, 3)], True),
    ],
)
def test_preaggregation_is_disabled_if_panes_have_few_rows(shards: list[tuple[int, int]], behind: bool) -> None:
    folding = PreaggregationPolicy()
    assert folding.operator_for_epoch(OPERATOR) is OPERATOR, "of the first epoch nothing is known"
    folding.observe(build_ingest_reports(*shards))
    assert (folding.operator_for_epoch(OPERATOR) is not OPERATOR) == behind
    assert folding.operator_for_epoch(OPERATOR) is folding.operator_for_epoch(OPERATOR), "it is made once"
    folding.observe(build_ingest_reports((0, 0), (0, 0)))
    assert (folding.operator_for_epoch(OPERATOR) is not OPERATOR) == behind, "an epoch without rows says nothing"
    folding.observe(build_ingest_reports((1000, 2)))
    assert folding.operator_for_epoch(OPERATOR) is OPERATOR


@pytest.mark.spark
@pytest.mark.parametrize("kind", select_cases(["tumbling", "hopping"]))
def test_results_are_equal_with_and_without_preaggregation(
    runner: SparkPipelineRunner, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run all aggregations, with late rows that become dead letters."""
    rows = build_rows_of_every_type()
    for n in range(4):
        late = [{**rows[n], "ts": format_iso_time(-600)}] if n else []
        runner.write_input_file(f"{n}.jsonl", [*rows[15 * n : 15 * (n + 1)], *late])
    ways: list[bool] = []
    operator_for_epoch = PreaggregationPolicy.operator_for_epoch

    def noted(folding: PreaggregationPolicy, operator: Any, one_task: bool = False) -> Any:
        chosen = operator_for_epoch(folding, operator, one_task)
        ways.append(not chosen.preaggregates_in_sql)
        return chosen

    monkeypatch.setattr(PreaggregationPolicy, "operator_for_epoch", noted)

    def run(name: str) -> tuple[Any, ...]:
        ways.clear()
        runner.run_pipeline(
            name=name,
            source=runner.files_source(SCHEMA, max_files_per_trigger=1),
            window=build_window_with_every_aggregation(
                kind, late_data="dlq", lateness_ms="10s", aggregations=build_every_aggregation()
            ),
            dead_letter=sw.Target(connection=sw.FilesConnection(), path=str(runner.home / f"letters-{name}")),
            target_path=str(runner.home / name),
            state_store=sw.StateStore(kind="files", path=str(runner.home / f"state-{name}")),
        )
        letters = runner.read_output(f"letters-{name}")
        return (
            to_comparable_rows(runner.read_output(name)),
            letters.select("reason", "value").rows(),
            runner.statuses[-1].counters,
        )

    expected = run("by-itself")
    assert ways == [False, True, True, True]
    assert len(expected[1]) == 3
    monkeypatch.setattr(PreaggregationPolicy, "observe", lambda *_: None)
    assert run("before") == expected
    assert ways == [False] * 4
