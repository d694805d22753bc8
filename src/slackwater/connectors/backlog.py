"""The unread input of a source, as far as it can be determined without Spark.

The backlog consists of the files that no commit contains, or of the Kafka records between a commit's offsets and the
end of each partition. What a commit contains is subtracted afterward. So one listing can be compared with any commit.
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
        rows: The approximate number of rows, estimated from what the source has delivered so far.
    """

    source: str
    unit: str
    count: int | None
    rows: int | None
    problem: str | None = None


Answer = Callable[[Snapshot], Backlog]  # subtracts what the commit of the snapshot contains
Question = Callable[[], Answer]  # may raise SlackwaterError, OSError
