"""A record per kind of system, as a run meets it: what it reads from it and writes to it, looks at before, and reads back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slackwater.config.connection import Connection
from slackwater.runner.systems.base import System
from slackwater.runner.systems.cloud import Kinesis, PubSub
from slackwater.runner.systems.console import Console
from slackwater.runner.systems.delta import Delta
from slackwater.runner.systems.files import Files
from slackwater.runner.systems.iceberg import Iceberg
from slackwater.runner.systems.kafka import Kafka
from slackwater.runner.systems.postgres import Postgres
from slackwater.runner.systems.rabbitmq import RabbitMQ

SYSTEMS: Mapping[str, type[System[Any]]] = {
    "files": Files,
    "console": Console,
    "kafka": Kafka,
    "postgres": Postgres,
    "delta": Delta,
    "iceberg": Iceberg,
    "rabbitmq": RabbitMQ,
    "kinesis": Kinesis,
    "pubsub": PubSub,
}


def system_of(connection: Connection) -> System[Any]:
    return SYSTEMS[connection.kind](connection)
