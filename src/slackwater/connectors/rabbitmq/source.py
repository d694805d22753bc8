"""Read a RabbitMQ queue as a streaming DataFrame.

A queue has no offsets, and an acknowledged message is gone. Therefore, messages are acknowledged last.

    fetch batch 7 ──> epoch ──> commit ──> Spark: read after 7 ──> ack(7)
         │                                                           │
         └── unacknowledged: if the reader dies here, everything returns to the queue, in order

Delivery is at least once. After a crash between the commit of an epoch and its acknowledgment, the queue delivers the
messages of the epoch again. Messages with the property `message_id` are then recognized and dropped. To allow this, the
end offset of a batch in Spark's checkpoint contains a short hash of each message. The latest 100,000 hashes are kept in
memory. Messages without `message_id` cannot be recognized, so they count twice.

A batch that Spark planned but did not finish is read from the queue again. The hashes identify its messages. Use only
one pipeline per queue, because another consumer could receive some of these messages.

The reader relies on the call order of PySpark 4.3, which calls `read` only after the previous batch is finished.

Columns: body BINARY, routing_key, exchange, message_id and headers (JSON) STRING, redelivered BOOLEAN, received
TIMESTAMP.
"""

from __future__ import annotations

import base64
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

from slackwater.connectors.rabbitmq.queue import (
    HASH_BYTES,
    RECONNECT_SECONDS,
    RabbitMessage,
    RabbitQueue,
    broker_address,
    check_queue,
    close_connection,
    connect_queue,
    describe_connection_error,
    import_client,
    to_message,
)
from slackwater.core.humanize import mismatch
from slackwater.errors import EpochError, StartError, Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:
    raise StartError(
        "reading from RabbitMQ requires PySpark 4.3 or later, but an older version is installed; run: pip install "
        "--upgrade 'pyspark>=4.3'",
        Topic.NOT_INSTALLED,
    ) from None

FORMAT = "slackwater_rabbitmq"
SCHEMA = (
    "body BINARY, routing_key STRING, exchange STRING, message_id STRING, "
    "headers STRING, redelivered BOOLEAN, received TIMESTAMP"
)
MOST_MESSAGES = 10_000  # the maximum per batch; every offset contains the hashes of a batch
_REPLAY = 90.0  # seconds to wait for redelivery; longer than a broker needs to detect that a reader is gone


@dataclass(frozen=True)
class RabbitSettings:
    """The validated options of the data source."""

    url: str
    queue: str
    max_messages_per_trigger: int = 1000
    read_timeout_ms: int = 500
    on_data_loss: str = "fail"

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> RabbitSettings:
        """Validate options. Raises StartError if an option is missing, unknown or wrong."""
        lower_options = {k.lower(): v for k, v in options.items()}
        if unknown := sorted(lower_options.keys() - set(cls.__dataclass_fields__)):
            raise StartError(
                f"{FORMAT}: unknown option {unknown[0]}; expected one of {', '.join(cls.__dataclass_fields__)}",
                Topic.VALUE,
            )
        for key in ("url", "queue"):
            if not lower_options.get(key):
                raise StartError(f'{FORMAT}: option {key} is missing; add .option("{key}", …)', Topic.VALUE)
        broker_address(lower_options["url"])
        loss = lower_options.get("on_data_loss", "fail")
        if loss not in ("fail", "skip"):
            raise StartError(
                f"{FORMAT}: option on_data_loss: " + mismatch(f'"{loss}"', '"fail" or "skip"'), Topic.VALUE
            )
        return cls(
            lower_options["url"],
            lower_options["queue"],
            _parse_count(lower_options, "max_messages_per_trigger", 1000, MOST_MESSAGES),
            _parse_count(lower_options, "read_timeout_ms", 500, 600_000),
            loss,
        )


def _parse_count(options: Mapping[str, str], key: str, default: int, maximum: int) -> int:
    text = options.get(key, str(default))
    if not text.isdecimal() or not 1 <= int(text) <= maximum:
        raise StartError(
            f"{FORMAT}: option {key}: " + mismatch(f'"{text}"', f"a whole number from 1 to {maximum}"), Topic.VALUE
        )
    return int(text)


def find_redelivered_messages(settings: RabbitSettings, identities: Iterable[bytes]) -> list[RabbitMessage]:
    """Find the messages in the queue whose hashes are in `identities`, without acknowledging them.

    Raises EpochError if a message is missing and `on_data_loss` is "fail".
    """
    expected = Counter(identities)
    end = time.monotonic() + (_REPLAY if settings.on_data_loss == "fail" else RECONNECT_SECONDS)
    while True:
        messages = _search_queue(settings, expected)
        if len(messages) == expected.total():
            return messages
        if time.monotonic() > end:
            break
        time.sleep(0.5)
    if settings.on_data_loss == "skip":
        return messages
    raise EpochError(
        f'RabbitMQ queue "{settings.queue}" returned {len(messages)} of the {expected.total()} messages of a batch '
        'that must be repeated; expected all; stop the other consumers of the queue, or set on_data_loss = "skip" '
        "if the messages expired",
        Topic.RECORDS_DELETED,
    )


