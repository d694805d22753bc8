"""Read a RabbitMQ queue in batches that are acknowledged explicitly, without Spark."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from slackwater.errors import EpochError, StartError, Topic

_MAX_REMEMBERED = 100_000  # the number of message hashes to keep in memory
HASH_BYTES = 8
RECONNECT_SECONDS = 30.0  # how long to try to reconnect to a broker
_PAUSE = 0.05  # seconds without a message after which a batch ends
_KEEPALIVE = 5.0  # seconds between two answers to the broker's heartbeats


@dataclass(frozen=True)
class RabbitMessage:
    """One message. The fields are in the order of the source's columns."""

    body: bytes
    routing_key: str
    exchange: str
    message_id: str | None
    headers: str | None
    redelivered: bool
    received: dt.datetime

    @property
    def identity(self) -> bytes | None:
        """A hash that identifies the message. None if it has no `message_id`.

        The hash includes the body, because some publishers reuse ids.
        """
        if self.message_id is None:
            return None
        parts = (self.message_id.encode(), self.exchange.encode(), self.routing_key.encode(), self.body)
        framed = b"".join(len(p).to_bytes(8, "big") + p for p in parts)
        return hashlib.blake2b(framed, digest_size=HASH_BYTES).digest()


def broker_address(url: str) -> str:
    """Return the address of a broker without the user and the password. Raises StartError if the URL is not valid."""
    try:
        parts = urlsplit(url)
        port = parts.port or (5671 if parts.scheme == "amqps" else 5672)
        after = parts.path + parts.query + parts.fragment
        if parts.scheme in ("amqp", "amqps") and parts.hostname and "@" not in after:
            return f"{parts.scheme}://{parts.hostname}:{port}{parts.path}"
    except ValueError:
        pass
    raise StartError(
        'RabbitMQ: "url" is not the address of a broker; expected amqp://user:password@host:5672/vhost; write '
        "characters such as / @ # in the password as %2F %40 %23",
        Topic.SERVICE_UNREACHABLE,
    )


def import_client() -> Any:
    """Import the client library pika, and turn off its logging. Raises StartError if pika is not installed."""
    try:
        import pika
    except ImportError:
        raise StartError(
            "reading from RabbitMQ requires the package pika, which is not installed; run: pip install "
            "'slackwater[rabbitmq]'",
            Topic.NOT_INSTALLED,
        ) from None
    logging.getLogger("pika").setLevel(logging.CRITICAL)  # it logs the errors that it also raises
    return pika


def connect_queue(url: str, queue: str, prefetch: int = 0) -> tuple[Any, Any, int]:
    """Connect to a queue. Return the connection, a channel, and the number of ready messages.

    Args:
        url: The URL of the broker.
        queue: The name of the queue.
        prefetch: The maximum number of unacknowledged messages. 0 means no limit.

    Raises:
        StartError: The connection failed. The message does not contain the password.
    """
    address, pika = broker_address(url), import_client()
    try:
        parameters = pika.URLParameters(url)
        parameters.client_properties = {"connection_name": f"slackwater {queue}"}
        connection = pika.BlockingConnection(parameters)
    except (pika.exceptions.ProbableAuthenticationError, pika.exceptions.AuthenticationError):
        raise StartError(
            f'RabbitMQ at {address} refused the user; correct the user and password in "url"', Topic.SERVICE_UNREACHABLE
        ) from None
    except pika.exceptions.ProbableAccessDeniedError:
        raise StartError(
            f'RabbitMQ at {address} refused the virtual host; at the end of "url", name one that the user may access, '
            "with / written as %2F",
            Topic.SERVICE_UNREACHABLE,
        ) from None
    except (pika.exceptions.AMQPError, OSError) as error:
        raise StartError(
            f"RabbitMQ at {address} does not answer ({describe_connection_error(error)}); start the broker, or "
            'correct "url"',
            Topic.SERVICE_UNREACHABLE,
        ) from None
    except (ValueError, TypeError):
        raise StartError(
            f'RabbitMQ at {address}: "url" has an unknown setting; expected amqp://user:password@host:5672/vhost, '
            "optionally followed by settings such as ?heartbeat=60; correct the URL",
            Topic.SERVICE_UNREACHABLE,
        ) from None
    try:
        channel = connection.channel()
        ready = channel.queue_declare(queue, passive=True).method.message_count
        channel.basic_qos(prefetch_count=prefetch)
    except pika.exceptions.AMQPError as error:
        close_connection(connection)
        code = getattr(error, "reply_code", None)
        if code == 404:
            raise StartError(
                f'RabbitMQ at {address} has no queue "{queue}"; declare it, or correct "query"', Topic.INPUT_MISSING
            ) from None
        reason = getattr(error, "reply_text", None) or describe_connection_error(error)
        raise StartError(
            f'RabbitMQ at {address} denies access to queue "{queue}" ({reason}); grant the user permission to read it',
            Topic.PERMISSION,
        ) from None
    return connection, channel, int(ready)


