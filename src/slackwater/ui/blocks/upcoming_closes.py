"""The block "What closes next?": a histogram of open windows by the watermark that closes them, and the keys of a bin.

watermark
    │  ▂▅█▃▁▁  ▂▁              ▁
    └──────────────▶ closes at

Sessions are counted with one scan of a few columns. A session stored as one WHOLE row closes when that row is due. A
session stored as fragments, which the cap may still cut, is first merged, as it would be before emission. Tumbling and
hopping windows are counted from the number of keys in each pane, which is part of the commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import numpy as np
import polars as pl
from markupsafe import Markup

from slackwater.core.hashing import mix_bits
from slackwater.core.humanize import format_brief, format_exact_time, plural
from slackwater.core.sorted_arrays import Int64s, distinct_values, is_in_sorted
from slackwater.errors import raise_unregistered
from slackwater.evolution.pipeline_from_state import restore_operator
from slackwater.operators.base import NonWindowOperator, Operator
from slackwater.operators.window_operator_base import WindowOperator
from slackwater.operators.window_operators import PaneWindowOperator, SessionWindowOperator
from slackwater.query import state_inspection
from slackwater.state.protocol import Snapshot, StateReader
from slackwater.ui import svg
from slackwater.watermark import NO_WATERMARK
from slackwater.windows import pane_windows
from slackwater.windows.state_layout import EMITTED, EMITTED_FRAGMENT, FRAGMENT, WHOLE

BINS = 200
KEYS = 100  # maximum number of listed keys of a bin
PANES = 5000  # maximum number of panes to read for the listed keys; long windows with short hops have many panes
AT_ONCE = 50_000  # number of units that are merged at a time


@dataclass(frozen=True)
class CloseBin:
    """The number of windows that close at a watermark in [from_us, to_us), in µs."""

    from_us: int
    to_us: int
    count: int


@dataclass(frozen=True)
class UpcomingCloses:
    """The block "What closes next?".

    Args:
        what: What is counted: "sessions" or "keys in windows". For hopping windows, the count is an upper bound.
        width_us: The width of each bin (µs). The last bin may be wider: it contains all windows that close much later.
        bins: The non-empty bins.
    """

    what: str
    watermark_us: int | None
    total: int
    width_us: int
    bins: tuple[CloseBin, ...]


@dataclass(frozen=True)
class ClosingWindow:
    """An open window of a key. Times are in µs."""

    key: Mapping[str, Any]
    start_us: int
    closes_us: int
    reason: str


def count_windows(count: int, noun: str) -> str:
    """Format a count with its noun: `1 open session`, `2,000 keys in open windows`."""
    if noun == "sessions":
        return plural(count, "open session")
    return plural(count, "key in open windows", "keys in open windows")


def build_closes(snapshot: Snapshot) -> UpcomingCloses | None:
    """Build the "What closes next?" block from a snapshot of one stage. Return None if the stage has no windows.

    Raises StateError if the state cannot be read.
    """
    last = snapshot.commit.stages[-1]
    closes = _closing_times(restore_operator(snapshot.commit, -1), snapshot)
    if closes is None:
        return None
    noun, times, counts = closes
    width, bins = bin_times(times, counts)
    watermark = last.watermark_us
    return UpcomingCloses(noun, None if watermark <= NO_WATERMARK else watermark, int(counts.sum()), width, bins)


@singledispatch
def _closing_times(operator: Operator, snapshot: Snapshot) -> tuple[str, Int64s, Int64s] | None:
    """Return what is counted, the closing times (µs, unordered), and the number of windows at each closing time.

    Return None for a stage without windows.
    """
    raise_unregistered(operator, "slackwater.ui.blocks.upcoming_closes")


@_closing_times.register
def _(operator: PaneWindowOperator, snapshot: Snapshot) -> tuple[str, Int64s, Int64s]:
    last = snapshot.commit.stages[-1]
    groups = {pane: sum(of_shards) for pane, of_shards in last.panes.items()}
    totals = pane_windows.count_groups_by_window(operator, groups, last.watermark_us)
    ends = {s + operator.duration_us: n for s, n in sorted(totals.items()) if n}
    still = [(e, n) for e, n in ends.items() if e > last.watermark_us]
    times = np.array([e for e, _ in still], dtype=np.int64)
    return "keys in windows", times, np.array([n for _, n in still], dtype=np.int64)


@_closing_times.register
def _(operator: SessionWindowOperator, snapshot: Snapshot) -> tuple[str, Int64s, Int64s]:
    watermark = snapshot.commit.stages[-1].watermark_us
    close_times: list[Int64s] = [np.empty(0, dtype=np.int64)]
    for reader, rows in _outlines(snapshot, operator):
        h, kind, _, due = (rows[c].to_numpy() for c in rows.columns)
        fragments = distinct_values(h[(kind == FRAGMENT) | (kind == EMITTED_FRAGMENT)])
        whole = ((kind == WHOLE) | (kind == EMITTED)) & (due > watermark)
        if len(fragments):
            whole &= ~is_in_sorted(h, fragments)
        close_times.append(due[whole])
        for hashes in _chunks(fragments):
            close_times.append(
                state_inspection.list_open_windows(operator, reader.units(hashes), watermark)["__closes"].to_numpy()
            )
    times = np.concatenate(close_times)
    return "sessions", times, np.ones(len(times), dtype=np.int64)


@_closing_times.register(NonWindowOperator)
def _(operator: Operator, snapshot: Snapshot) -> None:
    return


def bin_times(times: Int64s, counts: Int64s) -> tuple[int, tuple[CloseBin, ...]]:
    """Return the bin width (µs) and the non-empty bins.

    If the last 1% of the windows close much later than the others, they share one bin.

    `times`: closing times (µs), in any order, because sorting millions would be slow. `counts`: the number of windows
    that close at each time.
    """
    if not len(times):
        return 0, ()
    first, last = int(times.min()), int(times.max())
    near = _percentile(times, counts)
    end = near if last - first > 20 * max(near - first, 1_000_000) else last
    width = svg.tick_step(end - first + 1, BINS - 2)
    end = (end // width + 1) * width - 1  # the last microsecond of the bin
    low = first // width
    far = times > end
    inside = ~far
    sums = np.bincount(times[inside] // width - low, weights=counts[inside])
    bins = [
        CloseBin((low + n) * width, (low + n + 1) * width, round(float(sums[n]))) for n in np.flatnonzero(sums).tolist()
    ]
    if far.any():
        bins.append(CloseBin(int(times[far].min()), last + 1, int(counts[far].sum())))
    return width, tuple(bins)


def _percentile(times: Int64s, counts: Int64s) -> int:
    """Return the 99th percentile of the times, each weighted by its count."""
    if len(times) == counts.sum():  # every count is 1
        index = max(-(-99 * len(times) // 100) - 1, 0)
        return int(np.partition(times, index)[index])
    order = np.argsort(times)
    return int(times[order][int(np.searchsorted(np.cumsum(counts[order]), 0.99 * int(counts.sum())))])


def closing_windows(snapshot: Snapshot, from_us: int, to_us: int) -> list[ClosingWindow]:
    """Return the first windows to close in [from_us, to_us), at most KEYS, ordered by closing time.

    Raises StateError if the state cannot be read.
    """
    return _closing_keys(restore_operator(snapshot.commit, -1), snapshot, from_us, to_us)


@singledispatch
def _closing_keys(operator: Operator, snapshot: Snapshot, low: int, high: int) -> list[ClosingWindow]:
    raise_unregistered(operator, "slackwater.ui.blocks.upcoming_closes.closing_windows")


@_closing_keys.register(WindowOperator)
def _(operator: WindowOperator, snapshot: Snapshot, low: int, high: int) -> list[ClosingWindow]:
    watermark = snapshot.commit.stages[-1].watermark_us
    open_frames = [state_inspection.list_open_windows(operator, operator.empty_state(), watermark)]
    for reader, rows in _outlines(snapshot, operator):
        for hashes in _candidate_hashes(operator, reader, rows, watermark, low, high):
            windows = state_inspection.list_open_windows(operator, reader.units(hashes), watermark)
            open_frames.append(windows.filter(pl.col("__closes").is_between(low, high, closed="left")))
    chosen = pl.concat(open_frames).sort("__closes", "__start", *operator.key_names).head(KEYS)
    return [
        ClosingWindow(state_inspection.to_plain_key(r, operator.key_names), r["__start"], r["__closes"], r["__reason"])
        for r in chosen.iter_rows(named=True)
    ]


@_closing_keys.register(NonWindowOperator)
def _(operator: Operator, snapshot: Snapshot, low: int, high: int) -> list[ClosingWindow]:
    return []


@singledispatch
def _candidate_hashes(
    operator: Operator, reader: StateReader, rows: pl.DataFrame, watermark: int, low: int, high: int
) -> Iterator[Int64s]:
    """Yield hashes of the state units that may contain the first windows to close in [low, high), as arrays.

    A unit comprises the rows of a key, or of a key in one pane. All units of a window are in the same array.
    """
    raise_unregistered(operator, "slackwater.ui.blocks.upcoming_closes.closing_windows")


@_candidate_hashes.register
def _(
    operator: PaneWindowOperator, reader: StateReader, rows: pl.DataFrame, watermark: int, low: int, high: int
) -> Iterator[Int64s]:
    h, start = rows["__h"].to_numpy(), rows["__start"].to_numpy()
    inside = np.flatnonzero((start < high) & (start >= low - operator.duration_us))
    starts = distinct_values(np.sort(start[inside]))[:PANES]
    # the windows that close first are in the first panes: take KEYS keys of each pane, then all panes of these keys
    picked = [np.sort(h[inside[start[inside] == pane]])[:KEYS] for pane in starts]
    if picked:
        hashes = distinct_values(reader.units(distinct_values(np.concatenate(picked)))["__kh"].to_numpy())
        yield distinct_values(mix_bits(np.repeat(hashes, len(starts)), np.tile(starts, len(hashes))))


@_candidate_hashes.register
def _(
    operator: SessionWindowOperator, reader: StateReader, rows: pl.DataFrame, watermark: int, low: int, high: int
) -> Iterator[Int64s]:
    h, kind, _, due = (rows[c].to_numpy() for c in rows.columns)
    fragments = distinct_values(h[(kind == FRAGMENT) | (kind == EMITTED_FRAGMENT)])
    whole = ((kind == WHOLE) | (kind == EMITTED)) & (due > watermark) & (due >= low) & (due < high)
    chosen = np.flatnonzero(whole & ~is_in_sorted(h, fragments))
    chosen = chosen[np.argsort(due[chosen], kind="stable")][:KEYS]
    yield distinct_values(h[chosen])
    yield from _chunks(fragments)


def _outlines(snapshot: Snapshot, logic: WindowOperator) -> Iterator[tuple[StateReader, pl.DataFrame]]:
    stages = snapshot.commit.stages
    for shard in range(stages[-1].shards):
        reader = snapshot.reader(shard, logic, len(stages) - 1)
        yield reader, reader.outline()


def _chunks(hashes: Int64s) -> Iterator[Int64s]:
    for begin in range(0, len(hashes), AT_ONCE):
        yield hashes[begin : begin + AT_ONCE]


LEFT, TOP, BOTTOM, REST = 70, 26, 190, 60


def draw_closes(block: UpcomingCloses, base: str | None) -> Markup:
    """Draw the number of windows in each bin. `base`: the prefix of the URLs to which bars link; None for no links."""
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
    end = svg.right() - (REST if rest and regular else 0)
    across = svg.Axis(low - room, high + room, LEFT, end)
    up = svg.Axis(0, max(b.count for b in block.bins), BOTTOM, TOP)
    parts = svg.time_axis(across, TOP, BOTTOM) + svg.count_axis(up, LEFT, up.counts(), format_brief)
    for b in drawn:
        x1, x2 = across.position(b.from_us), across.position(b.to_us)
        gap = 1 if x2 - x1 > 4 else 0
        parts.append(_bar(b.from_us, b.to_us, b.count, x1 + gap / 2, max(x2 - x1 - gap, 2), up, base, block.what))
    if rest is not None and regular:
        parts.append(_bar(rest.from_us, rest.to_us, rest.count, end + 18, REST - 30, up, base, block.what))
        parts.append(svg.text(end + 18 + (REST - 30) / 2, BOTTOM + 16, "later", "tick", "middle"))
    if block.watermark_us is not None:
        parts += svg.watermark_line(across, block.watermark_us, TOP, BOTTOM, 10, ", far before" if far else "")
    return svg.picture(f"Open {block.what} by the watermark that closes them", BOTTOM + 28, *parts)


def _bar(low: int, high: int, count: int, x: float, width: float, up: svg.Axis, base: str | None, noun: str) -> Markup:
    top = min(up.position(count), BOTTOM - 2)
    about = f"{count_windows(count, noun)} {'closes' if count == 1 else 'close'} from {format_exact_time(low)} to {format_exact_time(high)}"
    bar = svg.rect(x, top, width, BOTTOM - top, "bar")
    if base is None:
        return svg.element("g", svg.title(about), bar)
    # the whole height is clickable, so that the pointer can hit even a bar of one window
    click_area = svg.rect(x, TOP, width, BOTTOM - TOP, "reach")
    return svg.element(
        "a", svg.title(about), click_area, bar, href=f"{base}/closing?from={low}&to={high}", aria_label=about
    )
