"""Prepare the rows of a test with Spark: decoding, event time, SQL, and the columns for the shards.

    rows of all batches, numbered ─▶ decode ─▶ event time ─┬─▶ facts (time, bad, partition, origin)      one Spark job
                                                           └─▶ SQL ─▶ columns for the shards, numbered   one Spark job

The SQL is row-wise, so it runs once over the rows of all batches. The number of a row determines its batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from slackwater.config.pipeline import Pipeline
from slackwater.config.stage import InputPath
from slackwater.connectors.lookup_views import LookupViews
from slackwater.connectors.source import Batch, spark_error_reason
from slackwater.core.column_names import CORRUPT, quote_identifier
from slackwater.core.schema import ANYTHING, Field, ValueLimits
from slackwater.errors import EpochError, StartError
from slackwater.operators import unstorable_rows
from slackwater.operators.base import Operator
from slackwater.operators.dead_letters import ORIGIN, numbered_origin, origin_column
from slackwater.runner import component_factory
from slackwater.spark.analysis import sql_analysis
from slackwater.spark.engine import SparkEngine
from slackwater.spark.row_query_builder import RowQueryBuilder
from slackwater.spark.sessions import spark_session
from slackwater.spark.tuning.source_statistics import FILE, FINGERPRINT
from slackwater.testing.local_engine import PreparedRows
from slackwater.testing.stub_sources import NUMBER, Offsets, Row, StubSource, create_stub_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CLOCK = "__clock"  # hidden column: the arrival time of a row (µs)
_BATCH = "__batch"  # hidden column: the index of a row's batch


@dataclass(frozen=True)
class InputRows:
    """Rows of one source that arrive together: `rows`, and the rows in `files`. `clock_us`: the arrival time (µs)."""

    source: str
    rows: Sequence[Row] = ()
    files: Sequence[Path] = ()
    clock_us: int = 0


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

    def prepare(self, preparer: SparkRowPreparer) -> PreparedRows:
        """Return the rows that `preparer` produces from `input_rows`. The result is cached."""
        if id(preparer) not in self.prepared:
            self.next_offsets = dict(self.offsets)
            (self.prepared[id(preparer)],) = preparer.prepare([self.input_rows], self.next_offsets)
        return self.prepared[id(preparer)]

    @property
    def timed(self) -> pl.DataFrame:
        """Return `PreparedRows.timed` from any of the row preparers, because all of them see the same partitions."""
        return next(iter(self.prepared.values())).timed


Rows = PreparedRows | LazyRows  # the rows of a source in a batch


@dataclass
class SparkRowPreparer:
    """Runs the decoders and SQL of a pipeline on Spark. `columns`: the columns of sources without a declared schema."""

    base: SparkSession
    pipeline: Pipeline
    columns: Mapping[str, Sequence[Field]] = field(default_factory=dict)
    capacity: ValueLimits = ANYTHING
    logic: Operator = field(init=False)

    def __post_init__(self) -> None:
        self.session = spark_session.private_session(self.base, 1)
        # compiling takes longer than processing a few rows
        self.session.conf.set("spark.sql.codegen.wholeStage", "false")
        self.lookups = LookupViews(self.session, self.pipeline.lookups, lambda line: None)
        self.lookups.load()
        self.sources = [
            create_stub_source(self.session, self.pipeline, i, self.columns.get(s.name))
            for i, s in enumerate(self.pipeline.sources)
        ]
        sources: Any = self.sources
        frames = component_factory.create_empty_frames(self.session, sources)
        binding = component_factory.bind_stage(self.pipeline, self.session, frames)
        self.logic = binding.operator
        self._clocked = [
            n for n, t in binding.times.items() if t == sql_analysis.CLOCK and self.pipeline.transform.is_stateless
        ]
        clocked = {n: f"timestamp_micros({_CLOCK})" if t == sql_analysis.CLOCK else t for n, t in binding.times.items()}
        self.engine = SparkEngine(
            RowQueryBuilder(self.session, self.pipeline, self.logic, clocked, end=binding.end_sql(self.session))
        )
        self._carried = {w.key: self._carried_columns(w, binding.frames[w.origin]) for w in self.pipeline.input_paths}

    def _carried_columns(self, input_path: InputPath, empty: DataFrame) -> tuple[str, ...] | None:
        """Return the columns that carry the number of a row through the SQL. None if the SQL cannot carry it.

        `input_path`: the stages whose SQL the row passes. `empty`: an empty frame with the columns of the source.
        """
        try:
            return sql_analysis.add_origin_to_sql(self.session, self.pipeline, input_path, empty) or ()
        except StartError:
            return None

    @property
    def source_names(self) -> list[str]:
        return [s.name for s in self.sources]

    # -- rows ----------------------------------------------------------------------------------------------------

    def prepare(self, input_rows: Sequence[InputRows], offsets: Offsets | None = None) -> list[PreparedRows]:
        """Prepare rows in as few Spark jobs as possible, and return them in the same order.

        `offsets`: the next offset of each topic partition, which this method advances. By default, offsets start at 0.
        Raises StartError or EpochError if rows cannot be prepared.
        """
        prepared_rows: dict[int, PreparedRows] = {}
        for source in self.sources:
            if source_rows := [(i, g) for i, g in enumerate(input_rows) if g.source == source.name]:
                prepared_rows |= self._prepare_source(source, source_rows, {} if offsets is None else offsets)
        return [prepared_rows[i] for i in sorted(prepared_rows)]

    def _prepare_source(
        self, source: StubSource, numbered_rows: Sequence[tuple[int, InputRows]], offsets: Offsets
    ) -> dict[int, PreparedRows]:
        try:
            texts = [(i, g.clock_us, row) for i, g in numbered_rows for row in g.rows]
            pieces: dict[int, list[PreparedRows]] = {i: [] for i, _ in numbered_rows}
            if texts or not any(g.files for _, g in numbered_rows):
                rows, times = [row for _, _, row in texts], [clock for _, clock, _ in texts]
                frame = source.decode(self.session, rows, times, offsets)
                clocks = {i: g.clock_us for i, g in numbered_rows}
                for i, prepared in self._prepare_numbered(source, frame, [i for i, _, _ in texts], clocks).items():
                    pieces[i].append(prepared)
            for i, g in numbered_rows:
                if g.files:
                    read, count = self._number_rows(source.read_files(self.session, g.files))
                    pieces[i] += self._prepare_numbered(source, read, [i] * count, {i: g.clock_us}).values()
        except Exception as error:
            if isinstance(error, StartError | EpochError):
                raise
            raise EpochError(f'{self.pipeline.name}: source "{source.name}": {spark_error_reason(error)}') from None
        return {i: _concat(parts) for i, parts in pieces.items() if parts}

    def prepare_source(self, name: str, batch: Batch, clock_us: int, capacity: ValueLimits) -> PreparedRows:
        """Return the prepared rows of a source. Only dead letters and results of other stages are prepared here.

        `capacity` is not used. Other rows were prepared before their epoch, with `self.capacity`.
        """
        rows = batch.payload[name]
        if isinstance(rows, PreparedRows):
            return rows
        if isinstance(rows, LazyRows):
            return rows.prepare(self)
        numbered, count = self._number_rows(rows)
        source = next(s for s in self.sources if s.name == name)
        return self._prepare_numbered(source, numbered, [0] * count, {0: clock_us})[0]

    def payload(self, rows: pl.DataFrame) -> DataFrame:
        return self.session.createDataFrame(rows.to_arrow(compat_level=pl.CompatLevel.oldest()))

    def replay_rows(self, payload: Mapping[str, Any], clock_us: int, capacity: ValueLimits) -> pl.DataFrame:
        return self.engine.replay_rows(payload, clock_us, capacity)

    def validate_dead_letters(self, payload: Mapping[str, Any], clock_us: int) -> pl.DataFrame:
        return self.engine.validate_dead_letters(payload, clock_us)

    def _number_rows(self, frame: DataFrame) -> tuple[DataFrame, int]:
        table = frame.toArrow()
        numbered = table.append_column(NUMBER, pa.array(range(table.num_rows), pa.int64()))
        from pyspark.sql.types import LongType, StructField, StructType

        schema = StructType([*frame.schema.fields, StructField(NUMBER, LongType())])
        return self.session.createDataFrame(numbered, schema), table.num_rows

    def _prepare_numbered(
        self, source: StubSource, frame: DataFrame, owners: Sequence[int], clocks: Mapping[int, int]
    ) -> dict[int, PreparedRows]:
        """Prepare a frame of numbered rows. Return the prepared rows by batch.

        Args:
            source: The source of the rows.
            frame: The rows, with their number in `__number`.
            owners: The batch of each row, by the number of the row.
            clocks: The arrival time of each batch (µs).
        """
        timed = self._with_event_time(source.name, frame, {clocks[i] for i in owners} or {0}, owners, clocks)
        row_facts = _collect(timed.selectExpr(*_fact_columns(timed, source.name)))
        row_facts = row_facts.sort(NUMBER).with_columns(
            pl.Series(_BATCH, [owners[n] for n in sorted(row_facts[NUMBER])], dtype=pl.Int64)
        )
        ways = self.pipeline.input_paths_from(source.name)
        needs_separate_runs = any(self._carried[w.key] is None for w in ways)
        runs = row_facts.partition_by(_BATCH, "partition") if needs_separate_runs else [row_facts]
        out = pl.concat([self._run_sql(way, timed, run, runs) for way in ways for run in runs])
        out = out.join(row_facts.select(NUMBER, _BATCH), on=NUMBER, how="left", maintain_order="left")
        return {
            i: PreparedRows(
                row_facts.filter(pl.col(_BATCH) == i).drop(_BATCH), out.filter(pl.col(_BATCH) == i).drop(_BATCH)
            )
            for i in (dict.fromkeys(owners) or clocks)
        }

    def _with_event_time(
        self, name: str, frame: DataFrame, times: set[int], owners: Sequence[int], clocks: Mapping[int, int]
    ) -> DataFrame:
        """Return the rows with `_event_ts`, `__bad` (why a row is bad, or NULL) and the hidden columns.

        Args:
            name: The name of the source.
            frame: The rows, with their number in `__number`.
            times: The distinct arrival times of the rows (µs).
            owners: The batch of each row, by the number of the row.
            clocks: The arrival time of each batch (µs).
        """
        if len(times) == 1:
            clock = f"{next(iter(times))}L"
        else:
            clock_list = ", ".join(f"{clocks[i]}L" for i in owners)
            clock = f"element_at(array({clock_list}), CAST({NUMBER} AS INT) + 1)"
        timed = self.engine.rows.with_event_time(name, frame.selectExpr("*", f"{clock} AS {_CLOCK}"), 0, None)
        if self.engine.rows.is_stage_output(name):
            return timed
        latest = f"{_CLOCK} + {self.pipeline.transform.step.max_future_ms * 1000}L"
        plain = [quote_identifier(c) for c in timed.columns if c != "__bad"]
        late = (
            f"CASE WHEN __bad IS NOT NULL THEN __bad WHEN unix_micros(_event_ts) > {latest} THEN 'future' END AS __bad"
        )
        return timed.selectExpr(*plain, late)

    def _run_sql(
        self, way: InputPath, timed: DataFrame, run: pl.DataFrame, runs: Sequence[pl.DataFrame]
    ) -> pl.DataFrame:
        """Run the SQL of an input path over some rows.

        Each result has the number of its input row, or the first number in `run` if the SQL cannot pass numbers
        through.

        Args:
            way: The input path.
            timed: All rows, with their event times.
            run: Numbers and times of the rows to process. It is one of `runs`.
            runs: All runs of the SQL.
        """
        carried = self._carried[way.key]
        rows = timed.where("__bad IS NULL")
        if len(runs) > 1:
            rows = rows.where(f"{NUMBER} IN ({', '.join(map(str, run[NUMBER]))})")
        hidden = {FILE, FINGERPRINT, "__bad", CORRUPT, NUMBER, _CLOCK}
        hidden |= {"_event_ts"} if way.origin in self._clocked else set()
        plain = [quote_identifier(c) for c in rows.columns if c not in hidden]
        number = f"{ORIGIN}.offset" if carried is not None else f"{run[NUMBER][0] if run.height else 0}L"
        rows = rows.selectExpr(*plain, *([] if carried is None else [numbered_origin(NUMBER)]))
        out = sql_analysis.run_sql(self.session, self.pipeline, way, rows, carried or None)
        why = unstorable_rows.unstorable_reason_sql(self.logic, self.logic.input_index(way.name), self.capacity)
        unfit = f"{why or 'CAST(NULL AS STRING)'} AS {unstorable_rows.UNFIT}"
        return _collect(out.selectExpr(*self.engine.rows.columns(way, None, None), unfit, f"{number} AS {NUMBER}"))


_CACHE_SIZE = 16
_PREPARERS: list[SparkRowPreparer] = []  # binding a pipeline to Spark is slow, so all tests of a pipeline share one


def get_spark_row_preparer(
    base: SparkSession, pipeline: Pipeline, columns: Mapping[str, Sequence[Field]]
) -> SparkRowPreparer:
    """Return the row preparer of a pipeline, from the cache if possible. A cached preparer reloads its lookups."""
    for preparer in _PREPARERS:
        if preparer.base is base and preparer.pipeline == pipeline and preparer.columns == columns:
            preparer.lookups.load()
            return preparer
    del _PREPARERS[: max(len(_PREPARERS) - _CACHE_SIZE + 1, 0)]
    _PREPARERS.append(SparkRowPreparer(base, pipeline, columns))
    return _PREPARERS[-1]


def _fact_columns(timed: DataFrame, source: str) -> list[str]:
    types = {c: kind for c, kind in timed.dtypes if c not in (FILE, FINGERPRINT, CORRUPT, NUMBER, _CLOCK)}
    partition = "concat(_topic, '-', _partition)" if "_offset" in types else "CAST(NULL AS STRING)"
    types |= {CORRUPT: "string"} if CORRUPT in timed.columns else {}
    origin = origin_column(types, source, FILE if FILE in timed.columns else "NULL")
    return [NUMBER, "unix_micros(_event_ts) AS ts", "__bad AS bad", f"{partition} AS partition", origin]


def _collect(frame: DataFrame) -> pl.DataFrame:
    collected = pl.from_arrow(frame.toArrow())
    assert isinstance(collected, pl.DataFrame)
    return collected


def _concat(parts: Sequence[PreparedRows]) -> PreparedRows:
    """Concatenate the prepared rows of one batch: the rows from the test itself, and the rows from files."""
    if len(parts) == 1:
        return parts[0]
    first, second = parts
    renumbered = pl.col(NUMBER) + 1 + max(first.timed[NUMBER], default=0)
    return PreparedRows(
        timed=pl.concat([first.timed, second.timed.with_columns(renumbered)]),
        rows=pl.concat([first.rows, second.rows.with_columns(renumbered)]),
    )
