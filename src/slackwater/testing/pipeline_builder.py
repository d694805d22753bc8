"""Build a pipeline around a single step for `LocalPipeline`, and accept the old names of that class's options."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from slackwater.config.connection import DeltaConnection, FilesConnection, KafkaConnection
from slackwater.config.pipeline import Pipeline
from slackwater.config.source import Source
from slackwater.config.stage import Stage, Transform
from slackwater.config.step_base import StepBase
from slackwater.config.target import StateStore, Target
from slackwater.config.window import Window

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


__all__ = ["build_pipeline"]
