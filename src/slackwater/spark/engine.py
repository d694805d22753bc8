"""The Spark engine: the only place that runs jobs.

files of the batch ─▶ event time ─▶ SQL, lookups ─▶ input columns ─▶ shuffle by key ─▶ mapInArrow: engine.shard
                      max per source                (panes: partial aggregates)
"""

from __future__ import annotations

import json
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from slackwater.config.pipeline import Pipeline, resolve
from slackwater.config.ways import Way
from slackwater.core.capacity import ANYTHING, Capacity
from slackwater.core.dead_letter import LETTER
from slackwater.core.words import plural
from slackwater.engine.protocol import IngestOutcome, SourceStats, Unfit
from slackwater.errors import EpochError
from slackwater.operators import fitting
from slackwater.operators.base import Operator, Question, ShardTask
from slackwater.operators.dead_letters import (
    ORIGIN,
    OUTSIDE,
    letter_columns,
    numbered_origin,
    origin_column,
    unfit_columns,
)
from slackwater.operators.task import EmitReport, IngestReport, LetterFile
from slackwater.sources.base import CORRUPT, Batch, reason
from slackwater.sources.files import local_name
from slackwater.spark import analysis, columns, epoch_sql, undecodable
from slackwater.spark.first_looks import FirstLooks
from slackwater.spark.statistics import FILE, count_unfit, spans_of, statistics, stats_of
from slackwater.spark.workers import Task, count_task, emit_task, ingest_task, late_task, letters_task, run_over
from slackwater.state.protocol import ShardState
from slackwater.watermark import Span
from slackwater.windows.aggregations import quote

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("slackwater")

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
    `sql`: per way (its key) the SQL with `_origin` carried through, where late rows are kept. `end`: SQL for how far a row
    reaches, where each brings its own gap.
    """

    session: SparkSession
    pipeline: Pipeline
    logic: Operator
    times: Mapping[str, str]
    refresh: Callable[[], None] = field(default=lambda: None)
    sql: Mapping[str, Sequence[str]] = field(default_factory=dict)
    end: str | None = None
    looks: FirstLooks = field(init=False)

    def __post_init__(self) -> None:
        """User-defined aggregations go to the workers by value, with the tasks: a worker need not find their module."""
        from pyspark import cloudpickle

        self.looks = FirstLooks(self.session, self.pipeline, self.times)
        for agg in columns.aggregations(self.logic):
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
        self.looks.begin(batch.payload)
        latest = clock_us + self.pipeline.transform.step.max_future_ms * 1000
        tagged = 0 in tasks[0].idle_sources  # a single source that was idle: its late rows are told apart
        read = self._read(batch, clock_us, None, idle, tagged)
        outcome = self._ingest(read, batch, tasks)
        if any(s.max_event_us is not None and s.max_event_us > latest for s in outcome.sources.values()):
            read = self._read(batch, clock_us, latest, idle, tagged)
            outcome = self._ingest(read, batch, tasks)
        outcome = self.looks.answered(outcome, batch, clock_us)
        return self._with_letters(read, outcome, tasks)

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
        # where rows are folded, their letters are found by reading once more: see `_with_letters`
        found_here = self.pipeline.carries_origin and not self.logic.is_folded
        before = tasks[0].operator.late_before(tasks[0].watermark) if found_here else None
        unfit: dict[str, list[Observation]] = {}
        for name, timed in read.timed.items():
            observed[name] = Observation()
            asked = [*statistics(list(batch.partitions.get(name, {})), False, timed.columns), *self.looks.ask(name)]
            for way, tag, out in self._outputs(read, name, timed, timed.observe(observed[name], *asked)):
                if (marked := self._marked(way, out, tasks[0])) is not None:
                    unfit.setdefault(name, []).append(Observation())
                    out = marked.observe(unfit[name][-1], count_unfit()).where(f"{fitting.UNFIT} IS NULL")
                parts.append(out.selectExpr(*self._columns(way, tag, before)))
        lifted = self._lift(reduce(lambda a, b: a.unionByName(b), parts), read.tagged)
        owned = columns.to_shards(self.logic, lifted, len(tasks))
        reports = run_over(owned, lifted.columns, ingest_task(list(tasks)))
        stats: dict[str, SourceStats] = {}
        for name, observation in observed.items():
            found: Mapping[str, Any] = observation.get
            counts = batch.partitions.get(name, {})
            self.looks.heard(name, found)
            if found["bad"]:
                again = statistics(list(counts), True, read.timed[name].columns)
                found = read.timed[name].agg(*again).collect()[0].asDict()
            stats[name] = stats_of(found, counts)
        counts_of = {name: sum(o.get["unfit"] or 0 for o in seen) for name, seen in unfit.items()}

        def spans(source: str, jump_us: int) -> Mapping[str, tuple[Span, ...]]:
            return spans_of(read.timed[source], jump_us, bool(batch.partitions.get(source)))

        return IngestOutcome(
            [IngestReport.model_validate_json(r) for r in reports],
            stats,
            unfit=[Unfit(name, {"": n}, ()) for name, n in counts_of.items() if n],
            spans=spans,
        )

    def _marked(self, way: Way, out: DataFrame, task: ShardTask) -> DataFrame | None:
        """Rows that came out of the SQL, with why they cannot be held; None where all can."""
        why = fitting.unfit_sql(self.logic, self.logic.input_of(way.name), task.capacity)
        return None if why is None else out.selectExpr("*", f"{why} AS {fitting.UNFIT}")

    def _unfit(self, read: _Read, outcome: IngestOutcome, task: ShardTask) -> tuple[list[Unfit], list[LetterFile]]:
        """Look at the rows again that cannot be held: why, a few of them in words, and their letters."""
        found, staged = [], list[LetterFile]()
        for seen in outcome.unfit:
            marked = [
                m
                for way, _, out in self._outputs(read, seen.source, read.timed[seen.source])
                if (m := self._marked(way, out, task)) is not None
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
                    letters = run_over(rows.selectExpr(*columns), [f.name for f in LETTER], letters_task(task.state))
                    staged += [LetterFile.model_validate_json(one) for one in letters]
            if sum(reasons.values()) != seen.rows:
                raise EpochError(
                    f'{self.pipeline.name}: source "{seen.source}": {plural(seen.rows, "row")} that cannot be held, and '
                    f"{sum(reasons.values())} when they were read again: the input was not the same; nothing of this epoch was "
                    "committed, the next start repeats it"
                )
            found.append(Unfit(seen.source, reasons, samples[:3]))
        return found, staged

    def _columns(self, way: Way, tag: int | None, before: int | None) -> list[str]:
        """The columns that go to the shards, over the output of the SQL."""
        return columns.columns(self.logic, way.name, tag, before, self.end)

    def _outputs(
        self, read: _Read, name: str, timed: DataFrame, observed: DataFrame | None = None
    ) -> Iterator[tuple[Way, int | None, DataFrame]]:
        """What comes out of the SQL for one source's usable rows, on each way from it, with its tag (see `_by_idleness`; None:
        needs none). `observed`: the same rows, that count what passes: on the first way."""
        names = [s.name for s in self.pipeline.sources]
        for number, way in enumerate(self.pipeline.ways_from(name)):
            rows = self._with_origin(timed if number or observed is None else observed, name)
            for tag, some in _by_idleness(rows, names.index(name), len(names), read.split[name]):
                if self.pipeline.texts(way):
                    some = some.drop("__bad", CORRUPT)
                if self.pipeline.transform.is_rows and self.times[name] == analysis.CLOCK:
                    some = some.drop("_event_ts")  # the source did not bring it
                out = analysis.run_sql(self.session, self.pipeline, way, some, self.sql.get(way.key))
                yield way, tag if read.tagged else None, out

    def _with_origin(self, timed: DataFrame, name: str) -> DataFrame:
        """The usable rows, with where they came from, where that may be asked for behind the SQL."""
        rows = timed.where("__bad IS NULL")
        if not self.pipeline.carries_origin:
            return rows.drop(FILE)
        plain = [c for c in rows.columns if c != FILE]
        bytes_of = {c: kind for c, kind in rows.dtypes if c not in (FILE, CORRUPT)}
        file = FILE if FILE in rows.columns else "NULL"
        return rows.selectExpr(*map(quote, plain), origin_column(bytes_of, name, file))

    def payload(self, rows: pl.DataFrame) -> DataFrame:
        import polars as pl

        return self.session.createDataFrame(rows.to_arrow(compat_level=pl.CompatLevel.oldest()))

    def reread(self, payload: Mapping[str, Any], clock_us: int, capacity: Capacity = ANYTHING) -> pl.DataFrame:
        """Rows of dead letters, few enough for this process. Their number comes through the SQL as a part of `_origin`."""
        import polars as pl

        self.refresh()
        latest = clock_us + self.pipeline.transform.step.max_future_ms * 1000
        parts: list[DataFrame] = []
        for name, frame in payload.items():
            rows = self._timed(name, frame, clock_us, latest).where("__bad IS NULL")
            plain = [quote(c) for c in rows.columns if c not in (FILE, LETTER_NUMBER, "__bad", CORRUPT)]
            rows = rows.selectExpr(*plain, numbered_origin(LETTER_NUMBER))
            for way in self.pipeline.ways_from(name):
                out = analysis.run_sql(self.session, self.pipeline, way, rows, self._carrying(way, frame))
                why = fitting.unfit_sql(self.logic, self.logic.input_of(way.name), capacity)
                out = out if why is None else out.where(f"({why}) IS NULL")
                parts.append(out.selectExpr(*self._columns(way, None, None), f"{ORIGIN}.offset AS {LETTER_NUMBER}"))
        try:
            found = pl.from_arrow(reduce(lambda a, b: a.unionByName(b), parts).toArrow())
        except Exception as error:
            raise EpochError(f"the letters cannot be read, and nothing was replayed: {reason(error)}") from error
        assert isinstance(found, pl.DataFrame)
        return columns.reread(self.logic, found, LETTER_NUMBER)

    def _carrying(self, way: Way, frame: DataFrame) -> Sequence[str] | None:
        """The SQL on a way with `_origin` carried through, also where late rows are not kept. Raises StartError."""
        if way.key in self.sql or not self.pipeline.texts(way):
            return self.sql.get(way.key)
        plain = frame.drop(FILE, LETTER_NUMBER)
        return analysis.check_origin(self.session, self.pipeline, way, analysis.empty(self.session, plain))

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
        staged: list[LetterFile] = []
        if self.pipeline.transform.on_error == "dlq":
            staged += [letters for n in bad for letters in self._write_bad(n, read.timed[n], tasks[0].state)]
        some_late = any(r.late or r.partly_late for r in outcome.reports)
        if self._keeps_late and self.logic.is_folded and some_late:
            staged += self._write_late(read, tasks[0])
        samples = {name: self._bad_samples(name, read.timed[name]) for name in bad}
        unfit, letters = self._unfit(read, outcome, tasks[0]) if outcome.unfit else ((), [])
        return replace(outcome, bad_samples=samples, unfit=unfit, staged=[*staged, *letters])

    def _write_bad(self, name: str, timed: DataFrame, state: ShardState) -> list[LetterFile]:
        bad = timed.where("__bad IS NOT NULL")
        columns = letter_columns(
            {c: kind for c, kind in timed.dtypes if c != FILE}, self.pipeline.name, name, state.epoch
        )
        staged = run_over(bad.selectExpr(*columns), [f.name for f in LETTER], letters_task(state))
        return [LetterFile.model_validate_json(letters) for letters in staged]

    def _write_late(self, read: _Read, task: ShardTask) -> list[LetterFile]:
        """A second job over the output of the SQL: lateness follows from a row's time and the watermark alone."""
        late = epoch_sql.earlier(task.operator.late_before(task.watermark))
        parts = [
            out.where(late).selectExpr(*epoch_sql.late_columns(tag))
            for name, timed in read.timed.items()
            for _, tag, out in self._outputs(read, name, timed)
        ]
        rows = reduce(lambda a, b: a.unionByName(b), parts)
        return [LetterFile.model_validate_json(letters) for letters in run_over(rows, rows.columns, late_task(task))]

    def _timed(self, name: str, frame: DataFrame, clock_us: int, latest: int | None) -> DataFrame:
        """Rows with `_event_ts` and `__bad`: NULL for a usable row, else why it is not."""
        time = f"timestamp_micros({clock_us}L)" if self.times[name] == analysis.CLOCK else self.times[name]
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
        of_file = name in self._files and FILE not in frame.columns  # read again, it brings the name
        file = [f"_metadata.file_path AS {FILE}"] if of_file else []
        return frame.selectExpr(*kept, *file, f"{time} AS _event_ts", bad)

    @property
    def _files(self) -> list[str]:
        """The sources that read files."""
        known = self.pipeline.connections
        found = {s.name: resolve(s.connection, known) for s in self.pipeline.sources if s.connection is not None}
        return [name for name, connection in found.items() if connection is not None and connection.kind == "files"]

    def _lift(self, rows: DataFrame, tagged: bool) -> DataFrame:
        """What is folded before the shuffle."""
        return columns.lift(self.logic, rows, tagged)

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
                return list(pool.map(lambda task: task.operator.emit(task), tasks))
        return [EmitReport.model_validate_json(r) for r in self._over_shards(tasks, emit_task(list(tasks)))]

    def count(self, tasks: Sequence[ShardTask], question: Question) -> Mapping[int, int]:
        counts: Counter[int] = Counter()
        for report in self._over_shards(tasks, count_task(list(tasks), question)):
            counts.update({int(w): n for w, n in json.loads(report).items()})
        return counts

    def _is_local(self) -> bool:
        """Whether Spark runs inside one machine: then threads of this process do what a job would, without its overhead."""
        return (self.session.sparkContext.master or "").startswith("local")

    def _over_shards(self, tasks: Sequence[ShardTask], task: Task) -> list[str]:
        return run_over(self.session.range(0, len(tasks), 1, len(tasks)), ["id"], task)


def _by_idleness(rows: DataFrame, index: int, sources: int, idle: Sequence[str]) -> list[tuple[int, DataFrame]]:
    """Rows with their tag: the source's place, or, behind all sources, that of its idle partitions."""
    if not idle:
        return [(index, rows)]
    listed = ", ".join("'" + p.replace("'", "\\'") + "'" for p in idle)
    of_idle = f"concat(_topic, '-', _partition) IN ({listed})"
    return [(index, rows.where(f"NOT {of_idle}")), (sources + index, rows.where(of_idle))]
