"""The in-process engine for tests, which runs the same shard tasks as the Spark engine, but without Spark.

The payload of a batch is one frame per source, with the source's columns and `ts` (event time in µs; NULL for a bad
row). If the batch lists partitions of a source, the column `__partition` has the partition of each row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any

import numpy as np
import polars as pl

from slackwater.connectors.source import Batch
from slackwater.core.hashing import key_hash, shard_of, spark_xxhash64
from slackwater.core.schema import ANYTHING, Field, ValueLimits
from slackwater.engine.engine_interface import IngestOutcome, SourceStats, UnstorableRows
from slackwater.errors import raise_unregistered
from slackwater.joins.compiled_join import ShuffleColumns
from slackwater.operators import storability
from slackwater.operators.base import NonWindowOperator, Operator, Question, ShardTask, ingest_and_emit
from slackwater.operators.dead_letters import ORIGIN, ORIGIN_FIELDS, build_bad_row_letters, write_late_letters
from slackwater.operators.interval_join import IntervalJoinOperator
from slackwater.operators.keyed import KeyedOperator
from slackwater.operators.panes import PaneOperator
from slackwater.operators.reports import EmitReport, LetterFile
from slackwater.operators.sessions import SessionOperator
from slackwater.operators.stateless import StatelessOperator
from slackwater.operators.window_base import WindowOperator
from slackwater.watermark import CONFIRMS, SourceActivity, Span
from slackwater.windows import pane_windows
from slackwater.windows.aggregations import AggregationInput, normalize_columns
from slackwater.windows.state_rows import FAR, Int64s


@dataclass(frozen=True)
class InProcessEngine:
    """Runs shard tasks one at a time.

    Args:
        logic: The operator of the step.
        sources: The names of the step's sources, in the order of the config.
        keeps_late: Whether late rows become dead letters.
        max_future_ms: How far event times may be after the clock (ms). Later rows are bad.
        inputs: The names of the step's inputs, by source; needed only if they differ from the source's name.
        foresees: Whether statistics are known before rows are read, as from Parquet footers.
    """

    logic: Operator
    sources: Sequence[str]
    keeps_late: bool = False
    max_future_ms: int = 3_600_000
    inputs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    foresees: bool = False

    def statistics_before_read(self, batch: Batch, clock_us: int) -> Mapping[str, SourceStats]:
        return {n: s for n in self.sources if (s := self._stats(batch, n, clock_us))} if self.foresees else {}

    def _latest_time_us(self, batch: Batch, name: str, clock_us: int) -> int:
        """Return the event time (µs) after which rows of the source `name` are bad.

        If the source is another stage, there is no such limit.
        """
        return FAR if name in batch.stage_names else clock_us + self.max_future_ms * 1000

    def _stats(self, batch: Batch, name: str, clock_us: int) -> SourceStats | None:
        rows, batch_partitions = batch.payload.get(name), batch.partitions.get(name, {})
        latest = self._latest_time_us(batch, name, clock_us)
        if rows is None or rows.is_empty():
            return (
                SourceStats(partitions=dict.fromkeys(batch_partitions, SourceActivity(0, None)))
                if batch_partitions
                else None
            )
        in_range = self._in_time_range(rows)
        usable = self._usable(rows, latest)
        newest = usable["ts"].max()
        return SourceStats(
            rows.height,
            usable.height,
            newest if isinstance(newest, int) else None,
            future=int((in_range & (rows["ts"] > latest)).sum()),
            outside=int((~in_range).sum()),
            partitions={p: _activity(rows, usable, p) for p in batch_partitions},
        )

    def _in_time_range(self, rows: pl.DataFrame) -> pl.Series:
        return rows["ts"].is_between(*storability.usable_times(self.logic))

    def _usable(self, rows: pl.DataFrame, latest: int) -> pl.DataFrame:
        """Return the rows whose event time is in the supported range and not after `latest` (µs)."""
        return rows.filter(self._in_time_range(rows) & (rows["ts"] <= latest))

    def _letter_keys(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the key columns that the dead letters of late rows need, in the declared types.

        Only tumbling and hopping windows need them; for other operators, the frame is empty.
        """
        if not isinstance(self.logic, PaneOperator):
            return pl.DataFrame()
        return normalize_columns(rows.select(self.logic.key_names), list(self.logic.keys))

    def ingest(
        self, batch: Batch, tasks: Sequence[ShardTask], clock_us: int, idle: Mapping[str, Sequence[str]]
    ) -> IngestOutcome:
        frames: Mapping[str, pl.DataFrame] = batch.payload
        latest = {name: self._latest_time_us(batch, name, clock_us) for name in self.sources}
        stats: dict[str, SourceStats] = {}
        prepared: list[pl.DataFrame] = []
        tagged = len(self.sources) > 1 or any(idle.values()) or 0 in tasks[0].idle_sources
        origins: list[pl.DataFrame] = []
        unfit, staged = list[UnstorableRows](), list[LetterFile]()
        for index, name in enumerate(self.sources):
            rows, batch_partitions = frames.get(name), batch.partitions.get(name, {})
            if (source_stats := self._stats(batch, name, clock_us)) is not None:
                stats[name] = source_stats
            if rows is None or rows.is_empty():
                continue
            usable = self._usable(rows, latest[name])
            for which in self.inputs.get(name, (name,)):
                fit = self._storable_rows(name, which, usable, tasks[0], unfit, staged)
                source = np.full(fit.height, index)
                if idle.get(name) and batch_partitions:
                    source += len(self.sources) * fit["__partition"].is_in(list(idle[name])).to_numpy()
                prepared.append(_prepare_rows(self.logic, which, fit, source if tagged else None))
                if self.keeps_late:
                    origin = _origins(name, fit, source if tagged else None)
                    origins.append(origin.with_columns(self._letter_keys(fit).get_columns()))
        if not prepared:
            return IngestOutcome((), stats, unstorable=unfit, staged=staged)
        spans = NewestSpans(frames, latest)
        all_rows = pl.concat(prepared)
        owner = pl.Series(shard_of(all_rows["__kh"].to_numpy(), len(tasks)))
        shard_masks = [(t, owner == t.shard) for t in tasks]
        origin_rows, folded = pl.concat(origins) if self.keeps_late else None, self.logic.is_preaggregated
        alongside = None if origin_rows is None or folded else origin_rows[ORIGIN]
        reports = [
            ingest_and_emit(t, all_rows.filter(m), None if alongside is None else alongside.filter(m))
            for t, m in shard_masks
        ]
        if origin_rows is not None and folded:
            late = origin_rows.filter(pl.col("__start") < tasks[0].operator.late_before(tasks[0].watermark))
            staged += [write_late_letters(tasks[0], late)] if late.height else []
        return IngestOutcome(reports, stats, unstorable=unfit, staged=staged, spans=spans)

    def _storable_rows(
        self,
        source: str,
        name: str,
        rows: pl.DataFrame,
        task: ShardTask,
        unfit: list[UnstorableRows],
        staged: list[LetterFile],
    ) -> pl.DataFrame:
        """Return the rows of the input `name` that can be stored.

        The other rows are added to `unfit`. If bad rows become dead letters, these are added to `staged`.
        """
        why = storability.unstorable_reason(self.logic, self.logic.input_index(name), task.capacity, rows)
        if why is None or not why.len() - why.null_count():
            return rows
        bad = rows.with_columns(why).filter(why.is_not_null())
        counts = dict(bad[storability.UNFIT].value_counts().iter_rows())
        row = pl.struct(pl.exclude(storability.UNFIT)).struct.json_encode().alias("row")
        samples = [f"{why}: {text[:300]}" for why, text in bad.head(3).select(storability.UNFIT, row).iter_rows()]
        unfit.append(UnstorableRows(source, counts, samples))
        if task.keeps_bad:
            origins = _origins(source, bad.drop(storability.UNFIT), None).with_columns(bad[storability.UNFIT])
            letters = build_bad_row_letters(origins, pl.col(storability.UNFIT), task.state.epoch, self.logic.pipeline)
            staged.append(LetterFile(output=task.state.write_output(letters), reasons=counts))
        return rows.filter(why.is_null())

    def payload(self, rows: pl.DataFrame) -> pl.DataFrame:
        return rows.with_columns(rows["_event_ts"].dt.timestamp("us").alias("ts")).drop("_event_ts")

    def replay_rows(self, payload: Mapping[str, Any], clock_us: int, capacity: ValueLimits = ANYTHING) -> pl.DataFrame:
        latest = clock_us + self.max_future_ms * 1000
        lifted = []
        for name, frame in payload.items():
            first, last = storability.usable_times(self.logic)
            rows = frame.filter(pl.col("ts").is_between(first, min(latest, last)))
            for which in self.inputs.get(name, (name,)):
                why = storability.unstorable_reason(self.logic, self.logic.input_index(which), capacity, rows)
                lifted.append(_lift_letters(self.logic, which, rows if why is None else rows.filter(why.is_null())))
        return pl.concat(lifted)

    def validate_letters(self, payload: Mapping[str, Any], clock_us: int) -> pl.DataFrame:
        latest = clock_us + self.max_future_ms * 1000
        why = (
            pl.when(pl.col("ts").is_null())
            .then(pl.lit("no event time"))
            .when(pl.col("ts") > latest)
            .then(pl.lit("future"))
        )
        return pl.concat([f.select("__letter", why.otherwise(None).alias("__bad")) for f in payload.values()])

    def emit(self, tasks: Sequence[ShardTask]) -> Sequence[EmitReport]:
        return [t.operator.emit(t) for t in tasks]

    def count(self, tasks: Sequence[ShardTask], question: Question) -> Mapping[int, int]:
        return sum((Counter(question(t)) for t in tasks), Counter())


