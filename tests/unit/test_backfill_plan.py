"""Test the pipeline of a backfill and the windows that it writes, without Spark."""

from __future__ import annotations

import datetime as dt
from typing import Any

import polars as pl
import pytest

import slackwater as sw
from slackwater.errors import StartError
from slackwater.runner.backfill import BackfillTarget, run_backfill
from slackwater.runner.backfill_plan import BackfillRange, backfill_pipeline, reach_us

DAY = 86_400_000_000
COUNT = [sw.Aggregation(agg="count", as_="n")]


def build_clicks_pipeline(**more: Any) -> sw.Pipeline:
    settings: dict[str, Any] = {
        "name": "clicks",
        "source": sw.KafkaConnection(bootstrap_servers="k:9092"),
        "source_query": "clicks",
        "commit_group": "shown",
        "source_schema": "user STRING",
        "window": sw.Window(kind="session", gap_ms="30s", max_session_duration_ms="1h", group_by=["user"], late_data="dlq", aggregations=COUNT),
        "on_error": "dlq",
        "dead_letter": sw.Target(connection=sw.FilesConnection(), path="letters"),
        "target": sw.PostgresConnection(url="postgresql://h/d"),
        "target_table": "sessions",
        "state_store": sw.StateStore(kind="files", path="state"),
    }  # fmt: skip
    return sw.pipeline(**{**settings, **more})


def test_backfill_has_its_own_name_without_dead_letters_or_commit_group() -> None:
    backfill = backfill_pipeline(build_clicks_pipeline(), 0, DAY + 1, None)
    assert backfill.name == "clicks-backfill-19700101T000000Z-19700102T000000.000001Z"
    assert (backfill.dead_letter, backfill.transform.on_error, backfill.transform.step.late_data) == (
        None,
        "drop",
        "drop",
    )
    assert backfill.sources[0].commit_group is None
    assert backfill.target.table == "sessions"
    assert backfill_pipeline(build_clicks_pipeline(), 0, DAY, "audit.sessions").target.table == "audit.sessions"


def test_a_backfill_of_a_console_target_writes_files() -> None:
    backfill = backfill_pipeline(build_clicks_pipeline(target=sw.ConsoleConnection(), target_table=None), 0, DAY, "out")
    assert (backfill.target.path, backfill.target.format, backfill.connections["backfill"].kind) == (
        "out",
        "parquet",
        "files",
    )


FILES = {"target": sw.FilesConnection(), "target_table": None, "target_path": "out"}
TUMBLING = {"kind": "tumbling", "duration_ms": "1m", "max_groups_per_window": 9, "aggregations": COUNT}


@pytest.mark.parametrize(
    ("more", "into", "problem"),
    [
        (FILES, None, 'its target, ".*out", is append-only and may already contain the windows of the range; name another target'),
        (FILES, "out", "is append-only"),
        ({"window": sw.Window(**TUMBLING, time_mode="processing"), "dead_letter": None, "on_error": "fail"}, None, "a backfill needs event times"),
        (
            {"source": sw.RabbitMQConnection(url="amqp://h"), "source_query": "q", "commit_group": None},
            None,
            'source "q" reads rabbitmq, which keeps no history; expected kafka, files, delta or iceberg',
        ),
    ],
)  # fmt: skip
def test_backfill_with_an_unsuitable_target_window_or_source_is_refused(
    more: dict[str, Any], into: str | None, problem: str
) -> None:
    settings = {k: v for k, v in more.items() if not (k == "commit_group" and v is None)}
    spec = build_clicks_pipeline(**settings) if "commit_group" not in more else _pipeline_without_group(**settings)
    with pytest.raises(StartError, match=problem):
        backfill_pipeline(spec, 0, DAY, into)


def _pipeline_without_group(**more: Any) -> sw.Pipeline:
    return build_clicks_pipeline(**{**more, "commit_group": None})


def test_range_that_does_not_begin_before_its_end_is_refused() -> None:
    with pytest.raises(StartError, match="--from 1970-01-02T00:00:00Z is not before --to 1970-01-02"):
        run_backfill(build_clicks_pipeline(), DAY, DAY)


