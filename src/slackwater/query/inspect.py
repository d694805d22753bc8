"""Looking into a state from beside its runner, without Spark: its window, the rows of one key, what closes next."""

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

from slackwater.config.message_format import suggestion_or_list
from slackwater.config.pipeline import Pipeline
from slackwater.core.arrays import Int64s, distinct_values
from slackwater.core.dispatch import unregistered
from slackwater.core.hashing import key_hash, mix, shard_of
from slackwater.core.schema import INTEGERS, Field
from slackwater.errors import StartError, StateError
from slackwater.evolution import commit_from_config
from slackwater.evolution.operator_from_state import step_in
from slackwater.operators.base import Operator
from slackwater.operators.compile import compile_window
from slackwater.operators.panes import PaneOperator
from slackwater.operators.sessions import SessionOperator
from slackwater.operators.window_base import WindowOperator
from slackwater.state.commit import Commit, StageState
from slackwater.state.protocol import Snapshot
from slackwater.windows import pane_emission, session_emission
from slackwater.windows.aggregations import normalize_columns
from slackwater.windows.logic import WindowLogic
from slackwater.windows.state_rows import CLEAN, DIRTY, EMITTED, EMITTED_FRAGMENT, FAR, FRAGMENT, WHOLE, DueQuery


def operator_of(pipeline: Pipeline, commit: Commit) -> Operator:
    """What a commit of one stage (see `query.stages`) was written for, by a config of this stage that can go on with it.

    Where the state does not describe its window, it is the config's, over the columns whose types the fingerprint tells. Raises
    StateError where these are not known.
    """
    state, window = commit.stages[0], pipeline.transform.window
    if window is None or state.described:
        return step_in(commit)
    columns = commit_from_config.columns_of(state, window)
    unknown = [c for a in window.aggregations if (c := a.column) and c not in columns]
    if unknown:
        raise StateError(
            f"{pipeline.name}: the state in epoch {commit.epoch} does not describe its window, and does not know the columns "
            f"{', '.join(unknown)}; change the config back, or start the pipeline once"
        )
    return commit_from_config.with_stored_accumulators(compile_window(pipeline, columns), state)


# -- one key ---------------------------------------------------------------------------------------------------------


Texts = Sequence[str] | Mapping[str, str | None]


def key_of(logic: WindowLogic, texts: Texts, option: str = "key") -> pl.DataFrame:
    """One row with the key columns, from texts `name=value` (several with commas; a name alone: NULL), which `option` gave.

    Or from a mapping of names to values as texts, which may hold any character. Raises StartError.
    """
    names = logic.key_names
    if not names:
        raise StartError(f"{logic.pipeline}: {option}: this window has no group_by, so there are no keys; leave it out")
    following = ",(?=(?:" + "|".join(map(re.escape, names)) + ")(?:=|,|$))"
    values: dict[str, str | None] = {}
    if isinstance(texts, Mapping):
        parts: list[tuple[str, object, str]] = [(n, v is not None, v or "") for n, v in texts.items()]
    else:
        parts = [p.partition("=") for text in texts for p in re.split(following, text)]
    for name, is_value, value in parts:
        if name not in names:
            if not is_value and not isinstance(texts, Mapping):  # a value alone
                form = ",".join(f"{n}={name if i == 0 else '…'}" for i, n in enumerate(names))
                raise StartError(
                    f'{logic.pipeline}: {option}: found "{name}", expected the name of the column too: {form}'
                )
            raise StartError(
                f'{logic.pipeline}: {option}: "{name}" is not a key of this window{suggestion_or_list(name, names)}'
            )
        values[name] = value if is_value else None
    missing = [n for n in names if n not in values]
    if missing:
        raise StartError(
            f'{logic.pipeline}: {option}: "{missing[0]}" is missing; expected {",".join(f"{n}=…" for n in names)}'
        )
    return key_frame(logic, {k.name: _value(logic, k, values[k.name]) for k in logic.keys})


def key_frame(logic: WindowLogic, key: Mapping[str, Any]) -> pl.DataFrame:
    """One row with the key columns, from their values. Raises StartError for a value of another type."""
    columns = []
    for k in logic.keys:
        try:
            columns.append(pl.Series(k.name, [_plain_key(k, key[k.name])], dtype=k.polars))
        except (TypeError, ValueError, ArithmeticError, pl.exceptions.PolarsError):
            raise StartError(
                f"{logic.pipeline}: key: {k.name}: found {key[k.name]!r}, expected a value of type {k.type}"
            ) from None
    return normalize_columns(pl.DataFrame(columns or {"": [None]}), list(logic.keys))


_TAKES: Mapping[str, tuple[type, ...]] = {
    "boolean": (bool,),
    "string": (str,),
    "binary": (bytes, bytearray, memoryview),
    "date": (dt.date, str),
    "timestamp": (dt.date, str, int),
    "timestamp_ntz": (dt.date, str, int),
}


