"""The epoch whose output waits is published, and nothing else is done: a start that stops before it reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from slackwater.config.pipeline import Pipeline
from slackwater.runner import set_aside, tell
from slackwater.runner.reporter import Reporter
from slackwater.runner.runner import Runner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def republish(
    pipeline: Pipeline,
    epoch: int,
    *,
    spark: SparkSession | None = None,
    on_notice: Callable[[str, str], None] | None = None,
) -> None:
    """Publish this epoch, which was committed and is not out yet, and stop. Raises SlackwaterError; PublishError if it fails again."""
    with set_aside.held(pipeline, epoch):
        pass  # says so before Spark starts
    runner = Runner(pipeline, spark, Reporter(on_notice or tell.notice))
    with runner.border():
        latest = runner.store.open()
        try:
            if latest is not None:
                set_aside.check(pipeline, latest, runner.store.published(), epoch)
            runner.prepare(latest)  # a start rolls it forward
        finally:
            runner.close()
