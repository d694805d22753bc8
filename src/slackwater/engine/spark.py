"""The Spark engine: the only place that runs jobs.

files of the batch ─▶ event time ─▶ SQL, lookups ─▶ input columns ─▶ shuffle by key ─▶ mapInArrow: engine.shard
                      max per source                (panes: partial aggregates)
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from slackwater import errors
from slackwater.config.pipeline import Pipeline, resolve
from slackwater.config.source import declared_columns
from slackwater.core import schema
from slackwater.core.capacity import ANYTHING, Capacity
from slackwater.core.words import plural
from slackwater.engine import fitting, inspect, prepare, shard, steps, undecodable
from slackwater.engine.first_rows import ROWS, FirstRows, missing_text, unit_hint
from slackwater.engine.letters import ORIGIN, OUTSIDE, letter_columns, numbered_origin, origin_column, unfit_columns
from slackwater.engine.protocol import IngestOutcome, SourceStats, Unfit
from slackwater.engine.steps import Step
from slackwater.engine.task import EmitReport, IngestReport, ShardTask, StagedLetters
from slackwater.errors import EpochError, SlackwaterError
from slackwater.joins.logic import JoinLogic
from slackwater.sources.base import CORRUPT, Batch, reason
from slackwater.sources.files import local_name
from slackwater.sources.names import names_in
from slackwater.state.protocol import ShardState
from slackwater.targets.base import LETTER
from slackwater.watermark import CONFIRMS, Heard, Span
from slackwater.windows import panes
from slackwater.windows.aggregations import quote
from slackwater.windows.logic import Logic

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("slackwater")

Task = Callable[["pa.Table"], str]
_FILE = "__file"  # hidden: the file that a row was read from
LETTER_NUMBER = "__letter"  # hidden: which letter a row is, where it is read again


@dataclass(frozen=True)
class _Read:
    """A batch's rows per source, with `_event_ts` and `__bad`, and the partitions of each that are counted idle."""

    timed: Mapping[str, DataFrame]
    split: Mapping[str, Sequence[str]]
    tagged: bool  # rows are told apart by source


