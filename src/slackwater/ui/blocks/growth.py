"""Block "How large is the state?": the rows and bytes in each kept commit, and the rows by shard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from slackwater.core.humanize import format_brief, format_size
from slackwater.maintenance.history import count_open_windows
from slackwater.state.commit import Commit, StageState
from slackwater.ui.svg import Axis, draw_trace


@dataclass(frozen=True)
class SizePoint:
    """The size of the state in one commit. `open`: the number of open windows, or of rows buffered in a join."""

    epoch: int
    committed_us: int
    rows: int
    bytes: int
    open: int


@dataclass(frozen=True)
class ShardSpread:
    """The number of rows in each shard of a stage. `skew`: the rows of the largest shard divided by the mean."""

    stage: str
    rows: tuple[int, ...]
    skew: float


@dataclass(frozen=True)
class StateGrowth:
    """The size of the state in each kept commit, oldest first, and the rows by shard in the latest commit."""

    commits: tuple[SizePoint, ...]
    shards: tuple[ShardSpread, ...] = ()


def build_growth(commits: Sequence[Commit]) -> StateGrowth:
    """Build the block "How large is the state?" from the kept commits, oldest first."""
    return StateGrowth(
        tuple(SizePoint(m.epoch, m.committed_us, _rows(m), m.state_bytes, count_open_windows(m)) for m in commits),
        tuple(_spread(stage) for stage in commits[-1].stages),
    )


def _spread(stage: StageState) -> ShardSpread:
    rows = tuple(sum(m.rows for m in shard if not m.kind.endswith(("+", "-"))) for shard in stage.segments)
    return ShardSpread(stage.name, rows, max(rows) * len(rows) / sum(rows) if sum(rows) else 1.0)


def _rows(commit: Commit) -> int:
    return sum(m.rows for m in commit.metas)


LEFT, TOP, BOTTOM = 78, 14, 130


def draw_size(block: StateGrowth) -> Markup:
    """Draw the size of the state in bytes over the kept commits."""
    series = [(c.epoch, c.committed_us, c.bytes) for c in block.commits]
    return _draw(series, format_size, "Size of the state in bytes, over the kept commits", "trace")


def draw_rows(block: StateGrowth) -> Markup:
    """Draw the number of rows in the state over the kept commits."""
    series = [(c.epoch, c.committed_us, c.rows) for c in block.commits]
    return _draw(series, format_brief, "Rows in the state, over the kept commits", "trace second")


def _draw(
    series: Sequence[tuple[int, int, int]], format_value: Callable[[float], str], label: str, class_: str
) -> Markup:
    most = max(value for _, _, value in series)
    up, labeled = Axis(0, max(most * 11 // 10, 1), BOTTOM, TOP), sorted({0, most})
    return draw_trace(label, series, up, LEFT, format_value, labeled=labeled, height=BOTTOM + 26, class_=class_)
