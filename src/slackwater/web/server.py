"""An HTTP/1.1 server for an ASGI application, in a separate thread, with limits on connections, requests and time.

The server extends uvicorn's protocol for h11. `request_guard` restricts which requests it accepts.

connected ──▶ waits for a request ──▶ is answered by the application ──▶ waits again (keep-alive)

A connection is closed when it has waited for WAIT_S seconds, or if the client reads the response too slowly. If there
are too many connections, the one that has waited longest is closed. If none is waiting, a new connection displaces the
oldest connection of the busiest client, provided that this client has at least two more than the new one's client.

Endless responses (event streams) share a fixed number of slots in the same way. A single client may use all slots, two
clients get half each, and no client can lock another one out.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import h11
import uvicorn
from starlette.responses import Response, StreamingResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

from slackwater.errors import StartError, Topic
from slackwater.web.request_guard import (
    HEAD_BYTES,
    Application,
    Receive,
    RequestGuard,
    Scope,
    Send,
    client_network,
    find_busiest_client,
)

LOOPBACK = "127.0.0.1"
WAIT_S = 10.0  # time limit for an entire request, and for progress in reading a response
READ_BYTES_S = 1024  # a client that reads fewer bytes per second is disconnected while a response waits


class HttpServer:
    """A server that listens on `address` and `port` until `stop` is called."""

    def __init__(self, server: uvicorn.Server, listening: socket.socket) -> None:
        self._server, self._socket = server, listening
        self.address: str = listening.getsockname()[0]
        self.port: int = listening.getsockname()[1]
        self._thread = threading.Thread(
            target=server.run, kwargs={"sockets": [listening]}, name=f"http-{self.port}", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop the server: wait up to 2 seconds for open requests, then release the port."""
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()


def start_server(
    app: Application,
    port: int,
    host: str = LOOPBACK,
    *,
    service: str,
    option: str,
    names: Sequence[str] = (),
    max_connections: int = 128,
    wait_s: float = WAIT_S,
) -> HttpServer:
    """Serve an application until `stop` of the returned server is called. Raises StartError if the port is in use.

    Args:
        app: The ASGI application.
        port: The port; 0 selects a free port.
        host: The address on which to listen.
        service: The name of what is served, for error messages.
        option: The command-line option that sets the port, for error messages.
        names: Additional host names of this server, from `--allow-host`.
        max_connections: The maximum number of connections.
        wait_s: The time limit for an entire request, and for progress in reading a response (seconds).
    """
    listening = _open_socket(host, port, service, option)
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # otherwise, uvicorn logs every invalid request
    config = uvicorn.Config(
        RequestGuard(app, (host, *names), "--allow-host"),
        http=create_bounded_protocol(max_connections, wait_s),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=HEAD_BYTES,
        timeout_graceful_shutdown=2,
        backlog=max_connections,  # asyncio accepts this many connections before it passes on the first
    )
    return HttpServer(uvicorn.Server(config), listening)


def _open_socket(host: str, port: int, service: str, option: str) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
    except (OSError, OverflowError, UnicodeError) as error:
        raise _port_error(host, port, service, option, error) from None
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise _port_error(host, port, service, option, error) from None
    return listening


def _port_error(host: str, port: int, service: str, option: str, error: Exception) -> StartError:
    reason = getattr(error, "strerror", None) or str(error)
    return StartError(
        f"{service} cannot be served on {host}:{port} ({reason}); choose another {option}", Topic.SERVER_START
    )


# -- bounded connections -------------------------------------------------------------------------------------------------


def create_bounded_protocol(max_connections: int, wait_s: float = WAIT_S) -> type[H11Protocol]:
    """Return the protocol class of a server with at most `max_connections` connections.

    `wait_s`: the time limit for an entire request, and for progress in reading a response (seconds).
    """
    return type("Bounded", (_BoundedServer,), {"max_connections": max_connections, "wait_s": wait_s})


