"""Connectors for Kinesis and Pub/Sub, based on Spark connectors that the user installs.

The settings of a stream are checked, and converted to options of the Spark connector:

    r = kinesis_options("clicks", "eu-west-1")    # format, options, columns, packages to install
    session.readStream.format(r.format).options(**r.options).load()

The conversion uses neither Spark nor the network. The option names come from the documentation of the Spark connectors.
The options have not been tested against the real services. The sources can resume only from Spark's checkpoint.
"""

from __future__ import annotations

import datetime as dt
import re
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from slackwater.config.connection import KinesisConnection, PubSubConnection
from slackwater.config.source import Source
from slackwater.connectors.connector import RecordFrame, SparkStreamConnector
from slackwater.connectors.source import spark_error_reason
from slackwater.core.column_names import quote_identifier
from slackwater.core.humanize import mismatch
from slackwater.errors import ConfigError, StartError, Topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_KINESIS_JAR = (
    'Spark does not know the format "aws-kinesis"; expected the Kinesis connector by awslabs; build the jar of '
    "github.com/awslabs/spark-sql-kinesis-connector for Scala 2.13 and add it to spark.jars"
)
_PUBSUB_LITE_JAR = (
    'Spark does not know the format "pubsublite"; expected Google\'s Pub/Sub Lite connector; '
    "add com.google.cloud:pubsublite-spark-sql-streaming:1.0.1 to spark.jars.packages"
)
_PUBSUB_RUNTIME = (
    'Spark does not know the format "pubsub"; expected a Databricks runtime, the only one that includes it; '
    "run on Databricks, or read the subscription through Kafka"
)


@dataclass(frozen=True)
class CloudReader:
    """The format and options with which Spark reads a cloud stream.

    Args:
        format: The name of the Spark data source.
        options: The options of the Spark data source.
        payload_column: The column with the bytes of a record.
        event_time_column: The column with the time of a record.
        event_time_unit: The unit of the time column. None if its type is TIMESTAMP.
        install: The error message if Spark does not know the format.
    """

    format: str
    options: Mapping[str, str]
    payload_column: str
    event_time_column: str
    event_time_unit: str | None
    install: str

    def missing_connector_error(self, error: BaseException) -> StartError | None:
        """Return an error that says what to install, or None if `error` does not report an unknown format."""
        text = str(error)
        unknown = (
            "DATA_SOURCE_NOT_FOUND" in text or "Failed to find data source" in text or "Failed to find the data" in text
        )
        return StartError(self.install, Topic.NOT_INSTALLED) if unknown and self.format in text else None


def kinesis_options(
    stream: str,
    region: str,
    *,
    starting_position: str = "latest",
    endpoint: str | None = None,
    consumer_name: str | None = None,
    max_records_per_shard: int | None = None,
    on_data_loss: str = "fail",
) -> CloudReader:
    """Return a reader for a Kinesis data stream.

    The event time is the column `approximateArrivalTimestamp`, or a field of the payload in the column `data`.

    Args:
        stream: The name of the stream.
        region: The AWS region, such as "eu-west-1".
        starting_position: "latest", "earliest" or an instant with a time zone ("2024-03-01T09:00:00Z").
        endpoint: The URL of an endpoint to use in place of the region's default endpoint.
        consumer_name: The consumer name for enhanced fan-out, which pushes the stream and costs extra. Each pipeline
            needs its own name. If None, the stream is polled.
        max_records_per_shard: The maximum number of records per shard and batch.
        on_data_loss: "skip" continues if a shard was deleted or has expired; "fail" stops with an error.

    Raises:
        ConfigError: One or more settings are wrong. The message lists all of them.
    """
    problems: list[str] = []
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", stream):
        problems.append("stream: " + mismatch(f'"{stream}"', 'the name of a stream (letters, digits, "_", "-", ".")'))
    if not re.fullmatch(r"[a-z]{2,}(-[a-z]+)+-\d+", region):
        problems.append("region: " + mismatch(f'"{region}"', 'one such as "eu-west-1"'))
    if consumer_name is not None and not re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", consumer_name):
        problems.append("consumer_name: " + mismatch(f'"{consumer_name}"', 'letters, digits, "_", "-" and "."'))
    _check_endpoint(endpoint, problems)
    _check_whole("max_records_per_shard", max_records_per_shard, problems)
    _check_loss(on_data_loss, problems)
    position = _kinesis_position(starting_position, problems)
    if problems:
        raise ConfigError(problems)
    domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    options = {
        "kinesis.streamName": stream,
        "kinesis.region": region,
        "kinesis.endpointUrl": endpoint or f"https://kinesis.{region}.{domain}",
        "kinesis.startingPosition": position,
        "kinesis.consumerType": "GetRecords" if consumer_name is None else "SubscribeToShard",
        "kinesis.failOnDataLoss": str(on_data_loss == "fail").lower(),  # by default, the connector loses data silently
    }
    if consumer_name is not None:
        options["kinesis.consumerName"] = consumer_name
    if max_records_per_shard is not None:
        options["kinesis.maxFetchRecordsPerShard"] = str(max_records_per_shard)
    return CloudReader("aws-kinesis", options, "data", "approximateArrivalTimestamp", None, _KINESIS_JAR)


