"""Emission of tumbling and hopping windows, which are merged from their panes when they close or change."""

from __future__ import annotations

import numpy as np
import polars as pl

from slackwater.core.hashing import mix_bits
from slackwater.core.sorted_arrays import distinct_values, is_in_sorted, order_by_unit, repeat_positions
from slackwater.windows.compiled_window import EmitResult
from slackwater.windows.pane_windows import (
    CompiledPaneWindow,
    first_window_of_pane,
    is_overlapping,
    last_closed_window,
    last_window_of_pane,
    pane_us,
    read_revisions,
    write_revisions,
)
from slackwater.windows.state_layout import CLEAN, DIRTY, Int64s


def sibling_units(logic: CompiledPaneWindow, panes: pl.DataFrame, since: int, watermark: int) -> Int64s:
    """Return the units of all panes in the windows that contain a DIRTY pane, sorted and unique.

    The result is empty for tumbling windows, which consist of one pane.
    """
    dirty = panes.filter(pl.col("__kind") == DIRTY)
    if logic.hop_us == logic.duration_us or dirty.is_empty():
        return np.empty(0, dtype=np.int64)
    pane = dirty["__start"].to_numpy()
    low = np.maximum(first_window_of_pane(logic, pane), last_closed_window(logic, logic.horizon(since)) + logic.hop_us)
    high = last_window_of_pane(logic, pane) + logic.duration_us
    if not logic.updates:
        high = np.minimum(high, last_closed_window(logic, watermark) + logic.duration_us)
    index, starts = _expand(low, high - pane_us(logic), pane_us(logic))
    return distinct_values(mix_bits(dirty["__kh"].to_numpy()[index], starts))


