"""Late rows as dead letters on Spark: SQL that carries `_origin`, and dead letters with a real broker and database."""

from __future__ import annotations

import datetime as dt
import json
import threading
import time
from typing import Any

import polars as pl
import psycopg
import pytest
from tests.support.case_selection import exhaustive, select_cases
from tests.support.kafka_topics import Make, minute_window, wait_until
from tests.support.sample_events_and_windows import (
    SIMPLE,
    build_event_rows,
    build_simple_session_window,
    to_microseconds,
)
from tests.support.spark_pipeline_runner import SparkPipelineRunner

import slackwater as sw
from slackwater import api
from slackwater.config.stage import InputPath
from slackwater.engine import kill_points
from slackwater.errors import EpochError, StartError
from slackwater.operators.dead_letters import origin_column
from slackwater.spark.analysis import row_origin_propagation, sql_analysis
from slackwater.spark.rejected_rows import RejectedRowHandler

IN = InputPath("in", "in")

pytestmark = pytest.mark.spark

LETTERS = pl.col("reason") == "late"

# SQL of the config, and the SQL that runs (None: it carries `_origin` unchanged)
FORMS: dict[str, tuple[str, str | None]] = {
    "star": ("SELECT * FROM source", None),
    "a table": ("TABLE source", None),
    "from first": ("FROM source SELECT *", None),
    "columns": ("SELECT user, _event_ts FROM source", "SELECT user, _event_ts , _origin FROM source"),
    "alias": (
        "SELECT s.user, s._event_ts FROM source AS s WHERE s.i > 0",
        "SELECT s.user, s._event_ts , _origin FROM source AS s WHERE s.i > 0",
    ),
    "quoted": (
        "SELECT `s 1`.user AS `a b`, _event_ts FROM `SOURCE` `s 1`",
        "SELECT `s 1`.user AS `a b`, _event_ts , _origin FROM `SOURCE` `s 1`",
    ),
    "star of an alias": (
        "SELECT u.*, s._event_ts FROM source s LEFT JOIN users u ON s.user = u.user",
        "SELECT u.*, s._event_ts , _origin FROM source s LEFT JOIN users u ON s.user = u.user",
    ),
    "star without a column": (
        "SELECT * EXCEPT (i) FROM (SELECT user, i, _event_ts FROM source)",
        "SELECT * EXCEPT (_origin, i) , _origin FROM (SELECT user, i, _event_ts , _origin FROM source)",
    ),
    "lookup": (
        "SELECT /*+ BROADCAST(users) */ team, _event_ts FROM source JOIN users USING (user)",
        "SELECT /*+ BROADCAST(users) */ team, _event_ts , _origin FROM source JOIN users USING (user)",
    ),
    "lookup in parentheses": (
        "SELECT team, _event_ts FROM (source s JOIN users USING (user))",
        "SELECT team, _event_ts , _origin FROM (source s JOIN users USING (user))",
    ),
    "with": (
        "WITH a AS (SELECT *, 1 AS one FROM source), u AS (SELECT * FROM users)\n"
        "SELECT a.user, team, _event_ts -- FROM nowhere\nFROM a LEFT JOIN u USING (user)",
        "WITH a AS (SELECT * EXCEPT (_origin), 1 AS one , _origin FROM source), u AS (SELECT * FROM users)\n"
        "SELECT a.user, team, _event_ts -- FROM nowhere\n, _origin FROM a LEFT JOIN u USING (user)",
    ),
    "with of the same name": (
        "WITH source AS (SELECT user, _event_ts FROM source) SELECT user, _event_ts FROM source",
        "WITH source AS (SELECT user, _event_ts , _origin FROM source) SELECT user, _event_ts , _origin FROM source",
    ),
    "union of stars": ("SELECT * FROM source WHERE i > 0 UNION ALL SELECT * FROM source WHERE i <= 0", None),
    "union": (
        "(SELECT *, 'x' AS x FROM source WHERE i > 0) UNION ALL SELECT user, i, ts, _event_ts, 'y' FROM source WHERE i <= 0",
        "(SELECT * EXCEPT (_origin), 'x' AS x , _origin FROM source WHERE i > 0)"
        " UNION ALL SELECT user, i, ts, _event_ts, 'y' , _origin FROM source WHERE i <= 0",
    ),
    "derived": (
        "SELECT q.user, q.day, q._event_ts FROM (SELECT user, extract(DAY FROM _event_ts) AS day, _event_ts FROM source"
        " WHERE user IS NOT DISTINCT FROM user) AS q",
        "SELECT q.user, q.day, q._event_ts , _origin FROM (SELECT user, extract(DAY FROM _event_ts) AS day, _event_ts ,"
        " _origin FROM source WHERE user IS NOT DISTINCT FROM user) AS q",
    ),
    "exploded": (
        "SELECT user, part, _event_ts FROM source LATERAL VIEW explode(array(i * 2)) AS part",
        "SELECT user, part, _event_ts , _origin FROM source LATERAL VIEW explode(array(i * 2)) AS part",
    ),
    "compared in the list": (
        "SELECT user IS DISTINCT FROM 'a' AS other, i * 2 AS twice, _event_ts FROM source",
        "SELECT user IS DISTINCT FROM 'a' AS other, i * 2 AS twice, _event_ts , _origin FROM source",
    ),
    "piped": (
        "SELECT user, i, _event_ts FROM source |> WHERE i > 0",
        "SELECT user, i, _event_ts , _origin FROM source |> WHERE i > 0",
    ),
    "by hand": ("SELECT _origin, user, _event_ts FROM source", None),
}


