"""Backfills write the windows of a range as the live pipeline did, without changes to its state and target marker."""

from __future__ import annotations

import json
import sys
import threading
import warnings
from typing import Any

import polars as pl
import pytest
from confluent_kafka import Producer
from tests.support.case_selection import exhaustive, select_cases
from tests.support.kafka_topics import SCHEMA as RECORD
from tests.support.kafka_topics import START_MS, Make
from tests.support.sample_events_and_windows import format_iso_time, to_microseconds
from tests.support.spark_pipeline_runner import SparkPipelineRunner

import slackwater as sw
from slackwater.cli.main import main
from slackwater.connectors.target import LabeledRows
from slackwater.errors import BadRowError
from slackwater.query.results import compare_outputs, read_rows_at_location
from slackwater.query.state_locator import list_pipelines
from slackwater.runner.backfill import BackfillResult, run_backfill

pytestmark = pytest.mark.spark
SCHEMA = "user STRING, amount BIGINT, ts TIMESTAMP"
MINUTE = 60
HOUR = to_microseconds("2024-03-01T00:00:00Z"), to_microseconds("2024-03-01T01:00:00Z")

WINDOWS = {
    "session": {"kind": "session", "gap_ms": "1m", "max_session_duration_ms": "10m"},
    "tumbling": {"kind": "tumbling", "duration_ms": "7m", "max_groups_per_window": 100},
    "hopping": {"kind": "hopping", "duration_ms": "10m", "hop_ms": "3m", "max_groups_per_window": 100},
}


def window_of_kind(kind: str, **more: Any) -> sw.Window:
    defaults = {
        "group_by": ["user"], "event_time_column": "ts", "lateness_ms": "2m",
        "aggregations": [sw.Aggregation(agg="count", as_="n"), sw.Aggregation(agg="sum", column="amount", as_="total")],
    }  # fmt: skip
    return sw.Window(**{**defaults, **WINDOWS[kind], **more})


