"""Static metadata of each kind of connection: everything that is known without connecting.

The package `connectors.registry` contains the code that connects.

kind ─┬─ as a source      columns of each row, whether rows can be read again, where reading begins, descriptions
      └─ as a target      descriptions of the location and of writing, delivery guarantee
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from slackwater.core.offsets import FileOffsets, KafkaOffsets, Offsets, TableOffsets

if TYPE_CHECKING:
    from slackwater.config.target import Target


@dataclass(frozen=True)
class StartPosition:
    """The position at which a source begins if it has never been read.

    `default`: the default position; None if the connector decides. `offsets`: offsets by partition are allowed, in
    addition to "earliest" and "latest". `from_first`: the source always begins with its first row. `position_text`,
    `default_text`: descriptions for sources without a default. `no_offsets_reason`: why offsets are not allowed.
    """

    default: str | None = None
    offsets: bool = False
    from_first: bool = False
    position_text: str = "where its connector begins"
    default_text: str = "begins where its connector does"
    no_offsets_reason: str = ""


class SourceKeys(Protocol):
    """The keys of a source that descriptions and limits use. `config.source.Source` has them."""

    @property
    def query(self) -> str | None: ...
    @property
    def format(self) -> str | None: ...
    @property
    def payload_format(self) -> str | None: ...
    @property
    def max_files_per_trigger(self) -> int | None: ...
    @property
    def max_messages_per_trigger(self) -> int | None: ...
    @property
    def max_offsets_per_trigger(self) -> int | None: ...


def absolute_path(path: str | None) -> str:
    """Return a local directory as an absolute path, and a URL unchanged."""
    is_local = path and "://" not in path and not path.startswith("file:")
    return str(Path(str(path)).absolute()) if is_local else str(path)


def _query_text(s: SourceKeys) -> str:
    return str(s.query)


def _exactly_once(t: Target) -> str | None:
    return None


def _console(t: Target) -> str:
    return "the console"


@dataclass(frozen=True)
class ConnectorMetadata:
    """Metadata of one kind of connection.

    `write_text(target, adds, within)` describes how results are written. `adds`: the target is append-only; `within`:
    writing is part of the commit.
    """

    # -- as a source -----------------------------------------------------------------------------------------------
    metadata_columns: tuple[str, ...] = ()  # columns that the connector adds to each row
    has_timestamp: bool = False  # each row has `_event_ts`, the time of the record
    uses_ingest_time: bool = False  # if a record has no time, `_event_ts` is the epoch's clock
    keeps_history: bool = False  # rows can be read again
    exposes_files: bool = False  # Spark reads files and knows the file of each row
    is_table: bool = False  # a table has its own schema, which is unknown before the start
    query_is_path: bool = False  # the query is a path
    keys: tuple[str, ...] = ()  # keys of a source in addition to those that every source has
    offsets: type[Offsets] | None = None  # class of its offsets in a commit; None if only Spark's checkpoint has them
    start: StartPosition = StartPosition()  # frozen
    short_name: Callable[[SourceKeys], str] = _query_text  # short description of a source
    plan_text: Callable[[SourceKeys], str] = _query_text  # description of a source in a plan
    batch_limit: Callable[[SourceKeys], int | None] = lambda s: s.max_messages_per_trigger
    # -- as a target -----------------------------------------------------------------------------------------------
    location_text: Callable[[Target], str] = _console
    write_text: Callable[[Target, bool, bool], str] = lambda t, adds, within: "to the console"
    append_only_text: str = ""  # describes which targets of this kind are append-only; "" for all
    at_least_once_reason: Callable[[Target], str | None] = (
        _exactly_once  # why delivery is at least once; None if it is exactly once
    )
    exactly_once_text: str = "exactly once: the target keeps the last epoch with its rows and ignores an older one"


def _kafka_at_least_once(t: Target) -> str | None:
    if t.delivery == "exactly_once":
        return None
    return 'at least once: a restart may publish an epoch again; set delivery = "exactly_once" for transactions'


def _postgres_write_text(t: Target, adds: bool, within: bool) -> str:
    return f"{'insert' if adds else 'upsert'} into Postgres table {t.table}{', within the commit' if within else ''}"


_RECORDS = ("schema_", "payload_format")
_STREAM = (*_RECORDS, "max_messages_per_trigger")


def _stream(kind: str) -> dict[str, Any]:
    def text(s: SourceKeys) -> str:
        return f"{s.query} in {kind}"

    return {"short_name": text, "plan_text": text}


def _table(kind: str, version: str) -> dict[str, Any]:
    def text(s: SourceKeys) -> str:
        return f"{kind} table {s.query}"

    return {
        "keeps_history": True,
        "exposes_files": True,
        "is_table": True,
        "keys": ("max_files_per_trigger", "starting_offsets", "starting_version", "on_rewrite", "schema_changes"),
        "offsets": TableOffsets,
        "start": StartPosition(
            "earliest",
            default_text="begins with what it holds, or with what comes next",
            no_offsets_reason=f"{kind} tables start at one of their {version}; use starting_version",
        ),
        "short_name": text,
        "plan_text": text,
        "batch_limit": lambda s: s.max_files_per_trigger,
    }


CONNECTORS: Mapping[str, ConnectorMetadata] = {
    "files": ConnectorMetadata(
        keeps_history=True,
        exposes_files=True,
        query_is_path=True,
        keys=("format", "max_files_per_trigger", "schema_"),
        offsets=FileOffsets,
        start=StartPosition(
            from_first=True, position_text="at its first file", default_text="begins with the first of its files"
        ),
        short_name=lambda s: f"files {s.query}",
        plan_text=lambda s: f"{s.format} files {s.query}",
        batch_limit=lambda s: s.max_files_per_trigger,
        location_text=lambda t: f'"{absolute_path(t.path)}"',
        write_text=lambda t, adds, within: f'{t.format or "parquet"} files in "{absolute_path(t.path)}", one per epoch',
    ),
    "console": ConnectorMetadata(
        at_least_once_reason=lambda t: "at least once: a console cannot take back what it printed"
    ),
    "kafka": ConnectorMetadata(
        metadata_columns=("_key", "_value", "_headers", "_topic", "_partition", "_offset"),
        has_timestamp=True,
        keeps_history=True,
        keys=(
            *_RECORDS,
            "avro_schema_file",
            "protobuf_schema_file",
            "protobuf_message",
            "starting_offsets",
            "max_offsets_per_trigger",
            "on_data_loss",
            "commit_group",
        ),
        offsets=KafkaOffsets,
        start=StartPosition("earliest", offsets=True),
        short_name=lambda s: f"{s.query} in kafka",
        plan_text=lambda s: f"{s.payload_format or 'json'} records of {s.query} in Kafka",
        batch_limit=lambda s: s.max_offsets_per_trigger,
        location_text=lambda t: f"Kafka topic {t.topic}",
        write_text=lambda t, adds, within: (
            f"Kafka topic {t.topic}, {(t.delivery or 'at_least_once').replace('_', ' ')}"
        ),
        append_only_text="a kafka target with these key_columns",
        at_least_once_reason=_kafka_at_least_once,
        exactly_once_text="exactly once for read_committed consumers: rows and the last epoch are one Kafka transaction",
    ),
    "postgres": ConnectorMetadata(location_text=lambda t: f"Postgres table {t.table}", write_text=_postgres_write_text),
    "rabbitmq": ConnectorMetadata(
        metadata_columns=("_value", "_routing_key", "_exchange", "_message_id", "_headers", "_received"),
        has_timestamp=True,
        uses_ingest_time=True,
        keys=_STREAM,
        **_stream("rabbitmq"),
    ),
    "kinesis": ConnectorMetadata(
        metadata_columns=("_value",),
        has_timestamp=True,
        keys=(*_STREAM, "starting_offsets"),
        start=StartPosition("latest", no_offsets_reason="Kinesis has no offsets to start from"),
        **_stream("kinesis"),
    ),
    "pubsub": ConnectorMetadata(metadata_columns=("_value",), has_timestamp=True, keys=_STREAM, **_stream("pubsub")),
    "delta": ConnectorMetadata(
        **_table("Delta", "versions"),
        query_is_path=True,
        location_text=lambda t: f'Delta table "{absolute_path(t.path)}"',
        write_text=lambda t, adds, within: (
            f'Delta table "{absolute_path(t.path)}", {"append" if adds else t.mode or "merge"}'
        ),
        append_only_text='a delta target with mode = "append"',
    ),
    "iceberg": ConnectorMetadata(
        **_table("Iceberg", "snapshots"),
        location_text=lambda t: f"Iceberg table {t.table}",
        write_text=lambda t, adds, within: f"Iceberg table {t.table}, {'append' if adds else t.mode or 'merge'}",
        append_only_text='an iceberg target with mode = "append"',
    ),
}


def metadata_columns(kind: str | None) -> tuple[str, ...]:
    """Return the columns that a connector adds to rows, other than `_event_ts`; empty for a DataFrame (kind None)."""
    return () if kind is None else CONNECTORS[kind].metadata_columns


def kinds_supporting_keys(*keys: str) -> dict[str, tuple[str, ...]]:
    """Return the kinds of connection that support each of these keys of a source, without keys that fit every kind."""
    kinds_by_key = {key: tuple(kind for kind, connector in CONNECTORS.items() if key in connector.keys) for key in keys}
    return {key: kinds for key, kinds in kinds_by_key.items() if kinds}
