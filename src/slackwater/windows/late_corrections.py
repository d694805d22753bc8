"""Late rows applied once more, to windows that are gone from the state: a correction of what the target holds.

    target     [0 ──── 5]      [9 ── 12]       sessions that left the state, gap 3
    state                                  [16 ── …
    row                    ● 7                 joins both: upsert [0 ── 12], supersede [9 ── 12]
    row                             ● 14       joins the second one and the open one: the open one begins at 9 now

For sessions, stored ones come back to life as retained ones do under `reopen`, rows are folded in as ever, and what is
gone by the window's own reckoning leaves again. A window of panes was missed as a whole: its stored row is merged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import singledispatch

import numpy as np
import polars as pl

from slackwater.core.arrays import distinct_values, in_sorted
from slackwater.core.dispatch import unregistered
from slackwater.windows import panes, session_emission, sessions
from slackwater.windows.intervals import IntervalBatch, SessionLogic, first_of_each, mark_emitted, runs_of
from slackwater.windows.key_order import sorted_by_key
from slackwater.windows.logic import WindowLogic
from slackwater.windows.panes import PaneLogic
from slackwater.windows.results import EmitResult
from slackwater.windows.state_rows import (
    EMITTED,
    FLOOR,
    FRAGMENT,
    NEVER,
    ROW,
    TOMBSTONE,
    WHOLE,
    Int64s,
    without_revisions,
)

_FOR_EVER_MS = 10**15

CAPPED = "its session reaches max_session_duration, or was cut there: where the cuts would lie now is not stored"


@dataclass(frozen=True)
class LateCorrection:
    """What replayed rows change. `refused`: per row why it cannot be applied, NULL where it was; then nothing of it was.

    `done.state` holds all rows of the units to replace; `done.groups`, `done.windows` how their numbers change.
    """

    done: EmitResult
    refused: pl.Series


@singledispatch
def touched_ranges(logic: WindowLogic, rows: pl.DataFrame) -> pl.DataFrame:
    """Which stored windows rows may touch: `__kh`, keys, `__low` and `__high` (µs, of window starts, inclusive).

    Rows as in `repair`. Disjoint for equal keys.
    """
    unregistered(logic, "slackwater.windows.late_corrections.touched_ranges")


@singledispatch
def touched_units(logic: WindowLogic, rows: pl.DataFrame) -> Int64s:
    """The units of the state that rows may touch; sorted, unique."""
    unregistered(logic, "slackwater.windows.late_corrections.touched_units")


@singledispatch
def correct_windows(
    logic: WindowLogic, rows: pl.DataFrame, state: pl.DataFrame, stored: pl.DataFrame, watermark: int, lost: str | None
) -> LateCorrection:
    """Apply late rows (`__kh`, `__ts`, keys, accumulators; panes: `__missed`, how many windows each was late for).

    `state`: all rows of the `units`. `stored`: the target's rows in `ranges`: `__kh`, keys, `__start`, `__end`, `__rev`,
    accumulators. `lost`: why these cannot be merged; None if they can.
    """
    unregistered(logic, "slackwater.windows.late_corrections.correct_windows")


# -- tumbling and hopping windows ------------------------------------------------------------------------------------


@touched_ranges.register
def _(logic: PaneLogic, rows: pl.DataFrame) -> pl.DataFrame:
    keys = ["__kh", *logic.key_names]
    index, window = _missed(logic, rows)
    spread = rows.select(keys)[index].with_columns(pl.Series("__low", window), pl.Series("__high", window))
    return spread.unique()


@touched_units.register
def _(logic: PaneLogic, rows: pl.DataFrame) -> Int64s:
    return np.empty(0, dtype=np.int64)  # they were missed as a whole


def _missed(logic: PaneLogic, rows: pl.DataFrame) -> tuple[Int64s, Int64s]:
    """(row, window start) of every window that each row was late for."""
    first = panes.first_window(logic, panes.pane_start(logic, rows["__ts"].to_numpy()))
    count = rows["__missed"].to_numpy()
    index = np.repeat(np.arange(len(first)), count)
    nth = np.arange(len(index)) - np.repeat(np.cumsum(count) - count, count)
    return index, first[index] + nth * logic.hop_us


@correct_windows.register
def _(
    logic: PaneLogic, rows: pl.DataFrame, state: pl.DataFrame, stored: pl.DataFrame, watermark: int, lost: str | None
) -> LateCorrection:
    index, window = _missed(logic, rows)
    keys, kept = ["__kh", *logic.key_names], ["__kh", *logic.key_names, *logic.accumulators]
    pairs = rows.select(kept)[index].with_columns(pl.Series("__start", window), pl.Series("__at", index))
    refused = np.full(rows.height, None, dtype=object)
    if lost is not None:
        there = pairs.join(stored, on=[*keys, "__start"], how="semi", nulls_equal=True)
        refused[there["__at"].to_numpy()] = lost
    why = pl.Series("refused", refused.tolist(), dtype=pl.String)
    pairs = pairs.filter(pl.Series(why.is_null().to_numpy()[index]))
    touched = stored.join(pairs, on=[*keys, "__start"], how="semi", nulls_equal=True)
    both = pl.concat(
        [
            touched.select(*kept, "__start", pl.col("__rev").alias("__was")),
            pairs.select(*kept, "__start", pl.lit(0, pl.Int64).alias("__was")),
        ]
    )
    if both.height:
        both, key = sorted_by_key(both, logic.key_names, "__start")
        new = (np.diff(key, prepend=-1) != 0) | (np.diff(both["__start"].to_numpy(), prepend=0) != 0)
        carried = [pl.col("__kh").first(), pl.col("__start").first(), pl.col("__was").max()]
        both = logic.merge_groups(both, np.cumsum(new), carried)
    end = pl.col("__start") + logic.duration_us
    found = both.with_columns(
        end.alias("__end"),
        (end + logic.allowed_us).alias("__final"),
        (pl.col("__was") + 1).alias("__rev"),
        pl.lit("late").alias("__reason"),
    ).select(*keys, "__start", "__end", "__final", "__rev", "__reason", *logic.accumulators)
    return LateCorrection(EmitResult(found, logic.empty_state(), found.clear().select(*keys, "__start", "__rev")), why)


# -- sessions --------------------------------------------------------------------------------------------------------


@touched_ranges.register
def _(logic: SessionLogic, rows: pl.DataFrame) -> pl.DataFrame:
    # a session touched begins at most a cap before the row, and so does the one before it that may have been cut
    before, after = 2 * logic.cap_us + 3 * logic.reach_us, logic.cap_us + 2 * logic.reach_us
    low, high = pl.col("__ts").min() - before, pl.col("__ts").max() + after
    return rows.group_by(["__kh", *logic.key_names]).agg(low.alias("__low"), high.alias("__high"))


@touched_units.register
def _(logic: SessionLogic, rows: pl.DataFrame) -> Int64s:
    return distinct_values(rows["__kh"].to_numpy())


@correct_windows.register
def _(
    logic: SessionLogic, rows: pl.DataFrame, state: pl.DataFrame, stored: pl.DataFrame, watermark: int, lost: str | None
) -> LateCorrection:
    """
    state     ─┬─ gone, floors ─────────────────────────────────────────────▶ floors ┐
               └─ open, retained ─┐                                                  ├─▶ state'
    stored ── not in the state ───┼─▶ as if retained for ever: ingest ─▶ emit ─┬─────┘
    rows ── of runs below the cap ┘                                            └─▶ upserts, superseded
    """
    horizon = logic.horizon(watermark)
    keeping = _keeping(logic)
    fields = list(keeping.state_schema)
    known = without_revisions(mark_emitted(logic, state, watermark), keeping.state_schema).select(fields)
    gone = _is_gone(horizon)
    past, held = known.filter(gone), known.filter(~gone)
    revived = _revived(keeping, held, stored)
    refused = _refused(keeping, rows, held, revived, lost)
    accepted = rows.filter(refused.is_null())
    revived = revived.filter(~_may_be_cut(logic))
    found = sessions.ingest_sessions(keeping, accepted, pl.concat([held, revived]), watermark).state
    done = session_emission.emit_sessions(keeping, found, watermark, watermark)
    settled = pl.Series(in_sorted(found["__h"].to_numpy(), distinct_values(done.state["__h"].to_numpy())))
    final = pl.concat([found.filter(~settled), done.state]).filter(pl.col("__kind") != TOMBSTONE)
    # those that nothing touched were in the target only, and stay there
    same = ["__kh", *logic.key_names, "__start", "__last", "__rev"]
    idle = revived.join(final, on=same, how="semi", nulls_equal=True)
    final = final.join(idle, on=same, how="anti", nulls_equal=True)
    staying = final.filter(~gone)
    floor = ["__kh", *logic.key_names, "__last"]
    moved = revived.join(idle, on=same, how="anti", nulls_equal=True)
    past = past.filter(pl.Series(in_sorted(past["__h"].to_numpy(), distinct_values(found["__h"].to_numpy()))))
    past = past.join(moved, on=floor, how="anti", nulls_equal=True)
    past = pl.concat([past, idle, final.filter(gone)])
    after = _with_floors(
        logic, staying.select(logic.state_schema.keys()), past.select(logic.state_schema.keys()), horizon
    )
    after = _settled(logic, after, watermark)
    unit = distinct_values(found["__h"].to_numpy())
    before = state.filter(pl.Series(in_sorted(state["__h"].to_numpy(), unit)))
    had, has = (sessions.open_groups(logic, f, watermark) for f in (before, after))
    emptied = before.filter(~pl.Series(in_sorted(before["__h"].to_numpy(), distinct_values(after["__h"].to_numpy()))))
    dead = emptied.unique("__h", keep="first").with_columns(pl.lit(TOMBSTONE, pl.Int8).alias("__kind"))
    changed = pl.concat([after, dead.select(logic.state_schema.keys())]).sort("__h", maintain_order=True)
    upserts = done.rows.with_columns((pl.col("__end") + logic.allowed_us).alias("__final"))
    superseded = pl.concat([done.superseded, _open_again(logic, staying)])
    return LateCorrection(EmitResult(upserts, changed, superseded, has[0] - had[0], has[1] - had[1]), refused)


def _settled(logic: SessionLogic, state: pl.DataFrame, watermark: int) -> pl.DataFrame:
    """Without the sessions that are gone though they are still fragments: as in any epoch, they are put together first."""
    done = session_emission.emit_sessions(logic, state, watermark, watermark)
    visited = pl.Series(in_sorted(state["__h"].to_numpy(), distinct_values(done.state["__h"].to_numpy())))
    return pl.concat([state.filter(~visited), done.state.filter(pl.col("__kind") != TOMBSTONE)])


def _open_again(logic: SessionLogic, staying: pl.DataFrame) -> pl.DataFrame:
    """What the target holds of sessions that are open now, where the state does not remember it until they close."""
    columns = ["__kh", *logic.key_names, "__start", "__rev"]
    if logic.revises:
        return staying.clear().select(columns)
    again = staying.filter(pl.col("__kind").is_in([WHOLE, FRAGMENT]) & (pl.col("__out").list.len() > 0))
    return again.drop("__start").explode("__out").rename({"__out": "__start"}).select(columns)


def _keeping(logic: SessionLogic) -> SessionLogic:
    """The same window, but sessions are retained for ever."""
    emit = "on_close" if logic.window.emit == "final" else logic.window.emit
    retaining = {"late_data": "reopen", "allowed_lateness_ms": _FOR_EVER_MS, "emit": emit}
    return replace(logic, window=logic.window.model_copy(update=retaining), gone_us=NEVER, rows_from_us=NEVER)


def _is_gone(horizon: int) -> pl.Expr:
    whole = pl.col("__kind").is_in([WHOLE, EMITTED])
    return (pl.col("__kind") == FLOOR) | (whole & (pl.col("__due") <= horizon))


def _may_be_cut(logic: SessionLogic) -> pl.Expr:
    """Of stored sessions: one that ends at the cap may have been cut there; its last event is not known then."""
    return pl.col("__due") - 1 - pl.col("__start") == logic.cap_us


def _revived(keeping: SessionLogic, held: pl.DataFrame, stored: pl.DataFrame) -> pl.DataFrame:
    """Stored sessions that are not in the state, as state rows that the target holds as they stand."""
    identity = ["__kh", *keeping.key_names, "__start"]
    known = held.select("__kh", *keeping.key_names, "__out").explode("__out").drop_nulls("__out")
    absent = stored.join(known.rename({"__out": "__start"}), on=identity, how="anti", nulls_equal=True)
    return absent.with_columns(
        pl.col("__kh").alias("__h"),
        pl.lit(EMITTED, pl.Int8).alias("__kind"),
        (pl.col("__end") - keeping.gap_us).alias("__last"),
        (pl.col("__end") + 1).alias("__due"),
        pl.concat_list("__start").alias("__out"),
    ).select(keeping.state_schema.keys())


def _refused(
    keeping: SessionLogic, rows: pl.DataFrame, held: pl.DataFrame, revived: pl.DataFrame, lost: str | None
) -> pl.Series:
    """Per row why it cannot be applied: by what else is in its run (all that is joined by the gap)."""
    hidden = ["__kh", "__kind", "__start", "__last", "__due", *keeping.key_names]
    hidden += ["__end"] if keeping.dynamic else []
    cut_at = pl.col("__start") + keeping.cap_us - 1  # as far as one that was cut can reach
    stored = revived.with_columns(pl.when(_may_be_cut(keeping)).then(cut_at).otherwise("__last").alias("__last"))
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
    unit = IntervalBatch.of(keeping, frame)
    run, _ = runs_of(keeping, unit)
    heads = first_of_each(run)
    span = np.maximum.reduceat(unit.last, heads) - unit.start[heads]
    is_stored = unit.frame["__revived"].to_numpy()
    cut = is_stored & (unit.due - 1 - unit.start == keeping.cap_us)
    capped = (np.logical_or.reduceat(cut, heads) | (span >= keeping.cap_us))[run]
    joined = np.logical_or.reduceat(is_stored, heads)[run]
    at = unit.frame["__at"].to_numpy()
    is_row = at >= 0
    found = np.full(rows.height, None, dtype=object)
    found[at[is_row & joined]] = lost
    found[at[is_row & capped]] = CAPPED
    return pl.Series("refused", found.tolist(), dtype=pl.String)


def _with_floors(logic: SessionLogic, staying: pl.DataFrame, past: pl.DataFrame, horizon: int) -> pl.DataFrame:
    """State rows of whole units: what stays, and the floors that what is gone leaves where they still count."""
    bare = past.with_columns(pl.lit(FLOOR, pl.Int8).alias("__kind"))
    everything = pl.concat([staying, bare])
    if everything.is_empty():
        return everything
    unit = IntervalBatch.of(logic, everything)
    floors = sessions.floor_rows(logic, unit.frame, unit.key, unit.floors(logic.reach_us, horizon))
    return pl.concat([unit.frame.filter(pl.col("__kind") != FLOOR), floors]).sort("__h", maintain_order=True)


__all__ = ["CAPPED", "LateCorrection", "correct_windows", "touched_ranges", "touched_units"]
