"""Build a pipeline around a single step for `LocalPipeline`, and accept the old names of that class's options."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from slackwater.config.connection import DeltaConnection, FilesConnection, KafkaConnection
from slackwater.config.pipeline import Pipeline
from slackwater.config.source import Source
from slackwater.config.stage import Stage, Transform
from slackwater.config.step_base import StepBase
from slackwater.config.target import StateStore, Target
from slackwater.config.window import Window
from slackwater.core.schema import ANYTHING, YEARS, ValueLimits, find_value_limits
from slackwater.operators.base import Operator

_TOPIC = KafkaConnection(bootstrap_servers="none")

RENAMED = {"listen": "capture_losses", "watch": "extra_stages"}


def rename_options(renamed: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    """Return the options of a `LocalPipeline`: `options`, overridden by those passed under old names (`renamed`).

    Raises:
        TypeError: A name in `renamed` is not an old name of an option.
    """
    for name, value in renamed.items():
        if name not in RENAMED:
            raise TypeError(f"LocalPipeline: there is no option {name!r}")
        warnings.warn(f"LocalPipeline: {name} is now called {RENAMED[name]}", DeprecationWarning, stacklevel=3)
        options[RENAMED[name]] = value
    return options


def _default_target(step: StepBase, upserts: bool) -> Target:
    """Return the config of a target that replaces rows if `upserts`, and otherwise appends them.

    A step with column names that Delta tables do not support gets a Kafka topic.
    """
    names = [*step.group_by, *(a.as_ or "" for a in step.aggregations)] if isinstance(step, Window) else []
    if upserts and any(set(" ,;{}()\n\t=") & set(name) for name in names):
        return Target(connection="topic", topic="out")
    return Target(connection="table", path="out", mode="merge" if upserts else "append")


def build_pipeline(
    step: StepBase,
    sources: Sequence[str],
    lateness_ms: Mapping[str, int] | None = None,
    name: str = "law",
    on_error: str = "drop",
    upserts: bool = True,
    downstream: Window | None = None,
    transform_type: type[Transform] = Transform,
) -> Pipeline:
    """Build a pipeline around a step.

    Args:
        step: The window, join or other step.
        sources: The names of its sources.
        lateness_ms: The lateness of each source whose lateness differs from that of the step, in milliseconds.
        name: The name of the pipeline.
        on_error: What happens to bad rows.
        upserts: Whether the target replaces rows.
        downstream: A window that reads the results of the step.
        transform_type: The class of the config table that contains the step.
    """
    keeps_letters = on_error == "dlq" or step.late_data in ("dlq", "reopen")
    described: dict[str, Any] = {step.table: step}
    upserts = upserts and (downstream is not None or isinstance(step, Window))
    if downstream is not None:
        stages = (Stage(name="first", on_error=on_error, **described), Stage(name="second", window=downstream))
    letters = Target(connection="lake", path="letters") if keeps_letters else None
    return Pipeline(
        name=name,
        sources=tuple(Source(name=s, dataframe=object(), lateness_ms=(lateness_ms or {}).get(s)) for s in sources),
        transform=transform_type(**described, on_error=on_error) if downstream is None else None,
        stages=None if downstream is None else stages,
        target=_default_target(step if downstream is None else downstream, upserts),
        connections={"table": DeltaConnection(), "lake": FilesConnection(), "topic": _TOPIC},
        dead_letter=letters,
        state_store=StateStore(kind="files", path="state"),
    )


# -- changes to a pipeline -----------------------------------------------------------------------------------------------


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
