"""Draw the buffered rows of both sides of a join by event time. A line per side separates expired rows."""

from __future__ import annotations

from markupsafe import Markup

from slackwater.core.humanize import format_brief, format_exact_time, format_number, plural
from slackwater.ui.axis import Axis
from slackwater.ui.blocks.join_buffers import BufferSide, JoinBuffers
from slackwater.ui.svg import element, lane_start, line, note, picture, rect, right, text, time_axis, title

LEFT, TOP, LANE = 120, 30, 92


def draw_join_buffers(block: JoinBuffers) -> Markup:
    """Draw the buffered rows of both sides by event time; return empty markup if there are none."""
    times = [t for side in block.sides for age in side.ages for t in (age.from_us, age.to_us)]
    if not times:
        return Markup("")
    marks = [m for side in block.sides for m in (side.expires_us, block.watermark_us) if m is not None]
    low, high = min(times), max(times)
    near = [m for m in marks if low - 2 * (high - low) <= m <= high + 2 * (high - low)]
    low, high = min([low, *near]), max([high, *near])
    room = (high - low) // 40 + 1
    across = Axis(low - room, high + room, lane_start(LEFT), right())
    max_rows, bottom = max(age.rows for side in block.sides for age in side.ages), TOP + LANE * len(block.sides)
    parts = time_axis(across, TOP, bottom)
    for n, side in enumerate(block.sides):
        parts += _lane(side, across, TOP + LANE * n, max_rows)
    if block.watermark_us in near and block.watermark_us is not None:
        x = across.position(block.watermark_us)
        parts += [
            line(x, TOP - 8, x, bottom, "watermark"),
            note(x, TOP - 12, f"watermark {format_exact_time(block.watermark_us)}"),
        ]
    return picture("Rows that wait for partners, by event time", bottom + 24, *parts)


def _lane(side: BufferSide, across: Axis, y: float, max_rows: int) -> list[Markup]:
    base = y + LANE - 6
    up = Axis(0, max_rows, base, y + 12)
    parts = [
        line(lane_start(LEFT), base, right(), base, "rule"),
        text(lane_start(LEFT) - 10, base - 22, side.side, "lane", "end"),
        text(lane_start(LEFT) - 10, base - 6, format_brief(side.rows), "tick", "end"),
    ]
    for age in side.ages:
        x1, x2 = across.position(age.from_us), across.position(age.to_us)
        width = max(x2 - x1 - (1 if x2 - x1 > 4 else 0), 2)
        matched_text = "" if age.matched is None else f", {format_number(age.matched)} of them with a partner"
        about = title(
            f"{side.side}: {plural(age.rows, 'row')} of {format_exact_time(age.from_us)} to {format_exact_time(age.to_us)}{matched_text}"
        )
        top = min(up.position(age.rows), base - 2)
        parts.append(rect(x1, top, width, base - top, "bar" if age.matched is None else "bar alone", about))
        if age.matched:
            top = min(up.position(age.matched), base - 1)
            parts.append(rect(x1, top, width, base - top, "bar", about))
    if side.expires_us is not None and across.low <= side.expires_us <= across.high:
        x = across.position(side.expires_us)
        over = title(f"{side.side}: rows before {format_exact_time(side.expires_us)} have expired")
        parts += [
            element("line", over, x1=x, y1=y + 8, x2=x, y2=base, class_="cap"),
            note(x, y + 16, "expired before", "tick"),
        ]
    return parts