def describe_connection_error(error: BaseException) -> str:
    """Return the cause of a connection error in a few words. Errors from pika have no text, but nest their causes."""
    names: list[str] = []
    pending: list[Any] = [error]
    while pending:
        current = pending.pop(0)
        if isinstance(current, OSError) and current.strerror:
            return current.strerror
        names.append(type(current).__name__)
        pending += [*getattr(current, "exceptions", ()), getattr(current, "exception", None), *current.args]
        pending = [e for e in pending if isinstance(e, BaseException)]
    return names[-1]


def close_connection(connection: Any) -> None:
    with suppress(Exception):
        connection.close()


def check_queue(url: str, queue: str) -> int:
    """Return the number of messages in a queue that are ready for delivery.

    Raises StartError if the broker is unreachable or the queue does not exist.
    """
    connection, _, ready = connect_queue(url, queue)
    close_connection(connection)
    return ready


def to_message(method: Any, properties: Any, body: bytes) -> RabbitMessage:
    """Convert a delivery from pika to a message, with the current time as the time of receipt."""
    headers = properties.headers
    return RabbitMessage(
        body,
        method.routing_key,
        method.exchange,
        properties.message_id,
        json.dumps(headers, default=_json_default, ensure_ascii=False) if headers else None,
        bool(method.redelivered),
        dt.datetime.now(dt.UTC),
    )


