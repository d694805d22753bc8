"""How rows come to the steps of a pipeline: which source or stage each one reads, and through which stages of SQL.

    clicks ──▶ paid (SQL) ──▶ per_minute ──▶ top (SQL) ──▶ target
               part of what    a step with     a step of its own,
               reads it        state           since a target gets what it makes

A stage of SQL that is only read never runs by itself: its SQL is the beginning of the SQL of every step that reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from slackwater.config.transform import Stage


@dataclass(frozen=True)
class InputPath:
    """A way on which rows come to a step.

    `name`: what the step calls its input; `origin`: the source, or the stage with state, that the rows come from; `through`: the
    stages of SQL between the two, in the order in which rows pass them.
    """

    name: str
    origin: str
    through: tuple[Stage, ...] = ()

    def passes(self, stage: str | None) -> bool:
        """Whether a stage of SQL lies on it; None: the step itself."""
        return stage is None or any(s.name == stage for s in self.through)

    def upstream_of(self, stage: str | None) -> tuple[str, ...]:
        """What rows have behind them when they come to a stage that lies on it."""
        names = [s.name for s in self.through]
        return (self.origin, *(names if stage is None else names[: names.index(stage)]))

    @property
    def key(self) -> str:
        """Tells the ways of one step apart."""
        return " > ".join((self.origin, *(s.name for s in self.through)))


def stage_inputs(stages: Sequence[Stage], sources: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """What each stage reads, by name: what it says, else the sources (the first one) or the stage above it."""
    inputs: dict[str, tuple[str, ...]] = {}
    before = tuple(sources)
    for stage in stages:
        join = stage.join
        sides = None if join is None else tuple(n for n in join.sources if n)
        inputs[stage.name] = tuple(stage.from_) or sides or before
        before = (stage.name,)
    return inputs


def executed_stages(stages: Sequence[Stage], shown: Iterable[str]) -> list[Stage]:
    """The stages that run: those with state, and of SQL those whose rows a target gets (`shown`)."""
    needed = set(shown)
    return [s for s in stages if not s.is_stateless or s.name in needed]


def input_paths(stage: Stage, stages: Sequence[Stage], read: Mapping[str, Sequence[str]]) -> tuple[InputPath, ...]:
    """All ways on which rows come to a stage."""
    stages_by_name = {s.name: s for s in stages}
    paths: list[InputPath] = []
    for name in read[stage.name]:
        before = stages_by_name.get(name)
        if before is None or not before.is_stateless:
            paths.append(InputPath(name, name))
        else:
            paths += [InputPath(name, w.origin, (*w.through, before)) for w in input_paths(before, stages, read)]
    return tuple(paths)


__all__ = ["InputPath", "executed_stages", "input_paths", "stage_inputs"]
