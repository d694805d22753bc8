"""A whole pipeline: sources, transform, target, state; and the checks that need more than one of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from pydantic import Field

from slackwater.config.source import (
    Connection,
    ConsoleConnection,
    FilesConnection,
    Lookup,
    Source,
    all_connections,
    declared_columns,
)
from slackwater.config.spec import (
    Interpolated,
    Kind,
    MismatchError,
    Problem,
    Spec,
    Values,
    choice,
    duration,
    nearest,
    show,
    text,
)
from slackwater.config.target import StateStore, Target
from slackwater.config.window import Window
from slackwater.errors import ConfigError


def _spec(cls: type[Spec]) -> Kind:
    """The kind of a nested table."""

    def build(value: Any) -> Any:
        problems: list[str] = []
        if not isinstance(value, cls | Mapping):
            raise MismatchError("a table")
        built = cls.build(value, "", "", problems)
        if problems:
            raise ConfigError(problems)
        return built

    return build


def _sources(value: Any) -> tuple[Source, ...]:
    if not isinstance(value, list | tuple):
        raise MismatchError("a list of sources ([[sources]])")
    problems: list[str] = []
    built = [Source.build(v, "", f"[{i}]", problems) for i, v in enumerate(value)]
    if problems:
        raise ConfigError(problems)
    return tuple(s for s in built if s is not None)


def _lookups(value: Any) -> dict[str, Lookup]:
    if not isinstance(value, Mapping):
        raise MismatchError("a table of lookups ([transform.lookups.<name>])")
    problems: list[str] = []
    built = {name: Lookup.build(v, "", name, problems) for name, v in value.items()}
    for name in value:
        if name == "source":
            problems.append(": source: the name is taken by the rows themselves; choose another name")
        elif not re.fullmatch(r"[A-Za-z_]\w*", name):
            problems.append(f': {name}: found {show(name)}, expected a name of letters, digits and "_"')
    if problems:
        raise ConfigError(problems)
    return {name: lookup for name, lookup in built.items() if lookup is not None}


class Transform(Spec):
    """The SQL pre-stage (row-wise, over the view `source`), what to do with bad rows, and the window."""

    sql: str | None = None
    on_error: str = "fail"
    window: Window
    lookups: Mapping[str, Lookup] = Field(default_factory=dict)

    KINDS: ClassVar[Mapping[str, Kind]] = {
        "sql": text,
        "on_error": choice("fail", "drop"),
        "window": _spec(Window),
        "lookups": _lookups,
    }
    LATER: ClassVar[Mapping[str, str]] = {"join": "stream-stream joins come later; describe a [transform.window]"}
    REQUIRED: ClassVar[tuple[str, ...]] = ("window",)

    @classmethod
    def wanted(cls, key: str) -> str:
        return "describe the window in [transform.window]"

    @classmethod
    def later_value(cls, key: str, value: Any) -> str | None:
        if key == "on_error" and value == "dlq" and not isinstance(value, Interpolated):
            return '"dlq" is not available yet; use "fail" or "drop"'
        return None


class Pipeline(Spec):
    """A pipeline as described, checked and frozen. See `slackwater.run_streaming_pipeline` for running one."""

    name: str
    connections: Mapping[str, Connection] = Field(default_factory=dict)
    sources: tuple[Source, ...]
    transform: Transform
    target: Target
    state_store: StateStore | None = None
    trigger_interval_ms: int = 0
    idle_pause_ms: int = 500

    KINDS: ClassVar[Mapping[str, Kind]] = {
        "name": text,
        "connections": all_connections,
        "sources": _sources,
        "transform": _spec(Transform),
        "target": _spec(Target),
        "state_store": _spec(StateStore),
        "trigger_interval_ms": duration(0),
        "idle_pause_ms": duration(1),
    }
    LATER: ClassVar[Mapping[str, str]] = {"stages": "", "dead_letter": "", "join": ""}
    REQUIRED: ClassVar[tuple[str, ...]] = ("name", "sources", "transform", "target")

    @classmethod
    def wanted(cls, key: str) -> str:
        return {
            "name": "give the pipeline a name",
            "sources": "describe at least one in [[sources]]",
            "transform": "describe the window in [transform.window]",
            "target": "say where results go in [target]",
        }[key]

    @classmethod
    def read(cls, data: Values, file: str, at: str, problems: list[str]) -> Values:
        values = super().read(data, file, at, problems)
        if "transform" not in values and "state_store" not in data and _raw_kind(data) == "session":
            problems.append(f"{file}: state_store: {_NO_STORE}")
        return values

    @classmethod
    def check(cls, values: Values, wrong: set[str]) -> Iterator[Problem]:
        name = values.get("name")
        if name is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            yield (
                "name",
                f'found {show(name)}, expected letters, digits, ".", "_" and "-" (it names a directory)',
            )
        known: Mapping[str, Connection] = values.get("connections", {})
        if "connections" not in wrong:
            yield from _check_connections(values, known)
        sources: tuple[Source, ...] = values.get("sources", ())
        if not sources and "sources" in values:
            yield "sources", "empty; describe at least one in [[sources]]"
        for source, times in Counter(s.name for s in sources).items():
            if times > 1:
                yield "sources", f'{times} sources are called "{source}"; give each its own name'
        transform: Transform | None = values.get("transform")
        if transform is not None:
            yield from _check_event_time(sources, transform.window)
            yield from _check_state(values.get("state_store"), transform.window, "state_store" in wrong)


_NO_STORE = 'missing; a session window needs it: [state_store] with kind = "files" and path = "state"'


def _raw_kind(data: Values) -> object:
    """The window's kind in a config whose transform has other mistakes."""
    transform = data.get("transform")
    window = transform.get("window") if isinstance(transform, Mapping) else None
    return window.get("kind") if isinstance(window, Mapping) else None


