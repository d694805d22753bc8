"""Settings of a Kafka connection for librdkafka. Refused settings are reported before a broker is contacted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from slackwater.config.connection import KafkaConnection
from slackwater.config.source import Source
from slackwater.connectors.kafka.broker import KafkaBroker, make_client
from slackwater.connectors.kafka.source import CONSUMER_DEFAULTS, KafkaSource
from slackwater.connectors.payloads.base import RawPayload
from slackwater.errors import StartError

NOWHERE = "127.0.0.1:1"
SCRAM = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"}
JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="u \\"1\\"" password="p=;w";'


def broker(**options: str) -> KafkaBroker:
    return KafkaBroker(KafkaConnection(bootstrap_servers=NOWHERE, options=options))


REFUSED = {
    "a name that it does not know": {"fetch.max.wait.millis": "5"},
    "a wrong value": {"security.protocol": "SASLSSL"},
    "a Java setting": {"ssl.keystore.type": "JKS"},
    "SCRAM without a user": SCRAM,
    "a certificate that does not exist": {"security.protocol": "SSL", "ssl.ca.location": "/nowhere/ca.pem"},
    "a number beyond its range": {"socket.timeout.ms": "9" * 5000},
}
QUESTIONS: dict[str, Callable[[KafkaBroker], object]] = {
    "partitions": lambda b: b.partitions("t", 'source "s"'),
    "bounds": lambda b: b.offset_ranges([("t", 0)]),
    "at": lambda b: b.offsets_at_ms([("t", 0)], 0),
    "topic ids": lambda b: b.topic_ids(["t"]),
    "a consumer": lambda b: make_client(Consumer, {**b.settings(), "group.id": "g"}),
}


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_kafka_setting_is_reported_with_a_one_line_error(name: str, question: str) -> None:
    with pytest.raises(
        StartError, match=rf"Kafka at {NOWHERE}: a setting is not accepted \(.+\); correct the options"
    ) as raised:
        QUESTIONS[question](broker(**REFUSED[name]))
    assert len(str(raised.value).splitlines()) == 1


def test_user_and_password_are_read_from_a_jaas_entry() -> None:
    settings = broker(**SCRAM, **{"sasl.jaas.config": JAAS}).settings()
    assert (settings["sasl.username"], settings["sasl.password"]) == ('u "1"', "p=;w")
    assert "sasl.jaas.config" not in settings
    assert make_client(AdminClient, settings) is not None  # a producer without pending messages is falsy


def test_librdkafka_options_override_the_jaas_entry() -> None:
    settings = broker(**SCRAM, **{"sasl.jaas.config": JAAS, "sasl.username": "other"}).settings()
    assert (settings["sasl.username"], settings["sasl.password"]) == ("other", "p=;w")


def test_connection_options_override_consumer_defaults() -> None:
    def options(**settings: str) -> dict[str, str]:
        spec = Source(name="s", connection="k", query="t")
        return KafkaSource(spec, broker(**settings), RawPayload(schema=None), "g")._options()  # type: ignore[arg-type]

    assert CONSUMER_DEFAULTS.items() <= options().items()
    assert options(**{"fetch.max.wait.ms": "700"})["kafka.fetch.max.wait.ms"] == "700"
