"""Run a pipeline on Spark until its input ends, it is stopped, or it fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

from slackwater import explain
from slackwater.config.pipeline import Pipeline
from slackwater.engine.observer import Observer, PendingPublish
from slackwater.engine.status import Status
from slackwater.errors import EpochError, NewColumnsError, Topic
from slackwater.runner import (
    background_run,
    main_loop,
    previous_name,
    previous_output,
    run_history,
    run_log,
    starting_offsets,
)
from slackwater.runner.background_run import Handle
from slackwater.runner.components import create_targets
from slackwater.runner.local_paths import check_moved_directories
from slackwater.runner.pipeline_runner import PipelineRunner
from slackwater.runner.run_log import RunNotifier
from slackwater.runner.run_options import RunOptions
from slackwater.secrets import mask_secrets
from slackwater.state.commit import Commit

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import SparkSession


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
    """Run a pipeline until its input ends (`available_now`), `stop` is set, or it fails.

    Return the last status, or None if nothing was committed. Its `results()` reads the target as a DataFrame. The
    commits of a failed run remain, and the next run continues from them.

    Args:
        available_now: End when all input that exists now has been processed.
        flush: Close all open windows at the end.
        spark: The Spark session to use; by default one is started.
        on_status: Called with the status after each commit.
        on_notice: Called with the level and the text of each line about the run; by default lines are logged.
        stop: An event that ends the run after the epoch in progress.
        rebuild: Start over with a new state and keep the old one under another name. Maps sources ("*" for all) to
            "earliest", "latest" or offsets; `{}` uses the positions of the config.
        former_output: What to do if this run creates a new state, but an append-only target holds rows of an
            earlier state. "aside" moves its files away, "keep" adds rows to them, and None makes the start fail.
        observers: Objects that are notified during the run; see `slackwater.observe`.
        background: Return a `Handle` immediately, which reports on the run, stops it and raises its error. Then only
            warnings are logged, unless there is an `on_notice`.

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
    """Start the run in a thread. Only warnings are logged, unless there is an `on_notice`."""
    options.check_background()
    on_notice = options.on_notice or background_run.print_warning

    def run_in_thread(stop: threading.Event, latest: Observer) -> Status | None:
        observers = (*options.observers, latest)
        return run_pipeline(pipeline, replace(options, on_notice=on_notice, stop=stop, observers=observers))

    return Handle(pipeline, run_in_thread)


def run_pipeline(pipeline: Pipeline, options: RunOptions) -> Status | None:
    """Run a pipeline in this thread, as `run` does."""
    options.check()
    if options.rebuild:
        pipeline = starting_offsets.set_starting_offsets(pipeline, options.rebuild)
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
    """Return the status with the pipeline, which allows it to read the results."""
    return None if last is None else replace(last, config=pipeline, read_results=partial(_read_results, pipeline))


def _read_results(pipeline: Pipeline, target: str | None) -> pl.DataFrame:
    from slackwater.query.result_readers import read_all_results

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
                runner = runner.new_runner()


def _run_once(runner: PipelineRunner, options: RunOptions) -> Status | None:
    """Run once, bound to the columns that the sources have at the start.

    Raises NewColumnsError if a source gets new columns that the config accepts.
    """
    with runner.error_boundary():
        latest = _open_store(runner, options)
        previous_epoch = -1 if latest is None else latest.epoch
        try:
            with (
                run_history.record_run(
                    runner.store, runner.stop, lambda: max(runner.epoch, previous_epoch), previous_epoch
                ),
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
                if options.former_output == previous_output.KEEP
                else previous_name.find_start_refusal(pipeline, runner.store)
            )
            if refusal is not None:
                raise refusal
            _check_former_output(runner, options.former_output)
        if options.former_output == previous_output.ASIDE:
            for line in previous_output.move_previous_output(pipeline):
                reporter.notice("warning", line)
    create_targets(pipeline)
    components = runner.prepare(latest, former_output=options.former_output)
    if components is None:
        return None
    main_loop.run_to_end(runner, components, available_now=options.available_now, offsets_given=bool(options.rebuild))
    if options.flush and not runner.stop.is_set():
        components.driver.flush()
    return reporter.last


def _open_store(runner: PipelineRunner, options: RunOptions) -> Commit | None:
    """Lock the store and return the latest commit; None if there is no state or the run starts over.

    Starting over deletes nothing: the old state is renamed.
    """
    if not options.starts_over:
        if (line := previous_name.continue_previous_state(runner.pipeline, runner.store)) is not None:
            runner.reporter.notice("warning", line)
        return runner.store.open()
    _check_former_output(runner, options.former_output)  # before the state is renamed
    aside = runner.store.start_over()
    notice = runner.reporter.notice
    if aside is not None:
        notice("warning", f"starting over; the previous state is now {aside}; remove it when you no longer need it")
    notice("info", f"sources begin: {starting_offsets.describe_starting_offsets(runner.pipeline)}")
    return None


def _check_former_output(runner: PipelineRunner, choice: str | None) -> None:
    """Warn about output of an earlier state that stays in the target. Raises StartError if the user made no choice."""
    for line in previous_output.check_previous_output(runner.pipeline, choice):
        runner.reporter.notice("warning", line)
