"""The session rules, as compiled loops over the intervals of each key in time order.

An interval is a new row, or one or more stored rows. It has a first event (`start`), a last event (`last`), and an
`end`: the last event plus the gap. Times are in µs. All other numbers are positions.

    gap 3, cap 10     0    5    10   15   20
    intervals         ●●─●●●●●●●●●●●        ●●     in order of (key, start, last)
    runs              [────────────]        []     each interval begins before the previous ones end
    fragments            [────────][][]        []     one below the limit (start + cap), separate ones from there on

Each row is visited a fixed number of times, so the cost per row does not grow with the number of rows per key.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slackwater.core.numba_loops import compiled, inline_loop

Int64s = NDArray[np.int64]
Int8s = NDArray[np.int8]
Bools = NDArray[np.bool_]

NEW, HELD, GONE = 0, 1, 2  # a new row; a stored interval; an expired interval or a floor
USED, LATE, REFUSED = 0, 1, 2  # the verdict on a row
NOWHERE, BY_FRAGMENTS = -1, 0  # instead of a session number: the row is late; the fragments decide
NONE, FAR = -(1 << 62), 1 << 62  # before and after every time


class SessionTimes(NamedTuple):
    """Times (µs) that decide which rows are late, and where sessions are cut."""

    watermark: int
    horizon: int
    since: int  # rows before this time are always late
    reach: int  # the largest gap
    cap: int


class SortedIntervals(NamedTuple):
    """All intervals in order of (key, start, last)."""

    heads: Int64s  # the position of the first interval of each key, followed by the number of intervals
    kind: Int8s
    start: Int64s
    last: Int64s
    end: Int64s


class IntervalVerdicts(NamedTuple):
    """Verdicts on intervals: which ones are part of a session, and which rows are late or refused.

    `verdict` has one element per interval. `floor` and `new` have one element per key. The other arrays have one
    element per interval that is part of a session.
    """

    verdict: Int8s  # USED, LATE or REFUSED
    floor: Int64s  # NONE if the key has no floor
    new: Bools  # whether the key has sessions now, but no stored ones
    positions: Int64s
    key: Int64s
    run: Bools  # whether a run begins at this interval
    fragment: Bools  # whether a fragment begins at this interval
    needs_placement: bool  # whether `rows_behind_watermark` must place rows: see `needs_late_placement`


class SessionFragments(NamedTuple):
    """The fragments to write, as arrays with one element per fragment."""

    first: Int64s  # the first interval, as an index into `IntervalVerdicts.positions`
    start: Int64s
    last: Int64s
    end: Int64s
    due: Int64s
    whole: Bools  # whether the fragment is a complete session, not part of a run that may still be cut
    emitted: Bools  # whether the target contains the fragment unchanged


@compiled
def build_runs(intervals: SortedIntervals, times: SessionTimes, shut: Bools) -> IntervalVerdicts:
    """Decide which rows are late or refused, and join all other intervals into runs and fragments.

    `shut`: a mask of the new keys that must not open a session.
    """
    count, keys = len(intervals.kind), len(intervals.heads) - 1
    verdict = np.zeros(count, np.int8)
    floor, new = np.empty(keys, np.int64), np.zeros(keys, np.bool_)
    positions, key_of = np.empty(count, np.int64), np.empty(count, np.int64)
    run, fragment = np.empty(count, np.bool_), np.empty(count, np.bool_)
    used, needs_placement = 0, False
    for key in range(keys):
        begin, stop = intervals.heads[key], intervals.heads[key + 1]
        floor[key] = _floor(intervals, times, begin, stop)
        upto = _collect_open(intervals, begin, stop, floor[key], positions, used, verdict)
        upto = _judge(intervals, times, positions, used, upto, run, verdict)
        new[key] = upto > used and not _contains(intervals.kind, HELD, begin, stop)
        if new[key] and shut[key]:
            for j in range(used, upto):
                verdict[positions[j]] = REFUSED
            upto = used
        _split_fragments(intervals, times, positions, used, upto, run, fragment)
        needs_placement = needs_placement or needs_late_placement(intervals, times, positions, used, upto, run)
        for j in range(used, upto):
            key_of[j] = key
        used = upto
    return IntervalVerdicts(
        verdict, floor, new, positions[:used], key_of[:used], run[:used], fragment[:used], needs_placement
    )


@compiled
def find_needed_intervals(intervals: SortedIntervals, times: SessionTimes) -> Bools:
    """Return a mask of the intervals that are open, or whose key has a floor that can still make rows late."""
    needed = np.empty(len(intervals.kind), np.bool_)
    for key in range(len(intervals.heads) - 1):
        begin, stop = intervals.heads[key], intervals.heads[key + 1]
        counts = _floor(intervals, times, begin, stop) != NONE
        for i in range(begin, stop):
            needed[i] = counts or intervals.kind[i] != GONE
    return needed


@inline_loop
def _contains(kinds: Int8s, kind: int, begin: int, stop: int) -> bool:
    present = False
    for i in range(begin, stop):
        present = present or kinds[i] == kind
    return present


@inline_loop
def _floor(intervals: SortedIntervals, times: SessionTimes, begin: int, stop: int) -> int:
    """Return the latest end of a key's expired sessions, or NONE if rows can no longer touch these sessions."""
    floor, first = NONE, FAR
    for i in range(begin, stop):
        if intervals.kind[i] == GONE:
            floor = max(floor, intervals.end[i])
        elif intervals.kind[i] == HELD:
            first = min(first, intervals.start[i])
    return floor if min(times.horizon, first) <= floor + times.reach else NONE


