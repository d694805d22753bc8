"""What those who watch are sent of a commit: the blocks that changed, as server-sent events, made once for all of them.

look ──▶ blocks ──▶ Update: changed since the one before │ whole ──▶ ring ──▶ viewers, each with its own pace
                             to who has that one          to others           a slow one skips what it missed
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PageUpdate:
    """A look as events. `short`: that there is one; `changed`: with the blocks that differ from those of the look `before`;
    `whole`: with all blocks."""

    tag: str
    before: str | None
    short: bytes
    changed: bytes
    whole: bytes
    blocks: Mapping[str, bytes] = field(repr=False)

    def for_one_who_has(self, tag: str) -> bytes:
        return self.changed if tag == self.before else self.whole


def build_update(tag: str, blocks: Mapping[str, bytes], before: PageUpdate | None) -> PageUpdate:
    """The update to a look, of which nothing is sent twice to those who have the one before."""
    short = b"event: commit\nid: %s\ndata: %s\n\n" % (tag.encode(), tag.encode())
    events = {name: _event(name, content) for name, content in blocks.items()}
    previous = {} if before is None else before.blocks
    changed = b"".join(event for name, event in events.items() if blocks[name] != previous.get(name))
    # the commit comes last: who has heard of it has its blocks
    return PageUpdate(
        tag, None if before is None else before.tag, short, changed + short, b"".join(events.values()) + short, blocks
    )


def _event(name: str, content: bytes) -> bytes:
    """A line of an event ends at any of CR, LF and both, so that a CR, which a key may hold, is written as a reference."""
    lines = content.replace(b"\r", b"&#13;").split(b"\n")
    return b"event: %s\n" % name.encode() + b"".join(b"data: %s\n" % line for line in lines) + b"\n"


class ViewerNotifier:
    """Wakes those who wait for it in an event loop, from any thread. What is rung while nobody waits is not kept."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[asyncio.AbstractEventLoop, set[asyncio.Event]] = {}

    def listen(self) -> asyncio.Event:
        """An event of the running loop that is set at each ring, until `leave`."""
        event = asyncio.Event()
        with self._lock:
            self._waiting.setdefault(asyncio.get_running_loop(), set()).add(event)
        return event

    def leave(self, event: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        with self._lock:
            events = self._waiting[loop]
            events.discard(event)
            if not events:
                del self._waiting[loop]

    def ring(self) -> None:
        with self._lock:
            for loop, events in self._waiting.items():
                try:
                    loop.call_soon_threadsafe(_set, tuple(events))
                except RuntimeError:  # it is closed, and nobody waits in it
                    continue


def _set(events: tuple[asyncio.Event, ...]) -> None:
    for event in events:
        event.set()
