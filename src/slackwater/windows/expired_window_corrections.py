"""Corrections of windows that have left the state: late rows change the results of these windows in the target.

    target     [0 ──── 5]      [9 ── 12]       sessions that left the state, gap 3
    state                                  [16 ── …
    row                    ● 7                 joins both: upsert [0 ── 12], supersede [9 ── 12]
    row                             ● 14       joins the second and the open one, which now begins at 9

Sessions that are stored in the target return to the state, as if late_data = "reopen" had retained them. Rows are then
added as usual, and sessions behind the horizon leave the state again. A tumbling or hopping window does not interact
with others: its stored row is merged with the late rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import singledispatch

import numpy as np
import polars as pl

from slackwater.core.hashing import mix_bits
from slackwater.core.sorted_arrays import distinct_values, is_in_sorted, order_by_unit, repeat_positions
from slackwater.errors import raise_unregistered
from slackwater.windows import pane_windows, session_emission
from slackwater.windows.compiled_session_window import (
    CompiledSessionWindow,
    IntervalBatch,
    build_floor_rows,
    count_open_sessions,
    find_runs,
    first_per_key,
    mark_emitted,
)
from slackwater.windows.compiled_window import CompiledWindow, EmitResult
from slackwater.windows.pane_windows import CompiledPaneWindow
from slackwater.windows.state_layout import (
    EMITTED,
    FLOOR,
    FRAGMENT,
    NEVER,
    ROW,
    TOMBSTONE,
    WHOLE,
    Int64s,
    with_revision_columns,
)

_FOREVER_MS = 10**15

CAPPED = "its session reaches max_session_duration or was cut there; the rows needed to cut it again are not stored"


@dataclass(frozen=True)
class ExpiredWindowCorrection:
    """Changes that a replay of late rows makes to the target and to the state."""

    done: EmitResult  # its `state` contains all rows of the units to replace
    refused: pl.Series  # for each late row, why it cannot be applied and has no effect; NULL if it is applied


@singledispatch
def find_touched_ranges(logic: CompiledWindow, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges of stored windows that late rows may touch: `__kh`, keys, `__low` and `__high`.

    `__low` and `__high` are window starts (µs, inclusive). The ranges of a key are disjoint. `rows`: as in
    `correct_expired_windows`.
    """
    raise_unregistered(logic, "slackwater.windows.expired_window_corrections.find_touched_ranges")


@singledispatch
def find_touched_units(logic: CompiledWindow, rows: pl.DataFrame) -> Int64s:
    """Return the state units (`__h`) that late rows may touch, sorted and unique.

    `rows`: as in `correct_expired_windows`.
    """
    raise_unregistered(logic, "slackwater.windows.expired_window_corrections.find_touched_units")


@singledispatch
def correct_expired_windows(
    logic: CompiledWindow,
    rows: pl.DataFrame,
    state: pl.DataFrame,
    stored: pl.DataFrame,
    watermark: int,
    lost: str | None,
) -> ExpiredWindowCorrection:
    """Apply late rows to closed windows.

    Args:
        logic: The window.
        rows: `__kh`, `__ts`, keys and accumulators. For tumbling and hopping windows also `__missed`, the number of
            windows for which each row was late.
        state: All state rows of the `find_touched_units`.
        stored: The results in the `find_touched_ranges`, read from the target: `__kh`, keys, `__start`, `__end`, `__rev` and
            accumulators.
        watermark: The committed watermark (µs).
        lost: Why the stored accumulators cannot be merged with other rows; None if they can.
    """
    raise_unregistered(logic, "slackwater.windows.expired_window_corrections.correct_expired_windows")


# -- tumbling and hopping windows ------------------------------------------------------------------------------------


@find_touched_ranges.register
def _(logic: CompiledPaneWindow, rows: pl.DataFrame) -> pl.DataFrame:
    keys = ["__kh", *logic.key_names]
    index, window = _missed_windows(logic, rows)
    spread = rows.select(keys)[index].with_columns(pl.Series("__low", window), pl.Series("__high", window))
    return spread.unique()


@find_touched_units.register
def _(logic: CompiledPaneWindow, rows: pl.DataFrame) -> Int64s:
    return np.empty(0, dtype=np.int64)  # these windows have left the state completely


