"""Kinesis and Pub/Sub: settings become options of the connectors, and all mistakes are reported at once."""

from __future__ import annotations

from typing import Any

import pytest

from slackwater.connectors.cloud_queues.connector import CloudReader, kinesis_options, pubsub_options
from slackwater.errors import ConfigError


def test_kinesis_stream_becomes_reader_options() -> None:
    reader = kinesis_options("clicks", "eu-west-1")
    assert reader.format == "aws-kinesis"
    assert dict(reader.options) == {
        "kinesis.streamName": "clicks",
        "kinesis.region": "eu-west-1",
        "kinesis.endpointUrl": "https://kinesis.eu-west-1.amazonaws.com",
        "kinesis.startingPosition": "LATEST",
        "kinesis.consumerType": "GetRecords",
        "kinesis.failOnDataLoss": "true",
    }
    assert (reader.payload_column, reader.event_time_column) == ("data", "approximateArrivalTimestamp")
    assert reader.event_time_unit is None


@pytest.mark.parametrize(
    ("settings", "option", "expected"),
    [
        ({"starting_position": "earliest"}, "startingPosition", "TRIM_HORIZON"),
        ({"starting_position": "2024-03-01T10:00:00+01:00"}, "startingPosition", "AT_TIMESTAMP 2024-03-01T09:00:00Z"),
        ({"endpoint": "http://localhost:4566"}, "endpointUrl", "http://localhost:4566"),
        ({"consumer_name": "night"}, "consumerType", "SubscribeToShard"),
        ({"consumer_name": "night"}, "consumerName", "night"),
        ({"max_records_per_shard": 500}, "maxFetchRecordsPerShard", "500"),
        ({"on_data_loss": "skip"}, "failOnDataLoss", "false"),
        ({"region": "cn-north-1"}, "endpointUrl", "https://kinesis.cn-north-1.amazonaws.com.cn"),
    ],
)
def test_each_kinesis_setting_becomes_a_reader_option(settings: dict[str, Any], option: str, expected: str) -> None:
    assert kinesis_options("s", **{"region": "eu-west-1", **settings}).options[f"kinesis.{option}"] == expected


def test_all_invalid_kinesis_settings_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        kinesis_options(
            "a b",
            "Ireland",
            starting_position="2024-03-01T09:00:00",
            endpoint="https://user:s3cret@host",
            consumer_name="",
            max_records_per_shard=0,
            on_data_loss="shrug",
        )
    keys = [line.split(":")[0] for line in raised.value.problems]
    assert keys == [
        "stream",
        "region",
        "consumer_name",
        "endpoint",
        "max_records_per_shard",
        "on_data_loss",
        "starting_position",
    ]
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    ("subscription", "beside"),
    [
        ("projects/1/locations/us-east1-b/subscriptions/night", {}),
        ("night", {"project": "1", "location": "us-east1-b"}),
    ],
)
def test_pubsub_lite_subscription_becomes_reader_options(subscription: str, beside: dict[str, Any]) -> None:
    reader = pubsub_options(subscription, max_records_per_batch=10, **beside)
    assert reader.format == "pubsublite"
    assert dict(reader.options) == {
        "pubsublite.subscription": "projects/1/locations/us-east1-b/subscriptions/night",
        "pubsublite.flowcontrol.maxmessagesperbatch": "10",
    }
    assert (reader.event_time_column, reader.event_time_unit) == ("publish_timestamp", None)


def test_pubsub_subscription_becomes_reader_options() -> None:
    reader = pubsub_options("night", project="p", topic="clicks", max_records_per_batch=10)
    assert reader.format == "pubsub"
    assert dict(reader.options) == {
        "subscriptionId": "night",
        "topicId": "clicks",
        "projectId": "p",
        "maxRecordsPerFetch": "10",
    }
    assert (reader.payload_column, reader.event_time_column, reader.event_time_unit) == (
        "payload",
        "publishTimestampInMillis",
        "ms",
    )


@pytest.mark.parametrize(
    ("subscription", "beside", "keys"),
    [
        ("night", {}, ["project", "topic, location"]),
        ("night", {"project": "p", "topic": "t", "location": "l"}, ["topic, location"]),
        ("x", {"project": "p", "topic": "t"}, ["subscription"]),
        ("projects/1/subscriptions/night", {}, ["subscription"]),
        ("projects/1/locations/l/subscriptions/night", {"project": "1"}, ["project"]),
        ("night", {"project": "p", "topic": "t", "max_records_per_batch": 0}, ["max_records_per_batch"]),
    ],
)
def test_invalid_pubsub_settings_are_reported_by_key(
    subscription: str, beside: dict[str, Any], keys: list[str]
) -> None:
    with pytest.raises(ConfigError) as raised:
        pubsub_options(subscription, **beside)
    assert [line.split(":")[0] for line in raised.value.problems] == keys


@pytest.mark.parametrize(
    ("reader", "advice"),
    [
        (kinesis_options("s", "eu-west-1"), "spark.jars"),
        (pubsub_options("night", project="p", location="l"), "pubsublite-spark-sql-streaming"),
        (pubsub_options("night", project="p", topic="t"), "Databricks"),
    ],
)
def test_missing_cloud_connector_error_names_the_package(reader: CloudReader, advice: str) -> None:
    unknown = Exception(f"[DATA_SOURCE_NOT_FOUND] Failed to find the data source: {reader.format}. Make sure …")
    error = reader.missing_connector_error(unknown)
    assert error is not None and advice in str(error) and "\n" not in str(error)
    assert reader.missing_connector_error(Exception("no route to host")) is None
