"""Does it keep up? Where the time of each kept epoch went, how many rows came in, and what waits at the sources.

commit n tells of   plan read ingest emit of n, commit write note of n - 1: what lies behind it as it is written
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slackwater.engine import next_commit
from slackwater.sources.backlog import Backlog
from slackwater.state.commit import Commit

OWN_PHASES = ("plan", "read", "ingest", "emit")  # phases that a commit tells of itself
LATER_PHASES = ("commit", "write", "note")  # and those that the next one tells of it
PHASES = (*OWN_PHASES, *LATER_PHASES)


@dataclass(frozen=True)
class EpochTiming:
    """A kept commit. `rows`: that came in since the one before it; `since_us`: how long ago that was; None where it is not
    kept. `phases`: µs, without those that are not known (yet)."""

    epoch: int
    committed_us: int
    rows: int | None
    since_us: int | None
    phases: Mapping[str, int]


@dataclass(frozen=True)
class Throughput:
    """The block. Over the kept commits: `rows` came in within `over_us`, which is `rows_per_s`; while an epoch was worked on it was
    `busy_per_s`, which is what it can do; `busy`: the share of time that epochs took. None where that is not known.

    The time begins with the first kept commit, or with the work on it if it is the pipeline's first one: all that it
    brought counts then, and a run that read everything at once has its rate. Where no row came, none is told.

    `behind_us`: how long it takes to read what waits, at the speed that it has while it works, if nothing more comes.
    """

    laps: tuple[EpochTiming, ...]
    rows: int | None
    over_us: int | None
    rows_per_s: float | None
    busy_per_s: float | None
    busy: float | None
    waits: tuple[Backlog, ...]
    asked_us: int
    behind_us: int | None


def build_throughput(commits: Sequence[Commit], waits: Sequence[Backlog], now_us: int) -> Throughput:
    """From the kept commits, oldest first."""
    laps = tuple(_epoch_timing(m, *_neighbours(commits, n)) for n, m in enumerate(commits))
    first, last = commits[0], commits[-1]
    rows = _rows(last) - _rows(first)
    over, spent = last.committed_us - first.committed_us, _spent_us(last) - _spent_us(first)
    if first.epoch == 0:
        rows, spent = _rows(last), _spent_us(last)
        over += sum(_spent_by_phase(first).get(p, 0) for p in OWN_PHASES)
    elif _spent_us(first) == 0:
        spent = 0  # it was written before commits told of it
    over = max(over, 0)  # a clock may have been set back
    # over the kept commits, else over its whole life
    read, within = (rows, spent) if rows and over and spent else (_rows(last), _spent_us(last))
    able = 1e6 * read / within if read and within else None
    waiting = [w.rows for w in waits if w.rows is not None]
    behind = None if able is None or not waiting or len(waiting) < len(waits) else round(1e6 * sum(waiting) / able)
    return Throughput(
        laps,
        rows if over else None,
        over or None,
        1e6 * rows / over if rows and over else None,
        able,
        min(spent / over, 1.0) if over and spent else None,
        tuple(waits),
        now_us,
        behind,
    )


def _rows(commit: Commit) -> int:
    return next_commit.total_counters(commit).rows_in


def _neighbours(commits: Sequence[Commit], index: int) -> tuple[Commit | None, Commit | None]:
    """The commits right before and after one, where they are kept."""
    before = commits[index - 1] if index and commits[index - 1].epoch == commits[index].epoch - 1 else None
    after = (
        commits[index + 1]
        if index + 1 < len(commits) and commits[index + 1].epoch == commits[index].epoch + 1
        else None
    )
    return before, after


def _epoch_timing(commit: Commit, before: Commit | None, after: Commit | None) -> EpochTiming:
    is_complete = before is not None or commit.epoch == 0
    rows = next_commit.total_counters(commit).rows_in - (
        0 if before is None else next_commit.total_counters(before).rows_in
    )
    spent, former, later = (_spent_by_phase(m) for m in (commit, before, after))
    phases = {
        p: spent[p] - former.get(p, 0) for p in OWN_PHASES if p in spent and is_complete and (former or before is None)
    }
    phases |= {p: later[p] - spent.get(p, 0) for p in LATER_PHASES if p in later and spent}
    # of a runner that stopped in between the next one cannot tell
    shown_phases = phases if phases.get("commit", 1) > 0 else {p: us for p, us in phases.items() if p in OWN_PHASES}
    since = None if before is None else commit.committed_us - before.committed_us
    return EpochTiming(commit.epoch, commit.committed_us, rows if is_complete else None, since, shown_phases)


def _spent_by_phase(commit: Commit | None) -> Mapping[str, int]:
    return {} if commit is None else next_commit.total_counters(commit).spent_us


def _spent_us(commit: Commit) -> int:
    return sum(us for p, us in _spent_by_phase(commit).items() if p in PHASES)
