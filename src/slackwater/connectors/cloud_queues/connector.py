"""Connectors for Kinesis and Pub/Sub, based on Spark connectors that the user installs."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, TypeVar

from slackwater.config.connection import KinesisConnection, PubSubConnection
from slackwater.config.source import Source
from slackwater.connectors.cloud_queues.options import CloudReader, kinesis_options, pubsub_options
from slackwater.connectors.connector import RecordFrame, SparkStreamConnector
from slackwater.connectors.source import spark_error_reason
from slackwater.core.column_names import quote_identifier
from slackwater.errors import StartError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


Q = TypeVar("Q", KinesisConnection, PubSubConnection)


class _CloudConnector(SparkStreamConnector[Q]):
    """Base class for the Kinesis and Pub/Sub connectors."""

    @abstractmethod
    def reader(self, spec: Source) -> CloudReader:
        """Return the format and the options with which Spark reads a source."""

    def records(self, session: SparkSession, spec: Source) -> RecordFrame:
        reader = self.reader(spec)
        options = {**reader.options, **self.connection.options, **spec.options}
        try:
            frame = session.readStream.format(reader.format).options(**options).load()
        except Exception as error:
            raise reader.missing_connector_error(error) or StartError(
                f'source "{spec.name}": {spark_error_reason(error)}'
            ) from None
        time = quote_identifier(reader.event_time_column)
        time = f"timestamp_millis({time})" if reader.event_time_unit else time
        return RecordFrame(frame, reader.payload_column, [f"{time} AS _event_ts"])


class KinesisConnector(_CloudConnector[KinesisConnection]):
    """Connector for Amazon Kinesis streams."""

    def reader(self, spec: Source) -> CloudReader:
        return kinesis_options(
            spec.query or "",
            self.connection.region,
            starting_position=spec.starting_offsets if isinstance(spec.starting_offsets, str) else "latest",
            endpoint=self.connection.endpoint,
            max_records_per_shard=spec.max_messages_per_trigger,
        )


class PubSubConnector(_CloudConnector[PubSubConnection]):
    """Connector for Google Pub/Sub subscriptions."""

    def reader(self, spec: Source) -> CloudReader:
        return pubsub_options(
            spec.query or "",
            project=self.connection.project,
            location=self.connection.location,
            max_records_per_batch=spec.max_messages_per_trigger,
        )
