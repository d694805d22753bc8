"""Compute the open and retained windows of a state from its rows, with the values that they would emit now.

        horizon          watermark
gone       │   retained      │     open
───────────┴─────────────────┴──────────────▶ closes at
"""

from __future__ import annotations

from functools import singledispatch

import numpy as np
import polars as pl

from slackwater.core.sorted_arrays import sorted_by_key
from slackwater.errors import raise_unregistered
from slackwater.operators.base import Operator
from slackwater.operators.keyed_operator_base import KeyedOperator
from slackwater.operators.timer_state_layout import NO_TIMER
from slackwater.operators.window_operator_base import WindowOperator
from slackwater.operators.window_operators import PaneWindowOperator, SessionWindowOperator
from slackwater.windows import pane_emission, session_emission
from slackwater.windows.compiled_window import METADATA, CompiledWindow, EmitResult
from slackwater.windows.state_layout import DIRTY, EMITTED, EMITTED_FRAGMENT, FAR, FRAGMENT, WHOLE, Int64s

TIMES = pl.Datetime("us", "UTC")
STATE_COLUMNS = ("_status", "_closes_at", "_last_event", "_epoch")


def compute_rows_of_state(logic: KeyedOperator, rows: pl.DataFrame, watermark: int, epoch: int) -> pl.DataFrame:
    """Return the rows of state of a keyed stage that are not due, ordered by key and timer.

    The columns are the keys, the columns of state, `_due_at` (NULL without a timer), `_last_event` and `_epoch`. A
    hidden column of state, `__NAME`, is called `_NAME`. If a name is already used, one more `_` is prepended.

    Args:
        logic: The operator of the stage.
        rows: All rows of one or more keys.
        watermark: The watermark of the stage (µs).
        epoch: The epoch of the commit.
    """
    stored = logic.drop_expired(rows, watermark).sort(*logic.key_names, "__due", maintain_order=True)
    due_at = pl.when(pl.col("__due") < NO_TIMER).then(pl.col("__due").cast(TIMES))
    shown: dict[str, pl.Expr] = {name: pl.col(name) for name in logic.key_names}
    more = {name.replace("__", "_", 1) if name.startswith("__") else name: pl.col(name) for name in logic.accumulators}
    more |= {"_due_at": due_at, "_last_event": pl.col("__last").cast(TIMES), "_epoch": pl.lit(epoch, pl.Int64)}
    for name, column in more.items():
        shown[name if name.casefold() not in map(str.casefold, shown) else f"_{name}"] = column
    return stored.select(column.alias(name) for name, column in shown.items())


def compute_current_windows(logic: WindowOperator, rows: pl.DataFrame, watermark: int, epoch: int) -> pl.DataFrame:
    """Return the open and retained windows as they would be emitted if no more rows arrived.

    The columns are the output columns without the emission metadata, then `_status`, `_closes_at`, `_last_event`
    (sessions only) and `_epoch`. See `state_column_names` for their exact names.

    Args:
        logic: The operator of the stage.
        rows: All state rows of one or more keys.
        watermark: The watermark of the stage (µs).
        epoch: The epoch of the commit.
    """
    windows = _assemble(logic, rows, watermark)
    closes = windows["__closes"].to_numpy()
    in_state = closes > logic.horizon(watermark)
    if not in_state.all():
        windows, closes = windows[np.flatnonzero(in_state)], closes[in_state]
    nothing = windows.clear().select("__kh", *logic.key_names, "__start", "__rev")
    output = logic.output_frame(EmitResult(windows, nothing, nothing))
    hidden = {"__reason", *(f.name for f in METADATA if logic.window.emit_metadata)}
    columns = [c for c in output.get_columns() if c.name not in hidden]
    names = state_column_names(logic)
    columns.append(pl.Series(names["_status"], np.where(closes > watermark, "open", "retained"), dtype=pl.String))
    columns.append(windows["__closes"].cast(TIMES).alias(names["_closes_at"]))
    if "__last" in windows.columns:
        columns.append(windows["__last"].cast(TIMES).alias(names["_last_event"]))
    columns.append(pl.Series(names["_epoch"], np.full(windows.height, epoch), dtype=pl.Int64))
    return pl.DataFrame(columns)


