"""Replays of dead letters from Kafka and from files on Spark, through SQL that makes several rows of each record."""

from __future__ import annotations

import datetime as dt
import time
from typing import Any

import polars as pl
import psycopg
import pytest
from deltalake import DeltaTable
from tests.laws.oracles import window_oracle
from tests.support.case_selection import exhaustive
from tests.support.kafka_topics import START_MS, Make, minute_window
from tests.support.simulated_driver_crashes import CrashOnce
from tests.support.spark_pipeline_runner import SparkPipelineRunner

import slackwater as sw
from slackwater.dead_letters import dead_letter_reader
from slackwater.dead_letters.replay import GONE
from slackwater.engine import kill_points
from slackwater.errors import EpochError
from slackwater.runner.replay_runner import replay_dead_letters

pytestmark = pytest.mark.spark


def run_replay(runner: SparkPipelineRunner, settings: dict[str, Any], **more: Any) -> Any:
    return replay_dead_letters(
        sw.pipeline(name="test", **settings), lambda letters: letters, spark=runner.spark, **more
    )


def sorted_rows(rows: Any) -> list[tuple[Any, ...]]:
    return sorted(rows, key=str)


@pytest.mark.parametrize("step", ["note.before", "commit.before"])
@exhaustive(beside="test_dead_letter_replay.py::test_replayed_file_rows_are_exact_and_use_the_new_source_options")
def test_replayed_kafka_records_correct_hopping_windows_in_postgres(
    runner: SparkPipelineRunner,
    topic_factory: Make,
    postgres: Any,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    """Use one database. The SQL makes two rows of each record, and the replay crashes once."""
    stream, url = topic_factory(1), postgres.database(f"replay{time.time_ns()}")
    window = minute_window(kind="hopping", duration_ms="1m", hop_ms="20s", late_data="dlq")
    settings = {
        "source": stream.source(),
        "transform_sql": "SELECT concat(user, x) AS user, amount, _event_ts FROM source LATERAL VIEW explode(array('1', '2')) AS x",
        "window": window,
        "on_error": "dlq",
        "state_store": sw.StateStore(kind="postgres", url=url),
        "target": sw.Target(connection=sw.PostgresConnection(url=url), table="out"),
        "dead_letter": sw.Target(connection=sw.PostgresConnection(url=url), table="letters"),
    }
    sent = [("a", 1, 100), ("a", 2, 70), ("a", 4, -30), ("b", 8, 95), ("b", 16, 20)]
    stream.send_rows({"user": "a", "amount": 1}, second=100)
    runner.run_pipeline(**settings, target_path=None, flush=False)
    stream.send_rows(b"{broken", second=100)
    for user, amount, second in sent[1:]:
        stream.send_rows({"user": user, "amount": amount}, second=second)
    runner.run_pipeline(**settings, target_path=None)

    def table() -> list[tuple[Any, ...]]:
        with psycopg.connect(url) as db:
            query = 'SELECT "user", extract(epoch FROM window_start)::bigint, n, total FROM out'
            return sorted_rows(db.execute(query).fetchall())

    rows = [
        {"ts": (START_MS + second * 1000) * 1000, "user": f"{user}{x}", "amount": amount}
        for user, amount, second in sent
        for x in (1, 2)
    ]
    expected = sorted_rows(
        (r["user"], r["window_start"] // 10**6, r["n"], r["total"])
        for r in window_oracle.compute_windows_over_all_rows(window, rows)
    )
    before, described = table(), sw.pipeline(name="test", **settings)
    assert before != expected
    with psycopg.connect(url) as db:
        (letters,) = db.execute("SELECT count(*)::int FROM letters").fetchone() or (0,)
    assert letters >= 7
    assert letters % 2 == 1, "two for each late record, and the broken one"
    dry = run_replay(runner, settings, dry=True)
    assert (dry.applied, dry.remaining, table()) == (letters - 1, {"bad again: undecodable": 1}, before)
    death = CrashOnce(step, runner.statuses[-1].epoch + 2)  # the first epoch counts an attempt for the broken record
    monkeypatch.setattr(kill_points, "fault_injector_from_environment", lambda: death)
    with pytest.raises(Exception, match=step):
        run_replay(runner, settings)
    assert death.died
    run_replay(runner, settings)
    assert table() == expected
    last = run_replay(runner, settings)
    assert (last.applied, last.remaining, last.before) == (0, {"bad again: undecodable": 1}, letters - 1)
    assert table() == expected
    summary = {
        r["reason"]: (r["letters"], r["open"], r["applied"], r["tries"])
        for r in dead_letter_reader.count_dead_letters(described).to_dicts()
    }
    assert summary == {"late": (letters - 1, 0, letters - 1, 0), "undecodable": (1, 1, 0, 3)}


def test_replayed_file_rows_are_exact_and_use_the_new_source_options(runner: SparkPipelineRunner) -> None:
    """Sessions in Delta. A time in another format is undecodable until a source option gives the format."""
    start = dt.datetime(2024, 3, 1, 9, 0, 0, 123_457, dt.UTC)

    def row(second: int, user: str | None = "a", amount: float | None = 0.5) -> dict[str, Any]:
        return {"user": user, "amount": amount, "ts": (start + dt.timedelta(seconds=second)).isoformat()}

    files = [
        [row(0), row(2), row(8), row(0, None)],
        [row(100), row(100, None), {"user": "b", "amount": 4.0, "ts": "01/03/2024 09:00:50"}],
        [row(5), row(5), row(4, None, float("nan")), row(7, None, None), row(60)],
    ]
    for n, rows in enumerate(files):
        runner.write_input_file(f"{n}.jsonl", rows)
    schema = "user STRING, amount DOUBLE, ts TIMESTAMP"
    aggregations = [("n", "count", None), ("amounts", "count", "amount"), ("total", "sum", "amount"),
                    ("mean", "avg", "amount"), ("top", "max", "amount")]  # fmt: skip
    window = sw.Window(
        kind="session",
        gap_ms="3s",
        max_session_duration_ms="1m",
        group_by=["user"],
        event_time_column="ts",
        late_data="dlq",
        aggregations=[sw.Aggregation(agg=a, column=c, as_=name) for name, a, c in aggregations],
    )
    settings: dict[str, Any] = {
        "source": runner.files_source(schema, max_files_per_trigger=1),
        "window": window,
        "on_error": "dlq",
        "target": sw.Target(connection=sw.DeltaConnection(), path=str(runner.home / "table")),
        "dead_letter": sw.Target(connection=sw.FilesConnection(), path=str(runner.home / "letters")),
        "state_store": sw.StateStore(kind="files", path=str(runner.home / "state")),
    }
    runner.run_pipeline(**settings, target_path=None)

    def table() -> list[tuple[Any, ...]]:
        frame = pl.from_arrow(DeltaTable(str(runner.home / "table")).to_pyarrow_table())
        assert isinstance(frame, pl.DataFrame)
        seconds = ((pl.col(c) - start).dt.total_microseconds() / 1e6 for c in ("window_start", "window_end"))
        return sorted_rows(frame.select("user", *seconds, *(name for name, _, _ in aggregations)).rows())

    letters = sorted((runner.home / "letters").glob("*.parquet"))
    dry = run_replay(runner, settings, dry=True)
    first = run_replay(runner, settings)
    assert (dry.applied, dry.remaining) == (first.applied, first.remaining) == (5, {"bad again: undecodable": 1})
    assert sorted((runner.home / "letters").glob("*.parquet")) == letters, "none was doubled"
    nan = float("nan")
    expected = [
        ("a", 0.0, 11.0, 5, 5, 2.5, 0.5, 0.5),
        ("a", 60.0, 63.0, 1, 1, 0.5, 0.5, 0.5),
        ("a", 100.0, 103.0, 1, 1, 0.5, 0.5, 0.5),
        (None, 0.0, 3.0, 1, 1, 0.5, 0.5, 0.5),
        (None, 4.0, 10.0, 2, 1, nan, nan, nan),
        (None, 100.0, 103.0, 1, 1, 0.5, 0.5, 0.5),
    ]
    assert str(table()) == str(sorted_rows(expected))
    read = runner.files_source(schema, max_files_per_trigger=1, options={"timestampFormat": "dd/MM/yyyy HH:mm:ss"})
    dry = run_replay(runner, {**settings, "source": read}, dry=True)
    second = run_replay(runner, {**settings, "source": read})
    assert (dry.applied, dry.renewed) == (second.applied, second.renewed) == (1, {"late": 1})
    third = run_replay(runner, {**settings, "source": read})
    assert (third.applied, dict(third.remaining), third.before) == (1, {}, 6)
    expected.append(("b", 50 - 0.123457, 53 - 0.123457, 1, 1, 4.0, 4.0, 4.0))
    assert str(table()) == str(sorted_rows(expected))
    assert run_replay(runner, {**settings, "source": read}).applied == 0


@exhaustive(beside="test_dead_letter_replay.py::test_replayed_file_rows_are_exact_and_use_the_new_source_options")
def test_dead_letters_unreadable_under_a_new_config_are_not_replayed(runner: SparkPipelineRunner) -> None:
    for n, second in enumerate((100, 0)):
        runner.write_input_file(
            f"{n}.jsonl", [{"user": "a", "ts": f"2024-03-01T00:{second // 60:02}:{second % 60:02}Z"}]
        )
    settings: dict[str, Any] = {
        "source": runner.files_source("user STRING, ts TIMESTAMP", max_files_per_trigger=1),
        "window": minute_window(
            aggregations=[sw.Aggregation(agg="count", as_="n")], late_data="dlq", event_time_column="ts"
        ),
        "target": sw.Target(connection=sw.DeltaConnection(), path=str(runner.home / "table")),
        "dead_letter": sw.Target(connection=sw.FilesConnection(), path=str(runner.home / "letters")),
        "state_store": sw.StateStore(kind="files", path=str(runner.home / "state")),
    }
    runner.run_pipeline(**settings, target_path=None)
    failing = "SELECT CAST(CAST(user AS INT) AS STRING) AS user, _event_ts FROM source"
    with pytest.raises(
        EpochError, match=r"the dead letters cannot be read, so nothing was replayed: .*CAST_INVALID_INPUT"
    ):
        run_replay(runner, {**settings, "transform_sql": failing})
    shifted = "SELECT user, _event_ts + INTERVAL 1 DAY AS _event_ts FROM source"
    moved = run_replay(runner, {**settings, "transform_sql": shifted})
    assert (moved.applied, moved.remaining) == (0, {GONE: 1})
    assert run_replay(runner, settings).applied == 1
