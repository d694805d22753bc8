"""What `why` answers: values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slackwater.core.lateness_histogram import NOTHING, LatenessStats
from slackwater.core.notebook_repr import NotebookRepr, TerminalRepr


@dataclass(frozen=True)
class ClockReport:
    """A source, one of its partitions, or a stage whose results are read (`of_stage`), at the commit; µs.

    `idle_in_us`: more quiet until it counts as idle, None: it does. Of a stage `lateness_us` is how far before its watermark
    its results may lie; it is never idle.
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
    """What a window waits for: an event at or after this time on a source, or on these partitions of it.

    `choice`: of the needs with one number any will do, since all those sources are idle; None: this one has to be.
    """

    source: str
    partitions: tuple[str, ...]
    event_us: int
    choice: int | None = None


@dataclass(frozen=True)
class OpenWindow:
    """An open window or session; µs. `closes_us`: the watermark that closes it; `reason`: close, or cap (it is cut there).

    `rows`: of a count(*) in it; `groups`: keys in a window, at most. `silence_us`: more quiet that would close it.
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
    """A dead letter: a row of a key that came late; µs. `place`: its file, or its topic, partition and offset.

    `windows`: the starts of the windows that it missed, of sessions none. `applied`: `dlq replay` has corrected them.
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
    """The newest published rows of a key in one target, in the order of their windows; `problem`: why they cannot be read."""

    target: str
    place: str
    rows: tuple[Mapping[str, Any], ...]
    problem: str | None = None


@dataclass(frozen=True)
class KeyHistory:
    """What became of a key: its newest late rows and its last published results.

    `more_late`: older late rows exist. `late_problem`: why late rows are not known, as where they are dropped.
    """

    late: tuple[LateRowReport, ...]
    more_late: bool
    late_problem: str | None
    results: tuple[PublishedResults, ...]


@dataclass(frozen=True)
class KeyReport:
    """One key. `floor_us`: rows at or below are late; `late_before_us`: rows before it are late if they join nothing open.

    `history`: read from the dead letters and the targets where somebody asks for it (`query.key_history`), else None.
    """

    key: Mapping[str, Any]
    open: tuple[OpenWindow, ...]
    floor_us: int | None
    late_before_us: int | None
    history: KeyHistory | None = None


@dataclass(frozen=True)
class JoinSideReport:
    """One side of a join, with the rows that are on disk; µs. `outer`: those that find no partner come out.

    `keep_us`: a row is over once the watermark is past its time plus this; `over_us`: the watermark at which all of them are.
    """

    side: str
    source: str
    rows: int
    keep_us: int
    over_us: int | None
    outer: bool


@dataclass(frozen=True, kw_only=True)
class StageReport:
    """What is so of one stage. `clocks`: of what it reads, sources and stages; `read_by`: the stages that read what it emits.

    `holder`: the source or partition that holds its watermark, None while all are idle; `through`: the stages that it waits for
    on the way there, the one that it reads itself first; empty where a source that it reads holds it.

    Of a join (`kind`) `sides` says what waits, and no window is open. `open_windows`: among many sessions, pieces that the cap may
    yet separate count one by one. `held_back_us`: how far the stage that it waits for holds its results back, since sessions may still be cut. `kept`: where rows come out as they come in and nothing waits, what is in the state.
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
    """The answer, as of one commit. It is about one stage: the one that was asked about, else the last one.

    `stages`: the same about each stage, where there are several and none was asked about. `changed_files`: per source how many
    files changed after they were read, and the last ones. `file`: the config, where it is one; None: a Pipeline.
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
    def told(self) -> tuple[StageReport, ...]:
        """The stages that it tells of."""
        return self.stages or (self,)


def start_text(file: str | None) -> str:
    """How a pipeline is started: by its config, or in Python."""
    return "slackwater.run(pipeline)" if file is None else f"slackwater run {file}"


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
    "start_text",
]
