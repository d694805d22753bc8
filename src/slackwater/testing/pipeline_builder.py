"""A whole pipeline around a window or a join that a test describes: sources are scripted, target and store are the test's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slackwater.config.connection import DeltaConnection, FilesConnection, KafkaConnection
from slackwater.config.pipeline import Pipeline
from slackwater.config.source import Source
from slackwater.config.step_spec import StepSpec
from slackwater.config.target import StateStore, Target
from slackwater.config.transform import Stage, Transform
from slackwater.config.window import Window

_TOPIC = KafkaConnection(bootstrap_servers="none")


def _described_as(step: StepSpec, upserts: bool) -> Target:
    """A target that does what the kit's own does; columns of a Delta table cannot have every name, those of a message can."""
    names = [*step.group_by, *(a.as_ or "" for a in step.aggregations)] if isinstance(step, Window) else []
    if upserts and any(set(" ,;{}()\n\t=") & set(name) for name in names):
        return Target(connection="topic", topic="out")
    return Target(connection="table", path="out", mode="merge" if upserts else "append")


def pipeline_for(
    step: StepSpec,
    sources: Sequence[str],
    lateness_ms: Mapping[str, int] | None = None,
    name: str = "law",
    on_error: str = "drop",
    upserts: bool = True,
    downstream: Window | None = None,
    transform_type: type[Transform] = Transform,
) -> Pipeline:
    """A pipeline over scripted sources; its target and store are the kit's own. `transform_type`: what has the table of the step."""
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
        # the kit's own replaces rows, or adds them, as this one would
        target=_described_as(step if downstream is None else downstream, upserts),
        connections={"table": DeltaConnection(), "lake": FilesConnection(), "topic": _TOPIC},
        dead_letter=letters,
        state_store=StateStore(kind="files", path="state"),
    )


__all__ = ["pipeline_for"]
