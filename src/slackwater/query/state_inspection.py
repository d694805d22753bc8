"""Inspect a state without Spark, even during a run: operators, a key's rows, and the next windows to close."""

from __future__ import annotations

import datetime as dt
import decimal
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import singledispatch
from typing import Any

import numpy as np
import polars as pl

from slackwater.config.error_text import suggest_or_list_words
from slackwater.config.pipeline import Pipeline
from slackwater.core.hashing import key_hash, mix_bits, shard_of
from slackwater.core.humanize import mismatch
from slackwater.core.schema import INTEGERS, Field
from slackwater.core.sorted_arrays import Int64s, distinct_values
from slackwater.errors import StartError, StateError, Topic, raise_unregistered
from slackwater.evolution.pipeline_from_state import restore_operator, stored_columns, with_stored_accumulators
from slackwater.operators.base import Operator
from slackwater.operators.keyed_operator_base import KeyedOperator
from slackwater.operators.registry import compile_window
from slackwater.operators.timer_state_layout import NO_TIMER
from slackwater.operators.window_operator_base import WindowOperator
from slackwater.operators.window_operators import PaneWindowOperator, SessionWindowOperator
from slackwater.state.commit import Commit, StageState
from slackwater.state.protocol import Snapshot
from slackwater.windows import pane_emission, session_emission
from slackwater.windows.aggregations import normalize_columns
from slackwater.windows.state_layout import (
    CLEAN,
    DIRTY,
    EMITTED,
    EMITTED_FRAGMENT,
    FAR,
    FRAGMENT,
    WHOLE,
    DueRowFilter,
    KeyedStateLayout,
)


def rebuild_operator(pipeline: Pipeline, commit: Commit) -> Operator:
    """Return the operator that wrote a commit of one stage (see `query.state_locator.narrow_commit`).

    If the state does not describe its window, the window from the config is used, with the column types from the
    fingerprint. Raises StateError if one of these types is unknown.

    `pipeline`: a config with only this stage, which can continue the state.
    """
    state, window = commit.stages[0], pipeline.transform.window
    if window is None or state.described:
        return restore_operator(commit)
    columns = stored_columns(state, window)
    unknown = [c for a in window.aggregations if (c := a.column) and c not in columns]
    if unknown:
        raise StateError(
            f"{pipeline.name}: the state in epoch {commit.epoch} does not describe its window, and the types of the columns "
            f"{', '.join(unknown)} are unknown; change the config back, or start the pipeline once",
            Topic.STATE_OF_OTHER_CONFIG,
        )
    return with_stored_accumulators(compile_window(pipeline, columns), state)


# -- one key ---------------------------------------------------------------------------------------------------------


Texts = Sequence[str] | Mapping[str, str | None]


def parse_key(logic: KeyedStateLayout, texts: Texts, option: str = "key") -> pl.DataFrame:
    """Parse a key into a one-row frame with the key columns.

    Args:
        logic: The operator, which defines the key columns.
        texts: Strings such as `name=value` or `name=value,name=value`, where a name without a value means NULL. In a
            mapping from names to values, a value can contain any character.
        option: The name of the argument in messages.

    Raises StartError if a key column is missing, a column is unknown, or a value has the wrong type.
    """
    names = logic.key_names
    if not names:
        problem = f"this window has no group_by, so there are no keys; omit {option}"
        raise StartError(f"{logic.pipeline}: {option}: {problem}", Topic.VALUE)
    following = ",(?=(?:" + "|".join(map(re.escape, names)) + ")(?:=|,|$))"
    values: dict[str, str | None] = {}
    if isinstance(texts, Mapping):
        parts: list[tuple[str, object, str]] = [(n, v is not None, v or "") for n, v in texts.items()]
    else:
        parts = [p.partition("=") for text in texts for p in re.split(following, text)]
    for name, is_value, value in parts:
        if name not in names:
            problem = f'"{name}" is not a key of this window{suggest_or_list_words(name, names)}'
            if not is_value and not isinstance(texts, Mapping):  # a value without its column
                form = ",".join(f"{n}={name if i == 0 else '…'}" for i, n in enumerate(names))
                problem = mismatch(f'"{name}"', f"a column name and a value: {form}")
            raise StartError(f"{logic.pipeline}: {option}: {problem}", Topic.VALUE)
        values[name] = value if is_value else None
    if missing := [n for n in names if n not in values]:
        problem = f'"{missing[0]}" is missing; expected {",".join(f"{n}=…" for n in names)}'
        raise StartError(f"{logic.pipeline}: {option}: {problem}", Topic.VALUE)
    return key_frame(logic, {k.name: _parse_key_value(logic, k, values[k.name]) for k in logic.keys})