def pipeline_with_sql(sql: str | None) -> Any:
    return sw.pipeline(
        name="test",
        source=sw.FilesConnection(),
        source_query="in",
        source_format="json",
        source_schema=SIMPLE,
        transform_sql=sql,
        window=build_simple_session_window(late_data="dlq", aggregations=[sw.Aggregation(agg="count", as_="n")]),
        target=sw.ConsoleConnection(),
        dead_letter=sw.Target(connection=sw.FilesConnection(), path="letters"),
        state_store=sw.StateStore(kind="files", path="state"),
    )


@pytest.fixture
def input_frame(spark: Any) -> Any:
    frame = spark.createDataFrame(
        [("a", 1, dt.datetime(2024, 3, 1)), ("a", 0, dt.datetime(2024, 3, 2)), (None, 3, dt.datetime(2024, 3, 3))],
        SIMPLE,
    )
    users = spark.createDataFrame([("a", "red"), (None, "none")], "user STRING, team STRING")
    users.createOrReplaceTempView("users")
    return frame


@pytest.mark.parametrize("form", select_cases(FORMS, keep=6))
def test_rewritten_sql_carries_the_origin_of_every_row(spark: Any, input_frame: Any, form: str) -> None:
    query, expected = FORMS[form]
    spec = pipeline_with_sql(query)
    before = sql_analysis.check_sql(spark, spec, IN, input_frame)
    sql = sql_analysis.add_origin_to_sql(spark, spec, IN, input_frame)
    assert sql == ((expected or query),)
    view = input_frame.selectExpr("*", "ts AS _event_ts").selectExpr("*", origin_column(dict(input_frame.dtypes), "in"))
    out = sql_analysis.run_sql(spark, spec, IN, view, sql)
    assert [c for c in out.columns if c != "_origin"] == list(before)
    pairs = out.selectExpr("_event_ts", "CAST(_origin.value AS STRING) AS row").collect()
    assert pairs, "the form lets some rows through"
    assert all(json.loads(p["row"])["ts"].startswith(p["_event_ts"].isoformat()) for p in pairs)


