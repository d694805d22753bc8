"""Session windows: intervals per key that merge by gap and are cut at the cap.

    gap 3, cap 10         0    5    10   15   20
    rows of one key       ●●●●●●●●●●●●●●    ●●
    run (joined by gap)   [────────────]    [] a second run: 4 > gap apart
    sessions              [────────][──]    []
                          start     start + cap: the cut

Which session a row belongs to is settled only when the watermark has passed: an earlier row may still move the start of
a run, and with it every cut. So a unit (one key) holds

* SETTLED rows: a whole session each; it closes at `last + gap` without being written again;
* LOOSE rows: pieces of a run that may be cut; rows at or above `min(first open start, watermark) + cap` stay pieces of
  their own, everything below can only end up in one session and is merged;
* TOLD, LOOSE_TOLD rows: the same, and the target holds them as they stand (where windows are revised);
* at most one FLOOR row: how far the key's sessions that left the state reached; rows at or below it are late.

A SETTLED row whose close the watermark has passed was emitted, and once it is gone it *is* the key's floor: neither costs
a write. Here rows come in; `session_emission` takes sessions out.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from slackwater.watermark import NO_WATERMARK
from slackwater.windows.intervals import (
    SessionLogic,
    Unit,
    first_of_each,
)
from slackwater.windows.logic import FLOOR, LOOSE, LOOSE_TOLD, SETTLED, TOLD, Ingested, Int64s


def pieces(logic: SessionLogic, unit: Unit, reach: Int64s, run: Int64s, limit: Int64s) -> Int64s:
    """Number the pieces: per run one piece below `limit`, above it one per interval (overlapping ones together).

    An interval that reaches across the limit is one of those above: sessions that a larger gap brought together.
    """
    alone = unit.start > reach
    heads = np.flatnonzero(alone)
    furthest = np.maximum.reduceat(unit.last, heads)[np.cumsum(alone) - 1]  # of those that overlap
    new = np.diff(run, prepend=-1) != 0
    new |= (furthest >= limit) & alone
    return np.cumsum(new) - 1


def state_of(
    logic: SessionLogic, unit: Unit, run: Int64s, piece: Int64s, floors: Int64s, watermark: int
) -> pl.DataFrame:
    """The new state rows of all keys in `unit` (its open and retained intervals), with the floors of those keys.

    A session that the watermark has passed already (a late row's) stays LOOSE: it is visited and comes out.
    """
    frame = unit.frame
    heads, run_heads = first_of_each(piece), first_of_each(run)
    start = unit.start[heads]
    last, end = np.maximum.reduceat(unit.last, heads), np.maximum.reduceat(unit.end, heads)
    piece_run = run[heads]
    run_start = unit.start[run_heads][piece_run]
    first_end = np.minimum.reduceat(end, np.flatnonzero(np.diff(piece_run, prepend=-1))) + 1
    pieces_of_run = np.bincount(piece_run, minlength=len(run_heads))
    close = end + 1
    told = np.logical_and.reduceat(unit.told, heads)
    alone = (pieces_of_run[piece_run] == 1) & ((close > watermark) | told)
    due = np.where(alone, close, np.minimum(run_start + logic.cap_us, first_end[piece_run]))
    kind = np.where(told, np.where(alone, TOLD, LOOSE_TOLD), np.where(alone, SETTLED, LOOSE))
    merged = logic.merge_groups(
        frame.select("__h", "__kh", *logic.revisions, *logic.key_names, *logic.accumulators),
        piece,
        [pl.col("__h").first(), pl.col("__kh").first()],
    )
    rows = merged.with_columns(
        pl.Series("__kind", kind, dtype=pl.Int8),
        pl.Series("__start", start),
        pl.Series("__last", last),
        pl.Series("__due", due),
        *([pl.Series("__end", end)] if logic.dynamic else []),
    ).select(logic.state_schema.keys())
    return pl.concat([rows, floor_rows(logic, frame, unit.key, floors)])


def floor_rows(logic: SessionLogic, frame: pl.DataFrame, key: Int64s, floors: Int64s) -> pl.DataFrame:
    """One FLOOR row per key that has one; `floors` is indexed by key."""
    heads = first_of_each(key)
    values = floors[key[heads]]
    kept = values != NO_WATERMARK
    if not kept.any():
        return logic.empty_state()
    rows = frame.select("__h", "__kh", *logic.key_names)[heads[kept]]
    rows = rows.with_columns(
        pl.lit(FLOOR, pl.Int8).alias("__kind"),
        pl.Series("__start", values[kept] - logic.gap_us),
        pl.Series("__last", values[kept] - logic.gap_us),
        pl.Series("__due", values[kept] + logic.reach_us + 1),
        *([pl.Series("__end", values[kept])] if logic.dynamic else []),
        *(pl.lit(None, dtype).alias(name) for name, dtype in logic.accumulators.items()),
    )
    return logic.unrevised(rows).select(logic.state_schema.keys())


def ingest(
    logic: SessionLogic, rows: pl.DataFrame, state: pl.DataFrame, watermark: int, room: int | None = None
) -> Ingested:
    """`session_step.ingest`, whose loops are compiled: imported by whoever has rows."""
    from slackwater.windows import session_step

    return session_step.ingest(logic, rows, state, watermark, room)


def open_groups(logic: SessionLogic, state: pl.DataFrame, watermark: int) -> tuple[int, int]:
    """(keys with open or retained sessions, their intervals) of a whole shard."""
    whole = pl.col("__kind").is_in([SETTLED, TOLD]) & (pl.col("__due") > logic.horizon(watermark))
    still = state.filter(whole | pl.col("__kind").is_in([LOOSE, LOOSE_TOLD]))
    return still.select("__kh", *logic.key_names).unique().height, still.height
