"""Changes to a pipeline for tests: rows that it would drop become dead letters, and stage results become readable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from slackwater.config.connection import FilesConnection
from slackwater.config.pipeline import Pipeline
from slackwater.config.stage import Stage, Transform
from slackwater.config.target import Target
from slackwater.core.schema import ANYTHING, YEARS, ValueLimits, find_value_limits
from slackwater.operators.base import Operator

WATCHED = "~"  # prefix for the names of targets that only a test has


def find_target_limits(pipeline: Pipeline, operators: Mapping[str, Operator]) -> dict[str, ValueLimits]:
    """Return the limits that each target, together with the configured state store, sets on values.

    `operators`: the operators by stage.
    """
    from slackwater.runner.components import create_target_writers

    store = pipeline.state_store
    store_limits = (
        ValueLimits(False, YEARS, covers_state=True) if store is not None and store.kind == "postgres" else ANYTHING
    )
    real = {n: t for n, t in create_target_writers(pipeline, operators).items() if not n.startswith(WATCHED)}
    return {name: store_limits & find_value_limits(target) for name, target in real.items()}


_T = TypeVar("_T", Transform, Stage)


def _keep_losses(stage: _T) -> _T:
    """Return a stage that turns late and bad rows into dead letters instead of dropping them."""
    update: dict[str, Any] = {"on_error": "dlq"} if stage.on_error == "drop" else {}
    if not stage.is_stateless and stage.step.late_data == "drop":
        step = stage.step.model_copy(update={"late_data": "dlq"})
        update[step.table] = step
    return stage.model_copy(update=update)


def capture_dropped_rows(pipeline: Pipeline) -> Pipeline:
    """Return a pipeline in which all late and bad rows that the config drops become dead letters."""
    first = [
        name
        for name, stage_pipeline in pipeline.stage_pipelines.items()
        if not any(s.is_stage_output for s in stage_pipeline.sources)
    ]
    stages = tuple(_keep_losses(s) if s.name in first else s for s in pipeline.stages)
    reader = next((s for s in stages if s.name == getattr(pipeline.transform, "name", None)), None)
    transform = reader or _keep_losses(pipeline.transform)
    changed = transform != pipeline.transform or stages != pipeline.stages
    if pipeline.dead_letter is not None and not changed:
        return pipeline
    dead_letter = {"dead_letter": pipeline.dead_letter or Target(connection=FilesConnection(), path="letters")}
    return pipeline.model_copy(update={"transform": transform, "stages": stages, **dead_letter})


def watch_stages(pipeline: Pipeline, stages: Iterable[str]) -> Pipeline:
    """Return the pipeline with a target for each of these stages that has none, so that tests can read their results."""
    unwatched = [
        n
        for n in dict.fromkeys(stages)
        if n not in pipeline.published_stages and n in {s.name for s in pipeline.running_stages}
    ]
    if not unwatched:
        return pipeline
    more = [
        Target(connection=FilesConnection(), path=n).model_copy(update={"name": WATCHED + n, "from_": n})
        for n in unwatched
    ]
    return pipeline.model_copy(
        update={"targets": (*(target_pipeline.target for target_pipeline in pipeline.per_target.values()), *more)}
    )


__all__ = ["WATCHED", "capture_dropped_rows", "find_target_limits", "watch_stages"]
