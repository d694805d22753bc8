"""Blocks "Does it keep up?" and "How large is the state?": the duration and rows of each epoch, the backlog, the size.

A commit records how long the phases `plan`, `read`, `ingest` and `emit` of its own epoch took. The phases `commit`,
`write` and `note` end only after the commit is written, so the next commit records them.

The backlog is the input that has not been read yet. Each source is polled in a separate thread. The page waits for
responses for at most LONGEST_S seconds, and reuses a response for FRESH_S seconds. The input that a commit has read is
subtracted later, so that one response serves all commits.

The size of the state is given as rows and bytes in each kept commit, and as rows by shard.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from slackwater.config.pipeline import Pipeline, resolve_connection
from slackwater.config.source import Source
from slackwater.connectors.connector import Backlog, BacklogCounter, InputLister, connector_for
from slackwater.core.humanize import format_brief, format_size, format_span, plural
from slackwater.engine import next_commit
from slackwater.errors import SlackwaterError
from slackwater.maintenance.history import count_open_windows
from slackwater.state.commit import Commit, StageState
from slackwater.state.protocol import Snapshot
from slackwater.ui.svg import Axis, draw_columns, draw_trace, tick_step

OWN_PHASES = ("plan", "read", "ingest", "emit")  # phases whose time the epoch's own commit records
LATER_PHASES = ("commit", "write", "note")  # phases whose time the next commit records
PHASES = (*OWN_PHASES, *LATER_PHASES)


@dataclass(frozen=True)
class EpochTiming:
    """The timing of one epoch.

    Args:
        rows: The number of rows read since the previous commit; None if that commit is not kept.
        since_us: The time since the previous commit (µs); None if that commit is not kept.
        phases: The duration of each phase (µs). Phases whose duration is not known are omitted.
    """

    epoch: int
    committed_us: int
    rows: int | None
    since_us: int | None
    phases: Mapping[str, int]


@dataclass(frozen=True)
class Throughput:
    """The block "Does it keep up?". Rates cover the kept commits, and are None if they are unknown.

    The measured time begins at the first kept commit. If this is the pipeline's first commit, its own epoch counts too,
    so that a pipeline with only one epoch has a rate.

    Args:
        rows: The number of rows read within `over_us`.
        over_us: The measured time (µs).
        rows_per_s: `rows` per second of `over_us`.
        busy_per_s: The capacity, in rows per second while an epoch was in progress.
        busy: The share of `over_us` during which an epoch was in progress.
        waits: The backlog of each source.
        asked_us: When the sources were polled (µs since 1970, UTC).
        behind_us: How long it would take to read the backlog at this capacity (µs) if no more rows arrived.
    """

    laps: tuple[EpochTiming, ...]
    rows: int | None
    over_us: int | None
    rows_per_s: float | None
    busy_per_s: float | None
    busy: float | None
    waits: tuple[Backlog, ...]
    asked_us: int
    behind_us: int | None


def build_throughput(commits: Sequence[Commit], backlogs: Sequence[Backlog], now_us: int) -> Throughput:
    """Build the "Does it keep up?" block.

    Args:
        commits: The kept commits, oldest first.
        backlogs: The backlog of each source that can be polled.
        now_us: When the sources were polled (µs since 1970, UTC).
    """
    neighbours = zip([None, *commits[:-1]], commits, [*commits[1:], None], strict=True)
    laps = tuple(_epoch_timing(*three) for three in neighbours)
    first, last = commits[0], commits[-1]
    rows = _rows_read(last) - _rows_read(first)
    over, spent = last.committed_us - first.committed_us, _spent_us(last) - _spent_us(first)
    if first.epoch == 0:
        rows, spent = _rows_read(last), _spent_us(last)
        over += sum(_spent_by_phase(first).get(p, 0) for p in OWN_PHASES)
    elif _spent_us(first) == 0:
        spent = 0  # the first commit has no timings, because an earlier version wrote it
    over = max(over, 0)  # the clock may have been set back
    # over the kept commits if possible, otherwise over the life of the pipeline
    read, busy_us = (rows, spent) if rows and over and spent else (_rows_read(last), _spent_us(last))
    able = 1e6 * read / busy_us if read and busy_us else None
    counts = [w.rows for w in backlogs if w.rows is not None]
    behind = None if able is None or not counts or len(counts) < len(backlogs) else round(1e6 * sum(counts) / able)
    return Throughput(
        laps,
        rows if over else None,
        over or None,
        1e6 * rows / over if rows and over else None,
        able,
        min(spent / over, 1.0) if over and spent else None,
        tuple(backlogs),
        now_us,
        behind,
    )


def _rows_read(commit: Commit) -> int:
    return next_commit.sum_counters(commit).rows_in


def _epoch_timing(before: Commit | None, commit: Commit, after: Commit | None) -> EpochTiming:
    """Return the timing of the epoch of a commit.

    `before` and `after`: the previous and the next kept commit. Commits in between may be missing.
    """
    before = before if before is not None and before.epoch == commit.epoch - 1 else None
    after = after if after is not None and after.epoch == commit.epoch + 1 else None
    is_complete = before is not None or commit.epoch == 0
    rows = _rows_read(commit) - (0 if before is None else _rows_read(before))
    spent, former, later = (_spent_by_phase(m) for m in (commit, before, after))
    phases = {
        p: spent[p] - former.get(p, 0) for p in OWN_PHASES if p in spent and is_complete and (former or before is None)
    }
    phases |= {p: later[p] - spent.get(p, 0) for p in LATER_PHASES if p in later and spent}
    # if the runner stopped before the next commit, that commit does not record the later phases
    shown_phases = phases if phases.get("commit", 1) > 0 else {p: us for p, us in phases.items() if p in OWN_PHASES}
    since = None if before is None else commit.committed_us - before.committed_us
    return EpochTiming(commit.epoch, commit.committed_us, rows if is_complete else None, since, shown_phases)


def _spent_by_phase(commit: Commit | None) -> Mapping[str, int]:
    return {} if commit is None else next_commit.sum_counters(commit).spent_us


def _spent_us(commit: Commit) -> int:
    return sum(us for p, us in _spent_by_phase(commit).items() if p in PHASES)


def draw_epoch_times(block: Throughput) -> Markup:
    """Draw the time of each epoch as a column by phase. Return empty markup if no times are known."""
    longest = max((sum(lap.phases.values()) for lap in block.laps), default=0)
    if not longest:
        return Markup("")
    columns = [(str(lap.epoch), _drawn_phases(lap) if lap.phases else None) for lap in block.laps]
    ticks = range(0, longest + 1, tick_step(longest, 3))
    label, up = "Time of each kept epoch by its phases", Axis(0, longest, 170, 12)
    return draw_columns(label, columns, up, 70, format_span, labeled=ticks, thinnest=0.6)


def _drawn_phases(lap: EpochTiming) -> list[tuple[str, int, str]]:
    about = f"epoch {lap.epoch}, {plural(lap.rows or 0, 'row')}"
    spent = [(phase, lap.phases.get(phase, 0)) for phase in PHASES]
    return [(f"phase {phase}", us, f"{about}: {format_span(us)} {phase}") for phase, us in spent if us]


# -- the backlog ---------------------------------------------------------------------------------------------------------


LONGEST_S = 1.5  # longest time for which a page waits for responses
FRESH_S = 5.0  # time for which a response is reused


@dataclass
class _BacklogAnswer:
    """The latest response of a source about its backlog.

    Args:
        backlog_of: Computes the backlog as of a snapshot; None while there is no response.
        problem: Why there is no response; None if there is one.
        answered_s: When the source last responded or failed, in seconds of the monotonic clock.
        thread: The latest thread that polls the source; None before the first one starts.
    """

    backlog_of: BacklogCounter | None = None
    problem: str | None = "no response yet"
    answered_s: float = float("-inf")
    thread: threading.Thread | None = None


@dataclass
class BacklogPoller:
    """Polls the sources of one pipeline for their backlogs, each in a separate thread."""

    _answers: dict[str, _BacklogAnswer] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def poll(self, pipeline: Pipeline, snapshot: Snapshot) -> tuple[Backlog, ...]:
        """Return the backlog of each source that can be polled, in config order, as of the commit of the snapshot."""
        listers = [(s, lister) for s in pipeline.sources if (lister := _input_lister(pipeline, s)) is not None]
        with self._lock:
            threads = [t for s, lister in listers if (t := self._start_listing(s.name, lister)) is not None]
        end = time.monotonic() + LONGEST_S
        for thread in threads:
            thread.join(max(end - time.monotonic(), 0))
        return tuple(_backlog(s, self._answers[s.name], snapshot) for s, _ in listers)

    def _start_listing(self, name: str, list_input: InputLister) -> threading.Thread | None:
        answer = self._answers.setdefault(name, _BacklogAnswer())
        if answer.thread is not None and answer.thread.is_alive():
            return answer.thread
        if time.monotonic() - answer.answered_s < FRESH_S:
            return None

        def run() -> None:
            try:
                answer.backlog_of, answer.problem = list_input(), None
            except (SlackwaterError, OSError) as error:
                answer.backlog_of, answer.problem = None, str(error)
            answer.answered_s = time.monotonic()

        answer.thread = threading.Thread(target=run, name=f"ui-asks-{name}", daemon=True)
        answer.thread.start()
        return answer.thread


def _input_lister(pipeline: Pipeline, source: Source) -> InputLister | None:
    connection = None if source.connection is None else resolve_connection(source.connection, pipeline.connections)
    return None if connection is None else connector_for(connection).input_lister(source)


def _backlog(source: Source, answer: _BacklogAnswer, snapshot: Snapshot) -> Backlog:
    backlog_of = answer.backlog_of  # read only once, because a thread may replace it
    return Backlog(source.name, "", None, None, answer.problem) if backlog_of is None else backlog_of(snapshot)


# -- growth of the state -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SizePoint:
    """The size of the state in one commit. `open`: the number of open windows, or of rows buffered in a join."""

    epoch: int
    committed_us: int
    rows: int
    bytes: int
    open: int


@dataclass(frozen=True)
class ShardSpread:
    """The number of rows in each shard of a stage. `skew`: the rows of the largest shard divided by the mean."""

    stage: str
    rows: tuple[int, ...]
    skew: float


@dataclass(frozen=True)
class StateGrowth:
    """The size of the state in each kept commit, oldest first, and the rows by shard in the latest commit."""

    commits: tuple[SizePoint, ...]
    shards: tuple[ShardSpread, ...] = ()


def build_growth(commits: Sequence[Commit]) -> StateGrowth:
    """Build the "How large is the state?" block from the kept commits, oldest first."""
    return StateGrowth(
        tuple(
            SizePoint(m.epoch, m.committed_us, _stored_rows(m), m.state_bytes, count_open_windows(m)) for m in commits
        ),
        tuple(_spread(stage) for stage in commits[-1].stages),
    )


def _spread(stage: StageState) -> ShardSpread:
    rows = tuple(sum(m.rows for m in shard if not m.kind.endswith(("+", "-"))) for shard in stage.segments)
    return ShardSpread(stage.name, rows, max(rows) * len(rows) / sum(rows) if sum(rows) else 1.0)


def _stored_rows(commit: Commit) -> int:
    return sum(m.rows for m in commit.metas)


LEFT, TOP, BOTTOM = 78, 14, 130


def draw_size(block: StateGrowth) -> Markup:
    """Draw the size of the state in bytes over the kept commits."""
    series = [(c.epoch, c.committed_us, c.bytes) for c in block.commits]
    return _draw(series, format_size, "Size of the state in bytes, over the kept commits", "trace")


def draw_rows(block: StateGrowth) -> Markup:
    """Draw the number of rows in the state over the kept commits."""
    series = [(c.epoch, c.committed_us, c.rows) for c in block.commits]
    return _draw(series, format_brief, "Rows in the state, over the kept commits", "trace second")


def _draw(
    series: Sequence[tuple[int, int, int]], format_value: Callable[[float], str], label: str, class_: str
) -> Markup:
    most = max(value for _, _, value in series)
    up, labeled = Axis(0, max(most * 11 // 10, 1), BOTTOM, TOP), sorted({0, most})
    return draw_trace(label, series, up, LEFT, format_value, labeled=labeled, height=BOTTOM + 26, class_=class_)
