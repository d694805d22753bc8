"""Who looks on at a run: metrics, lineage. Told what it is, of every commit and of its end; never asked, and never in the way.

begun ─▶ waiting? ─▶ described ─▶ reading ─▶ ( waiting ─▶ status )* ─▶ ended
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from slackwater.config.pipeline import Pipeline
from slackwater.core.schema import Field
from slackwater.engine.status import Status
from slackwater.state.commit import Commit


@dataclass(frozen=True)
class RunSchema:
    """The columns that a run reads, by source, and those that it writes, by target."""

    sources: Mapping[str, Sequence[Field]]
    output: Mapping[str, Sequence[Field]]


@dataclass(frozen=True)
class PendingPublish:
    """An epoch that was committed, and whose output has not reached all of its targets yet.

    `rows`: by target (LETTERS for dead letters) how many of it each gets; `missing`: those that do not have their part yet;
    `failed`: the one that has just refused it.
    """

    epoch: int
    committed_us: int
    rows: Mapping[str, int] = field(default_factory=dict, compare=False)
    missing: tuple[str, ...] = field(default=(), compare=False)
    failed: str | None = field(default=None, compare=False)

    @classmethod
    def from_commit(cls, commit: Commit, missing: Iterable[str], failed: str | None = None) -> PendingPublish:
        return cls(
            commit.epoch, commit.committed_us, {n: commit.rows_of(n) for n in commit.recipients}, tuple(missing), failed
        )


class Observer:
    """Override what you want to hear. The methods are called by the thread that runs the epochs: they have to be quick,
    and what they raise ends the run."""

    def begun(self, pipeline: Pipeline) -> None:
        """A run begins; Spark is not up yet."""

    def described(self, columns: RunSchema) -> None:
        """Schemas and SQL were bound to each other."""

    def reading(self) -> None:
        """All that the run needs is open, what waited is published, and it asks its sources from now on."""

    def waiting(self, epoch: PendingPublish | None) -> None:
        """An epoch is about to be published, by the one that committed it or by the next start, and again after each target that
        refused its part or left others behind; None: it is out."""

    def status(self, status: Status) -> None:
        """After a commit, and once at a start over a state that is there."""

    def ended(self, error: BaseException | None) -> None:
        """The run is over; also called if it never came to an epoch."""


class ObserverGroup(Observer):
    """Several as one."""

    def __init__(self, all_of_them: Sequence[Observer] = ()) -> None:
        self._all = tuple(all_of_them)

    def begun(self, pipeline: Pipeline) -> None:
        for one in self._all:
            one.begun(pipeline)

    def described(self, columns: RunSchema) -> None:
        for one in self._all:
            one.described(columns)

    def reading(self) -> None:
        for one in self._all:
            one.reading()

    def waiting(self, epoch: PendingPublish | None) -> None:
        for one in self._all:
            one.waiting(epoch)

    def status(self, status: Status) -> None:
        for one in self._all:
            one.status(status)

    def ended(self, error: BaseException | None) -> None:
        for one in self._all:
            one.ended(error)

    @contextmanager
    def observe_run(self, pipeline: Pipeline) -> Iterator[None]:
        """From the beginning to the end of a run."""
        self.begun(pipeline)
        try:
            yield
        except BaseException as error:
            self.ended(error)
            raise
        self.ended(None)
