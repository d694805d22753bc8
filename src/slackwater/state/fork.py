"""Fork the state of a pipeline: copy it, so that another pipeline continues from the same offsets.

    user-sessions    … 40 ─ 41 ─ 42 ─ 43 ─▶ its target
                             └─ fork
    sessions-2              41 ─ 42 ─▶ another target, without the results emitted up to 41

Epochs keep their numbers, because dead letters refer to them. The fork has a new state id, by which targets tell it from
the original.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable

from slackwater.config.pipeline import LONGEST_NAME, NAME
from slackwater.core.humanize import mismatch
from slackwater.errors import StartError, StateError, Topic
from slackwater.state.commit import Commit, SourceRecord, new_commit_id
from slackwater.state.protocol import StateStore

PATIENCE_S = 5.0  # seconds to wait for a runner to publish its latest commit


def fork_store(store: StateStore, name: str, epoch: int | None = None) -> Commit:
    """Copy a state to a new pipeline, and return the commit of the copy. The original may be running.

    Args:
        store: The store of the original.
        name: The name of the new pipeline.
        epoch: The epoch of the commit to copy; None for the latest.

    Raises:
        StartError: The name is not valid.
        StateError: Output is unpublished, the commit does not exist, or the name already has a state.
        LockHeldError: A pipeline of this name is running.
    """
    if not re.fullmatch(NAME, name):
        raise StartError(
            "fork: " + mismatch(f'the name "{name}"', 'letters, digits, ".", "_" and "-"'), Topic.NAME_IN_USE
        )
    if len(name) > LONGEST_NAME:
        raise StartError(
            "fork: " + mismatch(f"a name of {len(name)} characters", f"at most {LONGEST_NAME}"), Topic.NAME_IN_USE
        )
    end = time.monotonic() + PATIENCE_S
    while True:
        commit = store.fork(name, epoch)
        if commit is not None:
            return commit
        if store.runner() is None or time.monotonic() > end:
            stored = store.read_commit_record()
            record = stored.record if stored else {}
            raise pending_epoch_error(record.get("pipeline", name), record.get("epoch", -1))
        time.sleep(0.05)


def pending_epoch_error(pipeline: str, epoch: int) -> StateError:
    """Return the error for an epoch whose output is not published yet."""
    return StateError(
        f"{pipeline}: epoch {epoch} was committed, but its output is not published yet; start the runner once to "
        "publish it, then repeat the command",
        Topic.EPOCH_UNPUBLISHED,
    )


def name_taken_error(name: str, epoch: int, place: str) -> StateError:
    """Return the error for a name that already has a state.

    Args:
        name: The name of the new pipeline.
        epoch: The latest epoch of its state.
        place: The location of the state with a preposition, such as "in /data/state".
    """
    return StateError(f'"{name}" already has a state (epoch {epoch} {place}); choose another name', Topic.NAME_IN_USE)


def forked_commit(
    commit: Commit, name: str, rename_list: Callable[[str], str] = lambda name: name, renames: bool = False
) -> Commit:
    """Return a copy of a commit for another pipeline, without output.

    Args:
        commit: The original.
        name: The name of the other pipeline.
        rename_list: A function that maps the name of a list to its name in the copy.
        renames: Whether the copy replaces the original under a new name, and thus keeps its targets.
    """
    held = {n: t.model_copy(update={"marks": t.marks[-1:]}) for n, t in commit.targets.items()} if renames else {}
    update = {
        "pipeline": name,
        "state_id": uuid.uuid4().hex,
        "branch": "",
        "commit_id": new_commit_id(),
        "committed_us": time.time_ns() // 1000,
        "sources": {n: _rename_lists(s, rename_list) for n, s in commit.sources.items()},
        "output": (),
        "letters": (),
        "targets": held,
        "letters_to": None,
        "letters_marks": (),
        "reached": (),
        "emitted": 0,
        "replayed": tuple(map(rename_list, commit.replayed)),
        "tried": tuple(map(rename_list, commit.tried)),
    }
    return commit.model_copy(update=update)


def _rename_lists(source: SourceRecord, rename_list: Callable[[str], str]) -> SourceRecord:
    return (
        source.model_copy(update={"offsets": source.offsets.with_list_names(rename_list)}) if source.offsets else source
    )


def checkpoint_sources(commit: Commit) -> list[str]:
    """Return the names of the sources that only Spark's checkpoint can resume.

    A fork cannot continue to read them, because it does not copy the checkpoint.
    """
    return [n for n, s in commit.sources.items() if s.offsets is None and commit.clocks[n].rows]
