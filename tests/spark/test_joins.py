"""Joins on Spark: results of a batch join, column types, SQL per side, errors at start, dead letters and targets."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.support.case_selection import exhaustive, select_cases
from tests.support.order_payment_joins import (
    ORDERS,
    PAYMENTS,
    build_order_and_payment_sources,
    build_order_payment_join,
    format_event_time,
    write_order_and_payment_files,
)
from tests.support.spark_pipeline_runner import SparkPipelineRunner

import slackwater as sw
from slackwater.errors import LimitExceededError, StartError

pytestmark = pytest.mark.spark


def count_batch_join_rows(runner: SparkPipelineRunner, kind: str) -> Counter[Any]:
    """Return the batch join of Spark over the same files."""
    for schema, folder, name in ((ORDERS, "order_id", "l"), (PAYMENTS, "paid_order", "r")):
        runner.spark.read.schema(schema).json(str(runner.home / folder)).createOrReplaceTempView(name)
    rows = runner.spark.sql(
        f"SELECT l.order_id, l.region, l.amount, l.ts, r.paid_order, r.region, r.method, r.ts FROM l {kind} JOIN r"
        " ON l.order_id = r.paid_order AND l.region = r.region AND r.ts BETWEEN l.ts - INTERVAL 20 SECONDS"
        " AND l.ts + INTERVAL 30 SECONDS"
    ).collect()
    return Counter(tuple(str(v) for v in row) for row in rows)


def count_result_rows(frame: Any) -> Counter[Any]:
    times = frame.with_columns(frame[c].dt.replace_time_zone(None) for c in ("left_ts", "right_ts"))
    return Counter(tuple(_to_text(v) for v in row) for row in times.drop("_event_ts").iter_rows())


def _to_text(value: Any) -> str:
    return str(value)


@pytest.mark.semantics("stream-stream-joins")
@pytest.mark.matrix
@pytest.mark.parametrize(
    ("kind", "files"),
    select_cases([("full", (5, 2)), ("left", (1, 1)), ("inner", (1, 1)), ("right", (2, 1)), ("full", (1, 1))]),
)
def test_stream_join_gives_the_rows_of_a_batch_join(
    runner: SparkPipelineRunner, kind: str, files: tuple[int, int]
) -> None:
    """On Spark, each kind of join gives the same rows as Spark's batch join."""
    write_order_and_payment_files(runner, 7)
    frame = runner.run_pipeline(
        sources=build_order_and_payment_sources(runner, files), join=build_order_payment_join(kind)
    )
    assert frame.columns == [
        "left_order_id",
        "left_region",
        "left_amount",
        "left_ts",
        "right_paid_order",
        "right_region",
        "right_method",
        "right_ts",
        "_event_ts",
    ]
    assert count_result_rows(frame) == count_batch_join_rows(runner, kind)
    assert frame.height > 50
    status = runner.statuses[-1]
    assert status.counters.rows_late == 0
    assert status.counters.emitted.get("unmatched", 0) == sum(
        None in (r["left_ts"], r["right_ts"]) for r in frame.iter_rows(named=True)
    )


def test_join_preserves_values_of_all_column_types(runner: SparkPipelineRunner) -> None:
    schema = (
        "k STRING, ts TIMESTAMP, b BOOLEAN, i1 TINYINT, i2 SMALLINT, i8 BIGINT, f FLOAT, d DOUBLE, m DECIMAL(20,3), day DATE,"
        " local TIMESTAMP_NTZ, raw BINARY, list ARRAY<INT>, nested ARRAY<STRUCT<a: INT, t: TIMESTAMP>>, one STRUCT<x: STRING, y: MAP<STRING, INT>>,"
        " names MAP<STRING, DECIMAL(5,2)>"
    )
    row = {
        "k": "a", "ts": format_event_time(1), "b": True, "i1": -7, "i2": 300, "i8": 2**60, "f": 1.5, "d": "NaN", "m": "12345678901234567.125",
        "day": "2024-02-29", "local": "2024-03-01T10:00:00.000001", "raw": "aGk=", "list": [1, None], "nested": [{"a": 1, "t": format_event_time(2)}, None],
        "one": {"x": "y", "y": {"z": 1, "w": None}}, "names": {"p": "1.25"},
    }  # fmt: skip
    blank = dict.fromkeys(row) | {"k": "a", "ts": format_event_time(2)}
    runner.write_input_file("0.jsonl", [row, blank], "left")
    runner.write_input_file(
        "0.jsonl", [{**row, "ts": format_event_time(3)}, {"k": "b", "ts": format_event_time(300)}], "right"
    )
    frame = runner.run_pipeline(
        sources=[runner.files_source(schema, name, name) for name in ("left", "right")],
        join=sw.Join(
            kind="left",
            left_source="left",
            right_source="right",
            left_keys=["k"],
            right_keys=["k"],
            time_window_ms="1m",
            event_time_column="ts",
        ),
    )
    spark = runner.spark
    direct = spark.read.schema(schema).json(str(runner.home / "left"))
    written_ = spark.read.parquet(str(runner.home / "out"))
    names = [f.name for f in direct.schema.fields]
    assert [f.dataType.simpleString() for f in written_.schema.fields[: len(names)]] == [
        f.dataType.simpleString() for f in direct.schema.fields
    ]
    assert frame.height == 2
    for side in ("left", "right"):
        written_rows = [tuple(r) for r in written_.selectExpr(*(f"{side}_{n}" for n in names)).collect()]
        read = spark.read.schema(schema).json(str(runner.home / side)).where("k = 'a'")
        read_rows = [tuple(r) for r in read.collect()]
        assert sorted(map(repr, written_rows)) == sorted(map(repr, read_rows * (1 if side == "left" else 2)))


