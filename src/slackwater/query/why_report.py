"""The dataclasses of the report that `why` returns, and sentences about its clocks: what a watermark waits for."""

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
class ClockReport:
    """The clock of a source, of one of its partitions, or of an input stage, as of a commit.

    Args:
        source: The name of the source or stage.
        partition: The partition; None for the whole source.
        max_event_us: The newest event time; None before the first event.
        lateness_us: How far the watermark stays behind the newest event. For a stage: how far the output watermark is
            behind the stage's own watermark.
        watermark_us: The watermark; None before the first event.
        idle: Whether the source or partition is idle; a stage never is.
        quiet_us: How long it has returned no rows.
        idle_in_us: How long it must stay quiet to become idle; None if it is idle.
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
        partitions: The partitions that must each return such an event; empty if any partition may.
        event_us: The minimum event time of the event.
        choice: Among the required events with the same number, one event is enough, because their sources are all
            idle. If None, this event is required.
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
        last_us: The last event of a session, if known.
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

    `place`: its file, or its topic, partition and offset. `windows`: the starts of the windows for which it was late;
    empty for sessions. `applied`: whether `dlq replay` has corrected the windows.
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
    """The newest published rows of a key in one target, ordered by window.

    `problem`: why they cannot be read.
    """

    target: str
    place: str
    rows: tuple[Mapping[str, Any], ...]
    problem: str | None = None


@dataclass(frozen=True)
class KeyHistory:
    """The newest late rows of a key, and its last published results.

    `more_late`: whether there are older late rows. `late_problem`: why the late rows are unknown, for example because
    they are dropped.
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
        history: Late rows and results, if `query.key_history` has added them.
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
        over_us: The watermark at which all stored rows will have expired; None if there are none.
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
        reads: The sources and stages that it reads.
        read_by: The stages that read its results.
        kind: The kind of its step, such as `session` or `join`.
        watermark_us: Its watermark; None before the first event.
        clocks: The clocks of the sources and stages that it reads.
        holder: The source or partition that holds back the watermark; None while all sources are idle.
        through: The stages between this stage and the holder, nearest first.
        idle_close_us: After all sources have been silent for this long, the watermark advances with the clock; None if
            it never does so.
        open_windows: The number of open windows; 0 for a join. Pieces of a session that the cap may still separate can
            be counted individually.
        open_keys: The number of keys with open windows; None if the commit does not record it.
        next: The windows that close first, or the timers of a keyed stage that are due first.
        key: The report of a key, if one was requested.
        sides: The sides of a join.
        lateness: Statistics of how late rows were.
        kept: A description of the state of a keyed stage, or of a stage that emits results immediately.
        held_back_us: How far the output watermark of the nearest stage in `through` is behind that stage's watermark,
            because sessions may still be cut.
    """

    stage: str
    reads: tuple[str, ...]
    read_by: tuple[str, ...]
    kind: str
    watermark_us: int | None
    clocks: tuple[ClockReport, ...]
    holder: ClockReport | None
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

    The fields that are not listed here describe the requested stage, by default the last one: see
    `slackwater.query.why_report.StageReport`.

    Args:
        pipeline: The name of the pipeline.
        now_us: The time of the report.
        runner: The process that runs the pipeline; None if there is none.
        epoch: The epoch of the commit.
        committed_us: The time of the commit.
        is_published: Whether the output of the commit is published.
        changed_files: For each source, the number of files that changed after they were read, and the most recent ones.
        stages: A report for each stage, if there are several and none was requested.
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


def start_text(file: str | None) -> str:
    """Return the command that starts a pipeline, or the Python call if there is no config file."""
    return "slackwater.run(pipeline)" if file is None else f"slackwater run {file}"


def time_or_none(us: int) -> int | None:
    """Return a watermark (µs), or None if it is not set yet."""
    return None if us <= NO_WATERMARK else us


def report_clocks(name: str, clock: SourceClock) -> list[ClockReport]:
    """Return the report of a source, followed by those of its partitions."""
    return [_clock_report(name, None, clock), *(_clock_report(name, p, c) for p, c in clock.partitions.items())]


def _clock_report(name: str, partition: str | None, c: SourceClock) -> ClockReport:
    idle_in_us = None if c.idle else max(c.idleness_us - c.quiet_us, 0)
    return ClockReport(
        name, partition, c.max_event_us, c.lateness_us, time_or_none(c.watermark_us), c.idle, c.quiet_us, idle_in_us
    )


def slowest_clock(clocks: Sequence[ClockReport]) -> ClockReport:
    """Return the slowest partition that is not idle, or the source if there is no such partition.

    `clocks`: the clock of the source, followed by those of its partitions.
    """
    awake = [c for c in clocks[1:] if not c.idle]
    return min(awake, key=lambda c: NO_WATERMARK if c.watermark_us is None else c.watermark_us, default=clocks[0])


def quote_stage(name: str) -> str:
    """Quote the name of a stage for a sentence."""
    return json.dumps(name, ensure_ascii=False)


def describe_watermark_wait(w: StageReport) -> str:
    """Describe what the watermark of a stage waits for: a source, or a stage that is itself waiting."""
    if w.holder is None:
        return _blocked_text("all sources are idle", w.through)
    hold_text = ""
    if w.held_back_us:
        length = format_duration(max(w.held_back_us // 1000, 1))
        hold_text = f"; it holds its results back by {length}, since sessions may still be cut at their cap"
    return _blocked_text(name_clock(w.holder), w.through) + hold_text


def _blocked_text(end: str, through: Sequence[str]) -> str:
    """Describe what a watermark waits for: the stages `through`, nearest first, and finally the cause `end`."""
    if not through:
        return end
    first, *more = through
    steps = "".join(f", which waits for stage {quote_stage(name)}" for name in more)
    idle = end.startswith("all sources")
    return f"stage {quote_stage(first)}{steps}, " + (
        "whose sources are all idle" if idle else f"whose watermark is held by {end}"
    )


def name_clock(c: ClockReport) -> str:
    """Return the name of a source, a partition or a stage, for use in a sentence."""
    return f'{"stage" if c.of_stage else "source"} "{c.source}"' + (
        f", partition {c.partition}" if c.partition is not None else ""
    )


__all__ = [
    "ClockReport",
    "JoinSideReport",
    "KeyHistory",
    "KeyReport",
    "LateRowReport",
    "OpenWindow",
    "PublishedResults",
    "RequiredEvent",
    "StageReport",
    "WhyReport",
    "describe_watermark_wait",
    "name_clock",
    "quote_stage",
    "start_text",
]
