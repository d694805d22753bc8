"""`LocalPipeline` with Spark gives the results of a real run, with SQL, bad rows and late rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.support.case_selection import select_cases
from tests.support.parquet_rows import read_sorted_rows, to_sorted_rows

import slackwater as sw
from slackwater.testing import LocalPipeline

pytestmark = pytest.mark.spark

SCHEMA = "user STRING, kind STRING, amount DOUBLE, ts TIMESTAMP"
COUNT = sw.Aggregation(agg="count", as_="n")
SUM = sw.Aggregation(agg="sum", column="amount", as_="amount")


def session_window(**more: Any) -> sw.Window:
    defaults = {"kind": "session", "gap_ms": "10m", "max_session_duration_ms": "6h", "event_time_column": "ts"}
    return sw.Window(**{**defaults, "group_by": ["user"], "aggregations": [COUNT, SUM], **more})


def files_pipeline(home: Path, window: sw.Window, sql: str | None = None, **more: Any) -> sw.Pipeline:
    dead_letters = {"dead_letter": sw.Target(connection="lake", path=str(home / "letters"), format="parquet")}
    return sw.pipeline(
        name="tested",
        connections=more.pop("connections", {"lake": sw.FilesConnection()}),
        source="lake",
        source_query=str(home / "in"),
        source_format="json",
        source_schema=SCHEMA,
        max_files_per_trigger=1,
        transform_sql=sql,
        window=window,
        state_store=sw.StateStore(kind="files", path=str(home / "state"), shards=2),
        **{
            "on_error": "dlq",
            "target": sw.Target(connection="lake", path=str(home / "out"), format="parquet"),
            **(dead_letters if more.get("on_error", "dlq") == "dlq" else {}),
            **more,
        },
    )


def write_and_run_input_files(spark: Any, pipeline: sw.Pipeline, home: Path, batches: Sequence[Sequence[Any]]) -> None:
    """Write the batches as files and run the pipeline, one epoch per file."""
    (home / "in").mkdir()
    for number, rows in enumerate(batches):
        file = home / "in" / f"{number}.jsonl"
        file.write_text("".join(f"{r if isinstance(r, str) else json.dumps(r)}\n" for r in rows))
        sw.run(pipeline, available_now=True, flush=number == len(batches) - 1, spark=spark, on_notice=lambda a, b: None)


def iso_time(clock: str) -> str:
    return f"2024-03-01T{clock}:00Z"


BATCHES: list[list[Any]] = [
    [
        {"user": "u1", "kind": "click", "amount": 1.5, "ts": iso_time("09:00")},
        {"user": "u2", "kind": "view", "amount": 9.0, "ts": iso_time("09:01")},  # the SQL drops it, but its time counts
        {"user": "u1", "kind": "CLICK", "amount": 2.0, "ts": iso_time("09:05")},
        "not json",
        {"user": "u3", "kind": "click", "amount": 1.0, "ts": "10:15"},  # not a time, so undecodable
        {"user": "u3", "kind": "click", "amount": 1.0},  # no time
        {"user": "u3", "kind": "click", "amount": "many", "ts": iso_time("09:06")},  # undecodable
    ],
    [
        {"user": None, "kind": "click", "amount": None, "ts": iso_time("11:00")},
        {"user": "u1", "kind": "click", "amount": 4.0, "ts": iso_time("11:02")},
    ],
    [{"user": "u1", "kind": "click", "amount": 8.0, "ts": iso_time("09:20")}],  # late
]
SQL = "SELECT upper(user) AS user, amount, _event_ts FROM source WHERE lower(kind) = 'click'"
LETTER = ("reason", "source", "value", "event_time", "late_us")


def comparable_dead_letters(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    letters = [{c: r[c] for c in LETTER} for r in rows]
    return sorted(letters, key=lambda r: (r["reason"], r["value"]))


@pytest.mark.parametrize(
    ("window", "sql"),
    select_cases(
        [
            pytest.param(session_window(late_data="dlq"), SQL, id="sessions"),
            pytest.param(
                sw.Window(
                    kind="hopping",
                    duration_ms="1h",
                    hop_ms="30m",
                    max_groups_per_window=99,
                    event_time_column="ts",
                    group_by=["user"],
                    aggregations=[COUNT, SUM],
                    late_data="dlq",
                ),
                None,
                id="hopping windows without SQL",
            ),
            pytest.param(
                session_window(gap_ms="CASE WHEN amount > 3 THEN 600000 ELSE 60000 END", late_data="dlq"),
                "SELECT * FROM source WHERE kind <> 'view'",
                id="a gap by SQL",
            ),
        ]
    ),
)
def test_local_pipeline_matches_a_real_run(spark: Any, tmp_path: Path, window: sw.Window, sql: str | None) -> None:
    pipeline = files_pipeline(tmp_path, window, sql)
    write_and_run_input_files(spark, pipeline, tmp_path, BATCHES)
    with LocalPipeline(pipeline, session=spark) as test:
        for number, rows in enumerate(BATCHES):
            if number == 1:
                test.crash("commit.before", shards=3)
            test.pipe(rows)
        test.flush()
        result = test.result()
    assert to_sorted_rows(result.table) == read_sorted_rows(tmp_path / "out") != []
    real = comparable_dead_letters(read_sorted_rows(tmp_path / "letters"))
    assert comparable_dead_letters(result.letters) == real
    assert {r["reason"] for r in real} == {"undecodable", "no event time", "late"}


def test_late_and_bad_rows_are_captured_even_if_dropped(spark: Any, tmp_path: Path) -> None:
    pipeline = files_pipeline(tmp_path, session_window(), SQL, on_error="drop")
    with LocalPipeline(pipeline, session=spark) as test:
        for rows in BATCHES:
            test.pipe(rows)
        result = test.result()
    assert sorted(r["reason"] for r in result.letters) == [
        "late",
        "no event time",
        "undecodable",
        "undecodable",
        "undecodable",
    ]
    assert result.counters.late == {"lateness": 1}


def test_dead_letter_is_replayed_through_the_decoder_of_its_source(spark: Any, tmp_path: Path) -> None:
    lake = {"lake": sw.FilesConnection(), "tables": sw.DeltaConnection()}
    merged = sw.Target(connection="tables", path=str(tmp_path / "table"))
    pipeline = files_pipeline(tmp_path, session_window(late_data="dlq"), SQL, target=merged, connections=lake)
    with LocalPipeline(pipeline, session=spark) as test:
        for rows in BATCHES:
            test.pipe(rows)
        assert test.replay().applied == 1
        test.flush()
        frame = test.result().table.filter(pl.col("user") == "U1").sort("window_start")
    assert frame["n"].to_list() == [2, 1, 1]


def test_sql_without_hidden_columns_runs_batch_by_batch(spark: Any, tmp_path: Path) -> None:
    sql = "SELECT user, amount, _event_ts FROM source UNION ALL SELECT kind AS user, amount, _event_ts FROM source"
    sql = f"WITH u AS ({sql}) SELECT u.* FROM u"
    window = session_window(late_data="standalone", emit_metadata=True)
    pipeline = files_pipeline(tmp_path, window, sql, on_error="drop")
    with LocalPipeline(pipeline, session=spark, capture_losses=False) as test:
        assert test.front is not None
        test.front._carried = dict.fromkeys(test.front._carried, None)
        for rows in BATCHES:
            test.pipe(rows)
        test.flush()
        counts = [(r["user"], r["n"]) for r in test.result().rows]
    assert sorted(counts, key=str) == sorted(
        [
            ("u1", 2),
            ("u2", 1),
            ("click", 1),
            ("view", 1),
            ("CLICK", 1),
            (None, 1),
            ("u1", 1),
            ("click", 2),
            ("u1", 1),
            ("click", 1),
        ],
        key=str,
    )


KAFKA = {"bus": sw.KafkaConnection(bootstrap_servers="nowhere:1"), "lake": sw.FilesConnection()}


def kafka_source(name: str, schema: str) -> sw.Source:
    return sw.Source(name=name, connection="bus", query=name, payload_format="json", schema=schema)


def test_join_of_two_topics_feeds_a_window_with_separate_sql(spark: Any) -> None:
    join = sw.Join(
        kind="inner",
        left_source="orders",
        right_source="payments",
        left_keys=["id"],
        right_keys=["id"],
        time_window_ms="1h",
        left_sql="SELECT *, amount * 100 AS cents FROM source WHERE amount > 0",
    )
    window = sw.Window(
        kind="tumbling",
        duration_ms="1h",
        max_groups_per_window=99,
        group_by=["shop"],
        aggregations=[COUNT, sw.Aggregation(agg="sum", column="doubled", as_="doubled")],
    )
    pipeline = sw.pipeline(
        name="shops",
        connections=KAFKA,
        sources=[
            kafka_source("orders", "id BIGINT, amount DOUBLE"),
            kafka_source("payments", "id BIGINT, shop STRING"),
        ],
        stages=[
            sw.Stage(name="paid", join=join),
            sw.Stage(
                name="per_shop",
                window=window,
                sql="SELECT right_shop AS shop, left_cents * 2 AS doubled, _event_ts FROM source",
            ),
        ],
        target=sw.Target(connection="lake", path="out", format="parquet"),
        state_store=sw.StateStore(kind="files", path="state"),
    )
    with LocalPipeline(pipeline, session=spark) as test:
        test.pipe(
            {
                "orders": [
                    {"id": 1, "amount": 2.5, "_event_ts": iso_time("09:00")},
                    {"id": 2, "amount": -1, "_event_ts": iso_time("09:00")},
                ],
                "payments": [
                    {"id": 1, "shop": "a", "_event_ts": iso_time("09:30")},
                    {"id": 2, "shop": "b", "_event_ts": iso_time("09:30")},
                ],
            }
        )
        test.restart(shards=3)
        test.flush()
        (row,) = test.result().table.to_dicts()
    assert (row["shop"], row["n"], row["doubled"]) == ("a", 1, 500.0)


def test_each_topic_partition_has_a_separate_watermark(spark: Any) -> None:
    pipeline = sw.pipeline(
        name="parts",
        on_error="drop",
        connections=KAFKA,
        sources=[kafka_source("clicks", "user STRING, ts TIMESTAMP")],
        window=session_window(aggregations=[COUNT]),
        target=sw.Target(connection="lake", path="out", format="parquet"),
        state_store=sw.StateStore(kind="files", path="state"),
    )
    with LocalPipeline(pipeline, session=spark) as test:
        test.pipe(
            [
                {"user": "u1", "ts": iso_time("09:00"), "_partition": 0},
                {"user": "u1", "ts": iso_time("12:00"), "_partition": 1},
            ]
        )
        assert test.result().rows == []  # partition 0 holds the watermark
        test.pipe(
            [
                {"user": "u1", "ts": iso_time("12:00"), "_partition": 0},
                "{",
                {"user": "u2", "ts": iso_time("12:00"), "_key": "k"},
            ]
        )
        result = test.result()
    assert [r["n"] for r in result.rows] == [1]
    (bad,) = result.letters
    assert (bad["reason"], bad["topic"], bad["partition"], bad["offset"], bad["value"]) == (
        "undecodable",
        "clicks",
        0,
        2,
        b"{",
    )


def test_processing_time_follows_the_virtual_clock(spark: Any, tmp_path: Path) -> None:
    window = session_window(
        time_mode="processing", event_time_column="_event_ts", idle_close_ms="10m", source_idleness_ms="1m"
    )
    pipeline = files_pipeline(tmp_path, window, None)
    start = 1_709_283_600_000_000
    with LocalPipeline(pipeline, session=spark, clock_us=start) as test:
        test.pipe([{"user": "u1", "amount": 1}])
        test.quiet("1h")
        test.pipe([{"user": "u1", "amount": 1}])
        assert [r["window_start"] - start for r in test.result().rows] == [0]


def test_unknown_column_in_a_row_is_reported_with_nearest_name(spark: Any, tmp_path: Path) -> None:
    with (
        LocalPipeline(files_pipeline(tmp_path, session_window(), SQL), session=spark) as test,
        pytest.raises(
            sw.SlackwaterError,
            match='unknown column "usr"; declare it in the schema, or correct the row; did you mean "user"',
        ),
    ):
        test.pipe([{"usr": "u1", "ts": iso_time("09:00")}])


def test_invalid_sql_is_reported_when_the_pipeline_is_created(spark: Any, tmp_path: Path) -> None:
    pipeline = files_pipeline(tmp_path, session_window(), "SELECT usr, _event_ts FROM source")
    with pytest.raises(sw.SlackwaterError, match=r"transform\.sql: .*usr"):
        LocalPipeline(pipeline, session=spark)