@dataclass
class SparkEngine:
    """Runs shard tasks as Spark tasks. A batch's payload is one DataFrame per source.

    `times`: per source the SQL of its event time. `refresh`: re-reads the lookups that are due, called between epochs.
    `sql`: per source the pre-stage with `_origin` carried through, where late rows are kept. `end`: SQL for how far a row
    reaches, where each brings its own gap.
    """

    session: SparkSession
    pipeline: Pipeline
    logic: Step
    times: Mapping[str, str]
    refresh: Callable[[], None] = field(default=lambda: None)
    sql: Mapping[str, str] = field(default_factory=dict)
    end: str | None = None
    # the first rows of each source: what was seen, the number that its event time is, what the latest epoch said, its rows
    _looks: dict[str, FirstRows] = field(default_factory=dict)
    _numbers: dict[str, tuple[str, str] | None] = field(default_factory=dict)
    _seen: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _names: dict[str, DataFrame] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """User-defined aggregations go to the workers by value, with the tasks: a worker need not find their module."""
        from pyspark import cloudpickle

        for agg in self.logic.aggs if isinstance(self.logic, Logic) else ():
            if agg.kind.module not in (None, "__main__"):
                top = sys.modules[agg.kind.module.partition(".")[0]]
                cloudpickle.register_pickle_by_value(top)  # type: ignore[no-untyped-call]

    # -- rows in -------------------------------------------------------------------------------------------------

    def ingest(
        self, batch: Batch, tasks: Sequence[ShardTask], clock_us: int, idle: Mapping[str, Sequence[str]]
    ) -> IngestOutcome:
        """Run the epoch's job; once more, with the far future filtered out, if an event time lies beyond it.

        The bound changes with every epoch, and Spark compiles a literal into its generated code: with the bound in every
        plan each epoch would be compiled and warmed up anew. A task that ran in vain left files that no commit names.
        """
        self.refresh()
        self._begin_looks(batch.payload)
        latest = clock_us + self.pipeline.transform.step.max_future_ms * 1000
        tagged = 0 in tasks[0].idle_sources  # a single source that was idle: its late rows are told apart
        read = self._read(batch, clock_us, None, idle, tagged)
        outcome = self._ingest(read, batch, tasks)
        if any(s.max_event_us is not None and s.max_event_us > latest for s in outcome.sources.values()):
            read = self._read(batch, clock_us, latest, idle, tagged)
            outcome = self._ingest(read, batch, tasks)
        outcome = self._looked(outcome, batch, clock_us)
        return self._with_letters(read, outcome, tasks)

    # -- first rows ----------------------------------------------------------------------------------------------

    def _begin_looks(self, frames: Mapping[str, DataFrame]) -> None:
        """Look at the first rows of each source: at the columns that its schema declares, and at its times as numbers."""
        for spec in self.pipeline.sources:
            if spec.name in frames and spec.name not in self._looks:
                own = resolve(spec.connection, self.pipeline.connections)
                again = own is not None and own.kind in (
                    "files",
                    "kafka",
                )  # these can be read once more, for their names
                declared = declared_columns(spec.schema_) if spec.schema_ and again else []
                there = {c.casefold(): c for c in frames[spec.name].columns}
                names = [there[c.casefold()] for c in declared if c.casefold() in there]
                self._looks[spec.name] = FirstRows(names)
                self._numbers[spec.name] = self._number(spec.name, frames[spec.name])

    def _number(self, name: str, frame: DataFrame) -> tuple[str, str] | None:
        """The type of the event time and its number, as SQL over the timed rows; None where there is none."""
        step, text = self.pipeline.transform.step, self.pipeline.transform.step.event_time_column
        if self.times.get(name) == inspect.CLOCK or step.time_mode == "processing":
            return None
        expression = quote(text) if text in frame.columns else text
        try:
            kind = frame.selectExpr(f"{expression} AS t").schema.fields[0].dataType.simpleString()
        except Exception:
            return None  # told at the start
        if kind == "timestamp" or text == "_event_ts":
            return "timestamp", "unix_micros(_event_ts) div 1000000L"
        if kind == "string":
            return "string", f"try_cast({expression} AS BIGINT)"
        return ("integer", f"CAST({expression} AS BIGINT)") if kind in schema.INTEGERS else None

    def _look_at(self, name: str) -> list[Any]:
        """What is asked of the first rows."""
        from pyspark.sql import functions as F  # noqa: N812

        look, number = self._looks.get(name), self._numbers.get(name)
        if look is None or not look.looks:
            return []
        found = [F.count(F.col(quote(c))).alias(f"__value{i}") for i, c in enumerate(look.columns)]
        if number is not None:
            found.append(F.expr(f"percentile_approx({number[1]}, 0.5)").alias("__number"))
        return found

    def _looked(self, outcome: IngestOutcome, batch: Batch, clock_us: int) -> IngestOutcome:
        """After an epoch's rows were read: what they say about the schema is told, about the unit it goes into the outcome."""
        sources = dict(outcome.sources)
        for name, stats in outcome.sources.items():
            look, seen, number = self._looks.get(name), self._seen.pop(name, None), self._numbers.get(name)
            if look is None or seen is None or not look.looks:
                continue
            look.saw(stats.rows, {c: seen.get(f"__value{i}") or 0 for i, c in enumerate(look.columns)})
            if number is not None:
                unit = self.pipeline.transform.step.event_time_unit
                hint = unit_hint(seen.get("__number"), unit, number[0], clock_us)
                if hint is not None and (stats.bad or not look.unit_told):
                    sources[name] = replace(stats, unit_hint=hint)
                    look.unit_told = True
            if look.missing and not look.is_told:
                self._names[name] = batch.payload[name]
            if not look.looks:
                self.tell_missing(name)
        return replace(outcome, sources=sources)

    def tell_missing(self, *names: str) -> None:
        """Warn of columns of the schema that none of the first rows has; of all sources at the end of the input."""
        for name in names or tuple(self._looks):
            look, frame = self._looks[name], self._names.pop(name, None)
            if frame is None or look.is_told or not look.rows:
                continue
            look.is_told = True
            spec = next(s for s in self.pipeline.sources if s.name == name)
            try:
                there = names_in(self.session, frame, spec.format, spec.options)
            except Exception as error:
                log.debug("the names in the data of %s cannot be read: %s", name, error)
                there = []
            for column in look.missing:
                if column not in there:  # else it is there, and NULL
                    line = missing_text(name, column, min(look.rows, ROWS), there)
                    log.warning("%s: %s", self.pipeline.name, line)

    def _read(
        self, batch: Batch, clock_us: int, latest: int | None, idle: Mapping[str, Sequence[str]], tagged: bool
    ) -> _Read:
        frames: Mapping[str, DataFrame] = batch.payload
        names = [s.name for s in self.pipeline.sources]
        split = {name: [p for p in idle.get(name, ()) if batch.partitions.get(name, {}).get(p)] for name in names}
        timed = {n: self._timed(n, frames[n], clock_us, latest) for n in names if n in frames}
        return _Read(timed, split, tagged or len(names) > 1 or any(split.values()))

    def _ingest(self, read: _Read, batch: Batch, tasks: Sequence[ShardTask]) -> IngestOutcome:
        from pyspark.sql import Observation

        observed: dict[str, Any] = {}
        parts: list[DataFrame] = []
        before = self._origins_before(tasks[0].watermark) if self.pipeline.carries_origin else None
        unfit: dict[str, list[Observation]] = {}
        for name, timed in read.timed.items():
            observed[name] = Observation()
            statistics = _statistics(list(batch.partitions.get(name, {})), False, timed.columns)
            statistics += self._look_at(name)
            for tag, out in self._outputs(read, name, timed.observe(observed[name], *statistics)):
                if (marked := self._marked(name, out, tasks[0])) is not None:
                    unfit.setdefault(name, []).append(Observation())
                    out = marked.observe(unfit[name][-1], _count_unfit()).where(f"{fitting.UNFIT} IS NULL")
                parts.append(out.selectExpr(*self._columns(name, tag, before)))
        lifted = self._lift(reduce(lambda a, b: a.unionByName(b), parts), read.tagged)
        owner = lifted.selectExpr("*", f"{prepare.shard_sql(len(tasks))} AS __shard")
        reports = _run(owner.repartitionById(len(tasks), owner["__shard"]), lifted.columns, _ingest_task(list(tasks)))
        stats: dict[str, SourceStats] = {}
        for name, observation in observed.items():
            found: Mapping[str, Any] = observation.get
            counts = batch.partitions.get(name, {})
            self._seen[name] = dict(found)
            if found["bad"]:
                again = _statistics(list(counts), True, read.timed[name].columns)
                found = read.timed[name].agg(*again).collect()[0].asDict()
            stats[name] = _stats_of(found, counts)
        counts_of = {name: sum(o.get["unfit"] or 0 for o in seen) for name, seen in unfit.items()}

        def spans(source: str, jump_us: int) -> Mapping[str, tuple[Span, ...]]:
            return _spans(read.timed[source], jump_us, bool(batch.partitions.get(source)))

        return IngestOutcome(
            [IngestReport.model_validate_json(r) for r in reports],
            stats,
            unfit=[Unfit(name, {"": n}, ()) for name, n in counts_of.items() if n],
            spans=spans,
        )

    def _marked(self, name: str, out: DataFrame, task: ShardTask) -> DataFrame | None:
        """Rows that came out of the SQL, with why they cannot be held; None where all can."""
        which = 0 if isinstance(self.logic, Logic) or name == self.logic.left.source else 1
        why = fitting.unfit_sql(self.logic, which, task.capacity)
        return None if why is None else out.selectExpr("*", f"{why} AS {fitting.UNFIT}")

    def _unfit(self, read: _Read, outcome: IngestOutcome, task: ShardTask) -> tuple[list[Unfit], list[StagedLetters]]:
        """Look at the rows again that cannot be held: why, a few of them in words, and their letters."""
        found, staged = [], list[StagedLetters]()
        for seen in outcome.unfit:
            marked = [
                m
                for _, out in self._outputs(read, seen.source, read.timed[seen.source])
                if (m := self._marked(seen.source, out, task)) is not None
            ]
            parts = [m.where(f"{fitting.UNFIT} IS NOT NULL") for m in marked]
            reasons: Counter[str] = Counter()
            samples: list[str] = []
            for rows in parts:
                reasons.update({r[0]: r[1] for r in rows.groupBy(fitting.UNFIT).count().collect()})
                row = (
                    f"to_json(struct({', '.join(quote(c) for c in rows.columns if c not in (fitting.UNFIT, ORIGIN))}))"
                )
                samples += [f"{r[0]}: {r[1][:300]}" for r in rows.selectExpr(fitting.UNFIT, row).limit(3).collect()]
                if self.pipeline.transform.on_error == "dlq":
                    columns = unfit_columns(rows.columns, self.pipeline.name, seen.source, task.state.epoch)
                    letters = _run(rows.selectExpr(*columns), [f.name for f in LETTER], _letters_task(task.state))
                    staged += [StagedLetters.model_validate_json(one) for one in letters]
            if sum(reasons.values()) != seen.rows:
                raise EpochError(
                    f'{self.pipeline.name}: source "{seen.source}": {plural(seen.rows, "row")} that cannot be held, and '
                    f"{sum(reasons.values())} when they were read again: the input was not the same; nothing of this epoch was "
                    "committed, the next start repeats it"
                )
            found.append(Unfit(seen.source, reasons, samples[:3]))
        return found, staged

    def _origins_before(self, watermark: int) -> int | None:
        """Rows before this time (µs) may be late, and take along where they came from; None where others find that out."""
        if isinstance(self.logic, JoinLogic):
            return watermark - self.logic.allowed_us
        return watermark if self.logic.is_session else None

    def _columns(self, source: str, tag: int | None, before: int | None) -> list[str]:
        """The columns that go to the shards, over the output of the SQL."""
        if isinstance(self.logic, JoinLogic):
            return prepare.side_columns(self.logic, 0 if source == self.logic.left.source else 1, tag, before)
        return prepare.row_columns(self.logic, tag, before, self.end)

    @property
    def windows(self) -> Logic:
        """The logic, of windows."""
        assert isinstance(self.logic, Logic)
        return self.logic

    def _outputs(self, read: _Read, name: str, timed: DataFrame) -> list[tuple[int | None, DataFrame]]:
        """What comes out of the SQL for one source's usable rows, with its tag (see `_by_idleness`; None: needs none)."""
        names = [s.name for s in self.pipeline.sources]
        rows = timed.where("__bad IS NULL")
        if self.pipeline.carries_origin:
            plain = [c for c in rows.columns if c != _FILE]
            bytes_of = {c: kind for c, kind in rows.dtypes if c not in (_FILE, CORRUPT)}
            file = _FILE if _FILE in rows.columns else "NULL"
            rows = rows.selectExpr(*map(quote, plain), origin_column(bytes_of, name, file))
        else:
            rows = rows.drop(_FILE)
        found: list[tuple[int | None, DataFrame]] = []
        for tag, some in _by_idleness(rows, names.index(name), len(names), read.split[name]):
            if self.pipeline.transform.sql_of(name) is not None:
                some = some.drop("__bad", CORRUPT)
            out = inspect.run_sql(self.session, self.pipeline, name, some, self.sql.get(name))
            found.append((tag if read.tagged else None, out))
        return found

    def payload(self, rows: pl.DataFrame) -> DataFrame:
        import polars as pl

        return self.session.createDataFrame(rows.to_arrow(compat_level=pl.CompatLevel.oldest()))

    def again(self, payload: Mapping[str, Any], clock_us: int, capacity: Capacity = ANYTHING) -> pl.DataFrame:
        """Rows of dead letters, few enough for this process. Their number comes through the SQL as a part of `_origin`."""
        import polars as pl

        self.refresh()
        latest = clock_us + self.pipeline.transform.step.max_future_ms * 1000
        parts: list[DataFrame] = []
        for name, frame in payload.items():
            rows = self._timed(name, frame, clock_us, latest).where("__bad IS NULL")
            plain = [quote(c) for c in rows.columns if c not in (_FILE, LETTER_NUMBER, "__bad", CORRUPT)]
            rows = rows.selectExpr(*plain, numbered_origin(LETTER_NUMBER))
            out = inspect.run_sql(self.session, self.pipeline, name, rows, self.sql.get(name))
            columns = prepare.row_columns(self.windows, None, end=self.end)
            why = fitting.unfit_sql(self.windows, 0, capacity)
            out = out if why is None else out.where(f"({why}) IS NULL")
            parts.append(out.selectExpr(*columns, f"{ORIGIN}.offset AS {LETTER_NUMBER}"))
        try:
            found = pl.from_arrow(reduce(lambda a, b: a.unionByName(b), parts).toArrow())
        except Exception as error:
            raise EpochError(f"the letters cannot be read, and nothing was replayed: {reason(error)}") from error
        assert isinstance(found, pl.DataFrame)
        types = {k.name: k.polars for k in self.windows.keys} | {
            i.field.name: i.field.polars for i in self.windows.inputs
        }
        found = found.with_columns(found[n].cast(t) for n, t in types.items())
        found = found.drop_nulls("__end") if self.windows.dynamic else found
        return self.windows.lift_rows(found).with_columns(found[LETTER_NUMBER])

    def decoded(self, payload: Mapping[str, Any], clock_us: int) -> pl.DataFrame:
        import polars as pl

        latest = clock_us + self.pipeline.transform.step.max_future_ms * 1000
        timed = (self._timed(name, frame, clock_us, latest) for name, frame in payload.items())
        parts = [rows.selectExpr(LETTER_NUMBER, "__bad") for rows in timed]
        try:
            found = pl.from_arrow(reduce(lambda a, b: a.unionByName(b), parts).toArrow())
        except Exception as error:
            raise EpochError(f"the letters cannot be read, and nothing was replayed: {reason(error)}") from error
        assert isinstance(found, pl.DataFrame)
        return found.cast({LETTER_NUMBER: pl.Int64(), "__bad": pl.String()})

    # -- rows aside ----------------------------------------------------------------------------------------------

    @property
    def _keeps_late(self) -> bool:
        return self.pipeline.keeps_late

    def _with_letters(self, read: _Read, outcome: IngestOutcome, tasks: Sequence[ShardTask]) -> IngestOutcome:
        """Look at the bad rows again, and at those that came late for windows whose rows are folded before the shuffle."""
        bad = [name for name, s in outcome.sources.items() if s.bad]
        staged: list[StagedLetters] = []
        if self.pipeline.transform.on_error == "dlq":
            staged += [letters for n in bad for letters in self._stage_bad(n, read.timed[n], tasks[0].state)]
        folded = isinstance(self.logic, Logic) and not self.logic.is_session
        if self._keeps_late and folded and any(r.late or r.partly_late for r in outcome.reports):
            staged += self._stage_late(read, tasks[0])
        samples = {name: self._bad_samples(name, read.timed[name]) for name in bad}
        unfit, letters = self._unfit(read, outcome, tasks[0]) if outcome.unfit else ((), [])
        return replace(outcome, bad_samples=samples, unfit=unfit, staged=[*staged, *letters])

    def _stage_bad(self, name: str, timed: DataFrame, state: ShardState) -> list[StagedLetters]:
        bad = timed.where("__bad IS NOT NULL")
        columns = letter_columns(
            {c: kind for c, kind in timed.dtypes if c != _FILE}, self.pipeline.name, name, state.epoch
        )
        staged = _run(bad.selectExpr(*columns), [f.name for f in LETTER], _letters_task(state))
        return [StagedLetters.model_validate_json(letters) for letters in staged]

    def _stage_late(self, read: _Read, task: ShardTask) -> list[StagedLetters]:
        """A second job over the output of the SQL: lateness follows from a row's time and the watermark alone."""
        late = prepare.earlier(panes.late_before(task.windows, task.watermark))
        parts = [
            out.where(late).selectExpr(*prepare.late_columns(tag))
            for name, timed in read.timed.items()
            for tag, out in self._outputs(read, name, timed)
        ]
        rows = reduce(lambda a, b: a.unionByName(b), parts)
        return [StagedLetters.model_validate_json(letters) for letters in _run(rows, rows.columns, _late_task(task))]

    def _timed(self, name: str, frame: DataFrame, clock_us: int, latest: int | None) -> DataFrame:
        """Rows with `_event_ts` and `__bad`: NULL for a usable row, else why it is not."""
        time = f"timestamp_micros({clock_us}L)" if self.times[name] == inspect.CLOCK else self.times[name]
        undecodable = "false"
        if CORRUPT in frame.columns:
            # Spark decodes the columns that are asked for, and only these can fail: so ask for all, in every job over them
            every = ", ".join(quote(c) for c in frame.columns if c != CORRUPT)
            undecodable = f"{CORRUPT} IS NOT NULL AND to_json(struct({every})) IS NOT NULL"
        future = "" if latest is None else f" WHEN unix_micros({time}) > {latest}L THEN 'future'"
        first, last = fitting.usable(self.logic)
        sane = f"coalesce(unix_micros({time}) BETWEEN {first}L AND {last}L, false)"
        why = f"CASE WHEN ({time}) IS NULL THEN 'no event time' ELSE '{OUTSIDE}' END"
        bad = f"CASE WHEN {undecodable} THEN 'undecodable' WHEN NOT {sane} THEN {why}{future} END AS __bad"
        kept = [quote(c) for c in frame.columns if c != "_event_ts"]
        of_file = name in self._files and _FILE not in frame.columns  # read again, it brings the name
        file = [f"_metadata.file_path AS {_FILE}"] if of_file else []
        return frame.selectExpr(*kept, *file, f"{time} AS _event_ts", bad)

    @property
    def _files(self) -> list[str]:
        """The sources that read files."""
        known = self.pipeline.connections
        found = {s.name: resolve(s.connection, known) for s in self.pipeline.sources if s.connection is not None}
        return [name for name, connection in found.items() if connection is not None and connection.kind == "files"]

    def _lift(self, rows: DataFrame, tagged: bool) -> DataFrame:
        """Partial accumulators per key and pane for tumbling and hopping windows that lift in SQL, else rows."""
        from pyspark.sql import functions as F  # noqa: N812 — Spark's own name for it

        logic = self.logic
        if isinstance(logic, JoinLogic) or logic.is_session or not logic.lifts_in_sql:
            return rows
        aggregates = [F.expr(sql).alias(name) for name, sql in prepare.pane_aggregates(logic).items()]
        groups = [quote(c) for c in prepare.group_columns(logic, tagged)]
        return rows.selectExpr(*prepare.pane_columns(logic)).groupBy(*groups).agg(*aggregates)

    def _bad_samples(self, name: str, timed: DataFrame) -> list[str]:
        """A few bad rows in words: why, the row as JSON, and its file where there is one."""
        columns = [c for c in timed.columns if c not in ("__bad", "_event_ts") and not c.startswith("_")]
        columns += [CORRUPT] if CORRUPT in timed.columns else []
        row = ", ".join(quote(c) for c in columns)
        bad = timed.where("__bad IS NOT NULL")
        place = (
            "concat(_topic, '-', _partition, ' at offset ', _offset)"
            if "_offset" in timed.columns
            else "input_file_name()"
        )
        text = CORRUPT if CORRUPT in timed.columns else "CAST(NULL AS STRING)"
        parts = (
            f"substring(to_json(struct({row})), 1, 300) AS row",
            f"substring({text}, 1, 300) AS text",
            f"length({text}) AS length",
        )
        found = bad.selectExpr("__bad", *parts, f"{place} AS place").limit(3).collect()
        spec = undecodable.source_of(self.pipeline, name)
        return [
            f"{r['__bad']}: {r['row']}"
            + (f" in {local_name(r['place'])}" if r["place"] else "")
            + (undecodable.why(spec, r["text"], r["length"]) if spec and r["__bad"] == "undecodable" else "")
            for r in found
        ]

    # -- windows out ---------------------------------------------------------------------------------------------

    def emit(self, tasks: Sequence[ShardTask]) -> Sequence[EmitReport]:
        if self._is_local():
            with ThreadPoolExecutor(len(tasks)) as pool:
                return list(pool.map(steps.emit, tasks))
        return [EmitReport.model_validate_json(r) for r in self._over_shards(tasks, _emit_task(list(tasks)))]

    def count_groups(self, tasks: Sequence[ShardTask], windows: list[int]) -> Mapping[int, int]:
        counts: Counter[int] = Counter()
        for report in self._over_shards(tasks, _count_task(list(tasks), windows)):
            counts.update({int(w): n for w, n in json.loads(report).items()})
        return counts

    def _is_local(self) -> bool:
        """Whether Spark runs inside one machine: then threads of this process do what a job would, without its overhead."""
        return (self.session.sparkContext.master or "").startswith("local")

    def _over_shards(self, tasks: Sequence[ShardTask], task: Task) -> list[str]:
        return _run(self.session.range(0, len(tasks), 1, len(tasks)), ["id"], task)


