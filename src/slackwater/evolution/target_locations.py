"""Compare the targets of a config with those of a commit: what moves, and what must not move while an epoch is pending."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from slackwater.config.pipeline import Pipeline
from slackwater.config.relative_paths import restore_written_path
from slackwater.config.target import Target
from slackwater.config.window import METADATA, Window
from slackwater.evolution.stage_matching import match_stages
from slackwater.state.commit import LETTERS, Commit, TargetDestination, TargetMarker

TargetLocation = tuple[str | None, ...]


def target_location(target: Target) -> TargetLocation:
    """Return where a target writes, in the form that a commit stores."""
    return (target.path and restore_written_path(target.path), target.table, target.topic)


def dead_letter_location(pipeline: Pipeline) -> TargetLocation | None:
    return None if pipeline.dead_letter is None else target_location(pipeline.dead_letter)


def location_name(location: TargetLocation | None) -> str | None:
    return None if location is None else next((p for p in location if p), "console")


def configured_targets(pipeline: Pipeline) -> dict[str, TargetDestination]:
    """Return the destination of each target in a config. Its columns are None unless its stage is a window."""
    targets = {}
    for name, sub_pipeline in pipeline.per_target.items():
        window = sub_pipeline.target_stage.transform.window
        columns = None if window is None else tuple(_output_columns(window))
        targets[name] = TargetDestination(
            stage=str(sub_pipeline.target.from_),
            place=target_location(sub_pipeline.target),
            writer=sub_pipeline.writer,
            columns=columns,
        )
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

    `held_markers`: the markers that were read from the targets at the start. They are used for targets whose marker the
    commit does not contain, because the target, its location or its writer has changed. If a target has a new writer,
    the commit keeps the previous writer until the target receives rows, because the target's current marker belongs to
    the previous writer.
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
    """Return the commit with the current names of its stages and targets. `stages`: the `formerly` of each stage.

    A target is renamed if it is the only target, or if it has the name of a renamed stage.
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


# -- what is redirected ------------------------------------------------------------------------------------------------


def describe_target_changes(pipeline: Pipeline, commit: Commit) -> Iterator[tuple[str, str | None, str | None, str]]:
    """Yield (setting, before, after, consequence) for each change; nothing if no epoch with targets was committed."""
    if not commit.targets:
        return
    now = configured_targets(pipeline)
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
        yield f'target "{name}"', location_name(before[name].place), None, how
    for name in new:
        how = f'it gets the results of stage "{now[name].stage}" after epoch {commit.epoch}, and none from before'
        yield f'target "{name}"', None, location_name(now[name].place), how
    for name, after in now.items():
        if (was := before.get(name)) is None:
            continue
        label = "target" if len(now) == len(before) == 1 else f'target "{name}"'
        if was.place != after.place:
            yield label, location_name(was.place), location_name(after.place), goes
        if was.stage != after.stage:
            yield (
                f"{label} from",
                was.stage,
                after.stage,
                f"it gets the results of that stage after epoch {commit.epoch}",
            )
    if commit.letters_to != (letters := dead_letter_location(pipeline)):
        yield "dead_letter", location_name(commit.letters_to), location_name(letters), goes


def _same(one: TargetDestination, other: TargetDestination) -> bool:
    return (one.stage, one.place) == (other.stage, other.place)


# -- while an epoch is pending -----------------------------------------------------------------------------------------


def describe_blocked_change(pipeline: Pipeline, commit: Commit, missing: Sequence[str]) -> str | None:
    """Return why the pipeline must first be started with the previous config; None if this is not necessary.

    The previous config must publish its pending output if the new config would send that output elsewhere. `missing`:
    the targets that have not received their output of the commit.
    """
    if not missing or not commit.targets:
        return None
    now = configured_targets(pipeline)
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
    """Return the changed settings of targets that have not received their output of a commit.

    `growing`: targets that may get added columns.
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
    return (
        f"epoch {epoch} is committed but not yet published, and the config has changed since ({', '.join(changed)}); "
        "start once with the previous config, then change it"
    )
