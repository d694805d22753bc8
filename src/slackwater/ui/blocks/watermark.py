"""Who holds the watermark? A lane per source and partition, and how far the watermark was behind the clock, commit by commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slackwater.query.why import Clock, Why
from slackwater.state.commit import Commit
from slackwater.watermark import NO_WATERMARK


@dataclass(frozen=True)
class Lane:
    """A source (`partition` is None), or one of its partitions; µs. `since_us`: when its last row was, by the engine's clock."""

    source: str
    partition: str | None
    newest_us: int | None
    lateness_us: int
    watermark_us: int | None
    idle: bool
    quiet_us: int
    since_us: int
    holds: bool


@dataclass(frozen=True)
class Behind:
    """A kept commit: the clock at it, and how far the watermark was behind that; None before there is a watermark."""

    epoch: int
    committed_us: int
    behind_us: int | None


@dataclass(frozen=True)
class Watermark:
    """The block."""

    watermark_us: int | None
    lanes: tuple[Lane, ...]
    behind: tuple[Behind, ...]


def watermark(why: Why, kept: Sequence[Commit]) -> Watermark:
    """From the answer of `why`, and the kept commits, oldest first."""
    return Watermark(
        why.watermark_us,
        tuple(_lane(c, why) for c in why.clocks),
        tuple(Behind(m.epoch, m.committed_us, _behind(m)) for m in kept),
    )


def _lane(c: Clock, why: Why) -> Lane:
    return Lane(
        c.source,
        c.partition,
        c.max_event_us,
        c.lateness_us,
        c.watermark_us,
        c.idle,
        c.quiet_us,
        why.committed_us - c.quiet_us,
        c == why.holder,
    )


def _behind(commit: Commit) -> int | None:
    at = commit.watermark_us
    return None if at <= NO_WATERMARK else commit.committed_us - at