def key_frame(logic: KeyedStateLayout, key: Mapping[str, Any]) -> pl.DataFrame:
    """Return a one-row frame with the values of a key. Raises StartError if a value has the wrong type."""
    columns = []
    for k in logic.keys:
        try:
            columns.append(pl.Series(k.name, [_polars_key_value(k, key[k.name])], dtype=k.polars))
        except (TypeError, ValueError, ArithmeticError, pl.exceptions.PolarsError):
            problem = mismatch(repr(key[k.name]), f"a value of type {k.type}")
            raise StartError(f"{logic.pipeline}: key: {k.name}: {problem}", Topic.VALUE) from None
    return normalize_columns(pl.DataFrame(columns or {"": [None]}), list(logic.keys))


_TAKES: Mapping[str, tuple[type, ...]] = {
    "boolean": (bool,),
    "string": (str,),
    "binary": (bytes, bytearray, memoryview),
    "date": (dt.date, str),
    "timestamp": (dt.date, str, int),
    "timestamp_ntz": (dt.date, str, int),
}


def _polars_key_value(field: Field, value: Any) -> Any:
    """Check the value of a key column, and return it for Polars.

    Without this check, Polars would convert True to 1 and 1 to a date, round decimals, and panic on decimals that are
    not numbers. Raises TypeError, ValueError or ArithmeticError if the value does not fit the type.
    """
    if value is None:
        return None
    base = field.base
    if base in _TAKES:
        if not isinstance(value, _TAKES[base]) or (isinstance(value, bool) and base != "boolean"):
            raise TypeError
        if base == "date" and isinstance(value, dt.datetime):
            raise TypeError
        return bytes(value) if isinstance(value, bytearray | memoryview) else value
    if isinstance(value, bool | str | bytes):
        raise TypeError
    if base in INTEGERS:
        return operator.index(value)  # also accepts integers of NumPy
    if base != "decimal":
        return float(value)
    number = decimal.Decimal(str(value))
    precision, scale = field.decimal
    if not number.is_finite() or number.adjusted() >= precision - scale:
        raise ValueError
    exact = decimal.Context(prec=80, traps=[decimal.Inexact, decimal.InvalidOperation])
    return exact.quantize(number, decimal.Decimal(1).scaleb(-scale))


def _parse_key_value(logic: KeyedStateLayout, field: Field, text: str | None) -> Any:
    """Parse a key value. Times are in ISO 8601 (in UTC by default), and binary values are hexadecimal."""
    if text is None:
        return None
    try:
        if field.base in INTEGERS:
            return int(text)
        if field.base in ("float", "double"):
            return float(text)
        if field.base == "decimal":
            return decimal.Decimal(text)
        if field.base == "boolean":
            return {"true": True, "false": False}[text.lower()]
        if field.base == "binary":
            return bytes.fromhex(text)
        if field.base == "date":
            return dt.date.fromisoformat(text)
        if field.base == "timestamp_ntz":
            return dt.datetime.fromisoformat(text).replace(tzinfo=None)
        if field.base == "timestamp":
            time = dt.datetime.fromisoformat(text)
            return time if time.tzinfo else time.replace(tzinfo=dt.UTC)
    except (ValueError, KeyError, ArithmeticError):
        problem = mismatch(f'"{text}"', f"a value of type {field.type}")
        raise StartError(f"{logic.pipeline}: --key: {field.name}: {problem}", Topic.VALUE) from None
    return text


def read_key_rows(
    snapshot: Snapshot, logic: WindowOperator | KeyedOperator, key: pl.DataFrame, stage: int = 0
) -> pl.DataFrame:
    """Return all state rows of one key.

    Args:
        snapshot: The snapshot to read.
        logic: The operator of the stage.
        key: One row with the key columns, from `parse_key`.
        stage: The index of the stage; -1 for the last stage.
    """
    stages = snapshot.commit.stages
    state = stages[stage]
    hashes = key_hash(key, logic.keys).to_numpy()
    shard = int(shard_of(hashes, state.shards)[0])
    unit_rows = snapshot.reader(shard, logic, stage % len(stages)).units(_unit_hashes(logic, hashes, state))
    same_key = [pl.col(k).eq_missing(key[k][0]) for k in logic.key_names]
    return unit_rows.filter(pl.all_horizontal(same_key)) if same_key else unit_rows


@singledispatch
def _unit_hashes(operator: Operator, key: Int64s, state: StageState) -> Int64s:
    """Return the hashes under which the state stores the rows of a key. `key`: the hash of the key."""
    raise_unregistered(operator, "slackwater.query.state_inspection.read_key_rows")


@_unit_hashes.register
def _(operator: PaneWindowOperator, key: Int64s, state: StageState) -> Int64s:
    starts = np.array(sorted(state.panes), dtype=np.int64)
    return distinct_values(mix_bits(np.repeat(key, len(starts)), starts))


@_unit_hashes.register(SessionWindowOperator)
@_unit_hashes.register(KeyedOperator)
def _(operator: Operator, key: Int64s, state: StageState) -> Int64s:
    return key


# -- open windows ----------------------------------------------------------------------------------------------------


