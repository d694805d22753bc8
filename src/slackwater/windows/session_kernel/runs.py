"""What a session is, as loops over the intervals of one key after the other, in order of time; compiled.

An interval is a row of this epoch or of the state: its first and last event and how far it reaches (`end`, the last event plus
its gap). Times are µs, all other numbers positions.

    gap 3, cap 10     0    5    10   15   20
    intervals         ●●─●●●●●●●●●●●        ●●     in order of (key, start, last)
    runs              [────────────]        []     each interval begins within what those before it hold
    fragments            [────────][][]        []     one below the limit, start + cap; at or above it each for itself

A row is looked at a fixed number of times, so no key is slow for having many.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slackwater.core.jit import compiled, inlined

Int64s = NDArray[np.int64]
Int8s = NDArray[np.int8]
Bools = NDArray[np.bool_]

NEW, HELD, GONE = 0, 1, 2  # a row of this epoch; an interval that the state holds; one that left it, or a floor
USED, LATE, REFUSED = 0, 1, 2  # what becomes of a row
NOWHERE, BY_FRAGMENTS = -1, 0  # of the sessions that rows behind the watermark are put into
NONE, FAR = -(1 << 62), 1 << 62  # before and after every time


class SessionTimes(NamedTuple):
    """What intervals are judged by. `since`: rows before it are late by themselves. `reach`: the largest gap there is."""

    watermark: int
    horizon: int
    since: int
    reach: int
    cap: int


class SortedIntervals(NamedTuple):
    """All intervals, in order. `heads`: where each key begins, and at last how many intervals there are."""

    heads: Int64s
    kind: Int8s
    start: Int64s
    last: Int64s
    end: Int64s


class JudgedIntervals(NamedTuple):
    """What became of all intervals: `verdict` per interval; per key its `floor`, NONE if it has none, and whether it is `new`.

    Then of those that sessions are made of: `at`, their places; `key`; whether a `run` or a `fragment` begins there. `needs_placement`: a
    run spans the cap and holds a row behind the watermark, which is yet to be placed.
    """

    verdict: Int8s
    floor: Int64s
    new: Bools
    positions: Int64s
    key: Int64s
    run: Bools
    fragment: Bools
    needs_placement: bool


class SessionFragments(NamedTuple):
    """What is written of each fragment. `first`: its first interval, among those of `at`. `whole`: a session, and not part of a run
    that may be cut. `emitted`: the target holds it as it stands.
    """

    first: Int64s
    start: Int64s
    last: Int64s
    end: Int64s
    due: Int64s
    whole: Bools
    emitted: Bools


@compiled
def build_runs(intervals: SortedIntervals, times: SessionTimes, shut: Bools) -> JudgedIntervals:
    """Judge the rows of all keys and join what is used into runs and fragments. `shut`: new keys that may not open a session."""
    count, keys = len(intervals.kind), len(intervals.heads) - 1
    verdict = np.zeros(count, np.int8)
    floor, new = np.empty(keys, np.int64), np.zeros(keys, np.bool_)
    positions, key_of = np.empty(count, np.int64), np.empty(count, np.int64)
    run, fragment = np.empty(count, np.bool_), np.empty(count, np.bool_)
    used, needs_placement = 0, False
    for key in range(keys):
        begin, stop = intervals.heads[key], intervals.heads[key + 1]
        floor[key] = _floor(intervals, times, begin, stop)
        upto = _open(intervals, begin, stop, floor[key], positions, used, verdict)
        upto = _judge(intervals, times, positions, used, upto, run, verdict)
        new[key] = upto > used and not _has(intervals.kind, HELD, begin, stop)
        if new[key] and shut[key]:
            for j in range(used, upto):
                verdict[positions[j]] = REFUSED
            upto = used
        _part(intervals, times, positions, used, upto, run, fragment)
        needs_placement = needs_placement or needs_late_placement(intervals, times, positions, used, upto, run)
        for j in range(used, upto):
            key_of[j] = key
        used = upto
    return JudgedIntervals(
        verdict, floor, new, positions[:used], key_of[:used], run[:used], fragment[:used], needs_placement
    )


@compiled
def needed_intervals(intervals: SortedIntervals, times: SessionTimes) -> Bools:
    """Which intervals are open, or of a key whose floor counts."""
    needed = np.empty(len(intervals.kind), np.bool_)
    for key in range(len(intervals.heads) - 1):
        begin, stop = intervals.heads[key], intervals.heads[key + 1]
        counts = _floor(intervals, times, begin, stop) != NONE
        for i in range(begin, stop):
            needed[i] = counts or intervals.kind[i] != GONE
    return needed


@inlined
def _has(kinds: Int8s, kind: int, begin: int, stop: int) -> bool:
    present = False
    for i in range(begin, stop):
        present = present or kinds[i] == kind
    return present


@inlined
def _floor(intervals: SortedIntervals, times: SessionTimes, begin: int, stop: int) -> int:
    """How far the key's sessions reached that left the state; NONE where nothing that is taken can touch that any more."""
    floor, first = NONE, FAR
    for i in range(begin, stop):
        if intervals.kind[i] == GONE:
            floor = max(floor, intervals.end[i])
        elif intervals.kind[i] == HELD:
            first = min(first, intervals.start[i])
    return floor if min(times.horizon, first) <= floor + times.reach else NONE


