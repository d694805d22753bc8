"""Checks of the systems and directories of a pipeline, which change nothing.

`check --connect` checks whether every system is reachable and fits the config. Each start checks whether it can write to
the local directories of the config, and whether earlier runs wrote elsewhere.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

from slackwater.config.connection import PostgresConnection
from slackwater.config.message_format import EnvString, format_value
from slackwater.config.pipeline import Pipeline, resolve_connection
from slackwater.config.relative_paths import list_written_directories, restore_written_path
from slackwater.config.target import Target as TargetSpec
from slackwater.connectors.connector import connector_for
from slackwater.connectors.files import source as files_source
from slackwater.core.offset_base import ChangedFiles
from slackwater.core.offsets import FileOffsets
from slackwater.core.paths import OUTPUT_FOLDER, STATE_FOLDERS, file_uri_to_path, is_local
from slackwater.errors import SlackwaterError, StartError, Topic


def find_connection_problems(pipeline: Pipeline) -> list[SlackwaterError]:
    """Return an error for each system that is unreachable or does not fit the config.

    Spark starts only for a Postgres target, to find out which columns its table must have.
    """
    from slackwater.state.store_access import create_store

    problems: list[SlackwaterError] = []

    def attempt(check: Callable[[], object]) -> None:
        try:
            check()
        except SlackwaterError as error:
            problems.append(error)

    for spec in pipeline.sources:
        connection = resolve_connection(spec.connection, pipeline.connections)
        if connection is not None:
            attempt(partial(connector_for(connection).check_source, spec))
    store = pipeline.state_store
    if store is not None and store.kind == "postgres":
        from slackwater.state.postgres import client

        attempt(lambda: client.open_connection(str(store.url), "state store").close())
    elif store is not None and store.kind == "files" and not is_local(store.path or ""):
        attempt(lambda: create_store(pipeline).runner())
    for key, target in _target_specs(pipeline).items():
        if (connection := resolve_connection(target.connection, pipeline.connections)) is not None:
            attempt(partial(connector_for(connection).check_target, target, key))
    connections = [
        resolve_connection(target_pipeline.target.connection, pipeline.connections)
        for target_pipeline in pipeline.per_target.values()
    ]
    if not problems and any(isinstance(c, PostgresConnection) for c in connections):
        attempt(lambda: _check_tables(pipeline))
    return problems


def find_connection_notes(pipeline: Pipeline) -> list[str]:
    """Return notes about what a start would create, and about files that changed after they were read."""
    from slackwater.connectors.files import planner
    from slackwater.state.store_access import create_store

    notes = []
    for key, target in _target_specs(pipeline).items():
        connection = resolve_connection(target.connection, pipeline.connections)
        if connection is not None and (note := connector_for(connection).will_create(target, key)) is not None:
            notes.append(note)
    if pipeline.state_store is None or not pipeline.state_store.durable:
        return notes
    store = create_store(pipeline)
    try:
        with store.peek() as snapshot:
            for spec in pipeline.sources if snapshot is not None else ():
                record = snapshot.commit.sources.get(spec.name) if snapshot else None
                read = FileOffsets.coerce(record.offsets if record else None)
                changes = read.changed or ChangedFiles()
                names, count = list(changes.last), changes.count
                if pipeline.state_store.kind == "files" and read.lists:
                    tracker = planner.FileChangeTracker()
                    tracker.add(files_source.load_file_list(store, read))
                    changed = tracker.find_changed(None)
                    names += [file_uri_to_path(e.path) for e in changed]
                    count += len(changed)
                if count:
                    notes.append(planner.changed_files_text(spec.name, names[-planner.CHANGES_SHOWN :], count))
    finally:
        store.close()
    return notes


def _target_specs(pipeline: Pipeline) -> dict[str, TargetSpec]:
    """Return all targets, including the target of dead letters, by config key."""
    specs = {
        f'target "{n}"' if pipeline.targets else "target": target_pipeline.target
        for n, target_pipeline in pipeline.per_target.items()
    }
    return specs if pipeline.dead_letter is None else {**specs, "dead_letter": pipeline.dead_letter}


def _check_tables(pipeline: Pipeline) -> None:
    """Raise StartError, with one line per difference, if a Postgres table does not fit the pipeline's output."""
    from slackwater.connectors.lookup_views import LookupViews
    from slackwater.connectors.postgres.target import PostgresTarget
    from slackwater.runner.components import bind_stages, create_source, create_target_writers, spark_settings
    from slackwater.spark.sessions import spark_session
    from slackwater.state.store_access import create_store

    private_session = spark_session.private_session(
        spark_session.start_session(spark_settings(pipeline, lambda level, line: None)), 1
    )
    LookupViews(private_session, pipeline.lookups, lambda line: None).load()
    sources = [create_source(private_session, pipeline, i, None) for i in range(len(pipeline.sources))]
    operators = {name: step.operator for name, step in bind_stages(pipeline, private_session, sources).items()}
    latest = None
    if pipeline.state_store is not None and pipeline.state_store.durable:
        with closing(create_store(pipeline)) as store, store.peek() as snapshot:
            latest = None if snapshot is None else snapshot.commit
    targets = create_target_writers(pipeline, operators, latest=latest)
    if lines := [line for t in targets.values() if isinstance(t, PostgresTarget) for line in t.problems()]:
        raise StartError("\n".join(lines), Topic.TARGET_UNSUITABLE)


