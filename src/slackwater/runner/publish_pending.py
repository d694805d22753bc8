"""The epoch whose output waits is published, and nothing else is done: a start that stops before it reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from slackwater.config.pipeline import Pipeline
from slackwater.runner import run_log, skip_publish
from slackwater.runner.reporter import Reporter
from slackwater.runner.runner import Runner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def publish_pending(
    pipeline: Pipeline,
    epoch: int,
    *,
    spark: SparkSession | None = None,
    on_notice: Callable[[str, str], None] | None = None,
) -> None:
    """Publish this epoch, which was committed and is not out yet, and stop. Raises SlackwaterError; PublishError if it fails again."""
    with skip_publish.locked_pending(pipeline, epoch):
        pass  # says so before Spark starts
    runner = Runner(pipeline, spark, Reporter(on_notice or run_log.log_notice))
    with runner.error_boundary():
        latest = runner.store.open()
        try:
            if latest is not None:
                skip_publish.check_pending(pipeline, latest, runner.store.published(), epoch)
            runner.prepare(latest)  # a start rolls it forward
        finally:
            runner.close()