@inlined
def _open(
    intervals: SortedIntervals, begin: int, stop: int, floor: int, positions: Int64s, used: int, verdict: Int8s
) -> int:
    """Put the key's open intervals and its rows above the floor behind the others in `positions`; up to where they go there."""
    for i in range(begin, stop):
        if intervals.kind[i] == NEW and intervals.start[i] <= floor:
            verdict[i] = LATE
        elif intervals.kind[i] != GONE:
            positions[used] = i
            used += 1
    return used


@inlined
def _judge(
    intervals: SortedIntervals,
    times: SessionTimes,
    positions: Int64s,
    begin: int,
    stop: int,
    run: Bools,
    verdict: Int8s,
) -> int:
    """Join a key's intervals into runs and keep what is not late, in place; up to where they go then.

                floor          horizon
    gone ........│               │
    row  ●       │  at or below the floor: late
    row          │ ●   ○─────○   its run holds an open session: used
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
            # what lies before the open session could chain back to one that was closed and forgotten, and overlap it
            if taken and (intervals.start[i] >= first_open or _is_recent(times, intervals.start[i], intervals.end[i])):
                positions[used], run[used] = i, begins
                used, begins = used + 1, False
            else:
                verdict[i] = LATE
        head = tail
    return used


@inlined
def _is_recent(times: SessionTimes, start: int, end: int) -> bool:
    return end >= times.horizon and start >= times.since


@inlined
def _part(
    intervals: SortedIntervals,
    times: SessionTimes,
    positions: Int64s,
    begin: int,
    stop: int,
    run: Bools,
    fragment: Bools,
) -> None:
    """Part a key's runs into fragments: what lies below the limit can only end up in one session, what lies above may be cut.

    Intervals whose events overlap are one, and above the limit if they reach across it: sessions that a larger gap joined.
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


@inlined
def is_behind(times: SessionTimes, kind: int, start: int) -> bool:
    return kind == NEW and start < times.watermark


@inlined
def needs_late_placement(
    intervals: SortedIntervals, times: SessionTimes, positions: Int64s, begin: int, stop: int, run: Bools
) -> bool:
    first, last, behind, needs_placement = NONE, NONE, False, False
    for j in range(begin, stop):
        i = positions[j]
        if run[j]:
            first, last, behind = intervals.start[i], NONE, False
        last, behind = max(last, intervals.last[i]), behind or is_behind(times, intervals.kind[i], intervals.start[i])
        needs_placement = needs_placement or (behind and last - first >= times.cap)
    return needs_placement


@compiled
def summarize_keys(intervals: SortedIntervals, positions: Int64s, key: Int64s) -> tuple[Bools, Bools, Int64s]:
    """Per key: whether a row of it is used, whether it has a session, and how many intervals the state held of it."""
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
def cut_sessions(run: Int64s, start: Int64s, last: Int64s, end: Int64s, cap: int) -> Bools:
    """Where sessions begin, if no row comes any more: with each run, and with what reaches the cap of the one before.

    What follows a cut is a run of its own: where rows bring their own gaps it may fall apart.

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
    """The fragments of all runs. `emitted`: whether the target holds an interval as it stands.

    A run of one fragment is a whole session, which closes by the watermark alone; one that it has passed already (a late row's)
    is none: it is visited and comes out. What may be cut is due when the first cut can be made, or its first part closes.
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
            _settle(fragments, times, head, n)
            head = n
    return fragments


@inlined
def _settle(fragments: SessionFragments, times: SessionTimes, head: int, stop: int) -> None:
    """Say of the fragments of one run when they are due."""
    close = fragments.end[head] + 1
    for n in range(head, stop):
        close = min(close, fragments.end[n] + 1)
        fragments.whole[n] = stop - head == 1 and (fragments.end[n] >= times.watermark or fragments.emitted[n])
    for n in range(head, stop):
        fragments.due[n] = close if fragments.whole[n] else min(fragments.start[head] + times.cap, close)