@dataclass(frozen=True)
class NewestSpans:
    """A function that finds the newest event times of a source in a batch, from which clocks detect jumps.

    `latest`: for each source, the event time (µs) after which rows are ignored.
    """

    frames: Mapping[str, pl.DataFrame]
    latest: Mapping[str, int]

    def __call__(self, source: str, jump_us: int) -> Mapping[str, tuple[Span, ...]]:
        rows = self.frames[source].filter(pl.col("ts") <= self.latest[source])
        partitions = rows["__partition"].unique().to_list() if "__partition" in rows.columns else []
        return {"": _newest_spans(rows, jump_us)} | {
            p: _newest_spans(rows.filter(pl.col("__partition") == p), jump_us) for p in partitions
        }


def _newest_spans(rows: pl.DataFrame, jump_us: int) -> tuple[Span, ...]:
    times = pl.col("ts")
    buckets = rows.group_by(times.floordiv(max(jump_us, 1)).alias("b")).agg(
        times.min().alias("low"), times.max().alias("high"), times.len().alias("n")
    )
    newest = buckets.sort("b", descending=True).head(CONFIRMS)
    return tuple(newest.select("low", "high", "n").iter_rows())


def _activity(rows: pl.DataFrame, usable: pl.DataFrame, partition: str) -> SourceActivity:
    newest = usable["ts"].filter(usable["__partition"] == partition).max()
    return SourceActivity(int((rows["__partition"] == partition).sum()), newest if isinstance(newest, int) else None)


