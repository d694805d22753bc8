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
* at most one FLOOR row: how far the key's sessions that left the state reached; rows at or below it are late.

A SETTLED row whose close the watermark has passed *is* the key's floor: closing a session costs no write.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from slackwater.core.arrays import distinct, member
from slackwater.watermark import NO_WATERMARK
from slackwater.windows.contested import place_late_rows, session_heads
from slackwater.windows.logic import (
    DEAD,
    FAR,
    FLOOR,
    LOOSE,
    ROW,
    SETTLED,
    Counts,
    Emitted,
    Forgotten,
    Ingested,
    Int64s,
    Logic,
    Stats,
    Visit,
)
from slackwater.windows.units import Bools, Unit, chosen, first_of_each, per_key, renumber, runs_of


def _pieces(logic: Logic, unit: Unit, reach: Int64s, run: Int64s, limit: Int64s) -> Int64s:
    """Number the pieces: per run one piece below `limit`, above it one per interval (overlapping ones together)."""
    new = np.diff(run, prepend=-1) != 0
    new |= (unit.start >= limit) & (unit.start > reach)
    return np.cumsum(new) - 1


def _state_of(logic: Logic, unit: Unit, run: Int64s, piece: Int64s, floors: Int64s, watermark: int) -> pl.DataFrame:
    """The new state rows of all keys in `unit` (its open intervals), with the floors of those keys.

    A session that the watermark has passed already (a late row's) stays LOOSE: it is visited and comes out.
    """
    frame = unit.frame
    heads, run_heads = first_of_each(piece), first_of_each(run)
    start = unit.start[heads]
    last = np.maximum.reduceat(unit.last, heads)
    piece_run = run[heads]
    run_start = unit.start[run_heads][piece_run]
    first_end = np.minimum.reduceat(last, np.flatnonzero(np.diff(piece_run, prepend=-1))) + logic.gap_us + 1
    pieces_of_run = np.bincount(piece_run, minlength=len(run_heads))
    close = last + logic.gap_us + 1
    alone = (pieces_of_run[piece_run] == 1) & (close > watermark)
    due = np.where(alone, close, np.minimum(run_start + logic.cap_us, first_end[piece_run]))
    merged = logic.merge_groups(
        frame.select("__h", "__kh", *logic.key_names, *logic.accumulators),
        piece,
        [pl.col("__h").first(), pl.col("__kh").first()],
    )
    rows = merged.with_columns(
        pl.Series("__kind", np.where(alone, SETTLED, LOOSE), dtype=pl.Int8),
        pl.Series("__start", start),
        pl.Series("__last", last),
        pl.Series("__due", due),
    ).select(logic.state_schema.keys())
    return pl.concat([rows, _floor_rows(logic, frame, unit.key, floors)])


def _floor_rows(logic: Logic, frame: pl.DataFrame, key: Int64s, floors: Int64s) -> pl.DataFrame:
    """One FLOOR row per key that has one; `floors` is indexed by key."""
    heads = first_of_each(key)
    values = floors[key[heads]]
    kept = values != NO_WATERMARK
    rows = frame.select("__h", "__kh", *logic.key_names)[heads[kept]]
    return rows.with_columns(
        pl.lit(FLOOR, pl.Int8).alias("__kind"),
        pl.Series("__start", values[kept] - logic.gap_us),
        pl.Series("__last", values[kept] - logic.gap_us),
        pl.Series("__due", values[kept] + logic.gap_us + 1),
        *(pl.lit(None, dtype).alias(name) for name, dtype in logic.accumulators.items()),
    ).select(logic.state_schema.keys())


