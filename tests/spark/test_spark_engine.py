"""Spark engine: results equal those of the in-process engine, even after losses and changes between runs."""

from __future__ import annotations

import decimal
import os
import shutil
from typing import Any

import polars as pl
import pytest
from tests.support.case_selection import exhaustive, select_cases
from tests.support.every_nth_row_operator import EveryNthRowStep, EveryNthRowTransform, register_operator
from tests.support.local_pipeline_script import MicroBatch, run_local_script
from tests.support.sample_events_and_windows import (
    NAN,
    SCHEMA,
    SIMPLE,
    build_event_rows,
    build_rows_of_every_type,
    build_simple_session_window,
    build_window_with_every_aggregation,
    format_iso_time,
    to_comparable_rows,
    to_microseconds,
)
from tests.support.spark_pipeline_runner import SparkPipelineRunner

import slackwater as sw
from slackwater.errors import BadRowError, EpochError, LimitExceededError, LockHeldError, StartError, StateError
from slackwater.spark.tuning import source_statistics
from slackwater.state.files.store import FilesStore
from slackwater.watermark import SourceActivity

pytestmark = pytest.mark.spark


def run_in_process_engine(kind: str, rows: list[dict[str, Any]], **settings: Any) -> pl.DataFrame:
    """Run the rows through the in-process engine."""

    def value(column: str, v: Any) -> Any:
        if v is None or column == "user":
            return v
        if column == "d":
            return NAN if v == "NaN" else v
        if column == "m":
            return decimal.Decimal(v)
        return to_microseconds(v) if column == "t" else v

    plain = [{**{c: value(c, v) for c, v in r.items() if c != "ts"}, "ts": to_microseconds(r["ts"])} for r in rows]
    types = {"user": "string", "i": "int", "l": "bigint", "d": "double", "m": "decimal(10,2)", "s": "string"}
    types |= {"b": "boolean", "t": "timestamp"}
    result = run_local_script(
        build_window_with_every_aggregation(kind, **settings), [MicroBatch({"a": plain})], schema=types
    )
    frame = pl.DataFrame([{k: v for k, v in r.items() if k != "_epoch"} for r in result.rows], infer_schema_length=None)
    return frame.sort(frame.columns[:4])


@pytest.mark.matrix
@pytest.mark.parametrize("kind", select_cases(["session", "tumbling", "hopping"]))
def test_every_aggregation_agrees_with_the_in_process_engine(runner: SparkPipelineRunner, kind: str) -> None:
    rows = build_rows_of_every_type()
    for part in range(3):
        runner.write_input_file(f"{part}.jsonl", rows[part * 20 : part * 20 + 20])
    frame = runner.run_pipeline(
        source=runner.files_source(SCHEMA, max_files_per_trigger=1),
        window=build_window_with_every_aggregation(kind, lateness_ms="1m"),
    )
    expected = run_in_process_engine(kind, rows)
    assert to_comparable_rows(frame) == to_comparable_rows(expected.select(frame.columns))
    assert [s.epoch for s in runner.statuses] == list(range(len(runner.statuses)))
    assert runner.statuses[-1].counters.rows_used == len(rows)


@exhaustive(beside="test_kafka.py::test_json_schema_is_inferred_and_record_metadata_is_available_in_sql")
def test_state_names_the_file_of_the_newest_row(runner: SparkPipelineRunner) -> None:
    """Sizes distinguish files with equal modification times. If sizes are also equal, the state names both files."""
    old, new = (runner.write_input_file(f"{n}.jsonl", build_event_rows(20 * n, 20 * n + 9)) for n in (0, 1))
    last = runner.write_input_file("2.jsonl", build_event_rows(50, 52))

    def newest_at() -> str | None:
        for folder in ("state", "out"):
            shutil.rmtree(runner.home / folder, ignore_errors=True)
        runner.run_pipeline(source=runner.files_source(SIMPLE), window=build_simple_session_window())
        with FilesStore(runner.home / "state", "test").peek() as snapshot:
            assert snapshot is not None
            return snapshot.commit.clocks["events"].newest_at

    def same(size: int) -> None:
        """Give the first two files this size (0 does not change it) and the same modification time."""
        for path in (old, new):
            path.write_bytes(path.read_bytes()[:-1].ljust(size - 1) + b"\n")
            os.utime(path, (1_600_000_000, 1_600_000_000))

    assert newest_at() == str(last)
    last.unlink()
    new.write_text(new.read_text() + "\n")
    same(0)
    assert newest_at() == str(new)
    same(2000)
    assert newest_at() == f"{old} or {new}"


