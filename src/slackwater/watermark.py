"""Watermarks: a fold per source, and their minimum. Values in, values out; microseconds UTC.

events of a source   ──●────●──●───────●▶   max event time
                               ◀─lateness─┤
                     watermark of source  ▲
global = minimum over the sources that are not idle; never goes back

All sources idle, with `idle_close_ms` = ▒▒▒▒▒▒ (opt-in): the watermark runs on with the activity clock.

    last event of all    ●
    activity clock       ├──────▒▒▒▒▒▒───────────────▶   time in which the engine asked and found nothing
    global             ──┘      │    ┌──
                                │  ┌─┘  max_i(wm_i) + quiet time, in the steps that were committed
                                ▲  ▲
                          all idle  quiet for idle_close_ms
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

NO_WATERMARK = -(1 << 62)  # before every event time; far enough from the int64 edge to add durations


@dataclass(frozen=True)
class SourceClock:
    """One source. `max_event_us` is None before the first usable event; `quiet_us` is activity time since its last row.

    `partitions`: a connector's partitions, each with a clock of its own; the source's watermark is their minimum, idle
    ones left out.
    """

    lateness_us: int
    idleness_us: int
    max_event_us: int | None = None
    quiet_us: int = 0
    idle: bool = False
    partitions: Mapping[str, SourceClock] = field(default_factory=dict)

    @property
    def watermark_us(self) -> int:
        awake = [p.watermark_us for p in self.partitions.values() if not p.idle]
        if awake:
            return min(awake)
        return NO_WATERMARK if self.max_event_us is None else self.max_event_us - self.lateness_us

    @property
    def undecided_us(self) -> int:
        """Its quiet time as far as it decides about idleness: beyond that it only says since when."""
        return min(self.quiet_us, self.idleness_us)

    @property
    def flags(self) -> tuple[tuple[str, bool], ...]:
        """Who is idle: the source, and each of its partitions."""
        return (("", self.idle), *((name, p.idle) for name, p in self.partitions.items()))

    @property
    def idle_partitions(self) -> tuple[str, ...]:
        return tuple(name for name, p in self.partitions.items() if p.idle)

    def was_overtaken(self, watermark: int) -> bool:
        """Whether rows of it that are late now are late because it counted as idle, which lasts until it has caught up.

        What was never left out of the minimum is not behind it. Partitions are asked one by one.
        """
        if self.max_event_us is None:
            return self.idle
        return not self.partitions and self.watermark_us < watermark

    def overtaken_partitions(self, watermark: int) -> tuple[str, ...]:
        return tuple(name for name, p in self.partitions.items() if p.was_overtaken(watermark))


@dataclass(frozen=True)
class Heard:
    """What a source delivered in one epoch: rows read, and the largest usable event time among them.

    `partitions`: the same for every partition there is.
    """

    rows: int
    max_event_us: int | None
    partitions: Mapping[str, Heard] = field(default_factory=dict)


def listen(clock: SourceClock, heard: Heard, quiet_us: int) -> SourceClock:
    """Fold one epoch, or one idle tick (`heard.rows == 0`), into a source's clock.

    `quiet_us` is the activity time since the last fold: time in which the engine asked and found nothing.
    """
    fresh = SourceClock(clock.lateness_us, clock.idleness_us)
    silent = Heard(0, None)
    partitions = {
        name: listen(clock.partitions.get(name, fresh), heard.partitions.get(name, silent), quiet_us)
        for name in sorted(heard.partitions or clock.partitions)  # one that is not listed any more is gone
    }
    if heard.rows == 0:
        quiet = clock.quiet_us + quiet_us
        idle = clock.idle or quiet >= clock.idleness_us
        return replace(clock, quiet_us=quiet, idle=idle, partitions=partitions)
    times = [t for t in (clock.max_event_us, heard.max_event_us) if t is not None]
    return replace(clock, max_event_us=max(times, default=None), quiet_us=0, idle=False, partitions=partitions)


def global_watermark(previous: int, clocks: Sequence[SourceClock]) -> int:
    """The minimum over the sources that are not idle, at least `previous`; unchanged while all are idle.

    A source that was never heard from holds the watermark back until it counts as idle.
    """
    awake = [c.watermark_us for c in clocks if not c.idle]
    return max(previous, min(awake)) if awake else previous


def run_on(watermark: int, clocks: Sequence[SourceClock], idle_close_us: int | None) -> int:
    """Where the global watermark is after a silence of all sources: `max_i(wm_i) + quiet time`, at least `watermark`.

    Unchanged without `idle_close_us`, before that much quiet, and while no source has had an event. The order in which the
    sources fell silent does not matter.
    """
    quiet = min((c.quiet_us for c in clocks), default=0)
    heard = [c.watermark_us for c in clocks if c.max_event_us is not None]
    if idle_close_us is None or quiet < idle_close_us or not heard or not all(c.idle for c in clocks):
        return watermark
    return max(watermark, max(heard) + quiet)


def holder(clocks: Mapping[str, SourceClock]) -> str | None:
    """The source that holds the watermark back; None while all are idle."""
    awake = {name: c.watermark_us for name, c in clocks.items() if not c.idle}
    return min(awake, key=lambda name: awake[name]) if awake else None
