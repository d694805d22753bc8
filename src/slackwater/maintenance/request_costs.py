"""What a state in an object store costs in requests, as the objects that are there tell it.

puts of an epoch   the objects whose name begins with its number, also those that no commit names (any more), its manifest,
                   and `published` where it had output
beside them        the lease by the clock; garbage every few epochs: lists, and deletes, which cost nothing
reads              at most one per object: of whoever did not write it, once
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from slackwater.state.commit import Commit

WRITE, READ = 5.0, 0.4  # dollars per million: S3 Standard and Google's Standard; Azure's hot tier 6.5 and 0.5
MONTH_S = 30 * 24 * 3600.0
RENEWED_S = 10.0  # a lease
GARBAGE_EVERY, LISTS = 16, 4  # epochs; requests of one collection


@dataclass(frozen=True)
class RequestCosts:
    """Means over the kept epochs. `per_shard`: writes of a shard's files; `per_commit`: of the driver; `dollars`: a month at
    this pace, between where each object is read by the machine that wrote it and by another one once."""

    epochs: int
    per_shard: float
    per_commit: float
    seconds: float | None  # between two commits
    dollars: tuple[float, float] | None


def estimate_requests(commits: Sequence[Commit], files: Collection[str]) -> RequestCosts | None:
    """`files`: what is there, as "segments/000000012-003-….arrow". None where there is no commit to go by."""
    if not commits:
        return None
    first, last = commits[0].epoch, commits[-1].epoch
    numbers = {m.epoch for m in commits}
    count = len(numbers)
    counted = [f for f in files if (n := f.partition("/")[2][:9]).isdigit() and first <= int(n) <= last]
    lists = sum(f.startswith("offsets/") for f in counted)
    published = sum(m.staged for m in commits)
    per_shard = (len(counted) - lists) / count / max(commits[-1].shards, 1)
    per_commit = (lists + published) / count + 1
    span = (commits[-1].committed_us - commits[0].committed_us) / 1e6
    if count < 2 or span <= 0:
        return RequestCosts(count, per_shard, per_commit, None, None)
    seconds = span / (count - 1)
    written = per_shard * commits[-1].shards
    epochs = MONTH_S / seconds
    writes = epochs * (written + per_commit + LISTS / GARBAGE_EVERY) + MONTH_S / RENEWED_S
    low = writes * WRITE / 1e6
    reads = epochs * (written + 8 / GARBAGE_EVERY)
    return RequestCosts(count, per_shard, per_commit, seconds, (low, low + reads * READ / 1e6))
