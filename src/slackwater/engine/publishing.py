"""What a commit has put aside, on its way to the target: within the commit where both are one database, else after it.

COMMIT ─▶ write (target, its own marker) ─▶ note (store)        a crash between them repeats the write, which changes nothing
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import polars as pl

from slackwater.config.pipeline import Pipeline
from slackwater.core.capacity import capacity_of
from slackwater.engine import outbox
from slackwater.engine.hooks import Hooks
from slackwater.engine.observer import Waiting
from slackwater.engine.timer import Timer
from slackwater.errors import PublishError, StartError
from slackwater.evolution import compare
from slackwater.operators.base import Operator
from slackwater.operators.dead_letters import holding
from slackwater.state.commit import Commit
from slackwater.state.protocol import Publish, StateStore, TransactionalTarget
from slackwater.targets.base import Target


@dataclass(frozen=True)
class Publishing:
    """The target of a pipeline and the place of its dead letters. `last`: the operator whose results are published."""

    pipeline: Pipeline
    last: Operator
    store: StateStore
    target: Target
    letters: Target | None
    hooks: Hooks

    def destination(self) -> dict[str, Any]:
        """Where output goes and how it looks: a committed epoch can only be published there."""
        target, letters = self.pipeline.target, self.pipeline.dead_letter
        return {
            "target": compare.place(target),
            "letters": compare.place(letters),
            "columns": [f.name for f in self.last.output],
            "upserts": self.target.upserts,
        }

    def roll_forward(self, latest: Commit) -> None:
        """Publish what the latest commit of a former run left. Raises StartError if this config would publish it elsewhere."""
        if not self.waits(latest):
            return
        now = self.destination()
        former = {"upserts": now["upserts"], **latest.destination}  # earlier records do not tell
        if former != now:
            changed = ", ".join(k for k in now if former.get(k) != now[k])
            raise StartError(
                f"{self.pipeline.name}: epoch {latest.epoch} was committed and not yet published, and the config has "
                f"changed since ({changed}); start once with the former config, then change it"
            )
        self.hooks.on_notice("info", f"publishing epoch {latest.epoch}, which was committed and not yet published")
        self.settle(latest)

    def waits(self, commit: Commit) -> bool:
        """Whether something of a commit has not reached the target."""
        return commit.staged and self.store.published() < commit.epoch

    def settle(self, commit: Commit) -> None:
        """Publish a commit if that failed before: an epoch must never be overtaken by the next."""
        if self.waits(commit):
            self._write(commit)
            self._note(commit)

    def after(self, commit: Commit, timer: Timer) -> None:
        """Publish a commit of this epoch, as far as the commit itself has not."""
        if not commit.staged:
            return
        if self.store.published() < commit.epoch:
            with timer.phase("write"):
                self._write(commit)
        with timer.phase("note"):
            self._note(commit)

    def within(self, commit: Commit) -> Publish | None:
        """Write within the commit: what is a step of its own elsewhere is a step within the transaction here.

        None where the store cannot, or nothing waits.
        """
        if not commit.output or not self.store.shares_transaction(self.target):
            return None
        (rows, gone), target, hit = self._output(commit), cast(TransactionalTarget, self.target), self.hooks.faults.hit

        def publish(connection: object) -> None:
            hit("write.before", commit.epoch)
            target.publish_within(connection, commit.epoch, rows, gone)
            hit("write.after", commit.epoch)

        return publish

    def _note(self, commit: Commit) -> None:
        self.store.note_published(commit.epoch)
        self.hooks.on_waiting(None)

    def _write(self, commit: Commit) -> None:
        self.hooks.on_waiting(Waiting(commit.epoch, commit.committed_us))
        try:
            if commit.letters and self.letters is not None:
                letters = pl.concat([self.store.output(o) for o in commit.letters])
                self.letters.publish(commit.epoch, holding(letters, capacity_of(self.letters).times))
            if commit.output:
                self.target.publish(commit.epoch, *self._output(commit))
        except PublishError as error:
            raise PublishError(f"{error}; if it never can be, see: slackwater outbox show") from error

    def _output(self, commit: Commit) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The rows to write and those that are gone."""
        return outbox.split(self.last, [self.store.output(o) for o in commit.output], self.target.upserts)