def _missed_windows(logic: CompiledPaneWindow, rows: pl.DataFrame) -> tuple[Int64s, Int64s]:
    """Return two arrays, with an element for each window that a row missed: the row's position and the window start."""
    first = pane_windows.first_window_of_pane(logic, pane_windows.pane_start(logic, rows["__ts"].to_numpy()))
    index, nth = repeat_positions(rows["__missed"].to_numpy())
    return index, first[index] + nth * logic.hop_us


@correct_expired_windows.register
def _(
    logic: CompiledPaneWindow,
    rows: pl.DataFrame,
    state: pl.DataFrame,
    stored: pl.DataFrame,
    watermark: int,
    lost: str | None,
) -> ExpiredWindowCorrection:
    index, window = _missed_windows(logic, rows)
    keys, columns = ["__kh", *logic.key_names], ["__kh", *logic.key_names, *logic.accumulators]
    pairs = rows.select(columns)[index].with_columns(pl.Series("__start", window), pl.Series("__at", index))
    refused = np.full(rows.height, None, dtype=object)
    if lost is not None:
        existing = pairs.join(stored, on=[*keys, "__start"], how="semi", nulls_equal=True)
        refused[existing["__at"].to_numpy()] = lost
    why = pl.Series("refused", refused.tolist(), dtype=pl.String)
    pairs = pairs.filter(pl.Series(why.is_null().to_numpy()[index]))
    touched = stored.join(pairs, on=[*keys, "__start"], how="semi", nulls_equal=True)
    versions = pl.concat(
        [
            touched.select(*columns, "__start", pl.col("__rev").alias("__was")),
            pairs.select(*columns, "__start", pl.lit(0, pl.Int64).alias("__was")),
        ]
    )
    if versions.height:
        units = mix_bits(versions["__kh"].to_numpy(), versions["__start"].to_numpy())
        order, heads = order_by_unit(units, versions.select("__start", *logic.key_names))
        versions = versions[order]
        carried = versions.select("__kh", "__start", *logic.key_names)[heads].get_columns()
        revision = pl.Series("__was", np.maximum.reduceat(versions["__was"].to_numpy(), heads))
        versions = logic.merge_runs(versions.select(*logic.accumulators), heads, [*carried, revision])
    end = pl.col("__start") + logic.duration_us
    upserts = versions.with_columns(
        end.alias("__end"),
        (end + logic.allowed_us).alias("__final"),
        (pl.col("__was") + 1).alias("__rev"),
        pl.lit("late").alias("__reason"),
    ).select(logic.emitted_columns)
    return ExpiredWindowCorrection(
        EmitResult(upserts, logic.empty_state(), upserts.clear().select(logic.superseded_columns)), why
    )


# -- sessions --------------------------------------------------------------------------------------------------------


@find_touched_ranges.register
def _(logic: CompiledSessionWindow, rows: pl.DataFrame) -> pl.DataFrame:
    # a touched session begins at most one cap before the row, and the previous one, which may be cut, one more cap
    before, after = 2 * logic.cap_us + 3 * logic.reach_us, logic.cap_us + 2 * logic.reach_us
    low, high = pl.col("__ts").min() - before, pl.col("__ts").max() + after
    return rows.group_by(["__kh", *logic.key_names]).agg(low.alias("__low"), high.alias("__high"))


@find_touched_units.register
def _(logic: CompiledSessionWindow, rows: pl.DataFrame) -> Int64s:
    return distinct_values(rows["__kh"].to_numpy())


