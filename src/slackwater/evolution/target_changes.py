"""Compare the targets of a config, and the markers that they hold, with a commit.

state   … 5 ─ 6 ─ 7                      the commit records the marker of each target: here (state, 7, id of commit 7)
target      … 6 ─ 7                      the same marker: continue
target      … 6 ─ 7 ─ 8 ─ 9              AHEAD: the state is an older copy, and epochs 8 and 9 would be ignored
target      … 6'─ 7'                     FOREIGN: another history of the state, or another state, wrote there
target    … 5, or nothing                BEHIND: the output of the state was deleted
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from slackwater.config.pipeline import Pipeline
from slackwater.config.relative_paths import restore_written_path
from slackwater.config.target import Target
from slackwater.config.window import METADATA, Window
from slackwater.evolution.stage_matching import match_stages
from slackwater.state.commit import LETTERS, Commit, TargetDestination, TargetMarker

TargetLocation = tuple[str | None, ...]
AHEAD, FOREIGN, BEHIND = "ahead", "foreign", "behind"  # how a target can differ from a state


def target_location(target: Target) -> TargetLocation:
    """Return where a target writes, in the form that a commit stores."""
    return (target.path and restore_written_path(target.path), target.table, target.topic)


def dead_letter_location(pipeline: Pipeline) -> TargetLocation | None:
    return None if pipeline.dead_letter is None else target_location(pipeline.dead_letter)


def format_location(location: TargetLocation | None) -> str | None:
    return None if location is None else next((p for p in location if p), "console")


def list_configured_targets(pipeline: Pipeline) -> dict[str, TargetDestination]:
    """Return the destination of each target in a config. Columns are known only for windows, and otherwise None."""
    targets = {}
    for name, sub_pipeline in pipeline.per_target.items():
        window = sub_pipeline.target_stage.transform.window
        columns = None if window is None else tuple(_output_columns(window))
        stage, place = str(sub_pipeline.target.from_), target_location(sub_pipeline.target)
        targets[name] = TargetDestination(stage=stage, place=place, writer=sub_pipeline.writer, columns=columns)
    return targets


def _output_columns(w: Window) -> list[str]:
    """Return the names of the output columns of a window."""
    bounds, values = [w.window_start_column, w.window_end_column], [a.as_ for a in w.aggregations]
    values += METADATA if w.emit_metadata else []
    return [*w.group_by, *bounds, "session_id", *values] if w.kind == "session" else [*bounds, *w.group_by, *values]


def with_targets(
    commit: Commit,
    targets: Mapping[str, TargetDestination],
    letters_to: TargetLocation | None,
    held_markers: Mapping[str, TargetMarker | None] | None = None,
) -> Commit:
    """Return the commit with these targets, each with its current marker and the marker of its output in the commit.

    If a target has a new writer, the commit keeps the previous writer until the target receives rows. Until then, the
    marker in the target belongs to the previous writer.

    Args:
        commit: The commit.
        targets: The destinations, by target.
        letters_to: The location of the dead letters; None without [dead_letter].
        held_markers: The markers that the targets held at startup. They are used if the commit does not contain the
            marker of a target because the target, its location or its writer has changed.
    """
    earlier = commit.targets
    same_letters = commit.letters_to == letters_to
    updated = commit.model_copy(update={"targets": targets, "letters_to": letters_to})
    parts = {*updated.recipients}

    def next_markers(name: str, markers: tuple[TargetMarker, ...]) -> tuple[TargetMarker, ...]:
        return (*markers[-1:], updated.marker) if name in parts else markers[-1:]

    def markers_at_start(name: str) -> tuple[TargetMarker, ...]:
        marker = (held_markers or {}).get(name)
        return () if marker is None else (marker,)

    def with_markers(name: str, target: TargetDestination) -> TargetDestination:
        was = earlier.get(name)
        if was is None or was.place != target.place:
            return target.model_copy(update={"marks": next_markers(name, markers_at_start(name))})
        if was.writer == target.writer:
            return target.model_copy(update={"marks": next_markers(name, was.marks)})
        if name in parts:
            return target.model_copy(update={"marks": next_markers(name, markers_at_start(name))})
        return target.model_copy(update={"writer": was.writer, "marks": was.marks[-1:]})

    update = {
        "targets": {n: with_markers(n, t) for n, t in targets.items()},
        "letters_marks": next_markers(LETTERS, commit.letters_marks if same_letters else markers_at_start(LETTERS)),
    }
    return updated.model_copy(update=update)


def with_current_names(commit: Commit, stages: Mapping[str, str | None], targets: Sequence[str]) -> Commit:
    """Return the commit with the current names of its stages and targets.

    A target is renamed if it is the only target, or if it has the name of a renamed stage.

    Args:
        commit: The commit.
        stages: The `formerly` setting of each stage in the config, by stage name.
        targets: The names of the targets in the config.
    """
    renamed = {former: now for now, former in match_stages(stages, commit).renamed.items()}
    called = {}
    for name in commit.targets:
        if name in targets:
            continue
        if len(commit.targets) == len(targets) == 1:
            called[name] = targets[0]
        elif (now := renamed.get(name)) in targets and now not in commit.targets:
            called[name] = str(now)
    renamed_targets = {
        called.get(n, n): t.model_copy(update={"stage": renamed.get(t.stage, t.stage)})
        for n, t in commit.targets.items()
    }
    update = {
        "targets": renamed_targets,
        "output": tuple(o.model_copy(update={"stage": renamed.get(o.stage, o.stage)}) for o in commit.output),
        "reached": tuple(called.get(n, n) for n in commit.reached),
    }
    return commit.model_copy(update=update)


# -- changed targets ---------------------------------------------------------------------------------------------------


def describe_target_changes(pipeline: Pipeline, commit: Commit) -> Iterator[tuple[str, str | None, str | None, str]]:
    """Yield (setting, before, after, consequence) for each change; nothing if no epoch with targets was committed."""
    if not commit.targets:
        return
    now = list_configured_targets(pipeline)
    before = with_current_names(commit, pipeline.former_names, list(now)).targets
    goes = f"output after epoch {commit.epoch} goes there; earlier output stays where it is"
    gone, new = [n for n in before if n not in now], [n for n in now if n not in before]
    for name in gone:
        same = [n for n in new if _same(before[name], now[n])]
        if same:
            new.remove(same[0])
            yield f'target "{name}"', name, same[0], "it is renamed"
            continue
        how = "it gets no more output; earlier output stays where it is"
        yield f'target "{name}"', format_location(before[name].place), None, how
    for name in new:
        how = f'it gets the results of stage "{now[name].stage}" after epoch {commit.epoch}, but no earlier results'
        yield f'target "{name}"', None, format_location(now[name].place), how
    for name, after in now.items():
        if (was := before.get(name)) is None:
            continue
        label = "target" if len(now) == len(before) == 1 else f'target "{name}"'
        if was.place != after.place:
            yield label, format_location(was.place), format_location(after.place), goes
        if was.stage != after.stage:
            how = f'it gets the results of stage "{after.stage}" after epoch {commit.epoch}'
            yield f"{label} from", was.stage, after.stage, how
    if commit.letters_to != (letters := dead_letter_location(pipeline)):
        yield "dead_letter", format_location(commit.letters_to), format_location(letters), goes


def _same(one: TargetDestination, other: TargetDestination) -> bool:
    return (one.stage, one.place) == (other.stage, other.place)


# -- changes while an epoch is pending ---------------------------------------------------------------------------------


def describe_blocked_change(pipeline: Pipeline, commit: Commit, missing: Sequence[str]) -> str | None:
    """Return why the pipeline must first be started with the previous config; None if this is not necessary.

    It is necessary if the new config would send pending output to a different place. `missing`: the targets that have
    not received their output from the commit.
    """
    if not missing or not commit.targets:
        return None
    now = list_configured_targets(pipeline)
    changed = changed_pending_targets(commit, pipeline.former_names, now, dead_letter_location(pipeline), missing)
    return describe_pending(commit.epoch, changed) if changed else None


def changed_pending_targets(
    commit: Commit,
    stages: Mapping[str, str | None],
    now: Mapping[str, TargetDestination],
    letters: TargetLocation | None,
    missing: Sequence[str],
    growing: Collection[str] = (),
) -> list[str]:
    """Return the changed settings of targets that have not received their output from a commit.

    Args:
        commit: The commit.
        stages: The `formerly` setting of each stage in the config, by stage name.
        now: The destinations in the config, by target.
        letters: The location of the dead letters in the config.
        missing: The targets that have not received their output from the commit.
        growing: The targets that may get new columns.
    """
    if commit.output and not commit.targets:
        return ["target"]
    current = with_current_names(commit, stages, list(now))
    called = dict(zip(commit.targets, current.targets, strict=True))
    changed: list[str] = []
    for name in missing:
        if name == LETTERS:
            changed += ["letters"] if commit.letters_to != letters else []
            continue
        was, after = current.targets[called[name]], now.get(called[name])
        label = "target" if len(current.targets) == len(now) == 1 else f'target "{name}"'
        if after is None or was.place != after.place or was.stage != after.stage:
            changed.append(label)
        elif was.writer != after.writer:
            changed.append(f"{label} name")
        if after is not None:
            for key in ("columns", "upserts"):
                values = [getattr(was, key), getattr(after, key)]
                grows = (
                    key == "columns" and called[name] in growing and {*(was.columns or ())} < {*(after.columns or ())}
                )
                if None not in values and values[0] != values[1] and not grows:
                    changed.append(key if label == "target" else f"{label} {key}")
    return changed


def describe_pending(epoch: int, changed: Sequence[str]) -> str:
    """Return the message that the settings `changed` must not change before epoch `epoch` is published."""
    return (
        f"epoch {epoch} is committed but not yet published, and the config has changed since ({', '.join(changed)}); "
        "start once with the previous config, then change it"
    )


# -- markers -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExpectedMarkers:
    """The markers of one target that are consistent with a commit.

    Args:
        rollback: The marker that the target holds once output newer than the state is moved away.
        markers: The markers that the target may hold.
        may_be_empty: Whether the target may have no marker.
        is_exact: Whether the target must hold one of `markers`, or nothing if `may_be_empty`. False if the commit has
            no marker for the target, because an earlier version wrote the commit or the target has moved.
        was_target: Whether the commit records this location for the target.
    """

    rollback: TargetMarker
    markers: tuple[TargetMarker, ...] = ()
    may_be_empty: bool = True
    is_exact: bool = False
    was_target: bool = False


def compute_expected_markers(
    commit: Commit, name: str, location: TargetLocation | None, writer: str, missing: bool
) -> ExpectedMarkers:
    """Return the markers that a target may hold.

    Args:
        commit: The commit of the state.
        name: The name of the target; LETTERS for the target of dead letters.
        location: The location of the target in the config.
        writer: The name under which the pipeline writes to the target.
        missing: Whether the target may lack its output from the commit.
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
        # with a single marker, nothing was written before, or only by an earlier version
        both = len(markers) == 2
        return ExpectedMarkers(markers[0] if both else earlier, markers, not both, both, was_target=True)
    return ExpectedMarkers(
        markers[-1] if markers else earlier, markers[-1:], not markers, bool(markers), was_target=True
    )


