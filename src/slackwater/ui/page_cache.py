"""Cache of the latest page model of each pipeline: built once per commit and shared by all viewers.

epochs() ──▶ a new commit? ──▶ load_model ──▶ PageModel, tag ──▶ blocks, rendered once ──▶ PageUpdate ──▶ viewers

The store is polled at most once every LOOK_S seconds, and only while there are viewers. After a model is built, polling
pauses in proportion to the CPU time that the model took.

An update consists of server-sent events. A viewer that has the previous update receives only the changed blocks; any other
viewer receives all blocks. A slow viewer skips updates.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from slackwater.errors import SlackwaterError
from slackwater.state.run_history import Run
from slackwater.ui.page_model import NoCommitError, PageModel, PageSource, load_model

Blocks = Callable[["PageCache"], Mapping[str, bytes]]

LOOK_S = 0.5  # seconds between checks for a new commit
RUNNER_S = 3.0  # seconds between checks for a runner
PAUSE = 40  # pause after a model, as a multiple of its CPU time: a page uses at most 1/40 of a core
LONGEST_S = 30.0  # longest pause between checks
SHOW_S = 0.0005  # CPU seconds for sending the changed blocks to one viewer
WATCHED_S = 20.0  # seconds for which a pipeline counts as watched after a request


class PageCache:
    """The latest page model of a pipeline or of one of its stages. At most one of `model` and `problem` is set.

    Args:
        watched: The pipeline.
        blocks: Renders the model or the problem of this cache as HTML blocks.
        stage: The name of the stage; None for the whole pipeline.
    """

    def __init__(self, watched: PageSource, blocks: Blocks, stage: str | None = None) -> None:
        self.watched, self.stage, self._blocks = watched, stage, blocks
        self.notifier = ViewerNotifier()
        self._update: PageUpdate | None = None
        self.viewers = 0
        self.model: PageModel | None = None
        self.problem: str | None = None
        self.waits = False  # whether the only problem is that nothing has been committed yet
        self._contents: tuple[str, dict[str, bytes]] = ("", {})
        self._lock = threading.Lock()
        self._next = self._next_runner = self._requested = 0.0
        self._observed: tuple[object, ...] = ()
        self._runner: str | None = None
        self._latest_run: tuple[Run, ...] = ()

    @property
    def name(self) -> str:
        return self.watched.pipeline.name

    @property
    def tag(self) -> str:
        """A tag that changes whenever the page changes."""
        model, problem = self.model, self.problem
        return model.tag if model is not None else f"problem-{hash(problem) & 0xFFFFFFFF:08x}"

    @property
    def is_watched(self) -> bool:
        return self.viewers > 0 or time.monotonic() - self._requested < WATCHED_S

    def now(self) -> PageModel | None:
        """Refresh the model for a request, and return it; None if the pipeline has a problem instead of a model."""
        self._requested = time.monotonic()
        self.refresh()
        return self.model

    def refresh(self) -> None:
        """Rebuild the model if there may be a new commit."""
        with self._lock:
            now, cpu_before, previous_tag = time.monotonic(), time.process_time(), self.tag
            if now < self._next:
                return
            try:
                if not self._has_changed(now):
                    self._next = now + LOOK_S
                    return
                self.model, self.problem = load_model(self.watched, time.time_ns() // 1000, stage=self.stage), None
                self.waits = False
            except SlackwaterError as error:
                self.model, self.problem, self._observed = None, str(error), ()
                self.waits = isinstance(error, NoCommitError)
            if self.viewers and self.tag != previous_tag:
                self._refresh_update()
                self.notifier.notify()
            # waiting for disks and other processes does not count as cost
            cost_s = min(time.process_time() - cpu_before, time.monotonic() - now) + SHOW_S * self.viewers
            self._next = time.monotonic() + min(max(LOOK_S, PAUSE * cost_s), LONGEST_S)

    def _has_changed(self, now: float) -> bool:
        """Return whether the model must be rebuilt at the time `now` (seconds of the monotonic clock).

        It must be rebuilt if it does not exist, if the commit, the runner or the latest run has changed, or if it
        shows an epoch that was not published yet.
        """
        if now >= self._next_runner:
            self._runner, self._next_runner = self.watched.store.runner(), now + RUNNER_S
            self._latest_run = self.watched.store.runs()[-1:]
        observed = (self.watched.store.epochs()[-1:], self._runner, self._latest_run)
        if self.model is not None and observed == self._observed and self.model.top.published:
            return False
        self._observed = observed
        return True

    @property
    def ready_update(self) -> PageUpdate | None:
        """The update to the latest model if it has already been rendered, else None."""
        update = self._update
        return update if update is not None and update.tag == self.tag else None

    def update(self) -> PageUpdate:
        """Return the update to the latest model, rendering it if necessary. Call `refresh` first."""
        with self._lock:
            return self._refresh_update()

    def _refresh_update(self) -> PageUpdate:
        if self._update is None or self._update.tag != self.tag:
            self._update = build_update(self.tag, self._blocks(self), self._update)
        return self._update

    def get_page_model(self, name: str, make: Callable[[PageModel], bytes]) -> tuple[str, bytes] | None:
        """Return the tag of the model and the content `name`, which `make` renders once per model.

        Return None if the pipeline has a problem instead of a model.
        """
        model = self.now()
        if model is None:
            return None
        tag, contents = self._contents
        if tag != model.tag:
            contents = {}
            self._contents = (model.tag, contents)
        content = contents.get(name)
        if content is None:
            content = contents[name] = make(model)
        return model.tag, content


class CommitWatcher:
    """A thread that checks all watched pipelines and stages for new commits."""

    def __init__(self, caches: Callable[[], Sequence[PageCache]]) -> None:
        self._caches, self._stop = caches, threading.Event()
        self._thread = threading.Thread(target=self._run, name="ui-watcher", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(LOOK_S):
            for cache in self._caches():
                if cache.is_watched:
                    cache.refresh()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=5)


# -- server-sent events --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PageUpdate:
    """A page model as server-sent events.

    Args:
        tag: The tag of the model.
        before: The tag of the previous update; None for the first one.
        short: Only the event about the commit.
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
    """Build the server-sent events for a new model.

    Args:
        tag: The tag of the model.
        blocks: The HTML of each block.
        before: The previous update; None if there is none.
    """
    short = b"event: commit\nid: %s\ndata: %s\n\n" % (tag.encode(), tag.encode())
    events = {name: _event(name, content) for name, content in blocks.items()}
    previous = {} if before is None else before.blocks
    changed = b"".join(event for name, event in events.items() if blocks[name] != previous.get(name))
    # the commit event comes last: a viewer that has it has all blocks
    return PageUpdate(
        tag, None if before is None else before.tag, short, changed + short, b"".join(events.values()) + short, blocks
    )


def _event(name: str, content: bytes) -> bytes:
    """Format a server-sent event. CR would end a line, so a CR in a key becomes a character reference."""
    lines = content.replace(b"\r", b"&#13;").split(b"\n")
    return b"event: %s\n" % name.encode() + b"".join(b"data: %s\n" % line for line in lines) + b"\n"


class ViewerNotifier:
    """Wakes viewers that wait in event loops. `notify` can be called from any thread."""

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
                except RuntimeError:  # the loop is closed, so no viewer is waiting in it
                    continue


def _set_all(events: tuple[asyncio.Event, ...]) -> None:
    for event in events:
        event.set()
