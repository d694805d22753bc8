"""Files that our own planner finds are those that Spark's stream of files finds, whatever they and their folders are called."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import slackwater as sw
from slackwater.sources import files
from slackwater.sources.files import FilesSource
from slackwater.sources.files_planner import FilesPlanner

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
    ("there", "query", "options"),
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
)
def test_the_same_files_in_the_same_order(
    spark: Any, tmp_path: Path, there: Sequence[str], query: str, options: dict[str, str]
) -> None:
    (tmp_path / "in").mkdir()
    for n, name in enumerate(there):
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
    found = FilesSource(source, spark.createDataFrame([], "a INT").schema)
    ours = FilesPlanner(found, []).next()
    expected = planned_by_spark(spark, found, tmp_path / "checkpoint")
    assert ([] if ours is None else [(e.path, e.timestamp) for e in ours.entries]) == expected
    if ours is not None:
        assert found.read(spark, ours.entries).count() == len(expected), "Spark reads each"


def planned_by_spark(spark: Any, source: FilesSource, checkpoint: Path) -> list[tuple[str, int]]:
    writer = source.plan(spark).writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    batches = sorted((int(p.name) for p in (checkpoint / "offsets").glob("[0-9]*")), key=int)
    return [(e.path, e.timestamp) for n in batches for e in files.batch_files(checkpoint, 0, n)]
