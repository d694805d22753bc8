"""Block "How did the runs end?": the recorded runs of a pipeline, newest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slackwater.state.run_history import KILLED, Run

OUTCOMES = {
    "finished": "read its sources to the end",
    "stopped": "was stopped",
    "restarted": "started again for new columns",
    "failed": "failed",
    "killed": KILLED,
    "running": "is running",
}


@dataclass(frozen=True)
class PastRun:
    """One run. Times are in microseconds since 1970 (UTC), and durations in microseconds.

    Args:
        ended_us: The end of the run; None if the run is in progress or was killed.
        lasted_us: The duration of the run; None if `ended_us` is None.
        outcome: The outcome, which is a key of OUTCOMES.
        said: The outcome as text.
        last_epoch: The last epoch that the run committed; None if it did not commit any.
        epochs: The number of epochs that the run committed.
    """

    started_us: int
    ended_us: int | None
    lasted_us: int | None
    runner: str
    outcome: str
    said: str
    first_epoch: int
    last_epoch: int | None
    epochs: int | None
    error: str | None


@dataclass(frozen=True)
class Runs:
    """The block "How did the runs end?".

    `runs`: the runs, newest first. `failure`: the latest run, if it failed or was killed and no runner is active.
    """

    runs: tuple[PastRun, ...]
    failure: PastRun | None


def build_runs(recorded: Sequence[Run], runner: str | None, epoch: int) -> Runs:
    """Build the block "How did the runs end?".

    Args:
        recorded: The runs, oldest first.
        runner: The active runner; None if no runner is active.
        epoch: The latest epoch.
    """
    nexts: list[Run | None] = [*recorded[1:], None]
    past_runs = [
        _past(run, epoch if next_run is None else next_run.epoch, next_run is None and runner is not None)
        for run, next_run in zip(recorded, nexts[: len(recorded)], strict=True)
    ]
    latest = past_runs[-1] if past_runs else None
    is_failure = runner is None and latest is not None and latest.outcome in ("failed", "killed")
    return Runs(tuple(reversed(past_runs)), latest if is_failure else None)


def _past(run: Run, epoch: int, may_run: bool) -> PastRun:
    """Convert a recorded run to a PastRun.

    `epoch`: the last epoch committed before the next run began. `may_run`: whether the run may still be in progress.
    """
    outcome = run.outcome or ("running" if may_run else "killed")
    last = epoch if run.last_epoch is None else run.last_epoch
    ended = run.ended_us
    return PastRun(
        run.started_us,
        ended,
        None if ended is None else max(ended - run.started_us, 0),
        run.runner,
        outcome,
        OUTCOMES[outcome],
        run.epoch + 1,
        last if last > run.epoch else None,
        max(last - run.epoch, 0),
        run.error,
    )