def resolve(reference: object, known: Mapping[str, Connection]) -> Connection | None:
    """The connection that a name or an object stands for; None for an unknown name."""
    if isinstance(reference, FilesConnection | ConsoleConnection):
        return reference
    return known.get(str(reference))


def _check_connections(values: Values, known: Mapping[str, Connection]) -> Iterator[Problem]:
    target: Target | None = values.get("target")
    users: list[tuple[str, object]] = [
        (f"sources[{i}].connection", s.connection)
        for i, s in enumerate(values.get("sources", ()))
        if s.dataframe is None
    ]
    transform: Transform | None = values.get("transform")
    if transform is not None:
        users += [(f"transform.lookups.{n}.connection", lookup.connection) for n, lookup in transform.lookups.items()]
    for key, reference in users:
        found = resolve(reference, known)
        if found is None:
            yield key, f"found {show(reference)}, which is no connection{nearest(str(reference), known)}"
        elif isinstance(found, ConsoleConnection):
            yield key, f'{show(reference)} is a console; rows are read from a connection of kind "files"'
    if target is not None:
        found = resolve(target.connection, known)
        if found is None:
            yield (
                "target.connection",
                f"found {show(target.connection)}, which is no connection{nearest(str(target.connection), known)}",
            )
        elif isinstance(found, FilesConnection) and target.path is None:
            yield "target.path", 'missing; a files target needs a directory, as in "out/sessions"'
        elif isinstance(found, ConsoleConnection) and target.path is not None:
            yield "target.path", "belongs to a files target, this one is a console; remove it"


def _check_event_time(sources: tuple[Source, ...], window: Window) -> Iterator[Problem]:
    injected = window.time_mode == "processing" or window.event_time_column != "_event_ts"
    for i, source in enumerate(sources):
        columns = declared_columns(source.schema_) if source.schema_ else []
        if injected and "_event_ts" in columns:
            yield (
                f"sources[{i}].schema",
                (
                    'declares "_event_ts", which is injected; rename the column, or use it with event_time_column = "_event_ts"'
                ),
            )
        if not injected and source.dataframe is None and "_event_ts" not in columns:
            yield (
                "transform.window.event_time_column",
                (
                    f'missing; source "{source.name}" reads files, which have no event time of their own: name a column or an expression'
                ),
            )
    if window.time_mode == "processing" and window.event_time_column != "_event_ts":
        yield (
            "transform.window.event_time_column",
            ('given with time_mode = "processing", where the clock is the event time; remove one of them'),
        )


def _check_state(store: StateStore | None, window: Window, wrong: bool) -> Iterator[Problem]:
    if wrong:
        return
    if window.kind == "session" and store is None:
        yield (
            "state_store",
            'missing; a session window needs it: [state_store] with kind = "files" and path = "state"',
        )
    if window.crash_recovery == "persisted" and (store is None or store.kind == "in_memory"):
        if window.kind == "session" and store is None:
            return
        yield (
            "transform.window.crash_recovery",
            '"persisted" needs a durable [state_store]; use kind = "files"',
        )


def check_run_flags(available_now: bool, flush: bool) -> None:
    """Raise ConfigError for flags that do not go together."""
    if flush and not available_now:
        raise ConfigError(["--flush: needs --available-now: only bounded input has an end to flush at; add it"])
