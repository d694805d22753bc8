"""The connectors, with one folder per system.

In each folder, `__init__.py` describes the connector, and `connector.py` creates and checks sources and targets. Two
folders serve several systems: `payloads` decodes records, and `lake_tables` contains the code that Delta and Iceberg share.

May import: config, core, errors, logging, pyspark, secret_masking, state, storage, tuning_switches.
"""

from __future__ import annotations

from collections.abc import Mapping

# the import path of each built-in connector's description, by kind of system
DESCRIPTIONS: Mapping[str, str] = {
    "files": "slackwater.connectors.files:FILES",
    "console": "slackwater.connectors.console:CONSOLE",
    "kafka": "slackwater.connectors.kafka:KAFKA",
    "postgres": "slackwater.connectors.postgres:POSTGRES",
    "delta": "slackwater.connectors.delta:DELTA",
    "iceberg": "slackwater.connectors.iceberg:ICEBERG",
    "rabbitmq": "slackwater.connectors.rabbitmq:RABBITMQ",
    "kinesis": "slackwater.connectors.cloud_queues:KINESIS",
    "pubsub": "slackwater.connectors.cloud_queues:PUBSUB",
}
