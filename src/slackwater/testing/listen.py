"""A pipeline as a test runs it: what it would drop is heard, what its target cannot hold is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from slackwater.config.connection import FilesConnection
from slackwater.config.pipeline import Pipeline
from slackwater.config.target import Target
from slackwater.config.transform import Stage, Transform
from slackwater.core.capacity import ANYTHING, YEARS, Capacity, capacity_of
from slackwater.operators.base import Operator


def capacities(pipeline: Pipeline, operators: Mapping[str, Operator]) -> dict[str, Capacity]:
    """What each target, with the state store that a config names, can hold of a row's values; `operators`: by stage."""
    from slackwater.runner.assemble import targets_of

    store = pipeline.state_store
    held = Capacity(False, YEARS, state=True) if store is not None and store.kind == "postgres" else ANYTHING
    return {name: held & capacity_of(target) for name, target in targets_of(pipeline, operators).items()}


_T = TypeVar("_T", Transform, Stage)


def _listening(found: _T) -> _T:
    """What reads sources: no row of it is dropped unheard."""
    update: dict[str, Any] = {"on_error": "dlq"} if found.on_error == "drop" else {}
    if not found.is_rows and found.step.late_data == "drop":
        step = found.step.model_copy(update={"late_data": "dlq"})
        update[step.table] = step
    return found.model_copy(update=update)


def listening(pipeline: Pipeline) -> Pipeline:
    """The same pipeline, of which late and bad rows become letters, whatever it does with them."""
    first = [name for name, own in pipeline.alone.items() if not any(s.of_stage for s in own.sources)]
    stages = tuple(_listening(s) if s.name in first else s for s in pipeline.stages)
    reader = next((s for s in stages if s.name == getattr(pipeline.transform, "name", None)), None)
    transform = reader or _listening(pipeline.transform)
    changed = transform != pipeline.transform or stages != pipeline.stages
    if pipeline.dead_letter is not None and not changed:
        return pipeline
    kept = {"dead_letter": pipeline.dead_letter or Target(connection=FilesConnection(), path="letters")}
    return pipeline.model_copy(update={"transform": transform, "stages": stages, **kept})


__all__ = ["capacities", "listening"]
