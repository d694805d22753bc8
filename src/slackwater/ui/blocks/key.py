"""Block "One key": the open and retained windows of a key, their values, and the watermark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, TypeVar

import polars as pl
from markupsafe import Markup

from slackwater.core.humanize import format_exact_time
from slackwater.errors import StartError, Topic, raise_unregistered
from slackwater.evolution.compare_stage import step_type_name
from slackwater.evolution.pipeline_from_state import restore_window
from slackwater.operators.base import Operator
from slackwater.operators.window_operators import PaneWindowOperator, SessionWindowOperator
from slackwater.query import state_inspection
from slackwater.query.open_windows import compute_current_windows
from slackwater.query.why_report import KeyHistory
from slackwater.state.protocol import Snapshot
from slackwater.ui import svg
from slackwater.watermark import NO_WATERMARK
from slackwater.windows.state_layout import FLOOR


@dataclass(frozen=True)
class KeyWindow:
    """An open or retained window of a key.

    Args:
        last_us: The last event of a session (µs), where its gap begins; None for tumbling and hopping windows.
        cap_us: The latest time at which a session is cut (µs); None for tumbling and hopping windows.
        closes_us: The watermark that closes the window (µs).
        cut: Whether the session closes because of its cap.
        revision: How many times the window has been emitted; None if the stage emits each window only once.
    """

    start_us: int
    last_us: int | None
    end_us: int
    cap_us: int | None
    closes_us: int
    status: str
    cut: bool
    revision: int | None
    values: Mapping[str, Any]


@dataclass(frozen=True)
class KeyView:
    """The block "One key".

    Args:
        of_sessions: Whether the windows are sessions.
        told: The lines that `why --key` prints about the key.
        history: The late rows and the latest results of the key; None if there is no config.
    """

    key: Mapping[str, Any]
    of_sessions: bool
    watermark_us: int | None
    epoch: int
    bars: tuple[KeyWindow, ...]
    told: tuple[str, ...]
    history: KeyHistory | None = None


def build_key(
    snapshot: Snapshot,
    key_texts: state_inspection.Texts,
    why_lines: Sequence[str] = (),
    history: KeyHistory | None = None,
) -> KeyView:
    """Build the "One key" block from a snapshot of one stage.

    Args:
        snapshot: A snapshot narrowed to the stage.
        key_texts: The values of the key columns as strings; None for NULL.
        why_lines: The lines that `why --key` prints about the key.
        history: The late rows and the latest results of the key, if known.

    Raises StartError if the key is invalid or the stage has no windows.
    """
    last = snapshot.commit.stages[-1]
    if (kind := step_type_name(last.fingerprint.get("kind"))) != "window":
        raise StartError(
            f"{snapshot.commit.pipeline}: a {kind} has no windows, so there is no page for a key", Topic.NO_WINDOWS
        )
    logic = restore_window(snapshot.commit, -1)
    key = state_inspection.parse_key(logic, key_texts)
    rows = state_inspection.read_key_rows(snapshot, logic, key, -1)
    windows = compute_current_windows(logic, rows, last.watermark_us, snapshot.commit.epoch)
    window = logic.window
    start, end = window.window_start_column, window.window_end_column
    hidden = {*logic.key_names, start, end, "_status", "_closes_at", "_last_event", "_epoch"}
    times = [c for c in (start, end, "_closes_at", "_last_event") if c in windows.columns]
    windows = windows.with_columns(pl.col(c).dt.timestamp("us") for c in times).sort(start)
    values = [c for c in windows.columns if c not in hidden]
    bars, longest = [], _session_cap_us(logic)
    for r in windows.iter_rows(named=True):
        cap = None if longest is None else r[start] + longest
        bars.append(
            KeyWindow(
                start_us=r[start],
                last_us=r.get("_last_event"),
                end_us=r[end],
                cap_us=cap,
                closes_us=r["_closes_at"],
                status=r["_status"],
                cut=cap is not None and r["_closes_at"] == cap,
                revision=_revision(rows, r[start], r[end]) if logic.revises else None,
                values=state_inspection.to_plain_key(r, values),
            )
        )
    return KeyView(
        state_inspection.to_plain_key(key.row(0, named=True), logic.key_names),
        longest is not None,
        None if last.watermark_us <= NO_WATERMARK else last.watermark_us,
        snapshot.commit.epoch,
        tuple(bars),
        tuple(why_lines),
        history,
    )


@singledispatch
def _session_cap_us(operator: Operator) -> int | None:
    """Return the maximum duration of a session in µs, or None if the windows are not sessions."""
    raise_unregistered(operator, "slackwater.ui.blocks.key")


@_session_cap_us.register
def _(operator: PaneWindowOperator) -> None:
    return


@_session_cap_us.register
def _(operator: SessionWindowOperator) -> int:
    return operator.cap_us


def _revision(rows: pl.DataFrame, start: int, end: int) -> int:
    window_rows = rows.filter((pl.col("__kind") != FLOOR) & pl.col("__start").is_between(start, end, closed="left"))
    revision = window_rows["__rev"].max()
    return revision if isinstance(revision, int) else 0


# -- drawings of windows in event time ---------------------------------------------------------------------------------

TOP = 30
MOST = 60  # maximum number of windows of a key to draw


@dataclass(frozen=True)
class SessionBar:
    """A window to draw, and the key that it belongs to. Times are in µs.

    `last_us`: the last event of a session, where its gap begins; None for tumbling and hopping windows.
    """

    key: str
    start_us: int
    last_us: int | None
    end_us: int
    status: str


def draw_key_timeline(block: KeyView) -> Markup:
    """Draw up to MOST of the key's latest windows as bars with hatched gaps, and their caps as lines.

    Return empty markup if the key has no windows.
    """
    bars = block.bars[-MOST:]
    if not bars:
        return Markup("")
    low, high = min(b.start_us for b in bars), max(b.end_us for b in bars)
    # a cap far beyond the session is not drawn, because the session would be too small to see
    reach = high + 11 * max(high - low, 1_000_000)
    high = max([high, *(b.cap_us for b in bars if b.cap_us is not None and b.cap_us <= reach)])

    def lane(b: KeyWindow, across: svg.Axis, top: float) -> list[Markup]:
        y = top + 8
        parts = _bar(b, across, y, 18, f", closes at watermark {format_exact_time(b.closes_us)}")
        if b.cap_us is not None and b.cap_us <= across.high:
            end, cap = across.position(b.end_us), across.position(b.cap_us)
            parts += [svg.line(cap, y - 4, cap, y + 22, "cap"), svg.line(end, y + 9, cap, y + 9, "reachline")]
        return parts

    span, far = (low, high), 2 * (high - low)
    return _draw_lanes("Windows of the key in event time", bars, lane, span, far, block.watermark_us, 14, 34)


def draw_sessions(bars: Sequence[SessionBar], watermark_us: int | None) -> Markup:
    """Draw windows of several keys, each in a lane labeled with its key. Return empty markup if `bars` is empty."""
    if not bars:
        return Markup("")
    low, high = min(b.start_us for b in bars), max(b.end_us for b in bars)

    def lane(b: SessionBar, across: svg.Axis, top: float) -> list[Markup]:
        return [svg.text(14, top + 18, svg.shorten(b.key, 26), "lane"), *_bar(b, across, top + 5, 16)]

    return _draw_lanes("Windows in event time", bars, lane, (low, high), high - low, watermark_us, 220, 26)


def _bar(b: KeyWindow | SessionBar, across: svg.Axis, y: float, height: float, closes: str = "") -> list[Markup]:
    """Draw a window as a bar. `closes`: the end of its tooltip, which says when the window closes."""
    start, end = across.position(b.start_us), across.position(b.end_us)
    last = end if b.last_us is None else across.position(b.last_us)
    key = f"{b.key}, " if isinstance(b, SessionBar) else ""
    about = svg.title(f"{key}{b.status}: {format_exact_time(b.start_us)} to {format_exact_time(b.end_us)}{closes}")
    parts = [svg.rect(start, y, max(last - start, 3), height, f"session {b.status}", about)]
    if end > last:
        parts.append(svg.rect(last, y, end - last, height, f"tail {b.status}", about))
    return parts


W = TypeVar("W", bound=KeyWindow | SessionBar)


def _draw_lanes(
    label: str,
    bars: Sequence[W],
    draw: Callable[[W, svg.Axis, float], list[Markup]],
    span: tuple[int, int],
    far: int,
    watermark_us: int | None,
    start: float,
    height: float,
) -> Markup:
    """Draw one lane per bar over a time axis.

    Args:
        label: A description for screen readers.
        bars: The windows.
        draw: A function that draws a bar. Its arguments are the bar, the axis, and the y coordinate of the lane's top.
        span: The first and the last time to show (µs).
        far: How far outside `span` the watermark may be and still be drawn (µs).
        watermark_us: The watermark (µs); None if there is none yet.
        start: The x coordinate at which the axis starts.
        height: The height of a lane.
    """
    low, high = span
    if watermark_us is not None and not low - far <= watermark_us <= high + far:
        watermark_us = None
    if watermark_us is not None:
        low, high = min(low, watermark_us), max(high, watermark_us)
    across = svg.Axis(*svg.padded_range(low, high), start, svg.right())
    bottom = TOP + height * len(bars)
    pattern = svg.element(
        "pattern",
        svg.element("path", d="M0 6 L6 0", class_="hatch"),
        id=svg.drawing_id("hatch"),
        width=6,
        height=6,
        patternUnits="userSpaceOnUse",
    )
    parts = [svg.element("defs", pattern), *svg.time_axis(across, TOP, bottom)]
    for n, bar in enumerate(bars):
        parts += draw(bar, across, TOP + height * n)
    if watermark_us is not None:
        parts += svg.watermark_line(across, watermark_us, TOP, bottom)
    return svg.picture(label, bottom + 26, *parts)
