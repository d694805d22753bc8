"""Create the state store of a pipeline, and edit or rename its state while the pipeline is not running.

with lock_stopped_state(store) as commit:              takes the lock, and checks that all output is published
    store.commit(commit.successor(committed_us=…, …))  commits the next epoch: the same state with changes
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from slackwater.config.pipeline import Pipeline
from slackwater.errors import StartError, StateError, Topic
from slackwater.state.commit import Commit
from slackwater.state.files.store import FilesStore, TemporaryFilesStore
from slackwater.state.fork import checkpoint_sources, pending_epoch_error
from slackwater.state.protocol import StateStore


def create_store(pipeline: Pipeline) -> StateStore:
    """Create the state store of a pipeline. It is temporary if the config has no store or an in-memory store."""
    store = pipeline.state_store
    if store is None or store.kind == "in_memory":
        return TemporaryFilesStore(pipeline.name)
    if store.kind == "postgres":
        from slackwater.state.postgres.store import PostgresStore

        return PostgresStore(store.url or "", store.schema_, pipeline.name, store.path)
    return FilesStore(store.path or "", pipeline.name, store.options)


@contextmanager
def lock_stopped_state(store: StateStore) -> Iterator[Commit]:
    """Take the lock of a state, and yield its latest commit, whose output must be published.

    Raises StartError if there is no state, LockHeldError if a runner is active, and StateError if the state is damaged
    or has unpublished output.
    """
    if store.read_commit_record() is None:  # `open` would create a state
        raise missing_state_error()
    latest = store.open()
    try:
        if latest is None:
            raise missing_state_error()
        if latest.staged and store.published_epoch() < latest.epoch:
            raise pending_epoch_error(latest.pipeline, latest.epoch)
        yield latest
    finally:
        store.close()


def missing_state_error() -> StartError:
    """Return the error for a pipeline without a state."""
    return StartError("there is no state yet; start the pipeline to create it: slackwater run", Topic.NO_STATE)


def rename_state(store: StateStore, name: str) -> tuple[Commit, str]:
    """Rename the pipeline of a state: fork it as `name`, which must have no state, and put the old state aside.

    Return the commit of the new state, and the location of the old state.

    Raises:
        LockHeldError: One of the two pipelines is running.
        StateError: Output is unpublished, `name` has a state, or only Spark's checkpoint can resume a source.
    """
    with lock_stopped_state(store) as commit:
        if sources := checkpoint_sources(commit):
            raise StateError(
                f'{commit.pipeline}: the pipeline cannot be renamed, because source "{sources[0]}" resumes from '
                "Spark's checkpoint, which is stored under the current name; keep the name, or start over with "
                "--rebuild",
                Topic.PIPELINE_RENAMED,
            )
        renamed = store.fork(name, renames=True)
        if renamed is None:
            raise pending_epoch_error(commit.pipeline, commit.epoch)
        return renamed, store.put_aside()
