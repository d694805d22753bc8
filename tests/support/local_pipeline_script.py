"""Run a script of steps on a `LocalPipeline`. Property tests generate such scripts.

    script = [MicroBatch({"a": [{"ts": 0, "user": "u"}]}), DriverCrash("commit.before"), QuietInterval(500)]
    result = run_local_script(window, script, schema={"user": "string"}, sources=("a",))

A `MicroBatch` is one micro-batch of all sources. A `DriverCrash` is armed for the next epoch: the driver crashes at
that step and restarts with the same store and target. The batch is then repeated, as Spark repeats an unfinished batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict, Unpack

import polars as pl

from slackwater.config.pipeline import Pipeline
from slackwater.config.stage import Transform
from slackwater.config.step_base import StepBase
from slackwater.config.window import Window
from slackwater.engine.kill_points import KILL_POINTS
from slackwater.state import protocol
from slackwater.testing.local_pipeline import LocalPipeline
from slackwater.testing.memory_target import LocalResult, SimulatedCrash
from slackwater.testing.pipeline_setup import build_pipeline


@dataclass(frozen=True)
class MicroBatch:
    """One micro-batch.

    Args:
        rows: Rows by source, in arrival order. `ts` is in microseconds.
        partitions: All partitions of each source that has partitions. A row states its partition in `partition`.
        took_ms: How long the epoch takes on the virtual clock.
    """

    rows: Mapping[str, Sequence[Mapping[str, Any]]]
    partitions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    took_ms: int = 0


@dataclass(frozen=True)
class QuietInterval:
    """Interval of `ms` milliseconds in which sources do not return rows."""

    ms: int


@dataclass(frozen=True)
class DeadLetterReplay:
    """Apply at most `limit` of the current dead letters. `dry`: a dry run."""

    limit: int | None = None
    dry: bool = False


@dataclass(frozen=True)
class DriverCrash:
    """Crash the next epoch at this step (see KILL_POINTS). `shards`: the new number of shards after the restart."""

    step: str
    shards: int | None = None


@dataclass(frozen=True)
class PipelineRestart:
    """Stop and start again with the same state. Fields that are not None change. `target` names another target."""

    step: StepBase | None = None
    shards: int | None = None
    sources: Sequence[str] | None = None
    downstream: Window | None = None
    target: str | None = None


class LocalScriptOptions(TypedDict, total=False):
    """Arguments of `build_pipeline` and `LocalPipeline` that `run_local_script` passes on."""

    lateness_ms: Mapping[str, int] | None
    on_error: str
    upserts: bool
    transform_type: type[Transform]
    shards: int
    clock_us: int
    store: Callable[[], protocol.StateStore] | None
    state_dir: str | None
    letters: Sequence[Mapping[str, Any]]
    on_publish: Callable[[pl.DataFrame], None] | None


_OF_CONFIG = ("lateness_ms", "on_error", "upserts", "transform_type")


def run_local_script(
    step: StepBase,
    script: Sequence[MicroBatch | QuietInterval | DriverCrash | DeadLetterReplay | PipelineRestart],
    schema: Mapping[str, str],
    sources: Sequence[str] = ("a",),
    *,
    flush: bool = True,
    reshard_after: int | tuple[int, int] | None = None,
    downstream: Window | None = None,
    **options: Unpack[LocalScriptOptions],
) -> LocalResult:
    """Run a script, and flush at its end unless `flush` is False.

    Both sides of a join have the same schema.

    Args:
        step: The step under test.
        script: The items to run.
        schema: The columns of all sources.
        sources: The names of the sources.
        reshard_after: The index of the item after which the pipeline restarts, and the number of shards (default 3).
        downstream: A window over the step's results.
        options: The arguments of `build_pipeline` and `LocalPipeline` in `LocalScriptOptions`.

    Raises the errors that a start raises, also for a `PipelineRestart`.
    """

    local_options: dict[str, Any] = dict(options)
    config_options = {name: local_options.pop(name) for name in _OF_CONFIG if name in local_options}
    reshard_item, new_shards = reshard_after if isinstance(reshard_after, tuple) else (reshard_after, 3)

    def described() -> Pipeline:
        return build_pipeline(step, sources, downstream=downstream, **config_options)

    test = LocalPipeline(described(), schema, capture_losses=False, **local_options)
    epochs = []
    with test:
        for index, item in enumerate(script):
            if isinstance(item, DriverCrash):
                test.crash(item.step, item.shards)
            elif isinstance(item, PipelineRestart):
                step, sources = item.step or step, item.sources or sources
                downstream = item.downstream or downstream
                test.restart(described(), shards=item.shards, target=item.target)
            elif isinstance(item, DeadLetterReplay):
                test.replay(item.limit, item.dry)
            elif isinstance(item, QuietInterval):
                test.quiet(item.ms)
            else:
                test.pipe(item.rows, partitions=item.partitions, took_ms=item.took_ms)
            if index == reshard_item:
                test.restart(shards=new_shards)
            epochs.append(test.epoch)
        if flush:
            test.flush()
        result = test.result()
        result.epochs = epochs
        return result


__all__ = [
    "KILL_POINTS",
    "DeadLetterReplay",
    "DriverCrash",
    "LocalResult",
    "MicroBatch",
    "PipelineRestart",
    "QuietInterval",
    "SimulatedCrash",
    "build_pipeline",
    "run_local_script",
]
