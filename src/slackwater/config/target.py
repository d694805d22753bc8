"""Where results go, and where state is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from slackwater.config.source import ConsoleConnection, FilesConnection, connection_or_name
from slackwater.config.spec import Interpolated, Kind, Problem, Spec, Values, choice, duration, text, whole


class Target(Spec):
    """Files in a directory (`path`, `format`), or the console."""

    connection: str | FilesConnection | ConsoleConnection
    path: str | None = None
    format: str = "parquet"

    KINDS: ClassVar[Mapping[str, Kind]] = {
        "connection": connection_or_name,
        "path": text,
        "format": choice("parquet", "json", "csv"),
    }
    LATER: ClassVar[Mapping[str, str]] = {
        "table": 'targets with tables come later; write files with path = "…"',
        "topic": 'write files with path = "…"',
        "delivery": "",
    }
    REQUIRED: ClassVar[tuple[str, ...]] = ("connection",)

    @classmethod
    def wanted(cls, key: str) -> str:
        return "name one of the [connections]"


class StateStore(Spec):
    """Where state lives: `files` (a directory) or `in_memory` (gone with the process).

    `shards`: how many parts the state is spread over, by default one per core; may be changed between runs.
    """

    kind: str
    path: str | None = None
    checkpoint_interval_ms: int = 60_000
    shards: int | None = None

    KINDS: ClassVar[Mapping[str, Kind]] = {
        "kind": choice("files", "in_memory"),
        "path": text,
        "checkpoint_interval_ms": duration(1),
        "shards": whole(1, 4096),
    }
    LATER: ClassVar[Mapping[str, str]] = {
        "url": "it belongs to the postgres store",
        "schema": "it belongs to the postgres store",
    }
    REQUIRED: ClassVar[tuple[str, ...]] = ("kind",)

    @classmethod
    def wanted(cls, key: str) -> str:
        return 'expected "files" or "in_memory"'

    @classmethod
    def later_value(cls, key: str, value: Any) -> str | None:
        if key == "kind" and value == "postgres" and not isinstance(value, Interpolated):
            return '"postgres" is not available yet; use "files"'
        return None

    @classmethod
    def check(cls, values: Values, wrong: set[str]) -> Iterator[Problem]:
        kind = values.get("kind")
        if kind == "files" and "path" not in values and "path" not in wrong:
            yield "path", 'missing; a files store needs a directory, as in "state"'
        if kind == "in_memory" and "path" in values:
            yield "path", 'belongs to kind = "files"; an in_memory store has no directory, remove it'