def test_pipeline_without_sql_has_no_sql_to_rewrite(spark: Any, input_frame: Any) -> None:
    assert sql_analysis.add_origin_to_sql(spark, pipeline_with_sql(None), IN, input_frame) is None


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("SELECT a.user, b._event_ts FROM source a JOIN source b ON a.i = b.i", "it joins source with itself"),
        ("SELECT user, _event_ts FROM source UNION ALL SELECT user, NULL FROM users", "a branch of its UNION does not read source"),
        ("FROM source SELECT user, _event_ts", "the end of a SELECT list is not found"),
        ("SELECT user, _event_ts FROM source AS s(user, i, ts, _event_ts)", "[ASSIGNMENT_ARITY_MISMATCH]"),
        ("SELECT user, _event_ts FROM source WHERE i !> 3", "the SQL cannot be parsed"),
        ("SELECT user, _event_ts FROM users JOIN (TABLE source) USING (user)", "the SELECT that reads source is not found"),
        ("SELECT user, _event_ts, struct(_origin) AS _origin FROM source", "the SQL does not select it exactly once and unchanged"),
        ("SELECT 'a' AS user, CAST(NULL AS TIMESTAMP) AS _event_ts", "the SELECT that reads source is not found"),
    ],
)  # fmt: skip
def test_sql_that_cannot_be_rewritten_is_refused_with_a_one_line_error(
    spark: Any, input_frame: Any, sql: str, why: str
) -> None:
    spec = pipeline_with_sql(sql)
    with pytest.raises(
        StartError, match='late_data = "dlq" requires the hidden column "_origin" in the result'
    ) as raised:
        sql_analysis.add_origin_to_sql(spark, spec, IN, input_frame)
    text = str(raised.value)
    assert f"the column cannot be added ({why}" in text
    assert text.startswith('test: source "in": transform.sql: ')
    assert text.endswith('; add "_origin" to every SELECT, from the one that reads "source" to the outermost one')
    assert "\n" not in text


def test_source_column_named_origin_is_rejected(spark: Any, input_frame: Any) -> None:
    taken = input_frame.selectExpr("*", "1 AS _Origin")
    with pytest.raises(StartError, match='source "in" has a column "_origin", but late_data = "dlq" stores'):
        sql_analysis.add_origin_to_sql(spark, pipeline_with_sql(None), IN, taken)


@pytest.mark.parametrize(
    ("sql", "selects_it"),
    [("SELECT _ORIGIN FROM x", True), ("SELECT `_origin`", True), ("SELECT http_origin, _origins", False)],
)
def test_sql_that_mentions_the_origin_column_is_recognized(sql: str, selects_it: bool) -> None:
    assert row_origin_propagation.mentions_origin(sql) is selects_it


# -- dead letters ----------------------------------------------------------------------------------------------------

SHAPES: dict[str, dict[str, Any]] = {
    "tumbling": {},
    "hopping": {"kind": "hopping", "hop_ms": "20s"},
    "session": {"kind": "session", "duration_ms": None, "gap_ms": "20s", "max_session_duration_ms": "1h"},
}
# seconds after the start, per epoch; the watermark is the newest time before it: 0, then 100
FIRST, SECOND = (0, 50, 100), (99, 70, 10, -30, 101)
# per kind of window: how many windows a late row misses, and the start of the first in seconds
MISSED: dict[str, dict[int, tuple[int, int | None]]] = {
    "tumbling": {99: (1, 40), 70: (1, 40), 10: (1, -20), -30: (1, -80)},
    "hopping": {99: (1, 40), 70: (2, 20), 10: (3, -40), -30: (3, -80)},
    "session": {70: (1, None), 10: (1, None), -30: (1, None)},  # 70 = 50 + 20 is the end of a closed session
}
START_S = 1_700_000_000  # 20 s after a full minute


