"""Create the state store that a config describes."""

from __future__ import annotations

from slackwater.config.pipeline import Pipeline
from slackwater.state.files.store import FilesStore, TemporaryFilesStore
from slackwater.state.protocol import StateStore


def create_store(pipeline: Pipeline) -> StateStore:
    """Create the state store of the config, or a temporary one if it has none or asks for an in-memory store."""
    store = pipeline.state_store
    if store is None or store.kind == "in_memory":
        return TemporaryFilesStore(pipeline.name)
    if store.kind == "postgres":
        from slackwater.state.postgres.store import PostgresStore

        return PostgresStore(store.url or "", store.schema_, pipeline.name, store.path)
    return FilesStore(store.path or "", pipeline.name, store.options)
