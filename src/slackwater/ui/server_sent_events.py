"""Server-sent events about a commit: the blocks that changed, built once for all viewers.

model ──▶ blocks ──▶ PageUpdate ──▶ notify ──▶ viewers, each at its own speed

A viewer that has the previous update receives only the changed blocks; any other viewer receives all blocks. A slow
viewer skips updates.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PageUpdate:
    """A page model as server-sent events.

    Args:
        tag: The tag of the model.
        before: The tag of the previous update; None for the first one.
        short: The event about the commit alone.
        changed: The blocks that differ from the previous update, and the event about the commit.
        whole: All blocks, and the event about the commit.
    """

    tag: str
    before: str | None
    short: bytes
    changed: bytes
    whole: bytes
    blocks: Mapping[str, bytes] = field(repr=False)

    def bytes_for_viewer(self, tag: str) -> bytes:
        return self.changed if tag == self.before else self.whole


def build_update(tag: str, blocks: Mapping[str, bytes], before: PageUpdate | None) -> PageUpdate:
    """Build the update to a new tag. Viewers that have the update `before` receive only the changed blocks."""
    short = b"event: commit\nid: %s\ndata: %s\n\n" % (tag.encode(), tag.encode())
    events = {name: _event(name, content) for name, content in blocks.items()}
    previous = {} if before is None else before.blocks
    changed = b"".join(event for name, event in events.items() if blocks[name] != previous.get(name))
    # the commit event comes last: a viewer that has it has all blocks
    return PageUpdate(
        tag, None if before is None else before.tag, short, changed + short, b"".join(events.values()) + short, blocks
    )


def _event(name: str, content: bytes) -> bytes:
    """Format a server-sent event. CR also ends a line, so a CR in a key is written as a character reference."""
    lines = content.replace(b"\r", b"&#13;").split(b"\n")
    return b"event: %s\n" % name.encode() + b"".join(b"data: %s\n" % line for line in lines) + b"\n"


class ViewerNotifier:
    """Wakes viewers, which wait in event loops, from any thread. Notifications without listeners are dropped."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: dict[asyncio.AbstractEventLoop, set[asyncio.Event]] = {}

    def listen(self) -> asyncio.Event:
        """Return an event, bound to the running loop, that every `notify` sets until it is passed to `leave`."""
        event = asyncio.Event()
        with self._lock:
            self._listeners.setdefault(asyncio.get_running_loop(), set()).add(event)
        return event

    def leave(self, event: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        with self._lock:
            events = self._listeners[loop]
            events.discard(event)
            if not events:
                del self._listeners[loop]

    def notify(self) -> None:
        with self._lock:
            for loop, events in self._listeners.items():
                try:
                    loop.call_soon_threadsafe(_set_all, tuple(events))
                except RuntimeError:  # the loop is closed, so nobody is waiting in it
                    continue


def _set_all(events: tuple[asyncio.Event, ...]) -> None:
    for event in events:
        event.set()
