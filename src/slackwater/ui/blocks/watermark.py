"""Block "Who holds the watermark?": the clocks of all sources and partitions, and the lag of the watermark by commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from slackwater.core.humanize import format_exact_time, format_span
from slackwater.query.why_report import WatermarkReport, WhyReport
from slackwater.state.commit import Commit
from slackwater.ui import svg
from slackwater.watermark import NO_WATERMARK


@dataclass(frozen=True)
class WatermarkLane:
    """The clock of a source (`partition` is None), a partition, or an input stage (`of_stage`). Times are in µs.

    Args:
        newest_us: The newest event time.
        quiet_us: How long the input has had no rows.
        since_us: When the last row of the input was read, according to the engine's clock.
        holds: Whether the input holds back the watermark.
    """

    source: str
    partition: str | None
    newest_us: int | None
    lateness_us: int
    watermark_us: int | None
    idle: bool
    quiet_us: int
    since_us: int
    holds: bool
    of_stage: bool = False


@dataclass(frozen=True)
class LagPoint:
    """How far the watermark was behind the clock at one commit.

    `behind_us`: the lag (µs); None if there was no watermark yet.
    """

    epoch: int
    committed_us: int
    behind_us: int | None


@dataclass(frozen=True)
class WatermarkBlock:
    """The block "Who holds the watermark?". `behind`: the lag of the watermark by kept commit, oldest first."""

    watermark_us: int | None
    lanes: tuple[WatermarkLane, ...]
    behind: tuple[LagPoint, ...]


def build_watermark(report: WhyReport, commits: Sequence[Commit]) -> WatermarkBlock:
    """Build the watermark block of one stage, or of all sources.

    `report`: a `why` report. `commits`: the kept commits, oldest first.
    """
    return WatermarkBlock(
        _watermark(report, commits),
        tuple(_lane(c, report) for c in _shown_clocks(report)),
        tuple(LagPoint(m.epoch, m.committed_us, _behind(m)) for m in commits),
    )


def _shown_clocks(report: WhyReport) -> tuple[WatermarkReport, ...]:
    """Return the clocks that the watermark block shows.

    For a report about one stage, these are the clocks of its inputs. For a report about several stages, they are the
    clocks of each source in the first stage that reads it.
    """
    if not report.stages:
        return report.clocks
    readers: dict[str, str] = {}
    clocks = [(s.stage, c) for s in report.stages for c in s.clocks if not c.of_stage]
    return tuple(c for stage, c in clocks if readers.setdefault(c.source, stage) == stage)


def _watermark(report: WhyReport, commits: Sequence[Commit]) -> int | None:
    if not report.stages or not commits:
        return report.watermark_us
    return None if commits[-1].watermark_us <= NO_WATERMARK else commits[-1].watermark_us


def _holds(clock: WatermarkReport, report: WhyReport) -> bool:
    """Return whether the watermark waits for the input with this clock.

    In a report about several stages, only the source at the end of the chain of waiting stages holds the watermark.
    """
    if clock.of_stage:
        return report.through[:1] == (clock.source,)
    return clock == report.holder and (bool(report.stages) or not report.through)


def _lane(clock: WatermarkReport, report: WhyReport) -> WatermarkLane:
    return WatermarkLane(
        clock.source,
        clock.partition,
        clock.max_event_us,
        clock.lateness_us,
        clock.watermark_us,
        clock.idle,
        clock.quiet_us,
        report.committed_us - clock.quiet_us,
        _holds(clock, report),
        clock.of_stage,
    )


def _behind(commit: Commit) -> int | None:
    watermark = commit.watermark_us
    return None if watermark <= NO_WATERMARK else commit.committed_us - watermark


MOST = 40  # maximum number of lanes to draw
LEFT = 220
LANE = 30


def select_lanes(lanes: Sequence[WatermarkLane]) -> list[WatermarkLane]:
    """Return at most MOST lanes, in their original order.

    The lane that holds the watermark is preferred, then sources, then the partitions that are furthest behind.
    """
    if len(lanes) <= MOST:
        return list(lanes)
    rank = {
        id(lane): (not lane.holds, lane.partition is not None, lane.idle, lane.watermark_us or -(1 << 62))
        for lane in lanes
    }
    chosen = {id(lane) for lane in sorted(lanes, key=lambda lane: rank[id(lane)])[:MOST]}
    return [lane for lane in lanes if id(lane) in chosen]


def draw_lanes(block: WatermarkBlock) -> Markup:
    """Draw the clocks of all inputs as lanes. Return empty markup if there is no event time yet."""
    drawn = select_lanes(block.lanes)
    times = [t for lane in drawn for t in (lane.newest_us, lane.watermark_us) if t is not None]
    times += [] if block.watermark_us is None else [block.watermark_us]
    if not times:
        return Markup("")
    axis, top = svg.Axis(*svg.padded_range(min(times), max(times)), svg.lane_start(LEFT), svg.right()), 26
    bottom = top + LANE * len(drawn)
    parts, parted = svg.time_axis(axis, top, bottom), {lane.source for lane in drawn if lane.partition is not None}
    for n, lane in enumerate(drawn):
        parts += _draw_lane(lane, lane.source in parted and lane.partition is None, axis, top + LANE * n)
    if block.watermark_us is not None:
        parts += svg.watermark_line(axis, block.watermark_us, top, bottom, 10)
    return svg.picture("Event time of each source: newest event, lateness and watermark", bottom + 24, *parts)


def _draw_lane(lane: WatermarkLane, parted: bool, axis: svg.Axis, y: float) -> list[Markup]:
    middle, name = y + LANE / 2, lane.source if lane.partition is None else lane.partition
    name = f"stage {name}" if lane.of_stage else name
    indent = 22 if lane.partition is None else 38
    label = svg.shorten(name, max(int((svg.lane_start(LEFT) - indent - 6) / svg.CHARACTER), 3))
    parts = [
        svg.line(svg.lane_start(LEFT), y + LANE, svg.right(), y + LANE, "rule"),
        svg.text(indent, middle + 4, label, "lane holds" if lane.holds else "lane idle" if lane.idle else "lane"),
    ]
    if lane.holds:
        parts.append(
            svg.element(
                "path", svg.title("holds the watermark"), d=f"M{indent - 15} {middle - 5} l9 5 l-9 5 z", class_="mark"
            )
        )
    if lane.newest_us is None:
        if lane.watermark_us is not None:
            parts.append(svg.rect(axis.position(lane.watermark_us) - 1.5, middle - 9, 3, 18, "tickmark busy"))
        parts.append(
            svg.text(
                svg.lane_start(LEFT) + 8, middle + 4, "nothing emitted yet" if lane.of_stage else "no event yet", "tick"
            )
        )
        return parts
    newest, state = axis.position(lane.newest_us), "idle" if lane.idle else "busy"
    about = svg.title(
        f"{name}: newest event {format_exact_time(lane.newest_us)}, lateness {format_span(lane.lateness_us)}, watermark {format_exact_time(lane.watermark_us)}"
        + (", idle" if lane.idle else "")
    )
    if lane.watermark_us is not None:
        begin = axis.position(lane.watermark_us)
        parts += [
            # a source with partitions has no band: the lateness is that of its partitions
            svg.rect(begin, middle - (1 if parted else 6), newest - begin, 2 if parted else 12, f"band {state}", about),
            svg.rect(begin - 1.5, middle - 9, 3, 18, f"tickmark {state}"),
        ]
    parts.append(svg.element("circle", about, cx=newest, cy=middle, r=4.5, class_=f"newest {state}"))
    return parts


def draw_lag(lag_points: Sequence[LagPoint]) -> Markup:
    """Draw how far the watermark was behind the clock at each commit."""
    series = [(b.epoch, b.committed_us, b.behind_us) for b in lag_points if b.behind_us is not None]
    values = [behind for _, _, behind in series] or [0]
    up, labeled = (
        svg.Axis(*svg.padded_range(min(values), max(values), 0.15), 120, 12),
        sorted({min(values), max(values)}),
    )
    label, start = "How far the watermark is behind the clock, over the kept commits", svg.lane_start(LEFT)
    return svg.draw_trace(label, series, up, start, format_span, labeled=labeled, height=150, suffix=" behind")
