"""Functions that return SVG drawings as markup in which every value is escaped.

The width of a drawing, in units of about one pixel, is WIDTH or HALF on a large screen and NARROW on a phone, so that
drawings stay readable without scrolling. `draw_both_widths` draws both widths, and the stylesheet shows one of them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from markupsafe import Markup, escape

from slackwater.core.humanize import format_exact_time

WIDTH, HALF, NARROW = 1000, 480, 360
MARGIN = 14  # space to the right of the axes
CHARACTER = 7.2  # upper bound of the average width of a character
BOLD_CHARACTER = 8.1  # upper bound of the average width of a bold character

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

_width: ContextVar[float] = ContextVar("width", default=WIDTH)


def width() -> float:
    """Return the width of the current drawing."""
    return _width.get()


def right() -> float:
    """Return the x coordinate at which the axes of a drawing end."""
    return width() - MARGIN


def lane_start(wide: float) -> float:
    """Return the x coordinate at which axes start, to the right of the lane names.

    `wide`: the coordinate in a wide drawing. In a narrow drawing, the names take up at most 36% of the width.
    """
    return min(wide, 0.36 * width())


def drawing_id(name: str) -> str:
    """Return an ID for an SVG definition. Narrow drawings add a suffix, so that the ID is unique on the page."""
    return f"{name}-slim" if width() == NARROW else name


def shorten(name: str, max_characters: int) -> str:
    return name if len(name) <= max_characters else name[: max_characters - 1] + "…"


def draw_both_widths(draw: Callable[..., Markup], wide: float = WIDTH) -> Callable[..., Markup]:
    """Return a function that calls `draw` twice, for large and for narrow screens, and returns both drawings."""

    def drawn(*values: Any) -> Markup:
        markup = Markup("")
        for units in (wide, NARROW):
            token = _width.set(units)
            try:
                markup += draw(*values)
            finally:
                _width.reset(token)
        return markup

    return drawn


def space_labels(names: Sequence[str], slot: float) -> list[str]:
    """Return the labels of ticks that are `slot` units apart. A label that would overlap another one becomes ""."""
    longest = max((len(name) for name in names), default=0) * CHARACTER + 4
    step = max(-(-int(longest) // max(int(slot), 1)), 1)
    return [name if n % step == 0 else "" for n, name in enumerate(names)]


def note(x: float, y: float, content: str, class_: str = "note") -> Markup:
    """Return text next to a vertical line at `x`, on the side where the text fits."""
    needed = BOLD_CHARACTER * len(content)
    if x + 6 + needed <= width():
        return text(x + 6, y, content, class_)
    if x - 6 - needed >= 0:
        return text(x - 6, y, content, class_, "end")
    return text(width(), y, content, class_, "end")


def element(name: str, *children: str | Markup, **attributes: str | float | None) -> Markup:
    """Return an element as markup. `class_` becomes class, `stroke_width` becomes stroke-width, and None is omitted."""
    rendered = "".join(
        f' {escape(n.rstrip("_").replace("_", "-"))}="{escape(str(v))}"' for n, v in attributes.items() if v is not None
    )
    content = "".join(str(escape(c)) for c in children)
    return Markup(f"<{name}{rendered}>{content}</{name}>")  # the parts are escaped above


def picture(label: str, height: float, *parts: Markup, across: float | None = None) -> Markup:
    """Return a drawing that fills the available width.

    Screen readers read `label`; the numbers are in a table next to the drawing.

    `across`: the width of the drawing, by default `width()`. A wider drawing keeps its size and can be scrolled.
    """
    across = across or width()
    size = {"width": f"{across:g}", "height": f"{height:g}"} if across > width() else {}
    kind = "plot wide" if size else "plot slim" if width() == NARROW else "plot"
    box = f"0 0 {across:g} {height:g}"
    return element("svg", *parts, viewBox=box, role="img", aria_label=label, class_=kind, **size)


def text(x: float, y: float, content: str, class_: str = "", anchor: str | None = None) -> Markup:
    return element("text", content, x=x, y=y, class_=class_ or None, text_anchor=anchor)


def rect(x: float, y: float, width: float, height: float, class_: str, *children: Markup) -> Markup:
    return element(
        "rect",
        *children,
        x=round(x, 2),
        y=round(y, 2),
        width=max(round(width, 2), 0),
        height=max(round(height, 2), 0),
        class_=class_,
    )


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    return element("line", x1=round(x1, 2), y1=round(y1, 2), x2=round(x2, 2), y2=round(y2, 2), class_=class_)


def title(content: str) -> Markup:
    return element("title", content)


def path(points: Sequence[tuple[float, float]], class_: str) -> Markup:
    return element("polyline", points=" ".join(f"{x:g},{y:g}" for x, y in points), class_=class_, fill="none")


def tick_step(length: int, max_ticks: int) -> int:
    """Return the shortest round time step (µs) that divides `length` into at most `max_ticks` parts."""
    year = STEPS[-1]
    return next((s for s in STEPS if length <= s * max_ticks), year * -(-length // (max_ticks * year)))


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
        """Return the coordinate and the label of each time tick, and whether the label is a date.

        `max_ticks`: an approximate limit on the number of ticks.
        """
        step = tick_step(self.high - self.low, max_ticks)
        first = -(-self.low // step) * step
        return [(self.position(us), *_tick_label(us, step)) for us in range(first, self.high + 1, step)]

    def counts(self, max_ticks: int = 4) -> list[int]:
        """Return the round integers to label, starting at 0. `max_ticks`: an approximate limit on their number."""
        unit = 1
        while self.high / unit > max_ticks:
            unit = unit * 5 // 2 if str(unit)[0] == "2" else unit * 2
        return list(range(0, self.high + 1, unit))


def padded_range(low: int, high: int, share: float = 0.04) -> tuple[int, int]:
    """Return the range from `low` to `high` (µs), extended on both sides by a share of its length.

    An empty range is extended to one second.
    """
    room = int((high - low) * share) or S // 2
    return low - room, high + room


def _tick_label(us: int, step: int) -> tuple[str, bool]:
    """Return the label of a tick, and whether it is a date."""
    try:
        moment = dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=us)
    except OverflowError:
        return f"{us / S:.3g} s", False
    if step >= D or us % D == 0:
        return f"{moment:%Y-%m-%d}", True
    label = f"{moment:%H:%M}" if step >= M else f"{moment:%H:%M:%S}"
    if step < S:
        label += f".{moment.microsecond:06d}".rstrip("0")
    return label, False


def time_axis(axis: Axis, top: float, bottom: float) -> list[Markup]:
    """Return vertical grid lines with their times below."""
    times = axis.times(7 if width() == WIDTH else 3)
    names = space_labels(
        [name for _, name, _ in times], min((b[0] - a[0] for a, b in pairwise(times)), default=width())
    )
    parts = list[Markup]()
    for (x, _, is_day), name in zip(times, names, strict=True):
        half = CHARACTER * len(name) / 2
        anchor, text_x = ("end", width()) if x + half > width() else ("start", 0.0) if x < half else ("middle", x)
        parts += [
            line(x, top, x, bottom, "grid"),
            text(text_x, bottom + 16, name, "tick day" if is_day else "tick", anchor),
        ]
    return parts


def count_axis(axis: Axis, start: float, values: Iterable[int], format_value: Callable[[int], str]) -> list[Markup]:
    """Return horizontal grid lines from x = `start`, with their values on the left."""
    parts = list[Markup]()
    for value in values:
        y = axis.position(value)
        parts += [line(start, y, right(), y, "grid"), text(start - 8, y + 4, format_value(value), "tick", "end")]
    return parts


def watermark_line(axis: Axis, us: int, top: float, bottom: float, above: float = 12, remark: str = "") -> list[Markup]:
    """Return a vertical line at a watermark, with a note `above` units over `top`. `remark`: the end of the note."""
    x = axis.position(us)
    return [
        line(x, top - 8, x, bottom, "watermark"),
        note(x, top - above, f"watermark {format_exact_time(us)}{remark}"),
    ]


def draw_trace(
    label: str,
    series: Sequence[tuple[int, int, int]],
    up: Axis,
    start: float,
    format_value: Callable[[int], str],
    *,
    labeled: Iterable[int],
    height: float,
    class_: str = "trace",
    suffix: str = "",
) -> Markup:
    """Draw a value over the kept commits as a line. Return empty markup for fewer than two commits.

    Args:
        label: A description for screen readers.
        series: The epoch, the time (µs) and the value of each commit.
        up: The vertical axis, which shows the values.
        start: The x coordinate at which the time axis starts.
        format_value: Formats a value for labels and tooltips.
        labeled: The values to label on `up`.
        height: The height of the drawing.
        class_: The CSS class of the line.
        suffix: Text after the value in a tooltip.
    """
    if len(series) < 2:
        return Markup("")
    times = [us for _, us, _ in series]
    across = Axis(min(times), max(times), start, right())
    points = [(across.position(us), up.position(value)) for _, us, value in series]
    dots = [
        element("circle", title(f"epoch {epoch}: {format_value(value)}{suffix}"), cx=x, cy=y, r=3.5, class_="point")
        for (epoch, _, value), (x, y) in zip(series, points, strict=True)
    ]
    axes = [*time_axis(across, up.end, up.start), *count_axis(up, start, labeled, format_value)]
    return picture(label, height, *axes, path(points, class_), *dots)


def draw_columns(
    label: str,
    columns: Sequence[tuple[str, Sequence[tuple[str, int, str]] | None]],
    up: Axis,
    start: float,
    format_value: Callable[[int], str],
    *,
    labeled: Iterable[int],
    thinnest: float,
    share: float = 0.62,
    widest: float = 64,
) -> Markup:
    """Draw columns of stacked parts, with their names below.

    Args:
        label: A description for screen readers.
        columns: The name and the parts of each column, from the bottom up. A part is a CSS class, a value and a tooltip.
            None instead of parts means that the values are not known, because a commit is no longer kept.
        up: The vertical axis, which shows the values.
        start: The x coordinate at which the first column starts.
        labeled: The values to label on `up`.
        thinnest: The minimum height of a part, so that it is visible.
        share: The width of a column as a share of the distance between columns.
        widest: The maximum width of a column.
    """
    slot = (right() - start) / max(len(columns), 8)
    across, drawn = min(slot * share, widest), count_axis(up, start, labeled, format_value)
    names = space_labels([name for name, _ in columns], slot)
    for n, (name, (_, parts)) in enumerate(zip(names, columns, strict=True)):
        x, offset = start + slot * (n + 0.5), 0
        drawn.append(text(x, up.start + 18, name, "tick", "middle"))
        if parts is None:
            drawn.append(text(x, up.start - 6, "not kept", "tick", "middle"))
        for class_, value, about in parts or ():
            low, high = up.position(offset), up.position(offset + value)
            offset += value
            drawn.append(rect(x - across / 2, high, across, max(low - high, thinnest), class_, title(about)))
    return picture(label, up.start + 28, *drawn)
