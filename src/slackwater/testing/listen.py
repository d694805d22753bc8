"""A pipeline as a test runs it: what it would drop is heard, what its target cannot hold is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slackwater.config.connection import FilesConnection
from slackwater.config.join import Join
from slackwater.config.pipeline import Pipeline
from slackwater.config.target import Target
from slackwater.config.window import Window
from slackwater.core.capacity import ANYTHING, YEARS, Capacity, capacity_of
from slackwater.operators.base import Operator


def capacities(pipeline: Pipeline, operators: Mapping[str, Operator]) -> dict[str, Capacity]:
    """What each target, with the state store that a config names, can hold of a row's values; `operators`: by stage."""
    from slackwater.runner.assemble import targets_of

    store = pipeline.state_store
    held = Capacity(False, YEARS, state=True) if store is not None and store.kind == "postgres" else ANYTHING
    return {name: held & capacity_of(target) for name, target in targets_of(pipeline, operators).items()}


def listening(pipeline: Pipeline) -> Pipeline:
    """The same pipeline, of which late and bad rows become letters, whatever it does with them."""
    found = pipeline.transform
    step: Window | Join = found.step
    update: dict[str, Any] = {"on_error": "dlq"} if found.on_error == "drop" else {}
    if step.late_data == "drop":
        update["join" if isinstance(step, Join) else "window"] = step.model_copy(update={"late_data": "dlq"})
    if pipeline.dead_letter is not None and not update:
        return pipeline
    kept = {"dead_letter": pipeline.dead_letter or Target(connection=FilesConnection(), path="letters")}
    transform = found.model_copy(update=update)
    stages = (transform, *pipeline.stages[1:]) if pipeline.stages else ()
    return pipeline.model_copy(update={"transform": transform, "stages": stages, **kept})


__all__ = ["capacities", "listening"]
