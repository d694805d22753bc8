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

    Then of those that sessions are made of: `at`, their places; `key`; whether a `run` or a `fragment` begins there. `crowded`: a
    run spans the cap and holds a row behind the watermark, which is yet to be placed.
    """

    verdict: Int8s
    floor: Int64s
    new: Bools
    at: Int64s
    key: Int64s
    run: Bools
    fragment: Bools
    crowded: bool


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
def build_runs(given: SortedIntervals, times: SessionTimes, shut: Bools) -> JudgedIntervals:
    """Judge the rows of all keys and join what is used into runs and fragments. `shut`: new keys that may not open a session."""
    count, keys = len(given.kind), len(given.heads) - 1
    verdict = np.zeros(count, np.int8)
    floor, new = np.empty(keys, np.int64), np.zeros(keys, np.bool_)
    at, key_of = np.empty(count, np.int64), np.empty(count, np.int64)
    run, fragment = np.empty(count, np.bool_), np.empty(count, np.bool_)
    used, crowded = 0, False
    for key in range(keys):
        begin, stop = given.heads[key], given.heads[key + 1]
        floor[key] = _floor(given, times, begin, stop)
        upto = _open(given, begin, stop, floor[key], at, used, verdict)
        upto = _judge(given, times, at, used, upto, run, verdict)
        new[key] = upto > used and not _has(given.kind, HELD, begin, stop)
        if new[key] and shut[key]:
            for j in range(used, upto):
                verdict[at[j]] = REFUSED
            upto = used
        _part(given, times, at, used, upto, run, fragment)
        crowded = crowded or is_crowded(given, times, at, used, upto, run)
        for j in range(used, upto):
            key_of[j] = key
        used = upto
    return JudgedIntervals(verdict, floor, new, at[:used], key_of[:used], run[:used], fragment[:used], crowded)


@compiled
def needed_intervals(given: SortedIntervals, times: SessionTimes) -> Bools:
    """Which intervals are open, or of a key whose floor counts."""
    kept = np.empty(len(given.kind), np.bool_)
    for key in range(len(given.heads) - 1):
        begin, stop = given.heads[key], given.heads[key + 1]
        counts = _floor(given, times, begin, stop) != NONE
        for i in range(begin, stop):
            kept[i] = counts or given.kind[i] != GONE
    return kept


@inlined
def _has(kinds: Int8s, kind: int, begin: int, stop: int) -> bool:
    found = False
    for i in range(begin, stop):
        found = found or kinds[i] == kind
    return found


@inlined
def _floor(given: SortedIntervals, times: SessionTimes, begin: int, stop: int) -> int:
    """How far the key's sessions reached that left the state; NONE where nothing that is taken can touch that any more."""
    floor, first = NONE, FAR
    for i in range(begin, stop):
        if given.kind[i] == GONE:
            floor = max(floor, given.end[i])
        elif given.kind[i] == HELD:
            first = min(first, given.start[i])
    return floor if min(times.horizon, first) <= floor + times.reach else NONE


@inlined
def _open(given: SortedIntervals, begin: int, stop: int, floor: int, at: Int64s, used: int, verdict: Int8s) -> int:
    """Put the key's open intervals and its rows above the floor behind the others in `at`; up to where they go there."""
    for i in range(begin, stop):
        if given.kind[i] == NEW and given.start[i] <= floor:
            verdict[i] = LATE
        elif given.kind[i] != GONE:
            at[used] = i
            used += 1
    return used


@inlined
def _judge(
    given: SortedIntervals, times: SessionTimes, at: Int64s, begin: int, stop: int, run: Bools, verdict: Int8s
) -> int:
    """Join a key's intervals into runs and keep what is not late, in place; up to where they go then.

                floor          horizon
    gone ........│               │
    row  ●       │  at or below the floor: late
    row          │ ●   ○─────○   its run holds an open session: used
    row          │ ●             alone, and ts + gap < horizon: late
    """
    kept, head = begin, begin
    while head < stop:
        reach, tail = given.end[at[head]], head + 1
        while tail < stop and given.start[at[tail]] <= reach:
            reach = max(reach, given.end[at[tail]])
            tail += 1
        taken, first_open, begins = False, FAR, True
        for j in range(head, tail):
            i = at[j]
            if given.kind[i] == HELD:
                first_open = min(first_open, given.start[i])
            taken = taken or given.kind[i] == HELD or _is_recent(times, given.start[i], given.end[i])
        for j in range(head, tail):
            i = at[j]
            # what lies before the open session could chain back to one that was closed and forgotten, and overlap it
            if taken and (given.start[i] >= first_open or _is_recent(times, given.start[i], given.end[i])):
                at[kept], run[kept] = i, begins
                kept, begins = kept + 1, False
            else:
                verdict[i] = LATE
        head = tail
    return kept