def ingest(logic: Logic, rows: pl.DataFrame, state: pl.DataFrame, watermark: int, room: int | None = None) -> Ingested:
    """Fold lifted rows (`__kh`, `__ts`, keys, accumulators) into the touched units.

    `watermark` is the one the previous epoch committed. `room`: how many keys may still open a session in this shard
    (`drop_new_groups`); None for no bound.

                    floor          wm_prev
        closed ......│               │
        row  ●       │  at or below the floor: late
        row          │ ●   ○─────○   its run holds an open session: used
        row          │ ●             alone, and ts + gap < wm_prev: late
    """
    fields = list(logic.state_schema)
    extra = [c for c in ("__idle", "__row") if c in rows.columns]
    fresh = rows.with_columns(
        pl.col("__kh").alias("__h"),
        pl.lit(ROW, pl.Int8).alias("__kind"),
        pl.col("__ts").alias("__start"),
        pl.col("__ts").alias("__last"),
        pl.lit(NO_WATERMARK, pl.Int64).alias("__due"),
    ).select(*fields, *extra)
    both = (
        pl.concat([state.select(fields), fresh], how="diagonal") if extra else pl.concat([state.select(fields), fresh])
    )
    whole = Unit.of(logic, both)
    floors = whole.floors(logic.gap_us, watermark)
    had_open = per_key(np.logical_or, (whole.kind != ROW) & ~whole.is_closed(watermark), whole.key).astype(bool)
    is_row = whole.kind == ROW
    below = is_row & (whole.start <= floors[whole.key])
    open_ = (is_row & ~below) | (~is_row & ~whole.is_closed(watermark))
    late, refused = below.copy(), np.zeros(len(below), dtype=bool)

    unit = chosen(whole, open_)
    position = np.flatnonzero(open_)
    run, reach = runs_of(logic, unit)
    accepted = _accepted(logic, unit, run, watermark)
    late[position[~accepted]] = True
    if room is not None:
        shut = _refused(logic, unit, accepted, had_open, room)
        refused[position[shut]] = True
        accepted &= ~shut

    unit, run, position = chosen(unit, accepted), renumber(run[accepted]), position[accepted]
    reach = reach[accepted]
    if len(position):
        first = np.full(whole.keys, FAR)
        np.minimum.at(first, unit.key, unit.start)
        limit = np.minimum(first, watermark)[unit.key] + logic.cap_us
        piece = _pieces(logic, unit, reach, run, limit)
        piece, too_late = place_late_rows(logic, unit.kind == ROW, unit.start, unit.last, run, piece, watermark)
        if too_late.any():
            late[position[too_late]] = True
            keep = ~too_late
            unit, run, piece = chosen(unit, keep), renumber(run[keep]), renumber(piece[keep])
        touched = np.zeros(whole.keys, dtype=bool)
        touched[unit.key[unit.kind == ROW]] = True
        # keys that share a hash share a unit, which is replaced as a whole
        unit_of_key = whole.frame["__h"].to_numpy()[first_of_each(whole.key)]
        touched = member(unit_of_key, distinct(unit_of_key[touched]))
        kept = touched[unit.key]
        unit, run, piece = chosen(unit, kept), renumber(run[kept]), renumber(piece[kept])
    new_state = logic.empty_state()
    if len(unit.key):
        new_state = _state_of(logic, unit, run, piece, floors, watermark)
        touched[unit.key] = False
        alone = np.flatnonzero(touched & (floors != NO_WATERMARK))
        if len(alone):
            at = first_of_each(whole.key)[alone]
            new_state = pl.concat([new_state, _floor_rows(logic, whole.frame[at], alone, floors)])
    has_open = np.zeros(whole.keys, dtype=bool)
    has_open[unit.key] = True
    lost = whole.frame.filter(pl.Series(late)) if late.any() else whole.frame.clear()
    old_windows = int(((whole.kind != ROW) & open_ & has_open[whole.key]).sum())
    return Ingested(
        state=new_state.sort("__h", maintain_order=True),
        counts=Counts(
            used=int((is_row & ~late & ~refused).sum()),
            late=lost.height,
            late_idle=int(lost["__idle"].sum()) if "__idle" in extra else 0,
            late_windows=lost.height,
            refused=int(refused.sum()),
            groups=int((has_open & ~had_open).sum()),
            windows=int((new_state["__kind"] <= LOOSE).sum()) - old_windows,
        ),
        late=lost,
        new_groups={},
    )


