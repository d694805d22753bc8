"""Superseded rows in every target that upserts, on real systems: the table is correct after every epoch.

A topic counts as a table of the newest record per key, which is how a compacted topic is read.
"""

from __future__ import annotations

import datetime as dt
import json
import random
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.support.case_selection import select_cases
from tests.support.iceberg_tables import sql_catalog_table
from tests.support.kafka_topics import read_messages
from tests.support.local_pipeline_script import SimulatedCrash, build_pipeline
from tests.support.single_stage_components import build_single_stage_driver

from slackwater.config.window import Aggregation, Window
from slackwater.connectors.delta.target import DeltaTarget
from slackwater.connectors.kafka.target import KafkaTarget
from slackwater.connectors.postgres.target import PostgresTarget
from slackwater.connectors.target import TargetTable, TargetWriter
from slackwater.core.schema import Field
from slackwater.engine.epoch_driver import EpochDriver
from slackwater.engine.observer import DriverCallbacks
from slackwater.operators.registry import compile_window
from slackwater.state.commit import Commit
from slackwater.state.postgres.store import PostgresStore
from slackwater.testing.local_engine import LocalEngine
from slackwater.testing.rows_without_spark import PolarsRowPreparer

FIELDS = (
    Field("user", "string"), Field("f", "double"), Field("window_start", "timestamp"), Field("window_end", "timestamp"),
    Field("session_id", "bigint"), Field("n", "bigint"),
)  # fmt: skip
SCHEMA = {f.name: f.polars for f in FIELDS}
IDENTITY = ("user", "f", "window_start")
NAN = float("nan")
ZERO = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)

Key = tuple[str | None, float | None, int]  # user, f, window_start in seconds


def utc_time(seconds: int) -> dt.datetime:
    return ZERO + dt.timedelta(seconds=seconds)


def session_rows(counts: dict[Key, int]) -> pl.DataFrame:
    """Return a frame of sessions with their counts."""
    data = [(user, f, utc_time(start), utc_time(start + 60), start, n) for (user, f, start), n in counts.items()]
    return pl.DataFrame(data, schema=SCHEMA, orient="row")


def superseded_rows(*keys: Key) -> pl.DataFrame:
    return session_rows(dict.fromkeys(keys, 0)).select(*IDENTITY, "session_id")


def format_expected_cells(counts: dict[Key, int]) -> list[tuple[str, ...]]:
    return sorted((repr(user), repr(f), repr(start), repr(n)) for (user, f, start), n in counts.items())


@dataclass
class TargetUnderTest:
    """A target and its table. `target` opens the target again, as a restart does."""

    target: Callable[[], TargetWriter]
    content: Callable[[], list[tuple[str, ...]]]


@pytest.fixture(params=select_cases(["postgres", "delta", "iceberg", "kafka", "kafka by session_id"], keep=4))
def target_under_test(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TargetUnderTest]:
    kind, name = request.param, f"c{uuid.uuid4().hex[:8]}"
    table, opened = TargetTable(name, FIELDS, IDENTITY), list[TargetWriter]()

    def open_target(target: TargetWriter) -> TargetWriter:
        target.open()
        opened.append(target)
        return target

    if kind == "postgres":
        url = request.getfixturevalue("postgres").database(name)
        yield TargetUnderTest(
            lambda: open_target(PostgresTarget(url, "public.out", table)), lambda: read_postgres_cells(url)
        )
    elif kind == "delta":
        yield TargetUnderTest(
            lambda: open_target(DeltaTarget(str(tmp_path / "t"), "merge", table)),
            lambda: read_delta_cells(tmp_path / "t"),
        )
    elif kind == "iceberg":
        lake = sql_catalog_table(tmp_path)
        yield TargetUnderTest(
            lambda: open_target(lake.create_target(table, day_of="window_start")),
            lambda: format_frame_cells(lake.read_rows()),
        )
    else:
        kafka = request.getfixturevalue("kafka")
        kafka.create(name)
        keys = ["session_id", "user", "f"] if kind == "kafka by session_id" else None
        settings = {"bootstrap.servers": kafka.address}
        yield TargetUnderTest(
            lambda: open_target(KafkaTarget(settings, name, table, delivery="exactly_once", key_columns=keys)),
            lambda: read_kafka_cells(kafka, name),
        )
    for target in opened:
        target.close()


def read_postgres_cells(url: str) -> list[tuple[str, ...]]:
    with psycopg.connect(url) as db:
        rows = db.execute('SELECT "user", f, extract(epoch FROM window_start)::bigint, n FROM out').fetchall()
    return sorted(tuple(map(repr, row)) for row in rows)


def read_delta_cells(path: Path) -> list[tuple[str, ...]]:
    frame = pl.from_arrow(pa.table(DeltaTable(path).to_pyarrow_table()))
    assert isinstance(frame, pl.DataFrame)
    return format_frame_cells(frame)


def format_frame_cells(frame: pl.DataFrame) -> list[tuple[str, ...]]:
    seconds = pl.col("window_start").dt.epoch("s")
    return sorted(tuple(map(repr, row)) for row in frame.select("user", "f", seconds, "n").iter_rows())


