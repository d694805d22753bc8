"""Commits that change a state without reading rows. The caller must hold the runner's lock.

with edit_state(store) as commit:                              the latest commit, locked and published
    store.commit(next_maintenance_commit(commit, clock, …))    commits the next epoch: the same state with changes
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from slackwater.errors import StartError, StateError, Topic
from slackwater.state.commit import Commit, new_commit_id
from slackwater.state.protocol import StateStore


@contextmanager
def edit_state(store: StateStore) -> Iterator[Commit]:
    """Lock a state and yield its latest commit.

    Raises StartError if there is no state, LockHeldError if a runner is active, and StateError if the state is damaged
    or its output is unpublished.
    """
    if store.stored_record() is None:  # `open` would create one
        raise missing_state_error()
    latest = store.open()
    try:
        if latest is None:
            raise missing_state_error()
        check_published(latest, store.published_epoch())
        yield latest
    finally:
        store.close()


def missing_state_error() -> StartError:
    """Return the error for a missing state."""
    return StartError("there is no state yet; the first epoch creates it: slackwater run", Topic.NO_STATE)


def check_published(commit: Commit, published: int) -> None:
    """Raise StateError if the output of a commit is unpublished: the next commit must not overtake it."""
    if commit.staged and published < commit.epoch:
        raise pending_epoch_error(commit.pipeline, commit.epoch)


def pending_epoch_error(pipeline: str, epoch: int) -> StateError:
    """Return the error for a commit whose output is not published yet."""
    return StateError(
        f"{pipeline}: epoch {epoch} was committed, but its output is not published yet; start the runner once to "
        "publish it, then repeat the command",
        Topic.EPOCH_UNPUBLISHED,
    )


def next_maintenance_commit(commit: Commit, clock_us: int, **changed: Any) -> Commit:
    """Return the next commit: the same state without output, with the fields in `changed` replaced.

    `clock_us`: the time of the commit (µs).
    """
    update = {
        "epoch": commit.epoch + 1,
        "commit_id": new_commit_id(),
        "committed_us": clock_us,
        "output": (),
        "letters": (),
        "reached": (),
        "emitted": 0,
    }
    return commit.model_copy(update={**update, **changed})
