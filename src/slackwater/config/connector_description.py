"""Description of a connector: the static properties of one kind of system, available without connecting to it.

kind ─┬─ classes      the connection in a config, the offsets in a commit, the connector that contacts the system
      ├─ source       keys, added columns, whether rows can be read again, start position, descriptions
      └─ target       keys, descriptions of the location and of writing, delivery guarantee

The description of a system is in `connectors/<system>/__init__.py`. `core/connector_registry.py` finds it by kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from slackwater.config.error_text import format_value
from slackwater.config.spec_base import Problem, Spec, find_duration_keys
from slackwater.core.connector_registry import TABLE
from slackwater.core.offset_base import Offsets

if TYPE_CHECKING:
    from slackwater.config.connection import Connection
    from slackwater.config.window import Window

Dataset = tuple[str, str]  # namespace and name of a dataset in OpenLineage


@dataclass(frozen=True)
class StartPosition:
    """Position at which a source begins if the state has no offsets for it.

    Args:
        default: The default of `starting_offsets`; None if the connector decides.
        offsets: Whether `starting_offsets` may be offsets by partition, in addition to "earliest" and "latest".
        from_first: Whether the source always begins with its first row.
        position_text: A description of the position, if `default` is None.
        default_text: The position as a predicate, such as "begins with the first of its files".
        no_offsets_reason: Why offsets by partition are not allowed.
    """

    default: str | None = None
    offsets: bool = False
    from_first: bool = False
    position_text: str = "where its connector begins"
    default_text: str = "begins where its connector does"
    no_offsets_reason: str = ""


class SourceKeys(Protocol):
    """Protocol for the source keys that connector descriptions read. `config.source.Source` implements it."""

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
    """Protocol for the target keys that connector descriptions read. `config.target.Target` implements it."""

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
    """Return the absolute path of a local directory. A URL is returned unchanged."""
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
    """Description of one kind of system.

    Args:
        kind: The value of `kind` in [connections.<name>].
        connection: The spec of the connection.
        connector: The import path of the `connectors.connector.Connector`, as in "journal.connector:JournalConnector".
            It is imported when a command contacts the system.
        spark_packages: The packages that Spark needs: Maven coordinates (group:module:version), jar paths, or a name
            that `slackwater prepare` defines ("kafka").
        write_text: A function that describes how results are written. Its arguments are the target, whether the target
            is append-only, and whether writing is part of the commit.
    """

    kind: str
    connection: type[Connection]
    connector: str
    spark_packages: tuple[str, ...] = ()
    # -- source ----------------------------------------------------------------------------------------------------
    metadata_columns: tuple[str, ...] = ()  # columns that the connector adds to each row
    has_timestamp: bool = False  # each row has the column `_event_ts`, the timestamp of its record
    uses_ingest_time: bool = False  # if a record has no timestamp, `_event_ts` is the time of the epoch
    keeps_history: bool = False  # rows can be read again
    exposes_files: bool = False  # Spark reads files, and each row has the name of its file
    is_table: bool = False  # the source is a table, whose schema is unknown before startup
    query_is_path: bool = False  # `query` is a path
    keys: tuple[str, ...] = ()  # keys of `Source` that only some connectors support
    source_keys: type[ConnectorKeys] | None = None  # spec of the connector's own source keys
    offsets: type[Offsets] | None = (
        None  # class of offsets in a commit; None if only Spark's checkpoint has the offsets
    )
    start: StartPosition = StartPosition()
    short_name: Callable[[SourceKeys], str] = _query_text  # short description of a source, for messages
    plan_text: Callable[[SourceKeys], str] = _query_text  # description of a source in a plan
    batch_limit: Callable[[SourceKeys], int | None] = lambda s: s.max_messages_per_trigger
    source_datasets: Callable[[Any, str], Iterable[Dataset]] = _no_datasets  # from a connection and a query
    # -- target ----------------------------------------------------------------------------------------------------
    target_keys: tuple[str, ...] = ()  # keys of `Target` that only some connectors support
    required_target_key: tuple[str, str] | None = None  # a required key, and the advice if it is missing
    own_target_keys: type[ConnectorKeys] | None = None  # spec of the connector's own target keys
    upserts: Callable[[TargetKeys, Window], bool] = lambda t, window: False  # whether results replace earlier ones
    returns_windows: bool = False  # whether the target is a `ReadableTarget`, as `dlq replay` needs
    location_text: Callable[[TargetKeys], str] = _console
    write_text: Callable[[TargetKeys, bool, bool], str] = lambda t, adds, within: "to the console"
    append_only_text: str = ""  # describes the append-only targets of this kind; "" if all are
    at_least_once_reason: Callable[[TargetKeys], str | None] = _exactly_once  # None if delivery is exactly once
    exactly_once_text: str = "exactly once: the target keeps the last epoch with its rows and ignores an older one"
    target_dataset: Callable[[Any, TargetKeys], Dataset | None] = _no_dataset  # from a connection and a target


CONNECTORS: Mapping[str, ConnectorDescription] = TABLE  # by kind


def metadata_columns(kind: str | None) -> tuple[str, ...]:
    """Return the columns other than `_event_ts` that a connector adds to rows. `kind`: None for a DataFrame source."""
    return () if kind is None else CONNECTORS[kind].metadata_columns


def kinds_with_source_key(key: str) -> tuple[str, ...]:
    """Return the kinds of the loaded connectors whose sources support a key."""
    return tuple(kind for kind, connector in CONNECTORS.items() if key in connector.keys)


def kinds_with_target_key(key: str) -> tuple[str, ...]:
    """Return the kinds of the loaded connectors whose targets support a key."""
    return tuple(kind for kind, connector in CONNECTORS.items() if key in connector.target_keys)


K = TypeVar("K", bound="ConnectorKeys")


class ConnectorKeys(Spec):
    """Base class for the keys that a connector adds to sources or targets, declared with `config.config_key.declare_key`."""

    @classmethod
    def spellings(cls) -> set[str]:
        """Return all spellings of the keys. A duration has two: `pause` with a unit, and `pause_ms` in milliseconds."""
        return {*cls.KEYS, *find_duration_keys(cls)}

    @classmethod
    def from_spec(cls: type[K], spec: Any) -> K:
        """Return the connector keys of a valid source or target."""
        return cls(**spec.connector_keys)


def _keys_class(kind: str, of_target: bool) -> type[ConnectorKeys] | None:
    keys: type[ConnectorKeys] | None = TABLE[kind].own_target_keys if of_target else TABLE[kind].source_keys
    return keys


def is_connector_key(key: str, of_target: bool) -> bool:
    """Return whether an installed connector adds this key to sources (or targets), according to the entry points."""
    return bool(_kinds_with(key, of_target))


def _kinds_with(key: str, of_target: bool) -> list[str]:
    kinds = [description.kind for description in TABLE.load_installed()]
    return [kind for kind in kinds if (keys := _keys_class(kind, of_target)) is not None and key in keys.spellings()]


def check_connector_keys(kind: str, written: Mapping[str, Any], of_target: bool) -> Iterator[Problem]:
    """Yield the problems with the connector keys of a source or target.

    Args:
        kind: The kind of the connection.
        written: The keys and their values in the config.
        of_target: Whether the keys are those of a target.
    """
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