def find_marker_mismatch(commit: Commit, expected: ExpectedMarkers, held: TargetMarker | None) -> str | None:
    """Return AHEAD, FOREIGN or BEHIND; None if the state can continue with the target. `held`: the marker in the target."""
    if held is None:
        return None if expected.may_be_empty else BEHIND
    if any(_is_same(held, marker) for marker in expected.markers):
        return None
    if held.state != commit.lineage:
        # the commit has recorded a marker of this target before, so another state has written since then
        return FOREIGN if expected.was_target else None
    if held.epoch > commit.epoch:
        return AHEAD
    if any(held.epoch == marker.epoch for marker in expected.markers):
        return FOREIGN
    if not expected.is_exact:
        return None
    return BEHIND if held.epoch < min(marker.epoch for marker in expected.markers) else FOREIGN


def _is_same(one: TargetMarker, other: TargetMarker) -> bool:
    """Return whether two markers are equal. Commit ids are ignored if one is empty (earlier versions)."""
    commits = one.commit, other.commit
    return (one.state, one.epoch) == (other.state, other.epoch) and ("" in commits or one.commit == other.commit)


def begin_branch(
    commit: Commit, branch: str, held: Mapping[str, TargetMarker | None], missing: Collection[str]
) -> Commit:
    """Return the commit as the first commit of a branch, which targets treat as a separate state.

    Args:
        commit: The commit.
        branch: The id of the branch.
        held: The current marker of each target.
        missing: The targets to which the branch publishes the output of the commit.
    """
    reached = {name for name in missing if held.get(name) == commit.marker}
    branched = commit.model_copy(update={"branch": branch, "reached": (*commit.reached, *reached)})

    def markers(name: str) -> tuple[TargetMarker, ...]:
        before = held.get(name)
        return ((before,) if before else ()) + ((branched.marker,) if name in missing and name not in reached else ())

    targets = {name: target.model_copy(update={"marks": markers(name)}) for name, target in branched.targets.items()}
    return branched.model_copy(update={"targets": targets, "letters_marks": markers(LETTERS)})


def with_skipped_targets(commit: Commit, names: Collection[str]) -> Commit:
    """Return the commit without its output to these targets, which is never published. They keep their markers."""
    commit_markers = (commit.marker,)

    def markers(name: str, current: tuple[TargetMarker, ...]) -> tuple[TargetMarker, ...]:
        return current[:-1] if name in names and current[-1:] == commit_markers else current

    targets = {n: t.model_copy(update={"marks": markers(n, t.marks)}) for n, t in commit.targets.items()}
    return commit.model_copy(update={"targets": targets, "letters_marks": markers(LETTERS, commit.letters_marks)})
