"""Select the columns that the shards of an operator need, in Polars, from the rows of a source without SQL.

`spark.operator_input` and `spark.epoch_sql` do the same in Spark SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import singledispatch

import polars as pl

from slackwater.core.schema import Field
from slackwater.errors import raise_unregistered
from slackwater.joins.compiled_join import ShuffleColumns
from slackwater.operators.base import Operator
from slackwater.operators.interval_join import IntervalJoinOperator
from slackwater.operators.keyed_operator_base import KeyedOperator
from slackwater.operators.stateless import StatelessOperator
from slackwater.operators.window_operator_base import WindowOperator
from slackwater.windows.aggregations import AggregationInput, normalize_columns


@dataclass(frozen=True)
class HashedRows:
    """Rows of a source with their event times and key hashes.

    Args:
        frame: The rows, with the columns of `find_input_fields`.
        times: The event time of each row (µs).
        hashes: The hash of the key of each row.
        hash_values: A function that returns Spark's `xxhash64(type, value)` of the values of a column, and NULL for NULL.
    """

    frame: pl.DataFrame
    times: pl.Series
    hashes: pl.Series
    hash_values: Callable[[pl.Series, Field], pl.Series]


@singledispatch
def find_input_fields(operator: Operator, source: str) -> Sequence[Field]:
    """Return the columns of a source that `select_shard_columns` reads. `source`: the name of the operator's input."""
    raise_unregistered(operator, "slackwater.operators.shard_rows.find_input_fields")


@find_input_fields.register(WindowOperator)
def _(operator: WindowOperator, source: str) -> Sequence[Field]:
    return list(dict.fromkeys([*operator.keys, *(i.source for i in operator.inputs)]))


@find_input_fields.register
def _(operator: IntervalJoinOperator, source: str) -> Sequence[Field]:
    return operator.sides[operator.input_index(source)].fields


@find_input_fields.register(KeyedOperator)
@find_input_fields.register(StatelessOperator)
def _(operator: KeyedOperator | StatelessOperator, source: str) -> Sequence[Field]:
    return operator.fields


@singledispatch
def find_hashed_keys(operator: Operator, source: str) -> Sequence[Field]:
    """Return the keys of an input, with the types as which they are hashed. `source`: the name of the operator's input."""
    raise_unregistered(operator, "slackwater.operators.shard_rows.find_hashed_keys")


@find_hashed_keys.register(WindowOperator)
@find_hashed_keys.register(KeyedOperator)
def _(operator: WindowOperator | KeyedOperator, source: str) -> Sequence[Field]:
    return operator.keys


@find_hashed_keys.register
def _(operator: IntervalJoinOperator, source: str) -> Sequence[Field]:
    """Return the keys of a side. Integer keys of different widths are hashed as BIGINT, so equal keys have equal hashes."""
    which = operator.input_index(source)
    side, other = operator.sides[which], operator.sides[1 - which]
    return [
        key if key.type == its.type else Field(key.name, "bigint")
        for key, its in zip(side.keys, other.keys, strict=True)
    ]


@find_hashed_keys.register
def _(operator: StatelessOperator, source: str) -> Sequence[Field]:
    return ()


@singledispatch
def select_shard_columns(operator: Operator, source: str, rows: HashedRows) -> pl.DataFrame:
    """Return the columns that the shards of an operator need. `source`: the name of the operator's input."""
    raise_unregistered(operator, "slackwater.operators.shard_rows.select_shard_columns")


@select_shard_columns.register(WindowOperator)
def _(operator: WindowOperator, source: str, rows: HashedRows) -> pl.DataFrame:
    normal = normalize_columns(rows.frame, list(find_input_fields(operator, source)))
    keys = (normal[k.name].cast(k.polars) for k in operator.keys)
    inputs = (_input_column(normal, i, rows) for i in operator.inputs)
    columns = [rows.hashes.alias("__kh"), rows.times.alias("__ts"), *keys, *inputs]
    if operator.ends:  # the gap is a column in milliseconds
        gap, cap = rows.frame[str(operator.window.gap_ms)] * 1000, 1000 * (operator.window.max_session_duration_ms or 0)
        usable = gap.is_between(0, cap, closed="none").fill_null(False)
        columns.append((rows.times + gap).set(~usable, None).alias("__end"))
    return pl.DataFrame({c.name: c for c in columns})


@select_shard_columns.register
def _(operator: IntervalJoinOperator, source: str, rows: HashedRows) -> pl.DataFrame:
    which, slots = operator.input_index(source), ShuffleColumns.from_logic(operator)
    slot_values = {slot: rows.frame[f.name].cast(f.polars) for slot, f in slots.by_side[which]}
    empty = pl.Series([None]).new_from_index(0, rows.frame.height)
    columns = {
        "__kh": rows.hashes,
        "__ts": rows.times,
        "__side": pl.Series([which], dtype=pl.Int8).new_from_index(0, rows.frame.height),
        **{s.name: slot_values.get(s.name, empty.cast(s.polars)) for s in slots.columns},
    }
    return pl.DataFrame([c.alias(name) for name, c in columns.items()])


@select_shard_columns.register(KeyedOperator)
def _(operator: KeyedOperator, source: str, rows: HashedRows) -> pl.DataFrame:
    keys = normalize_columns(rows.frame, list(operator.keys)).select(operator.key_names).get_columns()
    values = [rows.frame[f.name].cast(f.polars).alias(slot) for slot, f in operator.slots.items()]
    return pl.DataFrame([rows.hashes.alias("__kh"), rows.times.alias("__ts"), *keys, *values])


@select_shard_columns.register
def _(operator: StatelessOperator, source: str, rows: HashedRows) -> pl.DataFrame:
    timed = rows.frame.with_columns(rows.times.cast(pl.Datetime("us", "UTC")).alias("_event_ts"))
    return pl.DataFrame([timed[f.name].alias(operator.slot(i)) for i, f in enumerate(operator.fields)])


def _input_column(normal: pl.DataFrame, aggregation_input: AggregationInput, rows: HashedRows) -> pl.Series:
    column = normal[aggregation_input.source.name]
    if aggregation_input.hashed:
        column = rows.hash_values(column, aggregation_input.source)
    return column.cast(aggregation_input.field.polars).alias(aggregation_input.field.name)
