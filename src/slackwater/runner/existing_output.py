"""Compare the output in the targets with the state when a run starts, so that no row is lost or written twice.

an existing state ─▶ read the marker of each target ─┬─ the state expects it ─▶ continue
                                                     └─ otherwise ─▶ fail, or follow the user's choice
a new state       ─▶ does an append-only target hold output of an earlier state? ─▶ fail, or follow the choice

The choice is "aside" (move the files away) or "keep" (leave the output in the target, and add rows to it).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from slackwater.config.pipeline import Pipeline, resolve_connection
from slackwater.config.target import Target as TargetSpec
from slackwater.connectors.connector import connector_for
from slackwater.connectors.files.target import FilesTarget
from slackwater.connectors.target import PreviousOutputReader, TargetTable, TargetWithMarker
from slackwater.errors import StartError, StateError, Topic
from slackwater.evolution import target_changes
from slackwater.evolution.target_changes import (
    AHEAD,
    BEHIND,
    ExpectedMarkers,
    begin_branch,
    compute_expected_markers,
    find_marker_mismatch,
)
from slackwater.state.commit import LETTERS, Commit, TargetMarker
from slackwater.state.protocol import Snapshot, StateStore

ASIDE, KEEP = "aside", "keep"
CHOICES = (ASIDE, KEEP)


# -- startup with a state ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckedTarget:
    """A target, and the markers that the state expects in it.

    Args:
        name: The name of the target; LETTERS for the target of dead letters.
        title: The name of the target for messages.
        target: The target.
        expected: The markers that the state expects.
        upserts: Whether rows replace earlier rows with an equal identity.
    """

    name: str
    title: str
    target: TargetWithMarker
    expected: ExpectedMarkers
    upserts: bool


@dataclass(frozen=True)
class MarkerMismatch:
    """A target whose marker does not match the state.

    Args:
        checked: The target with the expected markers.
        kind: AHEAD, BEHIND or FOREIGN, as defined in `evolution.target_changes`.
        marker: The marker in the target; None if it has none.
    """

    checked: CheckedTarget
    kind: str
    marker: TargetMarker | None

    @property
    def is_movable(self) -> bool:
        """Return whether the output that is newer than the state can be moved away."""
        target = self.checked.target
        if self.kind == BEHIND or not isinstance(target, FilesTarget):
            return False
        return target.can_set_newer_epochs_aside(self.checked.expected.rollback)

    def text(self, commit: Commit) -> str:
        """Return a sentence about what the target contains and what the state wrote."""
        subject = f"{self.checked.title} ({self.checked.target.description})"
        written = self.checked.expected.markers[-1:]
        if self.kind == BEHIND:
            content = (
                "no epoch of this state (the target was emptied, or deleted and created again)"
                if self.marker is None
                else f"epoch {self.marker.epoch}"
            )
            return f"{subject} contains {content}, but the state wrote epoch {written[0].epoch} to it"
        assert self.marker is not None, "only BEHIND has none"
        if self.kind == AHEAD:
            problem = f"but the state ends with epoch {commit.epoch}: the state is an older copy"
            return f"{subject} contains epoch {self.marker.epoch}, {problem}"
        problem = "of another history: another state, or a copy of this one, has written to it"
        return f"{subject} contains epoch {self.marker.epoch} {problem}"


def _list_checked_targets(
    pipeline: Pipeline, commit: Commit, missing: Sequence[str], exact: bool = True
) -> Iterator[CheckedTarget]:
    """Yield the targets that store a marker, including the target of dead letters.

    Args:
        pipeline: The pipeline with the targets.
        commit: The commit from which the run continues.
        missing: Names of targets that may lack the output of the commit.
        exact: False if a target does not receive every epoch, as in a backfill.
    """
    current = target_changes.with_current_names(commit, pipeline.former_names, list(pipeline.per_target))
    current_names = dict(zip(commit.targets, current.targets, strict=True))
    missing_names = {current_names.get(name, name) for name in missing}
    for name, title, spec, own_writer, stage in _target_specs(pipeline):
        location, record = target_changes.target_location(spec), current.targets.get(name)
        # after a rename, the target has the marker of the previous name until it receives rows
        previous_writer = own_writer if record is None or record.place != location else record.writer
        for writer in dict.fromkeys((own_writer, previous_writer)):
            target = target_with_marker(pipeline, spec, writer, commit.lineage)
            if target is None:
                continue
            connection = resolve_connection(spec.connection, pipeline.connections)
            assert connection is not None, "it stores a marker"
            expected = compute_expected_markers(current, name, location, writer, name in missing_names)
            if not exact:
                expected = ExpectedMarkers(expected.rollback)
            upserts = stage is not None and spec.upserts(connection.kind, stage.transform.window)
            yield CheckedTarget(name, title, target, expected, upserts)


def _target_specs(pipeline: Pipeline) -> list[tuple[str, str, TargetSpec, str, Pipeline | None]]:
    """Return the name, title, spec, writer and stage of each target; the target of dead letters has no stage."""
    specs: list[tuple[str, str, TargetSpec, str, Pipeline | None]] = [
        (
            name,
            f'target "{name}"' if pipeline.targets else "the target",
            target_pipeline.target,
            target_pipeline.writer,
            target_pipeline.target_stage,
        )
        for name, target_pipeline in pipeline.per_target.items()
    ]
    if pipeline.dead_letter is not None:
        specs.append((LETTERS, "dead_letter", pipeline.dead_letter, f"{pipeline.name}-letters", None))
    return specs


def target_with_marker(pipeline: Pipeline, spec: TargetSpec, writer: str, lineage: str = "") -> TargetWithMarker | None:
    """Return a target that can read the marker of a writer; None if this kind of target stores no marker."""
    connection = resolve_connection(spec.connection, pipeline.connections)
    return (
        None
        if connection is None
        else connector_for(connection).target_with_marker(spec, TargetTable(writer, (), None, lineage))
    )


def read_unrecorded_markers(pipeline: Pipeline, commit: Commit | None) -> dict[str, TargetMarker | None]:
    """Return the marker of each target that the commit does not mention, or of all targets if there is no commit.

    Targets that cannot be read are omitted, because startup will fail later anyway, when the targets are opened.
    """
    current = (
        None
        if commit is None
        else target_changes.with_current_names(commit, pipeline.former_names, list(pipeline.per_target))
    )
    markers: dict[str, TargetMarker | None] = {}
    for name, _, spec, writer, _ in _target_specs(pipeline):
        location = target_changes.target_location(spec)
        if current is not None:
            record = current.targets.get(name)
            is_named = record is not None and (record.writer, record.place) == (writer, location)
            if is_named or (name == LETTERS and current.letters_to == location):
                continue
        lineage = "" if commit is None else commit.lineage
        if (target := target_with_marker(pipeline, spec, writer, lineage)) is not None:
            with suppress(StartError):
                markers[name] = target.read_marker(lineage)
    return markers


def find_mismatches(
    pipeline: Pipeline, commit: Commit, missing: Sequence[str], exact: bool = True, fence: bool = False
) -> tuple[list[MarkerMismatch], dict[str, TargetMarker | None], list[str]]:
    """Return the mismatches, the marker of each readable target, and a line for each unreadable target.

    Args:
        pipeline: The pipeline with the targets.
        commit: The commit from which the run continues.
        missing: Names of targets that may lack the output of the commit.
        exact: False if a target does not receive every epoch, as in a backfill.
        fence: Whether to fence earlier runners; see `connectors.target.TargetWithMarker`.
    """
    mismatches: list[MarkerMismatch] = []
    markers: dict[str, TargetMarker | None] = {}
    unreadable: list[str] = []
    for checked in _list_checked_targets(pipeline, commit, missing, exact):
        try:
            marker = checked.target.read_marker(commit.lineage, checked.expected.markers, fence)
        except StartError as error:
            unreadable.append(f"{checked.title}: {error}")
            continue
        if checked.expected.was_target or not exact:
            markers[checked.name] = marker
        kind = find_marker_mismatch(commit, checked.expected, marker)
        if kind is not None:
            mismatches.append(MarkerMismatch(checked, kind, marker))
    return mismatches, markers, unreadable


def mismatch_error(pipeline: Pipeline, commit: Commit, mismatches: Sequence[MarkerMismatch]) -> StateError | None:
    """Return an error that describes the mismatches and lists what the user can do. None if there are no mismatches."""
    if not mismatches:
        return None
    facts = "; ".join(mismatch.text(commit) for mismatch in mismatches)
    behind = [mismatch for mismatch in mismatches if mismatch.kind == BEHIND]
    choices = ["restore the target" if behind else "restore the newer state"]
    if all(mismatch.is_movable for mismatch in mismatches):
        choices.append("move the newer files away and write them again with --put-aside-output")
    elif not behind and all(mismatch.checked.upserts for mismatch in mismatches):
        choices.append("write the newer rows again in their place with --keep-output")
    elif not behind:
        choices.append("write the newer rows a second time with --keep-output")
    else:
        choices.append("continue without the lost rows with --keep-output")
    choices.append("start over with --rebuild")
    return StateError(
        f"{pipeline.name}: the state and its targets do not match: {facts}. Do one of these: {'; '.join(choices)}. "
        "Nothing was changed",
        Topic.TARGET_MISMATCH,
    )


def check_markers(pipeline: Pipeline, snapshot: Snapshot) -> StateError | None:
    """Return the error that starting from this snapshot would raise because of its targets, or None. Takes no lock."""
    mismatches, _, _ = find_mismatches(pipeline, snapshot.commit, snapshot.missing)
    return mismatch_error(pipeline, snapshot.commit, mismatches)


def resolve_mismatches(
    pipeline: Pipeline, store: StateStore, commit: Commit, choice: str | None, exact: bool = True
) -> tuple[Commit, list[str]]:
    """Return the commit to continue from, and lines about what was done. The lock of the state must be held.

    Args:
        pipeline: The pipeline with the targets.
        store: The locked store.
        commit: The latest commit of the store.
        choice: The user's choice, one of CHOICES; None without a choice.
        exact: False if a target does not receive every epoch, as in a backfill.

    Raises:
        StateError: A target does not match the state, and `choice` does not resolve the mismatch.
    """
    missing = (
        commit.missing(store.delivered_targets()) if commit.staged and store.published_epoch() < commit.epoch else []
    )
    mismatches, markers, _ = find_mismatches(pipeline, commit, missing, exact, fence=True)
    refusal = mismatch_error(pipeline, commit, mismatches)
    if refusal is None:
        return commit, []
    markers = {**{n: t.marks[-1] for n, t in commit.targets.items() if t.marks}, **markers}
    if choice == KEEP:
        lines = [f"epochs after {commit.epoch} are written as a new history; the target keeps its rows"]
    elif choice == ASIDE and all(mismatch.is_movable for mismatch in mismatches):
        lines = [_put_newer_aside(mismatch) for mismatch in mismatches]
        for mismatch in mismatches:
            if not mismatch.checked.expected.was_target:
                continue  # the commit has no markers for this target
            markers[mismatch.checked.name] = (
                mismatch.checked.expected.rollback if mismatch.checked.expected.rollback.epoch >= 0 else None
            )
    else:
        raise refusal
    return begin_branch(commit, uuid.uuid4().hex, markers, missing), lines


def _put_newer_aside(mismatch: MarkerMismatch) -> str:
    target, marker = mismatch.checked.target, mismatch.checked.expected.rollback
    assert isinstance(target, FilesTarget), "is_movable"
    location = target.set_newer_epochs_aside(marker)
    files = f"the files written after epoch {marker.epoch}"
    return f"{mismatch.checked.title}: {files} are now in {location}; remove them when you no longer need them"


# -- startup without a state -------------------------------------------------------------------------------------------


def _previous_outputs(pipeline: Pipeline) -> list[tuple[str, PreviousOutputReader]]:
    """Return (title, target) for each target in which a new state would add rows to the output of an earlier state."""
    targets: list[tuple[str, PreviousOutputReader]] = []
    if pipeline.formerly is not None:  # the output under the pipeline's previous name
        targets += _previous_outputs(pipeline.model_copy(update={"name": pipeline.formerly, "formerly": None}))
    for _, title, spec, writer, stage in _target_specs(pipeline):
        connection = resolve_connection(spec.connection, pipeline.connections)
        kind = "" if connection is None else connection.kind
        if stage is not None and spec.upserts(kind, stage.transform.window):
            continue  # an upsert replaces rows
        target = target_with_marker(pipeline, spec, writer)
        if isinstance(target, PreviousOutputReader):
            targets.append((title.removeprefix("the "), target))
    return targets


def check_previous_output(pipeline: Pipeline, choice: str | None) -> list[str]:
    """Return a line for each target in which a new state would add rows to the output of an earlier state.

    `choice`: one of CHOICES, or None if the user made no choice. Raises StartError if such output exists without a
    choice.
    """
    notices = []
    remembers = pipeline.state_store is not None and pipeline.state_store.kind != "in_memory"
    for name, target in _previous_outputs(pipeline):
        if (output_text := target.describe_previous_output()) is None or (
            choice == ASIDE and isinstance(target, FilesTarget)
        ):
            continue
        # dead letters are a log, and without a durable state every run starts over
        if choice == KEEP or name == "dead_letter" or not remembers:
            notices.append(f"{name}: {output_text}; new rows are added to them")
            continue
        offer = (
            "move these files away with --put-aside-output"
            if isinstance(target, FilesTarget)
            else "empty the target, name another one"
        )
        raise StartError(
            f"{pipeline.name}: {name} already contains {output_text}; this start has no state, so it would write every "
            f"row again; {offer}, or add new rows to the existing output with --keep-output; nothing was changed",
            Topic.TARGET_OF_OTHER_STATE,
        )
    return notices


def move_previous_output(pipeline: Pipeline) -> list[str]:
    """Move output files of earlier states away. Return a line about each new location. The lock must be held."""
    moved = []
    for name, target in _previous_outputs(pipeline):
        if isinstance(target, FilesTarget) and (location := target.put_aside()) is not None:
            moved.append(
                f"{name}: the files of the previous state are now in {location}; remove them when you no longer need them"
            )
    return moved
