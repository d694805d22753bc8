"""The paths of rows through a pipeline: which source or stage each step reads, and through which stateless stages.

    clicks ──▶ paid (SQL) ──▶ per_minute ──▶ top (SQL) ──▶ target
               part of its    a step with    a step, because a
               reader         state          target gets its rows

A stateless stage that is read only by other stages does not run on its own. Its SQL runs at the beginning of each step
that reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from slackwater.config.stage import Stage


@dataclass(frozen=True)
class InputPath:
    """A path by which rows reach a step.

    `name`: the step's name for this input. `origin`: the source, or the stage with state, that the rows come from.
    `through`: the stateless stages in between, in dataflow order.
    """

    name: str
    origin: str
    through: tuple[Stage, ...] = ()

    def passes(self, stage: str | None) -> bool:
        """Return whether this path passes through the stateless stage of this name. True for None, the step at its end."""
        return stage is None or any(s.name == stage for s in self.through)

    def upstream_of(self, stage: str | None) -> tuple[str, ...]:
        """Return the names of the origin and of the stages that rows pass through before a stage on this path.

        If `stage` is None, these are all stages before the step at the end of the path.
        """
        names = [s.name for s in self.through]
        return (self.origin, *(names if stage is None else names[: names.index(stage)]))

    @property
    def key(self) -> str:
        """A string that identifies the path among those of the same step."""
        return " > ".join((self.origin, *(s.name for s in self.through)))


def stage_inputs(stages: Sequence[Stage], sources: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the inputs of each stage, by name.

    By default, a join reads its two sides, the first stage reads all sources, and any other stage reads the stage above
    it.
    """
    inputs: dict[str, tuple[str, ...]] = {}
    before = tuple(sources)
    for stage in stages:
        join = stage.join
        sides = None if join is None else tuple(n for n in join.sources if n)
        inputs[stage.name] = tuple(stage.from_) or sides or before
        before = (stage.name,)
    return inputs


def executed_stages(stages: Sequence[Stage], shown: Iterable[str]) -> list[Stage]:
    """Return the stages that run: those with state, and those of SQL whose rows go to a target (`shown`)."""
    needed = set(shown)
    return [s for s in stages if not s.is_stateless or s.name in needed]


def input_paths(stage: Stage, stages: Sequence[Stage], read: Mapping[str, Sequence[str]]) -> tuple[InputPath, ...]:
    """Return all paths by which rows reach a stage."""
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
