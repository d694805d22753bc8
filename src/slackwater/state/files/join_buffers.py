"""The buffers of a join in files: immutable, memory-mapped segments for each side.

left     [rows 1-8] [9] [10]         rows, sorted by (`__kh`, `__ts`); dropped once all rows of a segment have expired
left+    [ids] [ids]                 ids of matched rows (outer sides only), sorted
left-    [ids]                       ids of rows that were evicted before they expired, sorted
right    [rows 1-8] [9]              rows of the right side, and so on
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from slackwater.core.sorted_arrays import Int64s, find_run_starts, is_in_sorted
from slackwater.joins.compiled_join import HIDDEN, CompiledJoin, JoinSide
from slackwater.joins.join_buffers import OUTLINE, BufferChange, Changes, SortedRows, bisect_ranges, sort_order
from slackwater.state.commit import SegmentMetadata
from slackwater.state.files.segments import MOST, Segment, SegmentMerge, count_segments_to_merge
from slackwater.storage.arrow_files import frame_of
from slackwater.storage.base import Storage
from slackwater.watermark import NO_WATERMARK


class JoinSegment(Segment):
    """A segment with rows of one side of a join, or with row ids. `meta.kind` ends with + or - for ids."""

    def __init__(self, storage: Storage, meta: SegmentMetadata, side: JoinSide) -> None:
        super().__init__(storage, meta)
        self.side = side

    def column(self, name: str) -> Int64s:
        return frame_of(self.table.select([name]))[name].to_numpy()

    @cached_property
    def run(self) -> SortedRows:
        return SortedRows(self.column("__kh"), self.column("__ts"), self.column("__id"), self.rows)

    def rows(self, index: Int64s) -> pl.DataFrame:
        return self._complete(super().rows(index))

    def all_rows(self) -> pl.DataFrame:
        return self._complete(super().all_rows())

    def _complete(self, frame: pl.DataFrame) -> pl.DataFrame:
        if self.meta.kind != self.side.name:
            return frame
        return self.side.add_missing_columns(frame).select(list(self.side.schema))


@dataclass(frozen=True)
class FileJoinBuffers:
    """The `Buffers` of one shard, stored in files."""

    storage: Storage
    metas: tuple[SegmentMetadata, ...]
    logic: CompiledJoin

    @cached_property
    def _segments(self) -> dict[str, list[JoinSegment]]:
        segments: dict[str, list[JoinSegment]] = {}
        for side in self.logic.sides:
            for m in self.metas:
                if m.kind.rstrip("+-") == side.name:
                    segments.setdefault(m.kind, []).append(JoinSegment(self.storage, m, side))
        return segments

    def _segments_of(self, which: int, suffix: str = "") -> list[JoinSegment]:
        return self._segments.get(self.logic.sides[which].name + suffix, [])

    def runs(self, which: int, hashes: Int64s, low: int, high: int) -> Sequence[SortedRows]:
        side = self.logic.sides[which]
        first, last = low + side.keep_us + 1, high + side.keep_us + 1
        # a row is due `keep_us + 1` after its event time, so the due times of a segment limit its event times
        return [s.run for s in self._segments_of(which) if s.meta.first_due <= last and s.meta.dead >= first]

    def matched(self, which: int, rows: pl.DataFrame) -> NDArray[np.bool_]:
        matched: NDArray[np.bool_] = rows["__matched"].to_numpy() | self._is_listed(which, "+", rows["__id"].to_numpy())
        return matched

    def evicted(self, which: int, kh: Int64s, id_: Int64s) -> NDArray[np.bool_]:
        return self._is_listed(which, "-", id_)

    def _is_listed(self, which: int, suffix: str, ids: Int64s) -> NDArray[np.bool_]:
        is_listed = np.zeros(len(ids), dtype=bool)
        for segment in self._segments_of(which, suffix):
            is_listed |= is_in_sorted(ids, segment.column("__id"))
        return is_listed

    def due(self, which: int, since: int, watermark: int) -> pl.DataFrame:
        side = self.logic.sides[which]
        frames = [pl.DataFrame(schema=side.schema)]
        for segment in self._segments_of(which):
            if segment.meta.first_due > watermark or segment.meta.dead <= since:
                continue
            due = side.due(segment.run.ts)
            rows = segment.rows(np.flatnonzero((due > since) & (due <= watermark)))
            evicted = self.evicted(which, rows["__kh"].to_numpy(), rows["__id"].to_numpy())
            frames.append(rows.filter(pl.Series(~self.matched(which, rows) & ~evicted)))
        return pl.concat(frames)

    def bound(self, which: int) -> int:
        return sum(s.meta.most for s in self._segments_of(which))

    def counts(self, which: int, hashes: Int64s, watermark: int) -> Int64s:
        side, counts = self.logic.sides[which], np.zeros(len(hashes), dtype=np.int64)
        for segment in self._segments_of(which):
            run = segment.run
            begin, end = np.searchsorted(run.kh, hashes, "left"), np.searchsorted(run.kh, hashes, "right")
            expired = np.full(len(hashes), watermark - side.keep_us - 1)
            counts += end - bisect_ranges(run.ts, begin, end, expired, True)
        for segment in self._segments_of(which, "-"):
            evicted = segment.column("__kh")[np.flatnonzero(side.due(segment.column("__ts")) > watermark)]
            positions, hit = np.searchsorted(hashes, evicted), is_in_sorted(evicted, hashes)
            np.subtract.at(counts, positions[hit], 1)
        return counts

    def scan(self, which: int, watermark: int) -> pl.DataFrame:
        side = self.logic.sides[which]
        frames = [pl.DataFrame(schema=side.schema)]
        frames += [s.all_rows() for s in self._segments_of(which)]
        return self._alive(which, pl.concat(frames), watermark)

    def outline(self, which: int, watermark: int) -> pl.DataFrame:
        frames = [pl.DataFrame(schema=HIDDEN)]
        frames += [frame_of(s.table.select(list(HIDDEN))) for s in self._segments_of(which)]
        return self._alive(which, pl.concat(frames), watermark).select(list(OUTLINE))

    def _alive(self, which: int, rows: pl.DataFrame, watermark: int) -> pl.DataFrame:
        alive = self.logic.sides[which].due(rows["__ts"].to_numpy()) > watermark
        alive &= ~self.evicted(which, rows["__kh"].to_numpy(), rows["__id"].to_numpy())
        rows = rows.filter(pl.Series(alive))
        return rows.with_columns(pl.Series("__matched", self.matched(which, rows)))

    def use_open_tables(self, tables: Mapping[str, pa.Table]) -> FileJoinBuffers:
        """Make these buffers read from open tables, so that they stay readable after the files are deleted.

        `tables`: open tables by file name. Returns the same object.
        """
        for segment in (s for side_segments in self._segments.values() for s in side_segments if s.meta.file in tables):
            segment.__dict__["table"] = tables[segment.meta.file]
        return self


@dataclass(frozen=True)
class JoinWriter:
    """Writes changes to the buffers of one shard as segments with unique names, because a task may run twice."""

    storage: Storage
    shard: int
    epoch: int
    logic: CompiledJoin

    def stage(self, metas: Sequence[SegmentMetadata], changes: Changes, watermark: int) -> tuple[SegmentMetadata, ...]:
        """Write changes as new segments, drop expired segments, and return the resulting segments.

        If the background merge lags behind, this method merges segments itself.

        Args:
            metas: The current segments of the shard.
            changes: The changes by side.
            watermark: The current watermark, in microseconds.
        """
        segments: list[SegmentMetadata] = []
        for side in self.logic.sides:
            change = changes.get(side.which, BufferChange(pl.DataFrame(schema=side.schema)))
            for suffix, frame in (("", change.rows), ("+", change.matched), ("-", change.evicted)):
                live = [m for m in metas if m.kind == side.name + suffix and m.dead > watermark]
                if frame.height:
                    live.append(self.write(side, suffix, frame if not suffix else frame.sort("__id")))
                segments += live
        after = tuple(segments)
        for merge in self.merges(after, watermark, MOST):
            after = merge.apply(after, watermark)
        return after

    def merges(self, metas: Sequence[SegmentMetadata], watermark: int, fan: int) -> list[SegmentMerge]:
        """Merge the newest segments of each side and kind (rows or ids) that has `fan` segments of one size class.

        Args:
            metas: The current segments of the shard.
            watermark: The current watermark, in microseconds; expired rows are dropped.
            fan: The number of segments of one size class that triggers a merge.
        """
        candidates = [
            self._merge(side, suffix, [m for m in metas if m.kind == side.name + suffix], watermark, fan)
            for side in self.logic.sides
            for suffix in ("", "+", "-")
        ]
        return [merge for merge in candidates if merge is not None]

    def write(self, side: JoinSide, suffix: str, frame: pl.DataFrame) -> SegmentMetadata:
        """Write a sorted frame as a segment, and return its metadata.

        Args:
            side: The side of the join.
            suffix: The kind of the segment: "" for rows, "+" for ids of matched rows, "-" for ids of evicted rows.
            frame: Rows sorted by (`__kh`, `__ts`), or ids sorted by `__id`.
        """
        name = f"segments/{self.epoch:09d}-{self.shard:03d}-{uuid.uuid4().hex[:12]}.arrow"
        size, digest = self.storage.write(name, frame)
        return describe_segment(side, suffix, frame, name, size, digest)

    def _merge(
        self, side: JoinSide, suffix: str, metas: Sequence[SegmentMetadata], watermark: int, fan: int
    ) -> SegmentMerge | None:
        count = count_segments_to_merge(metas, fan)
        if not count:
            return None
        frames = [JoinSegment(self.storage, m, side).all_rows() for m in metas[-count:]]
        frame = pl.concat(frames)
        frame = frame.filter(pl.Series(side.due(frame["__ts"].to_numpy()) > watermark))
        frame = frame.sort("__id") if suffix else frame[sort_order(*(frame[c].to_numpy() for c in ("__kh", "__ts")))]
        return SegmentMerge(tuple(metas[-count:]), (self.write(side, suffix, frame),) if frame.height else ())


def describe_segment(
    side: JoinSide, suffix: str, frame: pl.DataFrame, file: str, size: int, digest: str = ""
) -> SegmentMetadata:
    """Return the metadata of a segment.

    Only rows of an outer side can become due, because only they are emitted without a partner.

    Args:
        side: The side of the join.
        suffix: The kind of the segment: "" for rows, "+" for ids of matched rows, "-" for ids of evicted rows.
        frame: The contents of the segment. It must not be empty.
        file: The file name of the segment, or the token of staged rows.
        size: The size of the segment in bytes.
        digest: The checksum of the file.
    """
    due = side.due(frame["__ts"].to_numpy())
    first, last = int(due.min()), int(due.max())
    emits = side.outer and not suffix
    kh = frame["__kh"].to_numpy()
    most = 0 if suffix else int(np.diff(find_run_starts(kh), append=len(kh)).max())
    return SegmentMetadata(
        file=file,
        kind=side.name + suffix,
        rows=frame.height,
        bytes=size,
        first_due=first,
        last_due=last if emits else NO_WATERMARK,
        close=last if emits else NO_WATERMARK,
        dead=last,
        most=most,
        checksum=digest,
    )
