"""Compare the mark that a target holds with the marks that a state expects there. Pure.

state   … 5 ─ 6 ─ 7                      its commit names the mark of each target: here (state, 7, id of commit 7)
target      … 6 ─ 7                      the same mark: continue
target      … 6 ─ 7 ─ 8 ─ 9              AHEAD: the state is an older copy, and epochs 8 and 9 would be ignored
target      … 6'─ 7'                     FOREIGN: another history of the state, or another state, wrote there
target    … 5, or nothing                BEHIND: the output of the state was deleted
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from slackwater.evolution.destinations import TargetLocation
from slackwater.state.commit import LETTERS, Commit, TargetMark

AHEAD, FOREIGN, BEHIND = "ahead", "foreign", "behind"


@dataclass(frozen=True)
class ExpectedMarks:
    """The marks of one target that fit a commit.

    `is_exact`: the target holds one of these, or nothing if it `may_be_empty`. Otherwise the commit does not name a
    mark, because an earlier version wrote it or the target has moved. `was_target`: the commit names this location.
    """

    rollback: TargetMark  # what the target holds after the rollback of everything newer than the state and of its missing part
    marks: tuple[TargetMark, ...] = ()
    may_be_empty: bool = True
    is_exact: bool = False
    was_target: bool = False


def expected_marks(
    commit: Commit, name: str, location: TargetLocation | None, writer: str, missing: bool
) -> ExpectedMarks:
    """Return the marks that a target, or LETTERS, may hold.

    `missing`: its part of this commit may not have reached it.
    """
    if name == LETTERS:
        same, marks = commit.letters_to == location, commit.letters_marks
    else:
        target = commit.targets.get(name)
        same = target is not None and (target.writer, target.place) == (writer, location)
        marks = target.marks if target is not None else ()
    earlier = TargetMark(state=commit.lineage, epoch=commit.epoch - 1 if missing else commit.epoch)
    if not same:
        return ExpectedMarks(earlier)
    if missing and marks[-1:] == (commit.mark,):
        # a single mark: nothing was written before, or by an earlier version
        both = len(marks) == 2
        return ExpectedMarks(marks[0] if both else earlier, marks, not both, both, was_target=True)
    return ExpectedMarks(marks[-1] if marks else earlier, marks[-1:], not marks, bool(marks), was_target=True)


def find_mismatch(commit: Commit, expected: ExpectedMarks, held: TargetMark | None) -> str | None:
    """Return AHEAD, FOREIGN or BEHIND; None if the state can continue with this target."""
    if held is None:
        return None if expected.may_be_empty else BEHIND
    if any(_is_same(held, mark) for mark in expected.marks):
        return None
    if held.state != commit.lineage:
        # the commit has the mark from when it began to write to this target, so another state has written since
        return FOREIGN if expected.was_target else None
    if held.epoch > commit.epoch:
        return AHEAD
    if any(held.epoch == mark.epoch for mark in expected.marks):
        return FOREIGN
    if not expected.is_exact:
        return None
    return BEHIND if held.epoch < min(mark.epoch for mark in expected.marks) else FOREIGN


def _is_same(one: TargetMark, other: TargetMark) -> bool:
    """Compare state and epoch, and the commit where both have one: earlier versions stored none."""
    commits = one.commit, other.commit
    return (one.state, one.epoch) == (other.state, other.epoch) and ("" in commits or one.commit == other.commit)


def branch_off(commit: Commit, branch: str, held: Mapping[str, TargetMark | None], missing: Collection[str]) -> Commit:
    """Return the commit as the first one of a branch, which is another state for the targets.

    `held`: the current mark of each target.

    The branch publishes the parts that are `missing`.
    """
    reached = {name for name in missing if held.get(name) == commit.mark}
    branched = commit.model_copy(update={"branch": branch, "reached": (*commit.reached, *reached)})

    def marks(name: str) -> tuple[TargetMark, ...]:
        before = held.get(name)
        return ((before,) if before else ()) + ((branched.mark,) if name in missing and name not in reached else ())

    targets = {name: target.model_copy(update={"marks": marks(name)}) for name, target in branched.targets.items()}
    return branched.model_copy(update={"targets": targets, "letters_marks": marks(LETTERS)})


def without_parts(commit: Commit, names: Collection[str]) -> Commit:
    """Return the commit for targets that never get their parts: they keep the mark from before it."""
    commit_marks = (commit.mark,)

    def marks(name: str, current: tuple[TargetMark, ...]) -> tuple[TargetMark, ...]:
        return current[:-1] if name in names and current[-1:] == commit_marks else current

    targets = {n: t.model_copy(update={"marks": marks(n, t.marks)}) for n, t in commit.targets.items()}
    return commit.model_copy(update={"targets": targets, "letters_marks": marks(LETTERS, commit.letters_marks)})
