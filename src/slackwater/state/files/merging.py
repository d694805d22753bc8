"""When segments that have piled up are merged."""

from __future__ import annotations

import math
from collections.abc import Sequence

from slackwater.state.commit import SegmentMeta

FAN = 8  # segments of one size class before they are merged into one of the next


def merge_plan(metas: Sequence[SegmentMeta]) -> int:
    """How many of the newest segments to merge into one (0: none).

    A size class spans a factor of FAN. Once FAN segments of one class have piled up they are merged, with the smaller
    ones after them, into one of the next class: a row is rewritten about once per class, a shard keeps few segments.
    """
    classes = [int(math.log(max(m.rows, 1), FAN)) for m in metas]
    count = 0
    for size_class in sorted(set(classes)):
        trailing = next((i for i, c in enumerate(reversed(classes)) if c > size_class), len(classes))
        if classes[len(classes) - trailing :].count(size_class) >= FAN:
            count = trailing
    return count
