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

A jump, with `max_jump_ms` (opt-in): the newest time is followed over distances of at most that from row to row, and over a
larger one once `CONFIRMS` rows lie beyond it. It is the end of the span that has the `CONFIRMS`-th newest of all rows read,
so it depends on which rows were read, not on how they were batched, and it never goes back.

    rows of a source     ●●●●●●●●●●●●●●●●●            ●●      ●     held back until they are 100
                                        ▲ newest  > max_jump_ms
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slackwater.core.time import NO_WATERMARK as NO_WATERMARK

CONFIRMS = 100  # rows beyond a jump, after which it is followed
Span = tuple[
    int, int, int
]  # first and last of event times that lie at most `max_jump_ms` apart, one from the next; how many


@dataclass(frozen=True)
class SourceClock:
    """One source. `max_event_us` is None before the first usable event; `quiet_us` is activity time since its last row.

    `partitions`: a connector's partitions, each with a clock of its own; the source's watermark is their minimum, idle
    ones left out. `jump_us`: `max_jump_ms`; `spans`: then the one that ends at the newest time and those held back beyond it.
    """

    lateness_us: int
    idleness_us: int
    max_event_us: int | None = None
    quiet_us: int = 0
    idle: bool = False
    partitions: Mapping[str, SourceClock] = field(default_factory=dict)
    jump_us: int | None = None
    spans: tuple[Span, ...] = ()

    @property
    def held_spans(self) -> tuple[Span, ...]:
        """What is held back: rows beyond a jump that is not confirmed."""
        if self.jump_us is None:
            return ()
        return self.spans[1:] if is_confirmed(self.spans) else self.spans

    def needs_spans(self, activity: SourceActivity) -> bool:
        """Whether more than the newest time must be known of these rows: there may be a jump among them."""
        if self.jump_us is None or activity.max_event_us is None:
            return False
        fresh = SourceClock(self.lateness_us, self.idleness_us, jump_us=self.jump_us)
        parts = any(self.partitions.get(name, fresh).needs_spans(h) for name, h in activity.partitions.items())
        spans = self._confirmed_spans
        return parts or not is_confirmed(spans) or activity.max_event_us > spans[0][1] + self.jump_us

    @property
    def _confirmed_spans(self) -> tuple[Span, ...]:
        """Its spans; what was the newest time before there was a bound for jumps counts as confirmed."""
        if self.spans or self.max_event_us is None:
            return self.spans
        return ((self.max_event_us, self.max_event_us, CONFIRMS),)

    def with_newest(self, activity: SourceActivity) -> SourceClock:
        """With the newest time of these rows, as far as it is believed."""
        if activity.max_event_us is None:
            return self
        if self.jump_us is None:
            newest = (
                activity.max_event_us if self.max_event_us is None else max(self.max_event_us, activity.max_event_us)
            )
            return replace(self, max_event_us=newest, spans=())
        new_spans = activity.spans or ((activity.max_event_us, activity.max_event_us, 1),)
        spans = merge_spans((*self._confirmed_spans, *new_spans), self.jump_us)
        times = [t for t in (self.max_event_us, spans[0][1] if is_confirmed(spans) else None) if t is not None]
        return replace(self, max_event_us=max(times, default=None), spans=spans)

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
    def idle_flags(self) -> tuple[tuple[str, bool], ...]:
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
class SourceActivity:
    """What a source delivered in one epoch: rows read, and the largest usable event time among them.

    `partitions`: the same for every partition there is.
    """

    rows: int
    max_event_us: int | None
    partitions: Mapping[str, SourceActivity] = field(default_factory=dict)
    spans: tuple[Span, ...] = ()  # of the newest rows, where a clock `asks` for them


def merge_spans(spans: Iterable[Span], jump_us: int) -> tuple[Span, ...]:
    """Spans joined where they are at most `jump_us` apart, from the one that holds the `CONFIRMS`-th newest row on."""
    merged: list[Span] = []
    for low, high, count in sorted(spans):
        if merged and low - merged[-1][1] <= jump_us:
            first, last, before = merged[-1]
            merged[-1] = (first, max(last, high), min(before + count, CONFIRMS))
        else:
            merged.append((low, high, min(count, CONFIRMS)))
    beyond = 0
    for index in reversed(range(len(merged))):
        beyond += merged[index][2]
        if beyond >= CONFIRMS:
            low, high, _ = merged[index]
            return ((low, high, CONFIRMS), *merged[index + 1 :])
    return tuple(merged)


def is_confirmed(spans: Sequence[Span]) -> bool:
    """Whether the first of them is believed: as many rows were read as it takes."""
    return bool(spans) and spans[0][2] >= CONFIRMS


def advance_clock(clock: SourceClock, activity: SourceActivity, quiet_us: int) -> SourceClock:
    """Fold one epoch, or one idle tick (`activity.rows == 0`), into a source's clock.

    `quiet_us` is the activity time since the last fold: time in which the engine asked and found nothing.
    """
    fresh = SourceClock(clock.lateness_us, clock.idleness_us, jump_us=clock.jump_us)
    silent = SourceActivity(0, None)
    partitions = {
        name: advance_clock(clock.partitions.get(name, fresh), activity.partitions.get(name, silent), quiet_us)
        for name in sorted(activity.partitions or clock.partitions)  # one that is not listed any more is gone
    }
    if activity.rows == 0:
        quiet = clock.quiet_us + quiet_us
        idle = clock.idle or quiet >= clock.idleness_us
        return replace(clock, quiet_us=quiet, idle=idle, partitions=partitions)
    return replace(clock.with_newest(activity), quiet_us=0, idle=False, partitions=partitions)


def global_watermark(previous: int, clocks: Sequence[SourceClock]) -> int:
    """The minimum over the sources that are not idle, at least `previous`; unchanged while all are idle.

    A source that was never heard from holds the watermark back until it counts as idle.
    """
    awake = [c.watermark_us for c in clocks if not c.idle]
    return max(previous, min(awake)) if awake else previous


def output_watermark(promised: int, watermark: int, hold: int) -> int:
    """Return the event time before which a stage emits nothing any more, which is what the next stage goes by.

    `promised`: as committed, it never goes back. `hold`: the lowest event time that a result may still have.
    """
    return max(promised, min(watermark, hold))


def advance_while_idle(watermark: int, clocks: Sequence[SourceClock], idle_close_us: int | None) -> int:
    """Where the global watermark is after a silence of all sources: `max_i(wm_i) + quiet time`, at least `watermark`.

    Unchanged without `idle_close_us`, before that much quiet, and while no source has had an event. The order in which the
    sources fell silent does not matter.
    """
    quiet = min((c.quiet_us for c in clocks), default=0)
    watermarks = [c.watermark_us for c in clocks if c.max_event_us is not None]
    if idle_close_us is None or quiet < idle_close_us or not watermarks or not all(c.idle for c in clocks):
        return watermark
    return max(watermark, max(watermarks) + quiet)


def holder(clocks: Mapping[str, SourceClock]) -> str | None:
    """The source that holds the watermark back; None while all are idle."""
    awake = {name: c.watermark_us for name, c in clocks.items() if not c.idle}
    return min(awake, key=lambda name: awake[name]) if awake else None
