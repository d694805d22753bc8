"""Observers of a run, such as metrics and lineage, the status that they receive, and the callbacks of the driver.

Observers are notified when the run starts, at every commit, and when it ends. The status after an epoch is an immutable
value, which logs, metrics and web pages use.

on_start ─▶ on_pending? ─▶ on_spark ─▶ on_schema ─▶ on_commit? ─▶ on_running ─▶ ( on_pending* ─▶ on_commit )* ─▶ on_end

`?` marks calls that may be absent, `*` calls that are repeated or absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from slackwater.config.pipeline import Pipeline
from slackwater.core.schema import Field
from slackwater.engine.kill_points import FaultInjector, NoFaultInjector
from slackwater.errors import StartError, Topic
from slackwater.state.commit import Commit

if TYPE_CHECKING:
    import polars as pl

    from slackwater.config.pipeline import Pipeline


@dataclass(frozen=True)
class SourceStatus:
    """One source at the end of an epoch. Times are in µs UTC; they are None before the first event."""

    name: str
    rows: int
    max_event_us: int | None
    watermark_us: int | None
    idle: bool
    quiet_us: int


@dataclass(frozen=True)
class Counters:
    """Cumulative counters over the lifetime of the pipeline. They are part of every commit and survive restarts.

    Conservation: `rows_sql == rows_used + rows_late + rows_refused`, where `rows_sql` is the number of usable rows
    after the SQL. `emitted` is counted by reason (`close`, `cap`, `flush`), `late` by cause (`lateness`, `idle`,
    `flush`), and `letters` (dead letters) by reason (`late`, `undecodable`, `future`, `no event time`). The number of
    `late` letters is `rows_late + rows_partly_late`.

    `rows_duplicate` is a part of `rows_used`. In a dedup stage, `rows_used` is the sum of `rows_duplicate`, the results
    and, with `keep = "last"`, the rows that wait in the state.

    For a join, the reasons in `emitted` are `match` and `unmatched`. `sides` has counters for "left" and "right":
    `buffered` (rows added to the state), `late`, `null_keys`, `keyless` (rows with a NULL key that are neither emitted
    nor used), `matched` (rows that got their first partner), `unmatched` (rows emitted without a partner) and `evicted`
    (because of `on_state_cap`).
    """

    rows_in: int = 0
    rows_sql: int = 0
    rows_used: int = 0
    rows_bad: int = 0
    rows_refused: int = 0
    rows_duplicate: int = 0  # used rows that were dropped as duplicates
    rows_lost: int = 0  # deleted from the source before they were read (on_data_loss = "skip")
    files_changed: int = 0  # files that changed after they were read; a file is read once
    late_windows: int = 0
    replayed: int = 0  # applied dead letters; their rows remain counted as bad or late
    replayed_late: int = 0  # the late rows among them
    overflows: int = 0  # results that overflowed their type and were emitted as NULL (on_overflow = "null")
    # results that were behind the watermark of the stage that reads them, and were moved up to it
    late_between_stages: int = 0
    rows_partly_late: int = 0  # rows late for some of their windows, but not for all; they are used
    late: Mapping[str, int] = field(default_factory=dict)
    emitted: Mapping[str, int] = field(default_factory=dict)
    letters: Mapping[str, int] = field(default_factory=dict)
    sides: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # counters of joins, by side
    # how late the late rows are, see `core.lateness_histogram`
    lateness: Mapping[str, Any] = field(default_factory=dict, compare=False)
    # rows committed, by target; an older state counts them since the version that added this counter
    targets: Mapping[str, int] = field(default_factory=dict, compare=False)
    # µs by phase of an epoch, see `next_commit.add_phase_times`
    spent_us: Mapping[str, int] = field(default_factory=dict, compare=False)

    @property
    def used_text(self) -> str:
        """The number of used rows as text, with the number of duplicates among them, if any."""
        duplicates = f" ({self.rows_duplicate:,} of them duplicates)" if self.rows_duplicate else ""
        return f"{self.rows_used:,} used{duplicates}"

    @property
    def rows_late(self) -> int:
        return sum(self.late.values())

    @property
    def rows_emitted(self) -> int:
        return sum(self.emitted.values())


@dataclass(frozen=True)
class BufferCounts:
    """One side of a join: the number of its rows in the state, and its hot key, if any.

    `hot_key`: the number of rows of the hot key, and the key as text; None if no key has very many rows.
    """

    rows: int
    hot_key: tuple[int, str] | None = None


@dataclass(frozen=True)
class StageStatus:
    """One stage after an epoch.

    `open` is the number of open windows, and `groups` the number of their groups. `rows` and `bytes` measure its state.
    `counters` count this stage alone. `buffered` is set for joins, with one entry each for "left" and "right".
    """

    name: str
    kind: str
    watermark_us: int | None
    open: int
    groups: int
    rows: int
    bytes: int
    counters: Counters
    buffered: Mapping[str, BufferCounts] = field(default_factory=dict)


@dataclass(frozen=True)
class Status:
    """The status of a pipeline after an epoch, or after an idle tick without a commit (in which case `rows` is 0)."""

    pipeline: str
    window_kind: str
    late_policy: str
    epoch: int
    rows: int
    emitted: int
    late: int
    seconds: float
    phases: Mapping[str, float]  # seconds per phase: plan, read, ingest, emit, commit, write, note
    clock_us: int
    watermark_us: int | None
    sources: tuple[SourceStatus, ...]
    windows_active: int
    groups: int
    state_bytes: int
    counters: Counters
    reasons: tuple[str, ...] = ()  # the possible reasons for emitting a row; `counters` has the counts
    written: Mapping[str, int] = field(default_factory=dict)  # number of rows of this epoch, by target
    emit_lag_seconds: float | None = None  # clock - window_end of the newest row emitted in this epoch
    buffered: Mapping[str, BufferCounts] = field(default_factory=dict)  # joins: "left", "right"
    stages: tuple[StageStatus, ...] = ()
    files_done: int | None = None
    files_total: int | None = None  # known with --available-now over files, for the progress bar
    # set in the status that a run returns
    config: Pipeline | None = field(default=None, repr=False, compare=False)
    read_results: Callable[[str | None], pl.DataFrame] | None = field(default=None, repr=False, compare=False)

    def results(self, target: str | None = None) -> pl.DataFrame:
        """Read the rows that are currently in a target. `target`: its name, which is required if there are several.

        This works only on the status that `run` returns. Raises StartError for a target that cannot be read, such as
        the console.
        """
        if self.read_results is None:
            raise StartError(
                f"{self.pipeline}: results() needs the status that run() returned, not the status of an epoch",
                Topic.VALUE,
            )
        return self.read_results(target)

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class RunSchema:
    """The columns that a run reads, by source, and the columns that it writes, by target."""

    sources: Mapping[str, Sequence[Field]]
    output: Mapping[str, Sequence[Field]]


@dataclass(frozen=True)
class PendingPublish:
    """A committed epoch whose output has not reached all of its targets.

    Args:
        epoch: The number of the epoch.
        committed_us: When the epoch was committed (µs UTC).
        rows: The number of rows for each target (LETTERS for dead letters).
        missing: The targets that have not received their rows yet.
        failed: The target whose write has just failed, if any.
    """

    epoch: int
    committed_us: int
    rows: Mapping[str, int] = field(default_factory=dict, compare=False)
    missing: tuple[str, ...] = field(default=(), compare=False)
    failed: str | None = field(default=None, compare=False)

    @classmethod
    def from_commit(cls, commit: Commit, missing: Iterable[str], failed: str | None = None) -> PendingPublish:
        """Return the pending output of a commit. `missing` and `failed`: see the class."""
        return cls(
            commit.epoch, commit.committed_us, {n: commit.rows_of(n) for n in commit.recipients}, tuple(missing), failed
        )


class Observer:
    """Base class of observers. Override the methods that you need.

    The thread that runs the epochs calls the methods, so they must return quickly. If a method raises an exception, the
    run ends.
    """

    def on_start(self, pipeline: Pipeline) -> None:
        """Called when a run begins, before Spark starts."""

    def on_spark(self) -> None:
        """Called when Spark runs, before sources and targets are opened."""

    def on_schema(self, columns: RunSchema) -> None:
        """Called when the SQL has been bound to the schemas of the sources."""

    def on_running(self) -> None:
        """Called when all sources and targets are open and pending output is published.

        The sources are polled from now on.
        """

    def on_pending(self, epoch: PendingPublish | None) -> None:
        """Called before an epoch is published, whether by the run that committed it or by the next start.

        Called again after each target that fails, and after each success while some targets have not received the
        output yet. None means that everything is published.
        """

    def on_commit(self, status: Status) -> None:
        """Called after each commit, and once at the start if there is already a state."""

    def on_end(self, error: BaseException | None) -> None:
        """Called when the run is over, even if no epoch ran. `error`: why it failed; None if it did not fail."""


class ObserverGroup(Observer):
    """Passes each call on to several observers."""

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self._all = tuple(observers)

    def on_start(self, pipeline: Pipeline) -> None:
        for one in self._all:
            one.on_start(pipeline)

    def on_spark(self) -> None:
        for one in self._all:
            one.on_spark()

    def on_schema(self, columns: RunSchema) -> None:
        for one in self._all:
            one.on_schema(columns)

    def on_running(self) -> None:
        for one in self._all:
            one.on_running()

    def on_pending(self, epoch: PendingPublish | None) -> None:
        for one in self._all:
            one.on_pending(epoch)

    def on_commit(self, status: Status) -> None:
        for one in self._all:
            one.on_commit(status)

    def on_end(self, error: BaseException | None) -> None:
        for one in self._all:
            one.on_end(error)

    @contextmanager
    def observe_run(self, pipeline: Pipeline) -> Iterator[None]:
        """Notify observers of the start and the end of a run."""
        self.on_start(pipeline)
        try:
            yield
        except BaseException as error:
            self.on_end(error)
            raise
        self.on_end(None)


@dataclass
class DriverCallbacks:
    """Functions that a driver calls to read the clock and to report to its caller.

    Args:
        clock_us: Returns the time (µs UTC).
        on_status: Called with the status after each commit.
        on_notice: Called with the level and the text of each line about the run.
        on_waiting: Called with the pending output when it changes; None once everything is published.
        faults: Injects faults at kill points.
    """

    clock_us: Callable[[], int]
    on_status: Callable[[Status], None] = lambda status: None
    on_notice: Callable[[str, str], None] = lambda level, line: None
    on_waiting: Callable[[PendingPublish | None], None] = lambda epoch: None
    faults: FaultInjector = field(default_factory=NoFaultInjector)