def warm_up(session: SparkSession, workers: int) -> None:
    """Start the Python workers and import what they need, before the first batch does."""
    _run(session.range(0, workers, 1, workers), ["id"], _warm_task)


def _by_idleness(rows: DataFrame, index: int, sources: int, idle: Sequence[str]) -> list[tuple[int, DataFrame]]:
    """Rows with their tag: the source's place, or, behind all sources, that of its idle partitions."""
    if not idle:
        return [(index, rows)]
    listed = ", ".join("'" + p.replace("'", "\\'") + "'" for p in idle)
    of_idle = f"concat(_topic, '-', _partition) IN ({listed})"
    return [(index, rows.where(f"NOT {of_idle}")), (sources + index, rows.where(of_idle))]


def _statistics(partitions: Sequence[str], usable_only: bool, columns: Sequence[str]) -> list[Any]:
    """What is told of a source's rows. While no row is bad the few aggregates do that need not look at `__bad`.

    `columns` that say where a row is from tell it of the newest one.
    """
    from pyspark.sql import functions as F  # noqa: N812

    event_us = F.expr(
        "CASE WHEN __bad IS NULL THEN unix_micros(_event_ts) END" if usable_only else "unix_micros(_event_ts)"
    )
    found = [F.count(F.lit(1)).alias("rows"), F.count("__bad").alias("bad"), F.max(event_us).alias("newest")]
    place = next(
        (p for c, p in (("_offset", "struct(_topic, _partition, _offset)"), (_FILE, _FILE)) if c in columns), None
    )
    if place is not None:
        found.append(F.max_by(F.expr(place), event_us).alias("place"))
    if usable_only:
        found += [F.count(F.when(F.col("__bad") == why, 1)).alias(why) for why in ("undecodable", "future", OUTSIDE)]
    for number, partition in enumerate(partitions):
        topic, _, part = partition.rpartition("-")
        here = (F.col("_partition") == int(part)) & (F.col("_topic") == topic)
        found.append(F.max(F.when(here, event_us)).alias(f"newest{number}"))
    return found


