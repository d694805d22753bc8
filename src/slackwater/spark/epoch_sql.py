"""Generate the Spark SQL of an epoch: event times, shard columns, panes, and partial aggregates."""

from __future__ import annotations

from collections.abc import Sequence

from slackwater.connectors import timestamp_parsing
from slackwater.core import schema
from slackwater.core.column_names import quote_identifier
from slackwater.core.schema import Field
from slackwater.errors import StartError, Topic
from slackwater.joins.compiled_join import CompiledJoin, ShuffleColumns
from slackwater.operators.dead_letters import ORIGIN
from slackwater.operators.keyed_operator_base import KeyedOperator
from slackwater.windows.aggregations import normalization_sql
from slackwater.windows.compiled_window import CompiledWindow
from slackwater.windows.pane_windows import CompiledPaneWindow, pane_us

PER_UNIT = {"s": 1_000_000, "ms": 1000, "us": 1}


def event_time_sql(
    expression: str, field: Field, unit: str | None, where: str, zone: str = timestamp_parsing.UTC
) -> str:
    """Return SQL that converts the event time to a TIMESTAMP, or to NULL if the conversion fails.

    Args:
        expression: SQL for the event time.
        field: The type of `expression`.
        unit: The unit of an integer: "s", "ms", "us" or "ns". None if no unit is configured.
        where: The prefix of error messages.
        zone: The time zone of values that do not contain one.

    Raises:
        StartError: The type cannot be converted, or is an integer without a unit.
    """
    value = f"({expression})"
    if field.type == "timestamp":
        return value
    if field.type in ("timestamp_ntz", "date"):
        return timestamp_parsing.local_time_sql(f"CAST({value} AS TIMESTAMP)", zone)
    if field.type == "string":
        return timestamp_parsing.timestamp_sql(value, zone)
    if field.base in schema.INTEGERS:
        if unit is None:
            raise StartError(
                f'{where} is {field.type}; set event_time_unit to "s", "ms", "us" or "ns"', Topic.EVENT_TIME
            )
        wide = f"CAST({value} AS BIGINT)"
        if unit == "ns":
            return f"timestamp_micros(({wide} - pmod({wide}, 1000L)) div 1000L)"
        return f"timestamp_micros(try_multiply({wide}, {PER_UNIT[unit]}L))"
    raise StartError(
        f"{where} is {field.type}; expected a timestamp, a date, an ISO-8601 string or an integer", Topic.EVENT_TIME
    )


def gap_end_sql(gap: str, field: Field, cap_ms: int, where: str) -> str:
    """Return SQL for the time (µs) at which a row's gap ends. It yields NULL unless 0 < gap < cap.

    Args:
        gap: SQL for a number of milliseconds, an interval, or a string in Spark's interval syntax ("5 minutes").
        field: The type of `gap`.
        cap_ms: The cap in milliseconds.
        where: The prefix of the error message.

    Raises:
        StartError: `gap` has another type.
    """
    if field.base in schema.INTEGERS:
        us = f"try_multiply(CAST({gap} AS BIGINT), 1000L)"
    elif field.base in schema.NUMBERS:
        us = f"try_cast({gap} * 1000 AS BIGINT)"
    elif field.type == "string" or field.type.startswith("interval"):
        length = f"try_cast({gap} AS INTERVAL)" if field.type == "string" else gap
        us = f"unix_micros(TIMESTAMP'1970-01-01 00:00:00' + {length})"
    else:
        raise StartError(
            f'{where} is {field.type}; expected milliseconds, an interval, or text such as "5 minutes"', Topic.SQL
        )
    return f"CASE WHEN {us} > 0 AND {us} < {cap_ms * 1000}L THEN unix_micros(_event_ts) + {us} END"


def row_columns(
    logic: CompiledWindow, source: int | None, before: int | None = None, end: str | None = None
) -> list[str]:
    """Return the columns that are sent to the shards with each row: hash, time, keys and inputs of aggregations.

    Args:
        logic: The window.
        source: The tag that identifies the source of the rows. None if rows do not need a tag.
        before: Rows before this time (in microseconds) keep `_origin`, and so do rows for which `end` is NULL. If None,
            no row keeps it.
        end: SQL for the time at which a row's gap ends. None if rows do not have their own gaps.
    """
    keys = ", ".join(normalization_sql(k) for k in logic.keys)
    columns = {
        "__kh": f"xxhash64({keys})" if keys else "CAST(42 AS BIGINT)",
        "__ts": "unix_micros(_event_ts)",
        **{k.name: normalization_sql(k) for k in logic.keys},
        **{i.field.name: i.sql for i in logic.inputs},
    }
    return _with_hidden_columns(columns, source, before, end)


