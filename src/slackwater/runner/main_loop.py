"""Choose and run the main loop: `PollingLoop` if the sources can be polled without Spark, else Spark's streaming query."""

from __future__ import annotations

import shutil

from slackwater.connectors.batch_planning import create_planners
from slackwater.connectors.source import Seekable
from slackwater.core.offsets import Offsets
from slackwater.runner import streaming_query
from slackwater.runner.changed_file_reporter import ChangedFileReporter
from slackwater.runner.epoch_execution import EpochExecutor
from slackwater.runner.pipeline_runner import PipelineRunner, RunComponents
from slackwater.runner.polling_loop import PollingLoop
from slackwater.spark.sessions import spark_session


def run_to_end(runner: PipelineRunner, components: RunComponents, *, available_now: bool, offsets_given: bool) -> None:
    """Run to the end of the input (`available_now`) or until the runner is stopped.

    `offsets_given`: offsets for new sources were specified for this start, so they are committed before the first
    epoch.
    """
    _commit_start_offsets(components, offsets_given)
    files = ChangedFileReporter(runner.pipeline.name, components, runner.reporter)
    epochs = EpochExecutor(runner, components, files)
    planners = create_planners(components.streams, components.driver.state, files.read)
    if available_now:
        if planners is not None:
            planners.stop_at_current_end()
        runner.reporter.expect_files(files.count_unread_files() if planners is None else planners.unplanned_files)
    files.report_changes(None)
    runner.reporter.observers.on_running()
    if planners is None:
        streaming_query.run_streaming_query(epochs, available_now)
    else:
        _forget_checkpoints(components)
        spark_session.list_files_locally(components.session)
        PollingLoop(epochs, planners, available_now).follow()
    if available_now:
        files.report_changes(None)
        for engine in components.engines:
            engine.hints.warn_missing()


def _commit_start_offsets(components: RunComponents, offsets_given: bool) -> None:
    """Commit the first offsets of sources that have never been read, before anything else is committed.

    These are the offsets to which "latest" currently refers, or offsets specified for this start.
    """
    start_offsets: dict[str, Offsets] = {}
    for source in components.streams.sources:
        if not isinstance(source, Seekable) or components.driver.state.sources[source.name].offsets is not None:
            continue
        latest = source.spec.starting_offsets == "latest"
        # specified offsets stay valid even if this run dies before its first epoch
        if (offsets := source.latest() if latest else source.configured_start() if offsets_given else None) is not None:
            start_offsets[source.name] = offsets
    if start_offsets:
        components.driver.commit_start_offsets(start_offsets)


def _forget_checkpoints(components: RunComponents) -> None:
    """Remove the checkpoints of earlier runs with Spark's streaming query: from now on only the state is used."""
    home = components.streams.store.checkpoint
    for checkpoint in home.iterdir() if home.is_dir() else ():
        shutil.rmtree(checkpoint, ignore_errors=True)
