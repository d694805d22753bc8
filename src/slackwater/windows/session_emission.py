"""Emission of sessions that close, are cut at the cap, were corrected, or have changed since their last emission.

    emitted before    [0 ──── 5]      [8 ── 12]        `__out` (starts in the target) = [0], [8]
    a late row                    ● 6.5                joins both (gap 3)
    emitted now       [0 ──────────────── 12]          upsert 0, supersede 8; `__out` = [0]

When a session closes, its state is usually read, but not written. A unit is settled only if it has fragments, or a
changed session that is emitted and stays in the state. Settling merges the sessions of a unit, emits the sessions that
are due, and writes the others back.

Watermark holds cover sessions that may still end behind the watermark. A session may still be open when the watermark
has passed its start + cap. All its rows are then before that time. A later row may cut the session, and the event time
of its result is then start + cap.

    gap 3, cap 10      0      7 9   10  11  12         watermark 11: open until 12, and a row at 11 or 12 cuts it at 10
    session            [──────●─●────┊───▲───)

A row behind the watermark can also keep a part of a run whole (see `session_loops.rows_behind_watermark`). The
preceding session then ends where that part begins, once the watermark has passed its cap.

A hold is (unit, low, due): until the watermark reaches `due`, a result of this unit may have the event time `low`. The
hold applies while the watermark is between `low` and `due`. Holds are rare, because only sessions that come within one
gap of the cap need one. A shard keeps at most `MOST` holds and merges the rest into one hold without a unit. The merged
hold may hold the watermark back more than necessary, but never by more than the longest gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from slackwater.core.sorted_arrays import distinct_values, is_in_sorted
from slackwater.watermark import NO_WATERMARK
from slackwater.windows.compiled_session_window import (
    Bools,
    CompiledSessionWindow,
    IntervalBatch,
    build_floor_rows,
    build_layout,
    find_runs,
    first_per_key,
    is_expired,
    mark_emitted,
    number_sessions,
    reduce_per_key,
    select_rows,
)
from slackwater.windows.compiled_window import EmitResult
from slackwater.windows.state_layout import EMITTED, EMITTED_FRAGMENT, FAR, FRAGMENT, OPEN, TOMBSTONE, WHOLE, Int64s

Hold = tuple[int | None, int, int]
MOST = 64  # holds per shard
_ROWS_AT_ONCE = 100_000


def emit_sessions(
    logic: CompiledSessionWindow, units: pl.DataFrame, since: int, watermark: int, early: bool = False
) -> EmitResult:
    """Return the sessions to emit as the watermark advances from `since` to `watermark`.

    Args:
        logic: The window.
        units: All state rows of the units that are due.
        since: The watermark (µs) of the previous epoch.
        watermark: The new watermark (µs).
        early: Whether to emit open sessions that have changed since their last emission (emit = "updates").
    """
    parts = [_emit_part(logic, part, since, watermark, early) for part in _split_between_units(units)]
    if len(parts) == 1:
        return parts[0]
    return EmitResult(
        pl.concat(part.rows for part in parts),
        pl.concat(part.state for part in parts),
        pl.concat(part.superseded for part in parts),
        sum(part.groups for part in parts),
        sum(part.windows for part in parts),
    )


def _split_between_units(units: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield parts of at least `_ROWS_AT_ONCE` rows, without splitting a unit.

    Processing a part needs several times the memory of the part. Rows that are not sorted by `__h` form one part,
    because the rows of a unit may not be adjacent.
    """
    hashes, start = units["__h"].to_numpy(), 0
    while units.height - start > _ROWS_AT_ONCE and units["__h"].is_sorted():
        last = hashes[start + _ROWS_AT_ONCE - 1]
        end = int(np.searchsorted(hashes, last, side="right"))
        yield units[start:end]
        start = end
    if start < units.height or not start:
        yield units[start:]


