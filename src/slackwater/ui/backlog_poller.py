"""Poll the sources for their backlog, which is the input that is not read yet.

Each source is polled in a separate thread, at most once at a time. The page waits for responses for at most LONGEST_S
seconds, and reuses a response for FRESH_S seconds. What a commit has read is subtracted from a response afterward, so
one response works for every commit.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from slackwater.config.pipeline import Pipeline, resolve_connection
from slackwater.config.source import Source
from slackwater.connectors.connector import Answer, Backlog, Question, connector_for
from slackwater.errors import SlackwaterError
from slackwater.state.protocol import Snapshot

LONGEST_S = 1.5
FRESH_S = 5.0


@dataclass
class _BacklogAnswer:
    """The latest response of a source.

    Args:
        backlog_of: A function that computes the backlog at a commit; None while there is no response.
        problem: Why there is no response; None if there is one.
        answered_s: When the source last responded or failed, in seconds of the monotonic clock.
        thread: The latest thread that polls the source; None before the first one starts.
    """

    backlog_of: Answer | None = None
    problem: str | None = "no response yet"
    answered_s: float = float("-inf")
    thread: threading.Thread | None = None


@dataclass
class BacklogPoller:
    """Polls the sources of one pipeline."""

    _answers: dict[str, _BacklogAnswer] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def poll(self, pipeline: Pipeline, snapshot: Snapshot) -> tuple[Backlog, ...]:
        """Return the backlog of each source that can be polled, as of the snapshot's commit, in config order."""
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
    return None if connection is None else connector_for(connection).question(source)


def _backlog(source: Source, answer: _BacklogAnswer, snapshot: Snapshot) -> Backlog:
    backlog_of = answer.backlog_of  # read once: a thread may replace it
    return Backlog(source.name, "", None, None, answer.problem) if backlog_of is None else backlog_of(snapshot)
