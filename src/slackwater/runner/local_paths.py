"""Check whether a run can write to the local directories of a config, and whether earlier runs wrote elsewhere."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

from slackwater.config.error_text import EnvString, format_value
from slackwater.config.pipeline import Pipeline, resolve_connection
from slackwater.config.relative_paths import list_written_directories, restore_written_path
from slackwater.core.paths import OUTPUT_FOLDER, STATE_FOLDERS, is_local
from slackwater.errors import StartError, Topic


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
