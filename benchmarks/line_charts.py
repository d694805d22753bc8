"""Line charts, one below the other, as one SVG file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from slackwater.ui.svg import Markup, element, line, path, text

_WIDTH, _LEFT = 1000, 80
_STYLE = (
    "svg{background:#fff;font-family:system-ui,'Segoe UI','Noto Sans','DejaVu Sans',sans-serif;font-size:13px}"
    "text{fill:#333}.head{font-weight:600}.grid{stroke:#ddd}polyline{stroke-width:1.5}"
    ".s0{stroke:#1f6fb2}.s1{stroke:#c2571a}.s2{stroke:#3b8a3e}text.s0,text.s1,text.s2{stroke:none}"
    "text.s0{fill:#1f6fb2}text.s1{fill:#c2571a}text.s2{fill:#3b8a3e}"
)


@dataclass(frozen=True)
class LineChart:
    """One line chart. `lines` has names and points (x, y), `last` is the largest x, and `ticks` has the labels of the x axis."""

    name: str
    lines: Sequence[tuple[str, Sequence[tuple[float, float]]]]
    ticks: Sequence[tuple[float, str]]
    last: float
    below: str = ""  # the label of the x axis
    number: Callable[[float], str] = "{:.2f}".format


@dataclass(frozen=True)
class ChartLayout:
    """Height of a panel, the gap below it, and the width of the names on the right, in pixels."""

    height: int
    gap: int
    right: int


def draw_line_charts(label: str, panels: Sequence[LineChart], sizes: ChartLayout) -> str:
    """Return the SVG text."""
    whole = element(
        "svg",
        element("style", Markup(_STYLE)),
        *(part for number, panel in enumerate(panels) for part in _draw_line_chart(number, panel, sizes)),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_WIDTH} {len(panels) * (sizes.height + sizes.gap) + 10}",
        role="img",
        aria_label=label,
    )
    return str(whole).replace("><", ">\n<") + "\n"


def _draw_line_chart(number: int, panel: LineChart, sizes: ChartLayout) -> Iterator[Markup]:
    top = number * (sizes.height + sizes.gap) + 30
    bottom, right = top + sizes.height, _WIDTH - sizes.right
    most = max(y for _, points in panel.lines for _, y in points) * 1.1 or 1.0

    def across(x: float) -> float:
        return _LEFT + (right - _LEFT) * x / panel.last

    yield text(_LEFT, top - 10, panel.name, "head")
    for part in range(5):
        y = bottom - sizes.height * part / 4
        yield line(_LEFT, y, right, y, "grid")
        yield text(_LEFT - 8, y + 4, panel.number(most * part / 4), "tick", "end")
    for x, label in panel.ticks:
        yield text(across(x), bottom + 18, label, "tick", "middle")
    if panel.below:
        yield text(right, bottom + 36, panel.below, "tick", "end")
    ends = []
    for which, (name, points) in enumerate(panel.lines):
        positions = [(round(across(x), 1), round(bottom - sizes.height * y / most, 1)) for x, y in points]
        yield path(positions, f"s{which}")
        ends.append((positions[-1][1], which, f"{name}: {panel.number(points[-1][1])}"))
    free = float(top)
    for y, which, name in sorted(ends):  # names are next to the ends of their lines and do not overlap
        free = max(y + 4, free)
        yield text(right + 8, free, name, f"s{which}")
        free += 16