def pubsub_options(
    subscription: str,
    *,
    project: str | None = None,
    topic: str | None = None,
    location: str | None = None,
    max_records_per_batch: int | None = None,
) -> CloudReader:
    """Return a reader for a subscription of Pub/Sub Lite, or of Pub/Sub itself (on Databricks only).

    Reading begins at the oldest unacknowledged message. The event time is the column `publish_timestamp` for Pub/Sub
    Lite, and `publishTimestampInMillis`, in milliseconds, for Pub/Sub itself.

    Args:
        subscription: The name of the subscription. For Pub/Sub Lite, it can be the full path
            (projects/…/locations/…/subscriptions/…), in which case `project`, `topic` and `location` are omitted.
        project: The project of the subscription.
        topic: The topic of the subscription; only for Pub/Sub itself.
        location: The location of the subscription; only for Pub/Sub Lite.
        max_records_per_batch: The maximum number of messages per batch or, for Pub/Sub itself, per request by a task.

    Raises:
        ConfigError: One or more arguments are wrong. The message lists all of them.
    """
    problems: list[str] = []
    _check_whole("max_records_per_batch", max_records_per_batch, problems)
    full = "/" in subscription
    path = r"projects/[^/\s]+/locations/[a-z0-9-]+/subscriptions/[^/\s]+"
    if full and not re.fullmatch(path, subscription):
        problems.append(
            "subscription: "
            + mismatch(f'"{subscription}"', "a name, or for Pub/Sub Lite projects/…/locations/…/subscriptions/…")
        )
    if not full and not re.fullmatch(r"[A-Za-z][\w.~+%-]{2,254}", subscription, re.ASCII):
        problems.append(
            "subscription: " + mismatch(f'"{subscription}"', 'a name of 3 to 255 letters, digits and "-._~+%"')
        )
    if full and (redundant := [k for k, v in (("project", project), ("topic", topic), ("location", location)) if v]):
        problems.append(f"{redundant[0]}: is part of the full path of the subscription; remove it")
    if not full and not project:
        problems.append("project: missing; expected the project of the subscription")
    if not full and bool(topic) == bool(location):
        problems.append(
            "topic, location: expected one of them: location for Pub/Sub Lite, topic for Pub/Sub on Databricks"
        )
    if problems:
        raise ConfigError(problems)
    if topic:
        options = {"subscriptionId": subscription, "topicId": topic, "projectId": project or ""}
        if max_records_per_batch is not None:
            options["maxRecordsPerFetch"] = str(max_records_per_batch)  # the closest option: per request of a task
        return CloudReader("pubsub", options, "payload", "publishTimestampInMillis", "ms", _PUBSUB_RUNTIME)
    where = subscription if full else f"projects/{project}/locations/{location}/subscriptions/{subscription}"
    options = {"pubsublite.subscription": where}
    if max_records_per_batch is not None:
        options["pubsublite.flowcontrol.maxmessagesperbatch"] = str(max_records_per_batch)
    return CloudReader("pubsublite", options, "data", "publish_timestamp", None, _PUBSUB_LITE_JAR)


def _kinesis_position(text: str, problems: list[str]) -> str:
    named = {"latest": "LATEST", "earliest": "TRIM_HORIZON"}.get(text)
    if named is not None:
        return named
    try:
        instant = dt.datetime.fromisoformat(text)
    except ValueError:
        instant = None
    if instant is None or instant.tzinfo is None:
        problems.append(
            f'starting_position: found "{text}", expected "latest", "earliest" or a timestamp with a time zone such '
            'as "2024-03-01T09:00:00Z"'
        )
        return ""
    return f"AT_TIMESTAMP {instant.astimezone(dt.UTC):%Y-%m-%dT%H:%M:%SZ}"


def _check_endpoint(endpoint: str | None, problems: list[str]) -> None:
    if endpoint is None:
        return
    try:
        parts = urlsplit(endpoint)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
    except ValueError:
        good = False
    if not good:
        problems.append("endpoint: expected http:// or https:// and a host, without user and password")


def _check_whole(key: str, value: int | None, problems: list[str]) -> None:
    if value is not None and (isinstance(value, bool) or value < 1):
        problems.append(f"{key}: {mismatch(value, 'a whole number from 1')}")


def _check_loss(value: str, problems: list[str]) -> None:
    if value not in ("fail", "skip"):
        problems.append("on_data_loss: " + mismatch(f'"{value}"', '"fail" or "skip"'))


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
