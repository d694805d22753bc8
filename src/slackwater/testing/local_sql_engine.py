"""An engine for tests: Spark evaluates event time and SQL, and this process computes windows and joins.

`testing.spark_row_preparation` evaluates the SQL, so a shard gets the same rows as on Spark. There is no shuffle, no
Python worker and no streaming query, so a test takes milliseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from slackwater.connectors.source import Batch
from slackwater.core.hashing import shard_of
from slackwater.core.schema import ANYTHING, ValueLimits
from slackwater.engine.engine_interface import IngestOutcome, SourceStats, UnstorableRows
from slackwater.operators import storability
from slackwater.operators.base import Operator, Question, ShardTask, ingest_and_emit
from slackwater.operators.dead_letters import ORIGIN, OUTSIDE, build_bad_row_letters, write_late_letters
from slackwater.operators.panes import PaneOperator
from slackwater.operators.reports import EmitReport, LetterFile
from slackwater.testing.in_process_engine import NewestSpans, cast_to_declared, lift_inputs
from slackwater.testing.spark_row_preparation import InputRows, PreparedRows, SparkRowPreparer
from slackwater.testing.stub_sources import NUMBER, Offsets
from slackwater.watermark import SourceActivity


@dataclass
class LazyRows:
    """Rows of a source that are prepared on first use, once for each step that reads them.

    Args:
        input_rows: The rows of the test.
        offsets: The next offset of each topic partition before these rows.
        next_offsets: The next offset of each topic partition after these rows.
        prepared: The prepared rows, by the id of the row preparer.
    """

    input_rows: InputRows
    offsets: Offsets
    next_offsets: Offsets = field(default_factory=dict)
    prepared: dict[int, PreparedRows] = field(default_factory=dict)

    def prepare(self, front: SparkRowPreparer) -> PreparedRows:
        """Return the rows as the row preparer `front` prepares them."""
        if id(front) not in self.prepared:
            self.next_offsets = dict(self.offsets)
            (self.prepared[id(front)],) = front.prepare([self.input_rows], self.next_offsets)
        return self.prepared[id(front)]

    @property
    def timed(self) -> pl.DataFrame:
        """Return `PreparedRows.timed` of any row preparer; the partitions of the rows are the same for all of them."""
        return next(iter(self.prepared.values())).timed


Rows = PreparedRows | LazyRows  # the rows of a source in a batch


@dataclass(frozen=True)
class LocalSqlEngine:
    """Runs shard tasks one at a time over rows that the row preparer `front` prepares with Spark."""

    front: SparkRowPreparer
    logic: Operator

    def _prepare_batch(self, batch: Batch, clock_us: int) -> Mapping[str, PreparedRows]:
        """Return the prepared rows of a batch, by source.

        Dead letters and results of other stages arrive as DataFrames that are not prepared yet.
        """
        return {name: self._prepare_source(name, rows, clock_us) for name, rows in batch.payload.items()}

    def statistics_before_read(self, batch: Batch, clock_us: int) -> Mapping[str, SourceStats]:
        """Return no statistics, because rows are prepared when they are ingested."""
        return {}

    def _prepare_source(self, name: str, rows: Any, clock_us: int) -> PreparedRows:
        if isinstance(rows, LazyRows):
            return rows.prepare(self.front)
        return rows if isinstance(rows, PreparedRows) else self.front.prepare_frame(name, rows, clock_us)

    def ingest(
        self, batch: Batch, tasks: Sequence[ShardTask], clock_us: int, idle: Mapping[str, Sequence[str]]
    ) -> IngestOutcome:
        """Run the shard tasks over a batch. See `engine.engine_interface.Engine`."""
        names = [s.name for s in self.front.sources]
        prepared_rows = self._prepare_batch(batch, clock_us)
        stats: dict[str, SourceStats] = {}
        samples: dict[str, list[str]] = {}
        unfit, staged = list[UnstorableRows](), list[LetterFile]()
        parts, origins = list[pl.DataFrame](), list[pl.DataFrame]()
        tagged = len(names) > 1 or any(idle.values()) or 0 in tasks[0].idle_sources
        for index, name in enumerate(names):
            batch_partitions = batch.partitions.get(name, {})
            if (rows := prepared_rows.get(name)) is None:
                if batch_partitions:
                    stats[name] = SourceStats(partitions=dict.fromkeys(batch_partitions, SourceActivity(0, None)))
                continue
            stats[name] = _stats(rows.timed, batch_partitions)
            samples[name] = self._stage_bad_rows(name, rows.timed, tasks[0], staged)
            out = self._storable_rows(name, rows, tasks[0], unfit, staged).sort(NUMBER, maintain_order=True)
            timed_rows = out.select(NUMBER).join(rows.timed, on=NUMBER, how="left", maintain_order="left")
            source = np.full(out.height, index)
            if idle.get(name) and batch_partitions:
                source += len(names) * timed_rows["partition"].is_in(list(idle[name])).fill_null(False).to_numpy()
            tag = [pl.Series("__src", source, dtype=pl.Int32)] if tagged else []
            parts.append(out.drop(NUMBER, storability.UNFIT).with_columns(tag))
            keys = out.select(self.logic.key_names if isinstance(self.logic, PaneOperator) else [])
            origins.append(timed_rows.select(pl.col("ts").alias("__start"), ORIGIN).with_columns(*tag, *keys))
        spans = NewestSpans(
            {n: _usable_times(p.timed) for n, p in prepared_rows.items()}, dict.fromkeys(prepared_rows, _FOREVER)
        )
        bad = {n: s for n, s in samples.items() if s}
        reports = self._run(tasks, parts, origins, staged) if parts else ()
        return IngestOutcome(reports, stats, bad, unstorable=unfit, staged=staged, spans=spans)

    def _run(
        self,
        tasks: Sequence[ShardTask],
        parts: Sequence[pl.DataFrame],
        origins: Sequence[pl.DataFrame],
        staged: list[LetterFile],
    ) -> list[Any]:
        all_rows, origin, folded = pl.concat(parts), pl.concat(origins), self.logic.is_preaggregated
        all_rows = lift_inputs(self.logic, cast_to_declared(self.logic, all_rows))
        owner = pl.Series(shard_of(all_rows["__kh"].to_numpy(), len(tasks)))
        shard_masks = [(t, owner == t.shard) for t in tasks]
        reports = [
            ingest_and_emit(t, all_rows.filter(m), None if folded else origin[ORIGIN].filter(m)) for t, m in shard_masks
        ]
        if folded and tasks[0].late is not None:
            late = origin.filter(pl.col("__start") < tasks[0].operator.late_before(tasks[0].watermark))
            staged += [write_late_letters(tasks[0], late)] if late.height else []
        return reports

    def _stage_bad_rows(self, source: str, timed: pl.DataFrame, task: ShardTask, staged: list[LetterFile]) -> list[str]:
        """Return samples of the bad rows. If bad rows become dead letters, also add these to `staged`."""
        bad = timed.filter(pl.col("bad").is_not_null())
        if bad.height and task.keeps_bad:
            sane = pl.when(pl.col("bad") != OUTSIDE).then(pl.col("ts"))
            rows = bad.select(pl.col("bad").alias(storability.UNFIT), sane.alias("__start"), ORIGIN)
            staged.append(self._write_letters(rows, task))
        text = pl.col(ORIGIN).struct.field("value").cast(pl.String, strict=False).str.slice(0, 300)
        return [f"{why}: {value}" for why, value in bad.head(3).select("bad", text).iter_rows()]

    def _write_letters(self, rows: pl.DataFrame, task: ShardTask) -> LetterFile:
        letters = build_bad_row_letters(rows, pl.col(storability.UNFIT), task.state.epoch, self.logic.pipeline)
        reasons = dict(rows[storability.UNFIT].value_counts().iter_rows())
        return LetterFile(output=task.state.write_output(letters), reasons=reasons)

    def _storable_rows(
        self, source: str, rows: PreparedRows, task: ShardTask, unfit: list[UnstorableRows], staged: list[LetterFile]
    ) -> pl.DataFrame:
        """Return the rows that can be stored, and add the others to `unfit`.

        If bad rows become dead letters, also add these to `staged`.
        """
        why = rows.rows[storability.UNFIT]
        if not why.len() - why.null_count():
            return rows.rows
        bad = rows.rows.filter(why.is_not_null()).select(NUMBER, storability.UNFIT)
        bad_rows = bad.join(rows.timed, on=NUMBER, how="left", maintain_order="left")
        text = pl.col(ORIGIN).struct.field("value").cast(pl.String, strict=False).str.slice(0, 300)
        samples = [f"{why}: {value}" for why, value in bad_rows.head(3).select(storability.UNFIT, text).iter_rows()]
        unfit.append(UnstorableRows(source, dict(bad[storability.UNFIT].value_counts().iter_rows()), samples))
        if task.keeps_bad:
            staged.append(
                self._write_letters(bad_rows.select(storability.UNFIT, pl.col("ts").alias("__start"), ORIGIN), task)
            )
        return rows.rows.filter(why.is_null())

    def payload(self, rows: pl.DataFrame) -> Any:
        """Return the results of the previous stage as a DataFrame, which `ingest` prepares later."""
        return self.front.session.createDataFrame(rows.to_arrow(compat_level=pl.CompatLevel.oldest()))

    def replay_rows(self, payload: Mapping[str, Any], clock_us: int, capacity: ValueLimits = ANYTHING) -> pl.DataFrame:
        return self.front.engine.replay_rows(payload, clock_us, capacity)

    def validate_letters(self, payload: Mapping[str, Any], clock_us: int) -> pl.DataFrame:
        return self.front.engine.validate_letters(payload, clock_us)

    def emit(self, tasks: Sequence[ShardTask]) -> Sequence[EmitReport]:
        return [t.operator.emit(t) for t in tasks]

    def count(self, tasks: Sequence[ShardTask], question: Question) -> Mapping[int, int]:
        return sum((Counter(question(t)) for t in tasks), Counter())


_FOREVER = 2**62


def _usable_times(timed: pl.DataFrame) -> pl.DataFrame:
    """Return the event times and the partitions of the usable rows, in the form that `NewestSpans` expects."""
    rows = timed.filter(pl.col("bad").is_null())
    partition = [] if rows["partition"].null_count() == rows.height else [pl.col("partition").alias("__partition")]
    return rows.select("ts", *partition)


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


__all__ = ["LazyRows", "LocalSqlEngine", "Rows"]