def test_keys_of_every_type_form_one_group_per_value(runner: SparkPipelineRunner) -> None:
    """Two rows per key value, NULL included, arrive in two epochs. Each key is one group and is emitted unchanged."""
    types = {
        "b": ("BOOLEAN", [True, False, None]),
        "y": ("TINYINT", [1, -1, None]),
        "h": ("SMALLINT", [300, -300, None]),
        "d": ("DATE", ["2024-03-01", "1969-07-20", None]),
        "t": ("TIMESTAMP", ["2024-03-01T09:00:00.25Z", "1969-07-20T20:17:40Z", None]),
        "n": ("TIMESTAMP_NTZ", ["2024-03-01T09:00:00.25", "1969-07-20T20:17:40", None]),
        "m": ("DECIMAL(12,3)", ["1.5", "-2.25", None]),
        "f": ("FLOAT", [0.5, -0.0, None]),
        "x": ("BINARY", ["aGk=", "", None]),
        "a.dot": ("STRING", ["p", "q", None]),
    }
    rows = [{name: values[n] for name, (_, values) in types.items()} | {"ts": format_iso_time(n)} for n in range(3)]
    runner.write_input_file("0.jsonl", rows)
    runner.write_input_file("1.jsonl", rows)
    schema = ", ".join(f"`{name}` {ddl}" for name, (ddl, _) in types.items()) + ", ts TIMESTAMP"
    shape = build_simple_session_window(group_by=list(types), aggregations=[sw.Aggregation(agg="count", as_="n_rows")])
    frame = runner.run_pipeline(source=runner.files_source(schema, max_files_per_trigger=1), window=shape)
    assert frame["n_rows"].to_list() == [2, 2, 2]
    assert frame["session_id"].n_unique() == 3
    assert sorted(frame["m"].to_list(), key=str) == [decimal.Decimal("-2.250"), decimal.Decimal("1.500"), None]
    assert set(frame["x"]) == {b"hi", b"", None}
    assert frame.schema["n"] == pl.Datetime("us")


@pytest.mark.semantics("restarts")
def test_restart_resumes_from_the_state_without_the_spark_checkpoint(runner: SparkPipelineRunner) -> None:
    """A restart continues from the files that the state lists, even if Spark's checkpoint was deleted."""
    runner.write_input_file("0.jsonl", build_event_rows(0, 50))
    source = runner.files_source(SIMPLE)
    runner.run_pipeline(source=source, window=build_simple_session_window(), flush=False)
    runner.write_input_file("1.jsonl", build_event_rows(50, 100))
    runner.run_pipeline(source=source, window=build_simple_session_window(), flush=False)
    shutil.rmtree(runner.home / "state" / "test" / "checkpoint")
    runner.write_input_file("2.jsonl", build_event_rows(100, 150) + build_event_rows(300, 310))
    frame = runner.run_pipeline(source=source, window=build_simple_session_window())
    assert frame["n"].to_list() == [30, 2]
    assert runner.statuses[-1].counters.rows_in == 32
    runner.statuses.clear()
    runner.run_pipeline(source=source, window=build_simple_session_window())
    assert [(s.rows, s.counters.rows_in) for s in runner.statuses] == [(0, 32)], "counters are there before any commit"


