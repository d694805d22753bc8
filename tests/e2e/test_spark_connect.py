"""Spark Connect with a server in a separate process gives the results of a classic session."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.support import cluster_orders_pipeline, connect_server, protobuf_records
from tests.support.case_selection import exhaustive, select_cases
from tests.support.command import run_command_for_exit_code
from tests.support.kafka_topics import Make, minute_window
from tests.support.real_dataset_pipelines import (
    PIPELINES,
    check_known_result,
    read_result_frame,
    split_into_input_files,
    write_dataset_config,
)
from tests.support.run_command_process import read_run_log, start_run_command
from tests.support.sample_events_and_windows import (
    SCHEMA,
    build_rows_of_every_type,
    build_window_with_every_aggregation,
    format_iso_time,
    to_comparable_rows,
)
from tests.support.spark_pipeline_runner import SparkPipelineRunner

import slackwater as sw
from slackwater.errors import ConfigError, StartError

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture(scope="module")
def spark_connect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[connect_server.ConnectServer]:
    with connect_server.run_connect_server(tmp_path_factory.mktemp("connect")) as running:
        yield running


@pytest.fixture(scope="module")
def spark_connect_session(spark_connect_server: connect_server.ConnectServer) -> Iterator[Any]:
    """Yield a Spark Connect session that a user opened."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of PySpark
        from pyspark.sql.connect.session import SparkSession

        session = SparkSession(spark_connect_server.address)
        session.conf.set("spark.sql.session.timeZone", "UTC")
        yield session
        session.stop()


def collect_rows(frame: Any) -> pl.DataFrame:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of PySpark
        rows = pl.from_arrow(frame.toArrow())
    assert isinstance(rows, pl.DataFrame)
    return rows


# -- batches -----------------------------------------------------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.parametrize("kind", ["hopping", "session"])
@exhaustive(beside="test_spark_connect.py::test_connect_join_gives_the_rows_of_a_classic_join")
def test_connect_batch_gives_the_rows_of_a_classic_batch(
    runner: SparkPipelineRunner, spark_connect_session: Any, kind: str
) -> None:
    runner.write_input_file("0.jsonl", build_rows_of_every_type(90))
    shape = build_window_with_every_aggregation(kind, lateness_ms="1m")
    sql = "SELECT s.* EXCEPT (user), p.name AS user FROM source s LEFT JOIN people p ON s.user = p.id -- of the lookup"
    answers = []
    for session in (runner.spark, spark_connect_session):
        events = session.read.schema(SCHEMA).json(str(runner.home / "in"))
        people = session.createDataFrame([("a", "Ann"), ("b", "Bob")], "id STRING, name STRING")
        batch = sw.batch(events, shape, sql, lookups={"people": people})
        assert batch.sparkSession is events.sparkSession
        answers.append(to_comparable_rows(collect_rows(batch)))
        open_ones = sw.batch(events, shape, sql, lookups={"people": people}, flush=False, shards=3)
        answers.append(to_comparable_rows(collect_rows(open_ones)))
    assert answers[:2] == answers[2:]
    assert len(answers[0]) > len(answers[1]) > 0


@pytest.mark.matrix
@pytest.mark.parametrize("how", select_cases(["full", "inner", "left", "right"]))
def test_connect_join_gives_the_rows_of_a_classic_join(
    runner: SparkPipelineRunner, spark_connect_session: Any, how: str
) -> None:
    for part in range(2):
        rows = [{"k": [None, 1, 2][n % 3], "v": n, "ts": format_iso_time(13 * n)} for n in range(part, 40, 2)]
        runner.write_input_file("0.jsonl", rows, folder=("l", "r")[part])
    join = sw.Join(
        kind=how, left_source="l", right_source="r", left_keys=["k"], right_keys=["k"], lower_ms="-30s", upper_ms="90s",
        event_time_column="ts", right_sql="SELECT k, v * 2 AS v, _event_ts FROM source WHERE v <> 21",
    )  # fmt: skip
    answers = []
    for session in (runner.spark, spark_connect_session):
        left, right = (
            session.read.schema("k INT, v BIGINT, ts TIMESTAMP").json(str(runner.home / name)) for name in "lr"
        )
        answers.append(sorted(collect_rows(sw.batch_join(left, right, join)).rows(), key=str))
    assert answers[0] == answers[1]
    assert len(answers[0]) > 11


