"""`slackwater state history`: the stored commits of a state, and how many rows each of them read and emitted."""

from __future__ import annotations

from dataclasses import dataclass

from slackwater.engine import next_commit
from slackwater.maintenance.state_sizes import list_kept_commits
from slackwater.state.commit import Commit
from slackwater.state.protocol import StateStore


@dataclass(frozen=True)
class CommitSummary:
    """Summary of one stored commit. Times are in microseconds since 1970.

    The row counts cover only the epoch of this commit. They are None if the previous commit is not stored. `open` is
    the number of open windows in the last stage, or of buffered rows if the last stage is a join.
    """

    epoch: int
    committed_us: int
    watermark_us: int
    rows_in: int | None
    late: int | None
    bad: int | None
    emitted: int | None
    open: int
    bytes: int


def list_commits(store: StateStore) -> list[CommitSummary]:
    """Summarize the stored commits, oldest first, without a lock. Damaged commits are omitted.

    Raises StartError or StateError if the state store cannot be read.
    """
    summaries, commits = list[CommitSummary](), list_kept_commits(store)
    for number, commit in enumerate(commits):
        before = commits[number - 1] if number else None
        follows = before is not None and before.epoch == commit.epoch - 1
        summaries.append(_summarize(commit, before if follows else None))
    return summaries


def _summarize(commit: Commit, before: Commit | None) -> CommitSummary:
    totals, previous_totals = _totals(commit), (0, 0, 0, 0) if before is None else _totals(before)
    is_counted = before is not None or commit.epoch == 0
    rows_in, late, bad, emitted = (
        now - then if is_counted else None for now, then in zip(totals, previous_totals, strict=True)
    )
    times, is_open = (commit.committed_us, commit.watermark_us), count_open_windows(commit)
    return CommitSummary(commit.epoch, *times, rows_in, late, bad, emitted, is_open, commit.state_bytes)


def _totals(commit: Commit) -> tuple[int, int, int, int]:
    c = next_commit.sum_counters(commit)
    return c.rows_in, c.rows_late, c.rows_bad, c.rows_emitted


def count_open_windows(commit: Commit) -> int:
    """Return the number of open sessions, open panes per key, or buffered rows (for a join) in the last stage."""
    last = commit.stages[-1]
    if last.fingerprint.get("kind") == "join":
        return sum(m.rows for shard in last.segments for m in shard if not m.kind.endswith(("+", "-")))
    return sum(last.windows) or sum(sum(groups) for groups in last.panes.values())
