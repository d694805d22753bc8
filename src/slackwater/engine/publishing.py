"""Publish the staged output of a commit to the targets: rows to write and rows to delete.

If the store and a target share a database, publishing is part of the commit's transaction. Otherwise, it follows the
commit.

COMMIT ─▶ write (target, with a marker) ─▶ note (store)     after a crash in between, repeating the write has no effect
       ─▶ write (the next target) ─▶ note                   an unavailable target does not delay the others
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import polars as pl

from slackwater.config.pipeline import Pipeline
from slackwater.connectors.target import TargetWriter
from slackwater.core.schema import ANYTHING, ValueLimits, find_value_limits
from slackwater.engine.kill_points import PhaseTimer
from slackwater.engine.observer import DriverCallbacks, PendingPublish
from slackwater.errors import PublishError, StartError, Topic
from slackwater.evolution import added_columns, target_changes
from slackwater.operators.base import Operator
from slackwater.operators.dead_letters import to_storable_dead_letters
from slackwater.state.commit import LETTERS, Commit, TargetDestination, TargetMarker
from slackwater.state.protocol import Publish, StateStore, TransactionalTarget

SUPERSEDED = "supersede"  # `__reason` of an emitted row that no longer exists; it has its identity, else NULLs


def split_deletes(
    operator: Operator, staged: Sequence[pl.DataFrame], upserts: bool
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Split the staged output of an epoch into rows to write and identities of rows to delete, both sorted.

        __reason    user  window_start  session_id  n
        supersede   u     09:05         77          NULL   ─▶ to delete (user, window_start, session_id)
        late        u     09:00         12          8      ─▶ to write (all columns)

    Without `upserts`, the target is append-only and receives all rows unchanged.
    """
    output = operator.sorted_output(pl.concat(_add_missing_columns(operator, frame) for frame in staged))
    columns = [f.name for f in operator.output]
    is_superseded = (output["__reason"] == SUPERSEDED).to_numpy() & upserts
    if not is_superseded.any():
        return output[columns], output[list(operator.retraction)].clear()
    return output[np.flatnonzero(~is_superseded)][columns], output[np.flatnonzero(is_superseded)][
        list(operator.retraction)
    ]


def _add_missing_columns(operator: Operator, frame: pl.DataFrame) -> pl.DataFrame:
    """Add a NULL column for each output column that did not exist yet when the epoch was committed."""
    new = [f for f in operator.output if f.name not in frame.columns]
    return frame.with_columns(pl.lit(None, f.polars).alias(f.name) for f in new) if new else frame


Phase = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True)
class TargetBinding:
    """A target, and the stage whose results it receives."""

    stage: str
    operator: Operator
    target: TargetWriter
    location: tuple[str | None, ...]
    writer: str  # the name under which its marker is stored

    @property
    def destination(self) -> TargetDestination:
        columns = tuple(f.name for f in self.operator.output)
        return TargetDestination(
            stage=self.stage, writer=self.writer, place=self.location, columns=columns, upserts=self.target.upserts
        )


def bind_targets(
    pipeline: Pipeline, operators: Mapping[str, Operator], targets: Mapping[str, TargetWriter]
) -> dict[str, TargetBinding]:
    """Return the targets of a pipeline by name, each bound to its stage. `operators`: the operators by stage."""
    bindings = {}
    for name, sub_pipeline in pipeline.per_target.items():
        stage = str(sub_pipeline.target.from_)
        location, writer = target_changes.target_location(sub_pipeline.target), sub_pipeline.writer
        bindings[name] = TargetBinding(stage, operators[stage], targets[name], location, writer)
    return bindings


