"""Watermarks: one clock per source, and the minimum of the source watermarks.

All functions are pure, and all times are in microseconds UTC.

events of a source   ──●────●──●───────●▶   max event time
                               ◀─lateness─┤
                     watermark of source  ▲
global = minimum over the sources that are not idle; it never goes back

If all sources are idle, with `idle_close_ms` = ▒▒▒▒▒▒ (opt-in): the watermark advances with the activity clock.

    last event of all    ●
    activity clock       ├──────▒▒▒▒▒▒───────────────▶   time during which the engine polled without receiving rows
    global             ──┘      │    ┌──
                                │  ┌─┘  max_i(wm_i) + quiet time, in committed steps
                                ▲  ▲
                          all idle  quiet for idle_close_ms

Jumps, with `max_jump_ms` (opt-in): the newest time advances from row to row by at most this distance. It crosses a
larger gap only once there are `CONFIRMS` rows beyond the gap. The newest time is the end of the span that contains the
`CONFIRMS`-th newest row. It depends on the rows that were read, not on their batches. It never goes back.

    rows of a source     ●●●●●●●●●●●●●●●●●            ●●      ●     held back until there are `CONFIRMS`
                                        ▲ newest  > max_jump_ms

May import: core.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slackwater.core.time import NO_WATERMARK as NO_WATERMARK

CONFIRMS = 100  # number of rows beyond a jump that confirm it
Span = tuple[int, int, int]  # first and last event time, and number of rows, without a gap above `max_jump_ms`


@dataclass(frozen=True)
class SourceClock:
    """The clock of one source or partition. Durations and times are in µs.

    Args:
        lateness_us: How far the watermark stays behind the newest event.
        idleness_us: The quiet time after which the source counts as idle.
        max_event_us: The newest event time; None before the first usable event.
        quiet_us: How long the engine has polled without receiving rows since the last row.
        idle: Whether the source counts as idle.
        partitions: The clocks of the partitions. The watermark is the minimum over the partitions that are not idle.
        jump_us: `max_jump_ms` in µs; None without a limit.
        spans: With a limit, the span that ends at the newest time, and the spans beyond it that are held back.
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
        """The spans that are held back: rows beyond an unconfirmed jump."""
        if self.jump_us is None:
            return ()
        return self.spans[1:] if _is_confirmed(self.spans) else self.spans

    def needs_spans(self, activity: SourceActivity) -> bool:
        """Return whether the spans of the rows in `activity` are needed, which is the case if the rows may contain a jump."""
        if self.jump_us is None or activity.max_event_us is None:
            return False
        fresh = SourceClock(self.lateness_us, self.idleness_us, jump_us=self.jump_us)
        parts = any(self.partitions.get(name, fresh).needs_spans(h) for name, h in activity.partitions.items())
        spans = self._confirmed_spans
        return parts or not _is_confirmed(spans) or activity.max_event_us > spans[0][1] + self.jump_us

    @property
    def _confirmed_spans(self) -> tuple[Span, ...]:
        """The spans of the clock. A newest time that was recorded before the limit was set counts as confirmed."""
        if self.spans or self.max_event_us is None:
            return self.spans
        return ((self.max_event_us, self.max_event_us, CONFIRMS),)

    def with_newest(self, activity: SourceActivity) -> SourceClock:
        """Return the clock after the rows of `activity`. Times beyond an unconfirmed jump are held back."""
        if activity.max_event_us is None:
            return self
        if self.jump_us is None:
            newest = (
                activity.max_event_us if self.max_event_us is None else max(self.max_event_us, activity.max_event_us)
            )
            return replace(self, max_event_us=newest, spans=())
        new_spans = activity.spans or ((activity.max_event_us, activity.max_event_us, 1),)
        spans = merge_spans((*self._confirmed_spans, *new_spans), self.jump_us)
        times = [t for t in (self.max_event_us, spans[0][1] if _is_confirmed(spans) else None) if t is not None]
        return replace(self, max_event_us=max(times, default=None), spans=spans)

    @property
    def watermark_us(self) -> int:
        awake = [p.watermark_us for p in self.partitions.values() if not p.idle]
        if awake:
            return min(awake)
        return NO_WATERMARK if self.max_event_us is None else self.max_event_us - self.lateness_us

    @property
    def undecided_us(self) -> int:
        """The quiet time, capped at `idleness_us`. More quiet time does not change whether the source is idle."""
        return min(self.quiet_us, self.idleness_us)

    @property
    def idle_flags(self) -> tuple[tuple[str, bool], ...]:
        """The name of each partition, and whether it is idle. The name "" stands for the source itself."""
        return (("", self.idle), *((name, p.idle) for name, p in self.partitions.items()))

    @property
    def idle_partitions(self) -> tuple[str, ...]:
        return tuple(name for name, p in self.partitions.items() if p.idle)

    def was_overtaken(self, watermark: int) -> bool:
        """Return whether the watermark passed this clock while it was idle, and the clock has not caught up yet.

        Until the clock catches up, its late rows count as late because it was idle. A clock that was never excluded
        from the minimum is not behind the watermark. For a source with partitions, the result is False: use
        `overtaken_partitions`.
        """
        if self.max_event_us is None:
            return self.idle
        return not self.partitions and self.watermark_us < watermark

    def overtaken_partitions(self, watermark: int) -> tuple[str, ...]:
        return tuple(name for name, p in self.partitions.items() if p.was_overtaken(watermark))


