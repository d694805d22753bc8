"""Description of the connector for Kafka topics as sources, as targets and for dead letters."""

from __future__ import annotations

from collections.abc import Iterable

from slackwater.config.connection import KafkaConnection
from slackwater.config.connector_description import ConnectorDescription, Dataset, StartPosition, TargetKeys
from slackwater.config.window import Window
from slackwater.core.offsets import KafkaOffsets


def _at_least_once(t: TargetKeys) -> str | None:
    if t.delivery == "exactly_once":
        return None
    return 'at least once: a restart may publish an epoch again; set delivery = "exactly_once" for transactions'


def _upserts(t: TargetKeys, window: Window) -> bool:
    """Return whether the key of a Kafka record identifies one result by its `group_by` values and its window."""
    if t.key_columns is None:
        return True
    keys, key_columns = set(window.group_by), set(t.key_columns)
    window_identity = {window.window_start_column, *(["session_id"] if window.kind == "session" else [])}
    return keys < key_columns <= keys | window_identity


def _topics(connection: KafkaConnection, query: str) -> Iterable[Dataset]:
    topics = [query] if query.startswith("pattern:") else [t.strip() for t in query.split(",")]
    return [(_brokers(connection), topic) for topic in topics if topic]


def _brokers(connection: KafkaConnection) -> str:
    return f"kafka://{connection.bootstrap_servers.split(',')[0].strip()}"


KAFKA = ConnectorDescription(
    kind="kafka",
    connection=KafkaConnection,
    connector="slackwater.connectors.kafka.connector:KafkaConnector",
    spark_packages=("kafka",),
    metadata_columns=("_key", "_value", "_headers", "_topic", "_partition", "_offset"),
    has_timestamp=True,
    keeps_history=True,
    keys=(
        "schema_",
        "payload_format",
        "avro_schema_file",
        "protobuf_schema_file",
        "protobuf_message",
        "starting_offsets",
        "max_offsets_per_trigger",
        "on_data_loss",
        "commit_group",
    ),
    offsets=KafkaOffsets,
    start=StartPosition("earliest", offsets=True),
    short_name=lambda s: f"{s.query} in kafka",
    plan_text=lambda s: f"{s.payload_format or 'json'} records of {s.query} in Kafka",
    batch_limit=lambda s: s.max_offsets_per_trigger,
    source_datasets=_topics,
    target_keys=("topic", "delivery", "value_format", "key_columns", "create", "partitions"),
    required_target_key=("topic", 'a kafka target needs a topic, as in "sessions"'),
    upserts=_upserts,
    location_text=lambda t: f"Kafka topic {t.topic}",
    write_text=lambda t, adds, within: f"Kafka topic {t.topic}, {(t.delivery or 'at_least_once').replace('_', ' ')}",
    append_only_text="a kafka target with these key_columns",
    at_least_once_reason=_at_least_once,
    exactly_once_text="exactly once for read_committed consumers: rows and the last epoch are one Kafka transaction",
    target_dataset=lambda connection, t: (_brokers(connection), t.topic or ""),
)
