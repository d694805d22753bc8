"""Specs of targets and of the state store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any, ClassVar

from slackwater.config.config_key import (
    Milliseconds,
    OptionalTexts,
    Settings,
    WithUnit,
    declare_attribute,
    declare_key,
    declare_with_unit,
)
from slackwater.config.connection import Connection, connection_or_name
from slackwater.config.connector_description import (
    CONNECTORS,
    check_connector_keys,
    is_connector_key,
    kinds_with_target_key,
)
from slackwater.config.error_text import describe_value_mismatch, format_value
from slackwater.config.spec_base import Problem, Spec, Values
from slackwater.config.step_base import StepBase
from slackwater.config.value_parsers import (
    choice_parser,
    duration_parser,
    integer_parser,
    parse_flag,
    parse_text,
    parse_texts,
    settings_parser,
)
from slackwater.config.window import Window
from slackwater.secret_masking import remember_settings, remember_url

OBJECTS = ("s3", "gs", "abfss")  # URL schemes of object stores


class Target(Spec):
    """Where rows are written: a `path` (files, Delta), a `table` (Postgres, Iceberg), a Kafka `topic`, or the console."""

    name: str | None = declare_key(
        parse_text,
        "The name of the target in errors, commands and metrics. By default, the name of its stage.",
        default=None,
    )
    from_: str | None = declare_key(
        parse_text, "The stage whose results are written. By default, the last stage.", default=None
    )
    connection: str | Connection = declare_key(
        connection_or_name,
        "The connection to write to: the name of one of the [connections].",
        required="name one of the [connections]",
    )
    path: str | None = declare_key(
        parse_text, "The directory to which results are written (files, Delta).", default=None, of_connectors=True
    )
    format: str | None = declare_key(
        choice_parser("parquet", "json", "csv"),
        "The format of the files to write. By default, `parquet`.",
        default=None,
        of_connectors=True,
    )
    table: str | None = declare_key(
        parse_text,
        "The table, as name or schema.name (Postgres), or namespace.name (Iceberg). It is created if it does not exist.",
        default=None,
        of_connectors=True,
    )
    topic: str | None = declare_key(
        parse_text, "The topic to which results are written (Kafka).", default=None, of_connectors=True
    )
    mode: str | None = declare_key(
        choice_parser("merge", "append"),
        "`merge` (default) replaces earlier results of a window; `append` only appends rows (Delta, Iceberg).",
        default=None,
        of_connectors=True,
    )
    delivery: str | None = declare_key(
        choice_parser("at_least_once", "exactly_once"),
        "The delivery guarantee (Kafka): `at_least_once` (default), or `exactly_once`, which writes in transactions.",
        default=None,
        of_connectors=True,
    )
    value_format: str | None = declare_key(
        choice_parser("json", "avro"),
        "The encoding of record values (Kafka). By default, `json`.",
        default=None,
        of_connectors=True,
    )
    key_columns: OptionalTexts = declare_key(
        parse_texts,
        "The columns of the record key (Kafka). By default, the columns that identify a window.",
        default=None,
        of_connectors=True,
    )
    create: bool | None = declare_key(
        parse_flag,
        "Whether Slackwater creates the topic at startup if it does not exist (Kafka). By default, true.",
        default=None,
        of_connectors=True,
    )
    partitions: int | None = declare_key(
        integer_parser(1, 100_000),
        "The number of partitions of a topic that Slackwater creates (Kafka). By default, the broker decides.",
        default=None,
        of_connectors=True,
    )
    connector_keys: Mapping[str, Any] = declare_attribute(default_factory=dict)  # see `ConnectorKeys`

    DOC_LINK: ClassVar[str] = "docs/configuration.md#target-and-dead-letters"

    def derived(self) -> Values:
        return {"format": "parquet"} if self.format == "parquet" else {}

    def upserts(self, kind: str, step: StepBase | None) -> bool:
        """Return whether the target replaces earlier results of a window; False if it is append-only.

        `kind`: the kind of the connection. `step`: the step that emits the results; only windows replace any.
        """
        return isinstance(step, Window) and CONNECTORS[kind].upserts(self, step)

    @classmethod
    def is_connector_key(cls, key: str) -> bool:
        return is_connector_key(key, of_target=True)

    def non_defaults(self) -> Values:
        return {**super().non_defaults(), **self.connector_keys}

    @classmethod
    def check_kind(cls, kind: str, values: Mapping[str, Any], wrong: frozenset[str]) -> Iterator[Problem]:
        """Yield a problem for each key that does not apply to this kind of connection."""
        needed, target_text = CONNECTORS[kind].required_target_key or ("", "")
        missing = bool(needed) and values.get(needed) is None and needed not in wrong
        for key in cls.connector_attributes():
            if values.get(key) is not None and key not in CONNECTORS[kind].target_keys and key not in wrong:
                named, advice = " or ".join(format_value(k) for k in kinds_with_target_key(key)), "remove it"
                if missing and key in ("path", "table", "topic"):  # report each mistake on one line
                    missing, advice = False, f'set the key "{needed}" instead: {target_text}'
                yield (
                    key,
                    f"applies only to connections of kind {named}, but this one is {format_value(kind)}; {advice}",
                )
        if missing:
            yield needed, f"missing; {target_text}"
        yield from check_connector_keys(kind, values.get("connector_keys") or {}, of_target=True)
        if kind == "kafka" and values.get("create") is False and values.get("partitions") is not None:
            yield (
                "partitions",
                "applies only if the topic is created at startup, but create = false; remove one of the two keys",
            )
        path = values.get("path")
        if kind == "files" and isinstance(path, str) and "path" not in wrong:
            yield from _url_problems(path, "results")


class StateStore(Spec):
    """Where the state is kept: files, Postgres or memory.

    With `kind="postgres"`, `path` is used only for the Spark checkpoints of sources that cannot seek. By default, these
    checkpoints are in a temporary directory.

    If the state is in an object store, credentials that `options` lacks come from the environment or from the role of
    the machine.
    """

    kind: str = declare_key(
        choice_parser("files", "postgres", "in_memory"),
        "The kind of store: a directory or bucket, a database, or memory (lost when the process ends).",
        required='expected "files", "postgres" or "in_memory"',
    )
    path: str | None = declare_key(
        parse_text,
        "The directory or URL (s3://…, gs://…, abfss://…) of a files store, or the directory for Spark's checkpoints (Postgres).",
        default=None,
    )
    url: str | None = declare_key(
        parse_text,
        "The URL of the database (Postgres). Keep the password out of the file: ${STATE_URL}.",
        default=None,
        repr=False,
    )
    schema_: str = declare_key(
        parse_text, "The database schema that contains the tables (Postgres).", default="public", alias="schema"
    )
    checkpoint_interval_ms: Milliseconds[int] = declare_key(
        duration_parser(1), "The maximum time between commits of an idle pipeline.", default=60_000
    )
    checkpoint_interval: WithUnit = declare_with_unit(default=None)
    shards: int | None = declare_key(
        integer_parser(1, 4096),
        "The number of shards of the state. By default, one per core. You can change it between runs.",
        default=None,
    )
    options: Settings = declare_key(
        settings_parser('a table of settings ({ region = "eu-central-1" })'),
        'Settings of obstore for a files store in an object store, such as region, endpoint and access_key_id = "${KEY}".',
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
            yield "path", 'missing; a "files" store needs a directory, for example "state"'
        if kind == "postgres" and "url" not in values and "url" not in wrong:
            yield "url", 'missing; a "postgres" store needs the URL of a database, for example "${STATE_URL}"'
        yield from _object_store_problems(values, wrong)
        if kind == "in_memory" and "path" in values:
            yield (
                "path",
                'does not apply to kind = "in_memory", because this store has no directory; remove it',
            )
        for key, attribute in (("url", "url"), ("schema", "schema_")):
            if attribute in values and kind not in (None, "postgres"):
                yield (
                    key,
                    f'applies only to kind = "postgres", but this store has kind = {format_value(kind)}; remove it',
                )


def _object_store_problems(values: Values, wrong: set[str]) -> Iterator[Problem]:
    """Yield problems with `path` if it is a URL, and with `options`, which apply only to an object store."""
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
    """Yield the problems with a path if it is a URL. `content`: what is stored there, for messages."""
    scheme, is_url, _ = path.partition("://")
    if not is_url or scheme == "file":
        return
    if scheme not in OBJECTS:
        yield (
            "path",
            describe_value_mismatch(path, 'a directory, or a URL that begins with "s3://", "gs://" or "abfss://"'),
        )
    elif find_spec("obstore") is None:
        yield (
            "path",
            f"storing {content} in an object store requires the package obstore, which is not installed; run pip "
            "install 'slackwater[objects]'",
        )
