"""The two places where a run of session pieces is walked one by one: cutting at the cap, and rows behind the watermark.

Both only concern runs that span at least the cap; everything else is decided by whole-array operations in `sessions`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slackwater.windows.logic import Int64s, Logic

Bools = NDArray[np.bool_]


def _long_runs(start: Int64s, last: Int64s, run: Int64s, cap: int) -> tuple[Int64s, Int64s]:
    """(begin, end) positions of the runs that span at least the cap."""
    heads = np.flatnonzero(np.diff(run, prepend=-1))
    ends = np.append(heads[1:], len(run))
    span = np.maximum.reduceat(last, heads) - start[heads] if len(heads) else heads
    long = span >= cap
    return heads[long], ends[long]


def session_heads(start: Int64s, last: Int64s, run: Int64s, cap: int) -> Bools:
    """True where a session begins: at each run, and in a long run at the first piece that reaches the cap.

    cap 10   start 0 ......... 10 .. 13 ........ 20
             [──●──●──●──●──●─)[●─────●──●────────)
    """
    heads = np.diff(run, prepend=-1) != 0
    for begin, end in zip(*_long_runs(start, last, run, cap), strict=True):
        at = int(begin)
        while True:
            limit = start[at] + cap
            nearest = min(int(np.searchsorted(start[at:end], limit)), int(np.searchsorted(last[at:end], limit)))
            at += max(nearest, 1)
            if at >= end:
                break
            heads[at] = True
    return heads


def place_late_rows(
    logic: Logic, is_row: Bools, start: Int64s, last: Int64s, run: Int64s, piece: Int64s, watermark: int
) -> tuple[Int64s, Bools]:
    """Rows behind the watermark never move a cut: in a run that reaches the cap each one is placed by itself.

    Where joining the sessions on both sides would reach the cap it joins the earlier one; where joining even one would,
    it is late. Returns the pieces (renumbered) and which intervals are too late; other runs come back unchanged.
    """
    too_late = np.zeros(len(run), dtype=bool)
    behind = is_row & (start < watermark)
    if not behind.any():
        return piece, too_late
    cap, gap = logic.cap_us, logic.gap_us
    label = piece.copy()
    for begin, end in zip(*_long_runs(start, last, run, cap), strict=True):
        if behind[begin:end].any():
            names = _place(start[begin:end], last[begin:end], behind[begin:end], gap, cap)
            too_late[begin:end] = names < 0
            label[begin:end] = np.where(names < 0, names, names + piece[begin])
    changed = np.diff(np.where(too_late, -1, label), prepend=-2) != 0
    changed |= np.diff(run, prepend=-1) != 0
    return np.cumsum(changed) - 1, too_late


def _place(start: Int64s, last: Int64s, behind: Bools, gap: int, cap: int) -> Int64s:
    """The session (0, 1, … in time order) of each interval of one run, -1 for late."""
    ahead = np.flatnonzero(~behind)
    sessions: list[list[int]] = []  # [start, last, member, member, …]
    if len(ahead):
        s, e = start[ahead], last[ahead]
        joined = np.append(False, s[1:] - np.maximum.accumulate(e)[:-1] <= gap)
        runs = np.cumsum(~joined) - 1
        for head, member in zip(session_heads(s, e, runs, cap), ahead, strict=True):
            if head:
                sessions.append([int(start[member]), int(last[member]), int(member)])
            else:
                sessions[-1][1] = max(sessions[-1][1], int(last[member]))
                sessions[-1].append(int(member))
    names = np.full(len(start), -1, dtype=np.int64)
    for row in np.flatnonzero(behind):
        _insert(sessions, int(row), int(start[row]), gap, cap)
    for name, session in enumerate(sessions):
        names[session[2:]] = name
    return names


def _insert(sessions: list[list[int]], row: int, ts: int, gap: int, cap: int) -> None:
    """Put one row behind the watermark into the sessions of its run, in place; leave it out if it is late."""
    after = next((i for i, s in enumerate(sessions) if s[0] > ts), len(sessions))
    left = sessions[after - 1] if after and ts - sessions[after - 1][1] <= gap else None
    right = sessions[after] if after < len(sessions) and sessions[after][0] - ts <= gap else None
    if left is not None and right is not None and right[1] - left[0] < cap:
        left[1] = max(left[1], right[1])
        left.extend([row, *right[2:]])
        del sessions[after]
    elif left is not None and max(ts, left[1]) - left[0] < cap:
        left[1] = max(left[1], ts)
        left.append(row)
    elif right is not None and right[1] - ts < cap:
        right[0] = ts
        right.append(row)
    elif left is None and right is None:
        sessions.insert(after, [ts, ts, row])
