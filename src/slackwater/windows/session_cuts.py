"""Where the sessions of runs begin: only those that span at least the cap are walked piece by piece."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slackwater.windows.logic import Int64s

Bools = NDArray[np.bool_]


def _long_runs(start: Int64s, last: Int64s, run: Int64s, cap: int) -> tuple[Int64s, Int64s]:
    """(begin, stop) positions of the runs that span at least the cap."""
    heads = np.flatnonzero(np.diff(run, prepend=-1))
    ends = np.append(heads[1:], len(run))
    span = np.maximum.reduceat(last, heads) - start[heads] if len(heads) else heads
    long = span >= cap
    return heads[long], ends[long]


def session_heads(start: Int64s, last: Int64s, end: Int64s, run: Int64s, cap: int) -> Bools:
    """True where a session begins: at each run, and in a long run at the first piece that reaches the cap.

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