@singledispatch
def _prepare_rows(operator: Operator, source: str, rows: pl.DataFrame, tag: Int64s | None) -> pl.DataFrame:
    """Return rows of a source in the form that `operator.ingest` expects.

    `tag`: the number of the source of each row; None to omit this column. On Spark, `spark.operator_rows` does the same
    in SQL.
    """
    raise_unregistered(operator, "slackwater.testing.in_process_engine._prepare_rows")


@_prepare_rows.register(WindowOperator)
def _(operator: WindowOperator, source: str, rows: pl.DataFrame, tag: Int64s | None) -> pl.DataFrame:
    return lift_inputs(operator, _tag_sources(_input_columns(operator, rows), tag))


@singledispatch
def cast_to_declared(operator: Operator, frame: pl.DataFrame) -> pl.DataFrame:
    """Cast the columns that an epoch's SQL selects to the types to which the step was bound."""
    raise_unregistered(operator, "slackwater.testing.in_process_engine.cast_to_declared")


@cast_to_declared.register(WindowOperator)
def _(operator: WindowOperator, frame: pl.DataFrame) -> pl.DataFrame:
    typed = {k.name: k.polars for k in operator.keys} | {i.field.name: i.field.polars for i in operator.inputs}
    return frame.with_columns(frame[n].cast(t) for n, t in typed.items())


