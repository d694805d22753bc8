"""Count the object-store writes that a state needs, from the objects that exist.

per shard and epoch   objects whose name begins with the epoch's number, including unreferenced ones
per commit            lists of files, the manifest, and `published` if the epoch had output
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from slackwater.state.commit import Commit


@dataclass(frozen=True)
class WriteCounts:
    """Mean number of writes over the epochs that are kept.

    Args:
        epochs: Number of epochs that are kept.
        per_shard: Writes of one shard's files in an epoch.
        per_commit: Writes of the driver in an epoch.
        seconds: Mean time between two commits (s); None if there are fewer than two.
    """

    epochs: int
    per_shard: float
    per_commit: float
    seconds: float | None


def count_writes(commits: Sequence[Commit], files: Collection[str]) -> WriteCounts | None:
    """Count the writes of the epochs that are kept; None if there are no commits.

    Args:
        commits: The commits that are kept, oldest first.
        files: Existing objects, such as "segments/000000012-003-….arrow".
    """
    if not commits:
        return None
    first, last = commits[0].epoch, commits[-1].epoch
    epochs = len({m.epoch for m in commits})
    written = [f for f in files if (n := f.partition("/")[2][:9]).isdigit() and first <= int(n) <= last]
    lists = sum(f.startswith("offsets/") for f in written)
    published = sum(m.staged for m in commits)
    span = (commits[-1].committed_us - commits[0].committed_us) / 1e6
    return WriteCounts(
        epochs,
        per_shard=(len(written) - lists) / epochs / max(commits[-1].shards, 1),
        per_commit=(lists + published) / epochs + 1,
        seconds=span / (epochs - 1) if epochs > 1 and span > 0 else None,
    )
