"""Mistakes in connections of all kinds and in the tables that use them, with the reported lines."""

from __future__ import annotations

from tests.support.user_sessions_config import ISSUE

KAFKA = """\
name = "p"
[spark]
"spark.driver.memory" = "2g"
"spark.ui.enabled" = false
[connections.lake]
kind = "files"
[connections.bus]
kind = "kafka"
bootstrap_servers = "b:9092"
options = { "security.protocol" = "SASL_SSL", "sasl.password" = "${PASSWORD}" }
schema_registry = "http://registry"
[connections.db]
kind = "postgres"
url = "${URL}"
[connections.tables]
kind = "delta"
[connections.ice]
kind = "iceberg"
catalog = "sql"
options = { warehouse = "/w" }
[connections.queues]
kind = "rabbitmq"
url = "${URL}"
[connections.streams]
kind = "kinesis"
region = "eu-west-1"
[connections.pub]
kind = "pubsub"
project = "p"
location = "europe-west3-a"
[[sources]]
name = "orders"
connection = "bus"
query = "orders"
payload_format = "json"
schema = "user STRING, amount DOUBLE"
starting_offsets = { orders = { 0 = 1200, 1 = 7 } }
max_offsets_per_trigger = 1000
on_data_loss = "skip"
commit_group = "lag"
[transform]
on_error = "dlq"
[transform.window]
kind = "tumbling"
duration_ms = "1m"
group_by = ["user"]
max_groups_per_window = 10
crash_recovery = "kafka_eos"
[[transform.window.aggregations]]
agg = "count"
as = "n"
[target]
connection = "bus"
topic = "counts"
delivery = "exactly_once"
value_format = "avro"
key_columns = ["user"]
[dead_letter]
connection = "tables"
path = "lake/bad"
mode = "append"
[state_store]
kind = "postgres"
url = "${URL}"
schema = "slack"
path = "checkpoints"
"""
LATE = KAFKA.replace('kind = "tumbling"', 'kind = "tumbling"\nlate_data = "dlq"')
PERSISTED = KAFKA.replace("kafka_eos", "persisted")
SOURCE = 'connection = "bus"\nquery = "orders"\n'
KEYS = KAFKA[KAFKA.index('payload_format = "json"') : KAFKA.index("[transform]")]
LETTERS = '[dead_letter]\nconnection = "tables"\npath = "lake/bad"\nmode = "append"\n'
TARGET = '[target]\nconnection = "bus"\ntopic = "counts"\ndelivery = "exactly_once"\nvalue_format = "avro"\nkey_columns = ["user"]\n'
STORE = KAFKA[KAFKA.index("[state_store]") :]
LOOKUP = '[transform.lookups.users]\nconnection = "bus"\nquery = "users.json"\n'
OFFSETS = "{ orders = { 0 = 1200, 1 = 7 } }"
S = "sources[0]"
ANY_OFFSETS = '"earliest", "latest" or offsets by topic and partition ({ orders = { 0 = 1200 } })'
READS = (
    'sources need a connection of kind "files" or "kafka" or "delta" or "iceberg" or "rabbitmq" or "kinesis" or "pubsub"; '
    "choose another connection"
)
ICE = 'kind = "iceberg"\ncatalog = "sql"\noptions = { warehouse = "/w" }\n'
WRITES = 'a connection of kind "files" or "console" or "kafka" or "postgres" or "delta" or "iceberg"; choose another connection'
EOS = 'transform.window.crash_recovery: "kafka_eos" needs'


def format_source_keys(connection: str, keys: str) -> str:
    """Build the keys of a source that uses another connection."""
    return f'connection = "{connection}"\nquery = "orders"\n{keys}'


def format_target_section(connection: str, keys: str = "") -> str:
    return f'[target]\nconnection = "{connection}"\n{keys}'


def wrong_connection_kind_error(key: str, kinds: str, this: str, advice: str = "remove it") -> str:
    return f'{key}: applies only to connections of kind {kinds}, but this one is "{this}"; {advice}'


