"""Rename a state: fork it under the new name, then put the state of the old name aside."""

from __future__ import annotations

from slackwater.errors import StateError, Topic
from slackwater.state.commit import Commit
from slackwater.state.fork import checkpoint_sources
from slackwater.state.maintenance_commit import edit_state, pending_epoch_error
from slackwater.state.protocol import StateStore


def rename_state(store: StateStore, name: str) -> tuple[Commit, str]:
    """Rename a state to `name`, which must not be in use. Return its commit, and the location of the old state.

    Raises LockHeldError if one of the two pipelines is running. Raises StateError if output is unpublished, or if only
    Spark's checkpoint can resume a source.
    """
    with edit_state(store) as commit:
        if sources := checkpoint_sources(commit):
            raise StateError(
                f'{commit.pipeline}: source "{sources[0]}" resumes from Spark\'s checkpoint, which is stored under the name of the pipeline'
                "; keep the name, or start over with --rebuild",
                Topic.PIPELINE_RENAMED,
            )
        renamed = store.fork(name, renames=True)
        if renamed is None:
            raise pending_epoch_error(commit.pipeline, commit.epoch)
        return renamed, store.put_aside()
