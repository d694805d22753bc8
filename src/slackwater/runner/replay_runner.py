"""Replay dead letters in epochs of a separate runner. No source is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from slackwater.config import config_warnings
from slackwater.config.pipeline import Pipeline
from slackwater.connectors import dead_letter_restoration
from slackwater.core.dead_letter_columns import DeadLetterFilter
from slackwater.core.humanize import plural
from slackwater.dead_letters import dead_letter_reader
from slackwater.dead_letters.replay import ReplayResult, count_replayable_late_rows
from slackwater.dead_letters.replay import replay_filtered_dead_letters as apply
from slackwater.errors import LockHeldError, StartError, Topic
from slackwater.operators.dead_letters import LATE
from slackwater.runner import run_log
from slackwater.runner.pipeline_runner import PipelineRunner
from slackwater.runner.run_log import RunNotifier
from slackwater.state.commit import Commit

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import DataFrame, SparkSession


def replay_dead_letters(
    pipeline: Pipeline,
    choose: Callable[[pl.DataFrame], pl.DataFrame],
    *,
    limit: int | None = None,
    dry: bool = False,
    spark: SparkSession | None = None,
    on_notice: Callable[[str, str], None] | None = None,
) -> ReplayResult:
    """Apply dead letters in separate epochs. The store stays locked until the replay ends.

    Args:
        pipeline: The pipeline.
        choose: Selects the letters to replay.
        limit: Replay at most this many letters.
        dry: Only return what a replay would do.
        spark: The Spark session to use; None starts one.
        on_notice: Called with the level and the text of each line about the replay; None logs the lines.

    Raises:
        SlackwaterError: The replay failed. The next replay skips letters that this one has committed.
    """
    if pipeline.transform.join is not None:
        raise StartError(
            f"{pipeline.name}: dead letters of a join cannot be replayed, because joined rows are final; "
            "list the dead letters with: slackwater dlq list",
            Topic.NO_WINDOWS,
        )
    runner = PipelineRunner(pipeline, spark, RunNotifier(on_notice or run_log.log_notice))
    with runner.error_boundary():
        if len(pipeline.stage_pipelines) > 1:
            raise StartError(
                f"{pipeline.name}: dead letters of a pipeline with several stages cannot be replayed: a replay "
                "corrects rows in a target, but the first stage writes to the next stage; list the dead letters with: "
                "slackwater dlq list",
                Topic.DEAD_LETTERS,
            )
        if pipeline.dead_letter is None:
            dead_letter_reader.read_newest(pipeline, DeadLetterFilter())  # raises an error before Spark starts
        _check_late(pipeline, choose, limit)
        latest = _open_store(runner)
        try:
            if latest is None:
                raise StartError(
                    f"{pipeline.name}: there is no state yet, so there is nothing to replay; run the pipeline first",
                    Topic.NO_STATE,
                )
            components = runner.prepare(latest)
            assert components is not None, "a replay is never stopped"

            def rows(letters: pl.DataFrame) -> Mapping[str, DataFrame]:
                return dead_letter_restoration.restore_source_frames(
                    components.session, components.streams.sources, letters
                )

            # includes dead letters that were published at startup
            letters = dead_letter_reader.read_newest(pipeline, DeadLetterFilter())
            return apply(components.driver, choose(letters), rows, dry, limit)
        finally:
            runner.close()


def _check_late(pipeline: Pipeline, choose: Callable[[pl.DataFrame], pl.DataFrame], limit: int | None) -> None:
    """Raise StartError, before Spark starts, if dead letters of late rows exist but the target cannot be corrected."""
    refusal = config_warnings.find_replay_obstacle(pipeline)
    if refusal is None:
        return
    letters = choose(dead_letter_reader.read_newest(pipeline, DeadLetterFilter()))
    late = count_replayable_late_rows(letters, dead_letter_reader.read_attempt_ledger(pipeline), limit)
    if late:
        other_reasons = sorted({*letters["reason"].drop_nulls()} - {LATE})
        hint = f"; to replay the others, pass --reason {other_reasons[0]}" if other_reasons else ""
        raise StartError(
            f"{pipeline.name}: {plural(late, 'dead letter')} of late rows cannot be replayed: {refusal}; nothing was "
            f"replayed{hint}",
            Topic.DEAD_LETTERS,
        )


def _open_store(runner: PipelineRunner) -> Commit | None:
    try:
        return runner.store.open()
    except LockHeldError as error:
        raise LockHeldError(f"{error}; stop the runner, repeat the replay, and start the runner again") from None