def _emit_part(
    logic: CompiledSessionWindow, units: pl.DataFrame, since: int, watermark: int, early: bool
) -> EmitResult:
    kind, due = units["__kind"].to_numpy(), units["__due"].to_numpy()
    unsettled = (kind == FRAGMENT) if logic.updates else (kind == FRAGMENT) & (due <= watermark)
    unsettled |= (kind == EMITTED_FRAGMENT) & (due <= watermark)
    if early:
        unsettled |= (kind == WHOLE) & (due > watermark)
    visits = distinct_values(units["__h"].to_numpy()[unsettled])
    settling = is_in_sorted(units["__h"].to_numpy(), visits)
    closing = (kind == WHOLE) & (due > since) & (due <= watermark) & ~settling
    direct = units if closing.all() else units[np.flatnonzero(closing)]
    whole = (kind == WHOLE) | (kind == EMITTED)
    before, after = logic.horizon(since), logic.horizon(watermark)
    going = whole & (due > before) & (due <= after) & ~settling
    staying = ~settling & ((whole & (due > after)) | (kind == FRAGMENT) | (kind == EMITTED_FRAGMENT))
    groups = -_count_keys_gone(logic, units, going, staying) if going.any() else 0
    end = pl.col("__end") if logic.dynamic else pl.col("__last") + logic.gap_us
    rows = logic.add_revision_columns(direct).with_columns(
        end.alias("__end"),
        (end + logic.allowed_us).alias("__final"),
        (pl.col("__rev") + 1).alias("__rev") if logic.revises else pl.lit(1, pl.Int64).alias("__rev"),
        pl.lit("close").alias("__reason"),
    )
    closed = EmitResult(
        rows.select(logic.emitted_columns),
        logic.empty_state(),
        _superseded_starts(logic, rows),
        groups,
        -int(going.sum()),
    )
    if not len(visits):
        return closed
    settled = _settle(logic, units[np.flatnonzero(settling)], since, watermark, early)
    return EmitResult(
        pl.concat([closed.rows, settled.rows]),
        settled.state,
        pl.concat([closed.superseded, settled.superseded]),
        closed.groups + settled.groups,
        closed.windows + settled.windows,
    )


def emit_late_rows_as_sessions(logic: CompiledSessionWindow, late: pl.DataFrame) -> pl.DataFrame:
    """Convert late rows (`IngestResult.late`) to separate sessions with the reason "standalone"."""
    unit = IntervalBatch.from_frame(logic, late)
    _, session = number_sessions(unit, logic.cap_us)
    heads = first_per_key(session)
    end = np.minimum(np.maximum.reduceat(unit.end, heads), unit.start[heads] + logic.cap_us)
    carried = unit.frame.select("__kh", *logic.key_names)[heads].get_columns()
    return (
        logic.merge_runs(unit.frame.select(*logic.accumulators), heads, carried)
        .with_columns(
            pl.Series("__start", unit.start[heads]),
            pl.Series("__end", end),
            pl.Series("__final", end),
            pl.lit(1, pl.Int64).alias("__rev"),
            pl.lit("standalone").alias("__reason"),
        )
        .select(logic.emitted_columns)
    )


