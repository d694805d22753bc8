"""Draw the time of each epoch, stacked by phase."""

from __future__ import annotations

from markupsafe import Markup

from slackwater.core.humanize import format_span, plural
from slackwater.ui.axis import Axis, tick_step
from slackwater.ui.blocks.throughput import PHASES, Throughput
from slackwater.ui.svg import count_axis, picture, rect, right, space_labels, text, title

LEFT, TOP, BOTTOM = 70, 12, 170


def draw_epoch_times(block: Throughput) -> Markup:
    """Draw a stacked bar for each epoch; return empty markup if the time of no epoch is known."""
    totals = [sum(lap.phases.values()) for lap in block.laps if lap.phases]
    if not totals or not max(totals):
        return Markup("")
    up = Axis(0, max(totals), BOTTOM, TOP)
    step = tick_step(up.high, 3)
    slot = (right() - LEFT) / max(len(block.laps), 8)
    width = min(slot * 0.62, 64)
    drawn = count_axis(up, LEFT, right(), [(us, format_span(us)) for us in range(0, up.high + 1, step)])
    names = space_labels([str(lap.epoch) for lap in block.laps], slot)
    for n, lap in enumerate(block.laps):
        x, offset = LEFT + slot * (n + 0.5), 0
        drawn.append(text(x, BOTTOM + 18, names[n], "tick", "middle"))
        if not lap.phases:
            drawn.append(text(x, BOTTOM - 6, "not kept", "tick", "middle"))
        for phase in PHASES:
            us = lap.phases.get(phase, 0)
            if us:
                low, high = up.position(offset), up.position(offset + us)
                about = title(f"epoch {lap.epoch}, {plural(lap.rows or 0, 'row')}: {format_span(us)} {phase}")
                drawn.append(rect(x - width / 2, high, width, max(low - high, 0.6), f"phase {phase}", about))
                offset += us
    return picture("Time of each kept epoch by its phases", BOTTOM + 28, *drawn)
