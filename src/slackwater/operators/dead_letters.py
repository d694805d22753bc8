"""Dead letters for bad and late rows, with the original bytes if the source provides them.

Bad rows become dead letters immediately. Late rows are detected only after the SQL and the shuffle. An additional
struct column, `_origin`, carries the origin of each row to this point:

    source ─▶ view `source` with _origin ─▶ SQL (see `spark.analysis.row_origin_propagation`) ─▶ late? ─▶ letter
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from slackwater.core.column_names import CORRUPT, quote_identifier, quote_string
from slackwater.core.dead_letter_columns import LETTER
from slackwater.core.row_format import value_to_json
from slackwater.core.schema import Field
from slackwater.operators.base import ShardTask, flag_idle_sources
from slackwater.operators.reports import DeadLetterFile

LATE, BAD_GAP = "late", "no gap"
OUTSIDE = "event time outside of the years 1 to 9999"
UNPUBLISHED = "not published"  # a result that the target did not accept (see `runner.pending_output`)
ORIGIN = "_origin"

_FIELDS = {f.name: f for f in LETTER}
ORIGIN_FIELDS = tuple(_FIELDS[n] for n in ("source", "topic", "partition", "offset", "key", "value", "headers", "file"))
ORIGIN_TYPE = f"struct<{','.join(f'{f.name}:{f.type}' for f in ORIGIN_FIELDS)}>"


def dead_letter_columns_sql(columns: Mapping[str, str], pipeline: str, source: str, epoch: int) -> list[str]:
    """Return Spark SQL for the dead-letter columns of bad rows.

    Args:
        columns: The columns of the source with their types. The SQL also reads `__bad` (the reason) and `_event_ts`.
        pipeline: The name of the pipeline.
        source: The name of the source.
        epoch: The epoch that read the rows.
    """
    sql_by_field = {
        **_origin_sql(columns, source, "nullif(input_file_name(), '')"),
        "reason": "__bad",
        "pipeline": quote_string(pipeline),
        "epoch": f"{epoch}L",
        "event_time": f"CASE WHEN __bad <> '{OUTSIDE}' THEN _event_ts END",  # no target can store such a time
    }
    return [f"CAST({sql_by_field.get(f.name, 'NULL')} AS {f.type}) AS {quote_identifier(f.name)}" for f in LETTER]


def unstorable_columns(columns: Sequence[str], pipeline: str, source: str, epoch: int) -> list[str]:
    """Return Spark SQL for the dead-letter columns of rows that cannot be stored.

    A letter contains the source's bytes if the rows have `_origin`, and otherwise the row as JSON.

    Args:
        columns: The output columns of the user's SQL, and `__unfit` (the reason).
        pipeline: The name of the pipeline.
        source: The name of the source.
        epoch: The epoch that read the rows.
    """
    plain = [c for c in columns if c not in (ORIGIN, "__unfit", "__bad", CORRUPT) and not _is_meta(c)]
    row = f"to_json(struct({', '.join(map(quote_identifier, plain))}), {_times()})"
    sql_by_field = {"source": quote_string(source), "value": f"CAST({row} AS BINARY)"}
    if ORIGIN in columns:
        sql_by_field = {f.name: f"{ORIGIN}.{quote_identifier(f.name)}" for f in ORIGIN_FIELDS}
    sql_by_field |= {"reason": "__unfit", "pipeline": quote_string(pipeline), "epoch": f"{epoch}L"}
    if "_event_ts" in columns:
        sql_by_field["event_time"] = "_event_ts"
    return [f"CAST({sql_by_field.get(f.name, 'NULL')} AS {f.type}) AS {quote_identifier(f.name)}" for f in LETTER]


def build_bad_row_dead_letters(rows: pl.DataFrame, reason: pl.Expr, epoch: int, pipeline: str) -> pl.DataFrame:
    """Build the dead letters of bad rows. `rows` has `__start` (event time, µs) and `_origin`."""
    computed = {
        "reason": reason,
        "pipeline": pl.lit(pipeline),
        "epoch": pl.lit(epoch),
        "event_time": _utc_time(pl.col("__start")),
    }
    exprs = {**{f.name: pl.col(ORIGIN).struct.field(f.name) for f in ORIGIN_FIELDS}, **computed}
    return rows.select(exprs.get(f.name, pl.lit(None)).cast(f.polars).alias(f.name) for f in LETTER)


def to_storable_dead_letters(letters: pl.DataFrame, times: tuple[int, int] | None) -> pl.DataFrame:
    """Convert staged dead letters to a form that their target can store.

    Times outside `times`, the range that the target can store (µs, inclusive), become NULL. The original bytes of the
    row still contain them. Columns that an earlier version did not stage are NULL.
    """
    letters = letters.with_columns(
        pl.lit(None, f.polars).alias(f.name) for f in LETTER if f.name not in letters.columns
    )
    if times is None:
        return letters
    return letters.with_columns(
        pl.when(pl.col(c).dt.timestamp("us").is_between(*times)).then(pl.col(c)).alias(c)
        for c in ("event_time", "watermark")
    )


def origin_column(columns: Mapping[str, str], source: str, file: str = "NULL") -> str:
    """Return Spark SQL for the column `_origin` of a source's rows.

    `columns`: the columns of the source with their types. `file`: the SQL for the name of a row's file.
    """
    sql_by_field = _origin_sql(columns, source, file)
    fields = (f"{quote_string(f.name)}, CAST({sql_by_field[f.name]} AS {f.type})" for f in ORIGIN_FIELDS)
    return f"named_struct({', '.join(fields)}) AS {ORIGIN}"


def numbered_origin(number: str) -> str:
    """Return Spark SQL for an `_origin` column whose offset is `number` (SQL). All other fields are NULL."""
    values = {"offset": number}
    fields = (f"{quote_string(f.name)}, CAST({values.get(f.name, 'NULL')} AS {f.type})" for f in ORIGIN_FIELDS)
    return f"named_struct({', '.join(fields)}) AS {ORIGIN}"


def _origin_sql(columns: Mapping[str, str], source: str, file: str) -> dict[str, str]:
    """Return Spark SQL for each field of `_origin`. `columns`: the columns of the source with their types."""
    names = set(columns)
    plain = [c for c in columns if c not in ("__bad", "_event_ts", CORRUPT) and not _is_meta(c)]
    row = f"to_json(struct({', '.join(map(quote_identifier, plain))}), {_times()})" if plain else "NULL"
    text = f"coalesce({CORRUPT}, {row})" if CORRUPT in names else row
    return {
        "source": quote_string(source),
        "topic": "_topic" if "_topic" in names else "NULL",
        "partition": "_partition" if "_partition" in names else "NULL",
        "offset": "_offset" if "_offset" in names else "NULL",
        "key": "_key" if "_key" in names else "NULL",
        "value": "_value" if "_value" in names else f"CAST({text} AS BINARY)",
        "headers": _headers(columns.get("_headers", "")),
        "file": "NULL" if "_topic" in names else file,
    }


def _times() -> str:
    """Return the `to_json` options that write times in microseconds. Spark's default is milliseconds."""
    pattern = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
    return f"map('timestampFormat', {quote_string(f'{pattern}XXX')}, 'timestampNTZFormat', {quote_string(pattern)})"