def _accepted(logic: Logic, unit: Unit, run: Int64s, watermark: int) -> Bools:
    """A run is taken if it holds an open session, or a row with watermark <= ts + gap; else it is late.

    Of a run that is taken, rows before its open session that are themselves further back than that stay late: they could
    chain back to a session that was closed and forgotten, and overlap it.
    """
    if not len(run):
        return np.zeros(0, dtype=bool)
    recent = unit.start + logic.gap_us >= watermark
    is_open = unit.kind != ROW
    first_open = np.minimum.reduceat(np.where(is_open, unit.start, FAR), first_of_each(run))[run]
    taken = np.logical_or.reduceat(is_open | recent, first_of_each(run))[run]
    result: Bools = taken & (recent | (unit.start >= first_open))
    return result


def _refused(logic: Logic, unit: Unit, accepted: Bools, had_open: Bools, room: int) -> Bools:
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


def emit(logic: Logic, units: pl.DataFrame, since: int, watermark: int) -> Emitted:
    """The sessions that close in (since, watermark]; `units`: all rows of the keys that have a row due.

    A SETTLED row closes by its gap and is left where it is. A key with a LOOSE row that is due is cut here, as far as
    the watermark has settled it, and replaced in the state.
    """
    kind, due = units["__kind"].to_numpy(), units["__due"].to_numpy()
    visits = distinct(units["__h"].to_numpy()[(kind == LOOSE) & (due <= watermark)])
    cut_here = member(units["__h"].to_numpy(), visits)
    closing = (kind == SETTLED) & (due > since) & (due <= watermark) & ~cut_here
    still_open = ~cut_here & (((kind == SETTLED) & (due > watermark)) | (kind == LOOSE))
    settled = units if closing.all() else units[np.flatnonzero(closing)]
    direct = settled.with_columns(
        (pl.col("__last") + logic.gap_us).alias("__end"), pl.lit("close").alias("__reason")
    ).select("__kh", *logic.key_names, "__start", "__end", "__reason", *logic.accumulators)
    groups = -_keys_closed(logic, settled, units[np.flatnonzero(still_open)])
    if not len(visits):
        return Emitted(direct, logic.empty_state(), groups, -settled.height)
    cut, state, fewer_groups, fewer_windows = _cut(logic, units[np.flatnonzero(cut_here)], since, watermark)
    rows = pl.concat([direct, cut.select(direct.columns)])
    return Emitted(rows, state, groups + fewer_groups, fewer_windows - settled.height)


def _keys_closed(logic: Logic, settled: pl.DataFrame, still_open: pl.DataFrame) -> int:
    """How many keys close their last open session."""
    if settled.is_empty():
        return 0
    hashes = settled["__kh"].to_numpy()
    if still_open.is_empty() and bool((np.diff(hashes) > 0).all()):
        return len(hashes)
    keys = ["__kh", *logic.key_names]
    closing = settled.select(keys).unique()
    return closing.join(still_open.select(keys), on=keys, how="anti", nulls_equal=True).height