@cast_to_declared.register(NonWindowOperator)
def _(operator: Operator, frame: pl.DataFrame) -> pl.DataFrame:
    return frame


@singledispatch
def lift_inputs(operator: Operator, frame: pl.DataFrame) -> pl.DataFrame:
    """Convert the columns that an epoch's SQL selects to those that `operator.ingest` expects. Windows lift rows."""
    raise_unregistered(operator, "slackwater.testing.in_process_engine.lift_inputs")


@lift_inputs.register(IntervalJoinOperator)
@lift_inputs.register(KeyedOperator)
def _(operator: Operator, frame: pl.DataFrame) -> pl.DataFrame:
    return frame


@lift_inputs.register
def _(operator: PaneOperator, frame: pl.DataFrame) -> pl.DataFrame:
    if not operator.lifts_in_sql:
        return pane_windows.lift_rows(operator, frame)
    lifted = operator.lift_rows(frame)
    return lifted.with_columns(
        pl.Series("__start", pane_windows.pane_start(operator, lifted["__ts"].to_numpy())),
        pl.lit(1, pl.Int64).alias("__n"),
        pl.col("__ts").alias("__first"),
    ).drop("__ts")


@lift_inputs.register
def _(operator: SessionOperator, frame: pl.DataFrame) -> pl.DataFrame:
    return operator.lift_rows(frame)


@lift_inputs.register
def _(operator: StatelessOperator, frame: pl.DataFrame) -> pl.DataFrame:
    """Distribute rows over the shards round-robin. On Spark, a row belongs to the shard whose task reads it."""
    return frame.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("__kh"))


@_prepare_rows.register
def _(operator: IntervalJoinOperator, source: str, rows: pl.DataFrame, tag: Int64s | None) -> pl.DataFrame:
    which, slots = operator.input_index(source), ShuffleColumns.from_logic(operator)
    side = operator.sides[which]
    keys = normalize_columns(rows, list(side.keys))
    shared = [
        Field(k.name, "bigint") if k.type != other.type else k
        for k, other in zip(side.keys, operator.sides[1 - which].keys, strict=True)
    ]
    slot_values = {slot: rows[f.name].cast(f.polars) for slot, f in slots.by_side[which]}
    empty = pl.Series([None]).new_from_index(0, rows.height)
    columns = {
        "__kh": key_hash(keys, shared),
        "__ts": rows["ts"],
        "__side": pl.Series([which], dtype=pl.Int8).new_from_index(0, rows.height),
        **{s.name: slot_values.get(s.name, empty.cast(s.polars)) for s in slots.columns},
    }
    return _tag_sources(pl.DataFrame([c.alias(name) for name, c in columns.items()]), tag)


@_prepare_rows.register
def _(operator: KeyedOperator, source: str, rows: pl.DataFrame, tag: Int64s | None) -> pl.DataFrame:
    keys = normalize_columns(rows, list(operator.keys))
    values = [rows[f.name].cast(f.polars).alias(slot) for slot, f in operator.slots.items()]
    columns = [key_hash(keys, operator.keys), rows["ts"].alias("__ts"), *(keys[k] for k in operator.key_names), *values]
    return _tag_sources(pl.DataFrame(columns), tag)


