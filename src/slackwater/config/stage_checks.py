"""Check stages against each other: their inputs, and that no stage reads results that may still change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from slackwater.config.lineage import executed_stages, input_paths, stage_inputs
from slackwater.config.message_format import format_value, suggest_word_or_list
from slackwater.config.source import Lookup
from slackwater.config.spec_base import Problem, Values
from slackwater.config.stage import Stage
from slackwater.config.step_base import MOST_STAGES
from slackwater.config.target_checks import list_published_stages
from slackwater.core.humanize import mismatch


def iterate_all_steps(values: Values) -> Iterator[Values]:
    """Yield the draft once per running stage, with this stage as `transform` and the sources that it reads as `read`."""
    stages = values.get("stages")
    if not stages:
        yield values
        return
    read, sources = _reads(values), _sources(values)
    for stage in executed_stages(stages, list_published_stages(values)):
        try:
            origins = {w.origin for w in input_paths(stage, stages, read)}
        except (KeyError, RecursionError):  # an input does not exist, which was already reported
            origins = set()
        yield {**values, "transform": stage, "read": origins & set(sources)}


def check_stages(values: Values, wrong: set[str]) -> Iterator[Problem]:
    """Yield problems of the stages: inputs that do not exist, and sources or stages that nothing reads."""
    stages: tuple[Stage, ...] = values["stages"]
    if "transform" in values:
        yield (
            "stages",
            "cannot be combined with [transform]; a pipeline has one transform or several stages; remove one of them",
        )
    if len(stages) < 2:
        yield "stages", mismatch(1, "at least 2; write a single stage as [transform]")
        return
    if len(stages) > MOST_STAGES:
        yield "stages", mismatch(len(stages), f"at most {MOST_STAGES}")
        return
    if "stages" in wrong:
        return
    for name, times in Counter(s.name for s in stages).items():
        if times > 1:
            yield "stages", f"{times} stages are called {format_value(name)}; give each its own name"
    yield from _rename_conflicts(stages)
    sources = _sources(values)
    for number, stage in enumerate(stages):
        if stage.name in sources:
            yield (
                f"stages[{number}].name",
                f"{format_value(stage.name)} is the name of a source; give the stage another one",
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
            behind = [w.origin for w in input_paths(stage, stages, read) if w.origin not in sources]
            if behind:
                yield (
                    f"stages[{number}].{stage.step.table}.late_data",
                    f'this stage reads stage {format_value(behind[0])}, whose results are never late; "dlq" is allowed '
                    "only in stages whose inputs are all sources",
                )
    yield from _conflicting_lookups(stages)


def _rename_conflicts(stages: Sequence[Stage]) -> Iterator[Problem]:
    """Yield a problem for each former name that several stages claim or that a stage still has.

    Otherwise, the order of starts would decide which stage gets the state.
    """
    names = [s.name for s in stages]
    for name, times in Counter(s.formerly for s in stages if s.formerly is not None).items():
        if times > 1:
            yield (
                "stages",
                f"{times} stages have formerly = {format_value(name)}; only one of them can take over its state",
            )
    for number, stage in enumerate(stages):
        if stage.formerly in names:
            reason = (
                "is the current name of the stage"
                if stage.formerly == stage.name
                else "is also the name of a stage; after a start has carried out the"
            )
            remedy = "; remove it" if stage.formerly == stage.name else " rename, remove formerly and reuse the name"
            yield f"stages[{number}].formerly", f"{format_value(stage.formerly)} {reason}{remedy}"


def _sources(values: Values) -> list[str]:
    return [s.name for s in values.get("sources", ()) if s.name]


def _reads(values: Values) -> dict[str, tuple[str, ...]]:
    return stage_inputs(values["stages"], _sources(values))


def _unknown_inputs(stages: Sequence[Stage], sources: Sequence[str]) -> Iterator[Problem]:
    """Yield a problem for each input of a stage that is neither a source nor an earlier stage."""
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
            if name in every:
                line = (
                    "is defined below this stage, but a stage reads only what is defined above it; move one of the "
                    "stages"
                    if name != stage.name
                    else "is itself"
                )
                yield key, f"found {format_value(name)}, which {line}"
            else:
                yield (
                    key,
                    f"found {format_value(name)}, which is neither a source nor a stage above{suggest_word_or_list(name, above)}",
                )
        if sides and stage.from_ and set(stage.from_) != set(sides):
            listed = " and ".join(map(format_value, sides))
            yield (
                f"stages[{number}].from",
                f"not needed: a join reads left_source and right_source ({listed}); remove it",
            )
        for name, times in Counter(stage.from_).items():
            if times > 1:
                yield f"stages[{number}].from", f"{format_value(name)} is listed {times} times; list it once"


def _unread_inputs(
    stages: Sequence[Stage], sources: Sequence[str], read: Mapping[str, Sequence[str]], shown: Sequence[str]
) -> Iterator[Problem]:
    """Yield a problem for each source and stage that nothing reads."""
    readers = {name for inputs in read.values() for name in inputs}
    for number, name in enumerate(sources):
        if name not in readers:
            yield (
                f"sources[{number}]",
                f"no stage reads {format_value(name)}; name it in the `from` of a stage, or remove it",
            )
    for number, stage in enumerate(stages):
        if stage.name not in readers and stage.name not in shown:
            yield (
                f"stages[{number}]",
                f"stage {format_value(stage.name)} is unused; name it in the `from` of a later stage or of a target, or remove it",
            )


def _conflicting_lookups(stages: Sequence[Stage]) -> Iterator[Problem]:
    """Yield a problem for different lookups that share a name: a lookup is one view for the whole pipeline."""
    lookups: dict[str, Lookup] = {}
    for number, stage in enumerate(stages):
        for name, lookup in stage.lookups.items():
            other = lookups.setdefault(name.casefold(), lookup)
            if other != lookup:
                yield (
                    f"stages[{number}].lookups.{name}",
                    "another stage has a lookup with this name; choose another name",
                )


def _changing_results(stage: Stage, number: int) -> Iterator[Problem]:
    """Yield a problem for each setting that lets a stage change results that other stages may have read.

    A stage that has read a result cannot undo it.
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
            '"standalone" is not supported in a stage that another stage reads: its results are behind the watermark; use "drop" or "dlq"',
        )
    if window.emit == "updates":
        yield (
            f"stages[{number}].window.emit",
            '"updates" is not supported in a stage that another stage reads: a reader gets each result only once; use "on_close" or "final"',
        )
    if "_event_ts" in (c.casefold() for c in (*window.group_by, window.window_start_column, window.window_end_column)):
        yield (
            f"stages[{number}].window",
            'a result column is named "_event_ts", which is the event time of the next stage; rename it',
        )
