"""The description of a connector: everything that is known about a kind of system without connecting to it.

kind ─┬─ its classes      the connection in a config, the offsets in a commit, the connector that contacts the system
      ├─ as a source      keys, columns of each row, whether rows can be read again, where reading begins, texts
      └─ as a target      keys, texts about the location and about writing, delivery guarantee

Each system has its description in `connectors/<system>/__init__.py`; `core/connector_table.py` finds it by kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from slackwater.config.message_format import format_value
from slackwater.config.spec_base import Problem, Spec, find_duration_keys
from slackwater.core.connector_table import TABLE
from slackwater.core.offset_base import Offsets

if TYPE_CHECKING:
    from slackwater.config.connection import Connection
    from slackwater.config.window import Window

Dataset = tuple[str, str]  # of OpenLineage: namespace, name


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
    """Protocol: the keys of a source that connector descriptions read. `config.source.Source` implements it."""

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
    @property
    def connector_keys(self) -> Mapping[str, Any]: ...


class TargetKeys(Protocol):
    """Protocol: the keys of a target that connector descriptions read. `config.target.Target` implements it."""

    @property
    def path(self) -> str | None: ...
    @property
    def table(self) -> str | None: ...
    @property
    def topic(self) -> str | None: ...
    @property
    def format(self) -> str | None: ...
    @property
    def mode(self) -> str | None: ...
    @property
    def delivery(self) -> str | None: ...
    @property
    def key_columns(self) -> tuple[str, ...] | None: ...
    @property
    def connector_keys(self) -> Mapping[str, Any]: ...


def absolute_path(path: str | None) -> str:
    """Return a local directory as an absolute path, and a URL unchanged."""
    is_local = path and "://" not in path and not path.startswith("file:")
    return str(Path(str(path)).absolute()) if is_local else str(path)


def _query_text(s: SourceKeys) -> str:
    return str(s.query)


def _exactly_once(t: TargetKeys) -> str | None:
    return None


def _console(t: TargetKeys) -> str:
    return "the console"


def _no_datasets(connection: Any, query: str) -> Iterable[Dataset]:
    return ()


def _no_dataset(connection: Any, target: TargetKeys) -> Dataset | None:
    return None


@dataclass(frozen=True)
class ConnectorDescription:
    """The description of one kind of connection.

    Args:
        kind: The value of `kind` in [connections.<name>].
        connection: The spec of the connection, with its keys.
        connector: The import path of the `connectors.connector.Connector`, as in "journal.connector:JournalConnector".
            It is imported when a command contacts the system.
        spark_packages: What Spark needs to read this system: Maven coordinates (group:module:version), paths of jars, or a
            name that `slackwater prepare` knows ("kafka").

    `write_text(target, adds, within)` describes how results are written. `adds`: the target is append-only; `within`:
    writing is part of the commit.
    """

    kind: str
    connection: type[Connection]
    connector: str
    spark_packages: tuple[str, ...] = ()
    # -- as a source -----------------------------------------------------------------------------------------------
    metadata_columns: tuple[str, ...] = ()  # columns that the connector adds to each row
    has_timestamp: bool = False  # each row has `_event_ts`, the time of the record
    uses_ingest_time: bool = False  # if a record has no time, `_event_ts` is the epoch's clock
    keeps_history: bool = False  # rows can be read again
    exposes_files: bool = False  # Spark reads files and knows the file of each row
    is_table: bool = False  # a table has its own schema, which is unknown before the start
    query_is_path: bool = False  # the query is a path
    keys: tuple[str, ...] = ()  # which of Slackwater's keys a source has, in addition to those that every source has
    source_keys: type[ConnectorKeys] | None = None  # keys of a source that no other connector has
    offsets: type[Offsets] | None = None  # class of its offsets in a commit; None if only Spark's checkpoint has them
    start: StartPosition = StartPosition()  # frozen
    short_name: Callable[[SourceKeys], str] = _query_text  # short description of a source
    plan_text: Callable[[SourceKeys], str] = _query_text  # description of a source in a plan
    batch_limit: Callable[[SourceKeys], int | None] = lambda s: s.max_messages_per_trigger
    source_datasets: Callable[[Any, str], Iterable[Dataset]] = (
        _no_datasets  # OpenLineage's names, by connection and query
    )
    # -- as a target -----------------------------------------------------------------------------------------------
    target_keys: tuple[str, ...] = ()  # which of Slackwater's keys a target has
    required_target_key: tuple[str, str] | None = None  # the key that a target must have, and what to write
    own_target_keys: type[ConnectorKeys] | None = None  # keys of a target that no other connector has
    upserts: Callable[[TargetKeys, Window], bool] = lambda t, window: False  # rows of a window replace earlier ones
    returns_windows: bool = False  # whether `dlq replay` can read windows back: a target is a `ReadableTarget`
    location_text: Callable[[TargetKeys], str] = _console
    write_text: Callable[[TargetKeys, bool, bool], str] = lambda t, adds, within: "to the console"
    append_only_text: str = ""  # describes which targets of this kind are append-only; "" for all
    at_least_once_reason: Callable[[TargetKeys], str | None] = _exactly_once  # None if delivery is exactly once
    exactly_once_text: str = "exactly once: the target keeps the last epoch with its rows and ignores an older one"
    target_dataset: Callable[[Any, TargetKeys], Dataset | None] = _no_dataset  # OpenLineage's name, by connection


CONNECTORS: Mapping[str, ConnectorDescription] = TABLE  # by kind


def metadata_columns(kind: str | None) -> tuple[str, ...]:
    """Return the columns that a connector adds to rows, other than `_event_ts`; empty for a DataFrame (kind None)."""
    return () if kind is None else CONNECTORS[kind].metadata_columns


def kinds_with_source_key(key: str) -> tuple[str, ...]:
    """Return the kinds of connection whose sources support a key. Kinds that are not loaded are omitted."""
    return tuple(kind for kind, connector in CONNECTORS.items() if key in connector.keys)


def kinds_with_target_key(key: str) -> tuple[str, ...]:
    """Return the kinds of connection whose targets support a key. Kinds that are not loaded are omitted."""
    return tuple(kind for kind, connector in CONNECTORS.items() if key in connector.target_keys)


K = TypeVar("K", bound="ConnectorKeys")


class ConnectorKeys(Spec):
    """The keys that a connector adds to a source or a target: see `config.key.declare_key`."""

    @classmethod
    def spellings(cls) -> set[str]:
        """Return all spellings of the keys. A duration has two: with its unit (`pause`) and in ms (`pause_ms`)."""
        return {*cls.KEYS, *find_duration_keys(cls)}

    @classmethod
    def from_spec(cls: type[K], spec: Any) -> K:
        """Return the keys of a checked source or target."""
        return cls(**spec.connector_keys)


def _keys_class(kind: str, of_target: bool) -> type[ConnectorKeys] | None:
    keys: type[ConnectorKeys] | None = TABLE[kind].own_target_keys if of_target else TABLE[kind].source_keys
    return keys


def is_connector_key(key: str, of_target: bool) -> bool:
    """Return whether any installed connector adds this key to sources or targets. This reads the entry points."""
    return bool(_kinds_with(key, of_target))


def _kinds_with(key: str, of_target: bool) -> list[str]:
    kinds = [description.kind for description in TABLE.load_installed()]
    return [kind for kind in kinds if (keys := _keys_class(kind, of_target)) is not None and key in keys.spellings()]


def check_connector_keys(kind: str, written: Mapping[str, Any], of_target: bool) -> Iterator[Problem]:
    """Yield the problems with connector keys on a connection of this kind. `written`: their values as in the config."""
    keys = _keys_class(kind, of_target)
    supported = {key: value for key, value in written.items() if keys is not None and key in keys.spellings()}
    for key in written:
        if key not in supported:
            kinds = " or ".join(format_value(k) for k in _kinds_with(key, of_target))
            yield (
                key,
                f"applies only to connections of kind {kinds}, but this one is {format_value(kind)}; remove it",
            )
    if keys is not None:
        problems: list[str] = []
        keys.read(supported, "", "", problems)
        for line in problems:
            key, _, problem = line.removeprefix(": ").partition(": ")
            yield key, problem
