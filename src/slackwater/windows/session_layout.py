"""Layout of sessions: which intervals form which session, and which intervals the target still contains unchanged.

An interval stays marked as emitted as long as its session does not change. A new row may also move the cuts of sessions
that it does not belong to.

    gap 20, cap 22     125       140       150
    emitted                      [──────────]170       one session, emitted: start 140, end 170
    a row               ●
    now                 [─────────)147      [)170      140 moved to the new session; 150 is now a separate session,
                                                       which is emitted although it has no new row
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from slackwater.windows.session_intervals import (
    Bools,
    CompiledSessionWindow,
    IntervalBatch,
    first_per_key,
)
from slackwater.windows.state_rows import EMITTED, EMITTED_FRAGMENT, FAR, FRAGMENT, ROW, WHOLE, Int64s


@dataclass(frozen=True)
class SessionLayout:
    """The sessions that a set of intervals would form if no more rows arrived. All times are in µs.

    `session` has one element per interval. The other arrays have one element per session.
    """

    session: Int64s  # the number of each interval's session
    heads: Int64s  # the position of the first interval
    start: Int64s
    reach: Int64s  # the latest time that the rows cover, including their gaps
    is_cut: Bools  # whether the next session of the run begins at or before `reach`
    end: Int64s  # the end of the window: `reach`, or for a cut session at most the cap and the start of the next one


def build_layout(logic: CompiledSessionWindow, unit: IntervalBatch) -> SessionLayout:
    """Build the layout of a non-empty batch of intervals, from their keys and times."""
    cap = logic.cap_us
    run, session = number_sessions(unit, cap)
    heads = first_per_key(session)
    start, reach = unit.start[heads], np.maximum.reduceat(unit.end, heads)
    is_cut = np.append((run[heads][1:] == run[heads][:-1]) & (start[1:] <= reach[:-1]), False)
    following = np.append(start[1:], FAR)  # because of a late row, the next session may begin before start + cap
    end = np.where(is_cut, np.minimum(np.minimum(reach, start + cap), following), reach)
    return SessionLayout(session, heads, start, reach, is_cut, end)


def number_sessions(unit: IntervalBatch, cap: int) -> tuple[Int64s, Int64s]:
    """Return the number of each interval's run, and of the session that it would belong to if no more rows arrived."""
    run = find_runs(unit.key, unit.start, unit.end)
    return run, np.cumsum(session_heads(unit.start, unit.last, unit.end, run, cap)) - 1


def find_runs(key: Int64s, start: Int64s, end: Int64s) -> Int64s:
    """Return the number of each interval's run."""
    from slackwater.windows.session_kernel.session_rules import number_runs  # compiled; the loops need writable arrays

    return number_runs(np.array(key), np.array(start), np.array(end))


def session_heads(start: Int64s, last: Int64s, end: Int64s, run: Int64s, cap: int) -> Bools:
    """Return a mask of the intervals at which sessions begin; see `session_rules.cut_sessions`."""
    from slackwater.windows.session_kernel.session_rules import cut_sessions  # compiled; the loops need writable arrays

    return cut_sessions(np.array(run), np.array(start), np.array(last), np.array(end), cap)


def mark_still_emitted(logic: CompiledSessionWindow, unit: IntervalBatch, fragment: Int64s) -> IntervalBatch:
    """Clear the emitted mark of the stored intervals whose session differs from the one in the target.

    A session is unchanged if it consists of the same intervals as before, ends at the same time, and becomes final at
    the same time. `fragment` has the number of the fragment that each stored or new interval becomes part of.
    """
    if not unit.emitted.any():
        return unit
    stored = np.flatnonzero(unit.kind != ROW)
    heads = first_per_key(fragment)
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
    return unmark_changed_intervals(logic, unit, stored, before, after, after.session[fragment[stored]])


def unmark_changed_intervals(
    logic: CompiledSessionWindow,
    unit: IntervalBatch,
    stored: Int64s,
    before: SessionLayout,
    after: SessionLayout,
    now: Int64s,
) -> IntervalBatch:
    """Clear the emitted mark of the intervals whose session has changed.

    Args:
        logic: The window.
        unit: All intervals.
        stored: The positions in `unit` of the intervals that `before` covers.
        before: The layout of the stored intervals.
        after: The layout with the new rows.
        now: For each stored interval, the number of its session in `after`.
    """
    first, last = now[before.heads], np.maximum.reduceat(now, before.heads)
    same = (first == last) & (np.bincount(now, minlength=len(after.start))[first] == np.bincount(before.session))
    same &= before.end == after.end[first]
    if logic.allowed_us:  # a cut session becomes final at its end
        same &= before.is_cut == after.is_cut[first]
    moved = np.zeros(len(unit.key), dtype=bool)
    moved[stored] = ~same[before.session]
    return unmark(unit, moved)


def unmark(unit: IntervalBatch, changed: Bools) -> IntervalBatch:
    """Clear the emitted mark of the changed intervals."""
    if not changed.any():
        return unit
    kind = np.where(changed & (unit.kind == EMITTED), WHOLE, unit.kind)
    return replace(unit, kind=np.where(changed & (kind == EMITTED_FRAGMENT), FRAGMENT, kind).astype(np.int8))
