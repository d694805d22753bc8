"""Checks of the stages and targets of a pipeline: names, inputs, shared locations, and results that may change."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slackwater.config.error_text import describe_value_mismatch, format_value, suggest_or_list_words
from slackwater.config.pipeline_checks import list_targets_with_keys, resolve_connection
from slackwater.config.source import Lookup
from slackwater.config.spec_base import Problem, Values
from slackwater.config.stage import Stage, executed_stages, input_paths, stage_inputs
from slackwater.config.step_base import MOST_STAGES
from slackwater.core.humanize import mismatch

if TYPE_CHECKING:
    from slackwater.config.target import Target

MOST_TARGETS = 16
TARGET_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"


def iterate_all_steps(values: Values) -> Iterator[Values]:
    """Yield a copy of the config values for each stage.

    In the copy, `transform` is the stage, and `read` is the set of sources, by name, that the stage reads.
    """
    stages = values.get("stages")
    if not stages:
        yield values
        return
    read, sources = _reads(values), _sources(values)
    for stage in executed_stages(stages, list_published_stages(values)):
        try:
            origins = {path.origin for path in input_paths(stage, stages, read)}
        except (KeyError, RecursionError):  # an input does not exist; `check_stages` reports this
            origins = set()
        yield {**values, "transform": stage, "read": origins & set(sources)}


def check_stages(values: Values, wrong: set[str]) -> Iterator[Problem]:
    """Yield problems with [[stages]]: duplicate names, unknown inputs, unused stages, and results that may change."""
    stages: tuple[Stage, ...] = values["stages"]
    if "transform" in values:
        yield (
            "stages",
            "cannot be combined with [transform]; a pipeline has either [transform] or [[stages]]; remove one of them",
        )
    if len(stages) < 2:
        yield "stages", mismatch("1 stage", "at least 2 stages; write a single stage as [transform]")
        return
    if len(stages) > MOST_STAGES:
        yield "stages", mismatch(f"{len(stages)} stages", f"at most {MOST_STAGES}")
        return
    if "stages" in wrong:
        return
    for name, times in Counter(s.name for s in stages).items():
        if times > 1:
            yield "stages", f"{times} stages are called {format_value(name)}; give each stage a unique name"
    yield from _rename_conflicts(stages)
    sources = _sources(values)
    for number, stage in enumerate(stages):
        if stage.name in sources:
            yield (
                f"stages[{number}].name",
                f"{format_value(stage.name)} is also the name of a source; choose another name",
            )
    if len({*sources, *(s.name for s in stages)}) < len(sources) + len(stages) or "sources" in wrong:
        return
    problems = list(_unknown_inputs(stages, sources))
    yield from problems
    if problems:
        return
    read = _reads(values)
    yield from _unread_inputs(stages, sources, read, list_published_stages(values))
    readers = {name for inputs in read.values() for name in inputs}
    for number, stage in enumerate(stages):
        if stage.name in readers and not stage.is_stateless:
            yield from _changing_results(stage, number)
        if not stage.is_stateless and stage.step.late_data == "dlq":
            upstream = [p.origin for p in input_paths(stage, stages, read) if p.origin not in sources]
            if upstream:
                yield (
                    f"stages[{number}].{stage.step.table}.late_data",
                    '"dlq" is allowed only in a stage whose inputs are all sources, but this stage reads stage '
                    f'{format_value(upstream[0])}, whose results are never late; use "drop"',
                )
    yield from _conflicting_lookups(stages)


def _rename_conflicts(stages: Sequence[Stage]) -> Iterator[Problem]:
    """Yield a problem for each `formerly` that several stages share, or that is the current name of a stage.

    In both cases, it would be unclear which stage takes over the state.
    """
    names = [s.name for s in stages]
    for name, times in Counter(s.formerly for s in stages if s.formerly is not None).items():
        if times > 1:
            yield (
                "stages",
                f"{times} stages have formerly = {format_value(name)}, but only one stage can take over the state "
                "that is stored under this name; keep formerly in only one of them",
            )
    for number, stage in enumerate(stages):
        key = f"stages[{number}].formerly"
        if stage.formerly == stage.name:
            yield key, f"{format_value(stage.formerly)} is the current name of the stage; remove formerly"
        elif stage.formerly in names:
            yield (
                key,
                f"{format_value(stage.formerly)} is the current name of another stage; give that stage another name "
                "until a start has carried out this rename; then remove formerly and reuse the name",
            )


def _sources(values: Values) -> list[str]:
    return [s.name for s in values.get("sources", ()) if s.name]


def _reads(values: Values) -> dict[str, tuple[str, ...]]:
    return stage_inputs(values["stages"], _sources(values))


def _unknown_inputs(stages: Sequence[Stage], sources: Sequence[str]) -> Iterator[Problem]:
    """Yield a problem for each input of a stage that is neither a source nor a stage above it."""
    every = [s.name for s in stages]
    for number, stage in enumerate(stages):
        above = [*sources, *every[:number]]
        sides = () if stage.join is None else stage.join.sources
        references = [(f"stages[{number}].from", n) for n in stage.from_]
        references += [
            (f"stages[{number}].join.{key}", n) for key, n in zip(("left_source", "right_source"), sides, strict=False)
        ]
        for key, name in references:
            if name in above:
                continue
            if name == stage.name:
                yield key, f"found {format_value(name)}, which is this stage itself; name another input"
            elif name in every:
                yield (
                    key,
                    f"found {format_value(name)}, which is defined below this stage; a stage can read only stages "
                    "above it; move one of the stages",
                )
            else:
                hint = suggest_or_list_words(name, above)
                yield key, f"found {format_value(name)}, which is neither a source nor a stage above this one{hint}"
        if sides and stage.from_ and set(stage.from_) != set(sides):
            listed = " and ".join(map(format_value, sides))
            yield (
                f"stages[{number}].from",
                f"does not apply to a join, which reads left_source and right_source ({listed}); remove it",
            )
        for name, times in Counter(stage.from_).items():
            if times > 1:
                yield f"stages[{number}].from", f"{format_value(name)} is listed {times} times; list it once"


def _unread_inputs(
    stages: Sequence[Stage], sources: Sequence[str], read: Mapping[str, Sequence[str]], shown: Sequence[str]
) -> Iterator[Problem]:
    """Yield a problem for each source that no stage reads, and for each stage without a reader or target.

    Args:
        stages: All stages.
        sources: The names of all sources.
        read: The inputs of each stage, by name.
        shown: The names of the stages whose results go to a target.
    """
    readers = {name for inputs in read.values() for name in inputs}
    for number, name in enumerate(sources):
        if name not in readers:
            yield (
                f"sources[{number}]",
                f"no stage reads {format_value(name)}; name it in the `from` of a stage, or remove the source",
            )
    for number, stage in enumerate(stages):
        if stage.name not in readers and stage.name not in shown:
            yield (
                f"stages[{number}]",
                f"stage {format_value(stage.name)} is unused; name it in the `from` of a later stage or of a target, "
                "or remove the stage",
            )


def _conflicting_lookups(stages: Sequence[Stage]) -> Iterator[Problem]:
    """Yield a problem for each name that different lookups share. A name must mean the same lookup in every stage."""
    lookups: dict[str, Lookup] = {}
    for number, stage in enumerate(stages):
        for name, lookup in stage.lookups.items():
            other = lookups.setdefault(name.casefold(), lookup)
            if other != lookup:
                yield (
                    f"stages[{number}].lookups.{name}",
                    "another stage has a different lookup with this name; choose another name",
                )


def _changing_results(stage: Stage, number: int) -> Iterator[Problem]:
    """Yield a problem for each setting by which a stage may change results that another stage has already read.

    `number`: the index of the stage in [[stages]].
    """
    window, kind = stage.window, stage.step.table
    late = stage.step.late_data
    if late == "reopen" and not (window is not None and window.emit == "final"):
        yield (
            f"stages[{number}].{kind}.late_data",
            '"reopen" is not supported in a stage that another stage reads; raise lateness to wait longer for late rows',
        )
    if window is None:
        return
    if late == "standalone":
        yield (
            f"stages[{number}].window.late_data",
            '"standalone" is not supported in a stage that another stage reads, because the separate results for late '
            'rows are behind the watermark; use "drop" or "dlq"',
        )
    if window.emit == "updates":
        yield (
            f"stages[{number}].window.emit",
            '"updates" is not supported in a stage that another stage reads, because the other stage must read each '
            'result only once; use "on_close" or "final"',
        )
    if "_event_ts" in (c.casefold() for c in (*window.group_by, window.window_start_column, window.window_end_column)):
        yield (
            f"stages[{number}].window",
            'a result column is named "_event_ts", which is the event time of the next stage; rename it',
        )


# -- targets -----------------------------------------------------------------------------------------------------------


def check_targets(values: Values, wrong: set[str]) -> Iterator[Problem]:
    """Yield problems with [target] and [[targets]]: invalid names, unknown stages, and shared locations."""
    targets: Sequence[Target] = values.get("targets", ())
    if "targets" in values and "target" in values:
        yield (
            "targets",
            "cannot be combined with [target]; a pipeline has either [target] or [[targets]]; remove one of them",
        )
        return
    if "targets" in values and not targets:
        yield "targets", "empty; define at least one target in [[targets]], or a single target in [target]"
        return
    if len(targets) > MOST_TARGETS:
        yield "targets", mismatch(f"{len(targets)} targets", f"at most {MOST_TARGETS}")
        return
    if "target" not in values and not targets:
        if not {"target", "targets"} & wrong:
            yield "target", "missing; define the destination of the results in [target]"
        return
    placed = list_targets_with_keys(values)
    yield from _name_problems(placed)
    yield from _unknown_stages(placed, values, wrong)
    yield from _shared_locations(placed, values.get("connections", {}))
    letters: Target | None = values.get("dead_letter")
    for key, value in (("name", letters and letters.name), ("from", letters and letters.from_)):
        if value is not None:
            yield (
                f"dead_letter.{key}",
                "applies only to [[targets]], because [dead_letter] receives the dead letters of all stages; remove "
                "this key",
            )


def _name_problems(placed: Sequence[tuple[str, Target]]) -> Iterator[Problem]:
    for path, target in placed:
        if target.name is not None and "name" not in target._wrong and not re.fullmatch(TARGET_NAME, target.name):
            yield (
                f"{path}.name",
                describe_value_mismatch(
                    target.name,
                    'a name of at most 100 letters, digits, ".", "_" and "-" that begins with a letter or digit',
                ),
            )
    for name, times in Counter(t.name for _, t in placed if t.name is not None).items():
        if times > 1:
            yield "targets", f"{times} targets are called {format_value(name)}; give each target a unique name"


def _unknown_stages(placed: Sequence[tuple[str, Target]], values: Values, wrong: set[str]) -> Iterator[Problem]:
    """Yield a problem for each target whose stage does not exist."""
    stages: Sequence[Stage] = values.get("stages", ())
    if "stages" in wrong or any("name" in s._wrong for s in stages):
        return
    names = [s.name for s in stages] or ["transform"]
    for path, target in placed:
        if "from" not in target._wrong and target.from_ is not None and target.from_ not in names:
            yield (
                f"{path}.from",
                f"found {format_value(target.from_)}, which is not a stage{suggest_or_list_words(target.from_, names)}",
            )


def list_published_stages(values: Values) -> tuple[str, ...]:
    """Return the names of the stages whose results go to a target; all stages if a target names an unknown stage."""
    names = [s.name for s in values["stages"]]
    targets = [*(values.get("targets") or ()), *([values["target"]] if values.get("target") is not None else [])]
    published = dict.fromkeys(t.from_ or names[-1] for t in targets) or (names[-1],)
    return tuple(published) if set(published) <= set(names) else tuple(names)


def _shared_locations(placed: Sequence[tuple[str, Target]], connections: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield a problem for each target with the same location as an earlier target."""
    seen: dict[object, str] = {}
    for path, target in placed:
        connection = resolve_connection(target.connection, connections) if target.connection is not None else None
        table = target.table and (target.table if "." in target.table else f"public.{target.table}")
        location = (target.path and posixpath.normpath(target.path), table, target.topic)
        if connection is None or not any(location) or target._wrong:
            continue
        first = seen.setdefault((connection.kind, str(vars(connection)), *location), path)
        if first != path:
            yield (
                path,
                f"writes to the same location as {first} ({format_value(next(p for p in location if p))}); choose another location",
            )


def iterate_targets(values: Values) -> Iterator[tuple[str, Values]]:
    """Yield the config key of each target, and a copy of the draft with only this target.

    In the copy, `transform` is the stage whose results go to the target.
    """
    stages = {s.name: s for s in values.get("stages") or ()}
    for path, target in list_targets_with_keys(values):
        named_stage = stages.get(target.from_) if target.from_ is not None else None
        stage = named_stage or (values["stages"][-1] if values.get("stages") else values.get("transform"))
        yield path, {**values, "target": target, **({} if stage is None else {"transform": stage})}
