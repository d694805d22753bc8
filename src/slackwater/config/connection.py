"""Specs of connections: the addresses and credentials of the systems that sources, lookups and targets use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any, ClassVar, Literal

from slackwater import secret_masking
from slackwater.config.config_key import ConfigKey, Settings, declare_key
from slackwater.config.error_text import (
    MissingEnvString,
    describe_value_mismatch,
    format_key,
    format_value,
    suggest_or_list_words,
)
from slackwater.config.spec_base import Problem, Spec, Values
from slackwater.config.value_parsers import (
    InvalidConfigTableError,
    InvalidValueError,
    attach_json_schema,
    choice_parser,
    parse_text,
    settings_parser,
)
from slackwater.core.connector_registry import TABLE, BrokenConnectorError


class Connection(Spec):
    """Base class of connections to external systems.

    `READS`: whether sources can use the connection. `WRITES`: whether targets can use it.
    """

    def __init__(self, **data: Any) -> None:
        _register_secrets(data)
        super().__init__(**data)

    kind: str
    READS: ClassVar[bool] = True
    WRITES: ClassVar[bool] = True
    DOC_LINK: ClassVar[str] = "docs/configuration.md#connections"

    @classmethod
    def declared_keys(cls) -> Mapping[str, ConfigKey]:
        """Return the declared keys, plus `kind`, whose default is its only valid value."""
        kind = cls.model_fields["kind"]
        of_kind = {} if kind.is_required() else {"kind": ConfigKey(choice_parser(kind.default), "The kind of system.")}
        return {**of_kind, **super().declared_keys()}


class ClientConnection(Connection):
    """Base class of connections with `options`, which are settings of a client library."""

    options: Settings = declare_key(
        settings_parser('a table of settings ({ "security.protocol" = "SSL" })'),
        "Settings of the client library, object store or reader, under the names that the library uses.",
        default_factory=dict,
        repr=False,
    )


class FilesConnection(ClientConnection):
    """A connection to files on a local disk, or at any path that Spark can read.

    `options` are the settings of obstore, the library that accesses targets in an object store. Sources in an object
    store are read by Spark, which has its own settings: see docs/sources/files.md.
    """

    kind: Literal["files"] = "files"


class ConsoleConnection(Connection):
    """A connection to standard output, for targets that print their results. Sources cannot use it."""

    kind: Literal["console"] = "console"
    READS: ClassVar[bool] = False


class KafkaConnection(ClientConnection):
    """A connection to a Kafka cluster.

    `options` are the settings of the Kafka client, such as `security.protocol` and `sasl.mechanism`.
    """

    kind: Literal["kafka"] = "kafka"
    bootstrap_servers: str = declare_key(
        parse_text,
        "The brokers of a Kafka cluster, as host:port, separated by commas.",
        required='name the brokers, as in "kafka-1:9092,kafka-2:9092"',
        elsewhere=("bootstrap.servers", "brokers", "servers", "url"),
    )
    schema_registry: str | None = declare_key(
        parse_text,
        "The URL of a Confluent schema registry, for Avro, JSON Schema and Protobuf payloads (Kafka).",
        default=None,
    )


class PostgresConnection(Connection):
    """A connection to a Postgres database. Only targets can use it.

    To keep the password out of a TOML file, refer to an environment variable: `url = "${WAREHOUSE_URL}"`.
    """

    kind: Literal["postgres"] = "postgres"
    url: str = declare_key(
        parse_text,
        "The URL, with user and password (Postgres, RabbitMQ). Keep it out of the file: use `${WAREHOUSE_URL}`.",
        repr=False,
        required="set it to the URL of the database, for example postgresql://user:${PASSWORD}@host/database",
        elsewhere=("dsn", "uri", "host", "dbname", "database", "password"),
    )

    READS: ClassVar[bool] = False


class DeltaConnection(ClientConnection):
    """A connection to Delta Lake tables.

    `options` are the settings of the object store that contains the tables.
    """

    kind: Literal["delta"] = "delta"


class IcebergConnection(ClientConnection):
    """A connection to Iceberg tables in a catalog.

    `options` are the properties of the catalog, under their PyIceberg names, such as `uri`, `warehouse` and
    `s3.endpoint`.
    """

    kind: Literal["iceberg"] = "iceberg"
    catalog: str = declare_key(
        choice_parser("rest", "sql", "glue", "hive"),
        "The kind of catalog (Iceberg).",
        required='name the kind of catalog: "rest", "sql", "glue" or "hive"',
        elsewhere=("type",),
    )
    catalog_name: str = declare_key(
        parse_text,
        "The name of the catalog in PyIceberg (Iceberg). A SQL catalog stores its tables under this name.",
        default="default",
    )
    SUGGESTIONS: ClassVar[Mapping[str, str]] = dict.fromkeys(("uri", "url", "warehouse", "token"), "options")

    @classmethod
    def check(cls, values: Values, wrong: set[str]) -> Iterator[Problem]:
        options = values.get("options")
        if isinstance(options, Mapping):
            for value in options.values():
                secret_masking.remember_url(value)
            for name in ("type", "py-catalog-impl"):
                if name in options:
                    yield (
                        "options",
                        f'found "{name}", which sets the kind of catalog; remove this option, and set the key '
                        '"catalog" of the connection instead',
                    )
            warehouse = str(options.get("warehouse", "/"))
            if values.get("catalog") == "sql" and "://" not in warehouse and not warehouse.startswith(("/", "file:")):
                yield (
                    "options",
                    "warehouse: "
                    + describe_value_mismatch(warehouse, "an absolute path or a URL, so that every reader can find it"),
                )
        if find_spec("pyiceberg") is None:
            yield (
                "kind",
                "Iceberg needs the package pyiceberg, which is not installed; run pip install 'slackwater[iceberg]'",
            )


class RabbitMQConnection(Connection):
    """A connection to a RabbitMQ broker. Only sources can use it."""

    kind: Literal["rabbitmq"] = "rabbitmq"
    url: str = declare_key(
        parse_text,
        "The URL, with user and password (Postgres, RabbitMQ). Keep it out of the file: use `${WAREHOUSE_URL}`.",
        repr=False,
        required="set it to the URL of the broker, for example amqp://user:${PASSWORD}@host/vhost",
        elsewhere=("uri", "host", "password"),
    )

    WRITES: ClassVar[bool] = False


class KinesisConnection(ClientConnection):
    """A connection to AWS Kinesis. Only sources can use it.

    It requires a Spark connector, which you must install yourself.
    """

    kind: Literal["kinesis"] = "kinesis"
    region: str = declare_key(
        parse_text, "The AWS region of the stream (Kinesis).", required='name the region, as in "eu-central-1"'
    )
    endpoint: str | None = declare_key(
        parse_text, "An address to use instead of the region's endpoint (Kinesis).", default=None
    )

    WRITES: ClassVar[bool] = False


class PubSubConnection(ClientConnection):
    """A connection to Google Pub/Sub. Only sources can use it.

    It requires a Spark connector, which you must install yourself.
    """

    kind: Literal["pubsub"] = "pubsub"
    project: str = declare_key(
        parse_text,
        "The name or number of the Google Cloud project (Pub/Sub).",
        required="give the name or number of the Google Cloud project",
    )
    location: str = declare_key(
        parse_text,
        "The Google Cloud region or zone (Pub/Sub).",
        required='name the region or zone, as in "europe-west3-a"',
    )

    WRITES: ClassVar[bool] = False


def _expected_kinds() -> str:
    return " or ".join(format_value(kind) for kind in TABLE.installed_kinds())


def _register_secrets(keys: Mapping[str, Any]) -> None:
    """Register the secrets of a possibly invalid connection, so that messages do not reveal them."""
    for value in keys.values():
        if isinstance(value, str):
            secret_masking.remember_url(value)
        elif isinstance(value, Mapping):
            secret_masking.remember_settings(value)


def parse_connection(value: Any) -> Connection:
    """Parse a table into a connection; return a Connection object unchanged.

    Raises InvalidConfigTableError (without a draft) if a key is invalid, and InvalidValueError for any other kind of value.
    """
    if isinstance(value, Connection):
        return value
    if not isinstance(value, Mapping):
        raise InvalidValueError('a connection (kind = "files", "kafka", …)')
    kind = value.get("kind")
    if isinstance(kind, MissingEnvString):
        raise InvalidConfigTableError([], None)
    if kind is None:
        raise InvalidConfigTableError([f": kind: missing; expected {_expected_kinds()}"], None)
    if not isinstance(kind, str):
        raise InvalidConfigTableError([f": kind: {describe_value_mismatch(kind, _expected_kinds())}"], None)
    try:
        connection: type[Connection] = TABLE[kind].connection
    except KeyError:
        advice = suggest_or_list_words(kind, TABLE.installed_kinds())
        line = f": kind: found {format_value(kind)}, which is not a kind of connection{advice}"
        raise InvalidConfigTableError([line], None) from None
    except BrokenConnectorError as error:
        raise InvalidConfigTableError([f": kind: {error}"], None) from None
    problems: list[str] = []
    _register_secrets(value)
    built = connection.parse(value, "", "", problems)
    if built is None:
        raise InvalidConfigTableError(problems, None)
    return built


@attach_json_schema(of=Connection, named={})
def parse_connections(value: Any) -> dict[str, Connection]:
    """Parse a table of connections by name.

    Raises InvalidConfigTableError if a connection is invalid. The draft in this error has None for such a connection.
    """
    if not isinstance(value, Mapping):
        raise InvalidValueError("a table of connections ([connections.<name>])")
    connections: dict[str, Connection | None] = {}
    problems: list[str] = []
    for name, table in value.items():
        try:
            connections[name] = parse_connection(table)
        except InvalidValueError as error:
            connections[name] = None
            problems.append(f": {format_key(name)}: {describe_value_mismatch(table, error)}")
        except InvalidConfigTableError as error:
            connections[name] = None
            problems += [f": {format_key(name)}.{line.removeprefix(': ')}" for line in error.problems]
    if None in connections.values():
        raise InvalidConfigTableError(problems, connections)
    return {name: connection for name, connection in connections.items() if connection is not None}


@attach_json_schema(type="string", minLength=1)
def connection_or_name(value: Any) -> Any:
    if isinstance(value, Connection):
        return value
    if not isinstance(value, str) or not value:
        raise InvalidValueError("the name of a connection")
    return value
