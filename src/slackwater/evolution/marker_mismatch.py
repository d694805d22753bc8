"""Compare the marker that a target holds with the markers that a state expects there, as pure functions.

state   … 5 ─ 6 ─ 7                      its commit records the marker of each target: here (state, 7, id of commit 7)
target      … 6 ─ 7                      the same marker: continue
target      … 6 ─ 7 ─ 8 ─ 9              AHEAD: the state is an older copy, and epochs 8 and 9 would be ignored
target      … 6'─ 7'                     FOREIGN: another history of the state, or another state, wrote there
target    … 5, or nothing                BEHIND: the output of the state was deleted
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from slackwater.evolution.target_locations import TargetLocation
from slackwater.state.commit import LETTERS, Commit, TargetMarker

AHEAD, FOREIGN, BEHIND = "ahead", "foreign", "behind"


@dataclass(frozen=True)
class ExpectedMarkers:
    """The markers of one target that are consistent with a commit.

    `is_exact`: whether the target must hold one of `markers`, or nothing if `may_be_empty`. False if the commit has no
    marker for this target, because an earlier version wrote the commit or because the target has moved. `was_target`:
    whether the commit records this location for the target.
    """

    rollback: TargetMarker  # what the target holds after the rollback of everything newer than the state and of its missing part
    markers: tuple[TargetMarker, ...] = ()
    may_be_empty: bool = True
    is_exact: bool = False
    was_target: bool = False


def expected_markers(
    commit: Commit, name: str, location: TargetLocation | None, writer: str, missing: bool
) -> ExpectedMarkers:
    """Return the markers that the target `name` may hold. LETTERS is the target of dead letters.

    `missing`: whether the target may not have received its output of this commit.
    """
    if name == LETTERS:
        same, markers = commit.letters_to == location, commit.letters_marks
    else:
        target = commit.targets.get(name)
        same = target is not None and (target.writer, target.place) == (writer, location)
        markers = target.marks if target is not None else ()
    earlier = TargetMarker(state=commit.lineage, epoch=commit.epoch - 1 if missing else commit.epoch)
    if not same:
        return ExpectedMarkers(earlier)
    if missing and markers[-1:] == (commit.marker,):
        # a single marker: nothing was written before, or only by an earlier version
        both = len(markers) == 2
        return ExpectedMarkers(markers[0] if both else earlier, markers, not both, both, was_target=True)
    return ExpectedMarkers(
        markers[-1] if markers else earlier, markers[-1:], not markers, bool(markers), was_target=True
    )


def find_mismatch(commit: Commit, expected: ExpectedMarkers, held: TargetMarker | None) -> str | None:
    """Return AHEAD, FOREIGN or BEHIND; None if the state can continue with this target. `held`: its current marker."""
    if held is None:
        return None if expected.may_be_empty else BEHIND
    if any(_is_same(held, marker) for marker in expected.markers):
        return None
    if held.state != commit.lineage:
        # the commit has the marker from when it first wrote to this target, so another state has written since
        return FOREIGN if expected.was_target else None
    if held.epoch > commit.epoch:
        return AHEAD
    if any(held.epoch == marker.epoch for marker in expected.markers):
        return FOREIGN
    if not expected.is_exact:
        return None
    return BEHIND if held.epoch < min(marker.epoch for marker in expected.markers) else FOREIGN


def _is_same(one: TargetMarker, other: TargetMarker) -> bool:
    """Return whether two markers are equal. Commits are compared only if both have one; earlier versions had none."""
    commits = one.commit, other.commit
    return (one.state, one.epoch) == (other.state, other.epoch) and ("" in commits or one.commit == other.commit)


def start_branch(
    commit: Commit, branch: str, held: Mapping[str, TargetMarker | None], missing: Collection[str]
) -> Commit:
    """Return the commit as the first commit of a branch, which targets see as a separate state.

    `held`: the current marker of each target. `missing`: the targets to which the branch publishes output of the
    commit.
    """
    reached = {name for name in missing if held.get(name) == commit.marker}
    branched = commit.model_copy(update={"branch": branch, "reached": (*commit.reached, *reached)})

    def markers(name: str) -> tuple[TargetMarker, ...]:
        before = held.get(name)
        return ((before,) if before else ()) + ((branched.marker,) if name in missing and name not in reached else ())

    targets = {name: target.model_copy(update={"marks": markers(name)}) for name, target in branched.targets.items()}
    return branched.model_copy(update={"targets": targets, "letters_marks": markers(LETTERS)})


def with_skipped_targets(commit: Commit, names: Collection[str]) -> Commit:
    """Return the commit for the case that its output to these targets will never be published.

    The targets then keep their previous markers.
    """
    commit_markers = (commit.marker,)

    def markers(name: str, current: tuple[TargetMarker, ...]) -> tuple[TargetMarker, ...]:
        return current[:-1] if name in names and current[-1:] == commit_markers else current

    targets = {n: t.model_copy(update={"marks": markers(n, t.marks)}) for n, t in commit.targets.items()}
    return commit.model_copy(update={"targets": targets, "letters_marks": markers(LETTERS, commit.letters_marks)})
