"""Create commits, drivers and targets of one stage for tests."""

from __future__ import annotations

from typing import Any

from slackwater.engine.epoch_driver import EpochDriver
from slackwater.engine.observer import DriverCallbacks
from slackwater.engine.stage_runner import StageRunner
from slackwater.runner.component_factory import create_target_writers
from slackwater.state.commit import ClockRecord, Commit, SourceRecord, StageState

_OF_SOURCE = SourceRecord.model_fields.keys()


def build_single_stage_commit(epoch: int, **fields: Any) -> Commit:
    """Return a commit of one stage and one shard. Stage fields of `fields`, and source clocks, belong to the stage."""
    counters = fields.pop("counters", {})
    sources = {n: s if isinstance(s, dict) else s.model_dump() for n, s in fields.pop("sources", {}).items()}
    of_stage = {k: fields.pop(k) for k in StageState.model_fields.keys() & fields.keys()}
    stage = {"name": "transform", "fingerprint": {}, "segments": ((),), "groups": (0,), "windows": (0,), **of_stage}
    clocks = {n: {k: v for k, v in s.items() if k in ClockRecord.model_fields} for n, s in sources.items()}
    positions = {n: {k: v for k, v in s.items() if k in _OF_SOURCE} for n, s in sources.items()}
    stages = ({**stage, "clocks": clocks, "counters": counters},)
    common = {"pipeline": "p", "epoch": epoch, "committed_us": 1, "shards": len(stage["segments"])}
    return Commit.model_validate({**common, "stages": stages, "sources": positions, **fields})


def build_single_stage_driver(
    pipeline: Any, logic: Any, store: Any, target: Any, engine: Any, hooks: DriverCallbacks, letters: Any = None
) -> EpochDriver:
    """Return a driver of a pipeline whose only stage has this logic."""
    ((name, stage_pipeline),) = pipeline.stage_pipelines.items()
    stage = StageRunner(name, stage_pipeline, logic, store, engine, hooks.faults.in_worker)
    return EpochDriver(pipeline, [stage], store, dict.fromkeys(pipeline.per_target, target), hooks, letters)


def replace_stage_fields(commit: Commit, number: int = 0, **changed: Any) -> Commit:
    """Return the commit with changed fields in one of its stages."""
    stages = list(commit.stages)
    stages[number] = stages[number].model_copy(update=changed)
    return commit.model_copy(update={"stages": tuple(stages)})


def build_single_stage_target(pipeline: Any, logic: Any, state_id: str = "") -> Any:
    """Return the only target of a pipeline of one stage."""
    (target,) = create_target_writers(pipeline, dict.fromkeys(pipeline.stage_pipelines, logic), state_id).values()
    return target
