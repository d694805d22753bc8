"""How big will it be? Rows and bytes of the kept commits, and the straight line through them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slackwater.maintenance.history import open_windows
from slackwater.maintenance.sizes import HOUR_US, LARGE, forecast_growth
from slackwater.state.commit import Commit, StageState


@dataclass(frozen=True)
class SizePoint:
    """A kept commit. `rows`: of the state; `open`: windows, or rows that wait in a join."""

    epoch: int
    committed_us: int
    rows: int
    bytes: int
    open: int


@dataclass(frozen=True)
class ShardSpread:
    """The rows of a stage in each of its shards, and how many times the mean the fullest one holds."""

    stage: str
    rows: tuple[int, ...]
    skew: float


@dataclass(frozen=True)
class StateGrowth:
    """The block. `bytes_per_hour`: None where they span less than an hour; `full_us`: when it holds `bound` bytes, if it grows."""

    commits: tuple[SizePoint, ...]
    bytes_per_hour: float | None
    bound: int
    full_us: int | None
    shards: tuple[ShardSpread, ...] = ()


def build_growth(commits: Sequence[Commit]) -> StateGrowth:
    """From the kept commits, oldest first."""
    trend = forecast_growth(commits)
    full = None
    if trend is not None and trend.hours is not None and trend.hours < 24 * 365 * 100:
        full = commits[-1].committed_us + int(trend.hours * HOUR_US)
    return StateGrowth(
        tuple(SizePoint(m.epoch, m.committed_us, _rows(m), m.state_bytes, open_windows(m)) for m in commits),
        None if trend is None else trend.bytes_per_hour,
        LARGE,
        full,
        tuple(_spread(stage) for stage in commits[-1].stages),
    )


def _spread(stage: StageState) -> ShardSpread:
    rows = tuple(sum(m.rows for m in shard if not m.kind.endswith(("+", "-"))) for shard in stage.segments)
    return ShardSpread(stage.name, rows, max(rows) * len(rows) / sum(rows) if sum(rows) else 1.0)


def _rows(commit: Commit) -> int:
    return sum(m.rows for m in commit.metas)