@dataclass(frozen=True)
class Publisher:
    """Publishes the output and the dead letters of a pipeline to its targets.

    Args:
        pipeline: The pipeline.
        bindings: The targets, each with its stage and operator.
        store: The store of the state.
        letters: The target of dead letters, if any.
        hooks: The functions through which the driver reports.
        unavailable: The errors raised when targets could not be opened, by target.
        held_markers: See `target_changes.with_targets`.
    """

    pipeline: Pipeline
    bindings: Mapping[str, TargetBinding]
    store: StateStore
    letters: TargetWriter | None
    hooks: DriverCallbacks
    unavailable: Mapping[str, StartError] = field(default_factory=dict)
    held_markers: Mapping[str, TargetMarker | None] = field(default_factory=dict)

    @property
    def stages(self) -> set[str]:
        """Return the stages whose results are published."""
        return {binding.stage for binding in self.bindings.values()}

    def capacity(self, stage: str) -> ValueLimits:
        """Return the limits on values that all targets of a stage can store."""
        limits = ANYTHING
        for binding in self.bindings.values():
            if binding.stage == stage:
                limits &= find_value_limits(binding.target)
        return limits

    def with_targets(self, commit: Commit) -> Commit:
        """Record the destinations of the output in the commit. From then on, the output can be published only there."""
        targets = {name: binding.destination for name, binding in self.bindings.items()}
        letters = target_changes.dead_letter_location(self.pipeline)
        return target_changes.with_targets(commit, targets, letters, self.held_markers)

    # -- startup -------------------------------------------------------------------------------------------------

    def roll_forward(self, latest: Commit) -> None:
        """Publish the pending output of the latest commit of a previous run.

        Raises StartError if this config would publish it elsewhere, or if a target could not be opened.
        """
        if not self.is_pending(latest):
            self.check_available()
            return
        stages, now, missing = (
            self.pipeline.former_names,
            self.with_targets(latest),
            latest.missing(self.store.delivered_targets()),
        )
        growing = added_columns.targets_accepting_columns(self.pipeline)
        changed = target_changes.changed_pending_targets(latest, stages, now.targets, now.letters_to, missing, growing)
        if changed:
            raise StartError(
                f"{self.pipeline.name}: {target_changes.describe_pending(latest.epoch, changed)}",
                Topic.EPOCH_UNPUBLISHED,
            )
        latest = target_changes.with_current_names(latest, stages, list(self.bindings))
        self.hooks.on_notice("info", f"publishing epoch {latest.epoch}, which was committed but not yet published")
        self.publish_pending(latest)
        self.check_available()

    def check_available(self) -> None:
        """Raise StartError if a target could not be opened."""
        if self.unavailable:
            raise next(iter(self.unavailable.values()))

    def is_pending(self, commit: Commit) -> bool:
        """Return whether some output of a commit has not reached its target."""
        return commit.staged and self.store.published_epoch() < commit.epoch

    def publish_pending(self, commit: Commit) -> None:
        """Publish the pending output of a commit. Each epoch begins with this step, to keep the order."""
        if self.is_pending(commit):
            self._publish(commit, lambda name: nullcontext())

    # -- an epoch ------------------------------------------------------------------------------------------------

    def publish(self, commit: Commit, timer: PhaseTimer) -> None:
        """Publish the output of an epoch to all targets that were not written in the transaction of its commit."""
        if self.is_pending(commit):
            self._publish(commit, timer.phase)
        elif commit.staged:
            with timer.phase("note"):
                self._mark_published(commit)

    def in_transaction(self, commit: Commit) -> tuple[Commit, Publish | None]:
        """Return the commit to store, and a function that writes to targets within the store's transaction.

        The returned commit records that its output has reached these targets. The function is None if there is no
        output, or if no target is in the store's database.
        """
        joined = [
            n for n in commit.recipients if n != LETTERS and self.store.shares_transaction(self.bindings[n].target)
        ]
        if not joined:
            return commit, None
        outputs, hit = {n: self._output(commit, n) for n in joined}, self.hooks.faults.hit

        def publish(connection: object) -> None:
            for name, (rows, superseded) in outputs.items():
                hit("write.before", commit.epoch)
                cast(TransactionalTarget, self.bindings[name].target).publish_within(
                    connection, commit.epoch, rows, superseded, commit.commit_id
                )
                hit("write.after", commit.epoch)

        return commit.model_copy(update={"reached": tuple(joined)}), publish

    def _publish(self, commit: Commit, phase: Phase) -> None:
        """Write the output to each target that has not received it yet, and record each success.

        If a target fails, the remaining targets are still written. Then PublishError is raised.
        """
        failed: list[str] = []
        missing = commit.missing(self.store.delivered_targets())
        remaining = list(missing)
        self.hooks.on_waiting(PendingPublish.from_commit(commit, remaining))
        for name in missing:
            try:
                with phase("write"):
                    self._write(commit, name)
            except PublishError as error:
                failed.append(str(error) if name in self.unavailable else self._error_text(name, error))
                self.hooks.on_waiting(PendingPublish.from_commit(commit, remaining, name))
                continue
            remaining.remove(name)
            if remaining:
                self.hooks.on_waiting(PendingPublish.from_commit(commit, remaining))
            if name != missing[-1] or failed:  # after the last success, the whole epoch is marked as published
                with phase("note"):
                    self.store.mark_delivered(commit.epoch, name)
        if failed:
            raise PublishError(f"{'; '.join(failed)}; if this cannot be fixed, run: slackwater outbox show")
        with phase("note"):
            self._mark_published(commit)

    def _error_text(self, name: str, error: PublishError) -> str:
        """Return the text of an error. If the pipeline has several targets, the text names the target."""
        return str(error) if name == LETTERS or len(self.bindings) < 2 else f'target "{name}": {error}'

    def _mark_published(self, commit: Commit) -> None:
        self.store.mark_published(commit.epoch)
        self.hooks.on_waiting(None)

    def _write(self, commit: Commit, name: str) -> None:
        if name in self.unavailable:
            raise PublishError(str(self.unavailable[name]))
        if name != LETTERS:
            self.bindings[name].target.publish(commit.epoch, *self._output(commit, name), commit.commit_id)
        elif self.letters is not None:
            letters = pl.concat(self.store.outputs(commit.letters))
            rows = to_storable_dead_letters(letters, find_value_limits(self.letters).time_range)
            self.letters.publish(commit.epoch, rows, commit=commit.commit_id)

    def _output(self, commit: Commit, name: str) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return the rows to write to a target, and the rows to delete from it."""
        binding = self.bindings[name]
        staged = self.store.outputs(commit.output_of(binding.stage))
        return split_deletes(binding.operator, staged, binding.target.upserts)
