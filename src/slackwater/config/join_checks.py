"""Checks of a join against the rest of its pipeline: the sources it names, and where its rows go. See `checks`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from slackwater.config.checks import resolve
from slackwater.config.spec import Problem, Values
from slackwater.config.spelling import nearest, show

if TYPE_CHECKING:
    from slackwater.config.join import Join
    from slackwater.config.target import Target


def _join(values: Values) -> Join | None:
    transform = values.get("transform")
    return None if transform is None or transform.window is not None else transform.join


def check_join(values: Values) -> Iterator[Problem]:
    """A join reads two sources, by name, and no others."""
    join, sources = _join(values), values.get("sources", ())
    if join is None or not sources:
        return
    if len(sources) == 1:
        yield "sources", "found 1, expected 2: the sides of the join, whose names left_source and right_source give"
        return
    names = [s.name for s in sources if s.name]
    given = {key: getattr(join, key) for key in ("left_source", "right_source") if getattr(join, key) is not None}
    unknown = {key: name for key, name in given.items() if name not in names}
    undecided = bool(unknown) or len(set(given.values())) < 2 or len(names) < len(sources)
    for key, name in unknown.items():
        if len(names) == len(sources):
            yield f"{join.AT}.{key}", f"found {show(name)}, which is no source{nearest(name, names)}"
    for i, source in enumerate(sources):
        if not undecided and source.name not in given.values():
            yield (
                f"sources[{i}]",
                f"{show(source.name)} is neither side of the join; remove it, or give it a pipeline of its own",
            )


def check_only_added(values: Values) -> Iterator[Problem]:
    """Joined rows are pairs, equal ones too: nothing tells them apart, so they replace nothing."""
    target: Target | None = values.get("target")
    if _join(values) is None or target is None or target.mode != "merge":
        return
    found = resolve(target.connection, values.get("connections", {}))
    if found is not None and found.kind == "delta":  # of another kind it has no mode at all
        yield (
            "target.mode",
            '"merge" replaces rows of equal identity, which joined rows do not have; use "append" (the default for a join)',
        )


def check_stages(values: Values, wrong: set[str]) -> Iterator[Problem]:
    """Stages run in a row: a join, and a window over what it emits."""
    stages = values["stages"]
    if "transform" in values:
        yield "stages", "given beside [transform]; a pipeline is one transform or several stages: remove one of them"
    if len(stages) < 2:
        yield "stages", "found 1; a single one is written as [transform]"
        return
    if "stages" in wrong:
        return
    for name, times in Counter(s.name for s in stages).items():
        if times > 1:
            yield "stages", f"{times} stages are called {show(name)}; give each its own name"
    if len(stages) > 2 or stages[0].join is None or stages[1].window is None:
        found = ", ".join("a join" if s.join is not None else "a window" for s in stages)
        yield "stages", f"found {found}; available are a join and then a window"
        return
    join, window = stages[0].join, stages[1].window
    if join.late_data == "reopen":
        yield (
            "stages[0].join.late_data",
            '"reopen" is for the last stage only; raise lateness_ms to wait longer for late rows',
        )
    if window.late_data == "dlq":
        yield "stages[1].window.late_data", 'what a join emits is never late; "dlq" belongs to the join'
    if stages[1].lookups:
        yield "stages[1].lookups", "lookups are for the first stage only; join them in left_sql or right_sql"
