"""SVG as escaped markup: every value that goes in is text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from markupsafe import Markup, escape

from slackwater.ui.axis import Axis

WIDTH = 1000


def el(name: str, *children: str | Markup, **attributes: str | float | None) -> Markup:
    """An element; `class_` is class, `stroke_width` is stroke-width; what is None is left out."""
    given = "".join(
        f' {escape(n.rstrip("_").replace("_", "-"))}="{escape(str(v))}"' for n, v in attributes.items() if v is not None
    )
    inside = "".join(str(escape(c)) for c in children)
    return Markup(f"<{name}{given}>{inside}</{name}>")  # its parts are escaped above


def picture(label: str, height: float, *parts: Markup, across: float = WIDTH) -> Markup:
    """A drawing as wide as its place; `label` is read out in its place, beside which a table has the numbers.

    `across`: one that is wider than WIDTH keeps its size, and its place is scrolled.
    """
    size = {"width": f"{across:g}", "height": f"{height:g}"} if across > WIDTH else {}
    box, kind = f"0 0 {across:g} {height:g}", "plot wide" if size else "plot"
    return el("svg", *parts, viewBox=box, role="img", aria_label=label, class_=kind, **size)


def text(x: float, y: float, content: str, class_: str = "", anchor: str | None = None) -> Markup:
    return el("text", content, x=x, y=y, class_=class_ or None, text_anchor=anchor)


def rect(x: float, y: float, width: float, height: float, class_: str, *children: Markup) -> Markup:
    return el(
        "rect",
        *children,
        x=round(x, 2),
        y=round(y, 2),
        width=max(round(width, 2), 0),
        height=max(round(height, 2), 0),
        class_=class_,
    )


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    return el("line", x1=round(x1, 2), y1=round(y1, 2), x2=round(x2, 2), y2=round(y2, 2), class_=class_)


def title(content: str) -> Markup:
    return el("title", content)


def path(points: Sequence[tuple[float, float]], class_: str) -> Markup:
    return el("polyline", points=" ".join(f"{x:g},{y:g}" for x, y in points), class_=class_, fill="none")


def time_axis(axis: Axis, top: float, bottom: float) -> list[Markup]:
    """Vertical lines with their times below."""
    found = list[Markup]()
    for x, name, is_day in axis.times():
        found += [
            line(x, top, x, bottom, "grid"),
            text(x, bottom + 16, name, "tick day" if is_day else "tick", "middle"),
        ]
    return found


def count_axis(axis: Axis, left: float, right: float, names: Iterable[tuple[int, str]]) -> list[Markup]:
    """Horizontal lines with their numbers at the left."""
    found = list[Markup]()
    for value, name in names:
        y = axis.at(value)
        found += [line(left, y, right, y, "grid"), text(left - 8, y + 4, name, "tick", "end")]
    return found