@inline_loop
def _collect_open(
    intervals: SortedIntervals, begin: int, stop: int, floor: int, positions: Int64s, used: int, verdict: Int8s
) -> int:
    """Append a key's open intervals, and its rows above the floor, to `positions`.

    Return the new number of positions in use.
    """
    for i in range(begin, stop):
        if intervals.kind[i] == NEW and intervals.start[i] <= floor:
            verdict[i] = LATE
        elif intervals.kind[i] != GONE:
            positions[used] = i
            used += 1
    return used


@inline_loop
def _judge(
    intervals: SortedIntervals,
    times: SessionTimes,
    positions: Int64s,
    begin: int,
    stop: int,
    run: Bools,
    verdict: Int8s,
) -> int:
    """Join a key's intervals into runs, and remove late intervals from `positions` in place. Return the new end.

                floor          horizon
    gone ........│               │
    row  ●       │  at or below the floor: late
    row          │ ●   ○─────○   its run contains an open session: used
    row          │ ●             alone, and ts + gap < horizon: late
    """
    used, head = begin, begin
    while head < stop:
        reach, tail = intervals.end[positions[head]], head + 1
        while tail < stop and intervals.start[positions[tail]] <= reach:
            reach = max(reach, intervals.end[positions[tail]])
            tail += 1
        taken, first_open, begins = False, FAR, True
        for j in range(head, tail):
            i = positions[j]
            if intervals.kind[i] == HELD:
                first_open = min(first_open, intervals.start[i])
            taken = taken or intervals.kind[i] == HELD or _is_recent(times, intervals.start[i], intervals.end[i])
        for j in range(head, tail):
            i = positions[j]
            # a row before the open session could make it overlap an expired session
            if taken and (intervals.start[i] >= first_open or _is_recent(times, intervals.start[i], intervals.end[i])):
                positions[used], run[used] = i, begins
                used, begins = used + 1, False
            else:
                verdict[i] = LATE
        head = tail
    return used


@inline_loop
def _is_recent(times: SessionTimes, start: int, end: int) -> bool:
    return end >= times.horizon and start >= times.since


@inline_loop
def _split_fragments(
    intervals: SortedIntervals,
    times: SessionTimes,
    positions: Int64s,
    begin: int,
    stop: int,
    run: Bools,
    fragment: Bools,
) -> None:
    """Split a key's runs into fragments.

    Intervals below the limit (start + cap) are certain to be in the same session, and form one fragment. Intervals
    above the limit may be split. Intervals whose events overlap, which can happen after the gap was increased, always
    form one fragment. If such a fragment crosses the limit, it is separate from the previous fragment.
    """
    if begin == stop:
        return
    limit = min(intervals.start[positions[begin]], times.watermark) + times.cap
    head = begin
    while head < stop:
        last, tail = intervals.last[positions[head]], head + 1
        while tail < stop and intervals.start[positions[tail]] <= last:
            last = max(last, intervals.last[positions[tail]])
            tail += 1
        for j in range(head, tail):
            fragment[j] = run[j] or (j == head and last >= limit)
        head = tail


@inline_loop
def is_behind_watermark(times: SessionTimes, kind: int, start: int) -> bool:
    """Return whether an interval comes from a new row and is behind the watermark."""
    return kind == NEW and start < times.watermark


@inline_loop
def needs_late_placement(
    intervals: SortedIntervals, times: SessionTimes, positions: Int64s, begin: int, stop: int, run: Bools
) -> bool:
    """Return whether a run spans the cap and contains a row behind the watermark."""
    first, last, behind, needs_placement = NONE, NONE, False, False
    for j in range(begin, stop):
        i = positions[j]
        if run[j]:
            first, last, behind = intervals.start[i], NONE, False
        last, behind = (
            max(last, intervals.last[i]),
            behind or is_behind_watermark(times, intervals.kind[i], intervals.start[i]),
        )
        needs_placement = needs_placement or (behind and last - first >= times.cap)
    return needs_placement


