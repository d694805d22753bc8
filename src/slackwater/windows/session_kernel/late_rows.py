"""Rows behind the watermark in runs that reach the cap: each is put into a session by itself, or is late; compiled."""

from __future__ import annotations

import numpy as np

from slackwater.core.arrays import Int64s
from slackwater.core.jit import compiled
from slackwater.windows.session_kernel.runs import (
    BY_FRAGMENTS,
    LATE,
    NONE,
    NOWHERE,
    JudgedIntervals,
    SessionTimes,
    SortedIntervals,
    is_behind,
    is_crowded,
)
from slackwater.windows.session_kernel.sort import merge_sort


@compiled
def place_late_rows(given: SortedIntervals, times: SessionTimes, joined: JudgedIntervals) -> JudgedIntervals:
    """Rows behind the watermark never move a cut: in a run that reaches the cap each is placed by itself, or late.

    Changes `joined` in place, too.
    """
    verdict, floor, new, at, key, run, fragment, _ = joined
    kept = head = 0
    while head < len(at):
        tail = head + 1
        while tail < len(at) and not run[tail]:
            tail += 1
        session = np.zeros(tail - head, np.int64)
        if is_crowded(given, times, at, head, tail, run):
            session = place_rows(given, times, at[head:tail])
        former, label, begins = NONE, 0, True
        for j in range(head, tail):
            i, mine = at[j], session[j - head]
            label += fragment[j]
            if mine == NOWHERE:
                verdict[i] = LATE
            else:
                name = label if mine == BY_FRAGMENTS else -mine
                at[kept], key[kept], run[kept], fragment[kept] = i, key[j], begins, begins or name != former
                former, begins, kept = name, False, kept + 1
        head = tail
    return JudgedIntervals(verdict, floor, new, at[:kept], key[:kept], run[:kept], fragment[:kept], False)


@compiled
def place_rows(given: SortedIntervals, times: SessionTimes, at: Int64s) -> Int64s:
    """Put the rows behind the watermark into the sessions of their run, one by one.

    Where joining the sessions on both sides would reach the cap a row joins the earlier one; where joining even one would,
    it is late. The session that it joins stays whole from then on, and so does the next one if the row touches it.

        gap 20, cap 22    0        10         21   30
        sessions          [)20                [────)50     21 − 0 < 22, and yet no session: they do not touch
        a row behind               ● joins the earlier     else 21 would follow it, and 30 be cut off

    Per interval: NOWHERE for a late row; BY_FRAGMENTS where its session may still be parted; else which one it is in, from 1.
    """
    count = len(at)
    first, last, end = np.empty(count + 1, np.int64), np.empty(count + 1, np.int64), np.empty(count + 1, np.int64)
    whole, into = np.zeros(count + 1, np.bool_), np.arange(count + 1)
    session, line = np.zeros(count, np.int64), np.empty(count, np.int64)
    rows, spare = np.empty(count, np.int64), np.empty(count, np.int64)
    made = sessions = behind = 0
    j = 0
    while j < count:
        if is_behind(times, given.kind[at[j]], given.start[at[j]]):
            rows[behind] = j
            behind += 1
            j += 1
            continue
        # intervals whose events overlap are one
        starts, ends, upto, tail = given.start[at[j]], given.end[at[j]], given.last[at[j]], j
        while tail < count and (
            is_behind(times, given.kind[at[tail]], given.start[at[tail]]) or given.start[at[tail]] <= upto
        ):
            if is_behind(times, given.kind[at[tail]], given.start[at[tail]]):
                rows[behind] = tail
                behind += 1
            else:
                upto, ends = max(upto, given.last[at[tail]]), max(ends, given.end[at[tail]])
                session[tail] = made + 1
            tail += 1
        if made and starts <= end[made] and upto - first[made] < times.cap:
            for k in range(j, tail):
                session[k] = min(session[k], made)
            last[made], end[made] = max(last[made], upto), max(end[made], ends)
        else:
            made += 1
            first[made], last[made], end[made] = starts, upto, ends
            line[sessions] = made
            sessions += 1
        j = tail
    times_of, reach_of = given.start[at], given.end[at]
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
        left = line[after - 1] if after > 0 and ts <= end[line[after - 1]] else 0
        right = line[after] if after < sessions and first[line[after]] <= reach else 0
        mine = NOWHERE
        if left and right and last[right] - first[left] < times.cap:
            mine, into[right] = left, left
            last[left], end[left] = max(last[left], last[right]), max(end[left], end[right])
            sessions -= 1
            for k in range(after, sessions):
                line[k] = line[k + 1]
        elif left and max(ts, last[left]) - first[left] < times.cap:
            mine = left
            whole[right] = True
        elif right and last[right] - ts < times.cap:
            mine = right
        elif not left and not right:
            made += 1
            mine = made
            first[mine], last[mine], end[mine] = ts, ts, reach
            for k in range(sessions, after, -1):
                line[k] = line[k - 1]
            line[after] = mine
            sessions += 1
        session[rows[n]] = mine
        if mine != NOWHERE:
            whole[mine] = True
            first[mine], last[mine], end[mine] = min(first[mine], ts), max(last[mine], ts), max(end[mine], reach)
    for j in range(count):
        mine = session[j]
        while mine != NOWHERE and into[mine] != mine:
            mine = into[mine]
        session[j] = mine if mine == NOWHERE or whole[mine] else BY_FRAGMENTS
    return session
