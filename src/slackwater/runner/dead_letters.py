"""Reading dead letters back from where a config sends them, without Spark.

Each kind of target gives frames of the letter's columns; columns that an older letter does not have are NULL.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from slackwater.config.connection import DeltaConnection, KafkaConnection, PostgresConnection
from slackwater.config.pipeline import Pipeline, resolve
from slackwater.config.target import Target
from slackwater.core.dead_letter import LETTER
from slackwater.core.schema import Field
from slackwater.errors import StartError
from slackwater.replay.tries import COLUMNS, Ledger
from slackwater.targets.kafka_rows import LETTER_HEADERS

CHUNK = 10_000  # rows of a frame
_SECONDS = 30.0
_NEWEST = ("epoch", "event_time", "offset")
_SCHEMA = {f.name: f.polars for f in LETTER}


@dataclass(frozen=True)
class Wanted:
    """Which letters, and which of their columns. None: all."""

    columns: Sequence[str] = tuple(_SCHEMA)
    reason: str | None = None
    source: str | None = None
    limit: int | None = None  # the newest so many

    def of(self, frame: pl.DataFrame, pipeline: str) -> pl.DataFrame:
        """The wanted rows of a frame of letters, newest first."""
        frame = frame.filter(pl.col("pipeline") == pipeline)
        for name, value in (("reason", self.reason), ("source", self.source)):
            frame = frame if value is None else frame.filter(pl.col(name) == value)
        frame = frame.sort(_NEWEST, descending=True, nulls_last=True)
        return frame if self.limit is None else frame.head(self.limit)

    @property
    def read(self) -> list[str]:
        """The columns to read: those asked for, and those that choose and order."""
        return [n for n in _SCHEMA if n in {*self.columns, "pipeline", "reason", "source", *_NEWEST}]


def newest(pipeline: Pipeline, wanted: Wanted) -> pl.DataFrame:
    """The newest letters of a pipeline. Raises StartError where they cannot be read."""
    found = pl.DataFrame(schema={n: _SCHEMA[n] for n in wanted.read})
    for frame in _frames(pipeline, wanted):
        found = wanted.of(pl.concat([found, frame]), pipeline.name)
    return found.select(wanted.columns)


def judged(pipeline: Pipeline, letters: pl.DataFrame) -> pl.DataFrame:
    """Letters with all their columns, and `__applied` and `__tries` as the state of the pipeline knows them.

    Equal letters of a file stand for as many rows; which of them were applied cannot be told, and does not matter.
    """
    return ledger(pipeline).judged(letters)


def ledger(pipeline: Pipeline) -> Ledger:
    """What the state of a pipeline knows of its letters; without a lock. Raises StateError, StartError."""
    from slackwater.runner.assemble import store_of

    if pipeline.state_store is None or not pipeline.state_store.durable:
        return Ledger.of(None, lambda name: [])  # in memory: no replay can have found it
    with store_of(pipeline).peek() as seen:
        return Ledger.of(seen.commit if seen else None, seen.read_list if seen else lambda name: [])


def summary(pipeline: Pipeline) -> pl.DataFrame:
    """How many letters there are per reason and source: all, `open` ones, `applied` ones, how often those that are open were
    tried; and their first and last event time. Reads a chunk at a time."""
    wanted = Wanted(COLUMNS)
    found = ledger(pipeline).counted(wanted.of(frame, pipeline.name) for frame in _frames(pipeline, wanted))
    left = (pl.col("letters") - pl.col("applied")).alias("open")
    columns = ("reason", "source", "letters", left, "applied", "tries", "first", "last")
    return found.select(columns).sort("reason", "source", nulls_last=True)


def _frames(pipeline: Pipeline, wanted: Wanted) -> Iterator[pl.DataFrame]:
    target = pipeline.dead_letter
    if target is None:
        raise StartError(
            f'{pipeline.name}: the config has no [dead_letter], so no letters are kept; set on_error or late_data to "dlq"'
        )
    connection = resolve(target.connection, pipeline.connections)
    if isinstance(connection, PostgresConnection):
        found = _postgres(str(connection.url), target.table or "", pipeline.name, wanted)
    elif isinstance(connection, DeltaConnection):
        found = _delta(target.path or "", connection.options)
    elif isinstance(connection, KafkaConnection):
        found = _kafka(connection, target.topic or "", pipeline.name)
    elif target.path is not None:
        found = _files(target, pipeline.name)
    else:
        raise StartError(f"{pipeline.name}: dead letters go to the console, which keeps none; name another connection")
    return (_typed(frame, wanted.read) for frame in found)


def _typed(frame: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    fields = {f.name: f for f in LETTER}
    return frame.select(
        (_column(frame.schema[n], fields[n]) if n in frame.columns else pl.lit(None, _SCHEMA[n])).alias(n)
        for n in columns
    )


def _column(there: pl.DataType, field: Field) -> pl.Expr:
    """A column as its type; formats without times and bytes hold them as text."""
    value = pl.col(field.name)
    if there == pl.String and field.type == "binary":
        return value.str.decode("hex")
    if there == pl.String and field.type == "timestamp":
        return value.str.to_datetime("%Y-%m-%dT%H:%M:%S%.fZ", time_unit="us", time_zone="UTC")
    return value.cast(field.polars)


# -- the kinds of targets --------------------------------------------------------------------------------------------


def _files(target: Target, pipeline: str) -> Iterator[pl.DataFrame]:
    ending = {"json": "jsonl"}.get(target.format or "parquet", target.format or "parquet")
    for path in sorted(Path(target.path or "").glob(f"{pipeline}-letters-*.{ending}")):
        try:
            if ending == "parquet":
                yield pl.read_parquet(path)
            elif ending == "csv":
                yield pl.read_csv(path, infer_schema=False)
            else:
                yield pl.read_ndjson(path, infer_schema_length=None)
        except (pl.exceptions.PolarsError, OSError) as error:
            raise StartError(
                f"{path} cannot be read as letters ({str(error).splitlines()[0]}); move it away, or restore it"
            ) from None


def _delta(path: str, options: Any) -> Iterator[pl.DataFrame]:
    from deltalake import DeltaTable

    try:
        if not DeltaTable.is_deltatable(path, dict(options)):
            return
        frame = pl.from_arrow(DeltaTable(path, storage_options=dict(options)).to_pyarrow_table())
    except Exception as error:  # the library has no base class
        raise StartError(f"Delta table {path} cannot be read ({str(error).splitlines()[0]}); check the path") from None
    assert isinstance(frame, pl.DataFrame)
    yield frame


def _postgres(url: str, table: str, pipeline: str, wanted: Wanted) -> Iterator[pl.DataFrame]:
    import psycopg

    from slackwater.state.postgres import client

    schema, _, name = table.rpartition(".")
    quoted = f"{client.quote(schema or 'public')}.{client.quote(name)}"
    with client.connect(url, f"dead_letter {table}") as db:
        there = db.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
            (quoted,),
        ).fetchall()
        columns = [n for n in wanted.read if (n,) in there]
        if not columns:
            return  # no run has made the table yet
        asked = {"pipeline": pipeline, "reason": wanted.reason, "source": wanted.source}
        chosen = {n: v for n, v in asked.items() if v is not None}
        query = (
            f"SELECT {client.quoted(columns)} FROM {quoted} WHERE {' AND '.join(f'{client.quote(n)} = %s' for n in chosen)}"
            f" ORDER BY {', '.join(f'{client.quote(n)} DESC NULLS LAST' for n in _NEWEST)}"
            + (f" LIMIT {wanted.limit}" if wanted.limit is not None else "")
        )
        try:
            with db.transaction(), db.cursor(name="slackwater_letters") as cursor:
                cursor.execute(query, list(chosen.values()))
                while rows := cursor.fetchmany(CHUNK):
                    yield pl.DataFrame(rows, schema={n: _SCHEMA[n] for n in columns}, orient="row")
        except psycopg.Error as error:
            raise StartError(f"table {table}: {client.reason(error)}; expected a table of dead letters") from None


def _kafka(connection: KafkaConnection, topic: str, pipeline: str) -> Iterator[pl.DataFrame]:
    """Every committed letter of the topic, from its start to where it ended when it was reached."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    from slackwater.sources.kafka_broker import Broker

    broker = Broker(connection)
    parts = broker.partitions(topic, "dead_letter")[topic]
    settings = {"group.id": f"slackwater-{pipeline}-dlq", "enable.auto.commit": False, "enable.partition.eof": True}
    settings |= {"isolation.level": "read_committed", "auto.offset.reset": "earliest"}
    consumer: Any = Consumer({**broker.settings(), **settings})
    ended: set[int] = set()
    rows: list[dict[str, Any]] = []
    try:
        consumer.assign([TopicPartition(topic, p, 0) for p in parts])
        end = time.monotonic() + _SECONDS
        while len(ended) < len(parts):
            for message in consumer.consume(CHUNK, timeout=0.5):
                end = time.monotonic() + _SECONDS
                if message.error() is None:
                    rows.append(letter_of(message.key(), message.value(), message.headers() or []))
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
            if time.monotonic() > end:
                raise StartError(
                    f'dead_letter: topic "{topic}" at {connection.bootstrap_servers} gave nothing for {_SECONDS:g} s '
                    f"({broker.errors[-1] if broker.errors else 'no answer'}); check that the brokers run"
                )
            if len(rows) >= CHUNK:
                yield pl.DataFrame(rows, schema=_SCHEMA)
                rows = []
    finally:
        consumer.close()
    yield pl.DataFrame(rows, schema=_SCHEMA)


def letter_of(key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> dict[str, Any]:
    """A message as a letter: what `targets.kafka_rows.LetterRows` wrote. The record's own headers come before ours."""
    ours = max((n for n, (name, _) in enumerate(headers) if name == LETTER_HEADERS["reason"]), default=len(headers))
    known = {name: (found or b"").decode(errors="replace") for name, found in headers[ours:]}
    own = [{"key": k, "value": None if v is None else base64.b64encode(v).decode()} for k, v in headers[:ours]]
    fields = {f.name: f for f in LETTER}
    row = {n: _parsed(known[h], fields[n].type) for n, h in LETTER_HEADERS.items() if h in known}
    writer = known.get("slackwater-pipeline", "").removesuffix("-letters-aside")
    row["pipeline"] = writer.removesuffix("-letters") or None
    row["epoch"] = int(known["slackwater-epoch"]) if "slackwater-epoch" in known else None
    return {**row, "key": key, "value": value, "headers": json.dumps(own) if own else None}


def _parsed(text: str, kind: str) -> Any:
    if kind in ("int", "bigint"):
        return int(text)
    return dt.datetime.fromisoformat(text) if kind == "timestamp" else text