def _count_unfit() -> Any:
    from pyspark.sql import functions as F  # noqa: N812

    return F.count(fitting.UNFIT).alias("unfit")


def _stats_of(found: Mapping[str, Any], partitions: Mapping[str, int]) -> SourceStats:
    rows, bad = found["rows"] or 0, found["bad"] or 0
    return SourceStats(
        rows,
        rows - bad,
        found["newest"],
        found.get("undecodable") or 0,
        found.get("future") or 0,
        {name: Heard(rows, found[f"newest{n}"]) for n, (name, rows) in enumerate(partitions.items())},
        outside=found.get(OUTSIDE) or 0,
        place=_place_of(found.get("place")),
    )


def _place_of(found: Any) -> str | None:
    """Where a row was read, for people."""
    if found is None or isinstance(found, str):
        return None if found is None else local_name(found)
    return f"{found['_topic']}-{found['_partition']} at offset {found['_offset']}"


def _spans(timed: DataFrame, jump_us: int, partitioned: bool) -> dict[str, tuple[Span, ...]]:
    """The event times of the newest rows, in stretches shorter than `jump_us`: of each partition, and of all."""
    from pyspark.sql import functions as F  # noqa: N812

    by = "concat(_topic, '-', _partition)" if partitioned else "''"
    times = timed.where("__bad IS NULL").selectExpr(f"{by} AS p", "unix_micros(_event_ts) AS t")
    stretches = times.groupBy("p", F.expr(f"t - pmod(t, {jump_us}L)").alias("b")).agg(
        F.min("t").alias("low"), F.max("t").alias("high"), F.count("*").alias("n")
    )
    nth = stretches.selectExpr("*", "row_number() OVER (PARTITION BY p ORDER BY b DESC) AS nth")
    found: dict[str, list[Span]] = {}
    for row in nth.where(f"nth <= {CONFIRMS}").collect():
        for name in {row["p"], ""}:
            found.setdefault(name, []).append((row["low"], row["high"], row["n"]))
    return {name: tuple(spans) for name, spans in found.items()}


