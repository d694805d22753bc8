"""Axes of drawings: the position of a value, and the labeled ticks."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

S = 1_000_000
M, H, D = 60 * S, 3600 * S, 86_400 * S
STEPS = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000),
    *(S, 2 * S, 5 * S, 10 * S, 15 * S, 30 * S),
    *(M, 2 * M, 5 * M, 10 * M, 15 * M, 30 * M),
    *(H, 2 * H, 3 * H, 6 * H, 12 * H),
    *(D, 2 * D, 7 * D, 14 * D, 28 * D, 91 * D, 182 * D, 365 * D),
)


def tick_step(length: int, max_ticks: int) -> int:
    """Return the shortest round time step (µs) that divides `length` into at most `max_ticks` parts."""
    step = next((s for s in STEPS if length <= s * max_ticks), None)
    if step is not None:
        return step
    years = -(-length // (max_ticks * STEPS[-1]))
    return STEPS[-1] * int(years)


@dataclass(frozen=True)
class Axis:
    """A linear scale from values (`low` to `high`) to coordinates (`start` to `end`)."""

    low: int
    high: int
    start: float
    end: float

    def position(self, value: float) -> float:
        clamped = min(max(value, self.low), self.high)
        return round(self.start + (clamped - self.low) * (self.end - self.start) / max(self.high - self.low, 1), 2)

    def times(self, max_ticks: int = 7) -> list[tuple[float, str, bool]]:
        """Return at most `max_ticks` time ticks: coordinate, label, and whether the label is a date."""
        step = tick_step(self.high - self.low, max_ticks)
        first = -(-self.low // step) * step
        ticks, day = list[tuple[float, str, bool]](), ""
        for us in range(first, self.high + 1, step):
            text, is_day = _clock(us, step, day)
            day = _date(us)
            ticks.append((self.position(us), text, is_day))
        return ticks

    def counts(self, max_ticks: int = 4) -> list[int]:
        """Return round integers to label, starting at 0."""
        unit = 1
        while self.high / unit > max_ticks:
            unit = unit * 5 // 2 if str(unit)[0] == "2" else unit * 2
        return list(range(0, self.high + 1, unit))


def padded_range(low: int, high: int, share: float = 0.04) -> tuple[int, int]:
    """Return the range extended by a share on both sides. A single value (µs) is extended to one second."""
    room = int((high - low) * share) or S // 2
    return low - room, high + room


def _date(us: int) -> str:
    try:
        return f"{dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=us):%Y-%m-%d}"
    except OverflowError:
        return ""


def _clock(us: int, step: int, day: str) -> tuple[str, bool]:
    """Return the label of a tick, and whether it is a date. `day`: the date of the previous tick."""
    try:
        moment = dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=us)
    except OverflowError:
        return f"{us / S:.3g} s", False
    if step >= D or (not (us % D)):
        return f"{moment:%Y-%m-%d}", True
    text = f"{moment:%H:%M}" if step >= M else f"{moment:%H:%M:%S}"
    if step < S:
        text += f".{moment.microsecond:06d}".rstrip("0")
    return text, False
