"""The unread input of a source, as far as it can be determined without Spark.

A backlog is relative to a commit: the files that the commit does not reference, or the Kafka records between the
commit's offsets and the end of each partition. The input is listed first and compared with a commit afterward, so one
listing can be compared with several commits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from slackwater.state.protocol import Snapshot


@dataclass(frozen=True)
class Backlog:
    """The unread input of one source.

    Args:
        source: The name of the source.
        unit: What is counted, "files" or "records".
        count: The number of unread files or records. None if it is unknown; `problem` then says why.
        rows: The estimated number of unread rows. For files, the estimate is based on the files that were read so far;
            without any, it is None.
        problem: Why `count` is unknown.
    """

    source: str
    unit: str
    count: int | None
    rows: int | None
    problem: str | None = None


Answer = Callable[[Snapshot], Backlog]  # subtracts what the commit of the snapshot contains
Question = Callable[[], Answer]  # may raise SlackwaterError, OSError