# -- local directories ---------------------------------------------------------------------------------------------------


def unwritable_directories(pipeline: Pipeline) -> Iterator[str]:
    """Yield a line `key: problem` for each directory that a run could not write to."""
    for key, path in list_written_directories(pipeline):
        shown_path, directory = _path_text(path), _absolute(path)
        existing = directory
        while not existing.exists() and existing != existing.parent:
            existing = existing.parent
        if not existing.is_dir():
            which = "is a file" if existing == directory else "is below a file"
            yield f"{key}: {shown_path} {which}; expected a directory, or one that can be created"
        elif not os.access(existing, os.W_OK | os.X_OK):
            problem = "cannot be written" if existing == directory else "cannot be created"
            yield f"{key}: {shown_path} {problem} (Permission denied); choose another path, or give this user write access"
        elif refused := [
            part for part in _subdirectories(key, directory, pipeline) if not os.access(part, os.W_OK | os.X_OK)
        ]:
            yield f'{key}: "{refused[0]}" cannot be written (Permission denied); give this user write access'


def _subdirectories(key: str, directory: Path, pipeline: Pipeline) -> Iterator[Path]:
    """Yield the subdirectories of a configured directory that earlier runs created and that a run writes to."""
    inner = (
        [pipeline.name, *(f"{pipeline.name}/{part}" for part in STATE_FOLDERS)]
        if key == "state_store.path"
        else [OUTPUT_FOLDER]
    )
    return (directory / part for part in inner if (directory / part).is_dir())


def missing_directories(pipeline: Pipeline) -> Iterator[str]:
    """Yield a line `key: problem` for each file source whose directory does not exist, which would make a run fail."""
    for i, source in enumerate(pipeline.sources):
        connection = (
            resolve_connection(source.connection, pipeline.connections) if source.connection is not None else None
        )
        if connection is None or connection.kind != "files":
            continue
        query = source.query or ""
        segments = Path(query.removeprefix("file://").removeprefix("file:")).parts
        directory = Path(*itertools.takewhile(lambda part: not any(c in part for c in "*?[{"), segments))
        if is_local(query) and not directory.exists():
            subject = "the directory" if isinstance(query, EnvString) else f'"{directory}"'
            yield f"sources[{i}].query: {subject} does not exist"


def check_moved_directories(pipeline: Pipeline) -> None:
    """Raise StartError if state or output exists only below the working directory.

    Earlier versions resolved relative paths against that directory. Without this check, a run would create a new state.
    """
    relocated = list(_moved_directories(pipeline))
    if relocated:
        listed = "; ".join(
            f'{key} = "{written}": "{old}" exists, "{new}" does not' for key, written, old, new in relocated
        )
        moves = " && ".join(f"mkdir -p '{Path(new).parent}' && mv '{old}' '{new}'" for _, _, old, new in relocated)
        raise StartError(
            f"{pipeline.name}: relative paths are now resolved from the folder of the config, not from the working "
            f"directory ({listed}); to keep the existing files, run: {moves}; or write absolute paths in the config",
            Topic.TARGET_OF_OTHER_STATE,
        )


def _moved_directories(pipeline: Pipeline) -> Iterator[tuple[str, str, Path, Path]]:
    """Yield (key, written path, old path, new path) for each directory that exists only below the working directory."""
    signs = {
        "state_store.path": f"{pipeline.name}/manifests",
        "target.path": f"_slackwater/{pipeline.writer}.json",
        **{f"targets[{i}].path": f"_slackwater/{o.writer}.json" for i, o in enumerate(pipeline.per_target.values())},
        "dead_letter.path": f"_slackwater/{pipeline.name}-letters.json",
    }
    for key, path in list_written_directories(pipeline):
        written = restore_written_path(path)
        old, new = Path.cwd() / written, Path(path)
        if written == path or old.resolve() == new.resolve():
            continue
        for sign in (signs[key], *(["_delta_log"] if key != "state_store.path" else [])):
            if _has_content(old / sign) and not _has_content(new / sign):
                yield key, written, old, new
                break


def _has_content(path: Path) -> bool:
    return path.is_file() or (path.is_dir() and any(path.iterdir()))


def _absolute(path: str) -> Path:
    return Path(path.removeprefix("file://").removeprefix("file:")).absolute()


def _path_text(path: str) -> str:
    return format_value(path) if isinstance(path, EnvString) else f'"{_absolute(path)}"'