@compiled
def summarize_keys(intervals: SortedIntervals, positions: Int64s, key: Int64s) -> tuple[Bools, Bools, Int64s]:
    """Return, for each key, whether it has a new row, whether it has a session, and how many intervals are stored."""
    keys = len(intervals.heads) - 1
    touched, has_open = np.zeros(keys, np.bool_), np.zeros(keys, np.bool_)
    held = np.zeros(keys, np.int64)
    for j in range(len(positions)):
        has_open[key[j]] = True
        if intervals.kind[positions[j]] == NEW:
            touched[key[j]] = True
        else:
            held[key[j]] += 1
    return touched, has_open, held


@compiled
def number_runs(key: Int64s, start: Int64s, end: Int64s) -> Int64s:
    """Return the run number of each interval. The intervals must be sorted by key and time.

    A run begins at an interval that starts after all earlier intervals of its key have ended. Intervals that touch
    belong to one run.
    """
    run = np.empty(len(key), np.int64)
    number, reach = -1, NONE
    for i in range(len(key)):
        if i == 0 or key[i] != key[i - 1] or start[i] > reach:
            number, reach = number + 1, end[i]
        else:
            reach = max(reach, end[i])
        run[i] = number
    return run


@compiled
def cut_sessions(run: Int64s, start: Int64s, last: Int64s, end: Int64s, cap: int) -> Bools:
    """Return a mask of the intervals at which sessions would begin if no more rows arrived.

    Sessions begin at the start of each run, and at each cut. A session is cut where it reaches the cap. The rows after
    the cut form a new run. If rows have their own gaps, this run may consist of several sessions.

        cap 10   start 0 ......... 10 .. 13 ........ 20
                 [──●──●──●──●──●─)[●─────●──●────────)
    """
    begins = np.empty(len(run), np.bool_)
    first = reach = NONE
    for i in range(len(run)):
        begins[i] = i == 0 or run[i] != run[i - 1] or start[i] > reach or last[i] - first >= cap
        if begins[i]:
            first, reach = start[i], end[i]
        else:
            reach = max(reach, end[i])
    return begins


@compiled
def build_fragments(
    intervals: SortedIntervals, times: SessionTimes, positions: Int64s, run: Bools, fragment: Bools, emitted: Bools
) -> SessionFragments:
    """Return the fragments of all runs. `emitted`: a mask of the intervals that the target contains unchanged.

    A run of one fragment is a whole session, which closes without being written again. An exception is a session that a
    late row creates after the watermark has passed its end: it is not stored as whole, and the epoch emits it. A run
    that may be cut is due as soon as its first cut is certain or its first part closes.
    """
    count = 0
    for begins in fragment:
        count += begins
    fragments = SessionFragments(
        np.empty(count, np.int64),
        np.empty(count, np.int64),
        np.empty(count, np.int64),
        np.empty(count, np.int64),
        np.empty(count, np.int64),
        np.empty(count, np.bool_),
        np.empty(count, np.bool_),
    )
    n = head = 0
    for begin in range(len(positions)):
        if not fragment[begin]:
            continue
        last, end, as_it_stands, stop = NONE, NONE, True, begin
        while stop < len(positions) and (stop == begin or not fragment[stop]):
            i = positions[stop]
            last, end, as_it_stands = (
                max(last, intervals.last[i]),
                max(end, intervals.end[i]),
                as_it_stands and emitted[stop],
            )
            stop += 1
        fragments.first[n], fragments.start[n] = begin, intervals.start[positions[begin]]
        fragments.last[n], fragments.end[n], fragments.emitted[n] = last, end, as_it_stands
        n += 1
        if stop == len(positions) or run[stop]:
            _set_due_times(fragments, times, head, n)
            head = n
    return fragments


@inline_loop
def _set_due_times(fragments: SessionFragments, times: SessionTimes, head: int, stop: int) -> None:
    """Set `whole` and `due` for the fragments of one run, at positions from `head` up to but excluding `stop`."""
    close = fragments.end[head] + 1
    for n in range(head, stop):
        close = min(close, fragments.end[n] + 1)
        fragments.whole[n] = stop - head == 1 and (fragments.end[n] >= times.watermark or fragments.emitted[n])
    for n in range(head, stop):
        fragments.due[n] = close if fragments.whole[n] else min(fragments.start[head] + times.cap, close)
