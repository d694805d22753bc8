"""Forks: the state of a pipeline copied as that of another, which goes on from the same offsets by itself.

    user-sessions    … 40 ─ 41 ─ 42 ─ 43 ─▶ its target
                             └─ fork
    sessions-2              41 ─ 42 ─▶ a target of its own: what was emitted up to 41 is not in it

Epochs keep their numbers: dead letters are known by them. The fork has an id of its own, so no target takes it for the other.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable

from slackwater.config.pipeline import LONGEST_NAME, NAME
from slackwater.errors import StartError, StateError
from slackwater.state.commit import Commit, SourceRecord, new_commit_id
from slackwater.state.maintenance_commit import pending_epoch_error
from slackwater.state.protocol import StateStore

PATIENCE_S = 5.0  # a runner publishes what it has committed at once


def fork_store(store: StateStore, name: str, epoch: int | None = None) -> Commit:
    """Copy a state, also beside its runner; returns the record of the copy. Needs the lock of the new pipeline only.

    Raises StartError for a name that cannot be one, StateError as `StateStore.fork`, and for output that waits.
    """
    if not re.fullmatch(NAME, name):
        raise StartError(f'fork: found the name "{name}", expected letters, digits, ".", "_" and "-"')
    if len(name) > LONGEST_NAME:
        raise StartError(f"fork: found a name of {len(name)} characters, expected at most {LONGEST_NAME}")
    end = time.monotonic() + PATIENCE_S
    while True:
        commit = store.fork(name, epoch)
        if commit is not None:
            return commit
        if store.runner() is None or time.monotonic() > end:
            stored = store.written()
            record = stored.record if stored else {}
            raise pending_epoch_error(record.get("pipeline", name), record.get("epoch", -1))
        time.sleep(0.05)


def name_taken(name: str, epoch: int, place: str) -> StateError:
    """The error for a name that has a state."""
    return StateError(f'"{name}" has a state already, epoch {epoch} {place}; choose another name')


def forked_commit(
    commit: Commit, name: str, listed: Callable[[str], str] = lambda name: name, renames: bool = False
) -> Commit:
    """A commit as that of the pipeline `name`: nothing of its output. `listed`: what its lists are called now.

    `renames`: the targets, which hold the rows of the former name, are those of the new one.
    """
    held = {n: t.model_copy(update={"marks": t.marks[-1:]}) for n, t in commit.targets.items()} if renames else {}
    update = {
        "pipeline": name,
        "state_id": uuid.uuid4().hex,
        "branch": "",
        "commit_id": new_commit_id(),
        "committed_us": time.time_ns() // 1000,
        "sources": {n: _rename_lists(s, listed) for n, s in commit.sources.items()},
        "output": (),
        "letters": (),
        "targets": held,
        "letters_to": None,
        "letters_marks": (),
        "reached": (),
        "emitted": 0,
        "replayed": tuple(map(listed, commit.replayed)),
        "tried": tuple(map(listed, commit.tried)),
    }
    return commit.model_copy(update=update)


def _rename_lists(source: SourceRecord, listed: Callable[[str], str]) -> SourceRecord:
    return source.model_copy(update={"offsets": source.offsets.with_list_names(listed)}) if source.offsets else source


def checkpoint_sources(commit: Commit) -> list[str]:
    """Its sources that go on by Spark's checkpoint only, which is not copied: a run of a fork is refused for them."""
    return [n for n, s in commit.sources.items() if s.offsets is None and commit.clocks[n].rows]
