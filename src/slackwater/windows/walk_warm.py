"""All loops of the walk, compiled before the first epoch."""

from __future__ import annotations

import numpy as np

from slackwater.windows.session_walk import Intervals, Times, cut, fragments, join, needed, of_keys
from slackwater.windows.walk_order import distinct, in_order
from slackwater.windows.walk_places import place


def warm() -> None:
    """Compile the loops for the types that they are given, or load what was compiled before."""
    none, kinds, bools = np.empty(0, np.int64), np.empty(0, np.int8), np.empty(0, np.bool_)
    given, times = Intervals(np.zeros(1, np.int64), kinds, none, none, none), Times(0, 0, 0, 0, 0)
    in_order(none, none, none)
    distinct(none)
    place(given, times, join(given, times, bools))
    needed(given, times)
    of_keys(given, none, none)
    cut(none, none, none, none, 0)
    fragments(given, times, none, bools, bools, bools)
