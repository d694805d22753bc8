"""SVG as escaped markup: every value is escaped as text.

A drawing has a width in units of about one pixel: WIDTH or HALF on a screen, NARROW on a phone. So drawings need no
scrolling and stay readable. `draw_both_widths` draws both widths, and the stylesheet shows one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from itertools import pairwise
from typing import Any

from markupsafe import Markup, escape

from slackwater.ui.axis import Axis

WIDTH, HALF, NARROW = 1000, 480, 360
MARGIN = 14  # right margin
CHARACTER = 7.2  # upper bound of the average width of a character
BOLD_CHARACTER = 8.1  # the same for a note, which is bold

_width: ContextVar[float] = ContextVar("width", default=WIDTH)


def width() -> float:
    """Return the width of the current drawing."""
    return _width.get()


def _is_narrow() -> bool:
    return width() == NARROW


def right() -> float:
    """Return the x coordinate at which the axes of a drawing end."""
    return width() - MARGIN


def lane_start(wide: float) -> float:
    """Return the x coordinate at which axes start, after lane names of width `wide`, or less in a narrow drawing."""
    return min(wide, 0.36 * width())


def drawing_id(name: str) -> str:
    """Return an ID for a definition that is unique on the page: narrow drawings get a suffix."""
    return f"{name}-slim" if _is_narrow() else name


def shorten(name: str, room: float) -> str:
    """Shorten a name to the width `room`."""
    max_characters = max(int(room / CHARACTER), 3)
    return name if len(name) <= max_characters else name[: max_characters - 1] + "…"


def draw_both_widths(draw: Callable[..., Markup], wide: float = WIDTH) -> Callable[..., Markup]:
    """Return a function that draws for both wide and narrow screens, and returns both drawings."""

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
    """Return the labels for positions that are `slot` apart. Labels that would overlap are replaced by ""."""
    longest = max((len(name) for name in names), default=0) * CHARACTER + 4
    step = max(-(-int(longest) // max(int(slot), 1)), 1)
    return [name if n % step == 0 else "" for n, name in enumerate(names)]


def note(x: float, y: float, content: str, class_: str = "note") -> Markup:
    """Return text next to a vertical line at `x`, on the side where it fits."""
    needed = BOLD_CHARACTER * len(content)
    if x + 6 + needed <= width():
        return text(x + 6, y, content, class_)
    if x - 6 - needed >= 0:
        return text(x - 6, y, content, class_, "end")
    return text(width(), y, content, class_, "end")


def element(name: str, *children: str | Markup, **attributes: str | float | None) -> Markup:
    """Return an element. `class_` is written as class, `stroke_width` as stroke-width; None attributes are omitted."""
    rendered = "".join(
        f' {escape(n.rstrip("_").replace("_", "-"))}="{escape(str(v))}"' for n, v in attributes.items() if v is not None
    )
    content = "".join(str(escape(c)) for c in children)
    return Markup(f"<{name}{rendered}>{content}</{name}>")  # the parts are escaped above


def picture(label: str, height: float, *parts: Markup, across: float | None = None) -> Markup:
    """Return a drawing that fills the available width.

    Screen readers read `label`; the numbers are in a table next to the drawing.

    `across`: the width of the drawing. If it exceeds `width()`, the drawing keeps its size and can be scrolled.
    """
    across = across or width()
    size = {"width": f"{across:g}", "height": f"{height:g}"} if across > width() else {}
    kind = "plot wide" if size else "plot slim" if _is_narrow() else "plot"
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


def count_axis(axis: Axis, start: float, end: float, names: Iterable[tuple[int, str]]) -> list[Markup]:
    """Return horizontal grid lines with their labels on the left, from x = `start` to `end`."""
    parts = list[Markup]()
    for value, name in names:
        y = axis.position(value)
        parts += [line(start, y, end, y, "grid"), text(start - 8, y + 4, name, "tick", "end")]
    return parts
