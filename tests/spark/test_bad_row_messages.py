"""Log messages for bad rows of text files name the column, the value, the file and the line."""

from __future__ import annotations

import json
import logging

import pytest
from tests.support.spark_pipeline_runner import SparkPipelineRunner

import slackwater as sw

pytestmark = pytest.mark.spark

SCHEMA = "user STRING, n BIGINT, ok BOOLEAN, ts TIMESTAMP"
GOOD = {"user": "a", "n": 1, "ok": True, "ts": "2024-03-01T09:00:00Z"}
BAD = (
    ({"n": "many"}, 'undecodable: column "n" holds "many", expected BIGINT: '),
    ({"ok": "perhaps"}, 'undecodable: column "ok" holds "perhaps", expected BOOLEAN: '),
    ({"ts": "soon"}, 'undecodable: column "ts" holds "soon", expected TIMESTAMP: '),
    ({"ts": None}, 'no event time: column "ts" is missing or NULL: '),
    ({"ts": "2924-03-01T09:00:00Z"}, 'future: column "ts" holds "2924-03-01T09:00:00.000Z": '),
)


def hourly_window() -> sw.Window:
    return sw.Window(
        kind="tumbling",
        duration="1h",
        group_by=["user"],
        event_time_column="ts",
        aggregations=[sw.Aggregation(agg="count", as_="rows")],
    )


@pytest.mark.parametrize("form", ["json", "csv"])
def test_bad_row_is_logged_with_column_value_file_and_line(
    runner: SparkPipelineRunner, caplog: pytest.LogCaptureFixture, form: str
) -> None:
    folder = runner.home / "in"
    folder.mkdir()
    for number, (change, _) in enumerate(BAD):
        rows = [GOOD, GOOD | change, GOOD | {"user": "b"}]
        if form == "csv":
            shown = [["" if v is None else str(v) for v in row.values()] for row in rows]
            text = "\n".join(["user,n,ok,ts", *map(",".join, shown)])
        else:
            text = "\n".join(["", *map(json.dumps, rows)])
        (folder / f"{number}.{form}").write_text(text + "\n")
    options = {"header": "true"} if form == "csv" else {}
    source = sw.Source(
        name="events",
        connection=sw.FilesConnection(),
        query=f"{folder}/*.{form}",
        format=form,
        schema=SCHEMA,
        options=options,
        max_files_per_trigger=1,
    )
    with caplog.at_level(logging.WARNING, "slackwater"):
        runner.run_pipeline(source=source, window=hourly_window(), on_error="drop")
    said = [r.getMessage() for r in caplog.records if "1 bad row (" in r.getMessage()]
    assert len(said) == len(BAD)
    for number, (_, expected) in enumerate(BAD):
        (line,) = [one for one in said if f"/{number}.{form}" in one]
        assert expected in line
        assert line.endswith(f"/{number}.{form}, line 3")
