"""Run a pipeline on Spark until its input ends, it is stopped, or it fails. The state records each run."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

from slackwater import explain
from slackwater.config.pipeline import Pipeline
from slackwater.connectors.pipeline_sources import create_source_planners
from slackwater.connectors.source import SeekableSource
from slackwater.core.offset_base import Offsets
from slackwater.engine.observer import Observer, PendingPublish, Status
from slackwater.errors import EpochError, NewColumnsError, SlackwaterError, Topic
from slackwater.runner import background_run, existing_output, renamed_pipeline, run_log, run_loops, run_options
from slackwater.runner.background_run import Handle
from slackwater.runner.component_factory import create_targets
from slackwater.runner.epoch_execution import ChangedFileReporter, EpochExecutor
from slackwater.runner.local_paths import check_moved_directories
from slackwater.runner.pipeline_runner import PipelineRunner, RunComponents
from slackwater.runner.run_log import RunNotifier
from slackwater.runner.run_loops import PollingLoop
from slackwater.runner.run_options import RunOptions
from slackwater.secret_masking import mask_secrets
from slackwater.spark.sessions import spark_session
from slackwater.state.commit import Commit
from slackwater.state.protocol import StateStore
from slackwater.state.run_history import Outcome, Run, one_line

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import SparkSession

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


def run(  # noqa: PLR0913 -- one argument per option
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
    """Run a pipeline until its input ends (`available_now`), `stop` is set, or the run fails.

    Return the status after the last commit, or None if nothing was committed. The status has the fields `epoch`, `rows`
    (of this epoch), `watermark_us`, `counters` and others. Its method `results()` reads the target as a Polars
    DataFrame. If the run fails, its commits remain, and the next run continues from them.

    Args:
        pipeline: The pipeline to run.
        available_now: End when all input that exists now has been processed.
        flush: Close all open windows at the end. This requires `available_now`.
        spark: The Spark session to use; by default, one is started.
        on_status: A function that is called with the status after each commit.
        on_notice: A function that is called with the level and the text of each log line of the run. By default, the
            lines are logged.
        stop: An event that, once set, ends the run after the epoch in progress. With `background`, use `Handle.stop`
            instead.
        rebuild: Start over with a new state, and keep the old one under another name. The mapping contains the offsets
            to begin at: "earliest", "latest" or offsets for each source, or for all sources under the name "*". An
            empty mapping (`{}`) uses the starting offsets in the config.
        former_output: What to do if an earlier state, or a newer copy of the state, has written to the target. "aside"
            moves its files away, "keep" continues without moving them, and None makes startup fail.
        observers: Objects that are notified of each commit and of other events, such as
            `slackwater.observe.open_telemetry()`; see docs/monitoring.md.
        background: Return a `Handle` immediately, while the run continues in a thread. The handle reports on the run,
            stops it and raises its error. Unless `on_notice` is set, only warnings are logged.

    Raises:
        SlackwaterError: The run failed.
    """
    options = RunOptions(
        available_now=available_now,
        flush=flush,
        spark=spark,
        on_status=on_status,
        on_notice=on_notice,
        stop=stop,
        rebuild=rebuild,
        former_output=former_output,
        observers=observers,
    )
    return run_in_background(pipeline, options) if background else run_pipeline(pipeline, options)


def run_in_background(pipeline: Pipeline, options: RunOptions) -> Handle:
    """Start a run in a new thread. Unless `on_notice` is set, only warnings are logged."""
    options.check_background()
    on_notice = options.on_notice or background_run.log_background_notice

    def run_in_thread(stop: threading.Event, latest: Observer) -> Status | None:
        observers = (*options.observers, latest)
        return run_pipeline(pipeline, replace(options, on_notice=on_notice, stop=stop, observers=observers))

    return Handle(pipeline, run_in_thread)


def run_pipeline(pipeline: Pipeline, options: RunOptions) -> Status | None:
    """Run a pipeline in the current thread with the options of `run`."""
    options.check()
    if options.rebuild:
        pipeline = run_options.set_starting_offsets(pipeline, options.rebuild)
    began, stop = time.monotonic(), options.stop or threading.Event()
    if options.on_notice is not None:
        reporter = RunNotifier(options.on_notice, options.on_status, options.observers)
        return _with_pipeline(_run(PipelineRunner(pipeline, options.spark, reporter, stop), options), pipeline)
    with run_log.log_to_stderr() as notice:
        lines = run_log.ThrottledStatusLog()
        reporter = RunNotifier(notice, options.on_status or lines.status, options.observers)
        last = _run(PipelineRunner(pipeline, options.spark, reporter, stop), options)
        lines.close()
        notice("info", mask_secrets(run_log.end_line(pipeline, last, time.monotonic() - began)))
        return _with_pipeline(last, pipeline)


def _with_pipeline(last: Status | None, pipeline: Pipeline) -> Status | None:
    """Return the status with the pipeline attached, so that `Status.results` works."""
    return None if last is None else replace(last, config=pipeline, read_results=partial(_read_results, pipeline))


def _read_results(pipeline: Pipeline, target: str | None) -> pl.DataFrame:
    from slackwater.query.results import read_all_results

    return read_all_results(pipeline, target)


def _run(runner: PipelineRunner, options: RunOptions) -> Status | None:
    pipeline, reporter = runner.pipeline, runner.reporter
    with reporter.observers.observe_run(pipeline):
        with runner.error_boundary():
            for line in explain.find_plan_warnings(pipeline):
                reporter.notice("warning", line)
            check_moved_directories(pipeline)
        previous_failure: tuple[str, int] | None = None
        while True:
            try:
                return _run_once(runner, options)
            except NewColumnsError as error:
                if (failure := (str(error), runner.epoch)) == previous_failure:
                    raise EpochError(
                        f"{pipeline.name}: a run ended because of new columns, but the next start did not find them; set "
                        f'schema_changes = "ignore" to leave such columns out: {error}',
                        Topic.TABLE_COLUMNS,
                    ) from None
                previous_failure, options = failure, replace(options, rebuild=None, former_output=None)
                reporter.notice("info", f"{pipeline.name} restarts with new columns: {error}")
                runner = runner.create_runner()


def _run_once(runner: PipelineRunner, options: RunOptions) -> Status | None:
    """Run once, bound to the columns that the sources have at the start.

    Raises NewColumnsError if a source gets new columns that the config accepts.
    """
    with runner.error_boundary():
        latest = _open_store(runner, options)
        previous_epoch = -1 if latest is None else latest.epoch
        try:
            with (
                record_run(runner.store, runner.stop, lambda: max(runner.epoch, previous_epoch), previous_epoch),
                runner.error_boundary(),
            ):
                return _with_state(runner, latest, options)
        finally:
            runner.close()


def _with_state(runner: PipelineRunner, latest: Commit | None, options: RunOptions) -> Status | None:
    """Run once, while holding the lock of the state."""
    pipeline, reporter = runner.pipeline, runner.reporter
    reporter.notice("info", run_log.start_line(pipeline, latest))
    if latest is not None and latest.staged and runner.store.published_epoch() < latest.epoch:
        reporter.observers.on_pending(
            PendingPublish.from_commit(latest, latest.missing(runner.store.delivered_targets()))
        )
    if latest is None:
        if not options.starts_over:
            refusal = (
                None
                if options.former_output == existing_output.KEEP
                else renamed_pipeline.find_start_refusal(pipeline, runner.store)
            )
            if refusal is not None:
                raise refusal
            _check_former_output(runner, options.former_output)
        if options.former_output == existing_output.ASIDE:
            for line in existing_output.move_previous_output(pipeline):
                reporter.notice("warning", line)
    create_targets(pipeline)
    components = runner.prepare(latest, former_output=options.former_output)
    if components is None:
        return None
    run_to_end(runner, components, available_now=options.available_now, offsets_given=bool(options.rebuild))
    if options.flush and not runner.stop.is_set():
        components.driver.flush()
    return reporter.last


def _open_store(runner: PipelineRunner, options: RunOptions) -> Commit | None:
    """Lock the store and return the latest commit; None if there is no state or the run starts over.

    Starting over deletes nothing: the old state is renamed.
    """
    if not options.starts_over:
        if (line := renamed_pipeline.take_over_renamed_state(runner.pipeline, runner.store)) is not None:
            runner.reporter.notice("warning", line)
        return runner.store.open()
    _check_former_output(runner, options.former_output)  # before the state is renamed
    aside = runner.store.start_over()
    notice = runner.reporter.notice
    if aside is not None:
        notice("warning", f"starting over; the previous state is now {aside}; remove it when you no longer need it")
    notice("info", f"sources begin: {run_options.describe_starting_offsets(runner.pipeline)}")
    return None


def _check_former_output(runner: PipelineRunner, choice: str | None) -> None:
    """Warn about output of an earlier state that stays in the target. Raises StartError if the user made no choice."""
    for line in existing_output.check_previous_output(runner.pipeline, choice):
        runner.reporter.notice("warning", line)


# -- the main loop -------------------------------------------------------------------------------------------------------


def run_to_end(runner: PipelineRunner, components: RunComponents, *, available_now: bool, offsets_given: bool) -> None:
    """Run epochs to the end of the input, or until the runner is stopped.

    Args:
        runner: The runner.
        components: Its components, with the started driver.
        available_now: End when all input that exists now has been processed.
        offsets_given: Whether offsets were specified for the sources of this run. If so, they are committed before the
            first epoch.
    """
    _commit_start_offsets(components, offsets_given)
    files = ChangedFileReporter(runner.pipeline.name, components, runner.reporter)
    epochs = EpochExecutor(runner, components, files)
    planners = create_source_planners(components.streams, components.driver.state, files.read)
    if available_now:
        if planners is not None:
            planners.stop_at_current_end()
        runner.reporter.expect_files(files.count_unread_files() if planners is None else planners.unplanned_files)
    files.report_changes(None)
    runner.reporter.observers.on_running()
    if planners is None:
        run_loops.run_streaming_query(epochs, available_now)
    else:
        _forget_checkpoints(components)
        spark_session.list_files_locally(components.session)
        PollingLoop(epochs, planners, available_now).follow()
    if available_now:
        files.report_changes(None)
        for engine in components.engines:
            engine.hints.warn_about_empty_columns()


def _commit_start_offsets(components: RunComponents, offsets_given: bool) -> None:
    """Commit the first offsets of sources that have never been read, before anything else is committed.

    These are the offsets that "latest" currently refers to, or the offsets specified for this run.
    """
    start_offsets: dict[str, Offsets] = {}
    for source in components.streams.sources:
        if not isinstance(source, SeekableSource) or components.driver.state.sources[source.name].offsets is not None:
            continue
        latest = source.spec.starting_offsets == "latest"
        # specified offsets stay valid even if this run dies before its first epoch
        if (offsets := source.latest() if latest else source.configured_start() if offsets_given else None) is not None:
            start_offsets[source.name] = offsets
    if start_offsets:
        components.driver.commit_start_offsets(start_offsets)


def _forget_checkpoints(components: RunComponents) -> None:
    """Remove checkpoints of earlier runs with Spark's streaming query, because only the state is used from now on."""
    home = components.streams.store.checkpoint
    for checkpoint in home.iterdir() if home.is_dir() else ():
        shutil.rmtree(checkpoint, ignore_errors=True)


