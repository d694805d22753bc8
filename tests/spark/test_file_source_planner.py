"""Slackwater's planner lists the same files as Spark's file stream, for all names of files and folders."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.support import ticks_connector
from tests.support.case_selection import exhaustive, select_cases
from tests.support.spark_pipeline_runner import SparkPipelineRunner

import slackwater as sw
from slackwater.connectors.files import source as files_source
from slackwater.connectors.files.planner import FilesPlanner
from slackwater.connectors.files.source import FilesSource

pytestmark = pytest.mark.spark

PLAIN = [
    "in/b.json",
    "in/a.json",
    "in/_h.json",
    "in/.x.json",
    "in/c.json._COPYING_",
    "in/_k=v.json",
    "in/sub/c.json",
    "in/_sub/d.json",
]
NAMES = [
    "a b",
    "a%20b",
    "100%",
    "h#1",
    "q?",
    "[x]",
    "{a,b}",
    "ä名",
    "st*r",
    "back\\slash",
    "a;b,c+d&e=f",
    "tab\t",
    "new\nline",
]
TABLE = ["in/day=1/a.json", "in/day=2/b.json", "in/c.json", "in/day=4/_temporary/d.json", "in/day=5/x/e.json"]


@pytest.mark.parametrize(
    ("existing_files", "query", "options"),
    select_cases(
        [
            (PLAIN, "in", {}),
            (PLAIN, "in/*", {}),
            (PLAIN, "in/*.json", {}),
            (PLAIN, "in/a.json", {}),
            (PLAIN, "{in,in/sub}/[!a].js{on,}", {}),
            (PLAIN, "in", {"recursiveFileLookup": "true", "pathGlobFilter": "{a,c}.*"}),
            ([f"in/{name}.json" for name in NAMES], "in", {}),
            ([f"in [1] #2 %41/{name}.json" for name in NAMES], "in [1] #2 %41/*.json", {}),
            (TABLE, "in", {}),
            (TABLE, "in/day=*", {}),
            (["in/day=1/hour=2/a.json", "in/day=2/hour=3/b.json"], "in", {}),
            (["in/2024/day=1/a.json", "in/2024/day=2/b.json"], "in", {}),
            ([], "in/*", {}),
        ],
        keep=6,
    ),
)
def test_planner_lists_the_same_files_as_spark_in_the_same_order(
    spark: Any, tmp_path: Path, existing_files: Sequence[str], query: str, options: dict[str, str]
) -> None:
    (tmp_path / "in").mkdir()
    for n, name in enumerate(existing_files):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
        when = 1_600_000_000.123 + 7 * n % 5 * 100 + n
        os.utime(path, (when, when))
    source = sw.Source(
        name="events",
        connection=sw.FilesConnection(),
        query=f"{tmp_path}/{query}",
        format="json",
        schema="a INT",
        options=options,
    )
    files_source = FilesSource(source, spark.createDataFrame([], "a INT").schema)
    ours = FilesPlanner(files_source, []).next()
    expected = list_files_planned_by_spark(spark, files_source, tmp_path / "checkpoint")
    assert ([] if ours is None else [(e.path, e.timestamp) for e in ours.entries]) == expected
    if ours is not None:
        assert files_source.read(spark, ours.entries).count() == len(expected), "Spark reads each"


KEPT = Path(__file__).parents[1] / "fixtures" / "states" / "planned-by-spark"
AS_SPARK_PLANS = {"maxFileAge": "36500d"}  # with this option of Spark's file stream, Spark plans
WINDOW = sw.Window(
    kind="session",
    gap_ms="10s",
    max_session_duration_ms="2m",
    event_time_column="at",
    event_time_unit="s",
    lateness_ms="5s",
    group_by=["user"],
    aggregations=[sw.Aggregation(agg="count", as_="n"), sw.Aggregation(agg="sum", column="x", as_="total")],
)


def json_files_source(home: Path, **options: str) -> Any:
    return sw.Source(
        name="events",
        connection=sw.FilesConnection(),
        query=str(home),
        format="json",
        schema="user STRING, x BIGINT, at BIGINT",
        max_files_per_trigger=1,
        options=options,
    )


def to_window_tuples(frame: pl.DataFrame) -> list[tuple[Any, ...]]:
    return sorted(frame.select("user", "window_start", "window_end", "n", "total").rows())


@pytest.fixture
def recorded_input_folder() -> Iterator[Path]:
    """Return the folder from which the stored state read its files. Its path is part of the state."""
    home = Path("/tmp/slackwater-planned-by-spark")
    home.mkdir()  # a parallel run of this test must not lose its files
    (home / "in").mkdir()
    yield home / "in"
    shutil.rmtree(home)


@exhaustive(beside="test_file_source_planner.py::test_state_continues_when_the_planner_changes")
def test_state_with_epochs_planned_by_spark_continues(runner: SparkPipelineRunner, recorded_input_folder: Path) -> None:
    """Spark's checkpoint records the third file, but no commit does, because the run was killed in epoch 2.

    The last version that always used a streaming query wrote this state. It committed two of its 4 files.
    """
    shutil.copytree(KEPT, runner.home / "state" / "test")
    for n in range(5):  # the last file arrives later
        rows = [{"user": f"u{i % 3}", "x": n * 10 + i, "at": 1_700_000_000 + n * 8 + i} for i in range(8)]
        path = recorded_input_folder / f"{n} of 5.jsonl"
        path.write_text("".join(json.dumps(r) + "\n" for r in rows))
        os.utime(path, (1_600_000_000 + n, 1_600_000_000 + n))
    checkpoint = runner.home / "state" / "test" / "checkpoint"
    assert list(checkpoint.glob("*/sources/0/2")), "the fixture holds what it says"
    results = to_window_tuples(runner.run_pipeline(source=json_files_source(recorded_input_folder), window=WINDOW))
    assert [s.rows for s in runner.statuses if s.rows] == [8, 8, 8]
    assert runner.statuses[-1].counters.rows_in == 40
    assert list(checkpoint.iterdir()) == []
    other = {"state_store": sw.StateStore(kind="files", path=str(runner.home / "other"))}
    runner.run_pipeline(
        source=json_files_source(recorded_input_folder), window=WINDOW, target_path=str(runner.home / "whole"), **other
    )
    assert results == to_window_tuples(runner.read_output("whole"))


def test_state_continues_when_the_planner_changes(runner: SparkPipelineRunner) -> None:
    """Slackwater plans first, then Spark (by an option), then Slackwater again. No file is lost or read twice."""
    rows = [[{"user": "a", "x": n, "at": 1_700_000_000 + n * 8 + i} for i in range(8)] for n in range(6)]
    for n in range(6):
        runner.write_input_file(f"{n} [x].jsonl", rows[n])
        if n % 2:
            options = AS_SPARK_PLANS if n == 3 else {}
            runner.run_pipeline(source=json_files_source(runner.home / "in", **options), window=WINDOW, flush=n == 5)
            checkpoints = list((runner.home / "state" / "test" / "checkpoint").iterdir())
            assert len(checkpoints) == (n == 3), "each cleans up after the other"
    assert runner.statuses[-1].counters.rows_in == 48
    assert sum(runner.read_output()["n"].to_list()) == 48


def list_files_planned_by_spark(spark: Any, source: FilesSource, checkpoint: Path) -> list[tuple[str, int]]:
    writer = source.plan(spark).writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    batches = sorted((int(p.name) for p in (checkpoint / "offsets").glob("[0-9]*")), key=int)
    return [(e.path, e.timestamp) for n in batches for e in files_source.batch_files(checkpoint, 0, n)]


def test_custom_connector_resumes_at_its_committed_offsets(runner: SparkPipelineRunner) -> None:
    """The connector of `ticks_connector.py` reads each number once in two runs. The first run ends in the middle."""
    window = sw.Window(
        kind="tumbling",
        duration_ms="5s",
        lateness_ms="0s",
        event_time_column="_event_ts",
        group_by=["odd"],
        max_groups_per_window=10,
        aggregations=[sw.Aggregation(agg="collect_list", column="n", as_="ns", max_values_per_group=10)],
    )
    sql = "SELECT CAST(n % 2 AS BIGINT) AS odd, n, _event_ts FROM source"
    with ticks_connector.register_connector():
        for count, flush in ((7, False), (10, True)):
            clock = ticks_connector.TicksConnection(count=count)
            source = sw.Source(name="ticks", connection=clock, query="numbers", max_messages_per_trigger=4)
            frame = runner.run_pipeline(source=source, window=window, transform_sql=sql, flush=flush)
    assert sorted((r["odd"], sorted(r["ns"])) for r in frame.to_dicts()) == [
        (0, [0, 2, 4]),
        (0, [6, 8]),
        (1, [1, 3]),
        (1, [5, 7, 9]),
    ]
    assert runner.statuses[-1].counters.rows_in == 10
