"""Request the topics, partitions, topic ids and offsets of a Kafka cluster, without reading records."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from slackwater.config.connection import KafkaConnection
from slackwater.errors import EpochError, StartError, Topic

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

SECONDS = 15  # timeout of a request to the brokers
# settings of the Java client that librdkafka does not support
_JVM_ONLY = ("sasl.jaas.config", "ssl.truststore.location", "ssl.truststore.password", "ssl.truststore.type")
_JAAS = {name: re.compile(rf'\b{name}\s*=\s*"((?:[^"\\]|\\.)*)"') for name in ("username", "password")}
T = TypeVar("T")


@dataclass(frozen=True)
class KafkaBroker:
    """A connection to a cluster, for metadata and offsets.

    EpochError means that the brokers did not respond or rejected a request.
    """

    connection: KafkaConnection
    errors: list[str] = field(default_factory=list)

    def settings(self) -> dict[str, Any]:
        """Return the settings for librdkafka. They disable its log, and append its errors to `errors` instead."""

        def on_error(error: Any) -> None:
            self.errors.append(error.str())

        return {**client_settings(self.connection), "log_level": 0, "error_cb": on_error}

    @cached_property
    def _admin(self) -> AdminClient:
        from confluent_kafka.admin import AdminClient

        return make_client(AdminClient, self.settings())

    def partitions(self, query: str, where: str) -> dict[str, list[int]]:
        """Return the partition numbers of each topic that matches a query.

        `where`: the prefix of error messages. Raises StartError if the brokers do not respond or a topic does not
        exist.
        """
        from confluent_kafka import KafkaException

        admin = self._admin
        try:
            topics = admin.list_topics(timeout=SECONDS).topics
        except KafkaException as error:
            admin.poll(0)
            last = [e for e in self.errors if "brokers are down" not in e]
            raise StartError(
                f"{where}: Kafka at {self.connection.bootstrap_servers} cannot be reached "
                f"({last[-1] if last else error.args[0].str()}); check bootstrap_servers and that the brokers are "
                "running",
                Topic.SERVICE_UNREACHABLE,
            ) from None
        partitions = {t: sorted(meta.partitions) for t, meta in topics.items() if matches_query(query, t)}
        missing = [t for t in named_topics(query) if t not in partitions]
        if missing:
            others = ", ".join(sorted(t for t in topics if not t.startswith("_"))[:10]) or "none"
            raise StartError(
                f'{where}: there is no topic "{missing[0]}" at {self.connection.bootstrap_servers}; create it, or correct '
                f'"query"; available: {others}',
                Topic.INPUT_MISSING,
            )
        return partitions

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        """Return the id of each topic. Raises EpochError.

        The result omits topics that do not exist. It is empty if the brokers do not support topic ids.
        """
        from confluent_kafka import KafkaError, KafkaException, TopicCollection

        end, ids = time.monotonic() + SECONDS, dict[str, str]()
        for topic, answer in self._admin.describe_topics(
            TopicCollection(list(topics)), request_timeout=SECONDS
        ).items():
            try:
                ids[topic] = _format_topic_id(answer.result(timeout=max(end - time.monotonic(), 0.1)).topic_id)
            except KafkaException as error:
                if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue
                raise EpochError(
                    f'Kafka at {self.connection.bootstrap_servers} did not describe topic "{topic}" ({error.args[0].str()}); '
                    "check that the brokers are running, and that the user has the Describe permission on the topic"
                ) from None
            except TimeoutError:
                raise EpochError(
                    f'Kafka at {self.connection.bootstrap_servers} did not describe topic "{topic}" (no answer within {SECONDS} s); '
                    "check that the brokers are running, and that the user has the Describe permission on the topic"
                ) from None
        return {topic: id_ for topic, id_ in ids.items() if id_}

    def offset_ranges(self, partitions: Sequence[tuple[str, int]]) -> dict[tuple[str, int], tuple[int, int]]:
        """Return the first offset and the end offset of each partition. Raises EpochError.

        The end offset is the offset of the next record to be written.
        """
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

        first: Any = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        last: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        low, high = self._list_offsets(partitions, first, last)
        return {p: (low[p], high[p]) for p in low}

    def readable_ends(self, partitions: Sequence[tuple[str, int]], isolation: str) -> dict[tuple[str, int], int]:
        """Return the offset up to which each partition can be read. Raises EpochError.

        With isolation level "read_committed", a partition can be read up to its first open transaction.
        """
        from confluent_kafka import IsolationLevel
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

        committed = isolation == "read_committed"
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        last: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        (offsets,) = self._list_offsets(partitions, last, isolation_level=level)
        return offsets

    def offsets_at_ms(self, partitions: Sequence[tuple[str, int]], ms: int) -> dict[tuple[str, int], int]:
        """Return the offset of the first record at or after a time (`ms`) in each partition. Raises EpochError.

        If a partition has no record that recent, its end offset is returned.
        """
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

        spec: Any = OffsetSpec.for_timestamp(max(ms, 0))
        last: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        offsets, high = self._list_offsets(partitions, spec, last)
        return {p: high[p] if offsets[p] < 0 else offsets[p] for p in offsets}

    def _list_offsets(
        self, partitions: Sequence[tuple[str, int]], *specs: Any, **more: Any
    ) -> list[dict[tuple[str, int], int]]:
        """Return one mapping from partitions to offsets for each of the `specs`. Raises EpochError.

        Requests are retried until the timeout. `more`: further arguments for the client's `list_offsets`.
        """
        from confluent_kafka import KafkaException, TopicPartition

        topic_partitions = [TopicPartition(t, p) for t, p in partitions]
        end = time.monotonic() + SECONDS
        while True:
            try:
                requests = [dict.fromkeys(topic_partitions, s) for s in specs]
                answers = [self._admin.list_offsets(a, request_timeout=SECONDS, **more) for a in requests]
                return [{(p.topic, p.partition): a[p].result().offset for p in topic_partitions} for a in answers]
            except KafkaException as error:
                # The client's metadata may be outdated, for example after a partition was added or a broker restarted.
                self.__dict__.pop("_admin", None)
                if time.monotonic() > end:
                    raise EpochError(
                        f"Kafka at {self.connection.bootstrap_servers} did not return any offsets "
                        f"({error.args[0].str()}); check that the brokers are running"
                    ) from None
                time.sleep(0.2)


def make_client(kind: Callable[[dict[str, Any]], T], settings: dict[str, Any]) -> T:
    """Create a client of class `kind`, such as `Consumer`. Raises StartError if librdkafka rejects the settings."""
    from confluent_kafka import KafkaException

    try:
        return kind(settings)
    except (KafkaException, TypeError, ValueError) as error:
        cause = error.args[0] if error.args else error
        text = cause.str() if isinstance(error, KafkaException) and hasattr(cause, "str") else str(cause)
        raise StartError(
            f"Kafka at {settings['bootstrap.servers']}: a setting is not accepted ({' '.join(text.split())[:300]}); correct "
            "the options of the connection; they also apply to librdkafka, which expects sasl.username, sasl.password "
            "and ssl.ca.location instead of the Java settings",
            Topic.KAFKA_SETTING,
        ) from None


def client_settings(connection: KafkaConnection) -> dict[str, Any]:
    """Return the settings of a connection for librdkafka."""
    options = {k: v for k, v in connection.options.items() if k not in _JVM_ONLY}
    return {
        **_credentials(connection.options),
        **options,
        "bootstrap.servers": str(connection.bootstrap_servers),
    }


def _credentials(options: Mapping[str, str]) -> dict[str, str]:
    """Convert the user and password in the Java option `sasl.jaas.config` to librdkafka settings."""
    entry = str(options.get("sasl.jaas.config", ""))
    pairs = {name: _JAAS[name].search(entry) for name in _JAAS}
    return {f"sasl.{name}": re.sub(r"\\(.)", r"\1", m[1]) for name, m in pairs.items() if m}


def named_topics(query: str) -> list[str]:
    """Return the topics that a query lists by name. Empty if the query is a pattern."""
    return [] if query.startswith("pattern:") else [t.strip() for t in query.split(",") if t.strip()]


def matches_query(query: str, topic: str) -> bool:
    if query.startswith("pattern:"):
        return re.fullmatch(query.removeprefix("pattern:"), topic) is not None
    return topic in named_topics(query)


def _format_topic_id(id_: Any) -> str:
    """Format a topic id as Kafka's tools do. The zero id, which brokers without topic ids return, becomes empty."""
    text = str(id_).replace("/", "_").replace("+", "-")
    return "" if not text.strip("A") else text
