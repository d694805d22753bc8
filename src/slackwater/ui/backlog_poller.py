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

    backlog_of: Answer | None = None
    problem: str | None = "it is being asked"
    answered_s: float = float("-inf")
    thread: threading.Thread | None = None


@dataclass
class BacklogPoller:
    """Asks the sources of one pipeline."""

    _answers: dict[str, _BacklogAnswer] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def waits(self, pipeline: Pipeline, snapshot: Snapshot) -> tuple[Backlog, ...]:
        """What waits at each source that can be asked, in the order of the config."""
        questions = [(s, ask) for s in pipeline.sources if (ask := _question(pipeline, s)) is not None]
        with self._lock:
            threads = [t for s, ask in questions if (t := self._start_question(s.name, ask)) is not None]
        end = time.monotonic() + LONGEST_S
        for thread in threads:
            thread.join(max(end - time.monotonic(), 0))
        return tuple(_backlog(s, self._answers[s.name], snapshot) for s, _ in questions)

    def _start_question(self, name: str, ask: Question) -> threading.Thread | None:
        answer = self._answers.setdefault(name, _BacklogAnswer())
        if answer.thread is not None and answer.thread.is_alive():
            return answer.thread
        if time.monotonic() - answer.answered_s < FRESH_S:
            return None

        def run() -> None:
            try:
                answer.backlog_of, answer.problem = ask(), None
            except (SlackwaterError, OSError) as error:
                answer.backlog_of, answer.problem = None, str(error)
            answer.answered_s = time.monotonic()

        answer.thread = threading.Thread(target=run, name=f"ui-asks-{name}", daemon=True)
        answer.thread.start()
        return answer.thread


def _question(pipeline: Pipeline, source: Source) -> Question | None:
    connection = None if source.connection is None else resolve_connection(source.connection, pipeline.connections)
    return None if connection is None else system_of(connection).question(source)


def _backlog(source: Source, answer: _BacklogAnswer, snapshot: Snapshot) -> Backlog:
    backlog_of = answer.backlog_of  # which a thread may change
    return Backlog(source.name, "", None, None, answer.problem) if backlog_of is None else backlog_of(snapshot)
