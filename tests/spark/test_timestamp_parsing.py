"""Rules for strings that are times: string, JSON and CSV columns, nested values, batches and replayed dead letters.

text in the file     10:15    T10:15:00Z    2024    2024-03    2024-03-01    2024-03-01T10:15:00Z
is                   ········ bad, with a reason ··········    midnight      itself
"""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.case_selection import select_cases
from tests.support.sample_events_and_windows import to_microseconds
from tests.support.spark_pipeline_runner import SparkPipelineRunner

import slackwater as sw
from slackwater.connectors.payloads.json_payload import JsonPayload
from slackwater.core.dead_letter_columns import DeadLetterFilter
from slackwater.core.schema import Field
from slackwater.dead_letters import dead_letter_reader
from slackwater.runner.replay_runner import replay_dead_letters
from slackwater.spark.epoch_sql import event_time_sql

pytestmark = pytest.mark.spark

NO_TIMES = [
    "10:15",
    "T10:15:00Z",
    "2024",
    "2024-03",
    "1:15-08:00",
    "10:15:00-08:00",
    "20240301",
    "now",
    "",
    "1709287200x",
    "02024",
]
TIMES = {
    "2024-03-01": "2024-03-01T00:00:00Z",
    " 2024-3-1 ": "2024-03-01T00:00:00Z",
    "2024-03-01 10:15": "2024-03-01T10:15:00Z",
    "2024-03-01T10": "2024-03-01T10:00:00Z",
    "2024-03-01T10:15:30.123456789Z": "2024-03-01T10:15:30.123456Z",
    "2024-03-01T10:15:30+0200": "2024-03-01T08:15:30Z",
    "2024-03-01T10:15:30+02": "2024-03-01T08:15:30Z",
    "2024-03-01 10:15:30 Europe/Berlin": "2024-03-01T09:15:30Z",
}
NAIVE = ("2024-03-01", " 2024-3-1 ", "2024-03-01 10:15", "2024-03-01T10")


def daily_window(**more: Any) -> sw.Window:
    defaults = {
        "kind": "tumbling",
        "duration_ms": "1d",
        "max_groups_per_window": 9,
        "group_by": ["user"],
        "event_time_column": "ts",
    }
    return sw.Window(**{**defaults, "aggregations": [sw.Aggregation(agg="count", as_="n")], **more})


def read_event_times(spark: Any, texts: list[str], zone: str = "UTC") -> list[int | None]:
    """Read the texts as an event time column."""
    frame = spark.createDataFrame([(i, t) for i, t in enumerate(texts)], "i INT, t STRING")
    sql = event_time_sql("t", Field("t", "string"), None, "", zone)
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    return [r["us"] for r in frame.selectExpr("i", f"unix_micros({sql}) AS us").sort("i").collect()]


def decode_json_times(
    spark: Any, texts: list[Any], ddl: str = "t TIMESTAMP", zone: str = "UTC"
) -> list[tuple[Any, bool]]:
    """Decode the texts as JSON in a column of a time type. Return each value, and whether the row can be used."""
    from pyspark.sql.types import StructType

    bodies = [(i, json.dumps({"t": t}).encode()) for i, t in enumerate(texts)]
    decoded = JsonPayload(StructType.fromDDL(ddl), zone=zone).decode(
        spark.createDataFrame(bodies, "i INT, value BINARY"), ["i"]
    )
    value_sql = "unix_micros(t)" if ddl == "t TIMESTAMP" else "to_json(struct(t))"
    return [
        (r["v"], r["c"] is None)
        for r in decoded.selectExpr("i", f"{value_sql} AS v", "_corrupt_record AS c").sort("i").collect()
    ]


@pytest.mark.semantics("strings-that-are-times")
def test_string_is_a_time_only_with_year_month_and_day(spark: Any) -> None:
    """A string is a time if and only if it contains a year, a month and a day."""
    assert read_event_times(spark, NO_TIMES) == [None] * len(NO_TIMES)
    assert read_event_times(spark, list(TIMES)) == [to_microseconds(t) for t in TIMES.values()]


def test_json_timestamp_column_requires_year_month_and_day(spark: Any) -> None:
    assert decode_json_times(spark, NO_TIMES) == [(None, False)] * len(NO_TIMES)
    assert decode_json_times(spark, list(TIMES)) == [(to_microseconds(t), True) for t in TIMES.values()]
    assert decode_json_times(spark, [None, 1709287200, 2024]) == [(None, True), (1709287200000000, True), (None, False)]


