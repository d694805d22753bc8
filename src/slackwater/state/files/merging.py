"""When segments that have piled up are merged, and what takes whose place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from slackwater.state.commit import SegmentMeta

FAN = 8  # segments of one size class before they are merged into one of the next
MOST = 2 * FAN  # of one size class before an epoch merges them itself, since nobody did beside it


def merge_plan(metas: Sequence[SegmentMeta], fan: int = FAN) -> int:
    """How many of the newest segments to merge into one (0: none).

    A size class spans a factor of FAN. Once `fan` segments of one class have piled up they are merged, with the smaller
    ones after them, into one of the next class: a row is rewritten about once per class, a shard keeps few segments.
    """
    classes = [int(math.log(max(m.rows, 1), FAN)) for m in metas]
    count = 0
    for size_class in sorted(set(classes)):
        trailing = next((i for i, c in enumerate(reversed(classes)) if c > size_class), len(classes))
        if classes[len(classes) - trailing :].count(size_class) >= fan:
            count = trailing
    return count


@dataclass(frozen=True)
class SegmentMerge:
    """Neighbours of one shard that were merged: into one segment, or into none where nothing of them is left."""

    inputs: tuple[SegmentMeta, ...]
    outputs: tuple[SegmentMeta, ...]

    def apply(self, metas: tuple[SegmentMeta, ...], watermark: int) -> tuple[SegmentMeta, ...]:
        """The segments with what was merged in the place of its parts; as they are if somebody else has merged some of these.

        Parts that are over at this watermark may have been dropped meanwhile: their rows are over in what was merged as well.
        """
        remaining = [m for m in self.inputs if m in metas]
        if not remaining or any(m.dead > watermark for m in self.inputs if m not in remaining):
            return metas
        position = metas.index(remaining[0])
        if list(metas[position : position + len(remaining)]) != remaining:
            return metas
        return (*metas[:position], *self.outputs, *metas[position + len(remaining) :])
