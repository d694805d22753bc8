"""Decide whether a pipeline that starts without a state is new or was renamed.

no state of "sessions" ─┬─ an upserting target holds its results ─▶ fail: the state was removed
                        ├─ formerly = "user-sessions", which has a state here ─▶ take that state over
                        ├─ another pipeline writes to the same target ─▶ fail and ask: was it renamed?
                        └─ none of these ─▶ a new pipeline
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from slackwater.config.pipeline import Pipeline, resolve_connection
from slackwater.errors import StartError, StateError, Topic
from slackwater.evolution import target_changes
from slackwater.runner import existing_output
from slackwater.state.commit import TargetMarker
from slackwater.state.migrations import with_targets
from slackwater.state.protocol import StateStore
from slackwater.state.store_access import create_store, rename_state

_BACKFILL = "-backfill-"


def pipeline_under_former_name(pipeline: Pipeline, store: StateStore) -> Pipeline | None:
    """Return the pipeline under its previous name if the next start would take over its state; otherwise None."""
    if pipeline.formerly is None or not _is_durable(pipeline) or store.read_commit_record() is not None:
        return None
    previous = pipeline.model_copy(update={"name": pipeline.formerly})
    return None if create_store(previous).read_commit_record() is None else previous


def take_over_renamed_state(pipeline: Pipeline, store: StateStore) -> str | None:
    """Rename the state of a pipeline from the pipeline's previous name to its current name.

    Return a line about the rename; None if the previous name has no state. Raises StateError or LockHeldError.
    """
    previous = pipeline_under_former_name(pipeline, store)
    if previous is None:
        return None
    previous_store = create_store(previous)
    with previous_store.peek() as snapshot:
        if snapshot is not None and (refused := existing_output.check_markers(previous, snapshot)) is not None:
            raise refused
    commit, aside = rename_state(previous_store, pipeline.name)
    return f"{pipeline.name} now owns the state of {previous.name}, from epoch {commit.epoch} on; the old copy is now {aside}"


def find_start_refusal(pipeline: Pipeline, store: StateStore) -> StateError | None:
    """Return the error that prevents the pipeline from starting without a state, or None if it may create a new state.

    Startup fails if the state was removed, or if another pipeline writes to the same target.
    """
    if not _is_durable(pipeline):
        return None
    name = pipeline.name
    otherwise = "If it was not renamed, start it once with --keep-output. Nothing was changed"
    for other, target in _states_with_same_target(pipeline, store):
        return StateError(
            f'{name}: this pipeline has no state, but pipeline "{other}" has one in the same state store and writes to '
            f'{target}. If this pipeline was renamed, add formerly = "{other}" to the config. {otherwise}',
            Topic.PIPELINE_RENAMED,
        )
    for marker, target in _results_without_state(pipeline):
        return StateError(
            f"{name}: this pipeline has no state, but {target} contains its results up to epoch {marker.epoch}: the "
            "state was removed or emptied. If the sources no longer hold all input, starting over replaces correct "
            "rows with incomplete ones. Restore the state, or start over with --rebuild. Nothing was changed",
            Topic.STATE_MISSING,
        )
    for other, target in _other_writers(pipeline):
        return StateError(
            f'{name}: this pipeline has no state, but {target} contains results of pipeline "{other}", whose state was '
            "not found in this state store. If this pipeline was renamed, set [state_store] to the location of its "
            f'state and add formerly = "{other}". '
            f"{otherwise}",
            Topic.PIPELINE_RENAMED,
        )
    return None


def _is_durable(pipeline: Pipeline) -> bool:
    return pipeline.state_store is not None and pipeline.state_store.durable


def _states_with_same_target(pipeline: Pipeline, store: StateStore) -> Iterator[tuple[str, str]]:
    """Yield (pipeline, target) for each other pipeline in this store that writes to a target of this pipeline."""
    locations = {
        target_changes.target_location(target_pipeline.target) for target_pipeline in pipeline.per_target.values()
    }
    for other in store.pipelines():
        if other == pipeline.name or _BACKFILL in other:
            continue
        written = create_store(pipeline.model_copy(update={"name": other})).read_commit_record()
        targets = {} if written is None else with_targets(written.record).get("targets", {})
        for target in targets.values():
            location = tuple(target.get("place", ()))
            if location in locations and any(location):
                yield other, f'"{target_changes.format_location(location)}"'
                break


def _results_without_state(pipeline: Pipeline) -> Iterator[tuple[TargetMarker, str]]:
    """Yield (marker, target) for each upserting target that holds results of an earlier state of this pipeline.

    For append-only targets, see `existing_output.check_previous_output`.
    """
    for target_pipeline in pipeline.per_target.values():
        connection = resolve_connection(target_pipeline.target.connection, pipeline.connections)
        if connection is None or not target_pipeline.target.upserts(
            connection.kind, target_pipeline.target_stage.transform.window
        ):
            continue
        target = existing_output.target_with_marker(pipeline, target_pipeline.target, target_pipeline.writer)
        if target is None:
            continue
        with suppress(StartError):
            if (marker := target.read_marker("")) is not None:
                yield marker, target.description


def _other_writers(pipeline: Pipeline) -> Iterator[tuple[str, str]]:
    """Yield (pipeline, target) for each other pipeline that left a marker in a target of this pipeline.

    Unreachable targets are omitted, because startup will fail later anyway, when the targets are opened.
    """
    for target_pipeline in pipeline.per_target.values():
        target = existing_output.target_with_marker(pipeline, target_pipeline.target, target_pipeline.writer)
        if target is None:
            continue
        try:
            writers = target.writers()
        except StartError:
            continue
        if target_pipeline.writer in writers:
            continue  # this pipeline wrote to the target, see `existing_output.check_previous_output`
        for writer in writers:
            other = writer.partition("~")[0]
            if other != pipeline.name and _BACKFILL not in other and not other.endswith(("-letters", "-letters-aside")):
                yield other, target.description
