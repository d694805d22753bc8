"""The state of a pipeline under another name: a fork, after which the former name has none."""

from __future__ import annotations

from slackwater.errors import StateError
from slackwater.state.commit import Commit
from slackwater.state.fork import checkpoint_sources
from slackwater.state.maintenance_commit import edit_state, pending_epoch_error
from slackwater.state.protocol import StateStore


def rename_state(store: StateStore, name: str) -> tuple[Commit, str]:
    """Make the state that of the pipeline `name`, which has none. Returns its commit, and where the former state was put aside.

    Raises StateError for output that waits, or a source that cannot go on; LockHeldError.
    """
    with edit_state(store) as commit:
        if sources := checkpoint_sources(commit):
            raise StateError(
                f'{commit.pipeline}: source "{sources[0]}" goes on by Spark\'s checkpoint, which belongs to the name of the '
                "pipeline; keep the name, or start over with --rebuild"
            )
        renamed = store.fork(name, renames=True)
        if renamed is None:
            raise pending_epoch_error(commit.pipeline, commit.epoch)
        return renamed, store.put_aside()
