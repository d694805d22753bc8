"""Dataclasses of the report that `why` returns, and sentences that describe what a watermark is waiting for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slackwater.core.humanize import format_duration
from slackwater.core.lateness_histogram import NOTHING, LatenessStats
from slackwater.core.notebook_repr import NotebookRepr, TerminalRepr
from slackwater.watermark import NO_WATERMARK, SourceClock


@dataclass(frozen=True)
class WatermarkReport:
    """The clock of a source, of one of its partitions, or of an input stage, as of a commit.

    Args:
        source: The name of the source or stage.
        partition: The partition; None for the whole source.
        max_event_us: The newest event time; None before the first event.
        lateness_us: How far the watermark stays behind the newest event. For a stage, how far the output watermark is
            behind the watermark of the stage.
        watermark_us: The watermark; None before the first event.
        idle: Whether the source or partition is idle; False for a stage.
        quiet_us: How long the source or partition has returned no rows.
        idle_in_us: How long the source or partition must stay quiet to become idle; None if it is idle.
        of_stage: Whether this is the clock of a stage.
    """

    source: str
    partition: str | None
    max_event_us: int | None
    lateness_us: int
    watermark_us: int | None
    idle: bool
    quiet_us: int
    idle_in_us: int | None
    of_stage: bool = False


@dataclass(frozen=True)
class RequiredEvent:
    """An event that a window waits for.

    Args:
        source: The source that must return the event.
        partitions: The partitions that must each return an event; empty if an event from any partition is enough.
        event_us: The lowest event time that is sufficient.
        choice: A number that alternatives share. One of these events is enough, because all their sources are idle.
            None if this event is required.
    """

    source: str
    partitions: tuple[str, ...]
    event_us: int
    choice: int | None = None


@dataclass(frozen=True)
class OpenWindow:
    """An open window or session.

    Args:
        key: The key columns; None for a window of all keys.
        start_us: The start of the window.
        last_us: The last event time of a session, if known.
        closes_us: The watermark that closes the window.
        reason: `close`; `cap` for a session that is cut at this watermark; `timer` for a row of state of a keyed stage.
        rows: The number of rows, if the window has a count(*).
        groups: The maximum possible number of keys, for a window of all keys.
        needs: The events that would close the window.
        silence_us: How long all sources must stay quiet to close the window; None if silence does not close it.
    """

    key: Mapping[str, Any] | None
    start_us: int
    last_us: int | None
    closes_us: int
    reason: str
    rows: int | None
    groups: int | None
    needs: tuple[RequiredEvent, ...]
    silence_us: int | None


@dataclass(frozen=True)
class LateRowReport:
    """A late row of a key, from its dead letter. Times are in microseconds.

    Args:
        source: The source of the row.
        place: The file of the row, or its topic, partition and offset.
        epoch: The epoch that read the row.
        event_us: The event time.
        late_us: How late the row was.
        watermark_us: The watermark that made the row late.
        watermark_source: The source that set this watermark.
        cause: Why the row was late.
        windows: The starts of the windows for which the row was late; empty for sessions.
        applied: Whether `dlq replay` has corrected the windows.
        value: The row as text.
    """

    source: str | None
    place: str | None
    epoch: int | None
    event_us: int | None
    late_us: int | None
    watermark_us: int | None
    watermark_source: str | None
    cause: str | None
    windows: tuple[str, ...]
    applied: bool
    value: str | None


@dataclass(frozen=True)
class PublishedResults:
    """The newest published rows of a key in one target, ordered by window. `problem`: why they cannot be read."""

    target: str
    place: str
    rows: tuple[Mapping[str, Any], ...]
    problem: str | None = None


@dataclass(frozen=True)
class KeyHistory:
    """The newest late rows of a key, and its newest published results.

    `more_late`: whether there are older late rows. `late_problem`: why the late rows are unknown, for example because
    the config drops them.
    """

    late: tuple[LateRowReport, ...]
    more_late: bool
    late_problem: str | None
    results: tuple[PublishedResults, ...]


@dataclass(frozen=True)
class KeyReport:
    """A key and its open windows.

    Args:
        key: The key columns.
        open: The open windows of the key.
        floor_us: Rows at or below this event time are late.
        late_before_us: Rows before this event time are late unless they join an open session.
        history: Late rows and results, if `query.why_report_builder` has added them.
    """

    key: Mapping[str, Any]
    open: tuple[OpenWindow, ...]
    floor_us: int | None
    late_before_us: int | None
    history: KeyHistory | None = None


@dataclass(frozen=True)
class JoinSideReport:
    """One side of a join and its stored rows.

    Args:
        side: The name of the side.
        source: The source or stage that the side reads.
        rows: The number of stored rows.
        keep_us: A row expires when the watermark passes its event time plus this duration.
        over_us: The watermark at which all stored rows have expired; None if no rows are stored.
        outer: Whether rows without a partner are emitted.
    """

    side: str
    source: str
    rows: int
    keep_us: int
    over_us: int | None
    outer: bool


@dataclass(frozen=True, kw_only=True)
class StageReport:
    """The report on one stage, as of a commit.

    Args:
        stage: The name of the stage.
        reads: The sources and stages that the stage reads.
        read_by: The stages that read the results of the stage.
        kind: The kind of step, such as `session` or `join`.
        watermark_us: The watermark of the stage; None before the first event.
        clocks: The clocks of the sources and stages that the stage reads.
        holder: The source or partition that holds back the watermark; None while all sources are idle.
        through: The stages between this stage and the holder, nearest first.
        idle_close_us: How long all sources must be silent before the watermark advances with the clock; None if it
            never does.
        open_windows: The number of open windows; 0 for a join. Parts of a session that the cap may still separate can
            count individually.
        open_keys: The number of keys with open windows; None if the commit does not record it.
        next: The windows that close first, or the timers of a keyed stage that are due first.
        key: The report on a key, if it was requested.
        sides: The sides of a join.
        lateness: Statistics on how late rows were.
        kept: A description of the state of a keyed stage, or of a stage that emits results immediately.
        held_back_us: How far the output watermark of the nearest stage in `through` is behind the watermark of that
            stage, because sessions may still be cut.
    """

    stage: str
    reads: tuple[str, ...]
    read_by: tuple[str, ...]
    kind: str
    watermark_us: int | None
    clocks: tuple[WatermarkReport, ...]
    holder: WatermarkReport | None
    through: tuple[str, ...]
    idle_close_us: int | None
    open_windows: int
    open_keys: int | None
    next: tuple[OpenWindow, ...]
    key: KeyReport | None
    sides: tuple[JoinSideReport, ...] = ()
    lateness: LatenessStats = NOTHING
    kept: str | None = None
    held_back_us: int = 0


@dataclass(frozen=True, kw_only=True)
class WhyReport(TerminalRepr, StageReport, NotebookRepr):
    """The report of `why` for one commit.

    The fields from `stage` to `held_back_us` describe the requested stage, or the last stage by default. The module
    `slackwater.query.why_report` documents the classes of nested reports.

    Args:
        pipeline: The name of the pipeline.
        now_us: The time of the report (µs).
        runner: The process that runs the pipeline; None if the pipeline is not running.
        epoch: The epoch of the commit.
        committed_us: The time of the commit (µs).
        is_published: Whether the output of the commit is published.
        changed_files: For each source, the number of files that changed after they were read, and the newest of them.
        stages: A report for each stage, if there are several stages and no single stage was requested.
        file: The config file; None for a pipeline defined in Python.
    """

    pipeline: str
    now_us: int
    runner: str | None
    epoch: int
    committed_us: int
    is_published: bool
    changed_files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    stages: tuple[StageReport, ...] = ()
    file: str | None = None

    @property
    def reported_stages(self) -> tuple[StageReport, ...]:
        """Return the reports of all stages."""
        return self.stages or (self,)


def format_start_command(file: str | None) -> str:
    """Return the command that starts a pipeline, or the Python call if there is no config file."""
    return "slackwater.run(pipeline)" if file is None else f"slackwater run {file}"


def watermark_or_none(us: int) -> int | None:
    """Return a watermark (µs), or None if it is not set yet."""
    return None if us <= NO_WATERMARK else us


def report_watermarks(name: str, clock: SourceClock) -> list[WatermarkReport]:
    """Return the report of a source, followed by the reports of its partitions."""
    return [_clock_report(name, None, clock), *(_clock_report(name, p, c) for p, c in clock.partitions.items())]


def _clock_report(name: str, partition: str | None, c: SourceClock) -> WatermarkReport:
    idle_in_us = None if c.idle else max(c.idleness_us - c.quiet_us, 0)
    return WatermarkReport(
        name,
        partition,
        c.max_event_us,
        c.lateness_us,
        watermark_or_none(c.watermark_us),
        c.idle,
        c.quiet_us,
        idle_in_us,
    )


def find_slowest_watermark(clocks: Sequence[WatermarkReport]) -> WatermarkReport:
    """Return the slowest partition that is not idle, or the source if it has no partitions or all of them are idle.

    `clocks`: the clock of the source, followed by the clocks of its partitions.
    """
    awake = [c for c in clocks[1:] if not c.idle]
    return min(awake, key=lambda c: NO_WATERMARK if c.watermark_us is None else c.watermark_us, default=clocks[0])


def quote_stage(name: str) -> str:
    """Quote the name of a stage for a sentence."""
    return json.dumps(name, ensure_ascii=False)


def describe_watermark_wait(w: StageReport) -> str:
    """Describe what the watermark of a stage waits for: a source, or an input stage that also waits."""
    if w.holder is None:
        return _blocked_text("all sources are idle", w.through)
    hold_text = ""
    if w.held_back_us:
        length = format_duration(max(w.held_back_us // 1000, 1))
        hold_text = f"; it holds its results back by {length}, since sessions may still be cut at their cap"
    return _blocked_text(describe_watermark_owner(w.holder), w.through) + hold_text


def _blocked_text(end: str, through: Sequence[str]) -> str:
    """Describe what a watermark is waiting for. `end`: the cause. `through`: the stages on the way to it, nearest first."""
    if not through:
        return end
    first, *more = through
    steps = "".join(f", which waits for stage {quote_stage(name)}" for name in more)
    idle = end.startswith("all sources")
    return f"stage {quote_stage(first)}{steps}, " + (
        "whose sources are all idle" if idle else f"whose watermark is held by {end}"
    )


def describe_watermark_owner(c: WatermarkReport) -> str:
    """Return the name of a source, a partition or a stage, for use in a sentence."""
    return f'{"stage" if c.of_stage else "source"} "{c.source}"' + (
        f", partition {c.partition}" if c.partition is not None else ""
    )


__all__ = [
    "JoinSideReport",
    "KeyHistory",
    "KeyReport",
    "LateRowReport",
    "OpenWindow",
    "PublishedResults",
    "RequiredEvent",
    "StageReport",
    "WatermarkReport",
    "WhyReport",
    "describe_watermark_owner",
    "describe_watermark_wait",
    "format_start_command",
    "quote_stage",
]