def _expand(low: Int64s, high: Int64s, step: int) -> tuple[Int64s, Int64s]:
    """List the values from `low` to `high` of each row, in increments of `step`. Return row indices and values."""
    index, nth = repeat_positions(np.clip((high - low) // step + 1, 0, None))
    return index, low[index] + nth * step


def emit_windows(
    logic: CompiledPaneWindow, panes: pl.DataFrame, since: int, watermark: int, early: bool = False
) -> EmitResult:
    """Merge panes into the windows to emit as the watermark advances from `since` to `watermark`.

    With `early` (emit = "updates"), changed open windows are emitted as well.

    window 60, hop 20, allowed lateness 30      since  watermark
    [0 ─────────── 60)                          │ 62   │ 85       closed before: emitted if any pane is DIRTY
         [20 ─────────── 80)                    │      │          closes in this epoch: emitted
              [40 ─────────── 100)              │      │          open: with `early`, emitted if any pane is DIRTY
    """
    kinds = panes["__kind"].to_numpy()
    any_dirty = bool((kinds == DIRTY).any())
    pane = panes["__start"].to_numpy()
    closed, now = last_closed_window(logic, since), last_closed_window(logic, watermark)
    oldest = last_closed_window(logic, logic.horizon(since)) if any_dirty else closed
    low = np.maximum(first_window_of_pane(logic, pane), oldest + logic.hop_us)
    high = (
        last_window_of_pane(logic, pane)
        if logic.updates and early
        else np.minimum(last_window_of_pane(logic, pane), now)
    )
    index, window = _expand(low, high, logic.hop_us)
    spread = logic.add_revision_columns(panes).select(
        "__kh", "__kind", *logic.revisions, *logic.key_names, *logic.accumulators
    )
    spread = spread[index].with_columns(pl.Series("__start", window), pl.Series("__end", window + logic.duration_us))
    if logic.revises:
        spread = spread.with_columns((pl.col("__kind") == DIRTY).alias("__changed"))
        if is_overlapping(logic):
            spread = _with_notes(logic, panes, spread, index)
    if is_overlapping(logic):
        spread = _merge_windows(logic, spread)
    if logic.revises:
        before = pl.col("__start") <= closed
        spread = spread.filter(pl.col("__changed") if logic.updates else pl.col("__changed") | ~before)
        uncounted = pl.lit(0, pl.Int64) if logic.updates else before.cast(pl.Int64)
        spread = spread.with_columns((pl.col("__rev") + uncounted + 1).alias("__rev"))
    rows = spread.with_columns(
        (pl.col("__end") + logic.allowed_us).alias("__final"),
        *([] if logic.revises else [pl.lit(1, pl.Int64).alias("__rev")]),
        pl.when(pl.col("__start") > now)
        .then(pl.lit("update"))
        .otherwise(pl.when(pl.col("__start") > closed).then(pl.lit("close")).otherwise(pl.lit("late")))
        .alias("__reason"),
    ).select(logic.emitted_columns)
    state = _record_emissions(logic, panes, rows, watermark, early) if any_dirty else logic.empty_state()
    return EmitResult(rows, state, rows.clear().select(logic.superseded_columns))


def emit_standalone_windows(logic: CompiledPaneWindow, rows: pl.DataFrame, watermark: int) -> pl.DataFrame:
    """Convert rows to separate results with the reason "standalone", for each of their windows that has left the state.

    `rows` has the form that `ingest_panes` takes.
    """
    pane = rows["__start"].to_numpy()
    gone = np.minimum(last_window_of_pane(logic, pane), last_closed_window(logic, logic.horizon(watermark)))
    index, window = _expand(first_window_of_pane(logic, pane), gone, logic.hop_us)
    spread = rows.select("__kh", *logic.key_names, *logic.accumulators)[index]
    spread = spread.with_columns(pl.Series("__start", window), pl.Series("__end", window + logic.duration_us))
    return _merge_windows(logic, spread).with_columns(
        pl.col("__end").alias("__final"),
        pl.lit(1, pl.Int64).alias("__rev"),
        pl.lit("standalone").alias("__reason"),
    )


def _merge_windows(logic: CompiledPaneWindow, spread: pl.DataFrame) -> pl.DataFrame:
    """Merge panes by key and window. `spread` has one row per pane and window.

    The `__changed` of a window is true if it is true for any of its panes.
    """
    if spread.is_empty():
        return spread
    groups = spread.select("__start", *logic.key_names)
    order, heads = order_by_unit(mix_bits(spread["__kh"].to_numpy(), spread["__start"].to_numpy()), groups)
    carried = list(spread.select("__kh", "__start", "__end", *logic.key_names)[order[heads]])
    if "__changed" in spread.columns:
        changed = np.logical_or.reduceat(spread["__changed"].to_numpy()[order], heads)
        carried.append(pl.Series("__changed", changed))
    noted = [c for c in logic.revisions if c in spread.columns]
    return logic.merge_runs(spread.select(*noted, *logic.accumulators)[order], heads, carried)


def _with_notes(logic: CompiledPaneWindow, panes: pl.DataFrame, spread: pl.DataFrame, index: Int64s) -> pl.DataFrame:
    """Set `__rev` and `__changed` from the panes' notes.

    `spread` has one row per pane and window, and `index` has the position in `panes` of each row's pane.
    """
    notes = read_revisions(panes, first_window_of_pane(logic, panes["__start"].to_numpy()), logic.hop_us)
    spread = spread.with_columns(pl.lit([], pl.List(pl.Int64)).alias("__out"))
    if notes.is_empty():
        return spread
    pairs = pl.DataFrame({"__row": index, "__start": spread["__start"]})
    matched = pairs.join(notes, on=["__row", "__start"], how="left", maintain_order="left")
    return spread.with_columns(
        matched["__rev"].fill_null(spread["__rev"]),
        (spread["__changed"] & ~matched["__holds"].fill_null(False)).alias("__changed"),
    )


def _record_emissions(
    logic: CompiledPaneWindow, panes: pl.DataFrame, rows: pl.DataFrame, watermark: int, early: bool
) -> pl.DataFrame:
    """Return the new rows of the units with DIRTY panes. A pane stays DIRTY until all its windows are emitted."""
    hashes = panes["__h"].to_numpy()
    units = panes.filter(pl.Series(is_in_sorted(hashes, distinct_values(hashes[panes["__kind"].to_numpy() == DIRTY]))))
    pane, dirty = units["__start"].to_numpy(), units["__kind"].to_numpy() == DIRTY
    first, closed = first_window_of_pane(logic, pane), last_closed_window(logic, watermark)
    waits = logic.updates and not early
    still = (last_window_of_pane(logic, pane) > closed) if waits else np.zeros(len(pane), dtype=bool)
    index, window = _expand(first, last_window_of_pane(logic, pane), logic.hop_us)
    keys = ["__kh", *logic.key_names]
    of_pane = units.select(keys)[index].with_columns(pl.Series("__row", index), pl.Series("__start", window))
    emissions = of_pane.filter(pl.Series(dirty[index])).join(
        rows.select(*keys, "__start", pl.col("__rev") - (0 if logic.updates else 1)),
        on=[*keys, "__start"],
        nulls_equal=True,
    )
    if is_overlapping(logic):
        gone = last_closed_window(logic, logic.horizon(watermark))
        notes = read_revisions(units, first, logic.hop_us)
        notes = pl.concat([notes, emissions.select("__row", "__start", "__rev", pl.lit(True).alias("__holds"))])
        units = write_revisions(units, notes.filter(pl.col("__start") > gone), first, logic.hop_us)
    else:
        rev = units["__rev"].to_numpy().copy()
        rev[emissions["__row"].to_numpy()] = emissions["__rev"].to_numpy()
        units = units.with_columns(pl.Series("__rev", rev))
    kind = np.where(dirty & still, DIRTY, CLEAN)
    updated = units.with_columns(pl.Series("__kind", kind, dtype=pl.Int8))
    return updated.select(logic.state_schema.keys()).sort("__h", maintain_order=True)
