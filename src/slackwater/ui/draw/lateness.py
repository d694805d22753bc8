"""Draw late rows by the additional lateness that would have kept them."""

from __future__ import annotations

from markupsafe import Markup

from slackwater.core.humanize import format_brief, format_span, plural
from slackwater.core.lateness_histogram import LatenessStats
from slackwater.ui.axis import Axis
from slackwater.ui.svg import count_axis, picture, rect, right, space_labels, text, title

LEFT, TOP, BOTTOM = 70, 12, 120


def draw_lateness(block: LatenessStats) -> Markup:
    """Draw one bar per step of lateness; return empty markup if no rows were late."""
    if not block.chances:
        return Markup("")
    counts, remaining = list[int](), block.late
    for chance in block.chances:
        counts.append(remaining - chance.late)
        remaining = chance.late
    up = Axis(0, max(*counts, 1), BOTTOM, TOP)
    slot = (right() - LEFT) / max(len(counts), 8)
    width, drawn = min(slot * 0.8, 80), count_axis(up, LEFT, right(), [(v, format_brief(v)) for v in up.counts()])
    names = space_labels([format_span(chance.more_us) for chance in block.chances], slot)
    for n, (chance, count) in enumerate(zip(block.chances, counts, strict=True)):
        x, top = LEFT + slot * (n + 0.5), up.position(count)
        kind = "part late" if block.advice is None or chance.more_us > block.advice.more_us else "part used"
        about = title(f"{plural(count, 'late row')} that {format_span(chance.more_us)} more would have kept")
        drawn.append(rect(x - width / 2, top, width, max(BOTTOM - top, 1 if count else 0), kind, about))
        drawn.append(text(x, BOTTOM + 18, names[n], "tick", "middle"))
    return picture("Late rows by how much more lateness would have kept them", BOTTOM + 28, *drawn)