def test_restart_with_changed_shards_and_sources_loses_no_rows(runner: SparkPipelineRunner) -> None:
    runner.write_input_file("0.jsonl", build_event_rows(0, 50))
    store = {n: sw.StateStore(kind="files", path=str(runner.home / "state"), shards=n) for n in (2, 5)}
    first = runner.files_source(SIMPLE)
    second = runner.files_source(SIMPLE, name="more", folder="more")
    runner.run_pipeline(sources=[first], window=build_simple_session_window(), state_store=store[2], flush=False)
    runner.write_input_file("0.jsonl", build_event_rows(30, 60, user="b"), folder="more")
    runner.write_input_file("1.jsonl", build_event_rows(50, 60))
    runner.run_pipeline(
        sources=[first, second], window=build_simple_session_window(), state_store=store[5], flush=False
    )
    runner.write_input_file("2.jsonl", build_event_rows(60, 70))
    frame = runner.run_pipeline(sources=[first], window=build_simple_session_window(), state_store=store[2])
    assert dict(frame.select("user", "n").iter_rows()) == {"a": 14, "b": 6}


def test_each_source_has_a_separate_watermark(runner: SparkPipelineRunner) -> None:
    runner.write_input_file("0.jsonl", build_event_rows(1000, 1100))
    runner.write_input_file("0.jsonl", build_event_rows(0, 100, user="b"), folder="more")
    sources = [runner.files_source(SIMPLE), runner.files_source(SIMPLE, name="more", folder="more", lateness_ms="10s")]
    frame = runner.run_pipeline(
        sources=sources,
        window=build_simple_session_window(),
        transform_sql="SELECT user, i, _event_ts FROM source WHERE i > 0",
    )
    assert dict(frame.select("user", "n").iter_rows()) == {"a": 20, "b": 20}
    first = runner.statuses[0]
    assert {s.name: s.rows for s in first.sources} == {"events": 20, "more": 20}
    assert first.watermark_us == to_microseconds(format_iso_time(95)) - 10_000_000


def test_streaming_dataframe_with_lookup_resumes_only_from_checkpoint(runner: SparkPipelineRunner) -> None:
    runner.write_input_file("0.jsonl", build_event_rows(0, 50))
    (runner.home / "users").mkdir()
    pl.DataFrame({"user": ["a"], "team": ["red"]}).write_parquet(runner.home / "users" / "u.parquet")
    frame = runner.spark.readStream.schema(SIMPLE).json(str(runner.home / "in"))
    results = runner.run_pipeline(
        sources=[sw.Source(name="frame", dataframe=frame)],
        lookups={"users": sw.Lookup(connection=sw.FilesConnection(), query=str(runner.home / "users" / "*.parquet"))},
        transform_sql="SELECT team, i, _event_ts FROM source LEFT JOIN users USING (user)",
        window=build_simple_session_window(group_by=["team"]),
    )
    assert results.select("team", "n", "total").rows() == [("red", 10, 10)]
    shutil.rmtree(runner.home / "state" / "test" / "checkpoint")
    with pytest.raises(StartError, match="can resume only from Spark's checkpoint"):
        runner.run_pipeline(
            sources=[sw.Source(name="frame", dataframe=frame)],
            transform_sql="SELECT user AS team, i, _event_ts FROM source",
            window=build_simple_session_window(group_by=["team"]),
        )


@pytest.mark.semantics("bad-rows")
def test_bad_rows_fail_or_are_dropped_and_counted(runner: SparkPipelineRunner) -> None:
    """Rows that are undecodable, too far in the future or without a time stop the run, or are dropped and counted."""
    path = runner.write_input_file(
        "0.jsonl", [*build_event_rows(0, 10), {"user": "a", "i": 1, "ts": "2999-01-01T00:00:00Z"}, {"user": "x"}]
    )
    path.write_text(path.read_text() + '{"user": "broken", "i": "many", "ts": "2024-03-01T00:00:00Z"}\n')
    with pytest.raises(BadRowError, match="3 bad rows \\(1 undecodable, 1 more than 1 hour in the future, 1 without"):
        runner.run_pipeline(source=runner.files_source(SIMPLE), window=build_simple_session_window())
    frame = runner.run_pipeline(
        source=runner.files_source(SIMPLE), window=build_simple_session_window(), on_error="drop"
    )
    assert frame["n"].to_list() == [2]
    counters = runner.statuses[-1].counters
    assert (counters.rows_in, counters.rows_bad, counters.rows_used) == (5, 3, 2)


