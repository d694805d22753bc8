"""Description of the connector for RabbitMQ queues as sources."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from slackwater.config.connection import RabbitMQConnection
from slackwater.config.connector_description import ConnectorDescription, Dataset


def _datasets(connection: RabbitMQConnection, query: str) -> Iterable[Dataset]:
    address = urlsplit(connection.url)
    return [(f"amqp://{address.hostname}:{address.port or 5672}", f"{address.path.lstrip('/') or '/'}.{query}")]


RABBITMQ = ConnectorDescription(
    kind="rabbitmq",
    connection=RabbitMQConnection,
    connector="slackwater.connectors.rabbitmq.connector:RabbitMQConnector",
    metadata_columns=("_value", "_routing_key", "_exchange", "_message_id", "_headers", "_received"),
    has_timestamp=True,
    uses_ingest_time=True,
    keys=("schema_", "payload_format", "max_messages_per_trigger"),
    short_name=lambda s: f"{s.query} in rabbitmq",
    plan_text=lambda s: f"{s.query} in rabbitmq",
    source_datasets=_datasets,
)
