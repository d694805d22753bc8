"""Draw windows of several keys in event time: one lane per window, with a hatched gap.

user=u1   ▓▓▓▓▓▓▓▓░░░        ┊
user=u2        ▓▓░░░         ┊ watermark
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from slackwater.core.humanize import format_exact_time
from slackwater.ui.axis import Axis, padded_range
from slackwater.ui.svg import drawing_id, element, line, note, picture, rect, right, text, time_axis, title

LEFT, TOP, LANE = 220, 30, 26


@dataclass(frozen=True)
class SessionBar:
    """A window of a key, with times in µs. `last_us`: the last event of a session, followed by its gap."""

    key: str
    start_us: int
    last_us: int | None
    end_us: int
    status: str


def draw_sessions(spans: Sequence[SessionBar], watermark_us: int | None) -> Markup:
    """Draw the windows; return empty markup if there are none."""
    if not spans:
        return Markup("")
    low, high = min(s.start_us for s in spans), max(s.end_us for s in spans)
    near = watermark_us is not None and low - (high - low) <= watermark_us <= high + (high - low)
    if near and watermark_us is not None:
        low, high = min(low, watermark_us), max(high, watermark_us)
    across, bottom = Axis(*padded_range(low, high), LEFT, right()), TOP + LANE * len(spans)
    lines = element("path", d="M0 6 L6 0", class_="hatch")
    pattern = element("pattern", lines, id=drawing_id("hatch"), width=6, height=6, patternUnits="userSpaceOnUse")
    parts = [element("defs", pattern), *time_axis(across, TOP, bottom)]
    for n, s in enumerate(spans):
        y, x1, x2 = TOP + LANE * n + 5, across.position(s.start_us), across.position(s.end_us)
        last = x2 if s.last_us is None else across.position(s.last_us)
        about = title(f"{s.key}, {s.status}: {format_exact_time(s.start_us)} to {format_exact_time(s.end_us)}")
        parts.append(text(14, y + 13, s.key if len(s.key) <= 26 else s.key[:25] + "…", "lane"))
        parts.append(rect(x1, y, max(last - x1, 3), 16, f"session {s.status}", about))
        if x2 > last:
            parts.append(rect(last, y, x2 - last, 16, f"tail {s.status}", about))
    if near and watermark_us is not None:
        x = across.position(watermark_us)
        name = f"watermark {format_exact_time(watermark_us)}"
        parts += [
            line(x, TOP - 8, x, bottom, "watermark"),
            note(x, TOP - 12, name),
        ]
    return picture("Windows in event time", bottom + 26, *parts)