@exhaustive(beside="test_window_semantics.py::test_run_fails_at_one_group_more_than_max_groups_per_window")
def test_max_groups_per_window_fails_the_run_or_refuses_new_groups(runner: SparkPipelineRunner) -> None:
    rows = [{"user": f"u{k}", "i": 1, "ts": format_iso_time(k)} for k in range(10)]
    runner.write_input_file("0.jsonl", rows)
    with pytest.raises(LimitExceededError, match="10 keys have open sessions, but max_groups_per_window is 9"):
        runner.run_pipeline(
            source=runner.files_source(SIMPLE), window=build_simple_session_window(max_groups_per_window=9)
        )
    runner.run_pipeline(
        source=runner.files_source(SIMPLE),
        window=build_simple_session_window(max_groups_per_window=10),
        name="ten",
        target_path=str(runner.home / "ten"),
    )
    shape: dict[str, Any] = {"kind": "tumbling", "duration_ms": "1m", "gap_ms": None, "max_session_duration_ms": None}
    with pytest.raises(LimitExceededError, match="2024-03-01T00:00:00Z to 2024-03-01T00:01:00Z has 10 groups"):
        runner.run_pipeline(
            source=runner.files_source(SIMPLE),
            window=build_simple_session_window(**shape, max_groups_per_window=9),
            name="tumbling",
        )
    runner.statuses.clear()
    refusing = build_simple_session_window(**shape, max_groups_per_window=4, on_state_cap="drop_new_groups")
    runner.run_pipeline(
        source=runner.files_source(SIMPLE), window=refusing, name="refusing", target_path=str(runner.home / "few")
    )
    assert runner.read_output("few").height == 4
    counters = runner.statuses[-1].counters
    assert (counters.rows_used, counters.rows_refused) == (4, 6)


def test_exact_distinct_count_beyond_its_limit_fails(runner: SparkPipelineRunner) -> None:
    runner.write_input_file("0.jsonl", [{"user": "a", "i": k, "ts": format_iso_time(k)} for k in range(5)])
    bounded = sw.Aggregation(agg="count_distinct", column="i", mode="exact", max_distinct_values_per_group=4, as_="d")
    with pytest.raises(LimitExceededError, match='"d" has 5 distinct values of "i" in one group'):
        runner.run_pipeline(
            source=runner.files_source(SIMPLE), window=build_simple_session_window(aggregations=[bounded])
        )


def test_second_runner_and_changed_window_are_refused(runner: SparkPipelineRunner) -> None:
    runner.write_input_file("0.jsonl", build_event_rows(0, 50))
    runner.run_pipeline(source=runner.files_source(SIMPLE), window=build_simple_session_window(), flush=False)
    store = FilesStore(runner.home / "state", "test")
    store.open()
    with pytest.raises(LockHeldError, match=r"pipeline is already running: process \d+ on "):
        runner.run_pipeline(source=runner.files_source(SIMPLE), window=build_simple_session_window())
    store.close()
    with pytest.raises(StateError, match=r"max_session_duration: state has .*, config has 25s: .* cannot be split"):
        runner.run_pipeline(
            source=runner.files_source(SIMPLE), window=build_simple_session_window(max_session_duration_ms="25s")
        )