def test_backfill_of_a_join_is_refused() -> None:
    join = sw.Join(
        kind="inner", left_source="a", right_source="b", left_keys=["k"], right_keys=["k"], time_window_ms="1m"
    )
    sources = [
        sw.Source(name=n, connection=sw.KafkaConnection(bootstrap_servers="k"), query=n, schema="k INT") for n in "ab"
    ]
    spec = build_clicks_pipeline(
        source=None, source_query=None, sources=sources, window=None, join=join, dead_letter=None, on_error="fail"
    )
    with pytest.raises(StartError, match=r"found \[transform.join\], expected only \[transform.window\]"):
        backfill_pipeline(spec, 0, DAY, None)


@pytest.mark.parametrize(
    ("lengths", "minutes"),
    [
        ({"gap_ms": "30m", "max_session_duration_ms": "1h"}, 90),
        ({"gap_ms": "gap", "max_session_duration_ms": "1h"}, 120),
    ],
)
def test_backfill_reads_beyond_its_range_by_the_longest_possible_window(lengths: dict[str, Any], minutes: int) -> None:
    assert reach_us(sw.Window(kind="session", group_by=["u"], aggregations=COUNT, **lengths)) == minutes * 60_000_000
    assert reach_us(sw.Window(**TUMBLING)) == 60_000_000


def test_kafka_records_are_selected_by_timestamp_with_slack() -> None:
    span = BackfillRange(since_us=10_000_500, until_us=20_000_500, reach_us=1_000_000, slack_us=2_000_000)
    assert span.rows_us == (9_000_500, 21_000_500)
    assert span.records_ms == (7000, 23_001)


class _MemoryTarget:
    guarantee, upserts, description = "exactly once", True, "memory"

    def __init__(self) -> None:
        self.took: list[tuple[int, list[int], list[int]]] = []
        self.steps: list[str] = []

    def open(self) -> None:
        self.steps.append("open")

    def close(self) -> None:
        self.steps.append("close")

    def publish(self, epoch: int, rows: pl.DataFrame, gone: pl.DataFrame | None = None, commit: str = "") -> None:
        starts = [] if gone is None else gone["window_start"].dt.timestamp("us").to_list()
        self.took.append((epoch, rows["window_start"].dt.timestamp("us").to_list(), starts))


def build_window_rows(*bounds: tuple[int, int | None]) -> pl.DataFrame:
    def from_us(us: int | None) -> dt.datetime | None:
        return None if us is None else dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=us)

    kind = pl.Datetime("us", "UTC")
    rows = [{"window_start": from_us(a), "window_end": from_us(b)} for a, b in bounds]
    return pl.DataFrame(rows, schema={"window_start": kind, "window_end": kind})


@pytest.mark.parametrize("partial", [False, True])
def test_windows_in_the_range_are_written_and_others_are_counted(partial: bool) -> None:
    """The range is [100, 200) and the clock is at 230."""
    memory = _MemoryTarget()
    target = BackfillTarget(memory, sw.Window(**TUMBLING), BackfillRange(100, 200, 60, 0), 230, partial)
    target.open()
    rows = build_window_rows((50, 100), (70, 101), (100, 160), (199, 230), (199, 231), (200, 210))
    target.publish(3, rows, build_window_rows((99, None), (100, None), (200, None)))
    target.publish(4, build_window_rows((20, 80), (300, 360)), build_window_rows())
    target.publish(5, build_window_rows((150, None)))
    target.close()
    if partial:
        assert memory.took == [(3, [70, 100, 199, 199], [99, 100]), (5, [150], [])]
        assert (target.written.windows, target.written.before, target.written.unfinished) == (5, 0, 0)
    else:
        assert memory.took == [(3, [100, 199], [100]), (5, [150], [])]
        assert (target.written.windows, target.written.before, target.written.unfinished) == (3, 1, 1)
    assert memory.steps == ["open", "close"]
    assert (target.guarantee, target.upserts, target.description) == ("exactly once", True, "memory")
