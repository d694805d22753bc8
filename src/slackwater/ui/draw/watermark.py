"""Draw a lane for each source and partition on one event-time axis, and the lag of the watermark.

source     ░░░░░░░░░░░░░▓▓▓▓▓●        newest event ●, before it the lateness ▓, which starts at the source's watermark
partition  ░░░▓▓▓▓▓●                  the lane that holds the global watermark is marked
"""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from slackwater.core.humanize import format_exact_time, format_span
from slackwater.ui.axis import Axis, padded_range
from slackwater.ui.blocks.watermark import LagPoint, WatermarkBlock, WatermarkLane
from slackwater.ui.svg import (
    count_axis,
    element,
    lane_start,
    line,
    note,
    path,
    picture,
    rect,
    right,
    shorten,
    text,
    time_axis,
    title,
)

MOST = 40  # maximum number of lanes drawn
LEFT = 220
LANE = 30


def select_lanes(lanes: Sequence[WatermarkLane]) -> list[WatermarkLane]:
    """Return at most MOST lanes: the holder, the sources, and the partitions that are furthest behind."""
    if len(lanes) <= MOST:
        return list(lanes)
    rank = {
        id(lane): (not lane.holds, lane.partition is not None, lane.idle, lane.watermark_us or -(1 << 62))
        for lane in lanes
    }
    chosen = {id(lane) for lane in sorted(lanes, key=lambda lane: rank[id(lane)])[:MOST]}
    return [lane for lane in lanes if id(lane) in chosen]


def draw_lanes(block: WatermarkBlock) -> Markup:
    """Draw the watermark lanes; return empty markup if there is no event time yet."""
    drawn = select_lanes(block.lanes)
    times = [t for lane in drawn for t in (lane.newest_us, lane.watermark_us) if t is not None]
    times += [] if block.watermark_us is None else [block.watermark_us]
    if not times:
        return Markup("")
    axis, top = Axis(*padded_range(min(times), max(times)), lane_start(LEFT), right()), 26
    bottom = top + LANE * len(drawn)
    parts, parted = time_axis(axis, top, bottom), {lane.source for lane in drawn if lane.partition is not None}
    for n, lane in enumerate(drawn):
        parts += _lane(lane, lane.source in parted and lane.partition is None, axis, top + LANE * n)
    if block.watermark_us is not None:
        x = axis.position(block.watermark_us)
        parts += [
            line(x, top - 8, x, bottom, "watermark"),
            note(x, top - 10, f"watermark {format_exact_time(block.watermark_us)}"),
        ]
    return picture("Event time of each source: newest event, lateness and watermark", bottom + 24, *parts)


def _lane(lane: WatermarkLane, parted: bool, axis: Axis, y: float) -> list[Markup]:
    middle, name = y + LANE / 2, lane.source if lane.partition is None else lane.partition
    name = f"stage {name}" if lane.of_stage else name
    indent = 22 if lane.partition is None else 38
    label = shorten(name, lane_start(LEFT) - indent - 6)
    parts = [
        line(lane_start(LEFT), y + LANE, right(), y + LANE, "rule"),
        text(indent, middle + 4, label, "lane holds" if lane.holds else "lane idle" if lane.idle else "lane"),
    ]
    if lane.holds:
        parts.append(
            element("path", title("holds the watermark"), d=f"M{indent - 15} {middle - 5} l9 5 l-9 5 z", class_="mark")
        )
    if lane.newest_us is None:
        if lane.watermark_us is not None:
            parts.append(rect(axis.position(lane.watermark_us) - 1.5, middle - 9, 3, 18, "tickmark busy"))
        parts.append(
            text(lane_start(LEFT) + 8, middle + 4, "nothing emitted yet" if lane.of_stage else "no event yet", "tick")
        )
        return parts
    newest, state = axis.position(lane.newest_us), "idle" if lane.idle else "busy"
    about = title(
        f"{name}: newest event {format_exact_time(lane.newest_us)}, lateness {format_span(lane.lateness_us)}, watermark {format_exact_time(lane.watermark_us)}"
        + (", idle" if lane.idle else "")
    )
    if lane.watermark_us is not None:
        begin = axis.position(lane.watermark_us)
        parts += [
            # a source with partitions has no band: the lateness is that of its partitions
            rect(begin, middle - (1 if parted else 6), newest - begin, 2 if parted else 12, f"band {state}", about),
            rect(begin - 1.5, middle - 9, 3, 18, f"tickmark {state}"),
        ]
    parts.append(element("circle", about, cx=newest, cy=middle, r=4.5, class_=f"newest {state}"))
    return parts


def draw_lag(lag_points: Sequence[LagPoint]) -> Markup:
    """Draw the clock minus the watermark at each commit."""
    with_lag = [b for b in lag_points if b.behind_us is not None]
    if len(with_lag) < 2:
        return Markup("")
    values = [b.behind_us or 0 for b in with_lag]
    height, top, bottom = 150, 12, 120
    across = Axis(
        min(b.committed_us for b in with_lag), max(b.committed_us for b in with_lag), lane_start(LEFT), right()
    )
    low, high = padded_range(min(values), max(values), 0.15)
    up = Axis(low, high, bottom, top)
    labels = [(v, format_span(v)) for v in sorted({min(values), max(values)})]
    points = [(across.position(b.committed_us), up.position(b.behind_us or 0)) for b in with_lag]
    dots = [
        element(
            "circle",
            title(f"epoch {b.epoch}: {format_span(b.behind_us or 0)} behind"),
            cx=x,
            cy=y,
            r=3.5,
            class_="point",
        )
        for b, (x, y) in zip(with_lag, points, strict=True)
    ]
    parts = [
        *time_axis(across, top, bottom),
        *count_axis(up, lane_start(LEFT), right(), labels),
        path(points, "trace"),
        *dots,
    ]
    return picture("How far the watermark is behind the clock, over the kept commits", height, *parts)
