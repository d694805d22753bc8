"""The in-process engine: the same driver and shard tasks as on Spark, without Spark. For tests and laws.

A batch's payload is one frame of rows per source, with `ts` (event time, int64 µs; NULL is a bad row) and the columns.
Where the batch lists partitions of a source, `__partition` says which one a row is from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from slackwater.core.capacity import ANYTHING, Capacity
from slackwater.core.hashing import key_hash, shard_of, spark_xxhash64
from slackwater.core.schema import Field
from slackwater.engine.protocol import IngestOutcome, SourceStats, Unfit
from slackwater.joins.logic import JoinLogic
from slackwater.joins.slots import Slots
from slackwater.operators import base, fitting, windows
from slackwater.operators.base import Step
from slackwater.operators.dead_letters import ORIGIN, ORIGIN_FIELDS, unfit_letters
from slackwater.operators.task import EmitReport, ShardTask, StagedLetters
from slackwater.sources.base import Batch
from slackwater.watermark import CONFIRMS, Heard, Span
from slackwater.windows import panes
from slackwater.windows.aggregations import Input, normalised
from slackwater.windows.logic import Int64s, Logic
from slackwater.windows.panes import late_before, pane_start


@dataclass(frozen=True)
class LocalEngine:
    """Runs shard tasks one after the other. `sources`: names, in the order of the config."""

    logic: Step
    sources: Sequence[str]
    keeps_late: bool = False  # late rows become letters
    max_future_ms: int = 3_600_000  # as the window or join has it

    @property
    def windows(self) -> Logic:
        """The logic, of windows."""
        assert isinstance(self.logic, Logic)
        return self.logic

    def ingest(
        self, batch: Batch, tasks: Sequence[ShardTask], clock_us: int, idle: Mapping[str, Sequence[str]]
    ) -> IngestOutcome:
        frames: Mapping[str, pl.DataFrame] = batch.payload
        latest = clock_us + self.max_future_ms * 1000
        stats: dict[str, SourceStats] = {}
        prepared: list[pl.DataFrame] = []
        tagged = len(self.sources) > 1 or any(idle.values()) or 0 in tasks[0].idle_sources
        origins: list[pl.DataFrame] = []
        unfit, staged = list[Unfit](), list[StagedLetters]()
        for index, name in enumerate(self.sources):
            rows, listed = frames.get(name), batch.partitions.get(name, {})
            if rows is None or rows.is_empty():
                if listed:
                    stats[name] = SourceStats(partitions=dict.fromkeys(listed, Heard(0, None)))
                continue
            sane = rows["ts"].is_between(*fitting.usable(self.logic))
            usable = rows.filter(sane & (rows["ts"] <= latest))  # also without those that have no time
            newest = usable["ts"].max()
            stats[name] = SourceStats(
                rows.height,
                usable.height,
                newest if isinstance(newest, int) else None,
                future=int((sane & (rows["ts"] > latest)).sum()),
                outside=int((~sane).sum()),
                partitions={p: _heard(rows, usable, p) for p in listed},
            )
            usable = self._fitting(name, usable, tasks[0], unfit, staged)
            source = np.full(usable.height, index)
            if idle.get(name) and listed:
                source += len(self.sources) * usable["__partition"].is_in(list(idle[name])).to_numpy()
            prepared.append(self._prepared(name, usable, source if tagged else None))
            if self.keeps_late:
                origins.append(_origins(name, usable, source if tagged else None))
        if not prepared:
            return IngestOutcome((), stats, unfit=unfit, staged=staged)
        spans = Spans(frames, latest)
        every = pl.concat(prepared)
        owner = pl.Series(shard_of(every["__kh"].to_numpy(), len(tasks)))
        mine = [(t, owner == t.shard) for t in tasks]
        if not self.keeps_late:
            return IngestOutcome(
                [base.ingest(t, every.filter(m)) for t, m in mine], stats, unfit=unfit, staged=staged, spans=spans
            )
        origin = pl.concat(origins)
        if isinstance(self.logic, JoinLogic) or self.logic.is_session:
            reports = [base.ingest(t, every.filter(m), origin[ORIGIN].filter(m)) for t, m in mine]
            return IngestOutcome(reports, stats, unfit=unfit, staged=staged, spans=spans)
        reports = [base.ingest(t, every.filter(m)) for t, m in mine]
        late = origin.filter(pl.col("__start") < late_before(tasks[0].windows, tasks[0].watermark))
        staged += [windows.stage_late(tasks[0], windows.with_idle(tasks[0], late))] if late.height else []
        return IngestOutcome(reports, stats, unfit=unfit, staged=staged, spans=spans)

    def _fitting(
        self, source: str, rows: pl.DataFrame, task: ShardTask, unfit: list[Unfit], staged: list[StagedLetters]
    ) -> pl.DataFrame:
        """The rows that can be held; what cannot is noted, and its letters staged where they are kept."""
        which = 0 if isinstance(self.logic, Logic) or source == self.logic.left.source else 1
        why = fitting.unfit(self.logic, which, task.capacity, rows)
        if why is None or not why.len() - why.null_count():
            return rows
        bad = rows.with_columns(why).filter(why.is_not_null())
        counts = dict(bad[fitting.UNFIT].value_counts().iter_rows())
        row = pl.struct(pl.exclude(fitting.UNFIT)).struct.json_encode().alias("row")
        samples = [f"{why}: {text[:300]}" for why, text in bad.head(3).select(fitting.UNFIT, row).iter_rows()]
        unfit.append(Unfit(source, counts, samples))
        if task.keeps_bad:
            origins = _origins(source, bad.drop(fitting.UNFIT), None).with_columns(bad[fitting.UNFIT])
            letters = unfit_letters(origins, task.state.epoch, self.logic.pipeline)
            staged.append(StagedLetters(output=task.state.stage_output(letters), reasons=counts))
        return rows.filter(why.is_null())

    def _prepared(self, source: str, rows: pl.DataFrame, tag: Int64s | None) -> pl.DataFrame:
        if isinstance(self.logic, JoinLogic):
            return prepare_side(self.logic, 0 if source == self.logic.left.source else 1, rows, tag)
        return prepare(self.logic, rows, tag)

    def payload(self, rows: pl.DataFrame) -> pl.DataFrame:
        return rows.with_columns(rows["_event_ts"].dt.timestamp("us").alias("ts")).drop("_event_ts")

    def again(self, payload: Mapping[str, Any], clock_us: int, capacity: Capacity = ANYTHING) -> pl.DataFrame:
        latest = clock_us + self.max_future_ms * 1000
        found = []
        for frame in payload.values():
            first, last = fitting.usable(self.logic)
            rows = frame.filter(pl.col("ts").is_between(first, min(latest, last)))
            why = fitting.unfit(self.logic, 0, capacity, rows)
            rows = rows if why is None else rows.filter(why.is_null())
            lifted = self.windows.lift_rows(_inputs(self.windows, rows)).with_columns(rows["__letter"])
            found.append(lifted.drop_nulls("__end") if self.windows.dynamic else lifted)
        return pl.concat(found)

    def decoded(self, payload: Mapping[str, Any], clock_us: int) -> pl.DataFrame:
        latest = clock_us + self.max_future_ms * 1000
        why = (
            pl.when(pl.col("ts").is_null())
            .then(pl.lit("no event time"))
            .when(pl.col("ts") > latest)
            .then(pl.lit("future"))
        )
        return pl.concat([f.select("__letter", why.otherwise(None).alias("__bad")) for f in payload.values()])

    def emit(self, tasks: Sequence[ShardTask]) -> Sequence[EmitReport]:
        return [base.emit(t) for t in tasks]

    def count_groups(self, tasks: Sequence[ShardTask], starts: list[int]) -> Mapping[int, int]:
        return sum((Counter(windows.count_groups(t, starts)) for t in tasks), Counter())


@dataclass(frozen=True)
class Spans:
    """The event times of a batch's newest rows, as an epoch's clocks may ask for them."""

    frames: Mapping[str, pl.DataFrame]
    latest: int

    def __call__(self, source: str, jump_us: int) -> Mapping[str, tuple[Span, ...]]:
        rows = self.frames[source].filter(pl.col("ts") <= self.latest)
        named = rows["__partition"].unique().to_list() if "__partition" in rows.columns else []
        return {"": _newest(rows, jump_us)} | {
            p: _newest(rows.filter(pl.col("__partition") == p), jump_us) for p in named
        }


def _newest(rows: pl.DataFrame, jump_us: int) -> tuple[Span, ...]:
    times = pl.col("ts")
    buckets = rows.group_by(times.floordiv(max(jump_us, 1)).alias("b")).agg(
        times.min().alias("low"), times.max().alias("high"), times.len().alias("n")
    )
    newest = buckets.sort("b", descending=True).head(CONFIRMS)
    return tuple(newest.select("low", "high", "n").iter_rows())


def _heard(rows: pl.DataFrame, usable: pl.DataFrame, partition: str) -> Heard:
    newest = usable["ts"].filter(usable["__partition"] == partition).max()
    return Heard(int((rows["__partition"] == partition).sum()), newest if isinstance(newest, int) else None)


def prepare(logic: Logic, rows: pl.DataFrame, source: Int64s | None) -> pl.DataFrame:
    """Rows as `operators.windows.ingest` takes them: what `spark.epoch_sql` does in Spark SQL."""
    frame = _inputs(logic, rows)
    if source is not None:
        frame = frame.with_columns(pl.Series("__src", source, dtype=pl.Int32))
    return lift_inputs(logic, frame)


def lift_inputs(logic: Logic, frame: pl.DataFrame) -> pl.DataFrame:
    """The same from the columns that the SQL of an epoch has picked (`spark.epoch_sql.row_columns`)."""
    if not logic.is_session and not logic.lifts_in_sql:
        return panes.lift(logic, frame)
    lifted = logic.lift_rows(frame)
    if logic.is_session:
        return lifted
    return lifted.with_columns(
        pl.Series("__start", pane_start(logic, lifted["__ts"].to_numpy())),
        pl.lit(1, pl.Int64).alias("__n"),
        pl.col("__ts").alias("__first"),
    ).drop("__ts")


def prepare_side(logic: JoinLogic, which: int, rows: pl.DataFrame, tag: Int64s | None) -> pl.DataFrame:
    """Rows of one side as `operators.interval_join.ingest` takes them: what `spark.epoch_sql` does in Spark SQL."""
    side, slots = logic.sides[which], Slots.between(logic)
    keys = normalised(rows, list(side.keys))
    shared = [
        Field(k.name, "bigint") if k.type != other.type else k
        for k, other in zip(side.keys, logic.sides[1 - which].keys, strict=True)
    ]
    mine = {slot: rows[f.name].cast(f.polars) for slot, f in slots.of[which]}
    empty = pl.Series([None]).new_from_index(0, rows.height)
    columns = {
        "__kh": key_hash(keys, shared),
        "__ts": rows["ts"],
        "__side": pl.Series([which], dtype=pl.Int8).new_from_index(0, rows.height),
        **{s.name: mine.get(s.name, empty.cast(s.polars)) for s in slots.columns},
    }
    found = pl.DataFrame([c.alias(name) for name, c in columns.items()])
    return found if tag is None else found.with_columns(pl.Series("__src", tag, dtype=pl.Int32))


def _inputs(logic: Logic, rows: pl.DataFrame) -> pl.DataFrame:
    """The columns that a shard wants of each row: `__kh`, `__ts`, keys, inputs, and `__end` where rows bring their gaps."""
    fields = {i.source.name: i.source for i in logic.inputs} | {k.name: k for k in logic.keys}
    rows = normalised(rows, list(fields.values()))
    columns = [key_hash(rows, logic.keys), rows["ts"].alias("__ts"), *(rows[k.name] for k in logic.keys)]
    columns += [_input(rows, i) for i in logic.inputs]
    if logic.dynamic:  # here the gap is a column, in milliseconds
        gap = rows[str(logic.window.gap_ms)] * 1000
        columns.append(
            (rows["ts"] + gap)
            .set(~(gap.is_between(0, logic.cap_us, closed="none")).fill_null(False), None)
            .alias("__end")
        )
    return pl.DataFrame({c.name: c for c in columns})


def _origins(source: str, rows: pl.DataFrame, tag: Int64s | None) -> pl.DataFrame:
    """Where each row came from (see `operators.dead_letters`); its bytes are the row as JSON."""
    known = {"source": pl.lit(source), "value": pl.struct(pl.all()).struct.json_encode().cast(pl.Binary)}
    fields = [known.get(f.name, pl.lit(None)).cast(f.polars).alias(f.name) for f in ORIGIN_FIELDS]
    sources = [] if tag is None else [pl.Series("__src", tag, dtype=pl.Int32)]
    return rows.select(pl.col("ts").alias("__start"), pl.struct(fields).alias(ORIGIN), *sources)


def _input(rows: pl.DataFrame, given: Input) -> pl.Series:
    column = rows[given.source.name]
    if not given.hashed:
        return column
    values = column.cast(pl.Int64) if given.source.base.startswith("timestamp") else column
    types = (Field("type", "string"), given.source)
    hashes = [None if v is None else spark_xxhash64((given.source.type, v), types) for v in values.to_list()]
    return pl.Series(given.field.name, hashes, dtype=pl.Int64)
