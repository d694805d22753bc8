"""Connector for RabbitMQ queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slackwater.config.connection import RabbitMQConnection
from slackwater.config.source import Source
from slackwater.connectors.connector import RecordFrame, SparkStreamConnector

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EXTRA_COLUMNS = ("routing_key", "exchange", "message_id", "headers", "received")


class RabbitMQConnector(SparkStreamConnector[RabbitMQConnection]):
    """Connector for RabbitMQ queues as sources."""

    def records(self, session: SparkSession, spec: Source) -> RecordFrame:
        from slackwater.connectors.rabbitmq import source as rabbitmq_source

        limits: dict[str, Any] = {}
        if spec.max_messages_per_trigger is not None:
            limits["max_messages_per_trigger"] = spec.max_messages_per_trigger
        frame = rabbitmq_source.stream(session, self.connection.url, spec.query or "", **{**spec.options, **limits})
        return RecordFrame(frame, "body", [f"{c} AS _{c}" for c in _EXTRA_COLUMNS])

    def check_source(self, spec: Source) -> None:
        from slackwater.connectors.rabbitmq import source as rabbitmq_source

        rabbitmq_source.check_queue(self.connection.url, spec.query or "")
