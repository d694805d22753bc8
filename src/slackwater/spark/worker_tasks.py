"""Run tasks in Spark's Python workers, one task per partition of a job, or in the driver, and return their reports.

partition of a job ─▶ one Arrow table ─▶ task ─▶ its report as text, or the text and class name of a SlackwaterError
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial, singledispatch
from typing import TYPE_CHECKING, TypeVar

from slackwater import errors
from slackwater.connectors.source import spark_error_reason
from slackwater.connectors.spark_worker_socket import send_acknowledgments
from slackwater.core.column_names import quote_identifier
from slackwater.core.dead_letter_columns import LETTER
from slackwater.core.hashing import mix_bits
from slackwater.core.humanize import plural
from slackwater.engine.next_commit import format_late_sample
from slackwater.errors import BadRowError, EpochError, ResourceExhaustedError, SlackwaterError, raise_unregistered
from slackwater.joins import match_rows as joining
from slackwater.joins.compiled_join import ShuffleColumns
from slackwater.joins.join_buffers import EmptyBuffers
from slackwater.operators import dead_letters
from slackwater.operators.base import Operator, ShardCount, ShardTask, ingest_and_emit
from slackwater.operators.interval_join import IntervalJoinOperator
from slackwater.operators.reports import DeadLetterFile, IngestReport
from slackwater.operators.user_keyed_operator import UserKeyedOperator
from slackwater.operators.window_operator_base import WindowOperator
from slackwater.operators.window_operators import PaneWindowOperator, SessionWindowOperator
from slackwater.spark import operator_input
from slackwater.spark.operator_input import to_ingest_rows
from slackwater.spark.tuning import worker_memory
from slackwater.spark.tuning.expression_cache import ExpressionCache
from slackwater.spark.tuning.shuffle_tuning import ArrowBatchSizer
from slackwater.state.protocol import ShardState
from slackwater.watermark import NO_WATERMARK
from slackwater.windows import pane_emission, pane_windows, session_emission
from slackwater.windows.compiled_window import EmitResult
from slackwater.windows.state_layout import FAR

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


Task = Callable[["pa.Table"], str]
Report = TypeVar("Report")


def run_on_partitions(
    frame: DataFrame,
    names: list[str],
    task: Task,
    expressions: ExpressionCache | None = None,
    batches: ArrowBatchSizer | None = None,
) -> list[str]:
    """Run a task on each partition of a DataFrame, and return the reports.

    Args:
        frame: The DataFrame.
        names: The names of its columns in the table that the task receives.
        task: The task.
        expressions: A cache of Spark expressions.
        batches: The policy that chooses the size of Arrow batches.

    Raises:
        SlackwaterError: A task raised this error.
        EpochError: A task failed for another reason.
    """
    sizes = batches or ArrowBatchSizer()
    # Columns are renamed, because mapInArrow treats a dot in a name as a path separator.
    plain = (expressions or ExpressionCache()).select(
        frame, [f"{quote_identifier(name)} AS c{i}" for i, name in enumerate(names)], schema_key="plain"
    )
    try:
        with sizes.limit_batches(plain):
            rows = plain.mapInArrow(partial(run_partition, names, task), _report_schema()).collect()
    except Exception as error:
        raise EpochError(f"the epoch failed and was not committed: {spark_error_reason(error)}") from error
    failed = [(getattr(errors, row["error"]), row["report"]) for row in rows if row["error"]]
    if failed:  # if Spark must run the epoch again, other errors may not occur
        kind, message = min(failed, key=lambda error: error[0] is not errors.NeedsSparkError)
        raise kind(message)
    sizes.observe([(row["rows"], row["bytes"]) for row in rows])
    return [row["report"] for row in rows]


def run_partition(names: Sequence[str], task: Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run a task in a worker on one partition, and yield its report. An empty partition yields nothing.

    Args:
        names: The names of the columns in the table that the task receives.
        task: The task.
        batches: The content of the partition.
    """
    worker_memory.prepare_worker()
    import polars as pl
    import pyarrow as pa

    send_acknowledgments()
    record_batches = list(batches)
    if not record_batches:
        return
    sizes = {"rows": [sum(b.num_rows for b in record_batches)], "bytes": [sum(b.nbytes for b in record_batches)]}
    try:
        report, error = task(pa.Table.from_batches(record_batches).rename_columns(names)), ""
    except SlackwaterError as raised:
        report, error = str(raised), type(raised).__name__
    answer = pl.DataFrame({"report": [report], "error": [error], **sizes})  # PyArrow would import pandas for lists
    yield from answer.to_arrow(compat_level=pl.CompatLevel.oldest()).to_batches()
    worker_memory.exempt_objects_from_gc()


@cache
def _report_schema() -> StructType:
    from pyspark.sql.types import LongType, StringType, StructField, StructType

    texts = [StructField(name, StringType()) for name in ("report", "error")]
    return StructType([*texts, StructField("rows", LongType()), StructField("bytes", LongType())])


