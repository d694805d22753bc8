"""Prepare rows with Spark for each kind of operator: columns for the shards, pre-aggregation, typed frames, partitions.

Spark 4.1 and later provide `repartitionById`. In earlier versions, rows are partitioned by a key with a matching hash:

    shard 2 of 3 ─▶ key 5: pmod(murmur3(5, seed 42), 3) = 2 ─▶ repartition(3, key) ─▶ partition 2
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, singledispatch
from typing import TYPE_CHECKING

import numpy as np

from slackwater.connectors import spark_connect_support
from slackwater.core.column_names import quote_identifier
from slackwater.errors import raise_unregistered
from slackwater.operators.base import NonWindowOperator, Operator
from slackwater.operators.interval_join import IntervalJoinOperator
from slackwater.operators.keyed_operator_base import KeyedOperator
from slackwater.operators.stateless import StatelessOperator
from slackwater.operators.window_operator_base import WindowOperator
from slackwater.operators.window_operators import PaneWindowOperator, SessionWindowOperator
from slackwater.spark import epoch_sql
from slackwater.windows import pane_windows
from slackwater.windows.aggregations import AggregateFunction

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame


@singledispatch
def worker_aggregations(operator: Operator) -> Sequence[AggregateFunction]:
    """Return the aggregations of an operator. Their modules are sent to the workers by value."""
    raise_unregistered(operator, "slackwater.spark.operator_input.worker_aggregations")


@worker_aggregations.register(WindowOperator)
def _(operator: WindowOperator) -> Sequence[AggregateFunction]:
    return operator.aggs


@worker_aggregations.register(NonWindowOperator)
def _(operator: Operator) -> Sequence[AggregateFunction]:
    return ()


@singledispatch
def shard_columns(operator: Operator, source: str, tag: int | None, before: int | None, end: str | None) -> list[str]:
    """Return the columns that are sent to the shards, as expressions over the output of the SQL.

    Args:
        operator: The operator.
        source: The name of the operator's input.
        tag: The tag that identifies the source of the rows. None if rows do not need a tag.
        before: Rows before this time (in microseconds) keep `_origin`. If None, no row keeps it.
        end: SQL for the time at which a row's gap ends. None if rows do not have their own gaps.
    """
    raise_unregistered(operator, "slackwater.spark.operator_input.shard_columns")


@shard_columns.register(WindowOperator)
def _(operator: WindowOperator, source: str, tag: int | None, before: int | None, end: str | None) -> list[str]:
    return epoch_sql.row_columns(operator, tag, before, end)


@shard_columns.register(IntervalJoinOperator)
def _(operator: IntervalJoinOperator, source: str, tag: int | None, before: int | None, end: str | None) -> list[str]:
    return epoch_sql.side_columns(operator, operator.input_index(source), tag, before)


@shard_columns.register(KeyedOperator)
def _(operator: KeyedOperator, source: str, tag: int | None, before: int | None, end: str | None) -> list[str]:
    return epoch_sql.keyed_columns(operator, tag, before)


@shard_columns.register(StatelessOperator)
def _(operator: StatelessOperator, source: str, tag: int | None, before: int | None, end: str | None) -> list[str]:
    return [f"{quote_identifier(f.name)} AS {operator.slot(i)}" for i, f in enumerate(operator.fields)]


@singledispatch
def required_columns(operator: Operator, which: int) -> list[str]:
    """Return the columns that all sources of an input must have with equal types. `which`: the index of the input."""
    raise_unregistered(operator, "slackwater.spark.operator_input.required_columns")


@required_columns.register(WindowOperator)
def _(operator: WindowOperator, which: int) -> list[str]:
    return list(dict.fromkeys([*operator.key_names, *(i.source.name for i in operator.inputs)]))


@required_columns.register(IntervalJoinOperator)
def _(operator: IntervalJoinOperator, which: int) -> list[str]:
    return [f.name for f in operator.sides[which].fields]


@required_columns.register(StatelessOperator)
@required_columns.register(KeyedOperator)
def _(operator: StatelessOperator | KeyedOperator, which: int) -> list[str]:
    return [f.name for f in operator.fields]


@singledispatch
def lift_rows(operator: Operator, rows: DataFrame, tagged: bool) -> DataFrame:
    """Pre-aggregate rows before the shuffle if the operator supports this. `tagged`: whether rows have `__src`."""
    raise_unregistered(operator, "slackwater.spark.operator_input.lift_rows")


@lift_rows.register(PaneWindowOperator)
def _(operator: PaneWindowOperator, rows: DataFrame, tagged: bool) -> DataFrame:
    """Return the accumulators of each key and pane. If an aggregation has no SQL form, return the rows unchanged."""
    if not operator.preaggregates_in_sql:
        return rows
    F = spark_connect_support.sql_functions(rows)  # noqa: N806
    aggregates = [F.expr(sql).alias(name) for name, sql in epoch_sql.pane_aggregates(operator).items()]
    groups = [quote_identifier(c) for c in epoch_sql.group_columns(operator, tagged)]
    return rows.selectExpr(*epoch_sql.pane_columns(operator)).groupBy(*groups).agg(*aggregates)


@lift_rows.register(SessionWindowOperator)
@lift_rows.register(NonWindowOperator)
def _(operator: Operator, rows: DataFrame, tagged: bool) -> DataFrame:
    return rows


@singledispatch
def disable_preaggregation(operator: Operator) -> Operator:
    """Return the variant of an operator for rows that are not pre-aggregated."""
    raise_unregistered(operator, "slackwater.spark.operator_input.disable_preaggregation")


@disable_preaggregation.register
def _(operator: PaneWindowOperator) -> Operator:
    return replace(operator, one_by_one=True)


@disable_preaggregation.register(SessionWindowOperator)
@disable_preaggregation.register(NonWindowOperator)
def _(operator: Operator) -> Operator:
    return operator


@singledispatch
def repartition_to_shards(operator: Operator, rows: DataFrame, shards: int) -> DataFrame:
    """Distribute the result of `lift_rows` to one partition per shard, in the order of the shards.

    This may add columns. `shards`: the number of shards.
    """
    raise_unregistered(operator, "slackwater.spark.operator_input.repartition_to_shards")


@repartition_to_shards.register(WindowOperator)
@repartition_to_shards.register(IntervalJoinOperator)
@repartition_to_shards.register(KeyedOperator)
def _(operator: Operator, rows: DataFrame, shards: int) -> DataFrame:
    return repartition_by_shard(rows, shards, epoch_sql.shard_number_sql(shards))


@repartition_to_shards.register(StatelessOperator)
def _(operator: StatelessOperator, rows: DataFrame, shards: int) -> DataFrame:
    """Reduce the number of partitions without a shuffle, because any shard may process any row.

    A task that Spark repeats still reads the same rows in the same order.
    """
    return rows.coalesce(shards)


@singledispatch
def gather_shards(operator: Operator, rows: DataFrame, shards: int) -> DataFrame:
    """Move the result of `lift_rows` to one partition without a shuffle, and add the column `__shard`.

    `__shard` contains the number of a row's shard. `shards`: the number of shards.
    """
    raise_unregistered(operator, "slackwater.spark.operator_input.gather_shards")


@gather_shards.register(WindowOperator)
@gather_shards.register(IntervalJoinOperator)
@gather_shards.register(KeyedOperator)
def _(operator: Operator, rows: DataFrame, shards: int) -> DataFrame:
    return rows.selectExpr("*", f"{epoch_sql.shard_number_sql(shards)} AS __shard").coalesce(1)


@gather_shards.register(StatelessOperator)
def _(operator: StatelessOperator, rows: DataFrame, shards: int) -> DataFrame:
    return rows.selectExpr("*", "0 AS __shard").coalesce(1)


@singledispatch
def to_ingest_rows(operator: Operator, rows: pl.DataFrame) -> pl.DataFrame:
    """Convert rows from Spark to the form that `operator.ingest` expects, with typed keys and accumulators."""
    raise_unregistered(operator, "slackwater.spark.operator_input.to_ingest_rows")


@to_ingest_rows.register(PaneWindowOperator)
def _(operator: PaneWindowOperator, rows: pl.DataFrame) -> pl.DataFrame:
    if operator.preaggregates_in_sql:
        accumulators = [c for a in operator.aggs for c in a.from_sql(rows)]
        groups = [c for c in ("__kh", "__start", "__src", "__n", "__first") if c in rows.columns]
        keys = [rows[k.name].cast(k.polars) for k in operator.keys]
        return rows.select(*groups, *keys, *accumulators).cast(operator.accumulators)  # type: ignore[arg-type]
    return pane_windows.lift_rows(operator, _inputs(operator, rows))


@to_ingest_rows.register(SessionWindowOperator)
def _(operator: SessionWindowOperator, rows: pl.DataFrame) -> pl.DataFrame:
    return operator.lift_rows(_inputs(operator, rows))


@to_ingest_rows.register(NonWindowOperator)
def _(operator: Operator, rows: pl.DataFrame) -> pl.DataFrame:
    return rows


@to_ingest_rows.register(KeyedOperator)
def _(operator: KeyedOperator, rows: pl.DataFrame) -> pl.DataFrame:
    types = {k.name: k.polars for k in operator.keys} | {slot: f.polars for slot, f in operator.slots.items()}
    return rows.cast(types)  # type: ignore[arg-type]


def _inputs(operator: WindowOperator, rows: pl.DataFrame) -> pl.DataFrame:
    """Cast the keys and the inputs of aggregations, in rows that are not pre-aggregated, to their declared types."""
    types = {k.name: k.polars for k in operator.keys} | {i.field.name: i.field.polars for i in operator.inputs}
    return rows.with_columns(rows[name].cast(dtype) for name, dtype in types.items())


@singledispatch
def to_dead_letter_rows(operator: Operator, rows: pl.DataFrame, number: str) -> pl.DataFrame:
    """Convert the rows of dead letters to the form that a replay expects, with `__kh` and `__ts`.

    For windows, the result also has keys and accumulators. Rows without a usable gap are omitted.

    Args:
        operator: The operator.
        rows: The rows.
        number: The name of the column with the numbers of the dead letters. The result keeps this column.
    """
    raise_unregistered(operator, "slackwater.spark.operator_input.to_dead_letter_rows")


@to_dead_letter_rows.register(WindowOperator)
def _(operator: WindowOperator, rows: pl.DataFrame, number: str) -> pl.DataFrame:
    inputs = _inputs(operator, rows)
    inputs = inputs.drop_nulls("__end") if operator.ends else inputs
    return operator.lift_rows(inputs).with_columns(inputs[number])


@to_dead_letter_rows.register(IntervalJoinOperator)
def _(operator: IntervalJoinOperator, rows: pl.DataFrame, number: str) -> pl.DataFrame:
    return rows.select("__kh", "__ts", number)


# -- partitions of shards ------------------------------------------------------------------------------------------------


_BY_ID_SINCE = (4, 1)
_SEED = 42  # the seed of Spark's hash partitioning


def repartition_by_shard(rows: DataFrame, shards: int, owner: str) -> DataFrame:
    """Repartition rows into one partition per shard, and add the column `__shard`.

    Args:
        rows: The rows.
        shards: The number of shards.
        owner: SQL for the number of a row's shard.
    """
    if hasattr(rows, "repartitionById") and spark_connect_support.spark_version(rows.sparkSession) >= _BY_ID_SINCE:
        by_id = rows.selectExpr("*", f"{owner} AS __shard")
        return by_id.repartitionById(shards, by_id["__shard"])
    listed = ", ".join(map(str, compute_shard_keys(shards)))
    return rows.selectExpr("*", f"element_at(array({listed}), {owner} + 1) AS __shard").repartition(shards, "__shard")


@cache
def compute_shard_keys(shards: int) -> tuple[int, ...]:
    """Return one INT key per shard. Spark's hash partitioning sends rows with this key to the shard's partition."""
    key_of: dict[int, int] = {}
    start, block = 0, 8 * shards + 64
    while len(key_of) < shards:
        numbers = np.arange(start, start + block, dtype=np.int32)
        partitions, first = np.unique(np.mod(hash_murmur3(numbers), np.int32(shards)), return_index=True)
        for partition, index in zip(partitions.tolist(), first.tolist(), strict=True):
            key_of.setdefault(partition, int(numbers[index]))
        start += block
    return tuple(key_of[partition] for partition in range(shards))


def hash_murmur3(numbers: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return Spark's `hash` of INT values: MurmurHash3 (x86, 32 bits) of their four bytes."""
    with np.errstate(over="ignore"):
        mixed = numbers.view(np.uint32) * np.uint32(0xCC9E2D51)
        mixed = _rotate_left(mixed, 15) * np.uint32(0x1B873593)
        mixed_hash = _rotate_left(np.uint32(_SEED) ^ mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)
        mixed_hash ^= np.uint32(4)  # bytes
        mixed_hash = (mixed_hash ^ (mixed_hash >> np.uint32(16))) * np.uint32(0x85EBCA6B)
        mixed_hash = (mixed_hash ^ (mixed_hash >> np.uint32(13))) * np.uint32(0xC2B2AE35)
        return (mixed_hash ^ (mixed_hash >> np.uint32(16))).view(np.int32)


def _rotate_left(numbers: NDArray[np.uint32], bits: int) -> NDArray[np.uint32]:
    return (numbers << np.uint32(bits)) | (numbers >> np.uint32(32 - bits))
