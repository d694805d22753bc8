"""Block "Joins": for each side of a join, its buffered rows by event time, its matched rows, and its largest key.

        expires at                watermark
left  ──────┼──▂▅█▃▁▁─▂▁─────────────┤
right ────────────────────────┼─▃▇▅▁─┤

A row expires when the watermark passes the row's event time plus the time for which its side keeps rows. Expired rows
are not counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import polars as pl
from markupsafe import Markup

from slackwater.core.hashing import shard_of
from slackwater.core.humanize import format_brief, format_exact_time, format_number, plural
from slackwater.core.sorted_arrays import Int64s
from slackwater.engine import next_commit
from slackwater.evolution.pipeline_from_state import restore_operator
from slackwater.joins.compiled_join import CompiledJoin
from slackwater.query.state_inspection import to_plain_key
from slackwater.state.protocol import Snapshot
from slackwater.ui import svg
from slackwater.watermark import NO_WATERMARK
from slackwater.windows.state_layout import FAR

BINS = 100


@dataclass(frozen=True)
class AgeBin:
    """The number of rows with event times in [from_us, to_us).

    `matched`: how many of these rows have a partner; None if the side is not outer.
    """

    from_us: int
    to_us: int
    rows: int
    matched: int | None


@dataclass(frozen=True)
class BufferHotKey:
    """The key with the most rows on one side of a join, and the number of these rows."""

    key: Mapping[str, Any]
    rows: int


@dataclass(frozen=True)
class BufferSide:
    """One side of a join. `entered` and the following fields count rows over the life of the pipeline.

    Args:
        keep_us: How long a row is kept after the watermark has passed its event time (µs).
        expires_us: Rows before this event time have expired; None if there is no watermark yet.
        rows: Rows that are buffered now.
        entered: Rows that entered the state.
        matched: Entered rows that have a partner; if the side is not outer, only those that matched on arrival.
        unmatched: Rows emitted without a partner.
        evicted: Rows removed early because of `on_state_cap`.
    """

    side: str
    source: str
    outer: bool
    keep_us: int
    expires_us: int | None
    rows: int
    ages: tuple[AgeBin, ...]
    hot_key: BufferHotKey | None
    entered: int
    matched: int
    unmatched: int
    evicted: int
    late: int
    null_keys: int

    @property
    def share(self) -> float | None:
        """The share of the entered rows that have a partner; None if no row has entered."""
        return self.matched / self.entered if self.entered else None


@dataclass(frozen=True)
class JoinBuffers:
    """The block "Joins".

    `width_us`: the width of the bins on both sides (µs). `pairs`: pairs emitted over the life of the pipeline.
    """

    watermark_us: int | None
    width_us: int
    pairs: int
    sides: tuple[BufferSide, ...]


def build_buffers(snapshot: Snapshot, sources: Sequence[str]) -> JoinBuffers | None:
    """Build the "Joins" block from a snapshot of one stage. Return None if the stage is not a join.

    `sources`: the names of the left and the right input. Raises StateError if the state cannot be read.
    """
    first = snapshot.commit.stages[0]
    if first.fingerprint.get("kind") != "join":
        return None
    logic = cast("CompiledJoin", restore_operator(snapshot.commit))
    watermark = first.watermark_us
    rows = [
        pl.concat([snapshot.buffers(n, logic).outline(side.which, watermark) for n in range(first.shards)])
        for side in logic.sides
    ]
    times = [r["__ts"].to_numpy() for r in rows]
    low = min((int(t.min()) for t in times if len(t)), default=0)
    high = max((int(t.max()) for t in times if len(t)), default=0)
    width = svg.tick_step(high - low + 1, BINS - 1)
    counters = next_commit.sum_counters(snapshot.commit)
    sides = []
    for side, source, waiting_rows in zip(logic.sides, sources, rows, strict=True):
        counts = counters.sides.get(side.name, {})
        sides.append(
            BufferSide(
                side.name,
                source,
                side.outer,
                side.keep_us,
                None if watermark <= NO_WATERMARK else watermark - side.keep_us,
                waiting_rows.height,
                _ages(waiting_rows, width, side.outer),
                _hot_key(snapshot, logic, side.which, waiting_rows["__kh"].to_numpy(), watermark),
                *(counts.get(n, 0) for n in ("buffered", "matched", "unmatched", "evicted", "late", "null_keys")),
            )
        )
    pairs = first.counters.get("emitted", {}).get("match", 0)
    return JoinBuffers(None if watermark <= NO_WATERMARK else watermark, width, pairs, tuple(sides))


def _ages(rows: pl.DataFrame, width: int, outer: bool) -> tuple[AgeBin, ...]:
    grouped = rows.group_by((pl.col("__ts") // width * width).alias("low")).agg(pl.len(), pl.col("__matched").sum())
    return tuple(
        AgeBin(low, low + width, count, matched if outer else None)
        for low, count, matched in grouped.sort("low").iter_rows()
    )


def _hot_key(
    snapshot: Snapshot, logic: CompiledJoin, which: int, hashes: Int64s, watermark: int
) -> BufferHotKey | None:
    """Return the key with the most buffered rows on one side of a join; None if no row is buffered.

    Args:
        which: The index of the side.
        hashes: The key hash of each buffered row.
        watermark: The watermark (µs). Rows that have expired by then are not counted.
    """
    if not len(hashes):
        return None
    values, counts = np.unique(hashes, return_counts=True)
    largest_hash = values[int(counts.argmax())]
    side, names = logic.sides[which], [k.name for k in logic.sides[which].keys]
    frames = [pl.DataFrame(schema={c: t for c, t in side.schema.items() if c in names})]
    hash_array = np.array([largest_hash], dtype=np.int64)
    buffers = snapshot.buffers(int(shard_of(hash_array, snapshot.commit.shards)[0]), logic)
    for run in buffers.runs(which, hash_array, -FAR, FAR):
        positions = np.flatnonzero((run.kh == largest_hash) & (side.due(run.ts) > watermark))
        gone = buffers.evicted(which, run.kh[positions], run.id[positions])
        frames.append(run.take(positions[~gone]).select(names))
    keys = pl.concat(frames).group_by(names).len().sort("len", *names, descending=[True, *(False for _ in names)])
    return BufferHotKey(to_plain_key(keys.row(0, named=True), names), keys["len"][0])


LEFT, TOP, LANE = 120, 30, 92


def draw_join_buffers(block: JoinBuffers) -> Markup:
    """Draw the buffered rows of both sides by event time. Return empty markup if no rows are buffered."""
    times = [t for side in block.sides for age in side.ages for t in (age.from_us, age.to_us)]
    if not times:
        return Markup("")
    marks = [m for side in block.sides for m in (side.expires_us, block.watermark_us) if m is not None]
    low, high = min(times), max(times)
    near = [m for m in marks if low - 2 * (high - low) <= m <= high + 2 * (high - low)]
    low, high = min([low, *near]), max([high, *near])
    room = (high - low) // 40 + 1
    across = svg.Axis(low - room, high + room, svg.lane_start(LEFT), svg.right())
    max_rows, bottom = max(age.rows for side in block.sides for age in side.ages), TOP + LANE * len(block.sides)
    parts = svg.time_axis(across, TOP, bottom)
    for n, side in enumerate(block.sides):
        parts += _lane(side, across, TOP + LANE * n, max_rows)
    if block.watermark_us in near and block.watermark_us is not None:
        parts += svg.watermark_line(across, block.watermark_us, TOP, bottom)
    return svg.picture("Rows that wait for partners, by event time", bottom + 24, *parts)


def _lane(side: BufferSide, across: svg.Axis, y: float, max_rows: int) -> list[Markup]:
    base = y + LANE - 6
    up = svg.Axis(0, max_rows, base, y + 12)
    parts = [
        svg.line(svg.lane_start(LEFT), base, svg.right(), base, "rule"),
        svg.text(svg.lane_start(LEFT) - 10, base - 22, side.side, "lane", "end"),
        svg.text(svg.lane_start(LEFT) - 10, base - 6, format_brief(side.rows), "tick", "end"),
    ]
    for age in side.ages:
        x1, x2 = across.position(age.from_us), across.position(age.to_us)
        width = max(x2 - x1 - (1 if x2 - x1 > 4 else 0), 2)
        matched_text = "" if age.matched is None else f", {format_number(age.matched)} of them with a partner"
        about = svg.title(
            f"{side.side}: {plural(age.rows, 'row')} of {format_exact_time(age.from_us)} to {format_exact_time(age.to_us)}{matched_text}"
        )
        top = min(up.position(age.rows), base - 2)
        parts.append(svg.rect(x1, top, width, base - top, "bar" if age.matched is None else "bar alone", about))
        if age.matched:
            top = min(up.position(age.matched), base - 1)
            parts.append(svg.rect(x1, top, width, base - top, "bar", about))
    if side.expires_us is not None and across.low <= side.expires_us <= across.high:
        x = across.position(side.expires_us)
        over = svg.title(f"{side.side}: rows before {format_exact_time(side.expires_us)} have expired")
        parts += [
            svg.element("line", over, x1=x, y1=y + 8, x2=x, y2=base, class_="cap"),
            svg.note(x, y + 16, "expired before", "tick"),
        ]
    return parts
