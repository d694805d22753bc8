"""Specs of sources and lookups."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import PurePath
from typing import Any, ClassVar

from slackwater.config.config_key import (
    Converted,
    Milliseconds,
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
    kinds_with_source_key,
    metadata_columns,
)
from slackwater.config.error_text import EnvString, describe_value_mismatch, format_key, format_value
from slackwater.config.spec_base import Problem, Spec, Values
from slackwater.config.sql import schema_ddl
from slackwater.config.sql.select_scope import ROW_BY_ROW, GroupableColumns
from slackwater.config.value_parsers import (
    InvalidConfigTableError,
    InvalidValueError,
    accept_anything,
    attach_json_schema,
    choice_parser,
    duration_parser,
    integer_parser,
    parse_text,
    reader_options,
)
from slackwater.core.humanize import mismatch

FORMATS = ("json", "csv", "parquet", "text")
PAYLOADS = ("json", "avro", "json_schema", "protobuf", "raw")
FRAMED = ("avro", "json_schema", "protobuf")  # formats whose schemas may come from a schema registry
SCHEMA_FILES = {
    "avro": "avro_schema_file",
    "protobuf": "protobuf_schema_file",
}  # payload format -> the key of a schema file, which replaces the registry
OF_PAYLOADS = {**{key: payload for payload, key in SCHEMA_FILES.items()}, "protobuf_message": "protobuf"}
_PROTOBUF = {"ptars": "ptars", "grpc_tools": "grpcio-tools"}  # module -> package


@attach_json_schema(
    enum=["earliest", "latest"],
    otherwise={
        "type": "object",
        "minProperties": 1,
        "additionalProperties": {
            "type": "object",
            "minProperties": 1,
            "patternProperties": {"^[0-9]+$": {"type": "integer", "minimum": 0}},
            "additionalProperties": False,
        },
    },
)
def parse_offsets(value: Any) -> Any:
    """Parse starting offsets: "earliest", "latest", or a mapping of topics to offsets by partition."""
    if value in ("earliest", "latest"):
        return value
    if not isinstance(value, Mapping) or not value:
        raise InvalidValueError('"earliest", "latest" or offsets by topic and partition ({ orders = { 0 = 1200 } })')
    problems: list[str] = []
    offsets: dict[str, dict[str, int]] = {}
    for topic, parts in value.items():
        key = f": {format_key(topic)}"
        if not isinstance(parts, Mapping) or not parts:
            problems.append(f"{key}: {describe_value_mismatch(parts, 'offsets by partition, as in { 0 = 1200 }')}")
            continue
        for part, offset in parts.items():
            if not str(part).isdecimal():
                problems.append(f"{key}.{format_key(part)}: {describe_value_mismatch(str(part), 'a partition number')}")
            elif not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
                problems.append(f"{key}.{part}: {describe_value_mismatch(offset, 'a whole number of at least 0')}")
            else:
                offsets.setdefault(str(topic), {})[str(part)] = offset
    if problems:
        raise InvalidConfigTableError(problems, offsets)
    return offsets


_QUOTED = re.compile(r"`[^`]*`|'[^']*'|[^`'<>(),]+|.", re.DOTALL)


def parse_declared_columns(ddl: str) -> list[str]:
    """Return the column names in a DDL string: `a STRING, b MAP<STRING, INT>` -> [a, b]. Types are not checked."""
    depth, fields = 0, [""]
    for token in _QUOTED.findall(ddl):
        depth += (token in ("<", "(")) - (token in (">", ")"))
        if token == "," and depth == 0:
            fields.append("")
        else:
            fields[-1] += token
    named = [re.match(r"\s*(?:`([^`]*)`|([^\s:`]+))", f) for f in fields]
    return [m[1] or m[2] or "" for m in named if m]


@dataclass(frozen=True)
class StageOutputReference:
    """Placeholder for the DataFrame of a source that represents the output of a stage.

    `groupable_columns`: the columns by which SQL may group the rows.
    """

    groupable_columns: GroupableColumns


class Source(Spec):
    """A pipeline input: rows from a connection or, in Python, a streaming DataFrame (`dataframe=`)."""

    name: str = declare_key(
        parse_text, "The name of the source in joins, metrics and the state. By default, the query.", default=""
    )
    connection: str | Connection | None = declare_key(
        connection_or_name, "The connection to read from: the name of one of the [connections].", default=None
    )
    query: str | None = declare_key(
        parse_text,
        'What to read: a path or glob, Kafka topics separated by commas or "pattern:…", a queue, stream, subscription or table.',
        default=None,
        elsewhere=("topic", "topics", "queue", "stream", "subscription", "path", "table"),
    )
    format: str | None = declare_key(
        choice_parser(*FORMATS), "The format of the files.", default=None, of_connectors=True
    )
    schema_: str | None = declare_key(
        parse_text,
        "The columns and their types in Spark DDL, as in user_id STRING, ts TIMESTAMP. By default, the schema is inferred once.",
        default=None,
        alias="schema",
        of_connectors=True,
    )
    options: Settings = declare_key(reader_options, "Options for Spark's reader.", default_factory=dict)
    max_files_per_trigger: int | None = declare_key(
        integer_parser(1),
        "The maximum number of files per epoch. Files are read in order of modification time or, for Delta and Iceberg, of table version.",
        default=None,
        of_connectors=True,
    )
    payload_format: str | None = declare_key(
        choice_parser(*PAYLOADS), "How payloads are decoded. By default, `json`.", default=None, of_connectors=True
    )
    avro_schema_file: str | None = declare_key(
        parse_text, "A file with the Avro schema of the payload.", default=None, of_connectors=True
    )
    protobuf_schema_file: str | None = declare_key(
        parse_text, "A .proto file or descriptor set with the message type.", default=None, of_connectors=True
    )
    protobuf_message: str | None = declare_key(
        parse_text, "The full name of the message type. By default, the first one.", default=None, of_connectors=True
    )
    starting_offsets: str | Mapping[str, Mapping[str, int]] | None = declare_key(
        parse_offsets,
        "Where a new pipeline begins to read: `earliest` (default; Kinesis: `latest`), `latest`, or offsets by topic and partition.",
        default=None,
        of_connectors=True,
    )
    starting_version: int | None = declare_key(
        integer_parser(0),
        "The version (Delta) or snapshot ID (Iceberg) whose rows a new pipeline reads first.",
        default=None,
        of_connectors=True,
    )
    on_rewrite: str | None = declare_key(
        choice_parser("fail", "skip"),
        "What to do with table versions that remove or rewrite rows (Delta, Iceberg): stop the pipeline (default), or skip them.",
        default=None,
        of_connectors=True,
    )
    schema_changes: str | None = declare_key(
        choice_parser("fail", "add", "ignore"),
        "What to do with new table columns (Delta, Iceberg): stop the pipeline (default), add them to joins and targets, or ignore them.",
        default=None,
        of_connectors=True,
    )
    max_offsets_per_trigger: int | None = declare_key(
        integer_parser(1), "The maximum number of records per epoch.", default=None, of_connectors=True
    )
    on_data_loss: str | None = declare_key(
        choice_parser("fail", "skip"),
        "What to do if the next offsets no longer exist: stop the pipeline (default), or skip to the oldest existing offsets.",
        default=None,
        of_connectors=True,
    )
    commit_group: str | None = declare_key(
        parse_text,
        "A consumer group to which each commit writes its offsets, so that lag monitors can read them.",
        default=None,
        of_connectors=True,
    )
    max_messages_per_trigger: int | None = declare_key(
        integer_parser(1), "The maximum number of messages per epoch.", default=None, of_connectors=True
    )
    lateness_ms: Milliseconds[int | None] = declare_key(
        duration_parser(0),
        "The lateness of this source. It overrides the lateness of the window, join or other step.",
        default=None,
    )
    lateness: WithUnit = declare_with_unit(default=None)
    dataframe: Any = declare_key(accept_anything, default=None, python_only="give a connection, a query and a format")
    connector_keys: Mapping[str, Any] = declare_attribute(default_factory=dict)  # see `ConnectorKeys`

    DOC_LINK: ClassVar[str] = "docs/configuration.md#sources"

    @classmethod
    def read(cls, data: Values, file: str, path: str, problems: list[str]) -> tuple[Values, set[str]]:
        values, wrong = super().read(data, file, path, problems)
        if "name" not in values and "query" in values:
            values["name"] = values["query"]
        return values, wrong

    @property
    def groupable_columns(self) -> GroupableColumns:
        """The columns by which SQL may group rows within an epoch; none unless this source is the output of a stage."""
        return self.dataframe.groupable_columns if isinstance(self.dataframe, StageOutputReference) else ROW_BY_ROW

    @property
    def is_stage_output(self) -> bool:
        """Return whether this source is the output of a stage."""
        return isinstance(self.dataframe, StageOutputReference)

    def derived(self) -> Values:
        return {"name": self.query}

    @classmethod
    def is_connector_key(cls, key: str) -> bool:
        return is_connector_key(key, of_target=False)

    def non_defaults(self) -> Values:
        return {**super().non_defaults(), **self.connector_keys}

    @classmethod
    def check(cls, values: Values, wrong: set[str]) -> Iterator[Problem]:
        if "dataframe" in values:
            if "name" not in values and "name" not in wrong:
                yield "name", "missing; a DataFrame source needs a name"
            for key in (
                "connection",
                "query",
                "options",
                *cls.connector_attributes(),
                *values.get("connector_keys", ()),
            ):
                if key in values or key in values.get("connector_keys", ()):
                    yield (
                        key.rstrip("_"),
                        "applies only to a source with a connection, but this one is a DataFrame; remove it",
                    )
            return
        for key, advice in (
            ("connection", "name one of the [connections]"),
            ("query", 'name a path or glob, as in "data/*.json", or a topic'),
        ):
            if key not in values and key not in wrong:
                yield key, f"missing; {advice}"
        if "schema_" in values:
            yield from _schema_problems(values["schema_"])

    @classmethod
    def check_kind(cls, kind: str, values: Mapping[str, Any], wrong: frozenset[str]) -> Iterator[Problem]:
        """Yield a problem for each key that does not apply to this kind of connection."""
        supported = CONNECTORS[kind].keys
        for key in cls.connector_attributes():
            if values.get(key) is not None and key not in supported and key.rstrip("_") not in wrong:
                named = " or ".join(format_value(k) for k in kinds_with_source_key(key))
                yield (
                    key.rstrip("_"),
                    f"applies only to connections of kind {named}, but this one is {format_value(kind)}; remove it",
                )
        yield from check_connector_keys(kind, values.get("connector_keys") or {}, of_target=False)
        if kind == "files" and values.get("format") is None and "format" not in wrong:
            yield "format", f"missing; expected {' or '.join(format_value(f) for f in FORMATS)}"
        without = CONNECTORS[kind].start.no_offsets_reason
        if without and isinstance(values.get("starting_offsets"), Mapping):
            yield "starting_offsets", mismatch("offsets", f'"earliest" or "latest"; {without}')
        if values.get("starting_offsets") is not None and values.get("starting_version") is not None:
            yield (
                "starting_version",
                "cannot be combined with starting_offsets, because both set the start position; remove one of them",
            )
        payload = values.get("payload_format") or "json"
        if payload in FRAMED and "payload_format" in supported and kind != "kafka":
            yield (
                "payload_format",
                f'{format_value(payload)} needs a connection of kind "kafka", but this one is {format_value(kind)}; use "json" or "raw"',
            )
            return
        for key, owner in OF_PAYLOADS.items():
            if kind == "kafka" and payload != owner and values.get(key) is not None:
                yield (
                    key,
                    f"applies only to payload_format = {format_value(owner)}, but this source has {format_value(payload)}; remove it",
                )
        if payload == "protobuf" and (missing := [m for m in _PROTOBUF if find_spec(m) is None]):
            packages = ", ".join(_PROTOBUF[m] for m in missing)
            yield (
                "payload_format",
                f'"protobuf" needs packages that are not installed ({packages}); run pip install '
                "'slackwater[protobuf]'",
            )
        declared = [] if values.get("schema_") is None else parse_declared_columns(values["schema_"])
        for column in declared if payload == "json" else ():
            if column.casefold() in metadata_columns(kind):
                yield (
                    "schema",
                    f"declares {format_value(column.casefold())}, a column that Slackwater adds itself; rename it",
                )
        if payload != "json" and "payload_format" in supported and values.get("schema_") is not None:
            yield (
                "schema",
                f'applies only to payload_format = "json", but this source has {format_value(payload)}; remove it',
            )


def _schema_problems(schema: str) -> Iterator[Problem]:
    try:
        schema_ddl.parse_ddl_columns(schema)
    except schema_ddl.DdlError as error:
        yield (
            "schema",
            'is not a valid Spark schema; expected "name TYPE, name TYPE, …"'
            if isinstance(schema, EnvString)
            else str(error),
        )
        return
    columns = [c.casefold() for c in parse_declared_columns(schema)]
    twice = next((c for c in columns if columns.count(c) > 1), None)
    if twice is not None:
        which = (
            f"a column of {format_value(schema)}" if isinstance(schema, EnvString) else f"column {format_value(twice)}"
        )
        yield "schema", f"{which} is declared twice (Spark ignores the case of names); declare it once"


class Lookup(Spec):
    """A small table, stored in files, that SQL can join by name. It is read again every `refresh_interval`."""

    connection: str | Connection = declare_key(
        connection_or_name, "The name of a connection of kind files.", required="name one of the [connections]"
    )
    query: str = declare_key(
        parse_text, "The files to read: a path or glob.", required='name a path or glob, as in "data/users.parquet"'
    )
    format: Converted[str | None, str] = declare_key(
        choice_parser(*FORMATS),
        "The format of the files. By default, it is derived from the file extension.",
        default=None,
    )
    schema_: str | None = declare_key(
        parse_text, "The columns and their types in Spark DDL. By default, inferred.", default=None, alias="schema"
    )
    options: Settings = declare_key(reader_options, "Options for Spark's reader.", default_factory=dict)
    refresh_interval_ms: Milliseconds[int] = declare_key(
        duration_parser(1), "The interval at which the files are read again.", default=60_000
    )
    refresh_interval: WithUnit = declare_with_unit(default=None)

    DOC_LINK: ClassVar[str] = "docs/configuration.md#transform"

    def derived(self) -> Values:
        return {"format": _guess_format(self.query)}

    @classmethod
    def read(cls, data: Values, file: str, path: str, problems: list[str]) -> tuple[Values, set[str]]:
        query = data.get("query")
        guess = _guess_format(query) if isinstance(query, str) else None
        if data.get("format") is None and guess is not None:
            data = {**data, "format": guess}
        return super().read(data, file, path, problems)

    @classmethod
    def check(cls, values: Values, wrong: set[str]) -> Iterator[Problem]:
        if "format" not in values and "format" not in wrong and "query" in values:
            expected = " or ".join(format_value(f) for f in FORMATS)
            yield (
                "format",
                f"missing, and {format_value(values['query'])} has no known file extension; expected {expected}",
            )
        if "schema_" in values:
            yield from _schema_problems(values["schema_"])


def _guess_format(query: str) -> str | None:
    """Return the format for a file extension: `data/users.jsonl.gz` -> `json`; None for an unknown extension."""
    spelled = {**{f: f for f in FORMATS}, "jsonl": "json", "txt": "text"}
    formats = [spelled[suffix[1:]] for suffix in PurePath(query).suffixes if suffix[1:] in spelled]
    return formats[-1] if formats else None