def _cut(logic: Logic, units: pl.DataFrame, since: int, watermark: int) -> tuple[pl.DataFrame, pl.DataFrame, int, int]:
    gap, cap = logic.gap_us, logic.cap_us
    whole = Unit.of(logic, units)
    floors = whole.floors(gap, since)
    open_ = ~whole.is_closed(since)
    before = int(open_.sum())
    unit = chosen(whole, open_)
    run, _ = runs_of(logic, unit)
    session = np.cumsum(session_heads(unit.start, unit.last, run, cap)) - 1
    heads = first_of_each(session)
    start, last = unit.start[heads], np.maximum.reduceat(unit.last, heads)
    session_run = run[heads]
    is_cut = np.append(session_run[1:] == session_run[:-1], False)
    done = np.where(is_cut, watermark >= start + cap, watermark > last + gap)
    following = np.append(start[1:], FAR)  # a late row may have put the next session before start + cap
    end = np.where(is_cut, np.minimum(np.minimum(last + gap, start + cap), following), last + gap)
    key = unit.key[heads]
    np.maximum.at(floors, key[done], np.where(is_cut, start + cap - 1, last + gap)[done])

    merged = logic.merge_groups(
        unit.frame.select("__h", "__kh", *logic.key_names, *logic.accumulators),
        session,
        [pl.col("__h").first(), pl.col("__kh").first()],
    ).with_columns(
        pl.Series("__start", start),
        pl.Series("__end", end),
        pl.Series("__reason", np.where(is_cut, "cap", "close"), dtype=pl.String),
    )
    emitted = merged.filter(pl.Series(done))

    stay = ~done[session]
    rest = chosen(unit, stay)
    first = np.full(whole.keys, FAR)
    np.minimum.at(first, rest.key, rest.start)
    floors = np.where((watermark <= floors + gap) | (first <= floors + gap), floors, NO_WATERMARK)
    if len(rest.key):
        limit = np.minimum(first, watermark)[rest.key] + cap
        run, reach = runs_of(logic, rest)
        state = _state_of(logic, rest, run, _pieces(logic, rest, reach, run, limit), floors, watermark)
    else:
        state = logic.empty_state()
    bare = first == FAR
    alone = np.flatnonzero(bare & (floors != NO_WATERMARK))
    gone = np.flatnonzero(bare & (floors == NO_WATERMARK))
    at = first_of_each(whole.key)
    state = pl.concat(
        [
            state,
            _floor_rows(logic, whole.frame[at[alone]], alone, floors),
            whole.frame[at[gone]].with_columns(pl.lit(DEAD, pl.Int8).alias("__kind")).select(logic.state_schema.keys()),
        ]
    )
    left = int((state["__kind"] <= LOOSE).sum())
    return emitted, state.sort("__h", maintain_order=True), -int(bare.sum()), left - before


def stats(logic: Logic, state: pl.DataFrame) -> Stats:
    """Of a set of state rows that is not empty."""
    kind, due, last = (state[c].to_numpy() for c in ("__kind", "__due", "__last"))
    loose, open_ = kind == LOOSE, kind <= LOOSE
    ends = last[kind != DEAD] + 2 * logic.gap_us + 1
    return Stats(
        first_due=int(due[open_].min(initial=FAR)),
        last_due=FAR if loose.any() else int(due[open_].max(initial=NO_WATERMARK)),
        close=int((last[open_] + logic.gap_us + 1).max(initial=NO_WATERMARK)),
        dead=FAR if loose.any() else int(ends.max(initial=NO_WATERMARK)),
    )


def visit(logic: Logic, since: int, watermark: int) -> Visit:
    """The rows whose unit wants a visit when the watermark goes from `since` to `watermark`."""
    return Visit(since, watermark, loose_upto=watermark, start_before=FAR)


def forgotten(logic: Logic, watermark: int) -> Forgotten:
    """Closed sessions and floors that no longer make any row late."""
    return Forgotten(settled_upto=watermark - logic.gap_us, floor_upto=watermark)


def forget(logic: Logic, state: pl.DataFrame, watermark: int) -> pl.DataFrame:
    """Without the closed sessions and floors that no longer make any row late."""
    if state.is_empty():
        return state
    unit = Unit.of(logic, state)
    closed = unit.is_closed(watermark)
    needed = unit.floors(logic.gap_us, watermark)[unit.key] != NO_WATERMARK
    return unit.frame.filter(pl.Series(~closed | needed)).sort("__h", maintain_order=True)


def open_groups(logic: Logic, state: pl.DataFrame, watermark: int) -> tuple[int, int]:
    """(keys with open sessions, open intervals) of a whole shard."""
    still = state.filter((pl.col("__kind") == LOOSE) | ((pl.col("__kind") == SETTLED) & (pl.col("__due") > watermark)))
    return still.select("__kh", *logic.key_names).unique().height, still.height
