"""A record per kind of system: all that a config tells of it without reaching it. What a run does with it: `runner.systems`.

kind ─┬─ rows from it     columns that come with each, whether they can be read again, where reading begins, how it is named
      └─ results to it    how the place is named, how results are written, what is delivered
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slackwater.core.offsets import FileOffsets, KafkaOffsets, Offsets, TableOffsets

if TYPE_CHECKING:
    from slackwater.config.source import Source
    from slackwater.config.target import Target


@dataclass(frozen=True)
class StartPosition:
    """Where reading begins that was never read. `default`: unless the config says; None: nobody can say.

    "earliest" or "latest" may be asked for then; `offsets`: or an offset for each partition. `from_first`: there is nothing
    before. `at`, `otherwise`: in words, where nobody can say; `without`: why no offsets may be asked for.
    """

    default: str | None = None
    offsets: bool = False
    from_first: bool = False
    at: str = "where its connector begins"
    otherwise: str = "begins where its connector does"
    without: str = ""


def absolute_path(path: str | None) -> str:
    """A directory as seen from anywhere."""
    is_local = path and "://" not in path and not path.startswith("file:")
    return str(Path(str(path)).absolute()) if is_local else str(path)


def _named(s: Source) -> str:
    return str(s.query)


def _nothing(t: Target) -> str | None:
    return None


def _console(t: Target) -> str:
    return "the console"


@dataclass(frozen=True)
class ConnectorInfo:
    """One kind. `written`: how results are, given whether rows are only ever added, and whether that is part of the commit."""

    # -- rows from it ----------------------------------------------------------------------------------------------
    injected: tuple[str, ...] = ()  # columns that every row has beside its payload
    own_time: bool = False  # and `_event_ts`, the time of the record
    own_clock: bool = False  # where a record brings no time, it is the epoch's clock
    keeps_history: bool = False  # what was read can be read once more
    brings_files: bool = False  # Spark reads files for it, and knows which one a row is of
    is_table: bool = False  # its columns are its own, and not known before the start
    by_path: bool = False  # its query is a path
    keys: tuple[str, ...] = ()  # of a source, beside those that every source has
    offsets: type[Offsets] | None = (
        None  # how far it was read, as a commit keeps it; None: only Spark's checkpoint knows
    )
    begins: StartPosition = StartPosition()  # frozen
    named: Callable[[Source], str] = _named  # in short
    rows: Callable[[Source], str] = _named  # as a plan has it
    most: Callable[[Source], int | None] = lambda s: s.max_messages_per_trigger
    # -- results to it ---------------------------------------------------------------------------------------------
    place: Callable[[Target], str] = _console
    written: Callable[[Target, bool, bool], str] = lambda t, adds, within: "to the console"
    only_adds: str = ""  # which targets of this kind do, in words; else all
    weaker: Callable[[Target], str | None] = _nothing  # why delivery is at least once; None: it is not
    once: str = "exactly once: the target keeps the last epoch with its rows and ignores an older one"


def _kafka_weaker(t: Target) -> str | None:
    if t.delivery == "exactly_once":
        return None
    return 'at least once: a restart may publish an epoch again; set delivery = "exactly_once" for transactions'


def _postgres_written(t: Target, adds: bool, within: bool) -> str:
    return f"{'insert' if adds else 'upsert'} into Postgres table {t.table}{', within the commit' if within else ''}"


_RECORDS = ("schema_", "payload_format")
_STREAM = (*_RECORDS, "max_messages_per_trigger")


def _stream(kind: str) -> dict[str, Any]:
    def text(s: Source) -> str:
        return f"{s.query} in {kind}"

    return {"named": text, "rows": text}


def _table(kind: str, version: str) -> dict[str, Any]:
    def text(s: Source) -> str:
        return f"{kind} table {s.query}"

    return {
        "keeps_history": True,
        "brings_files": True,
        "is_table": True,
        "keys": ("max_files_per_trigger", "starting_offsets", "starting_version", "on_rewrite", "schema_changes"),
        "offsets": TableOffsets,
        "begins": StartPosition(
            "earliest",
            otherwise="begins with what it holds, or with what comes next",
            without=f"a table begins at one of its {version}: starting_version",
        ),
        "named": text,
        "rows": text,
        "most": lambda s: s.max_files_per_trigger,
    }


CONNECTORS: Mapping[str, ConnectorInfo] = {
    "files": ConnectorInfo(
        keeps_history=True,
        brings_files=True,
        by_path=True,
        keys=("format", "max_files_per_trigger", "schema_"),
        offsets=FileOffsets,
        begins=StartPosition(from_first=True, at="at its first file", otherwise="begins with the first of its files"),
        named=lambda s: f"files {s.query}",
        rows=lambda s: f"{s.format} files {s.query}",
        most=lambda s: s.max_files_per_trigger,
        place=lambda t: f'"{absolute_path(t.path)}"',
        written=lambda t, adds, within: f'{t.format or "parquet"} files in "{absolute_path(t.path)}", one per epoch',
    ),
    "console": ConnectorInfo(weaker=lambda t: "at least once: a console cannot take back what it printed"),
    "kafka": ConnectorInfo(
        injected=("_key", "_value", "_headers", "_topic", "_partition", "_offset"),
        own_time=True,
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
        begins=StartPosition("earliest", offsets=True),
        named=lambda s: f"{s.query} in kafka",
        rows=lambda s: f"{s.payload_format or 'json'} records of {s.query} in Kafka",
        most=lambda s: s.max_offsets_per_trigger,
        place=lambda t: f"Kafka topic {t.topic}",
        written=lambda t, adds, within: f"Kafka topic {t.topic}, {(t.delivery or 'at_least_once').replace('_', ' ')}",
        only_adds="a kafka target with these key_columns",
        weaker=_kafka_weaker,
        once="exactly once for read_committed consumers: rows and the last epoch are one Kafka transaction",
    ),
    "postgres": ConnectorInfo(place=lambda t: f"Postgres table {t.table}", written=_postgres_written),
    "rabbitmq": ConnectorInfo(
        injected=("_value", "_routing_key", "_exchange", "_message_id", "_headers", "_received"),
        own_time=True,
        own_clock=True,
        keys=_STREAM,
        **_stream("rabbitmq"),
    ),
    "kinesis": ConnectorInfo(
        injected=("_value",),
        own_time=True,
        keys=(*_STREAM, "starting_offsets"),
        begins=StartPosition("latest", without="Kinesis has no offsets to start at"),
        **_stream("kinesis"),
    ),
    "pubsub": ConnectorInfo(injected=("_value",), own_time=True, keys=_STREAM, **_stream("pubsub")),
    "delta": ConnectorInfo(
        **_table("Delta", "versions"),
        by_path=True,
        place=lambda t: f'Delta table "{absolute_path(t.path)}"',
        written=lambda t, adds, within: (
            f'Delta table "{absolute_path(t.path)}", {"append" if adds else t.mode or "merge"}'
        ),
        only_adds='a delta target with mode = "append"',
    ),
    "iceberg": ConnectorInfo(
        **_table("Iceberg", "snapshots"),
        place=lambda t: f"Iceberg table {t.table}",
        written=lambda t, adds, within: f"Iceberg table {t.table}, {'append' if adds else t.mode or 'merge'}",
        only_adds='an iceberg target with mode = "append"',
    ),
}


def metadata_columns(kind: str | None) -> tuple[str, ...]:
    """The columns that a connection of this kind adds to a row's own, beside `_event_ts`; none for a DataFrame."""
    return () if kind is None else CONNECTORS[kind].injected


def kinds_of_keys(*keys: str) -> dict[str, tuple[str, ...]]:
    """The kinds of connection that keys of a source belong to; without those that it has of any kind."""
    kinds_by_key = {key: tuple(kind for kind, connector in CONNECTORS.items() if key in connector.keys) for key in keys}
    return {key: kinds for key, kinds in kinds_by_key.items() if kinds}