COUNTS = sw.Window(
    kind="tumbling", duration_ms="1m", max_groups_per_window=10, group_by=["user"], event_time_column="ts",
    aggregations=[sw.Aggregation(agg="count", as_="n")],
)  # fmt: skip


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        (
            "SELECT user, _event_ts, count(*) AS n FROM source GROUP BY ALL",
            "must be row-wise, but it uses an aggregate",
        ),
        ("SELECT user, _event_ts FROM source ORDER BY user", "must be row-wise, but it uses ORDER BY"),
        ("SELECT user, _event_ts, rand() AS r FROM source", r"must be row-wise, but it uses rand\(\)"),
        (
            "SELECT a.user, a._event_ts FROM source a JOIN source b ON a.user = b.user",
            "it uses source joined with itself",
        ),
        (
            "WITH t AS (SELECT * FROM source) SELECT a.* FROM t a LEFT ANTI JOIN t b ON a.ts < b.ts",
            "source joined with itself",
        ),
        ("SELECT 'a' AS user, TIMESTAMP '2024-01-01' AS _event_ts", "it uses no row of source"),
        (
            "SELECT user, _event_ts FROM source UNION ALL SELECT 'a', TIMESTAMP '2024-01-01'",
            "UNION ALL with rows that are not from",
        ),
        ("SELECT s.user, s._event_ts FROM range(3) LEFT JOIN source s ON true", "write source LEFT JOIN lookup"),
        ("SELECT user, _event_ts, reflect('java.lang.System', 'nanoTime') AS r FROM source", r"it uses reflect\(\)"),
        ("SELECT user, _event_ts FROM source WHERE _event_ts > TIMESTAMP 'now'", "it uses TIMESTAMP 'now'"),
        ("SELECT user, _event_ts FROM source WHERE _event_ts > 'now'", "a literal such as DATE 'today'"),
        ("DESCRIBE source", "DESCRIBE is a statement; expected a query: SELECT … FROM source"),
        ("SELECT usr, _event_ts FROM source", "`usr` cannot be resolved.*; available columns: user, ts, _event_ts"),
        ("SELECT user FROM source", 'does not select "_event_ts"'),
    ],
)
def test_unsupported_sql_over_connect_is_reported_with_a_one_line_error(
    spark_connect_session: Any, sql: str, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    events = spark_connect_session.createDataFrame([("a rand() b", format_iso_time(0))], "user STRING, ts STRING")
    with pytest.raises(StartError, match=said) as raised:
        sw.batch(events, COUNTS, sql)
    assert "\n" not in str(raised.value)
    assert "stacktrace" not in capfd.readouterr().err.casefold()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT user, _event_ts FROM source; -- the end",
        "SELECT user, _event_ts FROM source WHERE user <> '; /* -- ' ;; /* a /* nested */ one */",
        "SELECT user, _event_ts FROM source WHERE n > 0 UNION ALL SELECT user, _event_ts FROM source WHERE n = 0",
    ],
)
def test_supported_sql_runs_over_connect(spark_connect_session: Any, sql: str) -> None:
    events = spark_connect_session.createDataFrame(
        [("a", 0, format_iso_time(0)), ("b", 1, format_iso_time(1))], "user STRING, n INT, ts STRING"
    )
    assert sorted(collect_rows(sw.batch(events, COUNTS, sql))["n"].to_list()) == [1, 1]


