"""Block "How big will it be?": rows and bytes of the kept commits, and a linear trend through them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slackwater.maintenance.history import open_windows
from slackwater.maintenance.sizes import HOUR_US, LARGE, forecast_growth
from slackwater.state.commit import Commit, StageState


@dataclass(frozen=True)
class SizePoint:
    """Size of the state in a kept commit. `open`: open windows, or rows that wait in a join."""

    epoch: int
    committed_us: int
    rows: int
    bytes: int
    open: int


@dataclass(frozen=True)
class ShardSpread:
    """Rows of a stage in each of its shards. `skew`: rows of the fullest shard divided by the mean."""

    stage: str
    rows: tuple[int, ...]
    skew: float


@dataclass(frozen=True)
class StateGrowth:
    """The block.

    Args:
        bytes_per_hour: growth of the state; None if the commits span less than an hour.
        bound: a large size in bytes.
        full_us: when the state will reach `bound` (µs UTC); None if it does not grow.
    """

    commits: tuple[SizePoint, ...]
    bytes_per_hour: float | None
    bound: int
    full_us: int | None
    shards: tuple[ShardSpread, ...] = ()


def build_growth(commits: Sequence[Commit]) -> StateGrowth:
    """Build the block from the kept commits, oldest first."""
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