@inlined
def _is_recent(times: SessionTimes, start: int, end: int) -> bool:
    return end >= times.horizon and start >= times.since


@inlined
def _part(
    given: SortedIntervals, times: SessionTimes, at: Int64s, begin: int, stop: int, run: Bools, fragment: Bools
) -> None:
    """Part a key's runs into fragments: what lies below the limit can only end up in one session, what lies above may be cut.

    Intervals whose events overlap are one, and above the limit if they reach across it: sessions that a larger gap joined.
    """
    if begin == stop:
        return
    limit = min(given.start[at[begin]], times.watermark) + times.cap
    head = begin
    while head < stop:
        last, tail = given.last[at[head]], head + 1
        while tail < stop and given.start[at[tail]] <= last:
            last = max(last, given.last[at[tail]])
            tail += 1
        for j in range(head, tail):
            fragment[j] = run[j] or (j == head and last >= limit)
        head = tail


@inlined
def is_behind(times: SessionTimes, kind: int, start: int) -> bool:
    return kind == NEW and start < times.watermark


@inlined
def is_crowded(given: SortedIntervals, times: SessionTimes, at: Int64s, begin: int, stop: int, run: Bools) -> bool:
    first, last, behind, crowded = NONE, NONE, False, False
    for j in range(begin, stop):
        i = at[j]
        if run[j]:
            first, last, behind = given.start[i], NONE, False
        last, behind = max(last, given.last[i]), behind or is_behind(times, given.kind[i], given.start[i])
        crowded = crowded or (behind and last - first >= times.cap)
    return crowded


@compiled
def of_keys(given: SortedIntervals, at: Int64s, key: Int64s) -> tuple[Bools, Bools, Int64s]:
    """Per key: whether a row of it is used, whether it has a session, and how many intervals the state held of it."""
    keys = len(given.heads) - 1
    touched, has_open = np.zeros(keys, np.bool_), np.zeros(keys, np.bool_)
    held = np.zeros(keys, np.int64)
    for j in range(len(at)):
        has_open[key[j]] = True
        if given.kind[at[j]] == NEW:
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
    given: SortedIntervals, times: SessionTimes, at: Int64s, run: Bools, fragment: Bools, emitted: Bools
) -> SessionFragments:
    """The fragments of all runs. `emitted`: whether the target holds an interval as it stands.

    A run of one fragment is a whole session, which closes by the watermark alone; one that it has passed already (a late row's)
    is none: it is visited and comes out. What may be cut is due when the first cut can be made, or its first part closes.
    """
    count = 0
    for begins in fragment:
        count += begins
    found = SessionFragments(
        np.empty(count, np.int64),
        np.empty(count, np.int64),
        np.empty(count, np.int64),
        np.empty(count, np.int64),
        np.empty(count, np.int64),
        np.empty(count, np.bool_),
        np.empty(count, np.bool_),
    )
    n = head = 0
    for begin in range(len(at)):
        if not fragment[begin]:
            continue
        last, end, as_it_stands, stop = NONE, NONE, True, begin
        while stop < len(at) and (stop == begin or not fragment[stop]):
            i = at[stop]
            last, end, as_it_stands = max(last, given.last[i]), max(end, given.end[i]), as_it_stands and emitted[stop]
            stop += 1
        found.first[n], found.start[n] = begin, given.start[at[begin]]
        found.last[n], found.end[n], found.emitted[n] = last, end, as_it_stands
        n += 1
        if stop == len(at) or run[stop]:
            _settle(found, times, head, n)
            head = n
    return found


@inlined
def _settle(found: SessionFragments, times: SessionTimes, head: int, stop: int) -> None:
    """Say of the fragments of one run when they are due."""
    close = found.end[head] + 1
    for n in range(head, stop):
        close = min(close, found.end[n] + 1)
        found.whole[n] = stop - head == 1 and (found.end[n] >= times.watermark or found.emitted[n])
    for n in range(head, stop):
        found.due[n] = close if found.whole[n] else min(found.start[head] + times.cap, close)
