"""Bytes and rows of the state over the kept commits, with the trend."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import Markup

from slackwater.ui.axis import Axis, around
from slackwater.ui.blocks.growth import Growth
from slackwater.ui.svg import count_axis, el, is_narrow, path, picture, right, time_axis, title
from slackwater.ui.words import brief, size

LEFT, TOP, BOTTOM = 100, 14, 130


def weight(block: Growth) -> Markup:
    values = [(c.epoch, c.committed_us, c.bytes) for c in block.commits]
    return _trace(values, size, "Bytes of the state over the kept commits", "trace")


def rows(block: Growth) -> Markup:
    values = [(c.epoch, c.committed_us, c.rows) for c in block.commits]
    return _trace(values, brief, "Rows of the state over the kept commits", "trace second")


def _trace(values: Sequence[tuple[int, int, int]], said: Callable[[float], str], label: str, class_: str) -> Markup:
    if len(values) < 2:
        return Markup("")
    begins = 70 if is_narrow() else LEFT
    across = Axis(values[0][1], values[-1][1], begins, right())
    heights = [v for _, _, v in values]
    _, high = around(min(heights), max(heights), 0.1)
    up = Axis(0, max(high if max(heights) > min(heights) else max(heights), 1), BOTTOM, TOP)
    points = [(across.at(t), up.at(v)) for _, t, v in values]
    named = [(v, said(v)) for v in sorted({0, max(heights)})]
    dots = [
        el("circle", title(f"epoch {e}: {said(v)}"), cx=x, cy=y, r=3.5, class_="point")
        for (e, _, v), (x, y) in zip(values, points, strict=True)
    ]
    parts = [*time_axis(across, TOP, BOTTOM), *count_axis(up, begins, right(), named), path(points, class_), *dots]
    return picture(label, BOTTOM + 26, *parts)
