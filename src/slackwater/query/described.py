"""The pipeline of a state as the state itself describes it: enough to look into it, not to run it.

Sources are known by name and lateness; their queries, SQL, target and secrets are in no commit.
"""

from __future__ import annotations

from typing import Any

from slackwater.config.aggregator import without_imports
from slackwater.config.connection import DeltaConnection, FilesConnection
from slackwater.config.data import from_data
from slackwater.config.join import Join
from slackwater.config.pipeline import Pipeline
from slackwater.config.source import Source
from slackwater.config.step import allowed_ms
from slackwater.config.target import StateStore, Target
from slackwater.config.transform import Stage, Transform
from slackwater.config.window import Window
from slackwater.engine import fold
from slackwater.errors import ConfigError, StateError
from slackwater.state.commit import Commit, StageState


def pipeline_in(commit: Commit) -> Pipeline:
    """Raises StateError where the state does not describe its window or join."""
    try:
        with without_imports():
            steps = [_step(commit.pipeline, stage) for stage in commit.stages]
            if not all(steps):
                raise StateError(_undescribed(commit))
            return _pipeline(commit, steps)
    except ConfigError as error:
        raise StateError(f"{_undescribed(commit)} ({error})") from None


def _step(pipeline: str, stage: StageState) -> dict[str, Any]:
    """The argument of a stage."""
    for name, spec in (("window", Window), ("join", Join)):
        if name in stage.described:
            return {name: from_data(spec, stage.described[name], f"state of {pipeline}")}
    if stage.fingerprint.get("kind") == "rows":
        return {"sql": "SELECT * FROM source"}  # whatever it says: nothing of it is in the state
    return {}


def _undescribed(commit: Commit) -> str:
    return (
        f"{commit.pipeline}: the state in epoch {commit.epoch} does not describe its window or join; "
        "name the config's file instead"
    )


def _pipeline(commit: Commit, steps: list[dict[str, Any]]) -> Pipeline:
    window, more = steps[0].get("window"), steps[1:]
    waits = 0 if window is None or window.emit != "final" else 1000 * allowed_ms(window)
    of_us = fold.counters(commit).lateness.get("of_us", {})
    sources = tuple(
        Source(name=n, dataframe=object(), lateness_ms=max(of_us[n] - waits, 0) // 1000 if n in of_us else None)
        for n in commit.sources
    )
    stages = tuple(Stage(name=s.name, on_error="dlq", **step) for s, step in zip(commit.stages, steps, strict=True))
    return Pipeline(
        name=commit.pipeline,
        sources=sources,
        transform=None if more else Transform(on_error="dlq", **steps[0]),
        stages=stages if more else None,
        target=Target(connection="table", path="out", mode="merge" if "window" in steps[-1] else "append"),
        connections={"table": DeltaConnection(), "lake": FilesConnection()},
        dead_letter=Target(connection="lake", path="letters"),
        state_store=StateStore(kind="files", path="state"),
    )
