"""A whole pipeline in one process with a virtual clock: rows are piped in, quiet times and crashes happen when you say so.

The driver, the state store and what shards do are those of a run; sources are scripted, the target is in memory.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

from slackwater.config.join import Join
from slackwater.config.pipeline import Pipeline, resolve_connection
from slackwater.config.window import Window
from slackwater.core.capacity import ANYTHING
from slackwater.core.dead_letter import LETTER
from slackwater.core.schema import Field
from slackwater.core.time import duration_ms
from slackwater.engine import next_commit
from slackwater.engine.clock_skew import ClockSkewWarnings
from slackwater.engine.driver import Callbacks, Driver
from slackwater.engine.kill_points import KILL_POINTS
from slackwater.engine.stage import StageRunner as Stepping
from slackwater.errors import ConfigError, StartError
from slackwater.replay import replay
from slackwater.replay.replay import ReplayResult
from slackwater.sources.base import Batch
from slackwater.state import protocol
from slackwater.state.commit import BatchId
from slackwater.state.files.store import FilesStore
from slackwater.testing import no_sql
from slackwater.testing.capture_losses import WATCHED, value_limits, with_captured_losses, with_watched_stages
from slackwater.testing.given_sources import Row
from slackwater.testing.pipeline_builder import pipeline_for
from slackwater.testing.result import START_US, LocalFaults, LocalResult, SimulatedCrash
from slackwater.testing.steps import BoundSteps
from slackwater.testing.target import MemoryTarget

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from slackwater.testing.engine_with_sql import Rows
    from slackwater.testing.sql_frontend import GivenRows, SqlFrontend


class LocalPipeline:
    """A pipeline whose rows, time and accidents a test decides; use it as a context manager, or `close` it.

    `described`: a Pipeline, from TOML or Python; or a Window or Join alone, over rows of `schema` (names and Spark types) with
    `ts`, their event time. `session`: Spark, on which event time and SQL are run; without one a pipeline that has SQL is refused
    with a StartError that names it. `clock_us`: what the virtual clock shows first. `store`: makes the state store at each
    start; else files in `state_dir`, or a temporary directory. `on_publish`: gets what each epoch writes. `letters`: dead ones that
    are there before. `listen=False`: only rows that the pipeline itself keeps become letters, and the target holds any value.
    `watch`: stages without a target whose results are kept, too.

        >>> import slackwater as sw
        >>> from slackwater.testing import LocalPipeline
        >>> window = sw.Window(kind="session", gap_ms="30m", max_session_duration_ms="12h", group_by=["user"],
        ...                    aggregations=[sw.Aggregation(agg="count", as_="clicks")])
        >>> with LocalPipeline(window, {"user": "string"}) as test:
        ...     test.pipe([{"user": "u1", "ts": "2024-03-01T09:00:00Z"}, {"user": "u1", "ts": "2024-03-01T09:10:00Z"}])
        ...     test.crash("commit.before")  # the next epoch dies there, and is repeated as Spark would
        ...     test.pipe([{"user": "u1", "ts": "2024-03-01T11:00:00Z"}])
        ...     test.flush()
        ...     [row["clicks"] for row in test.result().rows]
        [2, 1]
    """

    def __init__(
        self,
        described: Pipeline | Window | Join,
        schema: Mapping[str, str] | None = None,
        *,
        session: SparkSession | None = None,
        shards: int = 2,
        clock_us: int = START_US,
        store: Callable[[], protocol.StateStore] | None = None,
        state_dir: str | None = None,
        on_publish: Callable[[pl.DataFrame], None] | None = None,
        letters: Sequence[Mapping[str, Any]] = (),
        listen: bool = True,
        watch: Sequence[str] = (),
    ) -> None:
        # configuration
        self._schema = None if schema is None else {name: Field(name, kind) for name, kind in schema.items()}
        self._session, self._store, self._listen, self._watch = session, store, listen, tuple(watch)
        self._home = None if store or state_dir else tempfile.TemporaryDirectory(prefix="slackwater-test-")
        self._directory = state_dir or (self._home.name if self._home else "")
        self._open = False
        try:
            self._prepare(described, clock_us, shards, letters, on_publish)
        except BaseException:
            self.close()
            raise

    def _prepare(
        self,
        described: Pipeline | Window | Join,
        clock_us: int,
        shards: int,
        letters: Sequence[Mapping[str, Any]],
        on_publish: Callable[[pl.DataFrame], None] | None,
    ) -> None:
        # what a process would hold
        self.now_us, self.shards = clock_us, shards
        self._faults = LocalFaults()
        self._reshard: int | None = None
        self._driver: Driver
        # what outlives a process
        self._checkpoint, self._batches, self._state_id = uuid.uuid4().hex, 0, uuid.uuid4().hex
        self._result = LocalResult()
        self._aside = MemoryTarget(LETTER, (), upserts=False)
        letter_types = {f.name: f.polars for f in LETTER}
        self._aside.hold(
            pl.DataFrame({n: no_sql.typed_series([r.get(n) for r in letters], t) for n, t in letter_types.items()})
        )
        self._describe(described)
        self._told = on_publish
        # every target there was, by its name and that of its place
        self._places: dict[tuple[str, str], MemoryTarget] = {}
        self._put("")
        self._begin()

    # -- what a test says ----------------------------------------------------------------------------------------

    def pipe(
        self,
        rows: Sequence[Row] | Mapping[str, Sequence[Row]],
        *,
        partitions: Mapping[str, Sequence[str]] | None = None,
        took_ms: int = 0,
    ) -> None:
        """One epoch with these rows: of the only source, or per source. A text is a record as it is, which may be broken.

        `partitions`: per source that has any, all partitions there are (a row's own is its "partition"; of Kafka: its
        "_partition"). `took_ms`: how long the epoch takes.
        """
        for name in (rows_by_source := rows if isinstance(rows, Mapping) else {self._only_source(): rows}):
            if name not in self.source_names:
                names_text = ", ".join(self.source_names)
                raise ConfigError([f'{self.pipeline.name}: there is no source "{name}"; there are: {names_text}'])
        self.now_us += took_ms * 1000
        if self._session is not None:
            from slackwater.testing.sql_frontend import GivenRows

            given_rows = [GivenRows(name, tuple(some), (), self.now_us) for name, some in rows_by_source.items()]
            self.pipe_prepared(dict(zip(rows_by_source, self.prepare(given_rows), strict=True)), partitions)
            return
        payload, parts = {}, {}
        for name, some in rows_by_source.items():
            payload[name] = self._bound.frame(name, some, self.now_us)
            if partitions and name in partitions:
                names = [r["partition"] for r in some]  # type: ignore[index]
                payload[name] = payload[name].with_columns(pl.Series("__partition", names, dtype=pl.String))
                parts[name] = {p: names.count(p) for p in partitions[name]}
        self._pipe(payload, parts)

    def prepare(self, given_rows: Sequence[GivenRows]) -> list[Rows]:
        """What Spark makes of given rows, of all at once where one step reads them: for `pipe_prepared`, in this order."""
        from slackwater.testing.engine_with_sql import LazyRows

        readers = {s.name: n for n, p in reversed(self.pipeline.stage_pipelines.items()) for s in p.sources}
        fronts = {readers[one.source] for one in given_rows}
        if len(fronts) == 1 and len(self._read_by) == 1:
            return list(self._sql_stages[fronts.pop()].prepare(given_rows, self._offsets))
        lazy_rows: list[Rows] = []
        for one in given_rows:
            waiting = LazyRows(one, dict(self._offsets))
            waiting.by(self._sql_stages[readers[one.source]])
            self._offsets |= waiting.after
            lazy_rows.append(waiting)
        return lazy_rows

    @property
    def _read_by(self) -> list[str]:
        """The steps that read sources."""
        return [n for n, p in self.pipeline.stage_pipelines.items() if not all(s.is_stage_output for s in p.sources)]

    def pipe_prepared(self, rows: Mapping[str, Rows], partitions: Mapping[str, Sequence[str]] | None = None) -> None:
        """The same for rows that `front` has prepared, as all those of a test at once."""
        parts = {}
        for name, one in rows.items():
            row_partitions = one.timed["partition"].drop_nulls()
            listed = (partitions or {}).get(name) or row_partitions.unique(maintain_order=True).to_list()
            if listed:
                parts[name] = {p: int((row_partitions == p).sum()) for p in listed}
        self._pipe(dict(rows), parts)

    def quiet(self, ms: int | str) -> None:
        """All sources are asked for so long (milliseconds, or "10m"), and have nothing."""
        length = duration_ms(ms)
        self.now_us += length * 1000
        self._survive(lambda: self._driver.tick(length * 1000), again=False)

    def crash(self, step: str, shards: int | None = None, nth: int = 1) -> None:
        """The next epoch dies at this step (see KILL_POINTS), and the process starts again: with so many shards, if given.

        `nth`: when the step comes for the nth time, as `write.before` does for each of several targets.
        """
        if step not in KILL_POINTS:
            raise ValueError(f"unknown step {step!r}, expected one of {KILL_POINTS}")
        self._faults.step, self._faults.nth, self._reshard = step, nth, shards

    def restart(
        self, described: Pipeline | Window | Join | None = None, *, shards: int | None = None, target: str | None = None
    ) -> None:
        """Stop and start again over the same state: with another config, other shards, or another target (a name for it).

        Raises what a start raises, as for a config that does not fit the state. What a target holds stays, also while a config
        has none of its name.
        """
        self._stop()
        self.shards = shards or self.shards
        if described is not None:
            self._describe(described)
        self._put(self._place if target is None else target)
        self._begin()

    def replay(self, limit: int | None = None, dry: bool = False) -> ReplayResult:
        """Apply the dead letters there are by now, at most `limit` of them. `dry`: only find out."""

        def applied() -> None:
            self._result.replays.append(
                replay.replay_letters(self._driver, self._aside.table, self._reread, dry, limit)
            )

        self._survive(applied)
        return self._result.replays[-1]

    def flush(self) -> None:
        """Close all open windows, as `--flush` does at the end of the input."""
        self._survive(lambda: self._driver.flush())

    def result(self) -> LocalResult:
        """What was published and counted so far."""
        outcome, state = self._result, self._driver.state
        first, *_ = now = list(self._targets.values())
        outcome.rows, outcome.gone, outcome.letters = first.rows, first.gone, self._aside.rows
        outcome.former = {place or name: (t.rows, t.gone) for (name, place), t in self._places.items() if t not in now}
        outcome.tables = {name: t.held for name, t in self._targets.items() if not name.startswith(WATCHED)}
        by_stage = {str(p.target.from_): self._targets[n] for n, p in reversed(self.pipeline.per_target.items())}
        outcome.stages = {stage: target.held for stage, target in by_stage.items()}
        outcome.counters, outcome.watermark_us = next_commit.total_counters(state), state.watermark_us
        ended = state.stages[-1]
        outcome.open_sessions, outcome.open_keys = sum(ended.windows), sum(ended.groups)
        outcome.table = first.held
        return outcome

    def target(self, name: str | None = None) -> MemoryTarget:
        """What stands for a target (the first, where none is named): whether it is `down` a test may say, too."""
        return next(iter(self._targets.values())) if name is None else self._targets[name]

    @property
    def epoch(self) -> int:
        """The latest commit."""
        return self._driver.state.epoch

    @property
    def identity(self) -> tuple[str, ...] | None:
        """The columns that tell results apart; None for a join, whose rows are a multiset."""
        first = next(iter(self.pipeline.per_target.values()))
        return self.identity_of(str(first.target.from_)) or None

    def identity_of(self, stage: str) -> tuple[str, ...]:
        """The same of what one stage emits; nothing of a multiset."""
        return tuple(self._steps[stage].identity or ())

    @property
    def front(self) -> SqlFrontend | None:
        """What runs the SQL of the first stage; None without Spark."""
        return self._bound.front

    @property
    def source_names(self) -> list[str]:
        return [s.name for s in self.pipeline.sources]

    def close(self) -> None:
        """Let go of the state; what was not closed is removed with the process."""
        self._stop()
        if self._home is not None:
            self._home.cleanup()

    def __enter__(self) -> LocalPipeline:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- parts ---------------------------------------------------------------------------------------------------

    def _describe(self, described: Pipeline | Window | Join) -> None:
        if not isinstance(described, Pipeline):
            if self._schema is None:
                raise StartError('a window or a join alone needs schema={"column": "type"}: the columns of its rows')
            described = pipeline_for(described, ("a", "b") if isinstance(described, Join) else ("a",))
        described = with_watched_stages(described, self._watch)
        self.pipeline = pipeline = with_captured_losses(described) if self._listen else described
        given_columns = {} if self._schema is None else {s.name: self._schema for s in pipeline.sources}
        self._offsets: dict[tuple[str, int], int] = {}
        self._bound = BoundSteps(pipeline, given_columns, self._session)
        self._steps, self._sql_stages = self._bound.operators, self._bound.fronts
        self._capacities = value_limits(pipeline, self._steps) if self._listen else {}
        held = dict.fromkeys(self._sql_stages, ANYTHING)
        for name, target_pipeline in pipeline.per_target.items():
            if (stage := str(target_pipeline.target.from_)) in held:
                held[stage] &= self._capacities.get(name, ANYTHING)
        for name, capacity in held.items():  # what a target cannot hold is found before its results are made
            self._sql_stages[name].capacity = capacity

    def _put(self, place: str) -> None:
        """The targets of the config, in a place that tests name: what they hold outlives a process."""
        self._place, self._targets = place, dict[str, MemoryTarget]()
        for name, target_pipeline in self.pipeline.per_target.items():
            spec, operator = target_pipeline.target, self._steps[str(target_pipeline.target.from_)]
            connection = resolve_connection(spec.connection, target_pipeline.connections)
            window = target_pipeline.target_stage.transform.window
            upserts = connection is not None and spec.upserts(connection.kind, window)
            # the only one is the same, whatever its stage is called
            key = (name if self.pipeline.targets else "", place)
            if key in self._places:
                self._places[key].becomes(operator.output, (operator.identity or ()) if upserts else ())
            else:
                capacity = self._capacities.get(name, ANYTHING)
                self._places[key] = MemoryTarget(operator.output, operator.identity or (), upserts, capacity)
                self._places[key].told = self._told or self._places[key].told
            self._targets[name] = self._places[key]

    def _begin(self) -> None:
        try:
            self._begun()
        except SimulatedCrash:
            self._begun()

    def _begun(self) -> None:
        pipeline, faults = self.pipeline, self._faults
        hooks = Callbacks(lambda: self.now_us, on_status=self._result.statuses.append, faults=faults)
        held = self._store() if self._store else FilesStore(self._directory, pipeline.name)
        stages = [
            Stepping(
                name,
                stage_pipeline,
                self._steps[name],
                held,
                self._bound.engine(name, stage_pipeline),
                faults.in_worker,
                number,
                skew_warnings=ClockSkewWarnings(stage_pipeline),
            )
            for number, (name, stage_pipeline) in enumerate(pipeline.stage_pipelines.items())
        ]
        self._driver = Driver(pipeline, stages, held, self._targets, hooks, self._aside)
        try:
            self._driver.start(held.open(), self.shards, {}, self._state_id)
        except BaseException:
            held.close()
            raise
        self._open = True

    def _stop(self) -> None:
        if self._open:
            self._driver.store.close()
            self._open = False

    # -- epochs --------------------------------------------------------------------------------------------------

    def _pipe(self, payload: Mapping[str, Any], partitions: Mapping[str, Mapping[str, int]]) -> None:
        number = BatchId(checkpoint=self._checkpoint, batch=self._batches)
        self._batches += 1
        batch = Batch(number, {}, payload, partitions=partitions)
        self._survive(lambda: self._driver.run_batch(batch, 0), checkpoints=True)

    def _survive(self, work: Callable[[], object], again: bool = True, checkpoints: bool = False) -> None:
        """Do it; where it dies, start anew and do it once more, as Spark repeats a batch that it has not noted as done."""
        try:
            work()
            if checkpoints:
                self._faults.hit("checkpoint.before", self.epoch)
                self._faults.hit("checkpoint.after", self.epoch)
        except SimulatedCrash:
            self._stop()
            self.shards, self._reshard = self._reshard or self.shards, None
            self._begin()
            if again:
                work()

    def _reread(self, letters: pl.DataFrame) -> Mapping[str, Any]:
        return self._bound.replay_rows(letters, self.now_us)

    def _only_source(self) -> str:
        if len(self.source_names) > 1:
            names = ", ".join(self.source_names)
            raise ConfigError([f"{self.pipeline.name}: rows of which source? There are {names}: give {{source: rows}}"])
        return self.source_names[0]


__all__ = ["KILL_POINTS", "START_US", "LocalPipeline", "LocalResult", "SimulatedCrash"]