@exhaustive(beside="test_spark_connect.py::test_spark_settings_that_connect_cannot_apply_are_rejected")
def test_session_time_zone_other_than_utc_is_rejected(spark_connect_server: connect_server.ConnectServer) -> None:
    from pyspark.sql.connect.session import SparkSession

    session = SparkSession(spark_connect_server.address)
    session.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    events = session.createDataFrame([("a", format_iso_time(0))], "user STRING, ts STRING")
    with pytest.raises(StartError, match=r'timeZone = "Europe/Berlin", expected "UTC"; run spark.conf.set'):
        sw.batch(events, COUNTS)
    session.stop()


# -- pipelines ---------------------------------------------------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.shared_data
@pytest.mark.parametrize("name", select_cases(["wiki-sessions", "ibis"]))
def test_pipeline_over_connect_gives_the_reference_results(
    spark_connect_server: connect_server.ConnectServer,
    real_events_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    monkeypatch.setenv("SPARK_REMOTE", spark_connect_server.address)
    split_into_input_files(
        real_events_folder / PIPELINES[name]["file"], tmp_path / "in", PIPELINES[name].get("header", 0)
    )
    path = write_dataset_config(name, tmp_path, f"{tmp_path}/in/*", "max_files_per_trigger = 4")
    assert run_command_for_exit_code(monkeypatch, "run", str(path), "--available-now", "--flush") == 0
    check_known_result(name, read_result_frame(tmp_path))


@exhaustive(beside="test_spark_connect.py::test_pipeline_over_connect_gives_the_reference_results")
def test_sessions_windows_and_join_over_connect_survive_a_client_kill(
    spark_connect_server: connect_server.ConnectServer, tmp_path: Path
) -> None:
    path = tmp_path / "cluster.toml"
    text = cluster_orders_pipeline.CONFIG.format(store='kind = "files"\npath = "state"')
    path.write_text(re.sub(r"\[spark\]\n(.+\n)*", "", text))
    orders_and_payments = cluster_orders_pipeline.write_orders_and_payments(tmp_path, 8)
    kill_client_after_commits(path, spark_connect_server, 3)
    process = start_run_command(path, "--flush", SPARK_REMOTE=spark_connect_server.address)
    assert process.wait(timeout=580) == 0, read_run_log(path)
    cluster_orders_pipeline.check_target_rows(tmp_path, *orders_and_payments)


def kill_client_after_commits(path: Path, server: connect_server.ConnectServer, epochs: int) -> None:
    """Run a client that is killed by SIGKILL after this many commits."""
    process = start_run_command(path, SPARK_REMOTE=server.address)
    while cluster_orders_pipeline.read_latest_committed_epoch(path, "files") < epochs and process.poll() is None:
        time.sleep(0.02)
    assert process.poll() is None, f"it ended before the kill: {read_run_log(path)}"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize("payload", ["several", "protobuf"])
@exhaustive(beside="test_spark_connect.py::test_pipeline_over_connect_gives_the_reference_results")
def test_kafka_records_over_connect_give_the_rows_of_a_classic_run(
    runner: SparkPipelineRunner, spark_connect_session: Any, topic_factory: Make, payload: str
) -> None:
    """Infer the schema, select headers and partitions, and continue after the offsets of the first run."""
    first, second = topic_factory(2), topic_factory()
    sql = "SELECT concat_ws('|', user, CAST(_key AS STRING), _headers[0].key, _topic, _partition) AS user, amount, _event_ts FROM source"
    source = first.source(schema=None, max_offsets_per_trigger=8)
    if payload == "several":
        source = first.source(query=f"{first.name}, {second.name}", max_offsets_per_trigger=8)
    if payload == "protobuf":
        path = runner.home / "event.proto"
        path.write_text(protobuf_records.FIRST)
        payload_options = {"payload_format": "protobuf", "protobuf_schema_file": str(path)}
        source = first.source(schema=None, max_offsets_per_trigger=8, **payload_options)
    answers = []
    for part in range(2):
        for n in range(8):
            fields = {"user": "ab"[n % 2], "amount": n}
            row = protobuf_records.encode_with_first_schema(fields) if payload == "protobuf" else fields
            first.send_rows(
                row,
                b"{broken" if n == 3 else row,
                second=40 * n + part,
                partition=n % 2,
                key="k",
                headers=[("h", b"x")],
            )
            second.send_rows(row, second=30 * n + part)
        for name, session in (("classic", runner.spark), ("connect", spark_connect_session)):
            runner.run_pipeline(
                name=name, source=source, transform_sql=sql, window=minute_window(lateness_ms="1h"), on_error="drop", spark=session,
                target_path=str(runner.home / name), flush=bool(part),
            )  # fmt: skip
    answers = [to_comparable_rows(runner.read_output(name)) for name in ("classic", "connect")]
    assert answers[0] == answers[1]
    assert len(answers[0]) >= 8


@exhaustive(beside="test_spark_connect.py::test_pipeline_over_connect_gives_the_reference_results")
def test_subprocesses_start_in_a_process_with_a_connect_session(spark_connect_session: Any) -> None:
    """Regression: fork handlers of gRPC aborted one fork in 400, and the JVM of a classic session did not start."""
    assert spark_connect_session.range(3).count() == 3
    forks = (
        subprocess.run(["true"], preexec_fn=lambda: sum(range(20_000)), stderr=subprocess.PIPE) for _ in range(400)
    )
    assert {(fork.returncode, fork.stderr) for fork in forks} == {(0, b"")}


# -- unsupported features ----------------------------------------------------------------------------------------------


def test_unreachable_and_invalid_connect_servers_are_reported(
    runner: SparkPipelineRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:1")
    runner.write_input_file("0.jsonl", [])
    with pytest.raises(StartError, match=r"Spark Connect at 127.0.0.1:1: no server answers; start the server"):
        runner.run_pipeline(source=runner.files_source("user STRING, ts STRING"), window=COUNTS, spark=None)
    monkeypatch.setenv("SPARK_REMOTE", "host:15002")
    with pytest.raises(
        StartError, match=r'"host:15002" is not the address of a Spark Connect server; expected sc://host:15002'
    ):
        runner.run_pipeline(source=runner.files_source("user STRING, ts STRING"), window=COUNTS, spark=None)


def test_spark_settings_that_connect_cannot_apply_are_rejected(
    runner: SparkPipelineRunner, spark_connect_server: connect_server.ConnectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner.write_input_file("0.jsonl", [])
    run_settings = {"source": runner.files_source("user STRING, ts STRING"), "window": COUNTS, "spark": None}
    settings = {"spark.remote": spark_connect_server.address, "spark.executor.memory": "4g"}
    with pytest.raises(StartError, match=r'"spark.executor.memory" cannot be set over Spark Connect, .* --conf'):
        runner.run_pipeline(**run_settings, spark_settings=settings)
    with pytest.raises(
        StartError, match=r'\[spark\] sets "spark.master", but "spark.remote" names a Spark Connect server'
    ):
        runner.run_pipeline(
            **run_settings, spark_settings={"spark.remote": spark_connect_server.address, "spark.master": "local[2]"}
        )


@exhaustive(beside="test_spark_connect.py::test_unsupported_sql_over_connect_is_reported_with_a_one_line_error")
def test_source_that_needs_a_streaming_query_is_rejected_by_name(
    runner: SparkPipelineRunner, spark_connect_session: Any
) -> None:
    runner.write_input_file("0.jsonl", [{"user": "a", "ts": format_iso_time(0)}])
    source = runner.files_source("user STRING, ts STRING", options={"latestFirst": "true"})
    with pytest.raises(StartError, match='test: source "events" needs a Spark streaming query, which'):
        runner.run_pipeline(source=source, window=COUNTS, spark=spark_connect_session)
    stream = spark_connect_session.readStream.schema("user STRING, ts STRING").json(str(runner.home / "in"))
    with pytest.raises((StartError, ConfigError), match='source "s" needs a Spark streaming query, which'):
        runner.run_pipeline(source=sw.Source(name="s", dataframe=stream), window=COUNTS, spark=spark_connect_session)
    assert not (runner.home / "out").exists()