def read_kafka_cells(kafka: Any, topic: str) -> list[tuple[str, ...]]:
    newest = {m.key(): m.value() for m in read_messages(kafka.address, topic)}
    rows = [json.loads(value) for value in newest.values() if value is not None]
    times = [int(dt.datetime.fromisoformat(r["window_start"]).timestamp()) for r in rows]
    floats = [None if r["f"] is None else float(r["f"]) for r in rows]
    return sorted(
        (repr(r["user"]), repr(f), repr(s), repr(r["n"])) for r, f, s in zip(rows, floats, times, strict=True)
    )


def test_sessions_merged_by_a_late_row_become_one_row(target_under_test: TargetUnderTest) -> None:
    target = target_under_test.target()
    assert target.upserts
    target.publish(0, session_rows({("u", 0.5, 100): 3, ("u", 0.5, 300): 4, ("v", 0.5, 300): 1}))
    target.publish(1, session_rows({("u", 0.5, 100): 8}), superseded_rows(("u", 0.5, 300)))
    assert target_under_test.content() == format_expected_cells({("u", 0.5, 100): 8, ("v", 0.5, 300): 1})


def test_old_rows_of_a_session_are_deleted_when_its_start_changes(target_under_test: TargetUnderTest) -> None:
    target = target_under_test.target()
    target.publish(0, session_rows({("u", 0.5, 100): 3, ("u", 0.5, 300): 4}))
    target.publish(1, session_rows({("u", 0.5, 40): 8}), superseded_rows(("u", 0.5, 100), ("u", 0.5, 300)))
    target.publish(2, session_rows({("u", 0.5, 100): 1}))
    assert target_under_test.content() == format_expected_cells({("u", 0.5, 40): 8, ("u", 0.5, 100): 1})


def test_rows_with_null_empty_and_nan_keys_are_deleted_independently(target_under_test: TargetUnderTest) -> None:
    users, floats = [None, "", "NULL", "a"], [None, NAN, 0.5]
    keys: list[Key] = [(user, f, 100) for user in users for f in floats]
    target = target_under_test.target()
    target.publish(0, session_rows(dict.fromkeys(keys, 1)))
    for epoch, key in enumerate(keys[:4], 1):
        target.publish(epoch, session_rows({}), superseded_rows(key))
        assert target_under_test.content() == format_expected_cells(dict.fromkeys(keys[epoch:], 1))
    target.publish(20, session_rows(dict.fromkeys(keys, 2)))
    target.publish(21, session_rows({}), superseded_rows(*keys[::2]))
    assert target_under_test.content() == format_expected_cells(dict.fromkeys(keys[1::2], 2))


def test_repeated_and_older_epochs_are_ignored_after_a_restart(target_under_test: TargetUnderTest) -> None:
    first = target_under_test.target()
    first.publish(0, session_rows({("u", None, 100): 1, ("u", None, 300): 2}))
    first.publish(1, session_rows({("u", None, 100): 3}), superseded_rows(("u", None, 300)))
    first.publish(2, session_rows({("u", None, 300): 4}))
    first.close()
    again = target_under_test.target()
    again.publish(1, session_rows({("u", None, 100): 3}), superseded_rows(("u", None, 300)))
    again.publish(2, session_rows({}), superseded_rows(("u", None, 100)))
    again.publish(0, session_rows({("u", None, 100): 1}), superseded_rows(("u", None, 300)))
    assert target_under_test.content() == format_expected_cells({("u", None, 100): 3, ("u", None, 300): 4})


def test_epoch_with_only_deletes_or_unmatched_deletes_advances_the_marker(target_under_test: TargetUnderTest) -> None:
    target = target_under_test.target()
    target.publish(0, session_rows({}), superseded_rows(("never", None, 1)))
    target.publish(0, session_rows({("u", None, 100): 1}))
    target.publish(1, session_rows({("u", None, 100): 1, ("v", None, 100): 1}), superseded_rows())
    target.publish(2, session_rows({}), superseded_rows(("u", None, 100)))
    target.publish(2, session_rows({("w", None, 100): 1}))
    target.publish(3, session_rows({}), superseded_rows(("u", None, 100), ("v", NAN, 100), ("v", None, 101)))
    target.publish(3, session_rows({("w", None, 100): 1}))
    target.close()
    target_under_test.target().publish(3, session_rows({("w", None, 100): 1}))
    assert target_under_test.content() == format_expected_cells({("v", None, 100): 1})


@pytest.mark.semantics("corrections-in-targets")
def test_publishing_each_epoch_twice_changes_no_row(target_under_test: TargetUnderTest) -> None:
    """A target has the same rows after random upserts and deletes whether epochs are published once or twice."""
    chance, table = random.Random(7), dict[Key, int]()
    target = target_under_test.target()
    for epoch in range(12):
        touched: set[Key] = {
            (chance.choice(["a", "b", None]), chance.choice([None, -1.5]), 60 * chance.randrange(8)) for _ in range(14)
        }
        over = {k for k in touched if chance.random() < 0.4}
        new = {k: chance.randrange(1000) for k in sorted(touched - over, key=repr)}
        for _ in range(2):
            target.publish(epoch, session_rows(new), superseded_rows(*sorted(over, key=repr)))
        table = {k: n for k, n in table.items() if k not in over} | new
        if chance.random() < 0.3:
            target.close()
            target = target_under_test.target()
    assert target_under_test.content() == format_expected_cells(table)


