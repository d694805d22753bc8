"""Running a pipeline on Spark: put the parts together, start the query, tick while it is idle, stop cleanly."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any, Literal, overload

from slackwater import explain
from slackwater.config.pipeline import Pipeline, check_run_flags
from slackwater.core.schema import Field
from slackwater.engine import kill_points
from slackwater.engine.driver import Driver, Hooks
from slackwater.engine.observer import Columns, Observer, Observers, Waiting
from slackwater.engine.status import Status
from slackwater.errors import ConfigError, EpochError, ExhaustedError, LockHeldError, SlackwaterError, StartError
from slackwater.evolution import restore
from slackwater.operators.base import Operator
from slackwater.runner import background as in_background
from slackwater.runner import border, former, pace, starting_offsets, tell
from slackwater.runner.assemble import (
    bind,
    carrying,
    ends,
    letters_of,
    source_of,
    spark_settings,
    stages_of,
    store_of,
    target_of,
)
from slackwater.runner.background import Handle
from slackwater.runner.places import check_former
from slackwater.secrets import any_known, masked
from slackwater.sources import files
from slackwater.sources.base import Batch, reason
from slackwater.sources.changed import AT_ONCE, ReadFiles
from slackwater.sources.changed import text as changed_text
from slackwater.sources.kafka import KafkaSource
from slackwater.sources.lookups import Lookups
from slackwater.sources.streams import Streams
from slackwater.spark import session
from slackwater.spark.engine import SparkEngine
from slackwater.spark.workers import warm_up
from slackwater.state.commit import Commit
from slackwater.targets.base import Target

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

    from slackwater.replay.replay import Outcome

log = logging.getLogger("slackwater")


@overload
def run(
    pipeline: Pipeline,
    *,
    available_now: bool = False,
    flush: bool = False,
    spark: SparkSession | None = None,
    on_status: Callable[[Status], None] | None = None,
    on_notice: Callable[[str, str], None] | None = None,
    stop: threading.Event | None = None,
    rebuild: Mapping[str, Any] | None = None,
    former_output: str | None = None,
    observers: Sequence[Observer] = (),
    background: Literal[False] = False,
) -> Status | None: ...


@overload
def run(
    pipeline: Pipeline,
    *,
    available_now: bool = False,
    flush: bool = False,
    spark: SparkSession | None = None,
    on_status: Callable[[Status], None] | None = None,
    on_notice: Callable[[str, str], None] | None = None,
    rebuild: Mapping[str, Any] | None = None,
    former_output: str | None = None,
    observers: Sequence[Observer] = (),
    background: Literal[True],
) -> Handle: ...


def run(
    pipeline: Pipeline,
    *,
    available_now: bool = False,
    flush: bool = False,
    spark: SparkSession | None = None,
    on_status: Callable[[Status], None] | None = None,
    on_notice: Callable[[str, str], None] | None = None,
    stop: threading.Event | None = None,
    rebuild: Mapping[str, Any] | None = None,
    former_output: str | None = None,
    observers: Sequence[Observer] = (),
    background: bool = False,
) -> Status | Handle | None:
    """Run a pipeline until its input ends (`available_now`), `stop` is set, or it fails.

    `flush`: at the end close all open windows. `rebuild`: put the state aside and start over, with each source (by name, "*"
    for all) at "earliest", "latest" or these offsets; `{}`: where the config says. Returns the last status (None if nothing was committed). Raises
    SlackwaterError; what was committed stays, and the next run goes on from there.

    `former_output`: where a state begins and its target, which only adds rows, holds those of another state of the pipeline:
    "aside" moves its files away, "keep" adds to what is there; None refuses.

    `observers` hear of the run from its beginning to its end: see `slackwater.observe`.

    `background`: return at once, with a `Handle` that says how it goes, stops it, and raises what ended it. Of the run's lines
    only warnings are logged then, unless `on_notice` takes them.
    """
    if background:
        check_run_flags(available_now, flush)
        if stop is not None:
            raise ConfigError(["stop: belongs to a run in the foreground; stop one in the background by its handle"])

        def beside(stop: threading.Event, latest: Observer) -> Status | None:
            return run(
                pipeline,
                available_now=available_now,
                flush=flush,
                spark=spark,
                on_status=on_status,
                on_notice=on_notice or in_background.notice,
                stop=stop,
                rebuild=rebuild,
                former_output=former_output,
                observers=(*observers, latest),
            )

        return Handle(pipeline, beside)
    check_run_flags(available_now, flush)
    if former_output not in (None, *former.CHOICES):
        raise ConfigError([f'former_output: "{former_output}" is no choice; expected "aside" or "keep"'])
    if rebuild:
        pipeline = starting_offsets.stated(pipeline, rebuild)
    began, stop = time.monotonic(), stop or threading.Event()
    if on_notice is not None:
        return _Run(pipeline, available_now, spark, on_status, on_notice, stop, observers).told(
            flush, rebuild, former_output
        )
    with tell.heard() as notice:
        lines = tell.Lines()
        one = _Run(pipeline, available_now, spark, on_status or lines.status, notice, stop, observers)
        last = one.told(flush, rebuild, former_output)
        lines.close()
        notice("info", masked(tell.end(pipeline, last, time.monotonic() - began)))
        return last


def replay(
    pipeline: Pipeline,
    choose: Callable[[pl.DataFrame], pl.DataFrame],
    *,
    limit: int | None = None,
    dry: bool = False,
    spark: SparkSession | None = None,
    on_notice: Callable[[str, str], None] | None = None,
) -> Outcome:
    """Apply dead letters once more, as epochs of their own; needs the lock of a runner. `choose` filters the letters.

    Raises SlackwaterError; what was committed stays, and is not applied again.
    """
    if pipeline.transform.window is None:
        raise StartError(
            f"{pipeline.name}: letters are replayed as corrections of windows, and this is a join, whose rows are final; "
            "to look at them: slackwater dlq list"
        )
    one = _Run(pipeline, True, spark, None, on_notice or tell.notice, threading.Event())
    with one.border():
        return one.replay(choose, limit, dry)


def republish(
    pipeline: Pipeline,
    epoch: int,
    *,
    spark: SparkSession | None = None,
    on_notice: Callable[[str, str], None] | None = None,
) -> None:
    """Publish this epoch, which was committed and is not out yet, and stop. Raises SlackwaterError; PublishError if it fails again."""
    from slackwater.runner import set_aside

    with set_aside.held(pipeline, epoch):
        pass  # says so before Spark starts
    one = _Run(pipeline, True, spark, None, on_notice or tell.notice, threading.Event())
    with one.border():
        one.republish(epoch)


class _Run:
    """One run; owns the store's lock, the query and the driver."""

    def __init__(
        self,
        pipeline: Pipeline,
        available_now: bool,
        spark: SparkSession | None,
        on_status: Callable[[Status], None] | None,
        notice: Callable[[str, str], None],
        stop: threading.Event,
        observers: Sequence[Observer] = (),
    ) -> None:
        self._observers = Observers(observers)
        self.pipeline, self.available_now, self.stop = pipeline, available_now, stop
        self._notice = notice
        self.last: Status | None = None
        self.driver: Driver  # from `_prepare` on
        self._base: SparkSession | None = None  # Spark, once it is up
        self._latest: Commit | None = None  # what the store held at the start
        self._report = on_status
        self._progress: tuple[int, int] | None = None
        self._stated = False  # where sources begin is not what the config says
        self._turn = threading.Lock()  # epochs and ticks, one at a time
        self._failure: BaseException | None = None
        self._stopping = False
        self._read_files: dict[str, ReadFiles] = {}
        self._epoch = -1  # the epoch of the batch in progress
        self._idle_since = self._rows_at = time.monotonic()
        self._asked = False  # whether the sources were asked at all: a query takes its time to begin
        self._pace = pace.Pace(None)
        self._undo = ExitStack()
        self.store = store_of(pipeline)
        self.target: Target | None = None
        self.letters: Target | None = None
        self._spark = spark

    def notice(self, level: str, line: str) -> None:
        self._notice(level, masked(line))

    def told(self, flush: bool, rebuild: Mapping[str, Any] | None, former_output: str | None) -> Status | None:
        """`go`, with errors of ours only."""
        with self._observers.of(self.pipeline), self.border():
            return self.go(flush, rebuild, former_output)

    def border(self) -> AbstractContextManager[None]:
        return border.errors(self.pipeline.name, lambda: self._base, self._committed)

    def _committed(self) -> str:
        """What was committed last, in words: of this run, or as it found the state."""
        driver = getattr(self, "driver", None)
        return tell.committed(getattr(driver, "state", self._latest))

    def go(
        self, flush: bool, rebuild: Mapping[str, Any] | None = None, former_output: str | None = None
    ) -> Status | None:
        for line in explain.warnings(self.pipeline):
            self.notice("warning", line)
        check_former(self.pipeline)
        latest = None
        if rebuild is None:
            latest = self.store.open()
        else:
            self._check_former(former_output)  # before anything is put aside
            self._over()
        self._stated = bool(rebuild)
        try:
            self.notice("info", tell.start(self.pipeline, latest))
            if latest is not None and latest.staged and self.store.published() < latest.epoch:
                self._observers.waiting(Waiting(latest.epoch, latest.committed_us))
            if latest is None:
                if rebuild is None:
                    self._check_former(former_output)
                if former_output == former.ASIDE:
                    for line in former.put_aside(self.pipeline):
                        self.notice("warning", line)
            if not self._prepare(latest):
                return None
            query = self._start()
            try:
                self._watch(query)
            finally:
                self._end(query)
            if self.available_now:
                self._tell_changed(None)
                self.engine.looks.tell_missing()
            if flush and not self.stop.is_set():
                self.driver.flush()
            return self.last
        finally:
            self._close()

    def republish(self, epoch: int) -> None:
        from slackwater.runner import set_aside

        latest = self.store.open()
        try:
            if latest is not None:
                set_aside.check(self.pipeline, latest, self.store.published(), epoch)
            self._prepare(latest)
        finally:
            self._close()

    def _check_former(self, choice: str | None) -> None:
        """Say what of another state stays in the target; refuse if nobody decided about it."""
        for line in former.check(self.pipeline, choice):
            self.notice("warning", line)

    def _over(self) -> None:
        """Begin anew; nothing is deleted."""
        aside = self.store.start_over()
        if aside is not None:
            self.notice("warning", f"starting over; the former state is now {aside}, remove it when nobody needs it")
        self.notice("info", f"sources begin: {starting_offsets.text(self.pipeline)}")

    def replay(self, choose: Callable[[pl.DataFrame], pl.DataFrame], limit: int | None, dry: bool) -> Outcome:
        from slackwater.replay import replay
        from slackwater.runner import dead_letters
        from slackwater.spark import reread

        if len(self.pipeline.alone) > 1:
            raise StartError(
                f"{self.pipeline.name}: letters are replayed as corrections of what a target holds, and what this pipeline's "
                "first stage emits is read by the next one; read late letters with: slackwater dlq list"
            )
        if self.pipeline.transform.window is None:
            raise StartError(
                f"{self.pipeline.name}: letters are replayed as corrections of windows, and this is a join, whose rows are "
                "final; read late letters with: slackwater dlq list"
            )
        if self.pipeline.dead_letter is None:
            dead_letters.newest(self.pipeline, dead_letters.Wanted())  # says so, before Spark starts
        try:
            latest = self.store.open()
        except LockHeldError as error:
            raise LockHeldError(f"{error}; a replay is an epoch of a runner: replay, then start it again") from None
        try:
            if latest is None:
                raise StartError(
                    f"{self.pipeline.name}: there is no state yet, so nothing was ever late; run the pipeline first"
                )
            self._prepare(latest)

            def rows(some: pl.DataFrame) -> Mapping[str, DataFrame]:
                return reread.frames(self.session, self.streams.sources, some)

            letters = dead_letters.newest(self.pipeline, dead_letters.Wanted())  # with those that this start published
            return replay.replay(self.driver, choose(letters), rows, dry, limit)
        finally:
            self._close()

    def _close(self) -> None:
        self._undo.close()
        for part in (self.target, self.letters, self.store):
            if part is not None:
                part.close()

    # -- before the first batch ----------------------------------------------------------------------------------

    def _prepare(self, latest: Commit | None) -> bool:
        """Put the parts together. Returns whether that was done; not if the run was to stop meanwhile."""
        self._latest = latest
        if self.stop.is_set():
            return False
        with session.as_starting():  # jars may have to be fetched, too
            base = self._spark or session.start(spark_settings(self.pipeline, self.notice), self.notice)
        self._base = base
        if self.stop.is_set():
            return False
        self._undo.callback(border.hide_traces(base))
        store = self.pipeline.state_store
        shards = (store.shards if store else None) or base.sparkContext.defaultParallelism
        self.session = session.private(base, shards)
        warm = threading.Thread(target=self._warm, args=(shards,), daemon=True)
        warm.start()
        lookups = Lookups(self.session, self.pipeline.transform.lookups, lambda line: self.notice("warning", line))
        lookups.load()
        known = {n: s.columns for n, s in latest.sources.items()} if latest else {}
        sources = [
            source_of(self.session, self.pipeline, i, known.get(s.name)) for i, s in enumerate(self.pipeline.sources)
        ]
        self.streams = Streams(self.session, sources, self.store)
        times, logic = bind(self.pipeline, self.session, sources)
        schemas = {s.name: s.schema.json() for s in sources}
        for name, schema in schemas.items():
            for line in restore.check_schema(name, known.get(name), schema):
                self.notice("warning", line)
        for line in explain.size_warnings(self.pipeline.last.transform.step):
            self.notice("warning", line)
        sql = carrying(self.pipeline, self.session, sources)
        self.engine = engine = SparkEngine(
            self.session, self.pipeline, logic, times, lookups.refresh, sql, ends(self.pipeline, self.session, sources)
        )
        hooks = Hooks(
            lambda: time.time_ns() // 1000,
            self._on_status,
            self.notice,
            self._observers.waiting,
            kill_points.from_environment(),
        )
        state_id = latest.state_id if latest else uuid.uuid4().hex
        stages = stages_of(self.pipeline, self.session, engine, self.store, hooks.faults)
        results = stages[-1].operator
        self._observers.described(Columns({s.name: _columns(s.schema) for s in sources}, results.output))
        self.target, self.letters = self._target_of(results, state_id), letters_of(self.pipeline, state_id)
        for place in (self.target, self.letters):
            if place is not None:
                place.open()
        self.driver = Driver(self.pipeline, stages, self.store, self.target, hooks, self.letters)
        if self.stop.is_set():
            return False
        self.driver.start(latest, shards, schemas, state_id)
        if latest is not None:
            self._tell(self.driver.recovered())
        if self.driver.target.guarantee != "exactly once":
            self.notice("warning", f"delivery to {self.driver.target.description} is {self.driver.target.guarantee}")
        warm.join()
        return not self.stop.is_set()

    def _target_of(self, results: Operator, state_id: str) -> Target:
        return target_of(self.pipeline, results, state_id)

    def _warm(self, shards: int) -> None:
        try:
            windows = (stage.transform.window for stage in self.pipeline.alone.values())
            warm_up(self.session, shards, loops=any(w is not None and w.kind == "session" for w in windows))
        except Exception as error:
            log.debug("warming up the workers failed: %s", error)

    # -- the query -----------------------------------------------------------------------------------------------

    def _start(self) -> StreamingQuery:
        self._anchor()
        self.checkpoint = self.streams.checkpoint(self.driver.state)
        planned = self.streams.plan()
        writer = planned.writeStream.foreachBatch(self._on_batch).option("checkpointLocation", str(self.checkpoint))
        if self.available_now:
            writer = writer.trigger(availableNow=True)
        elif self.pipeline.trigger_interval_ms:
            writer = writer.trigger(processingTime=f"{self.pipeline.trigger_interval_ms} milliseconds")
        if self.available_now:
            self._progress = (0, self._files_to_come())
        for source in self._file_sources:
            self._read_files[source.name] = ReadFiles()
            self._remember_files(source, all_of_them=True)
        self._tell_changed(None)
        self._idle_since = self._rows_at = time.monotonic()
        query = writer.start()
        if not (self.available_now or self.pipeline.trigger_interval_ms):
            self._pace = pace.of_query(query)
        return query

    @property
    def _file_sources(self) -> list[files.FilesSource]:
        return [s for s in self.streams.sources if isinstance(s, files.FilesSource)]

    def _remember_files(self, source: files.FilesSource, all_of_them: bool = False) -> None:
        """Know the files that the latest commit has read."""
        offsets = self.driver.state.sources[source.name].offsets or {}
        names = offsets.get("segments", [])
        entries = files.recall(self.store, {"segments": names if all_of_them else names[-1:]})
        self._read_files[source.name].add(entries)

    def _tell_changed(self, limit: int | None = AT_ONCE) -> None:
        """Say, count and commit which files changed after they were read."""
        offsets, count = {}, 0
        for source in self._file_sources:
            found = self._read_files[source.name].changed(limit)
            if found:
                names = [files.local_name(e.path) for e in found[: files.CHANGES_SHOWN]]
                log.warning("%s: %s", self.pipeline.name, changed_text(source.name, names, len(found)))
                state, count = self.driver.state, count + len(found)
                before = state.sources[source.name].offsets
                offsets[source.name] = files.note_changes(self.store, state.epoch + 1, before, found)
        if offsets:
            self.driver.anchor(offsets, count)
            self._tell(self.driver.recovered())

    def _anchor(self) -> None:
        """Commit what "latest" means for Kafka sources that were never read, before anything else is."""
        kafka = [s for s in self.streams.sources if isinstance(s, KafkaSource)]
        unread = [s for s in kafka if self.driver.state.sources[s.name].offsets is None]
        found = {s.name: s.latest() for s in unread if s.spec.starting_offsets == "latest"}
        if self._stated:  # also if this run dies before its first epoch
            found |= {s.name: s.stated() for s in unread if s.name not in found}
        if found:
            self.driver.anchor(found)

    def _files_to_come(self) -> int:
        total = 0
        for source in self.streams.sources:
            if isinstance(source, files.FilesSource):
                try:
                    listed = files.located(source.spec.query or "")
                    here = len(self.session.read.format("binaryFile").load(listed).inputFiles())
                except Exception:
                    continue
                total += max(here - int((self.driver.state.sources[source.name].offsets or {}).get("count", 0)), 0)
        return total

    def _on_batch(self, planned: DataFrame, number: int) -> None:
        """Called by Spark for each batch; a batch that is not finished here must not be noted by Spark as done."""
        with self._turn:
            if self._stopping:
                raise _StoppedError
            try:
                quiet = int((time.monotonic() - self._idle_since) * 1e6)
                state = self.driver.state
                self._epoch = state.epoch + 1
                self.driver.hooks.faults.hit("checkpoint.after", state.epoch)
                if state.batch and state.batch.checkpoint == self.checkpoint.name and number <= state.batch.batch:
                    return
                batch = self.streams.batch(self.checkpoint, number, planned, state)
                if self._progress:
                    self._progress = (self._progress[0] + (batch.files or 0), self._progress[1])
                if batch.payload:
                    self.driver.run_batch(batch, quiet)
                    for source in self._file_sources:
                        if source.name in batch.offsets:
                            self._remember_files(source)
                    self._tell_changed()
                    self._advertise(batch)
                    self.driver.hooks.faults.hit("checkpoint.before", self.driver.state.epoch)
            except BaseException as error:
                self._failure = error
                raise
            finally:
                self._asked = True
                self._idle_since = self._rows_at = time.monotonic()
                self._pace.rows_came()

    def _advertise(self, batch: Batch) -> None:
        for source in self.streams.sources:
            offsets = batch.offsets.get(source.name)
            if isinstance(source, KafkaSource) and offsets is not None:
                source.advertise(offsets)

    def _watch(self, query: StreamingQuery) -> None:
        """Wait for the end; tick while the sources have nothing."""
        pause, every = self.pipeline.idle_pause_ms / 1000, self.pipeline.trigger_interval_ms / 1000
        while query.isActive and not self.stop.is_set():
            quiet_for = time.monotonic() - self._rows_at
            self.stop.wait(0.02 if self.available_now else self._pace.look_seconds(quiet_for))
            now = time.monotonic() if every else self._pace.asked(time.monotonic())
            since = self._idle_since
            waited = now - since
            # with timed triggers the sources are asked once per interval: whole intervals count
            quiet = waited // every * every if every else min(waited, 4 * pause)
            if self.available_now or self._failure is not None or waited < pause or not quiet:
                continue
            nothing = _has_nothing(query)
            if self._turn.acquire(blocking=False):
                try:
                    if not self._asked:  # until now is no silence
                        self._asked, self._idle_since = nothing, time.monotonic()
                    if not nothing or self._idle_since != since:
                        continue  # the sources are being asked, or rows came meanwhile
                    self.driver.tick(int(quiet * 1e6))
                    self._tell_changed()
                    self._idle_since = self._idle_since + quiet if every else now
                    self._pace.quiet_for(time.monotonic() - self._rows_at)
                except BaseException:
                    self._stopping = True
                    raise
                finally:
                    self._turn.release()

    def _end(self, query: StreamingQuery) -> None:
        failed: BaseException | None
        with self._turn:
            self._stopping = True
        try:
            failed = None if query.isActive else query.exception()
            query.stop()
        except Exception as error:  # its process is gone
            failed = error
        if isinstance(self._failure, SlackwaterError):
            raise self._failure
        if self._failure is not None:
            if exhausted := ExhaustedError.of(self._failure):
                raise exhausted from None
            committed = self.driver.state.epoch >= self._epoch
            what = (
                "was committed, and publishing it failed; the next start publishes it"
                if committed
                else "was not committed"
            )
            raise EpochError(f"{self.pipeline.name}: epoch {self._epoch} {what}: {reason(self._failure)}") from _shown(
                self._failure
            )
        if failed is not None and not self.stop.is_set():
            raise EpochError(f"{self.pipeline.name}: the query failed: {reason(failed)}") from _shown(failed)

    def _on_status(self, status: Status) -> None:
        from dataclasses import replace

        if self._progress:
            status = replace(status, files_done=self._progress[0], files_total=max(self._progress))
        self.last = status
        self._tell(status)

    def _tell(self, status: Status) -> None:
        if self._report:
            self._report(status)
        self._observers.status(status)


def _columns(schema: StructType) -> list[Field]:
    return [Field(f.name, f.dataType.simpleString()) for f in schema.fields]


def _has_nothing(query: StreamingQuery) -> bool:
    """Whether the query has asked its sources, and had nothing: not while it begins, looks, or plans a batch."""
    status = query.status
    return str(status["message"]).startswith("Waiting") and not status["isDataAvailable"]


def _shown(cause: BaseException) -> BaseException | None:
    """An error of Spark as the cause of ours: it quotes the SQL, so it is left out where that may hold a secret."""
    return None if any_known() else cause


class _StoppedError(Exception):
    """Tells Spark that the batch it offers was not taken because the run is ending."""
