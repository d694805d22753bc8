"""Adaptive polling: continuous while rows arrive, and less frequent the longer none arrive.

    rows     ●●  ●                                          ●
    polls    ||||||||||| | | |  |  |   |    |    |    |    |||||||
                        the pause between two polls is a fiftieth of the silence, from 10 ms to 1 s

Spark's streaming query polls its sources every 10 ms, which costs a seventh of a core for a directory. The pause is a
field of the running query; no setting changes it. If a version of Spark stores the pause elsewhere, the query continues
to poll every 10 ms.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("slackwater")

SHORTEST_MS, LONGEST_MS = 10, 1000
_SHARE = 0.02  # the pause as a share of the silence so far


def compute_poll_seconds(quiet_s: float) -> float:
    """Return the pause after a poll in seconds, given how long no rows have arrived (`quiet_s`, seconds)."""
    return min(max(quiet_s * _SHARE, SHORTEST_MS / 1000), LONGEST_MS / 1000)


class PollInterval:
    """The pause between two polls of one query. `set_pause_ms` applies it; any thread may call the methods."""

    def __init__(self, set_pause_ms: Callable[[int], None] | None) -> None:
        self.pause_ms = SHORTEST_MS
        self._set_pause_ms = set_pause_ms

    def speed_up(self) -> None:
        """Poll as often as possible, because rows have arrived."""
        self._change(SHORTEST_MS)

    def slow_down(self, quiet_s: float) -> None:
        """Poll less often, because no rows have arrived for `quiet_s` seconds.

        The pause changes only when it doubles or reaches its maximum, since each change is a call to Spark's process.
        """
        new_pause_ms = int(1000 * compute_poll_seconds(quiet_s))
        if new_pause_ms >= 2 * self.pause_ms or new_pause_ms == LONGEST_MS:
            self._change(new_pause_ms)

    def polled_until(self, now: float) -> float:
        """Return the time up to which the sources have certainly been polled. `now`: the current time (seconds)."""
        return now - self.pause_ms / 1000

    def check_seconds(self, quiet_s: float) -> float:
        """Return the seconds until the next check of the query. `quiet_s`: how long no rows have arrived (seconds)."""
        return min(max(quiet_s * _SHARE, 0.02), 0.2)

    def _change(self, pause_ms: int) -> None:
        if self._set_pause_ms is not None and pause_ms != self.pause_ms:
            self._set_pause_ms(pause_ms)
            self.pause_ms = pause_ms


def poll_interval_from_query(query: StreamingQuery) -> PollInterval:
    """Return the poll interval of a running streaming query."""
    try:
        execution: Any = query._jsq.streamingQuery()
        kind = execution.getClass()
        while not kind.getName().endswith(".StreamExecution"):
            kind = kind.getSuperclass()
        field = kind.getDeclaredField("pollingDelayMs")
        field.setAccessible(True)
        field.setLong(execution, SHORTEST_MS)
    except Exception as error:
        log.debug("the query's pause cannot be set: %s", error)
        return PollInterval(None)
    return PollInterval(lambda ms: field.setLong(execution, ms))