# -- the record of a run -------------------------------------------------------------------------------------------------


@contextmanager
def record_run(store: StateStore, stop: threading.Event, last_epoch: Callable[[], int], epoch: int) -> Iterator[None]:
    """Record a run that lasts as long as the block.

    Args:
        store: The store, which must be open and locked.
        stop: The event that stops the run. It decides whether the run is recorded as stopped or finished.
        last_epoch: Returns the last committed epoch at the end of the run.
        epoch: The last epoch committed before the run, or -1 if there is none.
    """
    run = Run(started_us=_now(), runner=f"process {os.getpid()} on {socket.gethostname()}", epoch=epoch)
    _write_run(store, run)

    def end(outcome: Outcome, error: BaseException | None = None) -> None:
        line = None if error is None else one_line(mask_secrets(str(error)) or type(error).__name__)
        ending = {"ended_us": _now(), "outcome": outcome, "last_epoch": last_epoch(), "error": line}
        _write_run(store, run.model_copy(update=ending))

    try:
        yield
    except NewColumnsError:
        end("restarted")
        raise
    except Exception as error:
        end("failed", error)
        raise
    except BaseException:  # mostly Ctrl-C
        end("stopped")
        raise
    end("stopped" if stop.is_set() else "finished")


def _write_run(store: StateStore, run: Run) -> None:
    try:
        store.save_run(run)
    except (SlackwaterError, OSError) as error:
        log.debug("the history of runs cannot be written: %s", error)


def _now() -> int:
    return time.time_ns() // 1000
