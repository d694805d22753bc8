"""A RabbitMQ broker: queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slackwater.config.connection import RabbitMQConnection
from slackwater.config.source import Source
from slackwater.runner.systems.stream import Records, Stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BESIDE = ("routing_key", "exchange", "message_id", "headers", "received")


class RabbitMQ(Stream[RabbitMQConnection]):
    def records(self, session: SparkSession, spec: Source) -> Records:
        from slackwater.sources import rabbitmq

        most: dict[str, Any] = {}
        if spec.max_messages_per_trigger is not None:
            most["max_messages_per_trigger"] = spec.max_messages_per_trigger
        frame = rabbitmq.stream(session, self.connection.url, spec.query or "", **{**spec.options, **most})
        return Records(frame, "body", [f"{c} AS _{c}" for c in _BESIDE])

    def check_source(self, spec: Source) -> None:
        from slackwater.sources import rabbitmq

        rabbitmq.check(self.connection.url, spec.query or "")