# -- what runs in the workers ------------------------------------------------------------------------------------------


def _run(frame: DataFrame, names: list[str], task: Task) -> list[str]:
    """Run `task` over these columns of each partition (as one Arrow table); errors of this project come back as themselves."""
    # plain names: to mapInArrow a dot in a name is a path
    plain = frame.selectExpr(*(f"{quote(name)} AS c{i}" for i, name in enumerate(names)))

    def partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        os.environ.setdefault("POLARS_MAX_THREADS", "1")
        import pyarrow as pa

        found = list(batches)
        if not found:
            return
        try:
            report, error = task(pa.Table.from_batches(found).rename_columns(names)), ""
        except SlackwaterError as raised:
            report, error = str(raised), type(raised).__name__
        yield pa.RecordBatch.from_pydict({"report": [report], "error": [error]})

    try:
        rows = plain.mapInArrow(partition, "report STRING, error STRING").collect()
    except Exception as error:
        raise EpochError(f"the epoch failed and was not committed: {reason(error)}") from error
    for row in rows:
        if row["error"]:
            raise getattr(errors, row["error"])(row["report"])
    return [row["report"] for row in rows]


def _ingest_task(tasks: list[ShardTask]) -> Task:
    def run(table: pa.Table) -> str:
        import polars as pl
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        task = tasks[context.partitionId()]
        rows = pl.from_arrow(table)
        assert isinstance(rows, pl.DataFrame)
        origins = rows.drop_in_place("__origin") if "__origin" in rows.columns else None
        if isinstance(task.logic, Logic):
            rows = lifted(task.logic, rows)
        return steps.ingest(task, rows, origins).model_dump_json()

    return run


