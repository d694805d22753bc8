"""Publish a committed epoch again, or write the rows of an epoch elsewhere if its target does not accept them.

committed, not published ─┬─ retry  as at every start
                          └─ skip   rows ─▶ dead letters ("not published") or files ─▶ marked as published
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from slackwater.config.pipeline import Pipeline
from slackwater.connectors.kafka.message_encoding import json_objects
from slackwater.core.dead_letter_columns import LETTER
from slackwater.core.humanize import plural
from slackwater.core.schema import find_value_limits
from slackwater.errors import StartError, Topic
from slackwater.evolution.target_changes import with_skipped_targets
from slackwater.operators.dead_letters import UNPUBLISHED, to_storable_dead_letters
from slackwater.runner import existing_output, run_log
from slackwater.runner.component_factory import create_dead_letter_writer
from slackwater.runner.pipeline_runner import PipelineRunner
from slackwater.runner.run_log import RunNotifier
from slackwater.state.commit import LETTERS, Commit
from slackwater.state.protocol import StateStore
from slackwater.state.store_access import create_store, missing_state_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


log = logging.getLogger("slackwater")


class PendingOutput(NamedTuple):
    """The output of the pending epoch for the targets that have not received it yet.

    Args:
        committed_us: When the epoch was committed (µs UTC).
        rows: The rows of each stage, keyed by the names of the targets that lack them.
        letters: The number of dead letters that have not been written.
        has_one_target: Whether the pipeline has a single target.
    """

    epoch: int
    committed_us: int
    rows: Mapping[tuple[str, ...], pl.DataFrame]
    letters: int
    has_one_target: bool

    @property
    def total(self) -> int:
        return sum(rows.height for rows in self.rows.values())


def read_pending_output(pipeline: Pipeline) -> PendingOutput | None:
    """Return the output of the pending epoch; None if all epochs are published. Does not lock the store."""
    store = create_store(pipeline)
    with store.peek() as snapshot:
        if snapshot is None:
            raise missing_state_error()
        commit = snapshot.commit
        if not commit.staged or snapshot.published >= commit.epoch:
            return None
        return _read_pending(store, commit, snapshot.missing)


def _read_pending(store: StateStore, commit: Commit, missing: Sequence[str]) -> PendingOutput:
    waiting_targets: dict[str, list[str]] = {}
    for name in missing:
        if name != LETTERS:
            waiting_targets.setdefault(commit.targets[name].stage, []).append(name)
    rows = {tuple(names): pl.concat(store.outputs(commit.output_of(s))) for s, names in waiting_targets.items()}
    letters = sum(o.rows for o in commit.letters) if LETTERS in missing else 0
    return PendingOutput(commit.epoch, commit.committed_us, rows, letters, len(commit.targets) < 2)


def skip_publish(pipeline: Pipeline, epoch: int, to: Path | None) -> str:
    """Write the pending output to the dead letters, or to files in the directory `to`, and mark the epoch as published.

    This locks the store. After a crash, a second call writes nothing twice. Return the new location of the rows.

    Args:
        pipeline: The pipeline.
        epoch: The number of the pending epoch.
        to: A directory for files; None to write dead letters.

    Raises:
        StartError: The epoch is not pending, the config has no dead letters, or `to` cannot be written.
        LockHeldError: A runner is active.
        PublishError: The target of dead letters failed.
    """
    if to is None and pipeline.dead_letter is None:
        raise StartError(
            f"{pipeline.name}: skipped rows go to the dead letters, but the config has no [dead_letter]; add one, or "
            "name a directory: --to DIR",
            Topic.EPOCH_UNPUBLISHED,
        )
    with lock_pending_epoch(pipeline, epoch) as (store, commit):
        pending = _read_pending(store, commit, commit.missing(store.delivered_targets()))
        letters = pl.concat(store.outputs(commit.letters)) if pending.letters else None
        if to is None:
            location = _write_letters(pipeline, commit, pending, letters)
        else:
            location = _write_files(to, pipeline, commit, pending, letters)
        skipped = [name for name in commit.missing(store.delivered_targets()) if name != LETTERS or to is not None]
        # the skipped targets keep their markers, which the next start expects
        remaining_commit = with_skipped_targets(commit, skipped)
        store.commit(remaining_commit.successor(committed_us=time.time_ns() // 1000))
        store.mark_published(epoch)
        if store.published_epoch() < epoch:
            raise StartError(
                f"{pipeline.name}: epoch {epoch} was written to {location}, but could not be marked as skipped; repeat "
                "this command",
                Topic.EPOCH_UNPUBLISHED,
            )
    log.warning(
        "%s: epoch %d was skipped: %s now in %s",
        pipeline.name,
        epoch,
        plural(pending.total, "row is", "rows are"),
        location,
    )
    return location


@contextmanager
def lock_pending_epoch(pipeline: Pipeline, epoch: int) -> Iterator[tuple[StateStore, Commit]]:
    """Lock the store, and yield the store and its latest commit, which is the pending epoch.

    Raises StartError or LockHeldError.
    """
    store = create_store(pipeline)
    if store.read_commit_record() is None:
        raise missing_state_error()
    latest = store.open()
    try:
        if latest is None:
            raise missing_state_error()
        check_epoch_is_pending(pipeline, latest, store.published_epoch(), epoch)
        mismatches, _, _ = existing_output.find_mismatches(pipeline, latest, latest.missing(store.delivered_targets()))
        if (refusal := existing_output.mismatch_error(pipeline, latest, mismatches)) is not None:
            raise refusal
        yield store, latest
    finally:
        store.close()


def check_epoch_is_pending(pipeline: Pipeline, latest: Commit, published: int, epoch: int) -> None:
    """Raise StartError unless this epoch is pending. `published`: the last published epoch."""
    if not latest.staged or published >= latest.epoch:
        raise StartError(
            f"{pipeline.name}: no epoch is waiting to be published; the latest is epoch {latest.epoch}, which is "
            "published",
            Topic.EPOCH_UNPUBLISHED,
        )
    if epoch != latest.epoch:
        raise StartError(
            f"{pipeline.name}: epoch {epoch} is not waiting to be published, but epoch {latest.epoch} is; pass "
            f"{latest.epoch} instead",
            Topic.EPOCH_UNPUBLISHED,
        )


def _results_as_letters(rows: pl.DataFrame, pipeline: str, epoch: int) -> pl.DataFrame:
    """Convert results to dead letters. The value is the row as JSON, and the event time is the start of the window."""
    time_column = next(
        (c for c in rows.columns if c == "window_start" and isinstance(rows.schema[c], pl.Datetime)), None
    )
    dead_letter_columns = {
        "reason": pl.lit(UNPUBLISHED),
        "pipeline": pl.lit(pipeline),
        "epoch": pl.lit(epoch),
        "value": pl.lit(pl.Series(json_objects(rows), dtype=pl.Binary)),
        "event_time": pl.lit(None) if time_column is None else pl.col(time_column),
    }
    return rows.select(dead_letter_columns.get(f.name, pl.lit(None)).cast(f.polars).alias(f.name) for f in LETTER)


def _write_letters(pipeline: Pipeline, commit: Commit, pending: PendingOutput, letters: pl.DataFrame | None) -> str:
    """Write rows and dead letters under separate markers, so that a retry after a crash writes nothing twice."""
    of_letters = create_dead_letter_writer(pipeline, commit.state_id)
    of_rows = create_dead_letter_writer(pipeline, commit.state_id, "letters-aside")
    assert of_rows is not None and of_letters is not None, "checked by skip_publish"
    rows = [
        _results_as_letters(stage_rows, pipeline.name, commit.epoch)
        for stage_rows in pending.rows.values()
        if stage_rows.height
    ]
    for target, frame in ((of_rows, pl.concat(rows) if rows else None), (of_letters, letters)):
        if frame is not None:
            target.open()
            try:
                target.publish(
                    commit.epoch,
                    to_storable_dead_letters(frame, find_value_limits(target).time_range),
                    commit=commit.commit_id,
                )
            finally:
                target.close()
    return f"the dead letters ({of_rows.description})"


def _write_files(
    to: Path, pipeline: Pipeline, commit: Commit, pending: PendingOutput, letters: pl.DataFrame | None
) -> str:
    frames = {}
    for names, rows in pending.rows.items():
        frames[commit.pipeline if pending.has_one_target else pipeline.writer_of(names[0]), "rows"] = rows
    if letters is not None:
        frames[commit.pipeline, "letters"] = letters
    try:
        to.mkdir(parents=True, exist_ok=True)
        for (name, content), frame in frames.items():
            if frame.height:
                path = to / f"{name}-{commit.epoch:09d}-{content}.parquet"
                aside = path.with_suffix(".tmp")
                frame.write_parquet(aside)
                with aside.open("rb") as file:
                    os.fsync(file.fileno())
                aside.replace(path)
    except OSError as error:
        raise StartError(
            f"--to {to}: cannot be written ({error.strerror}); nothing was changed; name a writable directory",
            Topic.EPOCH_UNPUBLISHED,
        ) from None
    return f'"{to.resolve()}"'


# -- publish -----------------------------------------------------------------------------------------------------------


def publish_pending(
    pipeline: Pipeline,
    epoch: int,
    *,
    spark: SparkSession | None = None,
    on_notice: Callable[[str, str], None] | None = None,
) -> None:
    """Publish an epoch that was committed but not published. `spark` and `on_notice`: see `slackwater.run`.

    Raises PublishError if publishing fails again, and SlackwaterError for other failures.
    """
    with lock_pending_epoch(pipeline, epoch):
        pass  # raises an error before Spark starts if the epoch is not pending
    runner = PipelineRunner(pipeline, spark, RunNotifier(on_notice or run_log.log_notice))
    with runner.error_boundary():
        latest = runner.store.open()
        try:
            if latest is not None:
                check_epoch_is_pending(pipeline, latest, runner.store.published_epoch(), epoch)
            runner.prepare(latest)  # publishes it when the driver starts
        finally:
            runner.close()