class _CountingTransport:
    """A transport that counts the bytes written to it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self.written = transport, 0

    def write(self, data: bytes) -> None:
        self.written += len(data)
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    @property
    def unread(self) -> int:
        """The number of bytes that the operating system has not accepted yet because the client is not reading."""
        return self._transport.get_write_buffer_size()


class _BoundedServer(H11Protocol):
    """The protocol of one connection, with the limits of `create_bounded_protocol`."""

    max_connections: int
    wait_s: float
    _timer: asyncio.TimerHandle | None = None
    _since = 0.0  # when the connection began to wait (seconds on the loop's clock)
    _client_finished = False
    _unread = _taken = 0  # bytes that the client had not read, and had read, at the last check

    # -- number of connections -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._counting = _CountingTransport(transport)
        super().connection_made(self._counting)  # type: ignore[arg-type]
        self._start_waiting()
        if len(self.connections) <= self.max_connections:
            return
        leaves = self._oldest_waiting() or self._oldest_of_busiest()
        if leaves is not None:
            leaves.transport.abort()
        else:
            self._refuse(503, f"all {self.max_connections} connections are in use; try again later")

    @property
    def network(self) -> str:
        """The network of the client. All clients in it count as one."""
        return client_network(self.client[0]) if self.client else ""

    @property
    def _others(self) -> list[_BoundedServer]:
        return [c for c in self.connections if isinstance(c, _BoundedServer) and c is not self]

    def _oldest_waiting(self) -> _BoundedServer | None:
        """Return the other connection that has waited longest for a request; None if no other connection waits."""
        return min((c for c in self._others if not c.answering), key=lambda c: c._since, default=None)

    def _oldest_of_busiest(self) -> _BoundedServer | None:
        """Return the oldest connection of the client with the most connections.

        Return None unless that client has at least two more connections than the client of this connection.
        """
        busiest = find_busiest_client((c.network for c in self._others), self.network)
        return min((c for c in self._others if c.network == busiest), key=lambda c: c._since, default=None)

    @property
    def answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    # -- time limits ---------------------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        self._start_waiting()
        super().on_response_complete()
        if self._client_finished and not self.answering:
            self.transport.close()

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio closes the connection unless it is True
        """Return whether a response is in progress, in which case the connection stays open.

        Some clients, such as `nc`, close their sending side after the request.
        """
        self._client_finished = True
        return self.answering

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        """Do nothing, because `_check_progress` replaces uvicorn's time limit.

        Unlike uvicorn's limit, `_check_progress` also disconnects a client that does not read the response.
        """

    def _start_waiting(self) -> None:
        self._since = self.loop.time()
        self._schedule_check()

    def _schedule_check(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._unread = self._counting.unread
        self._taken = self._counting.written - self._unread
        self._timer = self.loop.call_later(self.wait_s, self._check_progress)

    def _check_progress(self) -> None:
        unread = self._counting.unread
        taken = self._counting.written - unread - self._taken
        stuck = unread > 0 and taken < min(self._unread, self.wait_s * READ_BYTES_S)
        if stuck or not (unread or self.answering):
            self.transport.abort()
        else:
            self._schedule_check()

    # -- invalid requests ----------------------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, f"the request is not valid HTTP, or its headers are longer than {HEAD_BYTES // 1024} KiB")

    def _refuse(self, status: int, line: str) -> None:
        body = json.dumps({"error": line}).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        events: list[Any] = [
            h11.Response(status_code=status, headers=headers),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ]
        try:
            for event in events:
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:  # the response to an earlier request is still being sent
            self.transport.abort()
        self.transport.close()


# -- event streams -------------------------------------------------------------------------------------------------------


MEDIA_TYPE = "text/event-stream"


@dataclass(eq=False)
class StreamSlot:
    """A slot that one event stream occupies. `evict`: a function that ends the stream."""

    client: str
    evict: Callable[[], object]


@dataclass
class StreamSlots:
    """A pool of `most` slots for event streams. Only one event loop may use it, and no method awaits."""

    most: int
    _taken: list[StreamSlot] = field(default_factory=list)  # oldest first

    def __len__(self) -> int:
        return len(self._taken)

    def __contains__(self, slot: object) -> bool:
        return slot in self._taken

    def take(self, client: str, evict: Callable[[], object]) -> StreamSlot | None:
        """Return a slot for a client, possibly taken from a client with more streams; None if no slot is available.

        `evict`: a function that ends the stream if another client takes the slot.
        """
        if len(self._taken) >= self.most and not self._make_room(client):
            return None
        slot = StreamSlot(client, evict)
        self._taken.append(slot)
        return slot

    def release(self, slot: StreamSlot) -> None:
        if slot in self._taken:
            self._taken.remove(slot)

    def _make_room(self, client: str) -> bool:
        busiest = find_busiest_client((slot.client for slot in self._taken), client)
        if busiest is None:
            return False
        oldest = next(slot for slot in self._taken if slot.client == busiest)
        self._taken.remove(oldest)
        oldest.evict()
        return True


class EventStream(Response):
    """A response that sends server-sent events while it occupies one of `slots`; `refusal` if no slot is available.

    The response to a HEAD request has only headers.
    """

    def __init__(self, events: Callable[[], AsyncIterator[bytes]], slots: StreamSlots, refusal: Response) -> None:
        self.events, self.slots, self.refusal = events, slots, refusal
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":
            headers = [(b"content-type", f"{MEDIA_TYPE}; charset=utf-8".encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
            return
        evicted = asyncio.Event()
        slot = self.slots.take(client_network((scope.get("client") or ("",))[0]), evicted.set)
        if slot is None:
            await self.refusal(scope, receive, send)
            return
        answer = StreamingResponse(self.events(), media_type=MEDIA_TYPE)(scope, receive, send)
        streaming, leaving = asyncio.ensure_future(answer), asyncio.ensure_future(evicted.wait())
        try:
            await asyncio.wait([streaming, leaving], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.slots.release(slot)
            for task in (streaming, leaving):
                task.cancel()
            await asyncio.wait([streaming, leaving])
        if not streaming.cancelled():
            streaming.result()
