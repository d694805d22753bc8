"""Detection of rows that the target or the state cannot store. Their results could be committed, but never published.

    SQL ─▶ storable? ─┬─ yes ─▶ shards
                      └─ no  ─▶ a bad row with a reason

Each check exists as Spark SQL and as a Polars expression.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce, singledispatch
from typing import NamedTuple

import polars as pl

from slackwater.core.column_names import quote_identifier
from slackwater.core.schema import YEARS, Field, ValueLimits
from slackwater.errors import raise_unregistered
from slackwater.operators.base import NonWindowOperator, Operator
from slackwater.operators.interval_join import IntervalJoinOperator
from slackwater.operators.keyed_operator_base import KeyedOperator
from slackwater.operators.stateless import StatelessOperator
from slackwater.operators.window_operator_base import WindowOperator
from slackwater.operators.window_operators import PaneWindowOperator, SessionWindowOperator

ZERO, RANGE, KEY = "U+0000", "time out of range", "key too large"
REASONS = {
    ZERO: "a string contains U+0000 or is not UTF-8, which Postgres cannot store",
    RANGE: "a time is outside the years 1 to 9999",
    KEY: "its key is too large for a unique index in Postgres",
}
_TIME = "__ts"  # hidden column: the event time (µs)
UNFIT = "__unfit"  # hidden column: the reason why a row cannot be stored, or NULL
_TUPLE, _FIXED, _VARIABLE = 32, 32, 8  # bytes: index entry, fixed-size column, overhead of a variable-size column
# matches U+0000 in JSON, but not the text \\u0000, which has two backslashes
_ZERO_IN_JSON = r"r'(?<!\\)(\\\\)*\\u0000'"


class StorabilityCheck(NamedTuple):
    """A condition that is true for rows that cannot be stored."""

    reason: str
    sql: str  # the condition as Spark SQL over the output of the user's SQL
    frame: pl.Expr  # the condition for a frame with the event time (µs) in the column _TIME


def unstorable_reason_sql(operator: Operator, which: int, capacity: ValueLimits) -> str | None:
    """Return a Spark SQL expression for the reason a row cannot be stored; None if every row can be stored.

    Args:
        operator: The operator that reads the rows.
        which: The side of a join, 0 or 1.
        capacity: The limits on values that the target and the state can store.
    """
    tests = list(_checks(operator, which, capacity))
    cases = " ".join(f"WHEN {t.sql} THEN '{t.reason}'" for t in tests)
    return f"CASE {cases} END" if tests else None


def unstorable_reason(
    operator: Operator, which: int, capacity: ValueLimits, rows: pl.DataFrame, times: pl.Series
) -> pl.Series | None:
    """Return, for each row, the reason why it cannot be stored, or NULL. Return None if every row can be stored.

    Args:
        operator: The operator that reads the rows.
        which: The side of a join, 0 or 1.
        capacity: The limits on values that the target and the state can store.
        rows: The rows.
        times: The event time of each row (µs).
    """
    tests = list(_checks(operator, which, capacity))
    if not tests:
        return None
    reason = pl.lit(None, pl.String)
    for test in reversed(tests):
        reason = pl.when(test.frame).then(pl.lit(test.reason)).otherwise(reason)
    return rows.with_columns(times.alias(_TIME)).select(reason.alias(UNFIT))[UNFIT]


def _checks(operator: Operator, which: int, capacity: ValueLimits) -> Iterator[StorabilityCheck]:
    stored = _stored_fields(operator, which, capacity)
    if not capacity.allows_nul:
        for field in stored.fields:
            if test := _nul_check(field):
                yield test
    if capacity.time_range is not None:
        first, last = capacity.time_range
        low, high = first + stored.reach_us, last - stored.reach_us
        if stored.is_timed:
            sql = f"unix_micros(_event_ts) NOT BETWEEN {low}L AND {high}L"
            yield StorabilityCheck(RANGE, sql, ~pl.col(_TIME).is_between(low, high))
        for field in stored.fields:
            if test := _time_range_check(field, first, last):
                yield test
    if capacity.key_bytes is not None:
        sized = [f for f in stored.unique if f.type in ("string", "binary")]
        room = capacity.key_bytes - _TUPLE - _FIXED * (1 + len(stored.unique) - len(sized)) - _VARIABLE * len(sized)
        if sized:
            length = " + ".join(f"coalesce(octet_length({quote_identifier(f.name)}), 0)" for f in sized)
            bytes_ = reduce(lambda a, b: a + b, (_length(f).fill_null(0) for f in sized))
            yield StorabilityCheck(KEY, f"{length} > {room}", bytes_ > room)


# -- what depends on the operator --------------------------------------------------------------------------------------


class _StoredFields(NamedTuple):
    """The fields of a row that the target or the state stores."""

    fields: Sequence[Field]  # fields that are stored unchanged
    unique: Sequence[Field]  # fields in a unique index of the target
    reach_us: int  # how far (µs) computed times may be from the event time, in both directions
    is_timed: bool = True  # whether times that are computed from the event time are stored


@singledispatch
def _stored_fields(operator: Operator, which: int, capacity: ValueLimits) -> _StoredFields:
    raise_unregistered(operator, "slackwater.operators.unstorable_rows.unstorable_reason")


@_stored_fields.register
def _(operator: WindowOperator, which: int, capacity: ValueLimits) -> _StoredFields:
    fields = {f.name: f for f in operator.keys}
    for agg in operator.aggs:
        written = not agg.spec.builtin or _may_hold_input_values(agg.output.type)
        is_stored = capacity.covers_state and any(_holds_text_or_time(t) for t in agg.accumulators.values())
        if written or is_stored:
            fields |= {i.source.name: i.source for i in agg.inputs if not i.hashed}
    window = operator.window
    lengths = (window.duration_ms, window.max_session_duration_ms, window.allowed_lateness_ms, window.lateness_ms)
    return _StoredFields(list(fields.values()), operator.keys, 2000 * sum(length or 0 for length in lengths))


@_stored_fields.register
def _(operator: IntervalJoinOperator, which: int, capacity: ValueLimits) -> _StoredFields:
    return _StoredFields(operator.sides[which].fields, (), max(side.keep_us for side in operator.sides))


@_stored_fields.register
def _(operator: KeyedOperator, which: int, capacity: ValueLimits) -> _StoredFields:
    return _StoredFields(operator.fields, (), operator.reach_us)


@_stored_fields.register
def _(operator: StatelessOperator, which: int, capacity: ValueLimits) -> _StoredFields:
    # if the SQL selects the event time, it is one of `fields`
    return _StoredFields(operator.fields, (), 0, is_timed=False)


@singledispatch
def storable_event_times(operator: Operator) -> tuple[int, int]:
    """Return the range of event times (µs, inclusive) for which all computed times are in the years 1 to 9999."""
    raise_unregistered(operator, "slackwater.operators.unstorable_rows.storable_event_times")


@storable_event_times.register
def _(operator: PaneWindowOperator) -> tuple[int, int]:
    return YEARS[0] + operator.duration_us, YEARS[1] - operator.duration_us - operator.allowed_us


@storable_event_times.register
def _(operator: SessionWindowOperator) -> tuple[int, int]:
    return YEARS[0], YEARS[1] - operator.cap_us - operator.reach_us - operator.allowed_us


@storable_event_times.register
def _(operator: KeyedOperator) -> tuple[int, int]:
    return YEARS[0], YEARS[1] - operator.reach_us - (1 if operator.reach_us else 0)


@storable_event_times.register(NonWindowOperator)
def _(operator: Operator) -> tuple[int, int]:
    return YEARS


# -- one column --------------------------------------------------------------------------------------------------------


def _may_hold_input_values(type_: str) -> bool:
    """Return whether a result of this type may contain input values. Only strings and times may."""
    return any(name in type_ for name in ("string", "timestamp", "date"))


def _holds_text_or_time(kind: pl.DataType) -> bool:
    if isinstance(kind, pl.List):
        return _holds_text_or_time(kind.inner)  # type: ignore[arg-type]
    if isinstance(kind, pl.Struct):
        return any(_holds_text_or_time(f.dtype) for f in kind.fields)  # type: ignore[arg-type]
    return kind == pl.String or kind.is_temporal()


def _nul_check(field: Field) -> StorabilityCheck | None:
    name, column = quote_identifier(field.name), pl.col(field.name)
    if field.type == "string":
        sql = f"(contains({name}, chr(0)) OR NOT is_valid_utf8({name}))"
        return StorabilityCheck(ZERO, sql, column.str.contains("\0", literal=True).fill_null(False))
    if "string" not in field.type:
        return None
    sql = f"coalesce(to_json(named_struct('v', {name})) RLIKE {_ZERO_IN_JSON}, false)"
    text = pl.struct(column).struct.json_encode()
    return StorabilityCheck(ZERO, sql, text.str.contains(r"(^|[^\\])(\\\\)*\\u0000").fill_null(False))


def _time_range_check(field: Field, first: int, last: int) -> StorabilityCheck | None:
    name, column = quote_identifier(field.name), pl.col(field.name)
    if field.type in ("timestamp", "timestamp_ntz"):
        time = name if field.type == "timestamp" else f"CAST({name} AS TIMESTAMP)"
        sql = f"unix_micros({time}) NOT BETWEEN {first}L AND {last}L"
        return StorabilityCheck(RANGE, sql, ~column.dt.timestamp("us").is_between(first, last).fill_null(True))
    if field.type == "date":
        low, high = first // 86_400_000_000, last // 86_400_000_000
        sql = f"unix_date({name}) NOT BETWEEN {low} AND {high}"
        return StorabilityCheck(RANGE, sql, ~column.to_physical().is_between(low, high).fill_null(True))
    return None


def _length(field: Field) -> pl.Expr:
    column = pl.col(field.name)
    return column.str.len_bytes() if field.type == "string" else column.bin.size()