@dataclass(frozen=True)
class SourceActivity:
    """The activity of a source in one epoch.

    Args:
        rows: The number of rows read.
        max_event_us: The largest usable event time (µs); None if there is none.
        partitions: The activity of every existing partition.
        spans: The spans of the newest rows, for a clock that needs them.
    """

    rows: int
    max_event_us: int | None
    partitions: Mapping[str, SourceActivity] = field(default_factory=dict)
    spans: tuple[Span, ...] = ()


def merge_spans(spans: Iterable[Span], jump_us: int) -> tuple[Span, ...]:
    """Merge spans at most `jump_us` apart. Return the span of the `CONFIRMS`-th newest row and all later spans."""
    merged: list[Span] = []
    for low, high, count in sorted(spans):
        if merged and low - merged[-1][1] <= jump_us:
            first, last, rows = merged[-1]
            merged[-1] = (first, max(last, high), min(rows + count, CONFIRMS))
        else:
            merged.append((low, high, min(count, CONFIRMS)))
    beyond = 0
    for index in reversed(range(len(merged))):
        beyond += merged[index][2]
        if beyond >= CONFIRMS:
            low, high, _ = merged[index]
            return ((low, high, CONFIRMS), *merged[index + 1 :])
    return tuple(merged)


def _is_confirmed(spans: Sequence[Span]) -> bool:
    """Return whether the first span has at least `CONFIRMS` rows."""
    return bool(spans) and spans[0][2] >= CONFIRMS


def advance_clock(clock: SourceClock, activity: SourceActivity, quiet_us: int) -> SourceClock:
    """Advance the clock of a source by one epoch, or by one idle tick (`activity.rows == 0`).

    `quiet_us`: how long (µs) the engine polled without receiving rows since the last call.
    """
    fresh = SourceClock(clock.lateness_us, clock.idleness_us, jump_us=clock.jump_us)
    silent = SourceActivity(0, None)
    partitions = {
        name: advance_clock(clock.partitions.get(name, fresh), activity.partitions.get(name, silent), quiet_us)
        for name in sorted(activity.partitions or clock.partitions)  # partitions that are no longer listed are dropped
    }
    if activity.rows == 0:
        quiet = clock.quiet_us + quiet_us
        idle = clock.idle or quiet >= clock.idleness_us
        return replace(clock, quiet_us=quiet, idle=idle, partitions=partitions)
    return replace(clock.with_newest(activity), quiet_us=0, idle=False, partitions=partitions)


def global_watermark(previous: int, clocks: Sequence[SourceClock]) -> int:
    """Return the lowest watermark of the sources that are not idle, but at least `previous`.

    If all are idle, return `previous`. A source that has never had a row holds the watermark back until it counts as
    idle.
    """
    awake = [c.watermark_us for c in clocks if not c.idle]
    return max(previous, min(awake)) if awake else previous


def output_watermark(promised: int, watermark: int, hold: int) -> int:
    """Return the output watermark of a stage: from now on, it emits no result with an earlier event time.

    Args:
        promised: The committed output watermark, which never moves backwards.
        watermark: The watermark of the stage.
        hold: The lowest event time that a result may still have.
    """
    return max(promised, min(watermark, hold))


def advance_while_idle(watermark: int, clocks: Sequence[SourceClock], idle_close_us: int | None) -> int:
    """Return the global watermark once all sources are silent: `max_i(wm_i) + quiet time`, but at least `watermark`.

    The watermark is unchanged without `idle_close_us`, during the first `idle_close_us` of silence, and while no source
    has had an event. The order in which the sources became idle does not matter.
    """
    quiet = min((c.quiet_us for c in clocks), default=0)
    watermarks = [c.watermark_us for c in clocks if c.max_event_us is not None]
    if idle_close_us is None or quiet < idle_close_us or not watermarks or not all(c.idle for c in clocks):
        return watermark
    return max(watermark, max(watermarks) + quiet)


def watermark_holder(clocks: Mapping[str, SourceClock]) -> str | None:
    """Return the source that holds the watermark back; None if all are idle."""
    awake = {name: c.watermark_us for name, c in clocks.items() if not c.idle}
    return min(awake, key=lambda name: awake[name]) if awake else None
