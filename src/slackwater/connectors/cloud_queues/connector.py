"""Connectors for Kinesis and Pub/Sub. They use Spark connectors that the user installs."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from slackwater.config.connection import KinesisConnection, PubSubConnection
from slackwater.config.source import Source
from slackwater.connectors.cloud_queues.options import CloudReader, kinesis_options, pubsub_options
from slackwater.connectors.connector import C
from slackwater.connectors.source import spark_error_reason
from slackwater.connectors.spark_stream import RecordFrame, SparkStreamConnector
from slackwater.core.column_names import quote_identifier
from slackwater.errors import StartError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class _CloudConnector(SparkStreamConnector[C]):
    """Base class of connectors for cloud queues. Subclasses return the options of the Spark connector."""

    @abstractmethod
    def reader(self, spec: Source) -> CloudReader: ...

    @property
    @abstractmethod
    def options(self) -> dict[str, str]: ...

    def records(self, session: SparkSession, spec: Source) -> RecordFrame:
        reader = self.reader(spec)
        options = {**reader.options, **self.options, **spec.options}
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

    @property
    def options(self) -> dict[str, str]:
        return dict(self.connection.options)


class PubSubConnector(_CloudConnector[PubSubConnection]):
    """Connector for Google Pub/Sub subscriptions."""

    def reader(self, spec: Source) -> CloudReader:
        return pubsub_options(
            spec.query or "",
            project=self.connection.project,
            location=self.connection.location,
            max_records_per_batch=spec.max_messages_per_trigger,
        )

    @property
    def options(self) -> dict[str, str]:
        return dict(self.connection.options)
