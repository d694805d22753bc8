"""Engine of `LocalPipeline`. It runs the same shard tasks as the Spark engine, one at a time in this process.

    batch ─▶ row preparer, with or without Spark ─▶ event times and columns of the rows ─▶ shard tasks

A test takes milliseconds, because it uses no shuffle, no Python worker and no streaming query.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial, singledispatch
from typing import Any, Protocol

import numpy as np
import polars as pl

from slackwater.connectors.source import Batch
from slackwater.core.hashing import shard_of
from slackwater.core.schema import ANYTHING, ValueLimits
from slackwater.engine.engine_interface import IngestOutcome, SourceStats, UnstorableRows
from slackwater.errors import raise_unregistered
from slackwater.operators import unstorable_rows
from slackwater.operators.base import NonWindowOperator, Operator, ShardCount, ShardTask, ingest_and_emit
from slackwater.operators.dead_letters import ORIGIN, OUTSIDE, build_bad_row_dead_letters, write_late_dead_letters
from slackwater.operators.interval_join import IntervalJoinOperator
from slackwater.operators.keyed_operator_base import KeyedOperator
from slackwater.operators.reports import DeadLetterFile, EmitReport
from slackwater.operators.stateless import StatelessOperator
from slackwater.operators.window_operator_base import WindowOperator
from slackwater.operators.window_operators import PaneWindowOperator, SessionWindowOperator
from slackwater.testing.stub_sources import NUMBER
from slackwater.watermark import CONFIRMS, SourceActivity, Span
from slackwater.windows import pane_windows


@dataclass(frozen=True)
class PreparedRows:
    """Rows of a source with their event times and columns.

    Args:
        timed: `__number`, `ts` (µs), `bad` (why the row is bad, or NULL), `partition` and `_origin` of every row.
        rows: The results of the SQL: the columns for the shards, `__unfit` (why a result cannot be stored, or NULL),
            and `__number` of the input row.
    """

    timed: pl.DataFrame
    rows: pl.DataFrame


class RowPreparer(Protocol):
    """Interface for evaluating event times and SQL, with Spark (`SparkRowPreparer`) or without (`PolarsRowPreparer`)."""

    @property
    def logic(self) -> Operator: ...

    @property
    def source_names(self) -> Sequence[str]: ...

    def prepare_source(self, name: str, batch: Batch, clock_us: int, capacity: ValueLimits) -> PreparedRows:
        """Prepare the rows of one source.

        Args:
            name: The name of the source.
            batch: The batch that contains the rows.
            clock_us: The processing time (µs).
            capacity: The limits on values that the target and the state can store.
        """
        ...

    def payload(self, rows: pl.DataFrame) -> Any:
        """Convert the results of an upstream stage to the form in which a batch contains the rows of a source."""
        ...

    def replay_rows(self, payload: Mapping[str, Any], clock_us: int, capacity: ValueLimits) -> pl.DataFrame: ...

    def validate_dead_letters(self, payload: Mapping[str, Any], clock_us: int) -> pl.DataFrame: ...


@dataclass(frozen=True)
class LocalEngine:
    """Engine that runs shard tasks one at a time.

    `early_statistics`: whether to return statistics before the read, as is done for Parquet.
    """

    preparer: RowPreparer
    early_statistics: bool = False

    @property
    def _logic(self) -> Operator:
        return self.preparer.logic

    def statistics_before_read(self, batch: Batch, clock_us: int) -> Mapping[str, SourceStats]:
        prepared = self._prepare(batch, clock_us, ANYTHING) if self.early_statistics else {}
        return {name: _stats(rows.timed, batch.partitions.get(name, {})) for name, rows in prepared.items()}

    def _prepare(self, batch: Batch, clock_us: int, capacity: ValueLimits) -> dict[str, PreparedRows]:
        return {
            name: self.preparer.prepare_source(name, batch, clock_us, capacity)
            for name in self.preparer.source_names
            if batch.payload.get(name) is not None
        }

    def ingest(
        self, batch: Batch, tasks: Sequence[ShardTask], clock_us: int, idle: Mapping[str, Sequence[str]]
    ) -> IngestOutcome:
        """Run the shard tasks over a batch. See `engine.engine_interface.Engine`."""
        names = self.preparer.source_names
        prepared = self._prepare(batch, clock_us, tasks[0].capacity)
        stats: dict[str, SourceStats] = {}
        samples: dict[str, list[str]] = {}
        unfit, staged = list[UnstorableRows](), list[DeadLetterFile]()
        parts, origins = list[pl.DataFrame](), list[pl.DataFrame]()
        tagged = len(names) > 1 or any(idle.values()) or 0 in tasks[0].idle_sources
        for index, name in enumerate(names):
            batch_partitions = batch.partitions.get(name, {})
            if (rows := prepared.get(name)) is None:
                if batch_partitions:
                    stats[name] = SourceStats(partitions=dict.fromkeys(batch_partitions, SourceActivity(0, None)))
                continue
            stats[name] = _stats(rows.timed, batch_partitions)
            samples[name] = self._stage_bad_rows(rows.timed, tasks[0], staged)
            out = self._storable_rows(name, rows, tasks[0], unfit, staged).sort(NUMBER, maintain_order=True)
            timed_rows = out.select(NUMBER).join(rows.timed, on=NUMBER, how="left", maintain_order="left")
            source = np.full(out.height, index)
            if idle.get(name) and batch_partitions:
                source += len(names) * timed_rows["partition"].is_in(list(idle[name])).fill_null(False).to_numpy()
            tag = [pl.Series("__src", source, dtype=pl.Int32)] if tagged else []
            parts.append(out.drop(NUMBER, unstorable_rows.UNFIT).with_columns(tag))
            keys = out.select(self._logic.key_names if isinstance(self._logic, PaneWindowOperator) else [])
            origins.append(timed_rows.select(pl.col("ts").alias("__start"), ORIGIN).with_columns(*tag, *keys))
        spans = partial(_newest_spans_by_partition, {n: p.timed for n, p in prepared.items()})
        bad = {n: s for n, s in samples.items() if s}
        reports = self._run(tasks, parts, origins, staged) if parts else ()
        return IngestOutcome(reports, stats, bad, unstorable=unfit, staged=staged, spans=spans)

    def _run(
        self,
        tasks: Sequence[ShardTask],
        parts: Sequence[pl.DataFrame],
        origins: Sequence[pl.DataFrame],
        staged: list[DeadLetterFile],
    ) -> list[Any]:
        all_rows, origin, folded = pl.concat(parts), pl.concat(origins), self._logic.is_preaggregated
        all_rows = lift_inputs(self._logic, cast_to_declared(self._logic, all_rows))
        owner = pl.Series(shard_of(all_rows["__kh"].to_numpy(), len(tasks)))
        shard_masks = [(t, owner == t.shard) for t in tasks]
        reports = [
            ingest_and_emit(t, all_rows.filter(m), None if folded else origin[ORIGIN].filter(m)) for t, m in shard_masks
        ]
        if folded and tasks[0].late is not None:
            late = origin.filter(pl.col("__start") < tasks[0].operator.late_threshold(tasks[0].watermark))
            staged += [write_late_dead_letters(tasks[0], late)] if late.height else []
        return reports

    def _stage_bad_rows(self, timed: pl.DataFrame, task: ShardTask, staged: list[DeadLetterFile]) -> list[str]:
        """Return samples of the bad rows. Add their dead letters to `staged` if the config stores bad rows."""
        bad = timed.filter(pl.col("bad").is_not_null())
        if bad.height and task.keeps_bad:
            sane = pl.when(pl.col("bad") != OUTSIDE).then(pl.col("ts"))
            rows = bad.select(pl.col("bad").alias(unstorable_rows.UNFIT), sane.alias("__start"), ORIGIN)
            staged.append(self._write_letters(rows, task))
        text = pl.col(ORIGIN).struct.field("value").cast(pl.String, strict=False).str.slice(0, 300)
        return [f"{why}: {value}" for why, value in bad.head(3).select("bad", text).iter_rows()]

    def _write_letters(self, rows: pl.DataFrame, task: ShardTask) -> DeadLetterFile:
        letters = build_bad_row_dead_letters(
            rows, pl.col(unstorable_rows.UNFIT), task.state.epoch, self._logic.pipeline
        )
        reasons = dict(rows[unstorable_rows.UNFIT].value_counts().iter_rows())
        return DeadLetterFile(output=task.state.write_output(letters), reasons=reasons)

    def _storable_rows(
        self,
        source: str,
        rows: PreparedRows,
        task: ShardTask,
        unfit: list[UnstorableRows],
        staged: list[DeadLetterFile],
    ) -> pl.DataFrame:
        """Return the rows that can be stored.

        Args:
            source: The name of the source.
            rows: The prepared rows.
            task: The task of the first shard.
            unfit: Receives counts and samples of the rows that cannot be stored.
            staged: Receives the dead letters of these rows if the config stores bad rows.
        """
        why = rows.rows[unstorable_rows.UNFIT]
        if not why.len() - why.null_count():
            return rows.rows
        bad = rows.rows.filter(why.is_not_null()).select(NUMBER, unstorable_rows.UNFIT)
        bad_rows = bad.join(rows.timed, on=NUMBER, how="left", maintain_order="left")
        text = pl.col(ORIGIN).struct.field("value").cast(pl.String, strict=False).str.slice(0, 300)
        samples = [f"{why}: {value}" for why, value in bad_rows.head(3).select(unstorable_rows.UNFIT, text).iter_rows()]
        unfit.append(UnstorableRows(source, dict(bad[unstorable_rows.UNFIT].value_counts().iter_rows()), samples))
        if task.keeps_bad:
            staged.append(
                self._write_letters(bad_rows.select(unstorable_rows.UNFIT, pl.col("ts").alias("__start"), ORIGIN), task)
            )
        return rows.rows.filter(why.is_null())

    def payload(self, rows: pl.DataFrame) -> Any:
        return self.preparer.payload(rows)

    def replay_rows(self, payload: Mapping[str, Any], clock_us: int, capacity: ValueLimits = ANYTHING) -> pl.DataFrame:
        return self.preparer.replay_rows(payload, clock_us, capacity)

    def validate_dead_letters(self, payload: Mapping[str, Any], clock_us: int) -> pl.DataFrame:
        return self.preparer.validate_dead_letters(payload, clock_us)

    def emit(self, tasks: Sequence[ShardTask]) -> Sequence[EmitReport]:
        return [t.operator.emit(t) for t in tasks]

    def count(self, tasks: Sequence[ShardTask], shard_count: ShardCount) -> Mapping[int, int]:
        return sum((Counter(shard_count(t)) for t in tasks), Counter())


def _stats(timed: pl.DataFrame, batch_partitions: Mapping[str, int]) -> SourceStats:
    usable, why = timed.filter(pl.col("bad").is_null()), timed["bad"]
    newest = usable["ts"].max()
    newest_times = {p: usable["ts"].filter(usable["partition"] == p).max() for p in batch_partitions}
    counts = {p: int((timed["partition"] == p).sum()) for p in batch_partitions}
    return SourceStats(
        timed.height,
        usable.height,
        newest if isinstance(newest, int) else None,
        undecodable=int((why == "undecodable").sum()),
        future=int((why == "future").sum()),
        partitions={p: SourceActivity(counts[p], t if isinstance(t, int) else None) for p, t in newest_times.items()},
        outside=int((why == OUTSIDE).sum()),
    )


def _newest_spans_by_partition(
    timed: Mapping[str, pl.DataFrame], source: str, jump_us: int
) -> Mapping[str, tuple[Span, ...]]:
    """Return the newest spans of event times by partition ("" for the whole source), from which clocks detect jumps."""
    rows = timed[source].filter(pl.col("bad").is_null())
    partitions = rows["partition"].drop_nulls().unique().to_list()
    return {"": _newest_spans(rows, jump_us)} | {
        p: _newest_spans(rows.filter(pl.col("partition") == p), jump_us) for p in partitions
    }


def _newest_spans(rows: pl.DataFrame, jump_us: int) -> tuple[Span, ...]:
    times = pl.col("ts")
    buckets = rows.group_by(times.floordiv(max(jump_us, 1)).alias("b")).agg(
        times.min().alias("low"), times.max().alias("high"), times.len().alias("n")
    )
    newest = buckets.sort("b", descending=True).head(CONFIRMS)
    return tuple(newest.select("low", "high", "n").iter_rows())


@singledispatch
def cast_to_declared(operator: Operator, frame: pl.DataFrame) -> pl.DataFrame:
    """Cast the columns that the SQL selects to the types that the step was bound to."""
    raise_unregistered(operator, "slackwater.testing.local_engine.cast_to_declared")


@cast_to_declared.register(WindowOperator)
def _(operator: WindowOperator, frame: pl.DataFrame) -> pl.DataFrame:
    typed = {k.name: k.polars for k in operator.keys} | {i.field.name: i.field.polars for i in operator.inputs}
    return frame.with_columns(frame[n].cast(t) for n, t in typed.items())


@cast_to_declared.register(NonWindowOperator)
def _(operator: Operator, frame: pl.DataFrame) -> pl.DataFrame:
    return frame


@singledispatch
def lift_inputs(operator: Operator, frame: pl.DataFrame) -> pl.DataFrame:
    """Convert the columns that the SQL selects to the columns that `operator.ingest` expects. For windows, also lift the rows."""
    raise_unregistered(operator, "slackwater.testing.local_engine.lift_inputs")


@lift_inputs.register(IntervalJoinOperator)
@lift_inputs.register(KeyedOperator)
def _(operator: Operator, frame: pl.DataFrame) -> pl.DataFrame:
    return frame


@lift_inputs.register
def _(operator: PaneWindowOperator, frame: pl.DataFrame) -> pl.DataFrame:
    if not operator.preaggregates_in_sql:
        return pane_windows.lift_rows(operator, frame)
    lifted = operator.lift_rows(frame)
    return lifted.with_columns(
        pl.Series("__start", pane_windows.pane_start(operator, lifted["__ts"].to_numpy())),
        pl.lit(1, pl.Int64).alias("__n"),
        pl.col("__ts").alias("__first"),
    ).drop("__ts")


@lift_inputs.register
def _(operator: SessionWindowOperator, frame: pl.DataFrame) -> pl.DataFrame:
    return operator.lift_rows(frame)


@lift_inputs.register
def _(operator: StatelessOperator, frame: pl.DataFrame) -> pl.DataFrame:
    """Distribute the rows over the shards round-robin. On Spark, a row belongs to the shard whose task reads it."""
    return frame.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("__kh"))
