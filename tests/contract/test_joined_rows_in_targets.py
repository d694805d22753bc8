"""Joined rows in every target. They have no key, so each row is appended once and equal rows stay separate."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.support.iceberg_tables import sql_catalog_table
from tests.support.kafka_topics import read_messages

from slackwater.connectors.delta.target import DeltaTarget
from slackwater.connectors.files.target import FilesTarget
from slackwater.connectors.kafka.target import KafkaTarget
from slackwater.connectors.postgres.target import PostgresTarget
from slackwater.connectors.target import TargetTable, TargetWriter
from slackwater.core.schema import Field

FIELDS = (Field("left_id", "bigint"), Field("right_note", "string"), Field("_event_ts", "timestamp"))
AT = dt.datetime(2024, 3, 1, 9, 0, 0, 250_001, dt.UTC)

Row = tuple[int | None, str | None]
Place = tuple[Callable[[], TargetWriter], Callable[[], Counter[Row]]]


def joined_rows_frame(*rows: Row) -> pl.DataFrame:
    return pl.DataFrame([(*row, AT) for row in rows], schema={f.name: f.polars for f in FIELDS}, orient="row")


@pytest.fixture(params=["files", "postgres", "delta", "iceberg", "kafka"])
def target_and_row_counter(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Yield a function that opens the target again, and one that counts its rows."""
    name = f"j-{uuid.uuid4().hex[:8]}"
    table, opened = TargetTable(name, FIELDS, None, "s"), list[TargetWriter]()
    make: Callable[[], TargetWriter]
    read: Callable[[], Counter[Row]]
    match request.param:
        case "files":
            make = partial(FilesTarget, tmp_path, "parquet", table)
            read = partial(count_file_rows, tmp_path)
        case "postgres":
            url = request.getfixturevalue("postgres").database(name)
            make = partial(PostgresTarget, url, "public.out", table)
            read = partial(count_postgres_rows, url)
        case "delta":
            make = partial(DeltaTarget, str(tmp_path), "append", table)
            read = partial(count_delta_rows, tmp_path)
        case "iceberg":
            lake = sql_catalog_table(tmp_path)
            make = partial(lake.create_target, table, "append")
            read = lambda: Counter(lake.read_rows().select("left_id", "right_note").rows())  # noqa: E731
        case _:
            kafka = request.getfixturevalue("kafka")
            kafka.create(name)
            settings = {"bootstrap.servers": kafka.address}
            make = partial(KafkaTarget, settings, name, table, delivery="exactly_once")
            read = partial(count_kafka_rows, kafka, name)

    def open_target() -> TargetWriter:
        for former in opened:
            former.close()
        opened[:] = [make()]
        opened[0].open()
        return opened[0]

    yield open_target, read
    for target in opened:
        target.close()


def count_file_rows(path: Path) -> Counter[Row]:
    return Counter(row[:2] for p in path.glob("*.parquet") for row in pl.read_parquet(p).rows())


def count_postgres_rows(url: str) -> Counter[Row]:
    with psycopg.connect(url) as db:
        return Counter(db.execute("SELECT left_id, right_note FROM out").fetchall())


def count_delta_rows(path: Path) -> Counter[Row]:
    frame = pl.from_arrow(pa.table(DeltaTable(path).to_pyarrow_table()))
    assert isinstance(frame, pl.DataFrame)
    return Counter(frame.select("left_id", "right_note").rows())


def count_kafka_rows(kafka: Any, topic: str) -> Counter[Row]:
    rows = [json.loads(m.value()) for m in read_messages(kafka.address, topic)]
    return Counter((row["left_id"], row["right_note"]) for row in rows)


def test_equal_joined_rows_stay_separate_and_each_epoch_is_added_once(target_and_row_counter: Place) -> None:
    opened, read_rows = target_and_row_counter
    target = opened()
    assert not target.upserts
    target.publish(0, joined_rows_frame((1, "a"), (1, "a"), (2, None), (None, "b")))
    target.publish(0, joined_rows_frame((1, "a"), (1, "a"), (2, None), (None, "b")))
    assert read_rows() == {(1, "a"): 2, (2, None): 1, (None, "b"): 1}
    target = opened()
    target.publish(0, joined_rows_frame((9, "again")))
    target.publish(1, joined_rows_frame((1, "a"), (2, None)))
    target.publish(1, joined_rows_frame((9, "again")))
    target.publish(2, joined_rows_frame())
    target = opened()
    for epoch in (2, 1, 0):
        target.publish(epoch, joined_rows_frame((9, "again")))
    target.publish(3, joined_rows_frame((1, "a")))
    assert read_rows() == {(1, "a"): 4, (2, None): 2, (None, "b"): 1}
