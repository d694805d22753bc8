"""Specs of targets and of the state store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from slackwater.config import connector_keys
from slackwater.config.connection import Connection, connection_or_name
from slackwater.config.connector_description import CONNECTORS, kinds_with_target_key
from slackwater.config.key import Milliseconds, Settings, WithUnit, declare_key, declare_with_unit
from slackwater.config.message_format import format_value, value_mismatch
from slackwater.config.spec_base import Problem, Spec, Values
from slackwater.config.step_base import StepBase
from slackwater.config.value_parsers import (
    ValueParser,
    choice_parser,
    duration_parser,
    integer_parser,
    parse_flag,
    parse_text,
    parse_texts,
    settings_parser,
)
from slackwater.config.window import Window
from slackwater.secrets import remember_settings, remember_url

OBJECTS = ("s3", "gs", "abfss")  # URL schemes of object stores


class Target(Spec):
    """Where rows go: files or a Delta table (`path`), a Postgres or Iceberg `table`, a Kafka `topic`, or the console.

    - `from_`: the stage whose results the target receives; the last one by default.
    - `name`: the name of the target; by default, the name of that stage.
    """

    name: str | None = None
    from_: str | None = Field(default=None, alias="from")
    connection: str | Connection
    path: str | None = None
    format: str | None = None
    table: str | None = None
    topic: str | None = None
    mode: str | None = None
    delivery: str | None = None
    value_format: str | None = None
    key_columns: tuple[str, ...] | None = None
    create: bool | None = None
    partitions: int | None = None
    connector_keys: Mapping[str, Any] = Field(default_factory=dict)  # see `config.connector_keys`

    if TYPE_CHECKING:  # accepted types of arguments; the attributes hold the parsed values

        def __init__(
            self,
            *,
            name: str | None = None,
            from_: str | None = None,
            connection: str | Connection,
            path: str | None = None,
            format: str | None = None,
            table: str | None = None,
            topic: str | None = None,
            mode: str | None = None,
            delivery: str | None = None,
            value_format: str | None = None,
            key_columns: Sequence[str] | None = None,
            create: bool | None = None,
            partitions: int | None = None,
        ) -> None: ...

    PARSERS: ClassVar[Mapping[str, ValueParser]] = {
        "name": parse_text,
        "from": parse_text,
        "connection": connection_or_name,
        "path": parse_text,
        "format": choice_parser("parquet", "json", "csv"),
        "table": parse_text,
        "topic": parse_text,
        "mode": choice_parser("merge", "append"),
        "delivery": choice_parser("at_least_once", "exactly_once"),
        "value_format": choice_parser("json", "avro"),
        "key_columns": parse_texts,
        "create": parse_flag,
        "partitions": integer_parser(1, 100_000),
    }
    ATTRIBUTES: ClassVar[Mapping[str, str]] = {"from": "from_"}
    KEYS_BY_KIND: ClassVar[tuple[str, ...]] = (  # keys that only some kinds of connection support
        *(
            "path",
            "format",
            "table",
            "topic",
            "mode",
            "delivery",
            "value_format",
            "key_columns",
            "create",
            "partitions",
        ),
    )
    REQUIRED: ClassVar[tuple[str, ...]] = ("connection",)

    def derived(self) -> Values:
        return {"format": "parquet"} if self.format == "parquet" else {}

    @classmethod
    def missing_hint(cls, key: str) -> str:
        return "name one of the [connections]"

    def upserts(self, kind: str, step: StepBase | None) -> bool:
        """Return whether a target on a connection of this kind replaces the rows of a window.

        Other targets are append-only. Every target of a join is append-only too.
        """
        return isinstance(step, Window) and CONNECTORS[kind].upserts(self, step)

    @classmethod
    def is_connector_key(cls, key: str) -> bool:
        return connector_keys.is_connector_key(key, of_target=True)

    def non_defaults(self) -> Values:
        return {**super().non_defaults(), **self.connector_keys}

    @classmethod
    def check_kind(cls, kind: str, values: Mapping[str, Any], wrong: frozenset[str]) -> Iterator[Problem]:
        """Yield a problem for each key that does not apply to this kind of connection."""
        needed, target_text = CONNECTORS[kind].required_target_key or ("", "")
        missing = bool(needed) and values.get(needed) is None and needed not in wrong
        for key in cls.KEYS_BY_KIND:
            if values.get(key) is not None and key not in CONNECTORS[kind].target_keys and key not in wrong:
                named, advice = " or ".join(format_value(k) for k in kinds_with_target_key(key)), "remove it"
                if missing and key in ("path", "table", "topic"):  # report each mistake on one line
                    missing, advice = False, f"write {needed} instead: {target_text}"
                yield (
                    key,
                    f"applies only to connections of kind {named}, but this one is {format_value(kind)}; {advice}",
                )
        if missing:
            yield needed, f"missing; {target_text}"
        yield from connector_keys.check_connector_keys(kind, values.get("connector_keys") or {}, of_target=True)
        if kind == "kafka" and values.get("create") is False and values.get("partitions") is not None:
            yield (
                "partitions",
                "applies only if the topic is created at startup, but create = false; remove one of the two keys",
            )
        path = values.get("path")
        if kind == "files" and isinstance(path, str) and "path" not in wrong:
            yield from _url_problems(path, "results")


class StateStore(Spec):
    """Where the state is stored: `files`, `postgres` or `in_memory`.

    - `kind`: `files` (a directory, or a URL of an object store), `postgres` (a database) or `in_memory` (lost when the
      process ends).
    - `shards`: the number of shards of the state; one per core by default. It may change between runs.
    - `schema` (postgres): the schema of its tables.
    - `path` (postgres): the directory for Spark's checkpoints, which only sources that cannot seek need; a temporary
      directory by default.
    - `options` (if `path` is a URL): settings for access to the object store, under the names that obstore uses
      (`region`, `endpoint`, …). Missing options come from the environment or the role of the machine.
    """

    kind: str = declare_key(
        choice_parser("files", "postgres", "in_memory"),
        "The kind of store: a directory or bucket, a database, or memory, which is lost when the process ends.",
        required='expected "files", "postgres" or "in_memory"',
    )
    path: str | None = declare_key(
        parse_text,
        "A directory, or s3://…, gs://…, abfss://… (files); the directory of Spark's checkpoints (Postgres).",
        default=None,
    )
    url: str | None = declare_key(
        parse_text,
        "The URL of the database (Postgres). Keep the password out of the file: ${STATE_URL}.",
        default=None,
        repr=False,
    )
    schema_: str = declare_key(parse_text, "The schema of the tables (Postgres).", default="public", alias="schema")
    checkpoint_interval_ms: Milliseconds[int] = declare_key(
        duration_parser(1), "How long an idle pipeline may go without a commit.", default=60_000
    )
    checkpoint_interval: WithUnit = declare_with_unit(default=None)
    shards: int | None = declare_key(
        integer_parser(1, 4096),
        "The number of shards of the state; by default, one per core. It can change between runs.",
        default=None,
    )
    options: Settings = declare_key(
        settings_parser('a table of settings ({ region = "eu-central-1" })'),
        'Options of obstore, for files in an object store: region, endpoint, access_key_id = "${KEY}", ….',
        default_factory=dict,
        repr=False,
    )

    DOC_LINK: ClassVar[str] = "docs/configuration.md#state-store"

    @property
    def durable(self) -> bool:
        return self.kind != "in_memory"

    @classmethod
    def check(cls, values: Values, wrong: set[str]) -> Iterator[Problem]:
        kind = values.get("kind")
        if isinstance(values.get("url"), str):
            remember_url(values["url"])
        if kind == "files" and "path" not in values and "path" not in wrong:
            yield "path", 'missing; a files store needs a directory, as in "state"'
        if kind == "postgres" and "url" not in values and "url" not in wrong:
            yield "url", 'missing; a postgres store needs a database, as in "${STATE_URL}"'
        yield from _object_store_problems(values, wrong)
        if kind == "in_memory" and "path" in values:
            yield (
                "path",
                'applies only to kind = "files" or "postgres", because an in_memory store has no directory; remove it',
            )
        for key, attribute in (("url", "url"), ("schema", "schema_")):
            if attribute in values and kind not in (None, "postgres"):
                yield key, f'applies only to kind = "postgres", but this store has {format_value(kind)}; remove it'


def _object_store_problems(values: Values, wrong: set[str]) -> Iterator[Problem]:
    """Yield problems with a path that is a URL, and with options that only a URL may have."""
    kind, path, options = values.get("kind"), values.get("path"), values.get("options")
    if isinstance(options, Mapping):
        remember_settings(options)
    if isinstance(path, str):
        remember_url(path)
    scheme, is_url, _ = path.partition("://") if isinstance(path, str) else ("", "", "")
    if kind == "files" and isinstance(path, str):
        yield from _url_problems(path, "state")
    if options and not {"options", "path"} & wrong and not (kind == "files" and is_url and scheme != "file"):
        yield "options", 'applies only to a path in an object store, as in "s3://bucket/state"; remove it'


def _url_problems(path: str, content: str) -> Iterator[Problem]:
    """Yield the problems of a files path that is a URL."""
    scheme, is_url, _ = path.partition("://")
    if not is_url or scheme == "file":
        return
    if scheme not in OBJECTS:
        yield "path", value_mismatch(path, 'a directory, or a URL: "s3://…", "gs://…", "abfss://…"')
    elif find_spec("obstore") is None:
        needs = f"{content} in an object store need{'s' if content == 'state' else ''} the package obstore, which is not installed"
        yield "path", f"{needs}; pip install 'slackwater[objects]'"
