"""Estimate of an object store's request costs for a state, from the objects that it holds.

puts of an epoch    objects whose name begins with its number, also unreferenced ones; its manifest;
                    `published` if it had output
puts by the clock   renewals of the lease
every few epochs    lists of the garbage collection; deletes are free
reads               at most one per object, by a machine that did not write it
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from slackwater.state.commit import Commit

WRITE, READ = 5.0, 0.4  # dollars per million: S3 Standard and Google's Standard; Azure's hot tier 6.5 and 0.5
MONTH_S = 30 * 24 * 3600.0
RENEWED_S = 10.0  # seconds between two renewals of the lease
GARBAGE_EVERY, LISTS = 16, 4  # epochs between two collections; list requests of one collection


@dataclass(frozen=True)
class RequestCosts:
    """Mean numbers of requests over the kept epochs.

    Args:
        per_shard: puts of one shard's files.
        per_commit: puts of the driver.
        seconds: time between two commits.
        dollars: cost of a month at this pace. The lower value counts no reads, the upper one a read of each object by
            another machine.
    """

    epochs: int
    per_shard: float
    per_commit: float
    seconds: float | None
    dollars: tuple[float, float] | None


def estimate_requests(commits: Sequence[Commit], files: Collection[str]) -> RequestCosts | None:
    """Estimate the requests of a state; None without commits.

    `files`: existing objects such as "segments/000000012-003-….arrow".
    """
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
