"""Before a start continues a state: check that each target holds what this state wrote last.

latest commit ─▶ read the mark of each target ─▶ the expected one ─▶ continue
                                              ─▶ another one ─┬─ refuse, and list what the user can do
                                                              ├─ "aside": move files away that are newer than the state
                                                              └─ "keep": continue the state under a new lineage
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from slackwater.config.pipeline import Pipeline, resolve_connection
from slackwater.config.target import Target as TargetSpec
from slackwater.errors import StartError, StateError
from slackwater.evolution import destinations
from slackwater.evolution.target_marks import AHEAD, BEHIND, ExpectedMarks, branch_off, expected_marks, find_mismatch
from slackwater.runner import previous_output
from slackwater.runner.connectors import connector_for
from slackwater.state.commit import LETTERS, Commit, TargetMark
from slackwater.state.protocol import Snapshot, StateStore
from slackwater.targets.base import MarkingTarget, TargetTable
from slackwater.targets.files import FilesTarget


@dataclass(frozen=True)
class MarkedTarget:
    """A target of the config, or that of dead letters (LETTERS), with the marks that the state expects in it."""

    name: str
    title: str
    target: MarkingTarget
    expected: ExpectedMarks
    upserts: bool


@dataclass(frozen=True)
class MarkMismatch:
    """A target whose mark does not fit the state.

    Args:
        marked: the target with the expected marks.
        kind: AHEAD, BEHIND or another kind of `evolution.target_marks`.
        mark: the mark in the target; None if it has none.
    """

    marked: MarkedTarget
    kind: str
    mark: TargetMark | None

    @property
    def is_movable(self) -> bool:
        """True if output that is newer than the state can be moved away."""
        target = self.marked.target
        if self.kind == BEHIND or not isinstance(target, FilesTarget):
            return False
        return target.can_put_newer_aside(self.marked.expected.rollback)

    def text(self, commit: Commit) -> str:
        """Return a sentence about what the target holds and what the state wrote."""
        subject = f"{self.marked.title} ({self.marked.target.description})"
        written = self.marked.expected.marks[-1:]
        if self.kind == BEHIND:
            holds = (
                "nothing of it (emptied, or deleted and created again)"
                if self.mark is None
                else f"epoch {self.mark.epoch}"
            )
            return f"{subject} holds {holds}, and the state wrote epoch {written[0].epoch} there"
        assert self.mark is not None, "only BEHIND has none"
        if self.kind == AHEAD:
            return f"{subject} holds epoch {self.mark.epoch}, and the state ends with epoch {commit.epoch}: it is an older copy"
        return f"{subject} holds epoch {self.mark.epoch} of another history: another state, or a copy of this one, wrote there"


def marked_targets(
    pipeline: Pipeline, commit: Commit, missing: Sequence[str], exact: bool = True
) -> Iterator[MarkedTarget]:
    """Yield the targets that store a mark, with that of dead letters.

    Args:
        missing: names of targets that may not have the output of the commit.
        exact: False if a target does not get every epoch, as in a backfill.
    """
    current = destinations.with_current_names(commit, pipeline.former_names, list(pipeline.per_target))
    current_names = dict(zip(commit.targets, current.targets, strict=True))
    missing_names = {current_names.get(name, name) for name in missing}
    for name, title, spec, own_writer, stage in _target_specs(pipeline):
        location, record = destinations.target_location(spec), current.targets.get(name)
        # after a rename the target has the mark of the previous name until it gets rows
        previous_writer = own_writer if record is None or record.place != location else record.writer
        for writer in dict.fromkeys((own_writer, previous_writer)):
            target = _marking_target(pipeline, spec, writer, commit.lineage)
            if target is None:
                continue
            connection = resolve_connection(spec.connection, pipeline.connections)
            assert connection is not None, "it is marked"
            expected = expected_marks(current, name, location, writer, name in missing_names)
            if not exact:
                expected = ExpectedMarks(expected.rollback)
            upserts = stage is not None and spec.upserts(connection.kind, stage.transform.window)
            yield MarkedTarget(name, title, target, expected, upserts)


def _target_specs(pipeline: Pipeline) -> list[tuple[str, str, TargetSpec, str, Pipeline | None]]:
    """Return name, title, target, writer and pipeline of each target, and of the dead letters (without a pipeline)."""
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


def _marking_target(pipeline: Pipeline, spec: TargetSpec, writer: str, lineage: str) -> MarkingTarget | None:
    connection = resolve_connection(spec.connection, pipeline.connections)
    return (
        None
        if connection is None
        else connector_for(connection).marking_target(spec, TargetTable(writer, (), None, lineage))
    )


def unnamed_marks(pipeline: Pipeline, commit: Commit | None) -> dict[str, TargetMark | None]:
    """Return the marks of targets that the commit does not name; for a new state these are all targets.

    Targets that cannot be read are left out; the start opens them and fails then.
    """
    current = (
        None
        if commit is None
        else destinations.with_current_names(commit, pipeline.former_names, list(pipeline.per_target))
    )
    marks: dict[str, TargetMark | None] = {}
    for name, _, spec, writer, _ in _target_specs(pipeline):
        location = destinations.target_location(spec)
        if current is not None:
            record = current.targets.get(name)
            is_named = record is not None and (record.writer, record.place) == (writer, location)
            if is_named or (name == LETTERS and current.letters_to == location):
                continue
        lineage = "" if commit is None else commit.lineage
        if (target := _marking_target(pipeline, spec, writer, lineage)) is not None:
            with suppress(StartError):
                marks[name] = target.read_mark(lineage)
    return marks


def find_mismatches(
    pipeline: Pipeline, commit: Commit, missing: Sequence[str], exact: bool = True, fence: bool = False
) -> tuple[list[MarkMismatch], dict[str, TargetMark | None], list[str]]:
    """Return the targets that do not fit, the mark of each target, and why others could not be read.

    The start opens targets that cannot be read, and fails then. `fence`: see `targets.base.MarkingTarget`.
    """
    mismatches: list[MarkMismatch] = []
    marks: dict[str, TargetMark | None] = {}
    unreadable: list[str] = []
    for marked in marked_targets(pipeline, commit, missing, exact):
        try:
            mark = marked.target.read_mark(commit.lineage, marked.expected.marks, fence)
        except StartError as error:
            unreadable.append(f"{marked.title}: {error}")
            continue
        if marked.expected.was_target or not exact:
            marks[marked.name] = mark
        kind = find_mismatch(commit, marked.expected, mark)
        if kind is not None:
            mismatches.append(MarkMismatch(marked, kind, mark))
    return mismatches, marks, unreadable


def refuse_mismatches(pipeline: Pipeline, commit: Commit, mismatches: Sequence[MarkMismatch]) -> StateError | None:
    """Return the error that refuses a start and says what the user can do; None if all targets fit."""
    if not mismatches:
        return None
    facts = "; ".join(mismatch.text(commit) for mismatch in mismatches)
    behind = [mismatch for mismatch in mismatches if mismatch.kind == BEHIND]
    choices = ["restore the target" if behind else "restore the newer state"]
    if all(mismatch.is_movable for mismatch in mismatches):
        choices.append("move the newer files away and write them again with --put-aside-output")
    elif not behind and all(mismatch.marked.upserts for mismatch in mismatches):
        choices.append("write the newer rows again in their place with --keep-output")
    elif not behind:
        choices.append("write the newer rows a second time with --keep-output")
    else:
        choices.append("go on without what is gone with --keep-output")
    choices.append("start over with --rebuild")
    return StateError(
        f"{pipeline.name}: the state and what it wrote do not fit: {facts}. Do one of: {'; '.join(choices)}; nothing was changed"
    )


def check_marks(pipeline: Pipeline, snapshot: Snapshot) -> StateError | None:
    """Return the error that would refuse a start from this commit, or None. Takes no lock."""
    mismatches, _, _ = find_mismatches(pipeline, snapshot.commit, snapshot.missing)
    return refuse_mismatches(pipeline, snapshot.commit, mismatches)


def settle_marks(
    pipeline: Pipeline, store: StateStore, commit: Commit, choice: str | None, exact: bool = True
) -> tuple[Commit, list[str]]:
    """Return the commit to continue from, and lines about what was done. The lock of the state must be held.

    `choice`: one of `previous_output.CHOICES` or None. Raises StateError if a target does not fit and `choice` does not help.
    """
    missing = (
        commit.missing(store.delivered_targets()) if commit.staged and store.published_epoch() < commit.epoch else []
    )
    mismatches, marks, _ = find_mismatches(pipeline, commit, missing, exact, fence=True)
    refusal = refuse_mismatches(pipeline, commit, mismatches)
    if refusal is None:
        return commit, []
    marks = {**{n: t.marks[-1] for n, t in commit.targets.items() if t.marks}, **marks}
    if choice == previous_output.KEEP:
        lines = [f"epochs after {commit.epoch} are written as those of another state, whatever the target holds"]
    elif choice == previous_output.ASIDE and all(mismatch.is_movable for mismatch in mismatches):
        lines = [_put_newer_aside(mismatch) for mismatch in mismatches]
        for mismatch in mismatches:
            if not mismatch.marked.expected.was_target:
                continue  # the commit has no marks of this target
            marks[mismatch.marked.name] = (
                mismatch.marked.expected.rollback if mismatch.marked.expected.rollback.epoch >= 0 else None
            )
    else:
        raise refusal
    return branch_off(commit, uuid.uuid4().hex, marks, missing), lines


def _put_newer_aside(mismatch: MarkMismatch) -> str:
    target, mark = mismatch.marked.target, mismatch.marked.expected.rollback
    assert isinstance(target, FilesTarget), "is_movable"
    location = target.put_newer_aside(mark)
    return f"{mismatch.marked.title}: the files written after epoch {mark.epoch} are now in {location}; remove them when nobody needs them"
