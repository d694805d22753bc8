"""Descriptions of the connectors for Amazon Kinesis streams and Google Pub/Sub subscriptions as sources."""

from __future__ import annotations

from slackwater.config.connection import KinesisConnection, PubSubConnection
from slackwater.config.connector_description import ConnectorDescription, StartPosition

_KEYS = ("schema_", "payload_format", "max_messages_per_trigger")

KINESIS = ConnectorDescription(
    kind="kinesis",
    connection=KinesisConnection,
    connector="slackwater.connectors.cloud_queues.connector:KinesisConnector",
    metadata_columns=("_value",),
    has_timestamp=True,
    keys=(*_KEYS, "starting_offsets"),
    start=StartPosition("latest", no_offsets_reason="Kinesis has no offsets to start from"),
    short_name=lambda s: f"{s.query} in kinesis",
    plan_text=lambda s: f"{s.query} in kinesis",
    source_datasets=lambda connection, query: [(f"kinesis://{connection.region}", query)],
)

PUBSUB = ConnectorDescription(
    kind="pubsub",
    connection=PubSubConnection,
    connector="slackwater.connectors.cloud_queues.connector:PubSubConnector",
    metadata_columns=("_value",),
    has_timestamp=True,
    keys=_KEYS,
    short_name=lambda s: f"{s.query} in pubsub",
    plan_text=lambda s: f"{s.query} in pubsub",
    source_datasets=lambda connection, query: [("pubsub", f"subscription:{connection.project}:{query}")],
)
