"""Session windows: intervals per key that merge by gap and are cut at the cap.

    gap 3, cap 10         0    5    10   15   20
    rows of one key       ●●●●●●●●●●●●●●    ●●
    run (joined by gap)   [────────────]    [] a second run: 4 > gap apart
    sessions              [────────][──]    []
                          start     start + cap: the cut

Which session a row belongs to is settled only when the watermark has passed: an earlier row may still move the start of
a run, and with it every cut. So a unit (one key) holds

* WHOLE rows: a whole session each; it closes at `last + gap` without being written again;
* FRAGMENT rows: parts of a run that may be cut; rows at or above `min(first open start, watermark) + cap` stay fragments of
  their own, everything below can only end up in one session and is merged;
* EMITTED, EMITTED_FRAGMENT rows: the same, and the target holds them as they stand (where windows are revised);
* at most one FLOOR row: how far the key's sessions that left the state reached; rows at or below it are late.

A WHOLE row whose close the watermark has passed was emitted, and once it is gone it *is* the key's floor: neither costs
a write. Here rows come in; `session_emission` takes sessions out.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from slackwater.core.arrays import distinct, member
from slackwater.watermark import NO_WATERMARK
from slackwater.windows.arrangement import as_emitted
from slackwater.windows.intervals import (
    Bools,
    SessionLogic,
    Unit,
    acknowledged,
    chosen,
    first_of_each,
    per_key,
    reaches,
    renumber,
    runs_of,
)
from slackwater.windows.logic import (
    EMITTED,
    EMITTED_FRAGMENT,
    FAR,
    FLOOR,
    FRAGMENT,
    OPEN,
    ROW,
    WHOLE,
    Counts,
    Ingested,
    Int64s,
)
from slackwater.windows.session_cuts import place_late_rows


def fragments(logic: SessionLogic, unit: Unit, reach: Int64s, run: Int64s, limit: Int64s) -> Int64s:
    """Number the fragments: per run one fragment below `limit`, above it one per interval (overlapping ones together).

    An interval that reaches across the limit is one of those above: sessions that a larger gap brought together.
    """
    alone = unit.start > reach
    heads = np.flatnonzero(alone)
    furthest = np.maximum.reduceat(unit.last, heads)[np.cumsum(alone) - 1]  # of those that overlap
    new = np.diff(run, prepend=-1) != 0
    new |= (furthest >= limit) & alone
    return np.cumsum(new) - 1


def state_of(
    logic: SessionLogic, unit: Unit, run: Int64s, fragment: Int64s, floors: Int64s, watermark: int
) -> pl.DataFrame:
    """The new state rows of all keys in `unit` (its open and retained intervals), with the floors of those keys.

    A session that the watermark has passed already (a late row's) stays FRAGMENT: it is visited and comes out.
    """
    frame = unit.frame
    heads, run_heads = first_of_each(fragment), first_of_each(run)
    start = unit.start[heads]
    last, end = np.maximum.reduceat(unit.last, heads), np.maximum.reduceat(unit.end, heads)
    fragment_run = run[heads]
    run_start = unit.start[run_heads][fragment_run]
    first_end = np.minimum.reduceat(end, np.flatnonzero(np.diff(fragment_run, prepend=-1))) + 1
    fragments_of_run = np.bincount(fragment_run, minlength=len(run_heads))
    close = end + 1
    emitted = np.logical_and.reduceat(unit.emitted, heads)
    alone = (fragments_of_run[fragment_run] == 1) & ((close > watermark) | emitted)
    due = np.where(alone, close, np.minimum(run_start + logic.cap_us, first_end[fragment_run]))
    kind = np.where(emitted, np.where(alone, EMITTED, EMITTED_FRAGMENT), np.where(alone, WHOLE, FRAGMENT))
    merged = logic.merge_groups(
        frame.select("__h", "__kh", *logic.revisions, *logic.key_names, *logic.accumulators),
        fragment,
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
    """Fold lifted rows (`__kh`, `__ts`, keys, accumulators) into the touched units.

    `watermark` is the one the previous epoch committed. `room`: how many keys may still open a session in this shard
    (`drop_new_groups`); None for no bound.

                    floor          wm_prev
        closed ......│               │
        row  ●       │  at or below the floor: late
        row          │ ●   ○─────○   its run holds an open session: used
        row          │ ●             alone, and ts + gap < wm_prev: late
    """
    horizon = logic.horizon(watermark)
    fields = list(logic.state_schema)
    extra = [c for c in ("__idle", "__row") if c in rows.columns]
    fresh = (
        logic.unrevised(rows)
        .with_columns(
            pl.col("__kh").alias("__h"),
            pl.lit(ROW, pl.Int8).alias("__kind"),
            pl.col("__ts").alias("__start"),
            pl.col("__ts").alias("__last"),
            pl.lit(NO_WATERMARK, pl.Int64).alias("__due"),
        )
        .select(*fields, *extra)
    )
    known = acknowledged(logic, state.select(fields), watermark)
    whole = Unit.of(logic, pl.concat([known, fresh], how="diagonal" if extra else "vertical"))
    floors = whole.floors(logic.reach_us, horizon)
    is_row = whole.kind == ROW
    held = ~is_row & ~whole.is_gone(horizon)
    had_open = per_key(np.logical_or, held, whole.key).astype(bool)
    below = is_row & (whole.start <= floors[whole.key])
    open_ = (is_row & ~below) | held
    late, refused = below.copy(), np.zeros(len(below), dtype=bool)

    unit = chosen(whole, open_)
    position = np.flatnonzero(open_)
    run, reach = runs_of(logic, unit)
    accepted = _accepted(logic, unit, run, horizon)
    late[position[~accepted]] = True
    if room is not None:
        shut = _refused(logic, unit, accepted, had_open, room)
        refused[position[shut]] = True
        accepted &= ~shut

    unit, run, position = chosen(unit, accepted), renumber(run[accepted]), position[accepted]
    if len(position) < len(
        reach
    ):  # of the rows that are left: one that came late may have the time of one that did not
        reach = reaches(unit.key, unit.start, unit.last)
    if len(position):
        first = np.full(whole.keys, FAR)
        np.minimum.at(first, unit.key, unit.start)
        limit = np.minimum(first, watermark)[unit.key] + logic.cap_us
        fragment = fragments(logic, unit, reach, run, limit)
        fragment, too_late = place_late_rows(logic, unit, run, fragment, watermark)
        if too_late.any():
            late[position[too_late]] = True
            keep = ~too_late
            unit, run, fragment = chosen(unit, keep), renumber(run[keep]), renumber(fragment[keep])
        touched = np.zeros(whole.keys, dtype=bool)
        touched[unit.key[unit.kind == ROW]] = True
        # keys that share a hash share a unit, which is replaced as a whole
        unit_of_key = whole.frame["__h"].to_numpy()[first_of_each(whole.key)]
        touched = member(unit_of_key, distinct(unit_of_key[touched]))
        kept = touched[unit.key]
        unit, run, fragment = chosen(unit, kept), renumber(run[kept]), renumber(fragment[kept])
        unit = as_emitted(logic, unit, fragment) if logic.revises else unit
    new_state = logic.empty_state()
    if len(unit.key):
        new_state = state_of(logic, unit, run, fragment, floors, watermark)
        touched[unit.key] = False
        alone = np.flatnonzero(touched & (floors != NO_WATERMARK))
        if len(alone):
            at = first_of_each(whole.key)[alone]
            new_state = pl.concat([new_state, floor_rows(logic, whole.frame[at], alone, floors)])
    has_open = np.zeros(whole.keys, dtype=bool)
    has_open[unit.key] = True
    lost = whole.frame.filter(pl.Series(late)) if late.any() else whole.frame.clear()
    old_windows = int((held & has_open[whole.key]).sum())
    return Ingested(
        state=new_state.sort("__h", maintain_order=True),
        counts=Counts(
            used=int((is_row & ~late & ~refused).sum()),
            late=lost.height,
            late_idle=int(lost["__idle"].sum()) if "__idle" in extra else 0,
            late_windows=lost.height,
            refused=int(refused.sum()),
            groups=int((has_open & ~had_open).sum()),
            windows=int(new_state["__kind"].is_in(OPEN).sum()) - old_windows,
        ),
        late=lost,
        new_groups={},
    )


def _accepted(logic: SessionLogic, unit: Unit, run: Int64s, horizon: int) -> Bools:
    """A run is taken if it holds an open or retained session, or a row with horizon <= ts + gap; else it is late.

    Of a run that is taken, rows before its open session that are themselves further back than that stay late: they could
    chain back to a session that was closed and forgotten, and overlap it.
    """
    if not len(run):
        return np.zeros(0, dtype=bool)
    recent = (unit.end >= horizon) & (unit.start >= logic.rows_from_us)
    is_open = unit.kind != ROW
    first_open = np.minimum.reduceat(np.where(is_open, unit.start, FAR), first_of_each(run))[run]
    taken = np.logical_or.reduceat(is_open | recent, first_of_each(run))[run]
    result: Bools = taken & (recent | (unit.start >= first_open))
    return result


def _refused(logic: SessionLogic, unit: Unit, accepted: Bools, had_open: Bools, room: int) -> Bools:
    """Rows of new keys beyond `room`, which are admitted in order of (first event time, key)."""
    new = accepted & ~had_open[unit.key]
    heads = np.flatnonzero(new)
    heads = heads[first_of_each(renumber(unit.key[heads]))] if len(heads) else heads
    if len(heads) <= room:
        return np.zeros(len(new), dtype=bool)
    order = (
        unit.frame.select("__start", *logic.key_names)[heads]
        .with_columns(pl.Series("__key", unit.key[heads]))
        .sort(["__start", *logic.key_names], nulls_last=False)
    )
    shut = np.zeros(len(had_open), dtype=bool)
    shut[order["__key"].to_numpy()[room:]] = True
    result: Bools = new & shut[unit.key]
    return result


def open_groups(logic: SessionLogic, state: pl.DataFrame, watermark: int) -> tuple[int, int]:
    """(keys with open or retained sessions, their intervals) of a whole shard."""
    whole = pl.col("__kind").is_in([WHOLE, EMITTED]) & (pl.col("__due") > logic.horizon(watermark))
    still = state.filter(whole | pl.col("__kind").is_in([FRAGMENT, EMITTED_FRAGMENT]))
    return still.select("__kh", *logic.key_names).unique().height, still.height