@correct_expired_windows.register
def _(
    logic: CompiledSessionWindow,
    rows: pl.DataFrame,
    state: pl.DataFrame,
    stored: pl.DataFrame,
    watermark: int,
    lost: str | None,
) -> ExpiredWindowCorrection:
    """Apply late rows to closed sessions.

    Sessions that have left the state are restored from `stored`, the emitted results. The rows are then ingested and
    emitted as if the window retained every session forever. The floors of expired sessions stay in the state. Rows that
    could be part of a session at the cap are refused. `lost`: why stored results cannot be changed; None if they can.

    state     ─┬─ gone, floors ─────────────────────────────────────────────▶ floors ┐
               └─ open, retained ─┐                                                  ├─▶ state'
    stored ── not in the state ───┼─▶ as if retained forever: ingest  ─▶ emit ─┬─────┘
    rows ── of runs below the cap ┘                                            └─▶ upserts, superseded
    """
    from slackwater.windows import session_ingest  # imported on use, because it imports Numba

    horizon = logic.horizon(watermark)
    retaining = _retain_forever(logic)
    fields = list(retaining.state_schema)
    current = with_revision_columns(mark_emitted(logic, state, watermark), retaining.state_schema).select(fields)
    gone = _is_gone(horizon)
    past, held = current.filter(gone), current.filter(~gone)
    revived = _revive_stored(retaining, held, stored)
    refused = _refusal_reasons(retaining, rows, held, revived, lost)
    accepted = rows.filter(refused.is_null())
    revived = revived.filter(~_may_be_cut(logic))
    ingested = session_ingest.ingest_session_rows(retaining, accepted, pl.concat([held, revived]), watermark).state
    done = session_emission.emit_sessions(retaining, ingested, watermark, watermark)
    final = pl.concat([ingested.filter(~_shares_unit(ingested, done.state)), done.state]).filter(
        pl.col("__kind") != TOMBSTONE
    )
    # sessions that no row touched stay only in the target
    same = ["__kh", *logic.key_names, "__start", "__last", "__rev"]
    idle = revived.join(final, on=same, how="semi", nulls_equal=True)
    final = final.join(idle, on=same, how="anti", nulls_equal=True)
    staying = final.filter(~gone)
    floor = ["__kh", *logic.key_names, "__last"]
    moved = revived.join(idle, on=same, how="anti", nulls_equal=True)
    past = past.filter(_shares_unit(past, ingested)).join(moved, on=floor, how="anti", nulls_equal=True)
    past = pl.concat([past, idle, final.filter(gone)])
    after = _with_floors(
        logic, staying.select(logic.state_schema.keys()), past.select(logic.state_schema.keys()), horizon
    )
    after = _drop_gone(logic, after, watermark)
    before = state.filter(_shares_unit(state, ingested))
    had, has = (count_open_sessions(logic, f, watermark) for f in (before, after))
    dead = (
        before.filter(~_shares_unit(before, after))
        .unique("__h", keep="first")
        .with_columns(pl.lit(TOMBSTONE, pl.Int8).alias("__kind"))
    )
    changed = pl.concat([after, dead.select(logic.state_schema.keys())]).sort("__h", maintain_order=True)
    upserts = done.rows.with_columns((pl.col("__end") + logic.allowed_us).alias("__final"))
    superseded = pl.concat([done.superseded, _emitted_but_open(logic, staying)])
    return ExpiredWindowCorrection(EmitResult(upserts, changed, superseded, has[0] - had[0], has[1] - had[1]), refused)


def _shares_unit(frame: pl.DataFrame, other: pl.DataFrame) -> pl.Series:
    """Return a mask of the state rows whose unit also has rows in the other frame."""
    return pl.Series(is_in_sorted(frame["__h"].to_numpy(), distinct_values(other["__h"].to_numpy())))


def _drop_gone(logic: CompiledSessionWindow, state: pl.DataFrame, watermark: int) -> pl.DataFrame:
    """Merge the fragments of expired sessions, as emission does in every epoch, and drop these sessions."""
    done = session_emission.emit_sessions(logic, state, watermark, watermark)
    return pl.concat([state.filter(~_shares_unit(state, done.state)), done.state.filter(pl.col("__kind") != TOMBSTONE)])


def _emitted_but_open(logic: CompiledSessionWindow, staying: pl.DataFrame) -> pl.DataFrame:
    """Return the results of sessions that are open again. Empty if the state itself records these results."""
    columns = logic.superseded_columns
    if logic.revises:
        return staying.clear().select(columns)
    again = staying.filter(pl.col("__kind").is_in([WHOLE, FRAGMENT]) & (pl.col("__out").list.len() > 0))
    return again.drop("__start").explode("__out").rename({"__out": "__start"}).select(columns)


def _retain_forever(logic: CompiledSessionWindow) -> CompiledSessionWindow:
    """Return the same window with an unlimited allowed lateness."""
    emit = "on_close" if logic.window.emit == "final" else logic.window.emit
    retaining = {"late_data": "reopen", "allowed_lateness_ms": _FOREVER_MS, "emit": emit}
    return replace(logic, window=logic.window.model_copy(update=retaining), gone_us=NEVER, rows_from_us=NEVER)


def _is_gone(horizon: int) -> pl.Expr:
    whole = pl.col("__kind").is_in([WHOLE, EMITTED])
    return (pl.col("__kind") == FLOOR) | (whole & (pl.col("__due") <= horizon))