@exhaustive(beside="test_join_sql.py::test_join_side_sql_is_resolved_against_its_own_source")
def test_each_join_side_has_separate_sql_and_output_columns(runner: SparkPipelineRunner) -> None:
    write_order_and_payment_files(runner, 8)
    spec = build_order_payment_join(
        left_sql="SELECT order_id, upper(region) AS area, amount * 2 AS twice, _event_ts FROM source WHERE amount > 0",
        right_sql="SELECT paid_order, upper(region) AS area, _event_ts FROM source WHERE method = 'card'",
        left_keys=["order_id", "area"],
        right_keys=["paid_order", "area"],
        output_left_columns=["twice", "area"],
        output_right_columns=["paid_order"],
        left_prefix="",
        right_prefix="r_",
    )
    frame = runner.run_pipeline(sources=build_order_and_payment_sources(runner), join=spec)
    assert frame.columns == ["twice", "area", "r_paid_order", "_event_ts"]
    assert set(frame["twice"]) == {3.0}
    batch = count_batch_join_rows(runner, "inner")
    assert frame.height == sum(n for row, n in batch.items() if row[2] == "1.5" and row[6] == "card")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"left_keys": ["order", "region"]},
            'test: transform.join.left_keys: column "order" does not come out of the left side.*did you mean "order_id"',
        ),
        (
            {"left_keys": ["amount", "region"]},
            'test: transform.join: keys: "amount" of the left side is double and "paid_order" of the right side is bigint; cast one',
        ),
        (
            {"left_prefix": "", "right_prefix": ""},
            'test: transform.join.right_prefix: column "region" of the right side is emitted as "region", which is already the '
            'output name of column "region" of the left side',
        ),
        (
            {"output_left_columns": ["amout"]},
            'output_left_columns: column "amout" does not come out of the left side.*"amount"',
        ),
        (
            {"left_sql": "SELECT order_id, region, INTERVAL 1 MONTH AS pause, _event_ts FROM source"},
            'column "pause" of the left side has type interval month, which a join cannot store; cast it in left_sql',
        ),
        ({"left_sql": "SELECT order_id, region FROM source"}, 'left_sql does not select "_event_ts"'),
    ],
)
def test_invalid_join_columns_and_sql_are_refused_at_start(
    runner: SparkPipelineRunner, settings: dict[str, Any], message: str
) -> None:
    runner.write_input_file("0.jsonl", [{"order_id": 1, "ts": format_event_time(0)}], "order_id")
    runner.write_input_file("0.jsonl", [{"paid_order": 1, "ts": format_event_time(0)}], "paid_order")
    with pytest.raises(StartError, match=message):
        runner.run_pipeline(sources=build_order_and_payment_sources(runner), join=build_order_payment_join(**settings))


@exhaustive(beside="test_config_changes.py::test_window_after_a_join_can_change_but_the_join_cannot")
def test_changed_join_bounds_are_refused_on_an_existing_state(runner: SparkPipelineRunner) -> None:
    write_order_and_payment_files(runner, 9)
    runner.run_pipeline(sources=build_order_and_payment_sources(runner), join=build_order_payment_join())
    with pytest.raises(Exception, match=r"written for another join \(bounds_us: state has \[-20000000, 30000000\]"):
        runner.run_pipeline(
            sources=build_order_and_payment_sources(runner), join=build_order_payment_join(upper_ms="31s")
        )