class CrashPoint:
    """A fault that crashes one step of a commit, once."""

    def __init__(self) -> None:
        self.step: str | None = None

    def hit(self, step: str, epoch: int) -> None:
        if step == self.step:
            self.step = None
            raise SimulatedCrash(step)

    def in_worker(self, epoch: int) -> None:
        return None


def test_superseded_row_is_deleted_atomically_with_the_state_commit(postgres: Any) -> None:
    url = postgres.database(f"c{uuid.uuid4().hex[:8]}")
    window = Window(
        kind="session", gap_ms=10, max_session_duration_ms=1000, group_by=["user"],
        aggregations=[Aggregation(agg="count", as_="n")],
    )  # fmt: skip
    pipeline, faults = build_pipeline(window, ["a"]), CrashPoint()
    logic = compile_window(pipeline, {"user": Field("user", "string")})

    def start() -> EpochDriver:
        target = PostgresTarget(url, "public.out", TargetTable("p", tuple(logic.output), logic.identity, "s"))
        target.open()
        store = PostgresStore(url, "public", "p")
        run = build_single_stage_driver(
            pipeline,
            logic,
            store,
            target,
            LocalEngine(PolarsRowPreparer(logic, ["a"])),
            DriverCallbacks(lambda: 0, faults=faults),
        )
        run.start(store.open(), 1, {}, "s")
        return run

    def record(run: EpochDriver, *staged: tuple[int, int | None, str]) -> Commit:
        """Build the next commit with these staged sessions: (start, count, reason)."""
        frame = pl.DataFrame(
            [(None, utc_time(s), None if n is None else utc_time(s + 10), s, n, reason) for s, n, reason in staged],
            schema={**{f.name: f.polars for f in logic.output}, "__reason": pl.String()},
            orient="row",
        )
        epoch = run.state.epoch + 1
        output = run.store.shard(0, 1, epoch, ()).write_output(frame).model_copy(update={"stage": run.stage.name})
        commit = run.state.model_copy(update={"epoch": epoch, "output": (output,), "emitted": len(staged)})
        return run.publishing.with_targets(commit)

    def content() -> list[tuple[Any, ...]]:
        with psycopg.connect(url) as db:
            return db.execute("SELECT session_id, n FROM out ORDER BY 1").fetchall()

    def stop(run: EpochDriver) -> None:
        for outlet in run.publishing.bindings.values():
            outlet.target.close()
        run.store.close()

    run = start()
    run._commit(record(run, (100, 3, "close"), (300, 4, "close")))
    assert content() == [(100, 3), (300, 4)]
    for step in ("write.before", "write.after"):
        faults.step = step
        with pytest.raises(SimulatedCrash):
            run._commit(record(run, (100, 8, "late"), (300, None, "supersede")))
        assert content() == [(100, 3), (300, 4)]
        stop(run)
        run = start()
    run._commit(record(run, (300, None, "supersede"), (100, 8, "late")))
    assert content() == [(100, 8)]
    assert run.store.published_epoch() == run.state.epoch == 1
    stop(run)
    stop(start())
    assert content() == [(100, 8)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "target_under_test", select_cases(["postgres", "iceberg", "delta", "kafka", "kafka by session_id"]), indirect=True
)
def test_one_epoch_with_100_000_deletes_and_upserts_is_applied(
    target_under_test: TargetUnderTest, record_property: Any
) -> None:
    """Publish into a table of 300,000 windows that all start together, the worst case for a search by window_start."""
    target = target_under_test.target()
    everyone = pl.DataFrame({"user": [f"u{i:07d}" for i in range(300_000)]})
    everyone[7, "user"] = None
    whole = everyone.select(
        "user",
        pl.lit(0.5).alias("f"),
        pl.lit(utc_time(100)).cast(SCHEMA["window_start"]).alias("window_start"),
        pl.lit(utc_time(160)).cast(SCHEMA["window_end"]).alias("window_end"),
        pl.int_range(pl.len(), dtype=pl.Int64).alias("session_id"),
        pl.lit(1, pl.Int64).alias("n"),
    )
    seconds = []
    for epoch, (new, over) in enumerate(
        [
            (whole, whole.head(0)),
            (whole[100_000:200_000].with_columns(n=pl.lit(2, pl.Int64)), whole[:100_000]),
            (whole[:1], whole[299_999:]),
        ]
    ):
        began = time.monotonic()
        target.publish(epoch, new, over.select(*IDENTITY, "session_id"))
        seconds.append(round(time.monotonic() - began, 2))
    record_property("seconds", seconds)
    counts = [int(row[3]) for row in target_under_test.content()]
    assert (counts.count(1), counts.count(2)) == (100_000, 100_000)
