"""The connectors.

Each kind of system has one class, which creates and checks sources and targets and reads dead letters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slackwater.config.connection import Connection
from slackwater.runner.connectors.base import Connector
from slackwater.runner.connectors.cloud_queues import KinesisConnector, PubSubConnector
from slackwater.runner.connectors.console import ConsoleConnector
from slackwater.runner.connectors.delta import DeltaConnector
from slackwater.runner.connectors.files import FilesConnector
from slackwater.runner.connectors.iceberg import IcebergConnector
from slackwater.runner.connectors.kafka import KafkaConnector
from slackwater.runner.connectors.postgres import PostgresConnector
from slackwater.runner.connectors.rabbitmq import RabbitMQConnector

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
