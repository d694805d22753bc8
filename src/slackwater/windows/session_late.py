"""Rows behind the watermark in runs that reach the cap, which are put into the sessions there one by one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slackwater.windows.logic import Int64s
from slackwater.windows.session_cuts import Bools, session_heads
from slackwater.windows.session_walk import LATE, NEW, Intervals, Joined, Times


def place_late_rows(given: Intervals, times: Times, joined: Joined) -> Joined:
    """Rows behind the watermark never move a cut: in a run that reaches the cap each one is placed by itself.

    Where joining the sessions on both sides would reach the cap it joins the earlier one; where joining even one would,
    it is late. The session that it joins becomes one piece, and so does the next one if the row touches it: they stay whole.

        gap 20, cap 22    0        10         21   30
        sessions          [)20                [────)50     21 − 0 < 22, and yet no session: they do not touch
        a row behind               ● joins the earlier     else 21 would follow it, and 30 be cut off
    """
    if not len(joined.crowded):
        return joined
    kept = np.ones(len(joined.at), dtype=bool)
    for begin, stop in joined.crowded.reshape(-1, 2):
        at = joined.at[begin:stop]
        start = given.start[at]
        label = np.cumsum(joined.piece[begin:stop], dtype=np.int64)
        behind = (given.kind[at] == NEW) & (start < times.watermark)
        _place(start, given.last[at], given.end[at], behind, times.cap, label)
        joined.verdict[at[label == _LATE]] = LATE
        here = np.flatnonzero(label != _LATE) + begin
        kept[begin:stop] = label != _LATE
        joined.run[here] = False
        joined.run[here[:1]] = True
        joined.piece[here] = np.diff(label[here - begin], prepend=_LATE) != 0
    return joined._replace(
        at=joined.at[kept], key=joined.key[kept], run=joined.run[kept], piece=joined.piece[kept], crowded=_NOBODY
    )


_NOBODY = np.empty(0, dtype=np.int64)
_LATE = -1


def _place(start: Int64s, last: Int64s, end: Int64s, behind: Bools, cap: int, label: Int64s) -> None:
    """Give each row behind the watermark of one run a session; `label`, changed in place, names the pieces.

    It becomes _LATE for late rows and a number below that for the intervals of a session that is to stay whole.
    """
    ahead = np.flatnonzero(~behind)
    sessions: list[_Session] = []
    if len(ahead):
        s, e, reach = start[ahead], last[ahead], end[ahead]
        apart = np.append(True, s[1:] > np.maximum.accumulate(e)[:-1])  # a row may lie within an interval
        heads = np.flatnonzero(apart)
        s, e, reach = s[heads], np.maximum.reduceat(e, heads), np.maximum.reduceat(reach, heads)
        joined = np.append(False, s[1:] <= np.maximum.accumulate(reach)[:-1])
        begins = session_heads(s, e, reach, np.cumsum(~joined) - 1, cap)
        for at, members in enumerate(np.split(ahead, heads[1:])):
            here = _Session(int(s[at]), int(e[at]), int(reach[at]), members.tolist())
            if begins[at]:
                sessions.append(here)
            else:
                sessions[-1].join(here)
    rows = np.flatnonzero(behind)
    label[rows] = _LATE
    for row in rows[np.lexsort((end[rows], start[rows]))]:
        _insert(sessions, _Session(int(start[row]), int(start[row]), int(end[row]), [int(row)], stays=True), cap)
    for name, session in enumerate(sessions):
        if session.stays:
            label[session.members] = _LATE - 1 - name


@dataclass
class _Session:
    """A session while late rows are put into a run: first and last event, how far it reaches, its intervals.

    `stays`: whether it is whole from now on, whatever comes.
    """

    start: int
    last: int
    end: int
    members: list[int]
    stays: bool = False

    def join(self, other: _Session) -> None:
        self.start, self.last = min(self.start, other.start), max(self.last, other.last)
        self.end = max(self.end, other.end)
        self.members.extend(other.members)
        self.stays = self.stays or other.stays


def _insert(sessions: list[_Session], row: _Session, cap: int) -> None:
    """Put one row behind the watermark into the sessions of its run, in place; leave it out if it is late."""
    ts = row.start
    after = next((i for i, s in enumerate(sessions) if s.start > ts), len(sessions))
    left = sessions[after - 1] if after and ts <= sessions[after - 1].end else None
    right = sessions[after] if after < len(sessions) and sessions[after].start <= row.end else None
    if left is not None and right is not None and right.last - left.start < cap:
        left.join(row)
        left.join(right)
        del sessions[after]
    elif left is not None and max(ts, left.last) - left.start < cap:
        left.join(row)
        if right is not None:
            right.stays = True
    elif right is not None and right.last - ts < cap:
        right.join(row)
    elif left is None and right is None:
        sessions.insert(after, row)