@pytest.mark.semantics("row-wise-sql")
@pytest.mark.parametrize(
    ("settings", "message"),
    select_cases(
        [
            (
                {"window": build_simple_session_window(group_by=["usr"])},
                'test: transform.window.group_by: column "usr" does not come out of the SQL; did you mean "user"?',
            ),
            (
                {"window": build_simple_session_window(event_time_column="tss")},
                'test: source "events": event_time_column "tss" is neither a column nor a valid expression',
            ),
            (
                {"window": build_simple_session_window(event_time_column="i")},
                'event_time_column "i" is int; set event_time_unit',
            ),
            ({"transform_sql": "SELECT usr, _event_ts FROM source"}, "available columns: user, i, ts, _event_ts"),
            ({"transform_sql": "SELECT user, i FROM source"}, 'does not select "_event_ts", the event time'),
            (
                {"transform_sql": "SELECT user, count(*) AS i, max(_event_ts) AS _event_ts FROM source GROUP BY user"},
                "must be row-wise, but it uses an aggregate",
            ),
            ({"transform_sql": "SELECT DISTINCT user, i, _event_ts FROM source"}, "it uses DISTINCT"),
            ({"transform_sql": "SELECT * FROM source LIMIT 3"}, "it uses LIMIT"),
            ({"transform_sql": "SELECT * FROM source ORDER BY i"}, "it uses ORDER BY"),
            (
                {"transform_sql": "SELECT user, row_number() OVER (ORDER BY i) AS i, _event_ts FROM source"},
                "it uses a window function (OVER)",
            ),
            ({"transform_sql": "SELECT * FROM source WHERE i = (SELECT max(i) FROM source)"}, "a subquery"),
            ({"transform_sql": "SELECT user, rand() AS i, _event_ts FROM source"}, "it uses rand()"),
            ({"transform_sql": "SELECT user, i, now() AS n, _event_ts FROM source"}, "it uses now()"),
            ({"transform_sql": "SELECT uuid() AS user, i, _event_ts FROM source"}, "it uses uuid()"),
            (
                {
                    "window": build_simple_session_window(
                        aggregations=[sw.Aggregation(agg="sum", column="user", as_="s")]
                    )
                },
                'test: aggregation "s": sum needs a number, but column "user" is string; cast it in the SQL',
            ),
        ],
        keep=6,
    ),
)
def test_start_refuses_unusable_columns_and_sql_by_name(
    runner: SparkPipelineRunner, settings: dict[str, Any], message: str
) -> None:
    """A start refuses columns that do not exist and SQL that is not row-wise, and the error names them."""
    runner.write_input_file("0.jsonl", build_event_rows(0, 10))
    with pytest.raises(StartError) as raised:
        runner.run_pipeline(
            **{"source": runner.files_source(SIMPLE), "window": build_simple_session_window(), **settings}
        )
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not runner.statuses


def test_record_is_bad_even_if_its_undecodable_column_is_unused(runner: SparkPipelineRunner) -> None:
    """The declared schema decides what is undecodable, not the columns that the query needs."""
    path = runner.write_input_file("0.jsonl", build_event_rows(0, 10))
    path.write_text(path.read_text() + '{"user": "a", "i": "many", "ts": "2024-03-01T00:00:05Z"}\n')
    count = build_simple_session_window(aggregations=[sw.Aggregation(agg="count", as_="n")])
    letters = sw.Target(connection=sw.FilesConnection(), path=str(runner.home / "letters"))
    frame = runner.run_pipeline(source=runner.files_source(SIMPLE), window=count, on_error="dlq", dead_letter=letters)
    assert frame["n"].sum() == len(build_event_rows(0, 10))
    assert runner.statuses[-1].counters.rows_bad == 1
    stored_letters = pl.read_parquet(runner.home / "letters" / "*.parquet")
    assert stored_letters["value"].to_list() == [b'{"user": "a", "i": "many", "ts": "2024-03-01T00:00:05Z"}']
    assert stored_letters["file"].str.ends_with("0.jsonl").all()