def _headers(kind: str) -> str:
    """Return Spark SQL that converts `_headers` to a JSON list. `kind`: the type of the column, STRING for RabbitMQ."""
    if kind.startswith("array<struct<key:string,value:binary"):
        return "to_json(_headers)"
    if kind != "string":
        return "NULL"
    pairs = "map_entries(from_json(_headers, 'MAP<STRING, STRING>'))"
    return f"to_json(transform({pairs}, h -> named_struct('key', h.key, 'value', CAST(h.value AS BINARY))))"


def write_late_dead_letters(task: ShardTask, rows: pl.DataFrame) -> DeadLetterFile:
    """Stage the dead letters for late rows from a second pass over the batch.

    `rows`: as in `Operator.late_dead_letters`, but with `__src` instead of `__idle`.
    """
    letters = task.operator.late_dead_letters(task, flag_idle_sources(task, rows))
    return DeadLetterFile(output=task.state.write_output(letters), reasons={LATE: letters.height})


def stage_dead_letters(task: ShardTask, letters: Mapping[str, Sequence[pl.DataFrame]]) -> DeadLetterFile | None:
    """Stage the dead letters of a shard. Return None if there are none. `letters`: frames of dead letters by reason."""
    reasons = {reason: sum(frame.height for frame in frames) for reason, frames in letters.items()}
    if not any(reasons.values()):
        return None
    every = pl.concat(frame for frames in letters.values() for frame in frames)
    return DeadLetterFile(output=task.state.write_output(every), reasons={k: n for k, n in reasons.items() if n})