# base config, replaced text, replacement, reported lines
# fmt: off
CASES: list[tuple[str, ...]] = [
    # -- connections
    (KAFKA, 'bootstrap_servers = "b:9092"\n', "", 'connections.bus.bootstrap_servers: missing; name the brokers, as in "kafka-1:9092,kafka-2:9092"'),
    (KAFKA, "bootstrap_servers", "brokers", 'connections.bus.brokers: unknown key; did you mean "bootstrap_servers"?',
     'connections.bus.bootstrap_servers: missing; name the brokers, as in "kafka-1:9092,kafka-2:9092"'),
    (KAFKA, '[connections.db]\nkind = "postgres"\nurl = "${URL}"\n', '[connections.db]\nkind = "postgres"\n',
     'connections.db.url: missing; set it to the URL of the database, for example postgresql://user:${PASSWORD}@host/database'),
    (KAFKA, '"postgres"\nurl', '"postgres"\nhost = "h"\nurl', 'connections.db.host: unknown key; did you mean "url"?'),
    (KAFKA, '"rabbitmq"\nurl = "${URL}"\n', '"rabbitmq"\n',
     'connections.queues.url: missing; set it to the URL of the broker, for example amqp://user:${PASSWORD}@host/vhost'),
    (KAFKA, 'region = "eu-west-1"\n', "", 'connections.streams.region: missing; name the region, as in "eu-central-1"'),
    (KAFKA, 'project = "p"\nlocation = "europe-west3-a"\n', "", "connections.pub.project: missing; give the name or number of the Google Cloud project",
     'connections.pub.location: missing; name the region or zone, as in "europe-west3-a"'),
    (KAFKA, ICE, ICE.replace('catalog = "sql"\n', ""),
     'connections.ice.catalog: missing; name the kind of catalog: "rest", "sql", "glue" or "hive"'),
    (KAFKA, ICE, ICE.replace('catalog = "sql"', 'type = "sql"'), 'connections.ice.type: unknown key; did you mean "catalog"?',
     'connections.ice.catalog: missing; name the kind of catalog: "rest", "sql", "glue" or "hive"'),
    (KAFKA, ICE, ICE.replace('"sql"', '"sqlite"'), 'connections.ice.catalog: found "sqlite", expected "rest" or "sql" or "glue" or "hive"; did you mean "sql"?'),
    (KAFKA, ICE, ICE + 'uri = "x"\n', 'connections.ice.uri: unknown key; did you mean "options"?'),
    (KAFKA, ICE, ICE.replace('"/w"', '"w"'),
     'connections.ice.options: warehouse: found "w", expected an absolute path or a URL, so that every reader can find it'),
    (KAFKA, ICE, ICE.replace('warehouse', 'type = "sql", warehouse'),
     'connections.ice.options: found "type", which sets the kind of catalog; remove this option, and set the key "catalog" of the connection instead'),
    (KAFKA, 'kind = "delta"', 'kind = "detla"', 'connections.tables.kind: found "detla", which is not a kind of connection; did you mean "delta"?'),
    (KAFKA, '{ "security.protocol" = "SASL_SSL", "sasl.password" = "${PASSWORD}" }', '"SSL"',
     'connections.bus.options: found "SSL", expected a table of settings ({ "security.protocol" = "SSL" })'),
    (KAFKA, '"security.protocol" =', "security.protocol =", "connections.bus.options.security: found a table, expected a string, a number, "
     'true or false; a key with dots needs quotes: "security.protocol"'),
    # -- Spark's settings
    (KAFKA, '"spark.driver.memory" =', "spark.driver.memory =", "spark.spark: found a table, expected a string, a number, true or false; "
     'a key with dots needs quotes: "spark.driver.memory"'),
    (KAFKA, '"2g"', '["2g"]', 'spark."spark.driver.memory": found ["2g"], expected a string, a number, true or false'),
    (KAFKA, '[spark]\n"spark.driver.memory" = "2g"\n"spark.ui.enabled" = false\n', 'spark = "local"\n',
     'spark: found "local", expected a table of Spark settings ({ "spark.driver.memory" = "4g" })'),
    # -- sources
    (KAFKA, 'commit_group = "lag"\n', 'commit_group = "lag"\nmax_files_per_trigger = 1\n', wrong_connection_kind_error(f"{S}.max_files_per_trigger", '"files" or "delta" or "iceberg"', "kafka")),
    (KAFKA, 'commit_group = "lag"\n', 'commit_group = "lag"\nformat = "json"\n', wrong_connection_kind_error(f"{S}.format", '"files"', "kafka")),
    (KAFKA, 'commit_group = "lag"\n', 'commit_group = "lag"\nmax_messages_per_trigger = 1\n',
     wrong_connection_kind_error(f"{S}.max_messages_per_trigger", '"rabbitmq" or "kinesis" or "pubsub"', "kafka")),
    (KAFKA.replace('[transform.window]\n', '[transform.window]\nevent_time_column = "t"\n'), SOURCE + KEYS,
     format_source_keys("lake", 'format = "json"\nstarting_offsets = "latest"\n'), wrong_connection_kind_error(f"{S}.starting_offsets", '"kafka" or "delta" or "iceberg" or "kinesis"', "files")),
    (KAFKA, SOURCE + KEYS, format_source_keys("queues", 'commit_group = "lag"\n'), wrong_connection_kind_error(f"{S}.commit_group", '"kafka"', "rabbitmq")),
    (KAFKA, SOURCE + KEYS, format_source_keys("queues", 'payload_format = "avro"\n'),
     f'{S}.payload_format: "avro" needs a connection of kind "kafka", but this one is "rabbitmq"; use "json" or "raw"'),
    (KAFKA, SOURCE + KEYS, format_source_keys("streams", "starting_offsets = { s = { 0 = 1 } }\n"),
     f'{S}.starting_offsets: found offsets, expected "earliest" or "latest"; Kinesis has no offsets to start from'),
    (KAFKA, SOURCE + KEYS, format_source_keys("db", 'format = "json"\n'), f'{S}.connection: "db" is of kind "postgres", but {READS}'),
    (KAFKA, SOURCE + KEYS, format_source_keys("tables", ""), 'transform.window.event_time_column: missing; source "orders" reads a table, whose rows have no default '
     "event time; name the column that contains the event time, or give a SQL expression"),
    (KAFKA, 'query = "orders"\n', 'topic = "orders"\n', f'{S}.topic: unknown key; did you mean "query"?',
     f'{S}.query: missing; name a path or glob, as in "data/*.json", or a topic'),
    (KAFKA, OFFSETS, '"newest"', f'{S}.starting_offsets: found "newest", expected {ANY_OFFSETS}'),
    (KAFKA, OFFSETS, "{}", f"{S}.starting_offsets: found an empty table, expected {ANY_OFFSETS}"),
    (KAFKA, OFFSETS, "{ orders = 5, sales = {} }", f"{S}.starting_offsets.orders: found 5, expected offsets by partition, as in {{ 0 = 1200 }}",
     f"{S}.starting_offsets.sales: found an empty table, expected offsets by partition, as in {{ 0 = 1200 }}"),
    (KAFKA, OFFSETS, "{ orders = { a = 5, 1 = -1, 2 = true } }", f'{S}.starting_offsets.orders.a: found "a", expected a partition number',
     f"{S}.starting_offsets.orders.1: found -1, expected a whole number of at least 0",
     f"{S}.starting_offsets.orders.2: found true, expected a whole number of at least 0"),
    (KAFKA, 'payload_format = "json"', 'payload_format = "jsn"',
     f'{S}.payload_format: found "jsn", expected "json" or "avro" or "json_schema" or "protobuf" or "raw"; did you mean "json"?'),
    (KAFKA, 'payload_format = "json"', 'payload_format = "raw"', f'{S}.schema: applies only to payload_format = "json", but this source has "raw"; remove it'),
    (KAFKA, 'payload_format = "json"', 'avro_schema_file = "a.avsc"',
     f'{S}.avro_schema_file: applies only to payload_format = "avro", but this source has "json"; remove it'),
    (KAFKA.replace('schema_registry = "http://registry"\n', ""), 'payload_format = "json"\nschema = "user STRING, amount DOUBLE"\n',
     'payload_format = "avro"\n', f'{S}.avro_schema_file: missing; payload_format = "avro" needs this file, or schema_registry in the connection'),
    (KAFKA.replace('schema_registry = "http://registry"\n', ""), 'payload_format = "json"\nschema = "user STRING, amount DOUBLE"\n',
     'payload_format = "json_schema"\n', f'{S}.payload_format: "json_schema" needs a schema registry, but the connection has none; set schema_registry in the connection'),
    (KAFKA.replace('schema_registry = "http://registry"\n', ""), 'payload_format = "json"\nschema = "user STRING, amount DOUBLE"\n',
     'payload_format = "protobuf"\n',
     f'{S}.protobuf_schema_file: missing; payload_format = "protobuf" needs this file, or schema_registry in the connection'),
    (KAFKA, 'payload_format = "json"', 'protobuf_schema_file = "a.proto"',
     f'{S}.protobuf_schema_file: applies only to payload_format = "protobuf", but this source has "json"; remove it'),
    (KAFKA, 'payload_format = "json"', 'protobuf_message = "shop.Event"',
     f'{S}.protobuf_message: applies only to payload_format = "protobuf", but this source has "json"; remove it'),
    (KAFKA, 'payload_format = "json"', 'payload_format = "protobuf"',
     f'{S}.schema: applies only to payload_format = "json", but this source has "protobuf"; remove it'),
    (KAFKA, 'payload_format = "json"', 'payload_format = "json_schema"',
     f'{S}.schema: applies only to payload_format = "json", but this source has "json_schema"; remove it'),
    (KAFKA, "amount DOUBLE", "_event_ts TIMESTAMP", f'{S}.schema: declares "_event_ts", a column that Slackwater adds itself; rename it'),
    (KAFKA, "amount DOUBLE", "_KEY STRING", f'{S}.schema: declares "_key", a column that Slackwater adds itself; rename it'),
    (KAFKA, '"skip"', '"ignore"', f'{S}.on_data_loss: found "ignore", expected "fail" or "skip"'),
    (KAFKA, "max_offsets_per_trigger = 1000", "max_offsets_per_trigger = 0", f"{S}.max_offsets_per_trigger: found 0, expected a whole number of at least 1"),
    (KAFKA, "[target]", LOOKUP + "[target]",
     'transform.lookups.users.connection: "bus" is of kind "kafka", but lookups need a connection of kind "files"; choose another connection'),
    # -- targets
    (KAFKA, 'topic = "counts"\n', "", 'target.topic: missing; a kafka target needs a topic, as in "sessions"'),
    (PERSISTED, TARGET, format_target_section("db"), 'target.table: missing; a postgres target needs a table, as in "public.sessions"'),
    (PERSISTED, TARGET, format_target_section("tables"), 'target.path: missing; a delta target needs a directory, as in "lake/sessions"'),
    (PERSISTED, TARGET, format_target_section("ice"), 'target.table: missing; an iceberg target needs a table in a namespace, as in "shop.sessions"'),
    (PERSISTED, TARGET, format_target_section("ice", 'table = "sessions"\n'),
     'target.table: found "sessions", expected a table in a namespace, as in "shop.sessions"'),
    (PERSISTED, TARGET, format_target_section("ice", 'table = "shop."\n'), 'target.table: found "shop.", expected a table in a namespace, as in "shop.sessions"'),
    (PERSISTED, TARGET, format_target_section("ice", 'path = "lake/sessions"\n'),
     wrong_connection_kind_error("target.path", '"files" or "delta"', "iceberg", 'set the key "table" instead: an iceberg target needs a table in a namespace, as in "shop.sessions"')),
    (PERSISTED, TARGET, format_target_section("lake"), 'target.path: missing; a files target needs a directory, as in "out/sessions"'),
    (PERSISTED, TARGET, format_target_section("lake", 'table = "t"\n'),
     wrong_connection_kind_error("target.table", '"postgres" or "iceberg"', "files", 'set the key "path" instead: a files target needs a directory, as in "out/sessions"')),
    (PERSISTED, TARGET, format_target_section("db", 'path = "out"\n'),
     wrong_connection_kind_error("target.path", '"files" or "delta"', "postgres", 'set the key "table" instead: a postgres target needs a table, as in "public.sessions"')),
    (PERSISTED, TARGET, format_target_section("db", 'table = "t"\nmode = "merge"\n'), wrong_connection_kind_error("target.mode", '"delta" or "iceberg"', "postgres")),
    (PERSISTED, TARGET, format_target_section("tables", 'path = "t"\nformat = "json"\n'), wrong_connection_kind_error("target.format", '"files"', "delta")),
    (PERSISTED, TARGET, format_target_section("tables", 'path = "t"\nkey_columns = ["user"]\n'), wrong_connection_kind_error("target.key_columns", '"kafka"', "delta")),
    (PERSISTED, TARGET, format_target_section("queues", 'topic = "t"\n'), f'target.connection: "queues" is of kind "rabbitmq", but results need {WRITES}'),
    (ISSUE, '"lake"\npath = "out/sessions"', '"screen"\npath = "out"', 'target.connection: found "screen", which is not a connection; expected one of lake'),
    (ISSUE.replace('[connections.lake]\n', '[connections.screen]\nkind = "console"\n[connections.lake]\n'), '"lake"\npath = "out/sessions"\n',
     '"screen"\npath = "out"\n', wrong_connection_kind_error("target.path", '"files" or "delta"', "console"), wrong_connection_kind_error("target.format", '"files"', "console")),
    (KAFKA, 'delivery = "exactly_once"', 'delivery = "once"',
     'target.delivery: found "once", expected "at_least_once" or "exactly_once"'),
    (KAFKA, 'value_format = "avro"', 'value_format = "csv"', 'target.value_format: found "csv", expected "json" or "avro"'),
    (KAFKA, '["user"]\n[dead', '"user"\n[dead', 'target.key_columns: found "user", expected a list; write ["user"]'),
    # -- dead letters
    (KAFKA, LETTERS, "", 'dead_letter: missing, but required by on_error = "dlq"; define [dead_letter] with a connection and a path, table or topic'),
    (KAFKA, 'on_error = "dlq"', 'on_error = "drop"', 'dead_letter: unused, because on_error is "drop" and late_data is "drop"; set one of them to "dlq", or remove [dead_letter]'),
    (KAFKA, 'on_error = "dlq"', 'on_error = "dlp"', 'transform.on_error: found "dlp", expected "fail" or "drop" or "dlq"; did you mean "dlq"?'),
    (LATE, LETTERS, "", 'dead_letter: missing, but required by on_error = "dlq" and late_data = "dlq"; define [dead_letter] with a connection and a path, table or topic'),
    (LATE.replace('on_error = "dlq"', 'on_error = "drop"'), LETTERS, "", 'dead_letter: missing, but required by late_data = "dlq"; define [dead_letter] with a connection and a path, table or topic'),
    (KAFKA, 'path = "lake/bad"\n', "", 'dead_letter.path: missing; a delta target needs a directory, as in "lake/sessions"'),
    (KAFKA, 'connection = "tables"\n', "", "dead_letter.connection: missing; name one of the [connections]"),
    (KAFKA, 'connection = "tables"\n', 'connection = "table"\n', 'dead_letter.connection: found "table", which is not a connection; did you mean "tables"?'),
    (KAFKA, 'connection = "tables"\n', 'connection = "pub"\n', f'dead_letter.connection: "pub" is of kind "pubsub", but dead letters need {WRITES}'),
    # -- state and recovery
    (KAFKA, STORE, '[state_store]\nkind = "postgres"\n', 'state_store.url: missing; a "postgres" store needs the URL of a database, for example "${STATE_URL}"'),
    (KAFKA, STORE, '[state_store]\nkind = "files"\npath = "s"\nurl = "u"\n', 'state_store.url: applies only to kind = "postgres", but this store has kind = "files"; remove it'),
    (KAFKA, STORE, '[state_store]\nkind = "files"\npath = "s"\nschema = "u"\n', 'state_store.schema: applies only to kind = "postgres", but this store has kind = "files"; remove it'),
    (ISSUE.replace('"persisted"', '"at_least_once"'), 'kind = "files"                         #', 'kind = "in_memory" #',
     'state_store.path: does not apply to kind = "in_memory", because this store has no directory; remove it'),
    (KAFKA, STORE, '[state_store]\nkind = "files"\npath = "hdfs://n/s"\noptions = { region = "x" }\n',
     'state_store.path: found "hdfs://n/s", expected a directory, or a URL that begins with "s3://", "gs://" or "abfss://"'),
    (KAFKA, STORE, '[state_store]\nkind = "files"\npath = "s"\noptions = { region = "x" }\n',
     'state_store.options: applies only to a path in an object store, as in "s3://bucket/state"; remove it'),
    (KAFKA, STORE, '[state_store]\nkind = "postgre"\nurl = "u"\n',
     'state_store.kind: found "postgre", expected "files" or "postgres" or "in_memory"; did you mean "postgres"?'),
    (PERSISTED, STORE, '[state_store]\nkind = "in_memory"\n',
     'transform.window.crash_recovery: "persisted" needs a durable [state_store]; use kind = "files" or "postgres"'),
    (KAFKA, STORE, "", f'{EOS} a durable [state_store]; use kind = "files" or "postgres"'),
    (KAFKA, 'delivery = "exactly_once"\n', "", f'{EOS} a kafka target with delivery = "exactly_once"; define such a target, or use "persisted"'),
    (KAFKA, TARGET, format_target_section("db", 'table = "t"\n'), f'{EOS} a kafka target with delivery = "exactly_once"; define such a target, or use "persisted"'),
]
