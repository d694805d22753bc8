"""Segments: immutable, memory-mapped Arrow files of state rows, sorted by `__h`.

All rows with the same `__h` form a unit. If several segments contain a unit, only the newest version counts. If there are
many segments of similar size, they are merged.

shard 0   [segment 3: 2 M rows] [segment 17: 80 k] [segment 18: 20 k]   ─▶ newer
          units: binary search, newest segment first; due rows: a scan of all due times
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from slackwater.core.sorted_arrays import distinct_values, find_ranges, find_run_starts, is_in_sorted
from slackwater.state.commit import SegmentMetadata
from slackwater.state.protocol import OUTLINE
from slackwater.storage.arrow_files import frame_of
from slackwater.storage.base import FileRef, Storage, open_file
from slackwater.windows.state_layout import (
    HIDDEN,
    TOMBSTONE,
    DueRowFilter,
    Int64s,
    empty_frame,
    with_revision_columns,
)

FAN = 8  # number of segments of one size class that are merged into a segment of the next class
MOST = 2 * FAN  # number of segments of one size class at which an epoch merges them itself


def file_ref(meta: SegmentMetadata) -> FileRef:
    """Return a reference to the file of a segment."""
    return FileRef(meta.file, meta.checksum, meta.bytes, meta.rows)


@dataclass(frozen=True)
class SegmentColumns:
    """The columns of a segment that determine which rows are due, as arrays that share the memory of the file."""

    h: Int64s
    kind: NDArray[np.int8]
    start: Int64s
    due: Int64s


class Segment:
    """One segment: a file and its metadata."""

    def __init__(self, storage: Storage, meta: SegmentMetadata) -> None:
        self.meta, self._storage = meta, storage

    @cached_property
    def table(self) -> pa.Table:
        """Return the contents of the file, which is opened on first use and stays readable after its deletion."""
        return open_file(self._storage, file_ref(self.meta))

    @cached_property
    def columns(self) -> SegmentColumns:
        # PyArrow's to_numpy would import pandas
        hidden = frame_of(self.table.select(["__h", "__kind", "__start", "__due"]))
        return SegmentColumns(*(column.to_numpy() for column in hidden))

    def all_rows(self) -> pl.DataFrame:
        return frame_of(self.table)

    def rows(self, index: Int64s) -> pl.DataFrame:
        return frame_of(self.table.take(pl.Series(index).to_arrow()))  # pa.array would import pandas

    def find(self, hashes: Int64s) -> tuple[Int64s, Int64s]:
        """Return the start and end positions of the rows with each hash. They are equal if no row has the hash."""
        return find_ranges(self.columns.h, hashes)

    def find_units(self, rows: Int64s) -> tuple[Int64s, Int64s]:
        """Return the start and end positions of the units that contain the rows at these positions.

        `rows`: positions of rows, ascending. A unit consists of all rows with the same `__h`.
        """
        begin = find_run_starts(self.columns.h)
        if len(begin) == len(self.columns.h):  # every unit has one row
            return rows, rows + 1
        units = distinct_values(np.searchsorted(begin, rows, "right") - 1, is_sorted=True)
        return begin[units], np.append(begin, len(self.columns.h))[units + 1]


def list_segments(storage: Storage, metas: Sequence[SegmentMetadata]) -> list[Segment]:
    """Return a `Segment` for each entry of `metas` that has rows. Files are opened on first use."""
    return [Segment(storage, m) for m in metas if m.rows]


class SegmentReader:
    """A `StateReader` over the segments of one shard, which are ordered from old to new."""

    def __init__(self, segments: Sequence[Segment], schema: dict[str, pl.DataType]) -> None:
        self.segments, self.schema = segments, schema

    def units(self, hashes: Int64s) -> pl.DataFrame:
        """Return the newest version of each unit with one of these hashes (sorted, unique)."""
        return self.units_and_missing(hashes)[0]

    def units_and_missing(self, hashes: Int64s) -> tuple[pl.DataFrame, Int64s]:
        """Return the newest version of each unit with one of these hashes (sorted, unique), and the hashes without a unit."""
        frames: list[pl.DataFrame] = []
        for segment in reversed(self.segments):
            if not len(hashes):
                break
            begin, end = segment.find(hashes)
            hit = end > begin
            if hit.any():
                frames.append(segment.rows(_expand_ranges(begin[hit], end[hit])))
                hashes = hashes[~hit]
        return self._concat_visible(frames), hashes

    def due(self, when: DueRowFilter) -> pl.DataFrame:
        """Return all rows of each unit whose newest version has a due row."""
        frames: list[pl.DataFrame] = []
        for age, segment in enumerate(self.segments):
            if not when.may_match_segment(segment.meta.first_due, segment.meta.last_due):
                continue
            is_due = when.mask(segment.columns.kind, segment.columns.start, segment.columns.due)
            begin, end = segment.find_units(np.flatnonzero(is_due))
            for newer in self.segments[age + 1 :]:
                if not len(begin):
                    break
                newest = ~is_in_sorted(segment.columns.h[begin], newer.columns.h)
                begin, end = begin[newest], end[newest]
            if len(begin):
                frames.append(segment.rows(_expand_ranges(begin, end)))
        return self._concat_visible(frames)

    def nearest(self, after: int, count: int) -> Int64s | None:
        candidates: list[Int64s] = [np.empty(0, dtype=np.int64)]
        for segment in self.segments:
            if segment.meta.last_due > after:
                due = segment.columns.due[(segment.columns.due > after) & (segment.columns.kind != TOMBSTONE)]
                candidates.append(np.partition(due, count - 1)[:count] if len(due) > count else due)
        return np.sort(np.concatenate(candidates))[:count]

    def scan(self) -> pl.DataFrame:
        """Return all rows of the newest version of each unit."""
        return self._concat_visible(newest_units([s.all_rows() for s in self.segments]))

    def outline(self) -> pl.DataFrame:
        """Return the OUTLINE columns of the rows that `scan` returns, without reading other columns."""
        frames = [pl.DataFrame(schema={n: HIDDEN[n] for n in OUTLINE})]
        seen: Int64s = np.empty(0, dtype=np.int64)
        for segment in reversed(self.segments):
            c = segment.columns
            shown = c.kind != TOMBSTONE
            if 4 * len(seen) < len(c.h):  # faster if newer segments have few units
                shown[_expand_ranges(*self._hits(segment, seen))] = False
            elif len(seen):
                shown &= ~is_in_sorted(c.h, seen)
            rows = np.flatnonzero(shown)
            frame = pl.DataFrame(
                dict(zip(OUTLINE, (c.h, c.kind, c.start, c.due), strict=True)), schema=frames[0].schema
            )
            frames.append(frame if len(rows) == frame.height else frame[rows])
            if segment is not self.segments[0]:
                seen = distinct_values(np.concatenate([seen, distinct_values(c.h, is_sorted=True)]))
        return pl.concat(frames)

    @staticmethod
    def _hits(segment: Segment, hashes: Int64s) -> tuple[Int64s, Int64s]:
        begin, end = segment.find(hashes)
        return begin[end > begin], end[end > begin]

    def _concat_visible(self, frames: list[pl.DataFrame]) -> pl.DataFrame:
        if not frames:
            return empty_frame(self.schema)
        rows = pl.concat([f if f.schema == self.schema else self._typed(f) for f in frames])
        is_tombstone = rows["__kind"].to_numpy() == TOMBSTONE
        return rows[np.flatnonzero(~is_tombstone)] if is_tombstone.any() else rows

    def _typed(self, frame: pl.DataFrame) -> pl.DataFrame:
        return with_revision_columns(frame, self.schema).select(list(self.schema)).cast(self.schema)  # type: ignore[arg-type]


def sort_by_unit(frame: pl.DataFrame) -> pl.DataFrame:
    """Sort rows by `__h`, keeping the order of rows with the same `__h`."""
    hashes = frame["__h"].to_numpy()
    if bool((hashes[1:] >= hashes[:-1]).all()):
        return frame
    return frame[np.argsort(hashes, kind="stable")]


def newest_units(frames: Sequence[pl.DataFrame]) -> list[pl.DataFrame]:
    """Remove from each frame the rows of units that a later frame contains. `frames`: oldest first."""
    visible: list[pl.DataFrame] = []
    seen: Int64s = np.empty(0, dtype=np.int64)
    for frame in reversed(frames):
        hashes = frame["__h"].to_numpy()
        visible.append(frame.filter(pl.Series(~is_in_sorted(hashes, seen))) if len(seen) else frame)
        seen = distinct_values(np.concatenate([seen, hashes]))
    return visible[::-1]


def _expand_ranges(begin: Int64s, end: Int64s) -> Int64s:
    """Return the integers of all ranges from `begin[i]` to `end[i]` (exclusive) as one array."""
    lengths = end - begin
    offsets = np.repeat(begin - (np.cumsum(lengths) - lengths), lengths)
    return np.arange(int(lengths.sum())) + offsets


def count_segments_to_merge(metas: Sequence[SegmentMetadata], fan: int = FAN) -> int:
    """Return how many of the newest segments should be merged into one segment, or 0.

    A size class spans a factor of FAN in rows. Once a class has `fan` segments, they and all newer segments are merged
    into one segment of the next class. Each row is thus rewritten about once per class, and a shard has few segments.
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
    """A merge of adjacent segments of one shard. `outputs` is empty if all their rows have expired."""

    inputs: tuple[SegmentMetadata, ...]
    outputs: tuple[SegmentMetadata, ...]

    def apply(self, metas: tuple[SegmentMetadata, ...], watermark: int) -> tuple[SegmentMetadata, ...]:
        """Return the segments with the inputs replaced by the outputs.

        If an input that has not expired at this watermark is missing, another merge has replaced it, and the segments
        stay unchanged. Missing inputs that have expired do not matter, because their rows in the outputs expire too.
        """
        remaining = [m for m in self.inputs if m in metas]
        if not remaining or any(m.dead > watermark for m in self.inputs if m not in remaining):
            return metas
        position = metas.index(remaining[0])
        if list(metas[position : position + len(remaining)]) != remaining:
            return metas
        return (*metas[:position], *self.outputs, *metas[position + len(remaining) :])