@_prepare_rows.register
def _(operator: StatelessOperator, source: str, rows: pl.DataFrame, tag: Int64s | None) -> pl.DataFrame:
    timed = rows.with_columns(rows["ts"].cast(pl.Datetime("us", "UTC")).alias("_event_ts"))
    named = (timed[f.name].alias(operator.slot(i)) for i, f in enumerate(operator.fields))
    return lift_inputs(operator, pl.DataFrame(list(named)))


def _tag_sources(rows: pl.DataFrame, tag: Int64s | None) -> pl.DataFrame:
    return rows if tag is None else rows.with_columns(pl.Series("__src", tag, dtype=pl.Int32))


@singledispatch
def _lift_letters(operator: Operator, source: str, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of dead letters with `__letter`, `__kh` and `__ts`.

    Windows lift each row into accumulators and drop rows without a usable gap.
    """
    raise_unregistered(operator, "slackwater.testing.in_process_engine._lift_letters")


@_lift_letters.register(WindowOperator)
def _(operator: WindowOperator, source: str, rows: pl.DataFrame) -> pl.DataFrame:
    lifted = operator.lift_rows(_input_columns(operator, rows)).with_columns(rows["__letter"])
    return lifted.drop_nulls("__end") if operator.ends else lifted


@_lift_letters.register
def _(operator: IntervalJoinOperator, source: str, rows: pl.DataFrame) -> pl.DataFrame:
    return _prepare_rows(operator, source, rows, None).select("__kh", "__ts").with_columns(rows["__letter"])


def _input_columns(operator: WindowOperator, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the columns that a shard needs: `__kh`, `__ts`, keys, inputs, and `__end` if the gap is a column."""
    fields = {i.source.name: i.source for i in operator.inputs} | {k.name: k for k in operator.keys}
    normal = normalize_columns(rows, list(fields.values()))
    columns = [key_hash(normal, operator.keys), normal["ts"].alias("__ts"), *(normal[k.name] for k in operator.keys)]
    columns += [_input_column(normal, i) for i in operator.inputs]
    if operator.ends:  # the gap is a column in milliseconds
        gap, cap = normal[str(operator.window.gap_ms)] * 1000, 1000 * (operator.window.max_session_duration_ms or 0)
        usable = gap.is_between(0, cap, closed="none").fill_null(False)
        columns.append((normal["ts"] + gap).set(~usable, None).alias("__end"))
    return pl.DataFrame({c.name: c for c in columns})


def _origins(source: str, rows: pl.DataFrame, tag: Int64s | None) -> pl.DataFrame:
    """Return the origin of each row (see `operators.dead_letters`), whose bytes are the row as JSON."""
    values = {"source": pl.lit(source), "value": pl.struct(pl.all()).struct.json_encode().cast(pl.Binary)}
    fields = [values.get(f.name, pl.lit(None)).cast(f.polars).alias(f.name) for f in ORIGIN_FIELDS]
    sources = [] if tag is None else [pl.Series("__src", tag, dtype=pl.Int32)]
    return rows.select(pl.col("ts").alias("__start"), pl.struct(fields).alias(ORIGIN), *sources)


def _input_column(rows: pl.DataFrame, aggregation_input: AggregationInput) -> pl.Series:
    column = rows[aggregation_input.source.name]
    if not aggregation_input.hashed:
        return column
    values = column.cast(pl.Int64) if aggregation_input.source.base.startswith("timestamp") else column
    types = (Field("type", "string"), aggregation_input.source)
    hashes = [
        None if v is None else spark_xxhash64((aggregation_input.source.type, v), types) for v in values.to_list()
    ]
    return pl.Series(aggregation_input.field.name, hashes, dtype=pl.Int64)
