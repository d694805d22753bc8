"""SVG as escaped markup: every value that goes in is text.

A drawing is made for a width in units, which are about pixels of its text: WIDTH or HALF on a screen, NARROW on a phone, so that
nothing of it has to be scrolled or gets too small to read. `in_both` makes it for both, and the stylesheet shows one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from itertools import pairwise
from typing import Any

from markupsafe import Markup, escape

from slackwater.ui.axis import Axis

WIDTH, HALF, NARROW = 1000, 480, 360
MARGIN = 14  # at the right
CHARACTER = 7.2  # the width of one, at most, on average

_width: ContextVar[float] = ContextVar("width", default=WIDTH)


def width() -> float:
    """Return the width of the drawing that is made."""
    return _width.get()


def is_narrow() -> bool:
    return width() == NARROW


def right() -> float:
    """Return where the axes of a drawing end."""
    return width() - MARGIN


def lane_start(wide: float) -> float:
    """Return where the axes begin behind names of lanes, which take `wide` where there is room."""
    return min(wide, 0.36 * width())


def drawing_id(name: str) -> str:
    """Return the id of a definition that no other drawing on the page has."""
    return f"{name}-slim" if is_narrow() else name


def shortened(name: str, room: float) -> str:
    """Return a name as long as there is room for."""
    most = max(int(room / CHARACTER), 3)
    return name if len(name) <= most else name[: most - 1] + "…"


def in_both(draw: Callable[..., Markup], wide: float = WIDTH) -> Callable[..., Markup]:
    """Make a drawing for wide and for narrow screens, one behind the other; nothing where there is nothing to draw."""

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


def spaced(names: Sequence[str], slot: float) -> list[str]:
    """Return the names of places that are `slot` apart, without those that would run into others."""
    longest = max((len(name) for name in names), default=0) * CHARACTER + 4
    every = max(-(-int(longest) // max(int(slot), 1)), 1)
    return [name if n % every == 0 else "" for n, name in enumerate(names)]


def note(x: float, y: float, content: str, class_: str = "note") -> Markup:
    """A text beside a line at `x`, on the side where it fits."""
    needed = CHARACTER * len(content)
    if x + 6 + needed <= width():
        return text(x + 6, y, content, class_)
    if x - 6 - needed >= 0:
        return text(x - 6, y, content, class_, "end")
    return text(width(), y, content, class_, "end")


def element(name: str, *children: str | Markup, **attributes: str | float | None) -> Markup:
    """An element; `class_` is class, `stroke_width` is stroke-width; what is None is left out."""
    rendered = "".join(
        f' {escape(n.rstrip("_").replace("_", "-"))}="{escape(str(v))}"' for n, v in attributes.items() if v is not None
    )
    inside = "".join(str(escape(c)) for c in children)
    return Markup(f"<{name}{rendered}>{inside}</{name}>")  # its parts are escaped above


def picture(label: str, height: float, *parts: Markup, across: float | None = None) -> Markup:
    """A drawing as wide as its place; `label` is read out in its place, beside which a table has the numbers.

    `across`: one that is wider than `width()` keeps its size, and its place is scrolled.
    """
    across = across or width()
    size = {"width": f"{across:g}", "height": f"{height:g}"} if across > width() else {}
    kind = "plot wide" if size else "plot slim" if is_narrow() else "plot"
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
    """Vertical lines with their times below."""
    times = axis.times(7 if width() == WIDTH else 3)
    names = spaced([name for _, name, _ in times], min((b[0] - a[0] for a, b in pairwise(times)), default=width()))
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
    """Horizontal lines with their numbers at the left."""
    parts = list[Markup]()
    for value, name in names:
        y = axis.position(value)
        parts += [line(start, y, end, y, "grid"), text(start - 8, y + 4, name, "tick", "end")]
    return parts