def lifted(logic: Logic, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows as Spark hands them to a shard, with typed keys and accumulators."""
    rows = rows.with_columns(rows[k.name].cast(k.polars) for k in logic.keys)
    if not logic.is_session and logic.lifts_in_sql:
        return rows.cast(logic.accumulators)  # type: ignore[arg-type]
    rows = rows.with_columns(rows[i.field.name].cast(i.field.polars) for i in logic.inputs)
    return logic.lift_rows(rows) if logic.is_session else panes.lift(logic, rows)


def _letters_task(state: ShardState) -> Task:
    def run(table: pa.Table) -> str:
        import polars as pl

        frame = pl.from_arrow(table)
        assert isinstance(frame, pl.DataFrame)
        letters = frame.cast({f.name: f.polars for f in LETTER})
        reasons = dict(letters["reason"].value_counts().iter_rows())
        return StagedLetters(output=state.stage_output(letters), reasons=reasons).model_dump_json()

    return run


def _late_task(task: ShardTask) -> Task:
    def run(table: pa.Table) -> str:
        import polars as pl

        rows = pl.from_arrow(table)
        assert isinstance(rows, pl.DataFrame)
        return shard.stage_late(task, shard.with_idle(task, rows)).model_dump_json()

    return run


def _emit_task(tasks: list[ShardTask]) -> Task:
    def run(table: pa.Table) -> str:
        return steps.emit(tasks[table.column(0)[0].as_py()]).model_dump_json()

    return run


def _count_task(tasks: list[ShardTask], windows: list[int]) -> Task:
    def run(table: pa.Table) -> str:
        return json.dumps(shard.count_groups(tasks[table.column(0)[0].as_py()], windows))

    return run


def _warm_task(table: pa.Table) -> str:
    from slackwater.engine import steps

    return steps.__name__