def event_rows_between_minutes(first: int, last: int) -> list[dict[str, Any]]:
    """Return an event per minute and user in 15 of every 17 minutes. Users b and NULL skip 5 of every 15 minutes."""
    rows = []
    for n, second in enumerate(range(first * MINUTE, last * MINUTE, 20)):
        user = ["a", "b", None][n % 3]
        if (second // MINUTE + 5) % 17 < 15 and (user == "a" or (second // 300) % 3):
            rows.append({"user": user, "amount": n, "ts": format_iso_time(second)})
    return rows


def write_input_files(runner: SparkPipelineRunner, parts: int = 6) -> None:
    """Write the three hours around the range, one file per 30 minutes."""
    for part in range(parts):
        runner.write_input_file(f"{part}.jsonl", event_rows_between_minutes(-60 + 30 * part, -30 + 30 * part))


def clicks_pipeline(runner: SparkPipelineRunner, kind: str, **more: Any) -> Any:
    defaults = {
        "name": "clicks", "source": runner.files_source(SCHEMA, max_files_per_trigger=1), "window": window_of_kind(kind),
        "target": sw.DeltaConnection(), "target_path": str(runner.home / "lake"),
        "state_store": sw.StateStore(kind="files", path=str(runner.home / "state")),
    }  # fmt: skip
    return sw.pipeline(**{**defaults, **more})


def run_live(runner: SparkPipelineRunner, spec: Any, flush: bool = True) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of PySpark
        return sw.run(spec, available_now=True, flush=flush, spark=runner.spark)


def backfill_range(runner: SparkPipelineRunner, spec: Any, span: tuple[int, int] = HOUR, **more: Any) -> BackfillResult:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run_backfill(
            spec, *span, spark=runner.spark, on_notice=lambda k, t: runner.notices.append((k, t)), **more
        )


def read_rows_in_range(where: str, span: tuple[int, int] = HOUR) -> pl.DataFrame:
    start = pl.col("window_start").dt.timestamp("us")
    return read_rows_at_location(where).rows.filter(start.is_between(*span, closed="left"))


def assert_same_rows(a: pl.DataFrame, b: pl.DataFrame) -> None:
    comparison = compare_outputs(LabeledRows("a", a), LabeledRows("b", b), ["user", "window_start"])
    assert comparison.same, (comparison.only_examples, comparison.different_examples)


@pytest.mark.parametrize("kind", WINDOWS)
@exhaustive(beside="test_backfill.py::test_interrupted_backfill_continues_after_its_last_epoch")
def test_backfilled_windows_equal_those_of_the_live_run(runner: SparkPipelineRunner, kind: str) -> None:
    """Some sessions are cut by the cap. The other table contains only the windows of the range."""
    write_input_files(runner)
    spec = clicks_pipeline(runner, kind)
    run_live(runner, spec)
    backfill = backfill_range(runner, spec, into=str(runner.home / "other"))
    expected = read_rows_in_range(str(runner.home / "lake"))
    written = read_rows_at_location(str(runner.home / "other")).rows
    assert_same_rows(written, expected)
    assert backfill.written.windows == expected.height > 10
    start, end = pl.col("window_start").dt.timestamp("us"), pl.col("window_end").dt.timestamp("us")
    everything = read_rows_at_location(str(runner.home / "lake")).rows
    reaching = everything.filter((start < HOUR[0]) & (end > HOUR[0])).height
    assert (backfill.written.before, backfill.written.unfinished) == (reaching, 0)
    assert reaching > 0
    assert backfill.status is not None
    assert (backfill.done, backfill.status.counters.rows_late) == (True, 0)
    reach = {"session": 11, "tumbling": 7, "hopping": 10}[kind]
    assert backfill.status.counters.rows_in == len(event_rows_between_minutes(-reach, 60 + reach))


@exhaustive(beside="test_backfill.py::test_interrupted_backfill_continues_after_its_last_epoch")
def test_backfill_repairs_the_target_and_the_live_run_continues(runner: SparkPipelineRunner) -> None:
    from deltalake import DeltaTable

    write_input_files(runner)
    spec, lake = clicks_pipeline(runner, "session"), str(runner.home / "lake")
    run_live(runner, spec, flush=False)
    before, state = read_rows_at_location(lake).rows, (runner.home / "state" / "clicks" / "manifests")
    epochs = sorted(p.name for p in state.iterdir())
    DeltaTable(lake).update(updates={"n": "0"})
    DeltaTable(lake).delete('"user" IS NULL')
    backfill_range(runner, spec)
    assert_same_rows(
        read_rows_in_range(lake),
        before.filter(pl.col("window_start").dt.timestamp("us").is_between(*HOUR, closed="left")),
    )
    outside = read_rows_at_location(lake).rows.filter(pl.col("window_start").dt.timestamp("us") < HOUR[0])
    assert set(outside["n"]) == {0}
    assert sorted(p.name for p in state.iterdir()) == epochs
    assert list_pipelines(runner.home / "state") == ["clicks"]
    runner.write_input_file("9.jsonl", [{"user": "new", "amount": 1, "ts": format_iso_time(3 * 60 * MINUTE)}])
    run_live(runner, spec)
    assert "new" in read_rows_at_location(lake).rows["user"].to_list()


@pytest.mark.parametrize("store", select_cases(["files", "postgres"]))
def test_interrupted_backfill_continues_after_its_last_epoch(
    runner: SparkPipelineRunner, store: str, request: pytest.FixtureRequest
) -> None:
    write_input_files(runner)
    more: dict[str, Any] = {}
    where = str(runner.home / "state")
    if store == "postgres":
        where = request.getfixturevalue("postgres").database("backfill")
        more["state_store"] = sw.StateStore(kind="postgres", url=where)
    spec, stop = clicks_pipeline(runner, "tumbling", **more), threading.Event()
    first = backfill_range(runner, spec, stop=stop, on_status=lambda status: stop.set() if status.epoch == 2 else None)
    assert (first.done, first.status is not None and first.status.epoch) == (False, 2)
    assert list_pipelines(where) == ["clicks-backfill-20240301T000000Z-20240301T010000Z"]
    second = backfill_range(runner, spec)
    assert ("info", "continuing after epoch 2, where it was interrupted") in runner.notices
    assert second.done
    assert (first.after, second.after) == (None, 2)
    assert first.written.windows + second.written.windows == read_rows_in_range(str(runner.home / "lake")).height
    rows = read_rows_at_location(str(runner.home / "lake")).rows
    assert_same_rows(rows, rows.unique(["user", "window_start"]))
    run_live(runner, clicks_pipeline(runner, "tumbling", target_path=str(runner.home / "live"), **more))
    assert_same_rows(rows, read_rows_in_range(str(runner.home / "live")))
    assert list_pipelines(where) == ["clicks"]


@exhaustive(beside="test_backfill.py::test_interrupted_backfill_continues_after_its_last_epoch")
def test_partial_backfill_writes_windows_that_cross_the_range(runner: SparkPipelineRunner) -> None:
    write_input_files(runner)
    spec = clicks_pipeline(runner, "hopping")
    run_live(runner, spec)
    backfill = backfill_range(runner, spec, into=str(runner.home / "other"), partial=True)
    everything = read_rows_at_location(str(runner.home / "lake")).rows
    start, end = pl.col("window_start").dt.timestamp("us"), pl.col("window_end").dt.timestamp("us")
    assert_same_rows(
        read_rows_at_location(str(runner.home / "other")).rows, everything.filter((start < HOUR[1]) & (end > HOUR[0]))
    )
    assert (backfill.written.before, backfill.written.unfinished) == (0, 0)


@exhaustive(beside="test_spark_engine.py::test_bad_rows_fail_or_are_dropped_and_counted")
def test_backfill_fails_on_bad_rows_or_drops_and_counts_them(runner: SparkPipelineRunner) -> None:
    runner.write_input_file(
        "0.jsonl", [{"user": "a", "amount": 1, "ts": format_iso_time(600)}, {"user": "a", "amount": 1}]
    )
    with pytest.raises(BadRowError, match="1 bad row"):
        backfill_range(runner, clicks_pipeline(runner, "tumbling"))
    dropping = clicks_pipeline(runner, "tumbling", on_error="drop", state_store=None)
    backfill = backfill_range(runner, dropping)
    assert backfill.status is not None
    assert (backfill.status.counters.rows_bad, backfill.written.windows) == (1, 1)


def test_kafka_backfill_reads_only_records_near_the_range(runner: SparkPipelineRunner, topic_factory: Make) -> None:
    """The topic has three partitions, one of them empty. Records more than 130 s outside of the range are not read."""
    stream = topic_factory(3)
    producer = Producer({"bootstrap.servers": stream.broker.address, "log_level": 0})
    for n in range(2400):
        value = json.dumps({"user": "ab"[n % 2], "amount": n})
        producer.produce(stream.name, value, partition=n % 2, timestamp=START_MS + 3000 * n)
    assert producer.flush(30) == 0
    span = (1000 * (START_MS + 3_000_000), 1000 * (START_MS + 4_200_000))
    shape = sw.Window(
        kind="session", gap_ms="10s", max_session_duration_ms="2m", group_by=["user"], lateness_ms="5s",
        aggregations=[sw.Aggregation(agg="count", as_="n"), sw.Aggregation(agg="min", column="amount", as_="least")],
    )  # fmt: skip
    source = stream.source(max_offsets_per_trigger=100, schema=RECORD)
    spec = clicks_pipeline(runner, "session", source=source, window=shape, state_store=sw.StateStore(kind="in_memory"))
    backfill = backfill_range(runner, spec, span)
    assert backfill.status is not None
    # the range, and 130 s beyond either end
    assert backfill.status.counters.rows_in == sum(2_870_000 <= 3000 * n < 4_330_000 for n in range(2400))
    assert backfill.status.epoch >= 5  # 487 records, at most 100 at a time, and the flush; idle ticks add epochs
    assert backfill.status.counters.rows_emitted > 0
    rows = read_rows_at_location(str(runner.home / "lake")).rows
    assert rows.height == backfill.written.windows
    assert rows["window_start"].dt.timestamp("us").is_between(*span, closed="left").all()
    # sessions are cut every 2 minutes, beginning at the first record that was read, 130 s before the range
    assert rows.filter(pl.col("user") == "a").sort("window_start")["n"].to_list()[0] == 20


def test_backfill_command_reports_its_result_and_invalid_options(
    runner: SparkPipelineRunner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_input_files(runner)
    spec = clicks_pipeline(runner, "tumbling", target=sw.FilesConnection())
    file = runner.home / "clicks.toml"
    file.write_text(sw.to_toml(spec))

    def command(*arguments: str) -> tuple[int, Any]:
        monkeypatch.setattr(sys, "argv", ["slackwater", "backfill", str(file), *arguments])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises(SystemExit) as ended:
                main()
        return int(ended.value.code or 0), capsys.readouterr()

    span = ["--from", "2024-03-01", "--to", "2024-03-01T01:00:00+00:00"]
    code, said = command(*span)
    assert (code, said.out) == (1, "")
    assert "its target, " in said.err
    assert (
        "is append-only and may already contain the windows of the range; name another target with --into" in said.err
    )
    out = str(runner.home / "again")
    code, said = command(*span, "--into", out, "--slack", "5m")
    assert code == 0
    lines = said.out.splitlines()
    assert lines[0] == (
        "clicks-backfill-20240301T000000Z-20240301T010000Z: 2024-03-01 00:00:00Z to 2024-03-01 01:00:00Z, "
        f"{len(event_rows_between_minutes(-7, 67))} rows read"
    )
    assert lines[2] == f'  {read_rows_at_location(out).rows.height} windows written to "{out}"'
    assert lines[3] == "  3 windows left out: 3 begin before the range; --partial writes them"
    code, said = command("--from", "2024-03-01", "--to", "soon", "--into", out)
    assert (code, said.err) == (
        1,
        'error: --to: found "soon", expected a time such as 2026-03-01 or 2026-03-01T12:00:00Z\n',
    )
    code, said = command(*span, "--into", out, "--slack", "a bit")
    assert (code, said.err) == (1, 'error: --slack: found "a bit", expected a duration such as 30s, 5m or 2h\n')
