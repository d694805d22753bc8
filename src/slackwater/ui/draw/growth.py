"""Draw the size of the state, in bytes and rows, at each commit that is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import Markup

from slackwater.core.humanize import format_brief, format_size
from slackwater.ui.axis import Axis
from slackwater.ui.blocks.growth import StateGrowth
from slackwater.ui.svg import count_axis, element, path, picture, right, time_axis, title

LEFT, TOP, BOTTOM = 78, 14, 130


def draw_size(block: StateGrowth) -> Markup:
    values = [(c.epoch, c.committed_us, c.bytes) for c in block.commits]
    return _trace(values, format_size, "Size of the state in bytes, over the kept commits", "trace")


def draw_rows(block: StateGrowth) -> Markup:
    values = [(c.epoch, c.committed_us, c.rows) for c in block.commits]
    return _trace(values, format_brief, "Rows in the state, over the kept commits", "trace second")


def _trace(
    values: Sequence[tuple[int, int, int]], format_value: Callable[[float], str], label: str, class_: str
) -> Markup:
    if len(values) < 2:
        return Markup("")
    across = Axis(values[0][1], values[-1][1], LEFT, right())
    heights = [v for _, _, v in values]
    up = Axis(0, max(max(heights) * 11 // 10, 1), BOTTOM, TOP)
    points = [(across.position(t), up.position(v)) for _, t, v in values]
    labels = [(v, format_value(v)) for v in sorted({0, max(heights)})]
    dots = [
        element("circle", title(f"epoch {e}: {format_value(v)}"), cx=x, cy=y, r=3.5, class_="point")
        for (e, _, v), (x, y) in zip(values, points, strict=True)
    ]
    parts = [*time_axis(across, TOP, BOTTOM), *count_axis(up, LEFT, right(), labels), path(points, class_), *dots]
    return picture(label, BOTTOM + 26, *parts)