def _plain_key(field: Field, value: Any) -> Any:
    """A value of a key column as Polars takes it without making another one of it. Raises TypeError, ValueError, ArithmeticError.

    Polars makes 1 of True, a day of 1, rounds decimals, and panics at those that are no number.
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
        return operator.index(value)  # NumPy's, too
    if base != "decimal":
        return float(value)
    number = decimal.Decimal(str(value))
    precision, scale = field.decimal
    if not number.is_finite() or number.adjusted() >= precision - scale:
        raise ValueError
    exact = decimal.Context(prec=80, traps=[decimal.Inexact, decimal.InvalidOperation])
    return exact.quantize(number, decimal.Decimal(1).scaleb(-scale))


def _value(logic: WindowLogic, field: Field, text: str | None) -> Any:
    """A value of a key column as people write it: ISO 8601 for times (UTC where no offset is given), binary in hexadecimal."""
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
        raise StartError(
            f'{logic.pipeline}: --key: {field.name}: found "{text}", expected a value of type {field.type}'
        ) from None
    return text


def rows_of(snapshot: Snapshot, logic: WindowOperator, key: pl.DataFrame, stage: int = 0) -> pl.DataFrame:
    """All state rows of one key; `key` as `key_of` gives it; `stage`: whose windows they are, -1 for the last one's."""
    stages = snapshot.commit.stages
    state = stages[stage]
    hashes = key_hash(key, logic.keys).to_numpy()
    shard = int(shard_of(hashes, state.shards)[0])
    unit_rows = snapshot.reader(shard, logic, stage % len(stages)).units(_units(logic, hashes, state))
    same_key = [pl.col(k).eq_missing(key[k][0]) for k in logic.key_names]
    return unit_rows.filter(pl.all_horizontal(same_key)) if same_key else unit_rows


@singledispatch
def _units(operator: Operator, key: Int64s, state: StageState) -> Int64s:
    """The units that may hold rows of a key, by its hash."""
    unregistered(operator, "slackwater.query.inspect.rows_of")


@_units.register
def _(operator: PaneOperator, key: Int64s, state: StageState) -> Int64s:
    starts = np.array(sorted(state.panes), dtype=np.int64)
    return distinct_values(mix(np.repeat(key, len(starts)), starts))


@_units.register
def _(operator: SessionOperator, key: Int64s, state: StageState) -> Int64s:
    return key


# -- open windows ----------------------------------------------------------------------------------------------------


@singledispatch
def open_windows(operator: Operator, rows: pl.DataFrame, watermark: int) -> pl.DataFrame:
    """The open windows that state rows make, as they would be if no row came any more, those that close first first.

    Columns: keys, `__start`, `__end`, `__reason` (`close`, `cap`), `__closes` (the watermark that closes it), accumulators.
    """
    unregistered(operator, "slackwater.query.inspect.open_windows")


@open_windows.register
def _(operator: PaneOperator, rows: pl.DataFrame, watermark: int) -> pl.DataFrame:
    if operator.updates:
        unsaid = pl.lit([], pl.List(pl.Int64)).alias("__out")  # else only what was changed comes out
        rows = _as_not_emitted(rows, {CLEAN: DIRTY}).with_columns(unsaid)
    windows = pane_emission.emit_windows(operator, rows, watermark, FAR, True).rows
    return _by_close(operator, windows, pl.col("__end"))


@open_windows.register
def _(operator: SessionOperator, rows: pl.DataFrame, watermark: int) -> pl.DataFrame:
    rows = _as_not_emitted(rows, {EMITTED: WHOLE, EMITTED_FRAGMENT: FRAGMENT})
    windows = session_emission.emit_sessions(operator, rows, watermark, FAR, True).rows
    cut = pl.col("__reason") == "cap"
    return _by_close(
        operator, windows, pl.when(cut).then(pl.col("__start") + operator.cap_us).otherwise(pl.col("__end") + 1)
    )


def _as_not_emitted(rows: pl.DataFrame, kinds: Mapping[int, int]) -> pl.DataFrame:
    """State rows as if nothing of them had been emitted."""
    return rows.with_columns(pl.col("__kind").replace(kinds))


def _by_close(logic: WindowLogic, windows: pl.DataFrame, closes: pl.Expr) -> pl.DataFrame:
    return windows.with_columns(closes.alias("__closes")).sort("__closes", "__start", *logic.key_names)


def next_sessions(snapshot: Snapshot, logic: SessionOperator, count: int) -> pl.DataFrame:
    """The open sessions that close first, at least `count` if there are so many, as `open_windows` gives them.

    The horizon is widened until they are found, so that the work is about theirs and not that of the whole state: by as many
    rows as are wanted where a store tells when these are due, since very many may be due within a moment.
    """
    state = snapshot.commit.stages[0]
    metas = list(state.metas)
    readers = [snapshot.reader(shard, logic) for shard in range(state.shards)]
    since = state.watermark_us
    if not metas:
        return open_windows(logic, logic.empty_state(), since)
    latest, first = max(m.close for m in metas), min(m.first_due for m in metas)
    base, step, row_count = max(since, first - 1), 1000, count
    while True:
        near = [r.nearest(since, row_count) for r in readers]
        if any(n is None for n in near):
            horizon = base + step
        else:
            soon = np.sort(np.concatenate([n for n in near if n is not None]))[:row_count]
            horizon = int(soon[-1]) if len(soon) == row_count else latest
        due = _closing(logic, since, horizon)
        units = pl.concat([r.due(due) for r in readers])
        sessions = open_windows(logic, units, since).filter(pl.col("__closes") <= horizon)
        if sessions.height >= count or horizon >= latest:
            return sessions
        step, row_count = step * 16, row_count * 16


def _closing(logic: SessionOperator, since: int, upto: int) -> DueQuery:
    """The rows of sessions that close within a span, emitted early or not; of fragments all that may be cut by then."""
    span = (since, upto)
    pending = FAR if logic.updates else upto
    return DueQuery(((-FAR, FAR if logic.updates else upto),), (span,), (span,), pending_upto=pending, start_before=FAR)


def plain_row(row: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Key columns of a row as values that JSON and a terminal can show."""

    def shown(value: Any) -> Any:
        if isinstance(value, bytes):
            return value.hex()
        return value if value is None or isinstance(value, bool | int | float | str) else str(value)

    return {n: shown(row[n]) for n in names}
