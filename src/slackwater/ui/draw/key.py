"""Draw the windows of one key in event time: bars with a hatched gap, and the cap as a line."""

from __future__ import annotations

from markupsafe import Markup

from slackwater.core.humanize import format_exact_time
from slackwater.ui.axis import Axis, padded_range
from slackwater.ui.blocks.key import KeyView
from slackwater.ui.svg import drawing_id, element, line, note, picture, rect, right, time_axis, title

LEFT, TOP, LANE = 14, 30, 34
MOST = 60  # maximum number of windows drawn


def draw_key_timeline(block: KeyView) -> Markup:
    """Draw the latest MOST windows of the key; return empty markup if the key has no windows."""
    bars = block.bars[-MOST:]
    if not bars:
        return Markup("")
    low, high = min(b.start_us for b in bars), max(b.end_us for b in bars)
    # a cap far beyond the session is not drawn: the session would be too small to see
    reach = high + 11 * max(high - low, 1_000_000)
    high = max([high, *(b.cap_us for b in bars if b.cap_us is not None and b.cap_us <= reach)])
    near = block.watermark_us is not None and low - 2 * (high - low) <= block.watermark_us <= high + 2 * (high - low)
    if block.watermark_us is not None and near:
        low, high = min(low, block.watermark_us), max(high, block.watermark_us)
    across, bottom = Axis(*padded_range(low, high), LEFT, right()), TOP + LANE * len(bars)
    hatch = element(
        "defs",
        element(
            "pattern",
            element("path", d="M0 6 L6 0", class_="hatch"),
            id=drawing_id("hatch"),
            width=6,
            height=6,
            patternUnits="userSpaceOnUse",
        ),
    )
    parts = [hatch, *time_axis(across, TOP, bottom)]
    for n, b in enumerate(bars):
        y, x1, x2 = TOP + LANE * n + 8, across.position(b.start_us), across.position(b.end_us)
        about = title(
            f"{b.status}: {format_exact_time(b.start_us)} to {format_exact_time(b.end_us)}, closes at watermark {format_exact_time(b.closes_us)}"
        )
        last = x2 if b.last_us is None else across.position(b.last_us)
        parts.append(rect(x1, y, max(last - x1, 3), 18, f"session {b.status}", about))
        if b.last_us is not None and x2 > last:
            parts += [rect(last, y, x2 - last, 18, f"tail {b.status}", about)]
        if b.cap_us is not None and b.cap_us <= across.high:
            cap = across.position(b.cap_us)
            parts += [line(cap, y - 4, cap, y + 22, "cap"), line(x2, y + 9, cap, y + 9, "reachline")]
    if block.watermark_us is not None and near:
        x = across.position(block.watermark_us)
        parts += [
            line(x, TOP - 8, x, bottom, "watermark"),
            note(x, TOP - 12, f"watermark {format_exact_time(block.watermark_us)}"),
        ]
    return picture("Windows of the key in event time", bottom + 26, *parts)