def test_late_join_rows_become_dead_letters_of_their_source(runner: SparkPipelineRunner) -> None:
    write_order_and_payment_files(runner, 10, late=True)
    lake = sw.FilesConnection()
    frame = runner.run_pipeline(
        sources=build_order_and_payment_sources(runner),
        join=build_order_payment_join(late_data="dlq", lateness_ms="1s", kind="full"),
        dead_letter=sw.Target(connection=lake, path=str(runner.home / "letters")),
    )
    counters = runner.statuses[-1].counters
    letters = runner.read_output("letters")
    assert letters.height == counters.rows_late == counters.letters["late"] > 20
    assert sum(counters.lateness["late"].values()) == counters.rows_late
    assert set(letters["source"]) == {"orders", "payments"}
    assert set(letters["reason"]) == {"late"}
    assert b'"order_id"' in b"".join(letters.filter(letters["source"] == "orders")["value"].to_list())
    sides = counters.sides
    assert {s: sides[s]["late"] for s in sides} == {
        "left": letters.filter(letters["source"] == "orders").height,
        "right": letters.filter(letters["source"] == "payments").height,
    }
    rows = sum(s["buffered"] for s in sides.values()) + sum(s["null_keys"] for s in sides.values())
    assert counters.rows_in == counters.rows_late + rows
    used = Counter(r for r in frame["left_ts"].is_not_null().to_list())
    assert used[True]


def test_epoch_fails_when_a_join_key_exceeds_max_rows_per_key(runner: SparkPipelineRunner) -> None:
    rows = [{"order_id": 5, "region": "eu", "ts": format_event_time(n)} for n in range(20)]
    runner.write_input_file("0.jsonl", rows, "order_id")
    runner.write_input_file("0.jsonl", [{"paid_order": 1, "region": "eu", "ts": format_event_time(0)}], "paid_order")
    with pytest.raises(
        LimitExceededError, match=r"20 rows of the left side with order_id = 5, region = 'eu' wait for partners"
    ):
        runner.run_pipeline(
            sources=build_order_and_payment_sources(runner), join=build_order_payment_join(max_rows_per_key=19)
        )


@pytest.mark.parametrize("state", ["postgres", "files"])
@exhaustive(beside="test_postgres_store_equivalence.py::test_joins_match_their_definition_in_postgres")
def test_join_output_and_state_in_postgres_match_a_batch_join(
    runner: SparkPipelineRunner, postgres: Any, state: str, tmp_path: Path
) -> None:
    """The transaction of the state writes the output, and SQL can read the rows that wait for a partner."""
    write_order_and_payment_files(runner, 11)
    url = postgres.database(f"joined_{state}")
    store = (
        sw.StateStore(kind="postgres", url=url)
        if state == "postgres"
        else sw.StateStore(kind="files", path=str(tmp_path / "s"))
    )
    settings: dict[str, Any] = {
        "sources": build_order_and_payment_sources(runner),
        "join": build_order_payment_join("full"),
        "state_store": store,
        "target": sw.Target(connection=sw.PostgresConnection(url=url), table="paid"),
        "target_path": None,
    }
    for flush in (False, True):
        runner.run_pipeline(**settings, flush=flush)
        with psycopg.connect(url) as db:
            waiting = (
                db.execute(
                    "SELECT side, count(*), count(left_order_id), count(right_paid_order) FROM slackwater_state_test GROUP BY 1 ORDER BY 1"
                ).fetchall()
                if state == "postgres"
                else None
            )
        if waiting is not None and not flush:
            (left, right) = waiting
            assert left[0] == "left" and left[1] == left[2] > 0 == left[3]
            assert right[0] == "right" and right[1] == right[3] > 0 == right[2]
        if waiting is not None and flush:
            assert waiting == []
    with psycopg.connect(url) as db:
        rows = db.execute(
            "SELECT left_order_id, left_region, left_amount, left_ts AT TIME ZONE 'UTC', right_paid_order, right_region, right_method,"
            " right_ts AT TIME ZONE 'UTC' FROM paid"
        ).fetchall()
    assert Counter(tuple(map(_to_text, row)) for row in rows) == count_batch_join_rows(runner, "full")
