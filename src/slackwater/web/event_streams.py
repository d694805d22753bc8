"""Endless responses (event streams), in a fixed number of slots that clients share fairly.

If no slot is free, a new stream takes a slot from the client with the most streams, provided that this client has at
least two more streams than the client of the new stream. A single client may thus use all slots, two clients get half
each, and no client can lock another one out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from starlette.responses import Response, StreamingResponse

from slackwater.web.request_guard import Receive, Scope, Send, client_network, find_busiest_client

MEDIA_TYPE = "text/event-stream"


@dataclass(eq=False)
class StreamSlot:
    """The slot of one stream. `evict`: a function that ends the stream."""

    client: str
    evict: Callable[[], object]


@dataclass
class StreamSlots:
    """At most `most` slots for streams. Only one event loop uses them, and no method awaits, so `take` is atomic."""

    most: int
    _taken: list[StreamSlot] = field(default_factory=list)  # oldest first

    def __len__(self) -> int:
        return len(self._taken)

    def __contains__(self, slot: object) -> bool:
        return slot in self._taken

    def take(self, client: str, evict: Callable[[], object]) -> StreamSlot | None:
        """Take a slot for a client, possibly from a client that has more streams. Return None if no slot is available.

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
    """A response that sends server-sent events while it occupies one of `slots`. Without a slot, it sends `refusal`.

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
