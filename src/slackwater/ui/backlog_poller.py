"""What waits at the sources, asked within a bound: `sources.waiting` says of which that can be asked.

A source is asked by a thread of its own, one at a time, and the page waits for it for LONGEST_S at most; what it says is
kept for FRESH_S. What a commit has of it is taken off then, so the answer fits the commit that is looked at.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from slackwater.config.pipeline import Pipeline, resolve_connection
from slackwater.config.source import Source
from slackwater.errors import SlackwaterError
from slackwater.runner.connectors import system_of
from slackwater.sources.backlog import Answer, Backlog, Question
from slackwater.state.protocol import Snapshot

LONGEST_S = 1.5
FRESH_S = 5.0


@dataclass
class _BacklogAnswer:
    """What a source said."""

    said: Answer | None = None
    problem: str | None = "it is being asked"
    at: float = float("-inf")
    thread: threading.Thread | None = None


@dataclass
class BacklogPoller:
    """Asks the sources of one pipeline."""

    _known: dict[str, _BacklogAnswer] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def waits(self, pipeline: Pipeline, snapshot: Snapshot) -> tuple[Backlog, ...]:
        """What waits at each source that can be asked, in the order of the config."""
        asked = [(s, ask) for s in pipeline.sources if (ask := _asked(pipeline, s)) is not None]
        with self._lock:
            threads = [t for s, ask in asked if (t := self._begin(s.name, ask)) is not None]
        end = time.monotonic() + LONGEST_S
        for thread in threads:
            thread.join(max(end - time.monotonic(), 0))
        return tuple(_answer(s, self._known[s.name], snapshot) for s, _ in asked)

    def _begin(self, name: str, ask: Question) -> threading.Thread | None:
        known = self._known.setdefault(name, _BacklogAnswer())
        if known.thread is not None and known.thread.is_alive():
            return known.thread
        if time.monotonic() - known.at < FRESH_S:
            return None

        def run() -> None:
            try:
                known.said, known.problem = ask(), None
            except (SlackwaterError, OSError) as error:
                known.said, known.problem = None, str(error)
            known.at = time.monotonic()

        known.thread = threading.Thread(target=run, name=f"ui-asks-{name}", daemon=True)
        known.thread.start()
        return known.thread


def _asked(pipeline: Pipeline, source: Source) -> Question | None:
    connection = None if source.connection is None else resolve_connection(source.connection, pipeline.connections)
    return None if connection is None else system_of(connection).question(source)


def _answer(source: Source, known: _BacklogAnswer, snapshot: Snapshot) -> Backlog:
    said = known.said  # which a thread may change
    return Backlog(source.name, "", None, None, known.problem) if said is None else said(snapshot)
