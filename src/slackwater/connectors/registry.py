"""The connectors.

Each kind of system has one class, which creates and checks sources and targets and reads dead letters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slackwater.config.connection import Connection
from slackwater.connectors.cloud_queues.connector import KinesisConnector, PubSubConnector
from slackwater.connectors.connector import Connector
from slackwater.connectors.console.connector import ConsoleConnector
from slackwater.connectors.delta.connector import DeltaConnector
from slackwater.connectors.files.connector import FilesConnector
from slackwater.connectors.iceberg.connector import IcebergConnector
from slackwater.connectors.kafka.connector import KafkaConnector
from slackwater.connectors.postgres.connector import PostgresConnector
from slackwater.connectors.rabbitmq.connector import RabbitMQConnector

CONNECTOR_TYPES: Mapping[str, type[Connector[Any]]] = {
    "files": FilesConnector,
    "console": ConsoleConnector,
    "kafka": KafkaConnector,
    "postgres": PostgresConnector,
    "delta": DeltaConnector,
    "iceberg": IcebergConnector,
    "rabbitmq": RabbitMQConnector,
    "kinesis": KinesisConnector,
    "pubsub": PubSubConnector,
}


def connector_for(connection: Connection) -> Connector[Any]:
    return CONNECTOR_TYPES[connection.kind](connection)
