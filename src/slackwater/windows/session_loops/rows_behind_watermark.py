"""Compiled loops for the rows behind the watermark, in runs that reach the cap. Each row joins a session or is late."""

from __future__ import annotations

import numpy as np

from slackwater.core.numba_loops import compiled, merge_sort
from slackwater.core.sorted_arrays import Int64s
from slackwater.windows.session_loops.session_rules import (
    BY_FRAGMENTS,
    LATE,
    NONE,
    NOWHERE,
    IntervalVerdicts,
    SessionTimes,
    SortedIntervals,
    is_behind_watermark,
    needs_late_placement,
)


@compiled
def assign_rows_behind_watermark(
    intervals: SortedIntervals, times: SessionTimes, judged: IntervalVerdicts
) -> IntervalVerdicts:
    """Judge the rows that are behind the watermark one by one, in each run that reaches the cap. They never move a cut.

    Returns the new verdicts, and overwrites the arrays of `judged`.
    """
    verdict, floor, new, positions, key, run, fragment, _ = judged
    used = head = 0
    while head < len(positions):
        tail = head + 1
        while tail < len(positions) and not run[tail]:
            tail += 1
        session = np.zeros(tail - head, np.int64)
        if needs_late_placement(intervals, times, positions, head, tail, run):
            session = _place_rows(intervals, times, positions[head:tail])
        previous, label, begins = NONE, 0, True
        for j in range(head, tail):
            i, assigned = positions[j], session[j - head]
            label += fragment[j]
            if assigned == NOWHERE:
                verdict[i] = LATE
            else:
                name = label if assigned == BY_FRAGMENTS else -assigned
                positions[used], key[used], run[used], fragment[used] = i, key[j], begins, begins or name != previous
                previous, begins, used = name, False, used + 1
        head = tail
    return IntervalVerdicts(verdict, floor, new, positions[:used], key[:used], run[:used], fragment[:used], False)


@compiled
def _place_rows(intervals: SortedIntervals, times: SessionTimes, positions: Int64s) -> Int64s:
    """Assign the rows that are behind the watermark to sessions of their run, one by one.

    A row joins the sessions on both sides if the result stays below the cap. Otherwise it joins the earlier session, or
    else the later session, if the result stays below the cap. A row that touches no session starts a new one. All other
    rows are late. A session that a row has joined is never split. Neither is the next session if the row touches it.

        gap 20, cap 22    0        10         21   30
        sessions          [)20                [────)50     21 − 0 < 22, but they do not touch: two sessions
        a row behind               ● joins the earlier     joining both would also take in 21 and cut off 30

    Returns the session number of each interval, counted from 1. A late row has NOWHERE. An interval whose session may
    still be split has BY_FRAGMENTS.
    """
    count = len(positions)
    first, last, end = np.empty(count + 1, np.int64), np.empty(count + 1, np.int64), np.empty(count + 1, np.int64)
    whole, into = np.zeros(count + 1, np.bool_), np.arange(count + 1)
    session, line = np.zeros(count, np.int64), np.empty(count, np.int64)
    rows, spare = np.empty(count, np.int64), np.empty(count, np.int64)
    created = sessions = behind = 0
    j = 0
    while j < count:
        if is_behind_watermark(times, intervals.kind[positions[j]], intervals.start[positions[j]]):
            rows[behind] = j
            behind += 1
            j += 1
            continue
        # intervals whose events overlap belong to the same session
        starts, ends, upto, tail = (
            intervals.start[positions[j]],
            intervals.end[positions[j]],
            intervals.last[positions[j]],
            j,
        )
        while tail < count and (
            is_behind_watermark(times, intervals.kind[positions[tail]], intervals.start[positions[tail]])
            or intervals.start[positions[tail]] <= upto
        ):
            if is_behind_watermark(times, intervals.kind[positions[tail]], intervals.start[positions[tail]]):
                rows[behind] = tail
                behind += 1
            else:
                upto, ends = max(upto, intervals.last[positions[tail]]), max(ends, intervals.end[positions[tail]])
                session[tail] = created + 1
            tail += 1
        if created and starts <= end[created] and upto - first[created] < times.cap:
            for k in range(j, tail):
                session[k] = min(session[k], created)
            last[created], end[created] = max(last[created], upto), max(end[created], ends)
        else:
            created += 1
            first[created], last[created], end[created] = starts, upto, ends
            line[sessions] = created
            sessions += 1
        j = tail
    times_of, reach_of = intervals.start[positions], intervals.end[positions]
    merge_sort(rows, 0, behind, times_of, times_of, reach_of, spare)
    for n in range(behind):
        ts, reach = times_of[rows[n]], reach_of[rows[n]]
        after, beyond = 0, sessions
        while after < beyond:
            middle = (after + beyond) // 2
            if first[line[middle]] <= ts:
                after = middle + 1
            else:
                beyond = middle
        earlier = line[after - 1] if after > 0 and ts <= end[line[after - 1]] else 0
        later = line[after] if after < sessions and first[line[after]] <= reach else 0
        assigned = NOWHERE
        if earlier and later and last[later] - first[earlier] < times.cap:
            assigned, into[later] = earlier, earlier
            last[earlier], end[earlier] = max(last[earlier], last[later]), max(end[earlier], end[later])
            sessions -= 1
            for k in range(after, sessions):
                line[k] = line[k + 1]
        elif earlier and max(ts, last[earlier]) - first[earlier] < times.cap:
            assigned = earlier
            whole[later] = True
        elif later and last[later] - ts < times.cap:
            assigned = later
        elif not earlier and not later:
            created += 1
            assigned = created
            first[assigned], last[assigned], end[assigned] = ts, ts, reach
            for k in range(sessions, after, -1):
                line[k] = line[k - 1]
            line[after] = assigned
            sessions += 1
        session[rows[n]] = assigned
        if assigned != NOWHERE:
            whole[assigned] = True
            first[assigned], last[assigned], end[assigned] = (
                min(first[assigned], ts),
                max(last[assigned], ts),
                max(end[assigned], reach),
            )
    for j in range(count):
        assigned = session[j]
        while assigned != NOWHERE and into[assigned] != assigned:
            assigned = into[assigned]
        session[j] = assigned if assigned == NOWHERE or whole[assigned] else BY_FRAGMENTS
    return session