@exhaustive(beside="test_custom_keyed_operator_state.py::test_keyed_operator_counts_match_a_plain_loop")
def test_custom_keyed_operator_counts_rows_across_restarts(runner: SparkPipelineRunner) -> None:
    """Rows have equal keys in different spellings, and a column that is not a scalar. The SQL filters one of them."""
    schema = "user STRING, d DOUBLE, i INT, more STRUCT<a: INT, b: ARRAY<STRING>>, ts TIMESTAMP"
    store = {n: sw.StateStore(kind="files", path=str(runner.home / "state"), shards=n) for n in (2, 3)}

    def run(shards: int, every: int = 2) -> None:
        described = sw.Pipeline(
            name="test",
            sources=[runner.files_source(schema, max_files_per_trigger=1)],
            transform=EveryNthRowTransform(
                sql="SELECT user, d, i, more, _event_ts FROM source WHERE i >= 0",
                nth=EveryNthRowStep(every=every, keys=["user", "d"], event_time_column="ts"),
            ),
            target=sw.Target(connection=sw.FilesConnection(), path=str(runner.home / "out"), format="parquet"),
            state_store=store[shards],
        )
        sw.run(described, available_now=True, spark=runner.spark, on_status=runner.statuses.append)

    def row(i: int, user: str | None = "a", d: Any = 0.0) -> dict[str, Any]:
        return {"user": user, "d": d, "i": i, "more": {"a": i, "b": [str(i)]}, "ts": format_iso_time(i)}

    with register_operator():
        runner.write_input_file("0.jsonl", [row(3), row(1, d=-0.0), row(-1), row(2)])
        runner.write_input_file("1.jsonl", [row(4), row(5, None), row(6, "b", "NaN")])
        run(2)
        runner.write_input_file("2.jsonl", [row(7, "b", "NaN"), row(8, None), row(9)])
        run(3)
        assert sorted(runner.read_output()["i"].to_list()) == [2, 4, 7, 8], "NULL is a key"
        last = runner.statuses[-1]
        assert (last.window_kind, last.groups, last.counters.emitted) == ("nth", 3, {"nth": 4})
        runner.write_input_file("3.jsonl", [row(10)])
        run(3, every=6)
    frame = runner.read_output()
    assert sorted(frame["i"].to_list()) == [2, 4, 7, 8, 10], "the counts go on"
    assert frame.filter(pl.col("i") == 7)["more"].to_list() == [{"a": 7, "b": ["7"]}]
    assert frame.columns == ["user", "d", "i", "more", "_event_ts"]


@exhaustive(beside="test_kafka.py::test_each_of_many_partitions_holds_back_the_watermark")
def test_newest_times_of_many_partitions_match_per_partition_statistics(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cost per row does not depend on the number of partitions, as it would with one aggregate per partition."""
    rows = [(topic, n % 3, n, n if n % 4 else None, None if n % 5 else "future") for n in range(40) for topic in "ab"]
    frame = spark.createDataFrame(rows, "_topic STRING, _partition INT, _offset BIGINT, us BIGINT, __bad STRING")
    timed = frame.selectExpr("* EXCEPT (us)", "timestamp_micros(us) AS _event_ts").where(
        "NOT (_topic = 'b' AND _partition = 2)"
    )
    counts = dict.fromkeys([f"{t}-{p}" for t in "ab" for p in range(4)], 7)
    statistics = timed.agg(*source_statistics.build_statistics_columns(timed, counts, True)).collect()[0].asDict()
    each = source_statistics.source_stats(statistics, counts, lambda mark: None)
    monkeypatch.setattr(source_statistics, "MIN_PARTITIONS", 8)
    monkeypatch.setattr(source_statistics, "MIN_COMPARISONS", 8 * 56)
    assert source_statistics.needs_separate_job(counts)
    assert not source_statistics.needs_separate_job(counts | {"a-0": 6})  # few rows: a separate job costs more
    assert not source_statistics.needs_separate_job({"a-0": 10**9})
    few, many = ({f"a-{n}": 100 for n in range(count)} for count in (8, 1000))
    assert len(source_statistics.build_statistics_columns(timed, many, False)) == len(
        source_statistics.build_statistics_columns(timed, few, False)
    )
    statistics = timed.agg(*source_statistics.build_statistics_columns(timed, counts, True)).collect()[0].asDict()
    newest = source_statistics.newest_times_by_partition(timed, "events", statistics["newest"], 2)
    assert source_statistics.source_stats(statistics, counts, lambda mark: None, newest) == each
    assert each.partitions["a-0"] == SourceActivity(7, 39)
    assert each.partitions["b-2"] == SourceActivity(7, None)
    with pytest.raises(EpochError, match=r'source "events": the input changed between two reads: .* and is now 1970'):
        source_statistics.newest_times_by_partition(timed, "events", 41, 2)
