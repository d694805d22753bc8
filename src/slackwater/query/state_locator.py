"""Locate the state of a pipeline (by config, directory, URL or database), and a stage within that state."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from slackwater.config import toml
from slackwater.config.error_text import format_value, suggest_word
from slackwater.config.pipeline import Pipeline
from slackwater.config.target import OBJECTS
from slackwater.core.paths import is_local
from slackwater.errors import StartError, Topic
from slackwater.joins.compiled_join import CompiledJoin
from slackwater.joins.join_buffers import Buffers
from slackwater.state.commit import Commit
from slackwater.state.files.store import FilesStore
from slackwater.state.protocol import ASIDE, Snapshot, StateReader, StateStore
from slackwater.windows.state_layout import KeyedStateLayout

_URL = re.compile(r"postgres(ql)?://")


def locate_store(where: str | Path | Pipeline, pipeline: str | None = None, schema: str = "public") -> StateStore:
    """Return the store of a state, without opening or creating anything.

    Args:
        where: A pipeline, its TOML file, a state directory, a URL in an object store, or a database URL.
        pipeline: The name of the pipeline. It is required if several pipelines have their state there.
        schema: The schema of the tables in a database.

    Raises StartError if the state cannot be located, and ConfigError if the TOML file is invalid.
    """
    if isinstance(where, Pipeline):
        return _store_of_config(where)
    if _URL.match(str(where)):
        return _store_in_database(str(where), schema, pipeline)
    if _is_url(where):
        return _store_in_objects(str(where), pipeline)
    path = Path(where)
    if path.suffix == ".toml" and not path.is_dir():
        return _store_of_config(toml.load(path))
    return _store_in_directory(path, pipeline)


def list_pipelines(where: str | Path | Pipeline, schema: str = "public") -> list[str]:
    """Return the names of the pipelines whose state is at a location.

    `where`, `schema`: see `locate_store`.
    Raises StartError if the location cannot be read, and ConfigError if the TOML file is invalid.
    """
    if isinstance(where, str | Path) and Path(where).suffix == ".toml" and not Path(where).is_dir():
        where = toml.load(where)
    if isinstance(where, Pipeline):
        store = where.state_store
        if store is None or not store.durable:
            raise _in_memory_error(where)
        if store.kind == "postgres":
            return _names_in_database(store.url or "", store.schema_)
        where = store.path or ""
        if _is_url(where):
            return _list_pipelines_at_url(where, store.options)
    elif _URL.match(str(where)):
        return _names_in_database(str(where), schema)
    if _is_url(where):
        above, last = _split_url(str(where))
        is_single = above and _object_store_module(str(where)).is_state(above, last, {})
        return [last] if is_single else _list_pipelines_at_url(str(where))
    path = Path(where)
    return [path.name] if (path / "manifests").is_dir() else _names_in_directory(path)


def _store_of_config(pipeline: Pipeline) -> StateStore:
    from slackwater.state.store_access import create_store

    if pipeline.state_store is None or not pipeline.state_store.durable:
        raise _in_memory_error(pipeline)
    return create_store(pipeline)


def _in_memory_error(pipeline: Pipeline) -> StartError:
    return StartError(
        f"{pipeline.name}: its state is in memory, which only the runner can read; "
        'set [state_store] kind = "files" or "postgres"',
        Topic.NO_STATE,
    )


def _store_in_directory(path: Path, name: str | None) -> FilesStore:
    if (path / "manifests").is_dir():
        if name not in (None, path.name):
            raise StartError(f'{path}: this is the state of "{path.name}", not of "{name}"', Topic.NO_STATE)
        return FilesStore(path.parent, path.name)
    return FilesStore(path, _choose_name(str(path), name, _names_in_directory(path)))


def _names_in_directory(path: Path) -> list[str]:
    if not path.is_dir():
        raise StartError(
            f"{path}: is not a state directory; expected a TOML file, a directory or a URL", Topic.NO_STATE
        )
    return sorted(p.parent.name for p in path.glob("*/manifests") if ASIDE not in p.parent.name)


def _is_url(where: str | Path) -> bool:
    """Return whether a location is the URL of an object store."""
    return isinstance(where, str) and not is_local(where)


def _list_pipelines_at_url(url: str, options: Mapping[str, str] | None = None) -> list[str]:
    """Return the names of the pipelines whose state is below a URL.

    `options`: settings for access to the object store. By default, they come from the environment.
    """
    objects = _object_store_module(url)
    return [name for name in objects.pipeline_names(url, options or {}) if ASIDE not in name]


def _object_store_module(url: str) -> ModuleType:
    """Return the module that reads object stores. Raises StartError if the URL has an unsupported scheme."""
    from slackwater.storage import object_store

    if url.partition("://")[0] not in OBJECTS:
        raise StartError(
            f"{url}: expected a TOML file, a directory, or a URL that begins with postgresql://, s3://, gs:// or "
            "abfss://",
            Topic.VALUE,
        )
    return object_store


def _store_in_objects(url: str, name: str | None) -> FilesStore:
    """Return the store of the state at a URL, or of the state with this name below the URL."""
    above, last = _split_url(url)
    if above and _object_store_module(url).is_state(above, last, {}):
        if name not in (None, last):
            raise StartError(f'{url}: this is the state of "{last}", not of "{name}"', Topic.NO_STATE)
        return FilesStore(above, last)
    return FilesStore(url, _choose_name(url, name, _list_pipelines_at_url(url)))


def _split_url(url: str) -> tuple[str, str]:
    """Split a URL into its parent ("" for a bucket) and its last component."""
    scheme, _, rest = url.rstrip("/").partition("://")
    above, cut, last = rest.rpartition("/")
    return (f"{scheme}://{above}", last) if cut else ("", rest)


def _store_in_database(url: str, schema: str, name: str | None) -> StateStore:
    from slackwater.state.postgres import client
    from slackwater.state.postgres.store import PostgresStore

    place = f'schema "{schema}" of {client.server_address(url)}'
    return PostgresStore(url, schema, _choose_name(place, name, _names_in_database(url, schema)))


def _names_in_database(url: str, schema: str) -> list[str]:
    from slackwater.state.postgres.commit_log import pipeline_names

    return [name for name in pipeline_names(url, schema) if ASIDE not in name]


def _choose_name(place: str, name: str | None, names: Sequence[str]) -> str:
    if not names:
        raise StartError(f"{place}: no pipeline has a state here; check the location", Topic.NO_STATE)
    if name is None and len(names) == 1:
        return names[0]
    names_text = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
    if name is None:
        fact = f"found the states of several pipelines: {names_text}; name one of them"
        raise StartError(f"{place}: {fact}", Topic.NO_STATE)
    if name not in names:
        hint = suggest_word(name, names) or f"; available: {names_text}"
        raise StartError(f'{place}: pipeline "{name}" has no state here{hint}', Topic.NO_STATE)
    return name


def find_stage_index(commit: Commit, name: str, option: str = "--stage") -> int:
    """Return the index of a stage, from 0. Raises StartError if it does not exist. `option`: the name in messages."""
    names = [s.name for s in commit.stages]
    if name not in names:
        raise StartError(
            f"{commit.pipeline}: {option}: found {format_value(name)}, which is not a stage of the state in epoch {commit.epoch}"
            f"{suggest_word(name, names)}; available: {', '.join(names)}",
            Topic.SQL,
        )
    return names.index(name)


def narrow_commit(commit: Commit, number: int) -> Commit:
    """Return a commit with only the stage `number`, the sources that it reads, and the targets of its results."""
    stage = commit.stages[number]
    if not commit.stages[1:]:
        return commit
    return commit.model_copy(
        update={
            "stages": (stage,),
            "sources": {n: s for n, s in commit.sources.items() if n in stage.clocks},
            "targets": {n: t for n, t in commit.targets.items() if t.stage == stage.name},
            "output": commit.output_of(stage.name),
            "letters": (),
            "counters": {},
        }
    )


def narrow_snapshot(snapshot: Snapshot, number: int) -> Snapshot:
    """Return a snapshot with only the stage `number`, which becomes stage 0."""
    if not snapshot.commit.stages[1:]:
        return snapshot

    def rows_of(shard: int, logic: KeyedStateLayout, stage: int) -> StateReader:
        return snapshot.reader(shard, logic, number)

    def buffers_of(shard: int, logic: CompiledJoin, stage: int) -> Buffers:
        return snapshot.buffers(shard, logic, number)

    return replace(snapshot, commit=narrow_commit(snapshot.commit, number), rows_of=rows_of, buffers_of=buffers_of)