def _may_be_cut(logic: CompiledSessionWindow) -> pl.Expr:
    """Select sessions that end exactly at the cap.

    The cap may have cut such a session, in which case the time of its last event is unknown.
    """
    return pl.col("__due") - 1 - pl.col("__start") == logic.cap_us


def _revive_stored(retaining: CompiledSessionWindow, held: pl.DataFrame, stored: pl.DataFrame) -> pl.DataFrame:
    """Convert the stored sessions that are missing from the state into state rows, marked as emitted."""
    identity = ["__kh", *retaining.key_names, "__start"]
    emitted_starts = held.select("__kh", *retaining.key_names, "__out").explode("__out").drop_nulls("__out")
    absent = stored.join(emitted_starts.rename({"__out": "__start"}), on=identity, how="anti", nulls_equal=True)
    return absent.with_columns(
        pl.col("__kh").alias("__h"),
        pl.lit(EMITTED, pl.Int8).alias("__kind"),
        (pl.col("__end") - retaining.gap_us).alias("__last"),
        (pl.col("__end") + 1).alias("__due"),
        pl.concat_list("__start").alias("__out"),
    ).select(retaining.state_schema.keys())


def _refusal_reasons(
    retaining: CompiledSessionWindow, rows: pl.DataFrame, held: pl.DataFrame, revived: pl.DataFrame, lost: str | None
) -> pl.Series:
    """Return the reason why each row cannot be applied, or NULL. All rows of a run have the same reason."""
    hidden = ["__kh", "__kind", "__start", "__last", "__due", *retaining.key_names]
    hidden += ["__end"] if retaining.dynamic else []
    cut_at = pl.col("__start") + retaining.cap_us - 1  # the latest event that a cut session can have
    stored = revived.with_columns(pl.when(_may_be_cut(retaining)).then(cut_at).otherwise("__last").alias("__last"))
    fresh = rows.with_columns(
        pl.lit(ROW, pl.Int8).alias("__kind"),
        pl.col("__ts").alias("__start"),
        pl.col("__ts").alias("__last"),
        pl.lit(0, pl.Int64).alias("__due"),
    )
    frame = pl.concat(
        [
            held.select(*hidden, pl.lit(False).alias("__revived"), pl.lit(-1, pl.Int64).alias("__at")),
            stored.select(*hidden, pl.lit(True).alias("__revived"), pl.lit(-1, pl.Int64).alias("__at")),
            fresh.select(
                *hidden, pl.lit(False).alias("__revived"), pl.int_range(pl.len(), dtype=pl.Int64).alias("__at")
            ),
        ]
    )
    if frame.is_empty():
        return pl.Series("refused", [], dtype=pl.String)
    unit = IntervalBatch.from_frame(retaining, frame)
    run = find_runs(unit.key, unit.start, unit.end)
    heads = first_per_key(run)
    span = np.maximum.reduceat(unit.last, heads) - unit.start[heads]
    is_stored = unit.frame["__revived"].to_numpy()
    cut = is_stored & (unit.due - 1 - unit.start == retaining.cap_us)
    capped = (np.logical_or.reduceat(cut, heads) | (span >= retaining.cap_us))[run]
    joined = np.logical_or.reduceat(is_stored, heads)[run]
    row_index = unit.frame["__at"].to_numpy()
    is_row = row_index >= 0
    reasons = np.full(rows.height, None, dtype=object)
    reasons[row_index[is_row & joined]] = lost
    reasons[row_index[is_row & capped]] = CAPPED
    return pl.Series("refused", reasons.tolist(), dtype=pl.String)


def _with_floors(logic: CompiledSessionWindow, staying: pl.DataFrame, past: pl.DataFrame, horizon: int) -> pl.DataFrame:
    """Return complete units: the remaining state rows, and floors of expired sessions that can still make rows late."""
    bare = past.with_columns(pl.lit(FLOOR, pl.Int8).alias("__kind"))
    everything = pl.concat([staying, bare])
    if everything.is_empty():
        return everything
    unit = IntervalBatch.from_frame(logic, everything)
    keys = unit.frame[first_per_key(unit.key)]
    floors = build_floor_rows(logic, keys, unit.floors(logic.reach_us, horizon))
    return pl.concat([unit.frame.filter(pl.col("__kind") != FLOOR), floors]).sort("__h", maintain_order=True)