def late_dead_letters_by_second(frame: pl.DataFrame) -> dict[int, dict[str, Any]]:
    """Return late dead letters by the second of the event."""
    late = frame.filter(LETTERS).with_columns(pl.col("event_time", "watermark").dt.epoch("us"))
    letters = {(r["event_time"] // 1_000_000 - START_S): r for r in late.to_dicts()}
    assert len(letters) == late.height, "one letter per row"
    return letters


@pytest.mark.matrix
@pytest.mark.parametrize("kind", select_cases(["session", "hopping", "tumbling"]))
def test_late_records_are_stored_with_original_bytes_and_metadata(
    runner: SparkPipelineRunner, topic_factory: Make, kind: str
) -> None:
    stream = topic_factory(1)
    sql = "SELECT upper(user) AS user, amount, _event_ts FROM source WHERE amount > 0"
    settings = {
        "source": stream.source(),
        "transform_sql": sql,
        "window": minute_window(late_data="dlq", **SHAPES[kind]),
        "dead_letter": sw.Target(connection=sw.FilesConnection(), path=str(runner.home / "letters")),
    }
    for second in FIRST:
        stream.send_rows({"user": "a", "amount": 1}, second=second)
    runner.run_pipeline(**settings, flush=False)
    for n, second in enumerate(SECOND):
        stream.send_rows(
            f'{{"user":  "a", "amount": {n + 1}}}'.encode(), second=second, key=f"k{n}", headers=[("h", bytes([n]))]
        )
    stream.send_rows({"user": "a", "amount": 0}, second=-30)  # late, but filtered by the SQL: no dead letter
    runner.run_pipeline(**settings)
    counters = runner.statuses[-1].counters
    frame = pl.read_parquet(runner.home / "letters" / "*.parquet")
    letters, expected = late_dead_letters_by_second(frame), MISSED[kind]
    assert set(letters) == set(expected)
    assert counters.letters == {"late": len(expected)}
    assert counters.letters["late"] == counters.rows_late + counters.rows_partly_late
    assert sum(counters.lateness["late"].values()) == counters.rows_late
    assert counters.lateness["rows"] == counters.rows_used + counters.rows_late
    assert min(counters.spent_us[p] for p in ("read", "ingest", "commit")) > 0
    assert counters.rows_sql == counters.rows_used + counters.rows_late == len(FIRST) + len(SECOND)
    for second, letter in letters.items():
        n = SECOND.index(second)
        assert letter["value"] == f'{{"user":  "a", "amount": {n + 1}}}'.encode()
        assert letter["key"] == f"k{n}".encode()
        assert json.loads(letter["headers"])[0]["key"] == "h"
        assert (letter["topic"], letter["partition"], letter["offset"]) == (stream.name, 0, len(FIRST) + n)
        assert (letter["source"], letter["pipeline"], letter["epoch"]) == ("events", "test", 1)
        assert (letter["watermark"], letter["late_us"]) == ((START_S + 100) * 10**6, (100 - second) * 10**6)
        assert (letter["watermark_source"], letter["cause"], letter["file"]) == ("events", "lateness", None)
        count, first = expected[second]
        assert letter["windows_missed"] == count
        starts = [to_microseconds(t) // 10**6 - START_S for t in json.loads(letter["windows"] or "[]")]
        assert starts == ([] if first is None else [first + 20 * k for k in range(count)])


@exhaustive(beside="test_late_row_dead_letters.py::test_late_records_are_stored_with_original_bytes_and_metadata")
def test_late_and_bad_records_are_stored_as_dead_letters_in_postgres(
    runner: SparkPipelineRunner, topic_factory: Make, postgres: Any
) -> None:
    """Use one database. A row that is late for some of its hopping windows counts in the other windows."""
    stream, url = topic_factory(1), postgres.database(f"late{time.time_ns()}")
    settings = {
        "source": stream.source(),
        "window": minute_window(late_data="dlq", **SHAPES["hopping"]),
        "on_error": "dlq",
        "state_store": sw.StateStore(kind="postgres", url=url),
        "target": sw.Target(connection=sw.PostgresConnection(url=url), table="out"),
        "dead_letter": sw.Target(connection=sw.PostgresConnection(url=url), table="letters"),
        "target_path": None,
    }
    stream.send_rows({"user": "a", "amount": 1}, second=100)
    runner.run_pipeline(**settings, flush=False)
    stream.send_rows(b"{broken", b"\xff", second=100)
    stream.send_rows({"user": "a", "amount": 2}, second=70)
    stream.send_rows({"user": "a", "amount": 4}, second=-30)
    stream.send_rows({"user": "a", "amount": 8}, second=50 * 365 * 86400)
    runner.run_pipeline(**settings)
    with psycopg.connect(url) as db:
        letters = db.execute(
            'SELECT reason, value, "offset", late_us / 1000000, windows_missed FROM letters ORDER BY "offset"'
        ).fetchall()
        totals = db.execute("SELECT sum(total) FROM out WHERE total & 2 = 2").fetchone()
    assert letters == [
        ("undecodable", b"{broken", 1, None, None),
        ("undecodable", b"\xff", 2, None, None),
        ("late", b'{"user": "a", "amount": 2}', 3, 30, 2),
        ("late", b'{"user": "a", "amount": 4}', 4, 130, 3),
        ("future", b'{"user": "a", "amount": 8}', 5, None, None),
    ]
    assert totals == (3,), "[60, 120) holds it with the row at 100; [20, 80) and [40, 100) were closed"
    counters = runner.statuses[-1].counters
    assert counters.letters == {"undecodable": 2, "future": 1, "late": 2}
    assert (counters.rows_late, counters.rows_partly_late, counters.late_windows) == (1, 1, 5)


@pytest.mark.parametrize("kind", select_cases(["session", "tumbling"]))
def test_late_row_of_an_idle_partition_has_the_cause_idle(
    runner: SparkPipelineRunner, topic_factory: Make, kind: str
) -> None:
    """Send an old row to the second partition after the watermark has passed this partition.

    The first partition stays active, because the watermark does not move while both partitions are idle.
    """
    stream, stop = topic_factory(2), threading.Event()

    def drive() -> None:
        def goes_on() -> Any:
            stream.send_rows({"user": "a", "amount": 1}, second=500)
            time.sleep(0.5)
            return runner.statuses and runner.statuses[-1].watermark_us

        try:
            wait_until(goes_on)
            stream.send_rows({"user": "b", "amount": 1}, second=2, partition=1)
            wait_until(lambda: sum(runner.statuses[-1].counters.late.values()))
        finally:
            stop.set()

    driving = threading.Thread(target=drive)
    driving.start()
    runner.run_pipeline(
        source=stream.source(),
        window=minute_window(source_idleness_ms="1s", late_data="dlq", **SHAPES[kind]),
        dead_letter=sw.Target(connection=sw.FilesConnection(), path=str(runner.home / "letters")),
        available_now=False,
        flush=False,
        stop=stop,
        idle_pause_ms=100,
    )
    driving.join()
    letters = late_dead_letters_by_second(pl.read_parquet(runner.home / "letters" / "*.parquet"))
    assert {second: (r["cause"], r["partition"]) for second, r in letters.items()} == {2: ("idle", 1)}
    assert runner.statuses[-1].counters.late == {"idle": 1}


@pytest.mark.matrix
@pytest.mark.parametrize("kind", select_cases(["session", "tumbling"]))
def test_late_file_row_is_stored_as_json_once_per_lookup_match(runner: SparkPipelineRunner, kind: str) -> None:
    """The slower source is named as the holder of the watermark. A row with two lookup matches has two dead letters."""
    pl.DataFrame({"user": ["a", "a", "b"], "team": ["red", "blue", "red"]}).write_parquet(runner.home / "users.parquet")
    shape = {"tumbling": {"kind": "tumbling", "duration_ms": "1m", "gap_ms": None, "max_session_duration_ms": None,
                          "max_groups_per_window": 99}, "session": {}}[kind]  # fmt: skip
    for n, (first, second) in enumerate([(300, 290), (0, 400)]):
        runner.write_input_file(f"{n}.jsonl", build_event_rows(first, first + 1))
        runner.write_input_file(f"{n}.jsonl", build_event_rows(second, second + 1, user="b"), folder="more")
    source_options = {"max_files_per_trigger": 1}
    runner.run_pipeline(
        sources=[
            runner.files_source(SIMPLE, **source_options),
            runner.files_source(SIMPLE, name="more", folder="more", **source_options),
        ],
        lookups={"users": sw.Lookup(connection=sw.FilesConnection(), query=str(runner.home / "users.parquet"))},
        transform_sql="SELECT user, i, team, _event_ts FROM source JOIN users USING (user)",
        window=build_simple_session_window(group_by=["team"], late_data="dlq", **shape),
        dead_letter=sw.Target(connection=sw.FilesConnection(), path=str(runner.home / "letters")),
    )
    letters = pl.read_parquet(runner.home / "letters" / "*.parquet")
    assert [json.loads(v) for v in letters["value"]] == [{"user": "a", "i": 1, "ts": "2024-03-01T00:00:00.000000Z"}] * 2
    assert {letters[c].unique().to_list()[0] for c in ("source", "watermark_source")} == {"events", "more"}
    assert letters["file"].str.ends_with("/in/1.jsonl").all()
    assert letters["late_us"].to_list() == [290_000_000] * 2
    assert runner.statuses[-1].counters.letters == {"late": 2}


STEPS = ["ingest.after", "commit.before", "commit.after", "write.after", "note.after", "checkpoint.before"]


@pytest.mark.parametrize(
    ("kind", "step"),
    select_cases(
        [
            ("session", "commit.after"),
            *(("session", s) for s in STEPS if s != "commit.after"),
            ("tumbling", "commit.before"),
        ]
    ),
)
def test_crash_at_a_named_step_loses_and_duplicates_no_dead_letter(
    runner: SparkPipelineRunner, kind: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support.simulated_driver_crashes import CrashOnce

    for n, second in enumerate((300, 0, 310)):
        runner.write_input_file(f"{n}.jsonl", build_event_rows(second, second + 1))
    shape = {"tumbling": {"kind": "tumbling", "duration_ms": "1m", "gap_ms": None, "max_session_duration_ms": None,
                          "max_groups_per_window": 99}, "session": {}}[kind]  # fmt: skip
    settings = {
        "source": runner.files_source(SIMPLE, max_files_per_trigger=1),
        "window": build_simple_session_window(late_data="dlq", **shape),
        "dead_letter": sw.Target(connection=sw.FilesConnection(), path=str(runner.home / "letters")),
    }
    death = CrashOnce(step, 1)
    monkeypatch.setattr(kill_points, "fault_injector_from_environment", lambda: death)
    with pytest.raises(sw.SlackwaterError, match="test: epoch 1 was "):
        runner.run_pipeline(**settings)
    assert death.died
    runner.run_pipeline(**settings)
    letters = pl.read_parquet(runner.home / "letters" / "*.parquet")
    assert [json.loads(v)["ts"] for v in letters["value"]] == ["2024-03-01T00:00:00.000000Z"]
    assert runner.statuses[-1].counters.letters == {"late": 1}


def test_epoch_fails_when_the_input_changes_between_two_reads(
    runner: SparkPipelineRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tumbling windows read the batch again for dead letters. An epoch that lacks a dead letter is not committed."""
    for n, second in enumerate((300, 0)):
        runner.write_input_file(f"{n}.jsonl", build_event_rows(second, second + 1))
    shape = {
        "kind": "tumbling",
        "duration_ms": "1m",
        "gap_ms": None,
        "max_session_duration_ms": None,
        "max_groups_per_window": 99,
    }
    settings = {
        "source": runner.files_source(SIMPLE, max_files_per_trigger=1),
        "window": build_simple_session_window(late_data="dlq", **shape),
        "dead_letter": sw.Target(connection=sw.FilesConnection(), path=str(runner.home / "letters")),
    }
    monkeypatch.setattr(RejectedRowHandler, "_write_late", lambda *_: [])
    with pytest.raises(
        EpochError, match=r"test: epoch 1: the input changed between two reads \(1 late row, but 0 dead letters\)"
    ):
        runner.run_pipeline(**settings)
    monkeypatch.undo()
    runner.run_pipeline(**settings)
    assert pl.read_parquet(runner.home / "letters" / "*.parquet").height == 1


@exhaustive(beside="test_late_row_dead_letters.py::test_late_records_are_stored_with_original_bytes_and_metadata")
@pytest.mark.parametrize("kind", select_cases(["session", "tumbling"]))
def test_new_watermark_does_not_compile_new_code(runner: SparkPipelineRunner, kind: str) -> None:
    """The watermark is not a literal in the plans of Spark, so later epochs run code that is already compiled."""
    for n in range(7):
        runner.write_input_file(
            f"{n}.jsonl",
            build_event_rows(1000 * n + 999, 1000 * n + 1000) + build_event_rows(1000 * n - 1000, 1000 * n - 999),
        )
    shape = {"tumbling": {"kind": "tumbling", "duration_ms": "1m", "gap_ms": None, "max_session_duration_ms": None,
                          "max_groups_per_window": 99}, "session": {}}[kind]  # fmt: skip
    metric = runner.spark._jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()
    compiled: list[int] = []
    runner.run_pipeline(
        source=runner.files_source(SIMPLE, max_files_per_trigger=1),
        window=build_simple_session_window(late_data="dlq", **shape),
        dead_letter=sw.Target(connection=sw.FilesConnection(), path=str(runner.home / "letters")),
        on_status=lambda status: (compiled.append(metric.getCount()), runner.statuses.append(status)),
        flush=False,
    )
    assert runner.statuses[-1].counters.letters == {"late": 6}
    assert len(compiled) == 7
    assert compiled[2] == compiled[-1]


@exhaustive(beside="test_extreme_times_and_query_values.py::test_rows_outside_the_years_1_to_9999_are_bad")
def test_times_outside_of_the_years_1_to_9999_are_bad_rows(runner: SparkPipelineRunner) -> None:
    """A late row at the limits of 64 bits would break the counters, and a target cannot store the time."""
    schema, column = "user STRING, t BIGINT", {"event_time_column": "t", "event_time_unit": "us"}
    for n, times in enumerate(([5_000_000], [90_000_000], [-(2**63), 2**63 - 1, -62_135_596_800_000_001, 6_000_000])):
        runner.write_input_file(f"{n}.jsonl", [{"user": "a", "t": t} for t in times])
    shape = sw.Window(
        kind="tumbling", duration_ms="1m", max_groups_per_window=9, group_by=["user"], late_data="dlq",
        aggregations=[sw.Aggregation(agg="count", as_="n")], **column,
    )  # fmt: skip
    letters = sw.Target(connection=sw.FilesConnection(), path=str(runner.home / "letters"), format="json")
    frame = runner.run_pipeline(
        source=runner.files_source(schema, max_files_per_trigger=1), window=shape, on_error="dlq", dead_letter=letters
    )
    assert frame["n"].to_list() == [1, 1]
    counters = runner.statuses[-1].counters
    assert (counters.rows_bad, counters.rows_late) == (3, 1)
    assert counters.letters == {"event time outside of the years 1 to 9999": 3, "late": 1}


@pytest.mark.parametrize("kind", ["session", "tumbling"])
def test_why_shows_the_late_rows_and_the_last_results_of_a_key(runner: SparkPipelineRunner, kind: str) -> None:
    """Use a key of the SQL output that the record does not contain."""
    late = {"user": "B", "t": "2024-03-01T09:00:00Z"}
    runner.write_input_file("0.jsonl", [{"user": u, "t": "2024-03-01T10:00:00Z"} for u in ("A", "B")])
    runner.write_input_file("1.jsonl", [late, late])
    shape = {"tumbling": {"kind": "tumbling", "duration_ms": "1m", "gap_ms": None, "max_session_duration_ms": None,
                          "max_groups_per_window": 99}, "session": {}}[kind]  # fmt: skip
    settings: dict[str, Any] = {
        "source": runner.files_source("user STRING, t TIMESTAMP", max_files_per_trigger=1),
        "transform_sql": "SELECT lower(user) AS user, 1 AS i, _event_ts FROM source",
        "window": build_simple_session_window(late_data="dlq", **{"event_time_column": "t"} | shape),
        "dead_letter": sw.Target(connection=sw.FilesConnection(), path=str(runner.home / "letters")),
    }
    runner.run_pipeline(**settings)
    described = api.pipeline(
        name="test", target=sw.FilesConnection(), target_path=str(runner.home / "out"),
        state_store=sw.StateStore(kind="files", path=str(runner.home / "state")), **settings,
    )  # fmt: skip
    of_b = sw.why(described, {"user": "b"}).key
    assert of_b is not None
    assert of_b.history is not None
    nine = dt.datetime(2024, 3, 1, 9, tzinfo=dt.UTC).timestamp() * 1e6
    assert [(row.event_us, row.late_us, row.applied) for row in of_b.history.late] == [(nine, 3_600_000_000, False)] * 2
    assert [row["user"] for row in of_b.history.results[0].rows] == ["b"]
    of_a = sw.why(described, "user=a").key
    assert of_a is not None
    assert of_a.history is not None
    assert (of_a.history.late, of_a.history.late_problem) == ((), None)