def tag_rows(task: ShardTask, rows: pl.DataFrame, origins: pl.Series | None) -> pl.DataFrame:
    """Flag the rows of idle sources (`__idle`). With origins, also number the rows (`__row`) to find their origins."""
    rows = flag_idle_sources(task, rows)
    return rows if origins is None else rows.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("__row"))


def find_late_dead_letters(
    task: ShardTask, late: pl.DataFrame, origins: pl.Series | None, time: str = "__start"
) -> list[pl.DataFrame]:
    """Return the dead letters for late rows, as a list of one frame. Empty if late rows do not become dead letters.

    Args:
        task: The task of the shard.
        late: The late rows, with the columns that `tag_rows` adds.
        origins: The origins of all rows of the task.
        time: The column of `late` with the event time (µs).
    """
    if task.late is None or origins is None or late.is_empty():
        return []
    rows = late.with_columns(pl.col(time).alias("__start"), origins[late["__row"]].alias(ORIGIN))
    return [task.operator.late_dead_letters(task, rows)]


def build_late_dead_letters(
    task: ShardTask,
    rows: pl.DataFrame,
    missed: pl.Series | None = None,
    windows: pl.Series | None = None,
    keys: Sequence[Field] = (),
) -> pl.DataFrame:
    """Build the dead letters for late rows.

    Args:
        task: The task of the shard.
        rows: The late rows: `__start` (event time, µs), `_origin`, `keys`, and `__idle` if sources may be idle.
        missed: The number of windows for which each row was late; None for operators without windows.
        windows: The starts of these windows, as a JSON list for each row; None to omit them.
        keys: The key columns of the operator.
    """
    assert task.late is not None
    idle = pl.col("__idle") if "__idle" in rows.columns else pl.lit(False)
    computed = {
        "reason": pl.lit(LATE),
        "pipeline": pl.lit(task.late.pipeline),
        "epoch": pl.lit(task.state.epoch),
        "event_time": _utc_time(pl.col("__start")),
        "cause": pl.when(idle).then(pl.lit("idle")).otherwise(pl.lit(task.late.cause)),
        "watermark": _utc_time(pl.lit(task.watermark)),
        "watermark_source": pl.lit(task.late.held_by),
        "late_us": task.watermark - pl.col("__start"),
        "windows_missed": pl.lit(missed),
        "windows": pl.lit(windows),
        "group_key": group_key_json(keys),
    }
    letters = rows.select(
        *(pl.col(ORIGIN).struct.field(f.name).alias(f.name) for f in ORIGIN_FIELDS),
        *(value.alias(name) for name, value in computed.items()),
    )
    return letters.select(pl.col(f.name).cast(f.polars) for f in LETTER)


def group_key_json(keys: Sequence[Field]) -> pl.Expr:
    """Return the key columns of a row as one JSON object, for searching dead letters. NULL without keys."""
    if not keys:
        return pl.lit(None, pl.String)
    typed = pl.struct(pl.col(k.name).cast(k.polars) for k in keys)
    return value_to_json(typed, pl.Struct({k.name: k.polars for k in keys}))


def _utc_time(us: pl.Expr) -> pl.Expr:
    return us.cast(pl.Datetime("us")).dt.replace_time_zone("UTC")


def _is_meta(column: str) -> bool:
    return column in ("_topic", "_partition", "_offset", "_key", "_value", "_headers")