@dataclass(frozen=True)
class PackedTasks:
    """The tasks of all shards, in the form that is sent to every worker.

    Each task is pickled separately, and a worker unpickles only its own task. Otherwise, the cost of an epoch would
    grow with the square of the number of shards.
    """

    operator: Operator
    each: tuple[bytes, ...]

    @classmethod
    def pack(cls, tasks: Sequence[ShardTask]) -> PackedTasks:
        """Pack the tasks of one stage. The tasks must be in shard order."""
        from pyspark import cloudpickle

        bare: Sequence[object] = [{**vars(t), "operator": None} for t in tasks]
        return cls(tasks[0].operator, tuple(cloudpickle.dumps(fields) for fields in bare))  # type: ignore[no-untyped-call]

    def task(self, number: int) -> ShardTask:
        """Return the task of the shard with this number."""
        from pyspark import cloudpickle

        return ShardTask(**{**cloudpickle.loads(self.each[number]), "operator": self.operator})


def ingest_task(tasks: Sequence[ShardTask]) -> Task:
    """Return a task that ingests the rows of a partition into the shard with the number of the partition."""
    packed = PackedTasks.pack(tasks)

    def run(table: pa.Table) -> str:
        import polars as pl
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        rows = pl.from_arrow(table)
        assert isinstance(rows, pl.DataFrame)
        return ingest_rows(packed.task(context.partitionId()), rows).model_dump_json()

    return run


def ingest_task_for_all_shards(tasks: Sequence[ShardTask]) -> Task:
    """Return a task that ingests the rows of all shards, and returns one line per shard: its report.

    The column `__shard` contains the number of a row's shard. Shards without rows have no report.
    """
    packed = PackedTasks.pack(tasks)

    def run(table: pa.Table) -> str:
        import polars as pl

        rows = pl.from_arrow(table)
        assert isinstance(rows, pl.DataFrame)
        by_shard = rows.partition_by("__shard", as_dict=True, include_key=False)
        reports = (ingest_rows(packed.task(shard), by_shard[shard,]) for (shard,) in sorted(by_shard))
        return "\n".join(report.model_dump_json() for report in reports)

    return run


def ingest_in_driver(tasks: Sequence[ShardTask], rows: pl.DataFrame) -> list[IngestReport]:
    """Ingest the rows of all shards in the driver. See `ingest_task_for_all_shards` for the rows.

    Raises:
        SlackwaterError: A shard raised this error.
        EpochError: A shard failed for another reason.
    """
    if rows.is_empty():
        return []
    by_shard = rows.partition_by("__shard", as_dict=True, include_key=False)
    shards = [tasks[number] for (number,) in sorted(by_shard)]

    def ingest(task: ShardTask) -> IngestReport:
        try:
            return ingest_rows(task, by_shard[task.shard,])
        except (SlackwaterError, KeyboardInterrupt):
            raise
        except BaseException as error:  # also a panic of Polars, and whatever user code raises
            reason = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}".strip()
            raise ResourceExhaustedError.from_error(error) or EpochError(
                f"the epoch failed and was not committed: {reason}"
            ) from error

    return run_in_driver(tasks[0].operator, shards, ingest)


def run_in_driver(operator: Operator, tasks: Sequence[ShardTask], run: Callable[[ShardTask], Report]) -> list[Report]:
    """Run tasks of shards in the driver, and return their reports.

    Each task has its own thread. If the operator calls user code, which may not be thread-safe, the tasks run one after
    another in the thread of the caller.
    """
    if isinstance(operator, UserKeyedOperator) or any(a.module for a in operator_input.worker_aggregations(operator)):
        return [run(task) for task in tasks]
    with ThreadPoolExecutor(len(tasks)) as pool:
        return list(pool.map(run, tasks))


def ingest_rows(task: ShardTask, rows: pl.DataFrame) -> IngestReport:
    """Ingest rows from Spark into a shard, and return the report."""
    origins = rows.drop_in_place("__origin") if "__origin" in rows.columns else None
    return ingest_and_emit(task, operator_input.to_ingest_rows(task.operator, rows), origins)


def dead_letters_task(state: ShardState) -> Task:
    """Return a task that writes dead letters, which are the rows of a partition, to the staged output."""

    def run(table: pa.Table) -> str:
        import polars as pl

        frame = pl.from_arrow(table)
        assert isinstance(frame, pl.DataFrame)
        letters = frame.cast({f.name: f.polars for f in LETTER})
        reasons = dict(letters["reason"].value_counts().iter_rows())
        return DeadLetterFile(output=state.write_output(letters), reasons=reasons).model_dump_json()

    return run


def late_task(task: ShardTask) -> Task:
    """Return a task that writes dead letters for the late rows in a partition."""

    def run(table: pa.Table) -> str:
        import polars as pl

        rows = pl.from_arrow(table)
        assert isinstance(rows, pl.DataFrame)
        return dead_letters.write_late_dead_letters(task, rows).model_dump_json()

    return run