@singledispatch
def list_open_windows(operator: Operator, rows: pl.DataFrame, watermark: int) -> pl.DataFrame:
    """Return the open windows of state rows as they would be emitted if no more rows arrived, in closing order.

    The columns include the keys, `__start`, `__end`, `__reason` (`close` or `cap`), `__closes` (the watermark that
    closes the window), and the accumulators. Times are in microseconds.
    """
    raise_unregistered(operator, "slackwater.query.state_inspection.list_open_windows")


@list_open_windows.register
def _(operator: PaneWindowOperator, rows: pl.DataFrame, watermark: int) -> pl.DataFrame:
    if operator.updates:
        no_output = pl.lit([], pl.List(pl.Int64)).alias("__out")  # otherwise only changed windows are emitted
        rows = _as_not_emitted(rows, {CLEAN: DIRTY}).with_columns(no_output)
    windows = pane_emission.emit_windows(operator, rows, watermark, FAR, True).rows
    return _sort_by_close(operator, windows, pl.col("__end"))


@list_open_windows.register
def _(operator: SessionWindowOperator, rows: pl.DataFrame, watermark: int) -> pl.DataFrame:
    rows = _as_not_emitted(rows, {EMITTED: WHOLE, EMITTED_FRAGMENT: FRAGMENT})
    windows = session_emission.emit_sessions(operator, rows, watermark, FAR, True).rows
    cut, cut_us = pl.col("__reason") == "cap", pl.col("__start") + operator.cap_us
    return _sort_by_close(operator, windows, pl.when(cut).then(cut_us).otherwise(pl.col("__end") + 1))


@list_open_windows.register
def _(operator: KeyedOperator, rows: pl.DataFrame, watermark: int) -> pl.DataFrame:
    """Return the rows of state that wait for a timer."""
    waiting = operator.drop_expired(rows, watermark).filter(pl.col("__due") < NO_TIMER)
    windows = waiting.with_columns(pl.col("__due").alias("__end"), pl.lit("timer").alias("__reason"))
    return _sort_by_close(operator, windows, pl.col("__due"))


def _as_not_emitted(rows: pl.DataFrame, kinds: Mapping[int, int]) -> pl.DataFrame:
    """Mark all state rows as not emitted yet. `kinds`: maps each kind of emitted row to a kind of unemitted row."""
    return rows.with_columns(pl.col("__kind").replace(kinds))


def _sort_by_close(logic: KeyedStateLayout, windows: pl.DataFrame, closes: pl.Expr) -> pl.DataFrame:
    return windows.with_columns(closes.alias("__closes")).sort("__closes", "__start", *logic.key_names)


def find_next_sessions(snapshot: Snapshot, logic: SessionWindowOperator | KeyedOperator, count: int) -> pl.DataFrame:
    """Return the open sessions that close first, or the timers that are due first: at least `count` if enough exist.

    The columns are the columns of `list_open_windows`.

    The function reads a range of close times, which grows until it contains `count` sessions. Therefore, the cost
    depends on `count` and not on the size of the state. If a store can look up the next due times, the range grows by
    a number of rows instead, because very many rows may be due at the same moment.
    """
    state = snapshot.commit.stages[0]
    metas = state.metas
    readers = [snapshot.reader(shard, logic) for shard in range(state.shards)]
    since = state.watermark_us
    if not metas:
        return list_open_windows(logic, logic.empty_state(), since)
    latest, first = max(m.close for m in metas), min(m.first_due for m in metas)
    base, step, row_count = max(since, first - 1), 1000, count
    while True:
        due_times = [r.nearest(since, row_count) for r in readers]
        if any(n is None for n in due_times):
            horizon = base + step
        else:
            first_due = np.sort(np.concatenate([n for n in due_times if n is not None]))[:row_count]
            horizon = int(first_due[-1]) if len(first_due) == row_count else latest
        due = _closing_between(logic, since, horizon)
        units = pl.concat([r.due(due) for r in readers])
        sessions = list_open_windows(logic, units, since).filter(pl.col("__closes") <= horizon)
        if sessions.height >= count or horizon >= latest:
            return sessions
        step, row_count = step * 16, row_count * 16


def _closing_between(logic: SessionWindowOperator | KeyedOperator, since: int, upto: int) -> DueRowFilter:
    """Return the filter for the rows of sessions that close within a range of watermarks (µs).

    It also selects sessions that were emitted early, and all fragments that may be cut before the end of the range.
    """
    span, pending = (since, upto), FAR if logic.updates else upto
    return DueRowFilter(((-FAR, pending),), (span,), (span,), pending_upto=pending, start_before=FAR)


def to_plain_key(row: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the key columns of a row as values that are valid in JSON and printable in a terminal."""

    def printable(value: Any) -> Any:
        if isinstance(value, bytes):
            return value.hex()
        return value if value is None or isinstance(value, bool | int | float | str) else str(value)

    return {n: printable(row[n]) for n in names}