def _superseded_starts(logic: CompiledSessionWindow, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the results that these sessions replace: earlier emissions (`__out`) with a different start."""
    columns = logic.superseded_columns
    if not logic.revises:
        return rows.clear().select(columns)
    several = rows.select(*columns, "__out").filter(pl.col("__out").list.len() > 0)
    if several.is_empty():
        return several.select(columns)
    several = several.explode("__out").filter(pl.col("__out") != pl.col("__start"))
    return several.drop("__start").rename({"__out": "__start"}).select(columns)


def _count_keys_gone(logic: CompiledSessionWindow, units: pl.DataFrame, going: Bools, staying: Bools) -> int:
    """Count the keys that lose their last session. `going` and `staying`: masks of the `units` that leave and stay."""
    gone, still = units[np.flatnonzero(going)], units[np.flatnonzero(staying)]
    hashes = gone["__kh"].to_numpy()
    if still.is_empty() and bool((np.diff(hashes) > 0).all()):
        return len(hashes)
    keys = ["__kh", *logic.key_names]
    closing = gone.select(keys).unique()
    return closing.join(still.select(keys), on=keys, how="anti", nulls_equal=True).height


def _settle(logic: CompiledSessionWindow, units: pl.DataFrame, since: int, watermark: int, early: bool) -> EmitResult:
    """Merge the sessions of these units, emit the sessions that are due, and return the new rows of the units."""
    cap, horizon = logic.cap_us, logic.horizon(watermark)
    whole = IntervalBatch.from_frame(logic, mark_emitted(logic, units, since))
    held = ~is_expired(whole.kind, whole.due, logic.horizon(since))
    floors = whole.floors(logic.reach_us, logic.horizon(since))
    unit = select_rows(whole, held)
    now = build_layout(logic, unit)
    session, heads, start, reach, is_cut, end = now.session, now.heads, now.start, now.reach, now.is_cut, now.end
    # a session may be cut before start + cap if a late row kept the next one whole; it then closes by its gap
    over = watermark >= np.where(is_cut, np.minimum(start + cap, reach + 1), reach + 1)
    gone = np.where(is_cut, watermark >= start + cap if logic.revises else over, horizon > reach)
    emitted = ~np.logical_and.reduceat(unit.emitted, heads) & (over | early)
    key = unit.key[heads]
    np.maximum.at(floors, key[gone], np.where(is_cut, start + cap - 1, reach)[gone])

    # without corrections, only a smaller gap can move the close of a session before `since`
    open_before = ~is_cut & ((since <= reach) | (logic.retain_us == 0 and not logic.updates))
    reasons = np.where(is_cut & over, "cap", np.where(over, np.where(open_before, "close", "late"), "update"))
    parts = unit.frame.select(*logic.revisions, *logic.accumulators)
    carried = unit.frame.select("__h", "__kh", *logic.key_names)[heads].get_columns()
    merged = logic.merge_runs(parts, heads, carried).with_columns(
        pl.Series("__start", start),
        pl.Series("__end", end),
        pl.Series("__final", end + np.where(is_cut, 0, logic.allowed_us)),
        pl.Series("__reason", reasons, dtype=pl.String),
        (pl.col("__rev") + 1).alias("__rev") if logic.revises else pl.lit(1, pl.Int64).alias("__rev"),
    )
    rows = merged.filter(pl.Series(emitted))
    unit = _record_emissions(logic, unit, session, heads, emitted, merged)
    state, bare = _remaining_state(logic, whole, select_rows(unit, ~gone[session]), floors, watermark)
    open_after = int(state["__kind"].is_in(OPEN).sum())
    superseded = _superseded(logic, merged, emitted)
    emptied = int((bare & reduce_per_key(np.logical_or, held, whole.key).astype(bool)).sum())
    return EmitResult(rows.select(logic.emitted_columns), state, superseded, -emptied, open_after - int(held.sum()))


def _record_emissions(
    logic: CompiledSessionWindow,
    unit: IntervalBatch,
    session: Int64s,
    heads: Int64s,
    emitted: Bools,
    merged: pl.DataFrame,
) -> IntervalBatch:
    """Mark the intervals of emitted sessions as emitted. The first interval of a session stores the emitted start."""
    if not logic.revises or not emitted.any():
        return unit
    now = emitted[session]
    is_head = np.zeros(len(session), dtype=bool)
    is_head[heads] = True
    is_emitted, first = pl.Series(now), pl.Series(is_head)
    frame = unit.frame.with_columns(
        pl.when(is_emitted)
        .then(pl.Series(merged["__rev"].to_numpy()[session]))
        .otherwise(pl.col("__rev"))
        .alias("__rev"),
        pl.when(is_emitted & first)
        .then(pl.concat_list("__start"))
        .when(is_emitted)
        .then(pl.lit([], pl.List(pl.Int64)))
        .otherwise(pl.col("__out"))
        .alias("__out"),
    )
    return replace(unit, frame=frame, kind=np.where(now, EMITTED_FRAGMENT, unit.kind).astype(np.int8))


def _remaining_state(
    logic: CompiledSessionWindow, whole: IntervalBatch, rest: IntervalBatch, floors: Int64s, watermark: int
) -> tuple[pl.DataFrame, Bools]:
    """Return the new rows of all settled units, and a mask of the keys that no longer have a session.

    `whole`: all intervals of these units. `rest`: the intervals that stay in the state.
    """
    from slackwater.windows import session_ingest  # imported on use, because it imports Numba

    reach, horizon = logic.reach_us, logic.horizon(watermark)
    first = np.full(whole.keys, FAR)
    np.minimum.at(first, rest.key, rest.start)
    floors = np.where((horizon <= floors + reach) | (first <= floors + reach), floors, NO_WATERMARK)
    state = logic.empty_state()
    if len(rest.key):
        state = session_ingest.build_session_state(logic, rest, floors, watermark)
    bare = first == FAR
    alone = np.flatnonzero(bare & (floors != NO_WATERMARK))
    gone = np.flatnonzero(bare & (floors == NO_WATERMARK))
    heads = first_per_key(whole.key)
    parts = [state]
    if len(alone):
        parts.append(build_floor_rows(logic, whole.frame[heads[alone]], floors[alone]))
    if len(gone):
        dead = whole.frame[heads[gone]].with_columns(pl.lit(TOMBSTONE, pl.Int8).alias("__kind"))
        parts.append(dead.select(logic.state_schema.keys()))
    return pl.concat(parts).sort("__h", maintain_order=True), bare


def _superseded(logic: CompiledSessionWindow, merged: pl.DataFrame, emitted: Bools) -> pl.DataFrame:
    """Return the results that the emitted sessions replace, except those at whose start another session starts."""
    gone = _superseded_starts(logic, merged.filter(pl.Series(emitted)))
    if gone.is_empty():
        return gone
    identity = ["__kh", *logic.key_names, "__start"]
    return gone.join(merged.select(identity), on=identity, how="anti", nulls_equal=True)


# -- watermark holds ---------------------------------------------------------------------------------------------------


def find_lowest_watermark_hold(holds: Iterable[Hold], watermark: int, reach: int) -> int:
    """Return the lowest event time (µs) at which a session may still end. `reach`: the largest gap of a row (µs).

    The rows of an open session extend to the watermark. Therefore, the session cannot be cut more than one gap behind
    the watermark.
    """
    counting = (max(low, watermark - reach) for _, low, due in holds if low < watermark < due)
    return min(counting, default=watermark)


def find_watermark_holds(logic: CompiledSessionWindow, rows: pl.DataFrame) -> list[Hold]:
    """Find the watermark holds of state rows. `rows` must be sorted by unit and time."""
    kind, start, last, due = (rows[c].to_numpy() for c in ("__kind", "__start", "__last", "__due"))
    end = rows["__end"].to_numpy() if logic.dynamic else last + logic.gap_us
    near_cap = ((kind == WHOLE) | (kind == EMITTED)) & (end > start + logic.cap_us)
    positions = np.flatnonzero(near_cap)
    units = rows["__h"].to_numpy()
    holds = list(
        zip(units[positions].tolist(), (start[positions] + logic.cap_us).tolist(), due[positions].tolist(), strict=True)
    )
    parts = np.flatnonzero((kind == FRAGMENT) | (kind == EMITTED_FRAGMENT))
    if (last[parts] > start[parts]).any():
        touches = np.diff(find_runs(units[parts], start[parts], end[parts]), prepend=-1) == 0
        positions = parts[touches & (last[parts] > start[parts])]
        holds += zip(units[positions].tolist(), start[positions].tolist(), due[positions].tolist(), strict=True)
    return holds


def replace_watermark_holds(
    logic: CompiledSessionWindow, holds: Sequence[Hold], rows: pl.DataFrame
) -> tuple[Hold, ...]:
    """Return the holds of a shard after `rows` (sorted by unit) have replaced all rows of their units."""
    new = find_watermark_holds(logic, rows)
    if not holds:
        return limit_watermark_holds(new)
    units = rows["__h"].to_numpy()  # sorted
    held_units = np.array([unit for unit, _, _ in holds if unit is not None], dtype=np.int64)
    gone = set(held_units[np.isin(held_units, units)].tolist())
    return limit_watermark_holds([*(hold for hold in holds if hold[0] not in gone), *new])


def limit_watermark_holds(holds: Sequence[Hold]) -> tuple[Hold, ...]:
    """Merge holds so that at most `MOST` remain. They hold the watermark back at least as far as the original ones."""
    in_order = sorted(holds, key=lambda hold: hold[1])
    if len(in_order) <= MOST:
        return tuple(in_order)
    rest = in_order[MOST - 1 :]
    return (*in_order[: MOST - 1], (None, rest[0][1], max(due for _, _, due in rest)))
