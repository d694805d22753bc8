"""A whole script for a `LocalPipeline` at once, as our own laws draw them.

    result = run_local(window, [Rows({"a": [{"ts": 0, "user": "u"}]}), Crash("commit.before"), Quiet(500)],
                       schema={"user": "string"}, sources=("a",))

One `Rows` is one micro-batch of all sources. A `Crash` is armed for the next epoch: the driver dies at that step, is
started again on the same store and target, and the batch is replayed as Spark would.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from slackwater.config.pipeline import Pipeline
from slackwater.config.step_spec import StepSpec
from slackwater.config.transform import Transform
from slackwater.config.window import Window
from slackwater.engine.kill_points import KILL_POINTS
from slackwater.state import protocol
from slackwater.testing.pipeline import LocalPipeline
from slackwater.testing.pipeline_builder import pipeline_for
from slackwater.testing.result import START_US, LocalResult, SimulatedCrash


@dataclass(frozen=True)
class RowsInput:
    """One micro-batch: rows per source, in arrival order; `ts` in microseconds.

    `partitions`: per source that has any, all partitions there are; `partition` of a row then names its own. `took_ms`: how
    long the epoch takes on the virtual clock.
    """

    rows: Mapping[str, Sequence[Mapping[str, Any]]]
    partitions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    took_ms: int = 0


@dataclass(frozen=True)
class Quiet:
    """The engine asks all sources and finds nothing for `ms` milliseconds."""

    ms: int


@dataclass(frozen=True)
class Replay:
    """Apply the dead letters there are by now, at most `limit` of them. `dry`: only find out."""

    limit: int | None = None
    dry: bool = False


@dataclass(frozen=True)
class Crash:
    """The next epoch dies at this step (see KILL_POINTS). `shards`: how many there are from the start after it, if others."""

    step: str
    shards: int | None = None


@dataclass(frozen=True)
class Restart:
    """The runner stops and starts again over the same state: with what is given here changed. `target`: the name of another."""

    step: StepSpec | None = None
    shards: int | None = None
    sources: Sequence[str] | None = None
    downstream: Window | None = None
    target: str | None = None


def run_local(
    step: StepSpec,
    script: Sequence[RowsInput | Quiet | Crash | Replay | Restart],
    schema: Mapping[str, str],
    sources: Sequence[str] = ("a",),
    shards: int = 2,
    flush: bool = True,
    state_dir: str | None = None,
    reshard_after: int | None = None,
    reshard_to: int = 3,
    lateness_ms: Mapping[str, int] | None = None,
    clock_us: int = START_US,
    store: Callable[[], protocol.StateStore] | None = None,
    upserts: bool = True,
    on_error: str = "drop",
    letters: Sequence[Mapping[str, Any]] = (),
    downstream: Window | None = None,
    on_publish: Callable[[pl.DataFrame], None] | None = None,
    transform_type: type[Transform] = Transform,
) -> LocalResult:
    """Run a script to its end, and flush. Raises what a start raises, which a `Restart` may make. `downstream`: a window over what the first step emits. Both sides of a join have one schema. `reshard_after`: restart with `reshard_to` shards after that script item.

    The rest is as in `LocalPipeline`; `upserts`: whether the target replaces rows, else superseded ones are among its rows. `transform_type`: what has the table of the step.
    """

    def described() -> Pipeline:
        return pipeline_for(
            step,
            sources,
            lateness_ms,
            on_error=on_error,
            upserts=upserts,
            downstream=downstream,
            transform_type=transform_type,
        )

    test = LocalPipeline(
        described(),
        schema,
        shards=shards,
        clock_us=clock_us,
        store=store,
        state_dir=state_dir,
        on_publish=on_publish,
        letters=letters,
        listen=False,
    )
    epochs = []
    with test:
        for index, item in enumerate(script):
            if isinstance(item, Crash):
                test.crash(item.step, item.shards)
            elif isinstance(item, Restart):
                step, sources = item.step or step, item.sources or sources
                downstream = item.downstream or downstream
                test.restart(described(), shards=item.shards, target=item.target)
            elif isinstance(item, Replay):
                test.replay(item.limit, item.dry)
            elif isinstance(item, Quiet):
                test.quiet(item.ms)
            else:
                test.pipe(item.rows, partitions=item.partitions, took_ms=item.took_ms)
            if index == reshard_after:
                test.restart(shards=reshard_to)
            epochs.append(test.epoch)
        if flush:
            test.flush()
        result = test.result()
        result.epochs = epochs
        return result


__all__ = [
    "KILL_POINTS",
    "Crash",
    "LocalResult",
    "Quiet",
    "Replay",
    "Restart",
    "RowsInput",
    "SimulatedCrash",
    "pipeline_for",
    "run_local",
]