def _search_queue(settings: RabbitSettings, expected: Counter[bytes]) -> list[RabbitMessage]:
    missing, messages, looked = expected.copy(), [], 0
    max_messages = 2 * expected.total() + MOST_MESSAGES
    connection, channel, _ = connect_queue(settings.url, settings.queue, prefetch=max_messages)
    try:
        for method, properties, body in channel.consume(settings.queue, inactivity_timeout=0.5):
            if method is None:
                break
            looked += 1
            message = to_message(method, properties, body)
            if message.identity is not None and missing[message.identity] > 0:
                missing[message.identity] -= 1
                messages.append(message)
            if len(messages) == expected.total() or looked >= max_messages:
                break
    except import_client().exceptions.AMQPError as error:
        raise EpochError(
            f"RabbitMQ at {broker_address(settings.url)} closed the connection ({describe_connection_error(error)}); "
            "check the broker's log and start again"
        ) from None
    finally:
        close_connection(connection)
    return messages


def _pack_identities(messages: Iterable[RabbitMessage]) -> str:
    return base64.b64encode(b"".join(m.identity or b"" for m in messages)).decode()


def _unpack_identities(text: str) -> list[bytes]:
    packed = base64.b64decode(text)
    return [packed[i : i + HASH_BYTES] for i in range(0, len(packed), HASH_BYTES)]


class RabbitReader(SimpleDataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader that reads batches in the Spark driver.

    An offset contains the number of a batch, and the message hashes of this batch and of the previous batch.
    """

    def __init__(self, settings: RabbitSettings) -> None:
        self._settings = settings
        self._open: RabbitQueue | None = None
        self._remaining: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_settings": self._settings, "_open": None, "_remaining": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"batch": 0, "ids": "", "before": ""}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._remaining = self._queue().ready

    def read(self, start: dict[str, Any]) -> tuple[Iterator[tuple[Any, ...]], dict[str, Any]]:
        queue = self._queue()
        queue.remember([*_unpack_identities(start["before"]), *_unpack_identities(start["ids"])], start["batch"])
        queue.ack(start["batch"])  # the batch is finished; Spark calls `commit` for it only after the next batch
        if self._remaining == 0:
            return iter([]), start
        messages = queue.fetch(start["batch"] + 1, self._remaining)
        if self._remaining is not None:
            self._remaining -= len(messages)
        if not messages:
            return iter([]), start
        end = {"batch": start["batch"] + 1, "ids": _pack_identities(messages), "before": start["ids"]}
        return iter([astuple(m) for m in messages]), end

    def readBetweenOffsets(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[tuple[Any, ...]]:  # noqa: N802
        expected = _unpack_identities(end["ids"])
        return iter([astuple(m) for m in find_redelivered_messages(self._settings, expected)] if expected else [])

    def commit(self, end: dict[str, Any]) -> None:
        if self._open is not None:
            self._open.ack(end["batch"])

    def _queue(self) -> RabbitQueue:
        if self._open is None:
            settings = self._settings
            self._open = RabbitQueue(
                settings.url, settings.queue, settings.max_messages_per_trigger, settings.read_timeout_ms
            )
        return self._open


class RabbitDataSource(DataSource):
    """Data source for `spark.readStream.format("slackwater_rabbitmq")`.

    Options:
        url: The URL of the broker (amqp://user:password@host:5672/vhost).
        queue: The name of the queue.
        max_messages_per_trigger: The maximum number of messages per batch (default 1000, at most 10,000).
        read_timeout_ms: How long a read waits for messages (default 500).
        on_data_loss: What to do if messages of an unfinished batch are no longer in the queue: "fail" (the default),
            or "skip" to continue without them.
    """

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._settings = RabbitSettings.from_options(options)

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return SCHEMA

    def simpleStreamReader(self, schema: StructType) -> RabbitReader:  # noqa: N802
        return RabbitReader(self._settings)


def stream(session: SparkSession, url: str, queue: str, **options: str | int) -> DataFrame:
    """Return a streaming DataFrame over a queue. `options`: options of `RabbitDataSource`.

    Raises StartError if the broker is unreachable or the queue does not exist.
    """
    reader_options = {"url": url, "queue": queue, **{k: str(v) for k, v in options.items()}}
    RabbitSettings.from_options(reader_options)
    check_queue(url, queue)
    _register(session)
    return session.readStream.format(FORMAT).options(**reader_options).load()


def _register(session: SparkSession) -> None:
    """Register the data source with a Spark session.

    Spark rejects a name that is already registered in the active session, which may be a different one. Therefore,
    `session` is made active during the registration.
    """
    sessions: Any = session._get_j_spark_session_class(session._jvm)
    former = sessions.getActiveSession()
    sessions.setActiveSession(session._jsparkSession)
    try:
        session.dataSource.register(RabbitDataSource)
    finally:
        if former.isDefined():
            sessions.setActiveSession(former.get())
        else:
            sessions.clearActiveSession()


__all__ = [
    "RabbitDataSource",
    "RabbitMessage",
    "RabbitQueue",
    "RabbitReader",
    "RabbitSettings",
    "broker_address",
    "check_queue",
    "find_redelivered_messages",
    "stream",
]
