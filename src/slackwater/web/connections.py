"""HTTP/1.1 connections that are bounded in number, in size and in time; the parser and the protocol are uvicorn's and h11's.

connected ──▶ waits for a request ──▶ is answered ──▶ waits again        each wait ends after WAIT_S, and so
              the oldest one goes      the answer is   (keep-alive)      does an answer that is read too slowly
              if there are too many    the app's care

Where all connections are being answered, a client that has at least two more than the newcomer's gives one up.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from slackwater.web.hosts import network_of

WAIT_S = 10.0  # for a whole request, and for a reader of an answer to read on
HEAD_BYTES = 16 * 1024  # of a request line with its headers
READ_BYTES_S = 1024  # a reader that takes fewer bytes a second than this is cut off


def bounded_protocol(most: int, wait_s: float = WAIT_S) -> type[H11Protocol]:
    """The protocol of a server with at most so many connections."""
    return type("Bounded", (_BoundedServer,), {"most": most, "wait_s": wait_s})


class _CountingSocket:
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
        """The bytes that the system did not take yet, since the client does not read."""
        return self._transport.get_write_buffer_size()


class _BoundedServer(H11Protocol):
    most: int
    wait_s: float
    _timer: asyncio.TimerHandle | None = None
    _since = 0.0  # when it began to wait
    _said_all = False
    _unread = _taken = 0  # bytes, when it was last looked at

    # -- how many ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._counted = _CountingSocket(transport)
        super().connection_made(self._counted)  # type: ignore[arg-type]
        self._wait()
        if len(self.connections) <= self.most:
            return
        leaves = self._oldest_waiting() or self._oldest_of_busiest()
        if leaves is not None:
            leaves.transport.abort()
        else:
            self._refuse(503, f"all {self.most} connections are in use; ask again later")

    @property
    def network(self) -> str:
        """The client, as far as connections are shared among clients."""
        return network_of(self.client[0]) if self.client else ""

    @property
    def _others(self) -> list[_BoundedServer]:
        return [c for c in self.connections if isinstance(c, _BoundedServer) and c is not self]

    def _oldest_waiting(self) -> _BoundedServer | None:
        """Who holds a connection without asking anything: that does not keep out those who ask."""
        return min((c for c in self._others if not c.answering), key=lambda c: c._since, default=None)

    def _oldest_of_busiest(self) -> _BoundedServer | None:
        """A connection of the client that has most of them, if that is at least two more than this one's client has."""
        counts = Counter(c.network for c in self._others)
        busiest, count = max(counts.items(), key=lambda item: item[1], default=("", 0))
        if count - counts[self.network] < 2:
            return None
        return min((c for c in self._others if c.network == busiest), key=lambda c: c._since)

    @property
    def answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    # -- how long ------------------------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        self._wait()
        super().on_response_complete()
        if self._said_all and not self.answering:
            self.transport.close()

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio asks for it; uvicorn lets it close
        """A client that only says that it asks nothing more (`nc` does) still gets its answer."""
        self._said_all = True
        return self.answering

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        """Uvicorn's own end of a wait would let a client that reads nothing stay; `_look` ends both."""

    def _wait(self) -> None:
        self._since = self.loop.time()
        self._look_later()

    def _look_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._unread = self._counted.unread
        self._taken = self._counted.written - self._unread
        self._timer = self.loop.call_later(self.wait_s, self._look)

    def _look(self) -> None:
        unread = self._counted.unread
        taken = self._counted.written - unread - self._taken
        stuck = unread > 0 and taken < min(self._unread, self.wait_s * READ_BYTES_S)
        if stuck or not (unread or self.answering):
            self.transport.abort()
        else:
            self._look_later()

    # -- what is no HTTP -----------------------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, f"not a valid HTTP request, or one of more than {HEAD_BYTES // 1024} KiB")

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
        except h11.LocalProtocolError:  # the answer to a former request is on its way
            self.transport.abort()
        self.transport.close()
