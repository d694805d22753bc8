"""The two places where a run of session fragments is walked one by one: cutting at the cap, and rows behind the watermark.

Both only concern runs that span at least the cap; everything else is decided by whole-array operations in `sessions`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slackwater.windows.intervals import Bools, SessionLogic, Unit
from slackwater.windows.logic import ROW, Int64s


def _long_runs(start: Int64s, last: Int64s, run: Int64s, cap: int) -> tuple[Int64s, Int64s]:
    """(begin, stop) positions of the runs that span at least the cap."""
    heads = np.flatnonzero(np.diff(run, prepend=-1))
    ends = np.append(heads[1:], len(run))
    span = np.maximum.reduceat(last, heads) - start[heads] if len(heads) else heads
    long = span >= cap
    return heads[long], ends[long]


def session_heads(start: Int64s, last: Int64s, end: Int64s, run: Int64s, cap: int) -> Bools:
    """True where a session begins: at each run, and in a long run at the first fragment that reaches the cap.

    What follows a cut is a run of its own: where rows bring their own gaps it may fall apart.

    cap 10   start 0 ......... 10 .. 13 ........ 20
             [──●──●──●──●──●─)[●─────●──●────────)
    """
    heads = np.diff(run, prepend=-1) != 0
    for begin, stop in zip(*_long_runs(start, last, run, cap), strict=True):
        at = int(begin)
        while True:
            limit = start[at] + cap
            nearest = min(int(np.searchsorted(start[at:stop], limit)), int(np.searchsorted(last[at:stop], limit)))
            nearest = max(nearest, 1)
            apart = start[at + 1 : at + nearest] > np.maximum.accumulate(end[at : at + nearest])[:-1]
            at += int(np.argmax(apart)) + 1 if apart.any() else nearest
            if at >= stop:
                break
            heads[at] = True
    return heads


def place_late_rows(
    logic: SessionLogic, unit: Unit, run: Int64s, fragment: Int64s, watermark: int
) -> tuple[Int64s, Bools]:
    """Rows behind the watermark never move a cut: in a run that reaches the cap each one is placed by itself.

    Where joining the sessions on both sides would reach the cap it joins the earlier one; where joining even one would,
    it is late. The session that it joins becomes one fragment, and so does the next one if the row touches it: they stay whole.

        gap 20, cap 22    0        10         21   30
        sessions          [)20                [────)50     21 − 0 < 22, and yet no session: they do not touch
        a row behind               ● joins the earlier     else 21 would follow it, and 30 be cut off

    Returns the fragments (renumbered) and which intervals are too late; other runs come back unchanged.
    """
    too_late = np.zeros(len(run), dtype=bool)
    behind = (unit.kind == ROW) & (unit.start < watermark)
    if not behind.any():
        return fragment, too_late
    label = fragment.copy()
    for begin, stop in zip(*_long_runs(unit.start, unit.last, run, logic.cap_us), strict=True):
        if behind[begin:stop].any():
            here = slice(begin, stop)
            _place(unit.start[here], unit.last[here], unit.end[here], behind[here], logic.cap_us, label[here])
            too_late[here] = label[here] == _LATE
    known = np.maximum.accumulate(np.where(too_late, 0, np.arange(len(run))))
    label = label[known]  # what is late parts no fragment
    changed = (np.diff(label, prepend=-1) != 0) | (np.diff(run, prepend=-1) != 0)
    return np.cumsum(changed) - 1, too_late


_LATE = -1


def _place(start: Int64s, last: Int64s, end: Int64s, behind: Bools, cap: int, label: Int64s) -> None:
    """Give each row behind the watermark of one run a session; `label`, changed in place, names the fragments.

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
