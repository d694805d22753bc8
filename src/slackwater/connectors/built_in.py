"""The built-in connectors: the import path of each connector's description, by kind of system."""

from __future__ import annotations

from collections.abc import Mapping

DESCRIPTIONS: Mapping[str, str] = {
    "files": "slackwater.connectors.files.description:FILES",
    "console": "slackwater.connectors.console.description:CONSOLE",
    "kafka": "slackwater.connectors.kafka.description:KAFKA",
    "postgres": "slackwater.connectors.postgres.description:POSTGRES",
    "delta": "slackwater.connectors.delta.description:DELTA",
    "iceberg": "slackwater.connectors.iceberg.description:ICEBERG",
    "rabbitmq": "slackwater.connectors.rabbitmq.description:RABBITMQ",
    "kinesis": "slackwater.connectors.cloud_queues.description:KINESIS",
    "pubsub": "slackwater.connectors.cloud_queues.description:PUBSUB",
}
