"""Check targets against each other and against the stages. Each target receives the results of one stage."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slackwater.config.message_format import format_value, suggest_word_or_list, value_mismatch
from slackwater.config.pipeline_checks import list_targets_with_keys, resolve_connection
from slackwater.config.spec_base import Problem, Values
from slackwater.core.humanize import mismatch

if TYPE_CHECKING:
    from slackwater.config.target import Target

MOST_TARGETS = 16
TARGET_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"


def check_targets(values: Values, wrong: set[str]) -> Iterator[Problem]:
    """Yield problems with targets: names, stages, and locations that two of them share."""
    targets: Sequence[Target] = values.get("targets", ())
    if "targets" in values and "target" in values:
        yield (
            "targets",
            "cannot be combined with [target]; a pipeline has one target, or several in [[targets]]; remove one of them",
        )
        return
    if "targets" in values and not targets:
        yield "targets", "empty; define at least one in [[targets]], or a single one in [target]"
        return
    if len(targets) > MOST_TARGETS:
        yield "targets", mismatch(len(targets), f"at most {MOST_TARGETS}")
        return
    if "target" not in values and not targets:
        if not {"target", "targets"} & wrong:
            yield "target", "missing; set where results are written in [target]"
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
                "applies only to [[targets]]; [dead_letter] receives the dead letters of all stages; remove it",
            )


def _name_problems(placed: Sequence[tuple[str, Target]]) -> Iterator[Problem]:
    for path, target in placed:
        if target.name is not None and "name" not in target._wrong and not re.fullmatch(TARGET_NAME, target.name):
            yield f"{path}.name", value_mismatch(target.name, 'at most 100 letters, digits, ".", "_" and "-"')
    for name, times in Counter(t.name for _, t in placed if t.name is not None).items():
        if times > 1:
            yield "targets", f"{times} targets are called {format_value(name)}; give each its own name"


def _unknown_stages(placed: Sequence[tuple[str, Target]], values: Values, wrong: set[str]) -> Iterator[Problem]:
    """Yield a problem for each target whose stage does not exist. For stages that nothing reads, see `stage_checks`."""
    stages: Sequence[Any] = values.get("stages", ())  # of type `config.stage.Stage`, which cannot be imported here
    if "stages" in wrong or any("name" in s._wrong for s in stages):
        return
    names = [s.name for s in stages] or ["transform"]
    for path, target in placed:
        if "from" not in target._wrong and target.from_ is not None and target.from_ not in names:
            yield (
                f"{path}.from",
                f"found {format_value(target.from_)}, which is not a stage{suggest_word_or_list(target.from_, names)}",
            )


def list_published_stages(values: Values) -> tuple[str, ...]:
    """Return the stages of a draft whose results go to a target; all stages if a target names an unknown one."""
    names = [s.name for s in values["stages"]]
    targets = [*(values.get("targets") or ()), *([values["target"]] if values.get("target") is not None else [])]
    published = dict.fromkeys(t.from_ or names[-1] for t in targets) or (names[-1],)
    return tuple(published) if set(published) <= set(names) else tuple(names)


def _shared_locations(placed: Sequence[tuple[str, Target]], connections: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield a problem for targets that write to the same location. Each would treat the other's rows as its own."""
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
                f"writes to the same location as {first} ({format_value(next(p for p in location if p))}); give each target its own location",
            )


def iterate_targets(values: Values) -> Iterator[tuple[str, Values]]:
    """Yield, for each target, its key in the config and the draft with only that target.

    In the draft, `transform` is the stage whose results the target receives.
    """
    stages = {s.name: s for s in values.get("stages") or ()}
    for path, target in list_targets_with_keys(values):
        named_stage = stages.get(target.from_) if target.from_ is not None else None
        stage = named_stage or (values["stages"][-1] if values.get("stages") else values.get("transform"))
        yield path, {**values, "target": target, **({} if stage is None else {"transform": stage})}
