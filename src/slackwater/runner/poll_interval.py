"""How often a quiet pipeline is asked for rows: at once while they come, less often the longer nothing does.

    rows     ●●  ●                                          ●
    asks     ||||||||||| | | |  |  |   |    |    |    |    |||||||
                        the pause between two asks is a fiftieth of the silence so far, within bounds

Where Spark plans, its streaming query asks its sources every 10 ms for ever, which costs a seventh of a core for a directory. Its
pause is a field of the query that no setting reaches once it runs; where a Spark keeps it elsewhere, the query asks as it always did.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("slackwater")

SHORTEST_MS, LONGEST_MS = 10, 1000
_SHARE = 0.02  # of the silence so far


def poll_seconds(quiet: float) -> float:
    """The pause after an ask where nothing came for so long."""
    return min(max(quiet * _SHARE, SHORTEST_MS / 1000), LONGEST_MS / 1000)


class PollInterval:
    """The pause between two asks of one query. `set_pause_ms` puts it in force; it may be called from any thread."""

    def __init__(self, set_pause_ms: Callable[[int], None] | None) -> None:
        self.pause_ms = SHORTEST_MS
        self._set = set_pause_ms

    def speed_up(self) -> None:
        """Ask often again."""
        self._change(SHORTEST_MS)

    def slow_down(self, quiet: float) -> None:
        """Nothing came for so long. The pause grows in doublings: each is a call into Spark's process."""
        new_pause_ms = int(1000 * poll_seconds(quiet))
        if new_pause_ms >= 2 * self.pause_ms or new_pause_ms == LONGEST_MS:
            self._change(new_pause_ms)

    def polled_until(self, now: float) -> float:
        """Up to when the sources were surely asked, at the time `now` (seconds)."""
        return now - self.pause_ms / 1000

    def check_seconds(self, quiet: float) -> float:
        """How long to wait before looking after the query itself."""
        return min(max(quiet * _SHARE, 0.02), 0.2)

    def _change(self, pause_ms: int) -> None:
        if self._set is not None and pause_ms != self.pause_ms:
            self._set(pause_ms)
            self.pause_ms = pause_ms


def from_query(query: StreamingQuery) -> PollInterval:
    """The pace of a running query of Spark's."""
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
