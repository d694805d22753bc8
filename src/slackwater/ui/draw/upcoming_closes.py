"""Draw open windows by the watermark that closes them. Each bar links to its first keys."""

from __future__ import annotations

from markupsafe import Markup

from slackwater.core.humanize import format_brief, format_exact_time
from slackwater.ui.axis import Axis
from slackwater.ui.blocks.upcoming_closes import UpcomingCloses, count_windows
from slackwater.ui.svg import count_axis, element, line, note, picture, rect, right, text, time_axis, title

LEFT, TOP, BOTTOM, REST = 70, 26, 190, 60


def draw_closes(block: UpcomingCloses, base: str | None) -> Markup:
    """Draw the bins of closing windows. `base`: the prefix of the URLs that bars link to; None for no links."""
    if not block.bins:
        return Markup("")
    regular = [b for b in block.bins if b.to_us - b.from_us == block.width_us]
    rest = block.bins[-1] if len(regular) < len(block.bins) else None
    drawn = regular or list(block.bins)
    low, high, far = drawn[0].from_us, drawn[-1].to_us, False
    if block.watermark_us is not None:
        far = high - block.watermark_us > 4 * max(high - low, 1)
        low = low if far else min(low, block.watermark_us)
    room = (high - low) // 40 + 1
    end = right() - (REST if rest and regular else 0)
    across = Axis(low - room, high + room, LEFT, end)
    up = Axis(0, max(b.count for b in block.bins), BOTTOM, TOP)
    parts = [
        *time_axis(across, TOP, BOTTOM),
        *count_axis(up, LEFT, right(), [(v, format_brief(v)) for v in up.counts()]),
    ]
    for b in drawn:
        x1, x2 = across.position(b.from_us), across.position(b.to_us)
        gap = 1 if x2 - x1 > 4 else 0
        parts.append(_bar(b.from_us, b.to_us, b.count, x1 + gap / 2, max(x2 - x1 - gap, 2), up, base, block.what))
    if rest is not None and regular:
        parts.append(_bar(rest.from_us, rest.to_us, rest.count, end + 18, REST - 30, up, base, block.what))
        parts.append(text(end + 18 + (REST - 30) / 2, BOTTOM + 16, "later", "tick", "middle"))
    if block.watermark_us is not None:
        x = across.position(block.watermark_us)
        name = f"watermark {format_exact_time(block.watermark_us)}" + (", far before" if far else "")
        parts += [line(x, TOP - 8, x, BOTTOM, "watermark"), note(x, TOP - 10, name)]
    return picture(f"Open {block.what} by the watermark that closes them", BOTTOM + 28, *parts)


def _bar(low: int, high: int, count: int, x: float, width: float, up: Axis, base: str | None, noun: str) -> Markup:
    top = min(up.position(count), BOTTOM - 2)
    about = f"{count_windows(count, noun)} {'closes' if count == 1 else 'close'} from {format_exact_time(low)} to {format_exact_time(high)}"
    bar = rect(x, top, width, BOTTOM - top, "bar")
    if base is None:
        return element("g", title(about), bar)
    # the whole height is clickable, so that the pointer can also hit a bar of one window
    click_area = rect(x, TOP, width, BOTTOM - TOP, "reach")
    return element("a", title(about), click_area, bar, href=f"{base}/closing?from={low}&to={high}", aria_label=about)