def _json_default(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


class RabbitQueue:
    """Reader that returns the messages of one queue in numbered batches. The caller acknowledges batches with `ack`.

    After a lost connection, the broker redelivers unacknowledged messages. Redelivered messages with a `message_id` are
    not returned twice: they rejoin their batch, or are acknowledged at once if the batch already was. A thread
    answers the broker's heartbeats while a batch is processed.
    """

    def __init__(self, url: str, queue: str, max_messages: int = 1000, read_timeout_ms: int = 500) -> None:
        self._url, self._queue = url, queue
        self._max, self._timeout = max_messages, read_timeout_ms / 1000
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._connection: Any = None
        self._channel: Any = None
        self._pending: dict[int, list[int]] = {}  # delivery tags of the messages of each unfinished batch
        self._batch_of_identity: OrderedDict[bytes, int] = OrderedDict()
        self._acknowledged_through = 0
        self.ready = 0
        self._open()
        threading.Thread(target=self._keep_alive, daemon=True, name="slackwater-rabbitmq").start()

    def remember(self, identities: Iterable[bytes], through: int) -> None:
        """Record the messages of finished batches, so that they are recognized if the broker redelivers them.

        Args:
            identities: The hashes of the messages, which an earlier process may have read.
            through: The number of the last finished batch.
        """
        with self._lock:
            self._acknowledged_through = max(self._acknowledged_through, through)
            for identity in identities:
                self._remember_identity(identity, through)

    def fetch(self, batch: int, limit: int | None = None) -> list[RabbitMessage]:
        """Return up to `limit` messages in queue order, and assign them to batch number `batch`.

        Return no messages if none arrive within `read_timeout_ms`. Raises EpochError if the connection is lost twice.
        """
        connection_error = import_client().exceptions.AMQPError
        max_messages = self._max if limit is None else min(limit, self._max)
        with self._lock:
            for attempt in (1, 2):
                try:
                    return self._fetch(batch, max_messages)
                except (connection_error, OSError) as error:
                    if attempt == 2:
                        raise EpochError(
                            f"RabbitMQ at {broker_address(self._url)} closed the connection twice "
                            f"({describe_connection_error(error)}); check the broker's log and start "
                            "again"
                        ) from None
                    self._reopen()
        raise AssertionError

    def _fetch(self, batch: int, max_messages: int) -> list[RabbitMessage]:
        if not self._channel.is_open:
            self._reopen()
        fetched: list[tuple[int, RabbitMessage]] = []
        end = time.monotonic() + self._timeout
        while len(fetched) < max_messages and (remaining := end - time.monotonic()) > 0:
            delivery = self._next(min(remaining, _PAUSE) if fetched else remaining)
            if delivery is None:
                break
            method, properties, body = delivery
            message = to_message(method, properties, body)
            if not self._was_handed_out(message, method.delivery_tag):
                fetched.append((method.delivery_tag, message))
        if fetched:
            self._pending.setdefault(batch, []).extend(tag for tag, _ in fetched)
            for _, message in fetched:
                if message.identity is not None:
                    self._remember_identity(message.identity, batch)
        return [message for _, message in fetched]

    def _next(self, seconds: float) -> tuple[Any, Any, bytes] | None:
        for method, properties, body in self._channel.consume(self._queue, inactivity_timeout=seconds):
            return None if method is None else (method, properties, body)
        raise StartError(
            f'RabbitMQ at {broker_address(self._url)} has no queue "{self._queue}": it was deleted while it was being read; '
            "declare it and start again",
            Topic.INPUT_MISSING,
        )

    def _was_handed_out(self, message: RabbitMessage, tag: int) -> bool:
        """Return whether a message is a redelivery of one that was already returned, and record its new delivery tag.

        If the batch of the message was already acknowledged, the message is acknowledged at once.
        """
        identity = message.identity
        if not message.redelivered or identity is None or identity not in self._batch_of_identity:
            return False
        batch = self._batch_of_identity[identity]
        if batch <= self._acknowledged_through:
            self._channel.basic_ack(tag)
        else:
            self._pending.setdefault(batch, []).append(tag)
        return True

    def _remember_identity(self, identity: bytes, batch: int) -> None:
        self._batch_of_identity[identity] = batch
        self._batch_of_identity.move_to_end(identity)
        while len(self._batch_of_identity) > _MAX_REMEMBERED:
            self._batch_of_identity.popitem(last=False)

    def ack(self, through: int) -> None:
        """Acknowledge all batches up to and including `through`, so that the broker deletes their messages."""
        lost = import_client().exceptions.AMQPError
        with self._lock:
            self._acknowledged_through = max(self._acknowledged_through, through)
            done = [n for n in self._pending if n <= through]
            tags = sorted(tag for n in done for tag in self._pending.pop(n))
            later = [tag for rest in self._pending.values() for tag in rest]
            if not tags or not self._channel.is_open:
                return
            with suppress(lost, OSError):  # the broker redelivers them, and they are recognized
                if not later or tags[-1] < min(later):
                    self._channel.basic_ack(tags[-1], multiple=True)
                else:
                    for tag in tags:
                        self._channel.basic_ack(tag)
                self._connection.process_data_events(0)

    def close(self) -> None:
        """Close the connection. The broker requeues unacknowledged messages."""
        self._closed.set()
        with self._lock:
            close_connection(self._connection)

    def _open(self) -> None:
        prefetch = 2 * self._max  # Spark reads the next batch before it commits the previous one
        self._connection, self._channel, self.ready = connect_queue(self._url, self._queue, prefetch)

    def _reopen(self) -> None:
        close_connection(self._connection)
        self._pending = {n: [] for n in self._pending}
        end = time.monotonic() + RECONNECT_SECONDS
        while True:
            try:
                return self._open()
            except StartError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.5)

    def _keep_alive(self) -> None:
        while not self._closed.wait(_KEEPALIVE):
            with self._lock, suppress(Exception):  # the next fetch detects a lost connection
                self._connection.process_data_events(0)