def emit_task(tasks: Sequence[ShardTask]) -> Task:
    """Return a task that emits the results of a shard. The only row of each partition contains the shard number."""
    packed = PackedTasks.pack(tasks)

    def run(table: pa.Table) -> str:
        task = packed.task(table.column(0)[0].as_py())
        return task.operator.emit(task).model_dump_json()

    return run


def count_task(tasks: Sequence[ShardTask], shard_count: ShardCount) -> Task:
    packed = PackedTasks.pack(tasks)

    def run(table: pa.Table) -> str:
        return json.dumps(dict(shard_count(packed.task(table.column(0)[0].as_py()))))

    return run


# -- batch queries -------------------------------------------------------------------------------------------------------


ShardFunction = Callable[["pl.DataFrame"], "pl.DataFrame"]
END_WATERMARK = "__upto"  # hidden column with the final watermark, which is the same in every row


def make_window_shard_function(operator: Operator) -> ShardFunction:
    """Return a function that computes the closed windows of a shard from all its rows."""

    def process(rows: pl.DataFrame) -> pl.DataFrame:
        end_watermark = rows[END_WATERMARK][0] if END_WATERMARK in rows.columns else FAR
        return _compute_windows(operator, rows.drop(END_WATERMARK, strict=False), end_watermark)

    return process


@singledispatch
def _compute_windows(operator: Operator, rows: pl.DataFrame, end_watermark: int) -> pl.DataFrame:
    """Return the windows of a shard that have closed at the watermark `end_watermark`."""
    raise_unregistered(operator, "slackwater.spark.worker_tasks.make_window_shard_function")


@_compute_windows.register(PaneWindowOperator)
def _(operator: PaneWindowOperator, rows: pl.DataFrame, end_watermark: int) -> pl.DataFrame:
    import polars as pl

    rows = to_ingest_rows(operator, rows)
    rows = rows.with_columns(pl.Series("__h", mix_bits(rows["__kh"].to_numpy(), rows["__start"].to_numpy())))
    done = pane_windows.ingest_panes(operator, rows, operator.empty_state(), NO_WATERMARK)
    return _output(operator, pane_emission.emit_windows(operator, done.state, NO_WATERMARK, end_watermark))


@_compute_windows.register(SessionWindowOperator)
def _(operator: SessionWindowOperator, rows: pl.DataFrame, end_watermark: int) -> pl.DataFrame:
    if operator.dynamic and rows["__end"].null_count():
        _raise_bad_gaps(operator, rows.filter(rows["__end"].is_null()))
    from slackwater.windows import session_ingest  # imported only here, because it compiles loops

    rows = to_ingest_rows(operator, rows)
    done = session_ingest.ingest_session_rows(operator, rows, operator.empty_state(), NO_WATERMARK)
    return _output(operator, session_emission.emit_sessions(operator, done.state, NO_WATERMARK, end_watermark))


def _output(operator: WindowOperator, emitted: EmitResult) -> pl.DataFrame:
    return operator.sorted_output(operator.output_frame(emitted))


def _raise_bad_gaps(operator: SessionWindowOperator, bad: pl.DataFrame) -> None:
    sample = "; ".join(map(format_late_sample, operator.sample(bad, "__ts")))
    raise BadRowError(
        f"{operator.pipeline}: the gap ({operator.window.gap_ms}) must be positive and less than max_session_duration, "
        f"but for at least {plural(bad.height, 'row')} it is not: {sample}; correct the expression, or pass "
        'on_error="drop" to leave out such rows'
    )


@singledispatch
def make_join_shard_function(operator: Operator) -> ShardFunction:
    """Return a function that computes the join of a shard from the rows of both sides."""
    raise_unregistered(operator, "slackwater.spark.worker_tasks.make_join_shard_function")


@make_join_shard_function.register(IntervalJoinOperator)
def _(operator: IntervalJoinOperator) -> ShardFunction:
    logic = replace(operator, max_rows_per_key=None)

    def process(rows: pl.DataFrame) -> pl.DataFrame:
        import polars as pl

        slots, output = ShuffleColumns.from_logic(logic), list[pl.DataFrame]()
        new = {side.which: slots.select_side(rows, side.which, ["__kh", "__ts"]) for side in logic.sides}
        done = joining.ingest_rows(logic, new, EmptyBuffers(), NO_WATERMARK, 0, output.append)
        for side in logic.sides:
            lonely = done.changes[side.which].rows.filter(~pl.col("__matched"))
            if side.outer and lonely.height:
                output.append(logic.unmatched_rows(side.which, lonely))
        schema = {f.name: f.polars for f in logic.output}
        return (
            logic.sorted_output(pl.concat([f.select(list(schema)) for f in output]))
            if output
            else pl.DataFrame(schema=schema)
        )

    return process