def state_column_names(logic: CompiledWindow) -> dict[str, str]:
    """Return the names of the columns that `compute_current_windows` adds to the output, by their usual name.

    If the output already has a column with the usual name, one more `_` is prepended.
    """
    window = logic.window
    of_user = {n.casefold() for n in (*logic.key_names, *(str(a.as_) for a in window.aggregations))}
    of_user |= {window.window_start_column.casefold(), window.window_end_column.casefold()}
    return {name: f"_{name}" if name in of_user else name for name in STATE_COLUMNS}


@singledispatch
def _assemble(operator: Operator, rows: pl.DataFrame, watermark: int) -> pl.DataFrame:
    """Return the windows of state rows as they would be emitted, with two more columns.

    `__closes` is the watermark that closes a window (µs), and `__last` is the last event of a session (µs).
    """
    raise_unregistered(operator, "slackwater.query.open_windows.compute_current_windows")


@_assemble.register
def _(logic: PaneWindowOperator, rows: pl.DataFrame, watermark: int) -> pl.DataFrame:
    """Merge panes into windows."""
    if logic.updates:
        no_output = pl.lit([], pl.List(pl.Int64)).alias("__out")  # otherwise only changed windows are emitted
        rows = rows.with_columns(pl.lit(DIRTY, pl.Int8).alias("__kind"), no_output)
    windows = pane_emission.emit_windows(logic, rows, logic.horizon(watermark), FAR, True).rows
    return windows.with_columns(pl.col("__end").alias("__closes"))


@_assemble.register
def _(logic: SessionWindowOperator, rows: pl.DataFrame, watermark: int) -> pl.DataFrame:
    """Merge fragments into sessions. Whole sessions are not merged."""
    kind = rows["__kind"].to_numpy()
    whole_sessions = _whole_sessions(logic, _select_rows(rows, (kind == WHOLE) | (kind == EMITTED)))
    fragments = _select_rows(rows, (kind == FRAGMENT) | (kind == EMITTED_FRAGMENT))
    if fragments.is_empty():
        return whole_sessions
    fragments = fragments.with_columns(pl.lit(FRAGMENT, pl.Int8).alias("__kind"))
    sessions = session_emission.emit_sessions(logic, fragments, logic.horizon(watermark), FAR, True).rows
    cut = (sessions["__reason"] == "cap").to_numpy()
    start, end = sessions["__start"].to_numpy(), sessions["__end"].to_numpy()
    sessions = sessions.with_columns(
        pl.Series("__closes", np.where(cut, start + logic.cap_us, end + 1)),
        pl.Series("__last", _last_events(logic, sessions, fragments)),
    )
    return pl.concat([whole_sessions, sessions.select(whole_sessions.columns)])


def _whole_sessions(logic: SessionWindowOperator, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the sessions of rows that each contain a whole session, with `__closes` and `__last`."""
    end = pl.col("__end") if logic.dynamic else pl.col("__last") + logic.gap_us
    return rows.select(
        "__kh",
        *logic.key_names,
        "__start",
        end.alias("__end"),
        (end + logic.allowed_us).alias("__final"),
        pl.lit(1, pl.Int64).alias("__rev"),
        pl.lit("close").alias("__reason"),
        *logic.accumulators,
        (end + 1).alias("__closes"),
        "__last",
    )


def _select_rows(rows: pl.DataFrame, mask: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> pl.DataFrame:
    return rows if mask.all() else rows[np.flatnonzero(mask)]


def _last_events(logic: SessionWindowOperator, sessions: pl.DataFrame, fragments: pl.DataFrame) -> Int64s:
    """Return the time of the last event of each session (µs), from the fragments that were merged into the session.

    In the order of key and start, the fragments of a session come directly after the session.
    """
    columns = ["__kh", *logic.key_names, "__start"]
    place = pl.Series("__session", np.arange(sessions.height), dtype=pl.Int64)
    heads = sessions.select(columns).with_columns(place, pl.lit(None, pl.Int64).alias("__last"))
    parts = fragments.select(*columns, pl.lit(None, pl.Int64).alias("__session"), "__last")
    both, _ = sorted_by_key(pl.concat([heads, parts]), logic.key_names, last="__start")
    last = both.with_columns(pl.col("__session").forward_fill()).group_by("__session").agg(pl.col("__last").max())
    last_us: Int64s = last.sort("__session")["__last"].to_numpy()
    return last_us
