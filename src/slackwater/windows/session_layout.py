"""Which intervals make which session, and whether the target still holds an interval as it stands.

What was emitted of an interval is true as long as its session is the one emitted: a row that comes moves cuts, too.

    gap 20, cap 22     125       140       150
    emitted                      [──────────]170       one session, emitted: start 140, end 170
    a row               ●
    now                 [─────────)147      [)170      140 left for the new one; what remains of the other is a
                                                       session of its own, though no row of it came: to be emitted
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from slackwater.windows.intervals import Bools, IntervalBatch, SessionLogic, find_runs, first_of_each
from slackwater.windows.state_rows import EMITTED, EMITTED_FRAGMENT, FAR, FRAGMENT, ROW, WHOLE, Int64s


@dataclass(frozen=True)
class SessionLayout:
    """The sessions that intervals make if no row comes any more; times in µs.

    `session`: per interval its session's number; the rest per session. `reach`: how far its rows reach. `is_cut`: the next one
    begins within that; then `end`, the window's, is at the cap or where the next one begins.
    """

    session: Int64s
    heads: Int64s
    start: Int64s
    reach: Int64s
    is_cut: Bools
    end: Int64s


def build_layout(logic: SessionLogic, unit: IntervalBatch) -> SessionLayout:
    """Of the intervals of a unit that is not empty: of its keys and times, whatever else it holds."""
    cap = logic.cap_us
    run, _ = find_runs(logic, unit)
    session = np.cumsum(session_heads(unit.start, unit.last, unit.end, run, cap)) - 1
    heads = first_of_each(session)
    start, reach = unit.start[heads], np.maximum.reduceat(unit.end, heads)
    is_cut = np.append((run[heads][1:] == run[heads][:-1]) & (start[1:] <= reach[:-1]), False)
    following = np.append(start[1:], FAR)  # a late row may have put the next session before start + cap
    end = np.where(is_cut, np.minimum(np.minimum(reach, start + cap), following), reach)
    return SessionLayout(session, heads, start, reach, is_cut, end)


def session_heads(start: Int64s, last: Int64s, end: Int64s, run: Int64s, cap: int) -> Bools:
    """Where sessions begin: see `runs.cut_sessions`."""
    from slackwater.windows.session_kernel.runs import cut_sessions  # compiled; it takes arrays that can be written

    return cut_sessions(np.array(run), np.array(start), np.array(last), np.array(end), cap)


def as_emitted(logic: SessionLogic, unit: IntervalBatch, fragment: Int64s) -> IntervalBatch:
    """New rows and intervals of the state (`fragment`: what they become), marked as emitted where the target holds them still.

    It does if their session has the same intervals as before the rows came, ends where it ended, and is final when it was.
    """
    if not unit.emitted.any():
        return unit
    stored = np.flatnonzero(unit.kind != ROW)
    heads = first_of_each(fragment)
    fragments = replace(
        unit,
        key=unit.key[heads],
        start=unit.start[heads],
        last=np.maximum.reduceat(unit.last, heads),
        end=np.maximum.reduceat(unit.end, heads),
    )
    key, start, last, end = unit.key[stored], unit.start[stored], unit.last[stored], unit.end[stored]
    before, after = (
        build_layout(logic, replace(unit, key=key, start=start, last=last, end=end)),
        build_layout(logic, fragments),
    )
    return changed_intervals(logic, unit, stored, before, after, after.session[fragment[stored]])


def changed_intervals(
    logic: SessionLogic, unit: IntervalBatch, stored: Int64s, before: SessionLayout, after: SessionLayout, now: Int64s
) -> IntervalBatch:
    """Intervals of sessions that are put together, or end, otherwise than before are not what the target holds.

    `stored`: positions of the intervals that `before` arranges; `now`: the session of `after` that each of them is in.
    """
    first, last = now[before.heads], np.maximum.reduceat(now, before.heads)
    same = (first == last) & (np.bincount(now, minlength=len(after.start))[first] == np.bincount(before.session))
    same &= before.end == after.end[first]
    if logic.allowed_us:  # one that is cut is final at its end
        same &= before.is_cut == after.is_cut[first]
    moved = np.zeros(len(unit.key), dtype=bool)
    moved[stored] = ~same[before.session]
    if not moved.any():
        return unit
    kind = np.where(moved & (unit.kind == EMITTED), WHOLE, unit.kind)
    return replace(unit, kind=np.where(moved & (kind == EMITTED_FRAGMENT), FRAGMENT, kind).astype(np.int8))
