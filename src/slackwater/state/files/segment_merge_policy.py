"""The policy for merging segments that have piled up, and how a merge replaces its inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from slackwater.state.commit import SegmentMeta

FAN = 8  # number of segments of a size class that are merged into one of the next class
MOST = 2 * FAN  # segments of a size class at which an epoch merges them itself, because the background merge lags


def count_segments_to_merge(metas: Sequence[SegmentMeta], fan: int = FAN) -> int:
    """Return how many of the newest segments to merge into one segment; 0 if none should be merged.

    A size class spans a factor of FAN in rows. Once `fan` segments of a class have piled up, they and the smaller
    segments after them are merged into one segment of the next class. Thus, each row is rewritten about once per
    class, and a shard has few segments.
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
    """A merge of adjacent segments of one shard into one segment, or into none if all their rows have expired."""

    inputs: tuple[SegmentMeta, ...]
    outputs: tuple[SegmentMeta, ...]

    def apply(self, metas: tuple[SegmentMeta, ...], watermark: int) -> tuple[SegmentMeta, ...]:
        """Return the segments with the inputs replaced by the outputs; unchanged if another merge replaced an input.

        Inputs that have expired at this watermark may be missing in `metas`, because their rows in the outputs have
        expired as well.
        """
        remaining = [m for m in self.inputs if m in metas]
        if not remaining or any(m.dead > watermark for m in self.inputs if m not in remaining):
            return metas
        position = metas.index(remaining[0])
        if list(metas[position : position + len(remaining)]) != remaining:
            return metas
        return (*metas[:position], *self.outputs, *metas[position + len(remaining) :])
