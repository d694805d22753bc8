"""Watermark holds for sessions that may still end behind the watermark.

If a session is still open after the watermark has passed its start + cap, none of its rows is at or beyond the cap. A
later row may be: it then cuts the session, whose result has the event time start + cap.

    gap 3, cap 10      0      7 9   10  11  12         watermark 11: open until 12, and a row at 11 or 12 cuts it at 10
    session            [──────●─●────┊───▲───)

The same happens if a row behind the watermark keeps a part of a run whole (see `session_kernel.rows_behind_watermark`).
The preceding session then ends where that part begins, once the watermark has passed its cap.

A hold is (unit, low, due): until the watermark reaches `due`, a result of this unit may have the event time `low`. It
applies while the watermark is between the two. Holds are rare, since a session must come within a gap of the cap. A
shard keeps at most `MOST` of them and merges the rest into one hold without a unit. The merged hold may hold the
watermark back more than necessary, but never by more than the longest gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from slackwater.windows.session_intervals import reach_so_far
from slackwater.windows.state_rows import EMITTED, EMITTED_FRAGMENT, FRAGMENT, WHOLE

if TYPE_CHECKING:
    import polars as pl

    from slackwater.windows.session_intervals import CompiledSessionWindow

Hold = tuple[int | None, int, int]
MOST = 64  # per shard


def find_lowest_hold(holds: Iterable[Hold], watermark: int, reach: int) -> int:
    """Return the lowest event time at which a session may still end. `reach` is the longest gap.

    The rows of an open session extend to the watermark, so it cannot be cut more than one gap behind the watermark.
    """
    counting = (max(low, watermark - reach) for _, low, due in holds if low < watermark < due)
    return min(counting, default=watermark)


def find_holds(logic: CompiledSessionWindow, rows: pl.DataFrame) -> list[Hold]:
    """Find the holds for state rows, which must be sorted by unit and time."""
    kind, start, last, due = (rows[c].to_numpy() for c in ("__kind", "__start", "__last", "__due"))
    end = rows["__end"].to_numpy() if logic.dynamic else last + logic.gap_us
    near_cap = ((kind == WHOLE) | (kind == EMITTED)) & (end > start + logic.cap_us)
    positions = np.flatnonzero(near_cap)
    units = rows["__h"].to_numpy()
    holds = list(
        zip(units[positions].tolist(), (start[positions] + logic.cap_us).tolist(), due[positions].tolist(), strict=True)
    )
    parts = np.flatnonzero((kind == FRAGMENT) | (kind == EMITTED_FRAGMENT))
    if (last[parts] > start[parts]).any():
        of_unit = np.cumsum(np.diff(units[parts], prepend=units[parts[0]]) != 0)
        touches = np.append(
            False, (of_unit[1:] == of_unit[:-1]) & (start[parts][1:] <= reach_so_far(of_unit, end[parts])[:-1])
        )
        positions = parts[touches & (last[parts] > start[parts])]
        holds += zip(units[positions].tolist(), start[positions].tolist(), due[positions].tolist(), strict=True)
    return holds


def replace_holds(logic: CompiledSessionWindow, holds: Sequence[Hold], rows: pl.DataFrame) -> tuple[Hold, ...]:
    """Update the holds of a shard after `rows` replaced all rows of their units."""
    new = find_holds(logic, rows)
    if not holds:
        return bound_holds(new)
    units = rows["__h"].to_numpy()  # sorted
    held_units = np.array([unit for unit, _, _ in holds if unit is not None], dtype=np.int64)
    gone = set(held_units[np.isin(held_units, units)].tolist())
    return bound_holds([*(hold for hold in holds if hold[0] not in gone), *new])


def bound_holds(holds: Sequence[Hold]) -> tuple[Hold, ...]:
    """Reduce holds to at most `MOST`, without weakening them."""
    in_order = sorted(holds, key=lambda hold: hold[1])
    if len(in_order) <= MOST:
        return tuple(in_order)
    rest = in_order[MOST - 1 :]
    return (*in_order[: MOST - 1], (None, rest[0][1], max(due for _, _, due in rest)))


__all__ = ["MOST", "Hold", "bound_holds", "find_holds", "find_lowest_hold", "replace_holds"]
