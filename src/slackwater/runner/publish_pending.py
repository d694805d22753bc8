"""Publish the pending epoch and stop: a start that ends before reading any source."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from slackwater.config.pipeline import Pipeline
from slackwater.runner import run_log, skip_publish
from slackwater.runner.pipeline_runner import PipelineRunner
from slackwater.runner.run_log import RunNotifier

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def publish_pending(
    pipeline: Pipeline,
    epoch: int,
    *,
    spark: SparkSession | None = None,
    on_notice: Callable[[str, str], None] | None = None,
) -> None:
    """Publish an epoch that was committed but not published.

    Raises PublishError if publishing fails again, and SlackwaterError for other failures.
    """
    with skip_publish.lock_pending_epoch(pipeline, epoch):
        pass  # raises an error before Spark starts if the epoch is not pending
    runner = PipelineRunner(pipeline, spark, RunNotifier(on_notice or run_log.log_notice))
    with runner.error_boundary():
        latest = runner.store.open()
        try:
            if latest is not None:
                skip_publish.check_epoch_is_pending(pipeline, latest, runner.store.published_epoch(), epoch)
            runner.prepare(latest)  # the start of the driver publishes it
        finally:
            runner.close()
