"""Run an epoch of plain Parquet files without Spark's reader and shuffle.

Each task reads all files with PyArrow, and keeps the rows of its shards:

    with Spark     files ─▶ rows ─▶ event time, SQL ─▶ shuffle ─▶ Arrow ─▶ a task for each shard
    with PyArrow   files ─▶ Arrow: event time, key hash ─▶ the rows of the task's shards ─▶ shards

PyArrow reads a million rows of three columns in 0.03 s, so reading all files in each of a few tasks costs less than a shuffle.

An epoch runs this way if no SQL changes its rows, every row has a usable event time, and the files have the declared types. If a
task finds a row that Spark would treat in another way, the epoch runs again with Spark's reader.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from slackwater.connectors import spark_connect_support
from slackwater.connectors.files import parquet_rows
from slackwater.connectors.files.parquet_footers import FileVersion
from slackwater.connectors.source import Batch
from slackwater.core.hashing import COMPILED_TYPES, SEED, shard_of, spark_xxhash64
from slackwater.core.schema import Field
from slackwater.core.sorted_arrays import Int64s
from slackwater.errors import NeedsSparkError
from slackwater.operators import shard_rows, unstorable_rows
from slackwater.operators.base import Operator, ShardTask
from slackwater.operators.stateless import StatelessOperator
from slackwater.operators.window_operator_base import WindowOperator
from slackwater.spark.row_query_builder import RowQueryBuilder
from slackwater.spark.tuning.source_statistics import Facts
from slackwater.spark.worker_tasks import PackedTasks, Task, ingest_rows
from slackwater.tuning_switches import is_enabled

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

# The limits are estimates. Each task reads all files, so with many tasks a shuffle is cheaper, and the tasks hold all rows.
MOST_TASKS = 8
MOST_ROWS = 5_000_000  # per epoch
MOST_PAUSED = 64  # epochs after failures
MOST_BYTES = 512 << 20  # of the files of an epoch, uncompressed


@dataclass(frozen=True)
class FileInput:
    """Files that one input of the operator reads.

    Args:
        name: The name of the input.
        files: The files.
        rows: The number of rows in the files.
        fields: The columns that the shards need.
        time: The event-time column.
        unit_us: The unit of the event time in microseconds. 0 for a timestamp.
        oldest: The oldest event time (µs). None if there are no rows.
        newest: The newest event time (µs). None if there are no rows.
        tag: The tag that identifies the source of the rows. None if rows do not need a tag.
    """

    name: str
    files: tuple[FileVersion, ...]
    rows: int
    fields: tuple[Field, ...]
    time: Field
    unit_us: int
    oldest: int | None
    newest: int | None
    tag: int | None


@dataclass
class FileEpochPolicy:
    """Policy that pauses epochs without Spark's reader after failures, because a failed epoch takes twice as long.

    The pause doubles with each failure in a row, up to MOST_PAUSED epochs.
    """

    _failures: int = 0
    _paused: int = 0  # epochs

    def start_epoch(self) -> bool:
        """Count an epoch, and return whether to try it."""
        if self._paused:
            self._paused -= 1
            return False
        return True

    def observe(self, has_failed: bool) -> None:
        """Decide for the next epochs. `has_failed`: whether Spark had to run the epoch again."""
        self._failures = self._failures + 1 if has_failed else 0
        self._paused = min(2**self._failures, MOST_PAUSED) if has_failed else 0


def find_file_inputs(
    rows: RowQueryBuilder, batch: Batch, tasks: Sequence[ShardTask], facts: Mapping[str, Facts]
) -> list[FileInput]:
    """Return the inputs of an epoch whose files tasks can read. Empty if Spark must read the epoch.

    Args:
        rows: The builder of the plan for the rows of the step.
        batch: The batch of the epoch.
        tasks: The tasks of all shards.
        facts: The statistics that are available before rows are read, by source.
    """
    pipeline, names = rows.pipeline, [s.name for s in rows.pipeline.sources]
    sources = [name for name in names if name in batch.payload]
    if not all(name in facts and name in batch.file_rows for name in sources) or not _is_small(batch, facts):
        return []
    if rows.end is not None or isinstance(rows.logic, StatelessOperator) or not can_read_in_tasks(rows, len(tasks)):
        return []
    is_tagged = len(names) > 1 or 0 in tasks[0].idle_sources
    inputs = list[FileInput]()
    for name in sources:
        tag = names.index(name) if is_tagged else None
        for path in pipeline.input_paths_from(name):
            file_input = None
            if not pipeline.sql_chain(path) and not _needs_origins(rows, facts[name], tasks[0]):
                file_input = _find_file_input(rows, batch, facts[name], name, path.name, tag)
            if file_input is None:
                return []
            inputs.append(file_input)
    return inputs


def count_tasks(rows: RowQueryBuilder, shards: int) -> int:
    """Return the number of tasks that read the files: as many as Spark can run in parallel, at most one per shard."""
    return min(shards, rows.task_slots)


def can_read_in_tasks(rows: RowQueryBuilder, shards: int) -> bool:
    """Return whether tasks may read files: Spark runs on this machine, with at most MOST_TASKS of them."""
    is_local = is_enabled("file_workers") and spark_connect_support.is_local_spark(rows.session)
    return is_local and count_tasks(rows, shards) <= MOST_TASKS


def _is_small(batch: Batch, facts: Mapping[str, Facts]) -> bool:
    size = sum(file_rows.count_bytes() for file_rows in batch.file_rows.values())
    return sum(f["rows"] for f in facts.values()) <= MOST_ROWS and size <= MOST_BYTES


def _needs_origins(rows: RowQueryBuilder, facts: Facts, task: ShardTask) -> bool:
    """Return whether some rows are bad, or are late and become dead letters. Only Spark knows the origin of a row."""
    oldest = facts["oldest"]
    is_late = oldest is not None and oldest < task.operator.late_threshold(task.watermark)
    return bool(facts["bad"]) or (is_late and rows.pipeline.tracks_origin)


def _find_file_input(
    rows: RowQueryBuilder, batch: Batch, facts: Facts, source: str, name: str, tag: int | None
) -> FileInput | None:
    """Return an input of the operator. None if PyArrow may not read the same rows as Spark.

    Args:
        rows: The builder of the plan for the rows of the step.
        batch: The batch of the epoch.
        facts: The statistics of the source.
        source: The name of the source.
        name: The name of the operator's input.
        tag: The tag of the rows.
    """
    time_column = rows.time_column(source)
    assert time_column is not None  # because the statistics of the source are known
    (column, unit_us), file_rows = time_column, batch.file_rows[source]
    fields = tuple(shard_rows.find_input_fields(rows.logic, name))
    keys = shard_rows.find_hashed_keys(rows.logic, name)
    hashed = [i.source for i in rows.logic.inputs if i.hashed] if isinstance(rows.logic, WindowOperator) else []
    declared = batch.payload[source].schema
    if column not in declared.names or any(f.type not in COMPILED_TYPES for f in (*keys, *hashed)):
        return None
    time = Field(column, declared[column].dataType.simpleString())
    if not file_rows.reads_like_spark(fields, time):
        return None
    times = (facts["oldest"], facts["newest"])
    return FileInput(name, file_rows.footers.versions, facts["rows"], fields, time, unit_us, *times, tag)


# -- in a worker -------------------------------------------------------------------------------------------------------


def ingest_files_task(inputs: Sequence[FileInput], tasks: Sequence[ShardTask], count: int) -> Task:
    """Return a task that reads files and ingests the rows of its shards. It returns one line per shard: its report.

    The only row of each partition contains the number of the task. Shards without rows have no report.

    Args:
        inputs: The inputs of the operator.
        tasks: The tasks of all shards.
        count: The number of tasks that read the files.
    """
    packed, shards = PackedTasks.pack(tasks), len(tasks)

    def run(table: pa.Table) -> str:
        import polars as pl

        number = table.column(0)[0].as_py()
        own_tasks = {shard: packed.task(shard) for shard in range(number, shards, count)}
        parts = defaultdict[int, list[pl.DataFrame]](list)
        for file_input in inputs:
            for shard, rows in _read_rows(file_input, own_tasks[number], shards, range(number, shards, count)):
                parts[shard].append(rows)
        reports = (ingest_rows(own_tasks[shard], pl.concat(parts.pop(shard))) for shard in sorted(parts))
        return "\n".join(report.model_dump_json() for report in reports)

    return run


def _read_rows(
    file_input: FileInput, task: ShardTask, shards: int, own_shards: range
) -> Iterator[tuple[int, pl.DataFrame]]:
    """Yield the rows of files as (shard, columns for the shard), without empty frames.

    Args:
        file_input: The files.
        task: The task of any shard.
        shards: The number of shards.
        own_shards: The shards whose rows are needed.

    Raises:
        NeedsSparkError: A file cannot be read, has changed, or contains a row that cannot be stored.
    """
    import polars as pl
    import pyarrow as pa

    count = 0
    try:
        for table in parquet_rows.read_tables(
            file_input.files, list(dict.fromkeys([*file_input.fields, file_input.time]))
        ):
            count += table.num_rows
            yield from _split_by_shard(file_input, task, table, shards, own_shards)
    except (pa.ArrowException, OSError, pl.exceptions.PanicException) as error:  # Spark reports it if it fails, too
        raise NeedsSparkError(f"the files of {file_input.name} cannot be read: {error}") from error
    if count != file_input.rows:
        raise NeedsSparkError(f"the files of {file_input.name} have changed")


def _split_by_shard(
    file_input: FileInput, task: ShardTask, table: pa.Table, shards: int, own_shards: range
) -> Iterator[tuple[int, pl.DataFrame]]:
    """Yield the rows of a table as (shard, columns for the shard), without empty frames. See `_read_rows`."""
    import polars as pl

    hashes, frame = _hash_keys(task.operator, file_input.name, table), pl.DataFrame(table)
    times, unit_us = frame[file_input.time.name], file_input.unit_us
    times = times.cast(pl.Int64) * unit_us if unit_us else times.dt.timestamp("us")
    _check_rows(file_input, task, frame, times)
    numbers = shard_of(hashes, shards)
    for shard in own_shards:
        is_own = pl.Series(numbers == shard)
        if not is_own.any():
            continue
        rows = shard_rows.HashedRows(
            frame.filter(is_own), times.filter(is_own), pl.Series(hashes).filter(is_own), _hash_values
        )
        selected = shard_rows.select_shard_columns(task.operator, file_input.name, rows)
        if file_input.tag is not None:
            selected = selected.with_columns(pl.lit(file_input.tag, pl.Int32).alias("__src"))
        yield shard, selected


def _check_rows(file_input: FileInput, task: ShardTask, rows: pl.DataFrame, times: pl.Series) -> None:
    """Raise NeedsSparkError if a file has changed, or if the target or the state cannot store a row."""
    if file_input.oldest is None or file_input.newest is None or times.null_count():
        raise NeedsSparkError(f"the files of {file_input.name} have changed")
    if not times.is_between(file_input.oldest, file_input.newest).all():
        raise NeedsSparkError(f"the files of {file_input.name} have changed")
    operator, source = task.operator, file_input.name
    reasons = unstorable_rows.unstorable_reason(operator, operator.input_index(source), task.capacity, rows, times)
    if reasons is not None and reasons.null_count() < len(reasons):
        raise NeedsSparkError(f"the target or the state cannot store all rows of {source}")


def _hash_keys(operator: Operator, source: str, table: pa.Table) -> Int64s:
    from slackwater.core.numba_hashing import hash_keys_compiled  # imported on use, because it imports Numba

    keys = shard_rows.find_hashed_keys(operator, source)
    if not keys:
        return np.full(table.num_rows, SEED)
    return hash_keys_compiled([table.column(key.name).chunk(0) for key in keys], keys)


def _hash_values(column: pl.Series, field: Field) -> pl.Series:
    """Return Spark's `xxhash64(type, value)` of the values of a column, and NULL for NULL."""
    import polars as pl

    from slackwater.core.numba_hashing import hash_keys_compiled  # imported on use, because it imports Numba

    seed = spark_xxhash64((field.type,), (Field("type", "string"),))
    return pl.Series(hash_keys_compiled([column.to_arrow()], [field], seed)).set(column.is_null(), None)
