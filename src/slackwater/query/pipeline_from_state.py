"""Rebuild a pipeline from its description in the state.

The result is sufficient to inspect the state, but not to run the pipeline: a commit contains the names and lateness of
sources, but no queries, SQL, targets or secrets.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from slackwater.config.connection import DeltaConnection, FilesConnection
from slackwater.config.custom_aggregator import forbid_imports
from slackwater.config.pipeline import Pipeline
from slackwater.config.source import Source
from slackwater.config.spec_base import spec_from_data
from slackwater.config.stage import Stage, Transform
from slackwater.config.step_base import effective_allowed_lateness_ms
from slackwater.config.target import StateStore, Target
from slackwater.errors import ConfigError, StateError, Topic
from slackwater.state.commit import Commit, StageState


def rebuild_pipeline(commit: Commit) -> Pipeline:
    """Rebuild the pipeline of a commit. Raises StateError if the state does not describe its window or join."""
    try:
        with forbid_imports():
            steps = [_step_argument(commit.pipeline, stage) for stage in commit.stages]
            if not all(steps):
                raise StateError(_missing_description(commit), Topic.STATE_OF_OTHER_CONFIG)
            return _pipeline(commit, steps)
    except ConfigError as error:
        raise StateError(
            f"{_missing_description(commit)} ({'; '.join(error.problems)})", Topic.STATE_OF_OTHER_CONFIG
        ) from None


def _step_argument(pipeline: str, stage: StageState) -> dict[str, Any]:
    """Return the step of a stage as a keyword argument; empty if the state does not describe the step."""
    where, kind = f"state of {pipeline}", stage.fingerprint.get("kind")
    for name, spec in Transform.STEPS.items():
        if name in stage.described:
            return {name: spec_from_data(spec, stage.described[name], where)}
        if kind == name and "step" in stage.described:
            return {name: spec_from_data(spec, stage.described["step"], where)}
    if kind == "rows":
        return {"sql": "SELECT * FROM source"}  # a placeholder: the SQL is not in the state
    return {}


def _missing_description(commit: Commit) -> str:
    return (
        f"{commit.pipeline}: the state in epoch {commit.epoch} does not describe its window or join; "
        "pass the file of the config instead"
    )


def _pipeline(commit: Commit, steps: list[dict[str, Any]]) -> Pipeline:
    several = len(steps) > 1
    sources = tuple(
        Source(name=n, dataframe=object(), lateness_ms=_lateness_ms(commit, steps, n)) for n in commit.sources
    )
    return Pipeline(
        name=commit.pipeline,
        sources=sources,
        transform=None if several else Transform(on_error="dlq", **steps[0]),
        stages=tuple(_stages(commit, steps)) if several else None,
        **_targets(commit, steps),
        connections={"table": DeltaConnection(), "lake": FilesConnection()},
        dead_letter=Target(connection="lake", path="letters"),
        state_store=StateStore(kind="files", path="state"),
    )


def _lateness_ms(commit: Commit, steps: list[dict[str, Any]], source: str) -> int | None:
    """Return the lateness that the stages recorded for a source (ms); None if they recorded different values."""
    lateness_values = set()
    for stage, step in zip(commit.stages, steps, strict=True):
        window, of_us = step.get("window"), stage.counters.get("lateness", {}).get("of_us", {})
        final_wait_us = 0 if window is None or window.emit != "final" else 1000 * effective_allowed_lateness_ms(window)
        if source in of_us:
            lateness_values.add(max(of_us[source] - final_wait_us, 0) // 1000)
    return lateness_values.pop() if len(lateness_values) == 1 else None


def _stages(commit: Commit, steps: list[dict[str, Any]]) -> Iterator[Stage]:
    """Yield the stages with their inputs.

    If a side of a join is a stateless stage that is not in the state, a placeholder with its name precedes the join.
    """
    names = [*commit.sources]
    for stage, step in zip(commit.stages, steps, strict=True):
        read, join = tuple(stage.clocks), step.get("join")
        sides = () if join is None else tuple(s for s in join.sources if s)
        for side in sides:
            if side not in names:
                names.append(side)
                origins = tuple(n for n in read if n not in sides) or read
                yield Stage(name=side, sql="SELECT * FROM source", from_=origins, on_error="dlq")
        names.append(stage.name)
        if read and not sides:  # a join names its inputs itself
            step = {**step, "from_": read}
        yield Stage(name=stage.name, on_error="dlq", **step)


def _targets(commit: Commit, steps: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a target for each stage that no other stage reads."""
    read = {n for s in commit.stages for n in s.clocks}
    ends = [(s.name, step) for s, step in zip(commit.stages, steps, strict=True) if s.name not in read]
    targets = tuple(
        Target(
            **({"from_": name, "name": f"t{n}"} if ends[1:] else {}),  # type: ignore[arg-type]
            connection="table",
            path=f"out{n}",
            mode="merge" if "window" in step else "append",
        )
        for n, (name, step) in enumerate(ends)
    )
    return {"targets": targets} if targets[1:] else {"target": targets[0]}
