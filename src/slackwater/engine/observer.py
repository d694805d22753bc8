"""Observers of a run, such as metrics and lineage, and the callbacks through which the driver reports.

Observers are notified when the run starts, at every commit, and when it ends.

on_start ─▶ on_pending? ─▶ on_spark ─▶ on_schema ─▶ on_commit? ─▶ on_running ─▶ ( on_pending* ─▶ on_commit )* ─▶ on_end

`?` marks calls that may be absent, `*` calls that are repeated or absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from slackwater.config.pipeline import Pipeline
from slackwater.core.schema import Field
from slackwater.engine.kill_points import FaultInjector, NoFaultInjector
from slackwater.engine.status import Status
from slackwater.state.commit import Commit


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