def side_columns(logic: CompiledJoin, which: int, source: int | None, before: int | None = None) -> list[str]:
    """Return the columns that are sent to the shards with each row of one side of a join.

    The columns are expressions over the output of the side's SQL. Equal integer keys of different widths have equal
    hashes.

    Args:
        logic: The join.
        which: 0 for the left side, 1 for the right side.
        source: The tag that identifies the source of the rows. None if rows do not need a tag.
        before: Rows before this time (in microseconds) keep `_origin`. If None, no row keeps it.
    """
    side, other, slots = logic.sides[which], logic.sides[1 - which], ShuffleColumns.from_logic(logic)
    keys = [
        normalization_sql(k) if k.type == o.type else f"CAST({quote_identifier(k.name)} AS BIGINT)"
        for k, o in zip(side.keys, other.keys, strict=True)
    ]
    side_slots = {slot: quote_identifier(f.name) for slot, f in slots.by_side[which]}
    columns = {
        "__kh": f"xxhash64({', '.join(keys)})",
        "__ts": "unix_micros(_event_ts)",
        "__side": f"CAST({which} AS TINYINT)",
        **{s.name: side_slots.get(s.name, f"CAST(NULL AS {s.type})") for s in slots.columns},
    }
    return _with_hidden_columns(columns, source, before)


def keyed_columns(operator: KeyedOperator, source: int | None, before: int | None) -> list[str]:
    """Return the columns that are sent to the shards for a keyed step: complete rows with the hash of their key.

    The columns are expressions over the output of the stage's SQL.

    Args:
        operator: The keyed operator.
        source: The tag that identifies the source of the rows. None if rows do not need a tag.
        before: Rows before this time (in microseconds) keep `_origin`. If None, no row keeps it.
    """
    columns = {
        "__kh": f"xxhash64({', '.join(map(normalization_sql, operator.keys))})",
        "__ts": "unix_micros(_event_ts)",
        **{k.name: normalization_sql(k) for k in operator.keys},
        **{slot: quote_identifier(f.name) for slot, f in operator.slots.items()},
    }
    return _with_hidden_columns(columns, source, before)


def _with_hidden_columns(
    columns: dict[str, str], source: int | None, before: int | None, end: str | None = None
) -> list[str]:
    """Return named columns, with `__src`, `__end` and `__origin` if they are needed; see `row_columns`."""
    if source is not None:
        columns["__src"] = f"CAST({source} AS INT)"
    if end is not None:
        columns["__end"] = end
    if before is not None:
        bad = "" if end is None else f" OR ({end}) IS NULL"
        columns["__origin"] = f"CASE WHEN {is_earlier_sql(before)}{bad} THEN {ORIGIN} END"
    return [f"{sql} AS {quote_identifier(name)}" for name, sql in columns.items()]


def is_earlier_sql(than: int) -> str:
    """Return SQL that is true if a row's event time is before `than` (in microseconds).

    `than` changes with every epoch. Spark compiles literals into generated code, so each new literal costs a
    compilation (0.3 s). The elements of an array are passed to the generated code as data, so `than` is an element of
    an array. Its index is always 1, but the optimizer cannot determine this.
    """
    return f"unix_micros(_event_ts) < element_at(array({than}L), CAST(pmod(unix_micros(_event_ts), 1L) AS INT) + 1)"


def late_columns(keys: Sequence[Field], source: int | None) -> list[str]:
    """Return the columns for the dead letters for late rows in tumbling and hopping windows.

    The columns are expressions over the output of the stage's SQL. `source`: the tag that identifies the source of the
    rows. None if rows do not need a tag.
    """
    tag = [] if source is None else [f"CAST({source} AS INT) AS __src"]
    return [
        "unix_micros(_event_ts) AS __start",
        ORIGIN,
        *tag,
        *(f"{normalization_sql(k)} AS {quote_identifier(k.name)}" for k in keys),
    ]


def pane_columns(logic: CompiledPaneWindow) -> list[str]:
    """Return SQL for the columns of a row, the start of its pane, and the inputs of the aggregations."""
    pane, offset = pane_us(logic), logic.offset_us
    return [
        "*",
        f"__ts - pmod(__ts - {offset}L, {pane}L) AS __start",
        *dict.fromkeys(c for a in logic.aggs for c in a.sql_columns),
    ]


def pane_aggregates(logic: CompiledPaneWindow) -> dict[str, str]:
    """Return SQL by column name for the row count, the first event time and the accumulators of each key and pane.

    All aggregations must have a SQL form. Otherwise, `windows.pane_windows.lift_rows` computes these columns.
    """
    lifted = {name: sql for agg in logic.aggs for name, sql in (agg.lift_sql("__ts") or {}).items()}
    shared = {name: sql for agg in logic.aggs for name, sql in agg.sql_sums.items()}
    return {"__n": "count(1)", "__first": "min(__ts)", **lifted, **shared}


def group_columns(logic: CompiledPaneWindow, tagged: bool) -> list[str]:
    """Return the columns by which rows are pre-aggregated. `tagged`: whether rows have the tag `__src`."""
    values = dict.fromkeys(c for a in logic.aggs for c in a.sql_groups)
    return ["__kh", "__start", *(["__src"] if tagged else []), *logic.key_names, *values]


def shard_number_sql(shards: int) -> str:
    """Return SQL for the number of a row's shard. `shards`: the number of shards."""
    return f"CAST(pmod(__kh, {shards}L) AS INT)"