@pytest.mark.semantics("strings-that-are-times")
def test_date_ntz_and_nested_columns_require_year_month_and_day(spark: Any) -> None:
    """DATE, TIMESTAMP_NTZ and nested columns of JSON also need a year, a month and a day."""
    for ddl in ("t DATE", "t TIMESTAMP_NTZ", "t STRUCT<a: TIMESTAMP>", "t ARRAY<DATE>", "t MAP<STRING, TIMESTAMP>"):

        def put(text: str, ddl: str = ddl) -> Any:
            return {"a": text} if "STRUCT" in ddl or "MAP" in ddl else [None, text] if "ARRAY" in ddl else text

        decoded = decode_json_times(spark, [put("2024"), put("10:15"), put("2024-03-01"), None], ddl)
        assert [usable for _, usable in decoded] == [False, False, True, True], ddl
        assert "2024-03-01" in decoded[2][0], ddl


@pytest.mark.semantics("strings-that-are-times")
def test_string_without_a_zone_is_in_event_time_zone(spark: Any) -> None:
    """A string without a time zone is local time in `event_time_zone`.

    Berlin is one hour ahead of UTC in March, and two hours in July. Strings with a time zone keep their time zone.
    """
    hour = 3_600_000_000
    expected = [to_microseconds(t) - (hour if text in NAIVE else 0) for text, t in TIMES.items()]
    assert read_event_times(spark, list(TIMES), "Europe/Berlin") == expected
    assert [v for v, _ in decode_json_times(spark, list(TIMES), zone="Europe/Berlin")] == expected
    assert read_event_times(spark, ["2024-07-01 12:00:00"], "Europe/Berlin") == [
        to_microseconds("2024-07-01T10:00:00Z")
    ]
    assert read_event_times(spark, NO_TIMES, "Europe/Berlin") == [None] * len(NO_TIMES)


@pytest.mark.parametrize(
    ("form", "kind"),
    select_cases([(form, kind) for form in ("json", "csv") for kind in ("TIMESTAMP", "STRING", "DATE")]),
)
def test_rows_without_a_date_stay_dead_letters_after_a_replay(
    runner: SparkPipelineRunner, form: str, kind: str
) -> None:
    """JSON and CSV columns are read as strings and as times. A replay makes the same decision on any day."""
    texts = ["2024-03-01T09:00:00Z", "10:15", "2024", "T10:15:00Z", "2024-03-01T10:15:00Z", "2024-03-03"]
    folder = runner.home / "in"
    folder.mkdir()
    lines = [json.dumps({"user": "a", "ts": t}) if form == "json" else f"a;{t}" for t in texts]
    (folder / "0.txt").write_text("\n".join(lines) + "\n")
    settings: dict[str, Any] = {
        "source": sw.Source(
            name="events",
            connection=sw.FilesConnection(),
            query=str(folder),
            format=form,
            schema=f"user STRING, ts {kind}",
            options={"sep": ";"} if form == "csv" else {},
        ),
        "window": daily_window(),
        "on_error": "dlq",
        "dead_letter": sw.Target(connection=sw.FilesConnection(), path=str(runner.home / "letters")),
    }
    frame = runner.run_pipeline(**settings)
    assert frame["n"].to_list() == [2, 1]
    last = runner.statuses[-1].counters
    assert (last.rows_bad, last.rows_late, last.rows_used) == (3, 0, 3)
    where = {k: v for k, v in settings.items() if k != "target_path"}
    pipeline = sw.pipeline(
        name="test",
        **where,
        target=sw.Target(connection=sw.FilesConnection(), path=str(runner.home / "out")),
        state_store=sw.StateStore(kind="files", path=str(runner.home / "state")),
    )
    letters = dead_letter_reader.read_newest(pipeline, DeadLetterFilter())
    assert sorted(json.loads(v)["ts"] if v[:1] == b"{" else v.decode().split(";")[1] for v in letters["value"]) == [
        "10:15",
        "2024",
        "T10:15:00Z",
    ]
    again = replay_dead_letters(pipeline, lambda letters: letters, spark=runner.spark)
    assert sum(again.remaining.values()) == 3
    assert runner.read_output()["n"].sum() == 3


def test_batch_applies_the_same_time_rules(spark: Any, tmp_path: Path) -> None:
    rows = spark.createDataFrame([("a", t) for t in ["10:15", "2024", "2024-03-01 00:30:00"]], "user STRING, ts STRING")
    windows = sw.batch(rows, daily_window(event_time_zone="Europe/Berlin"), on_error="drop").collect()
    assert [(r["window_start"].replace(tzinfo=None), r["n"]) for r in windows] == [(dt.datetime(2024, 2, 29), 1)]
