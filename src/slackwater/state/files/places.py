"""Which kind of place a path names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from slackwater.config.paths import local
from slackwater.state.files.directory import Directory
from slackwater.state.files.place import Place


def place_at(path: str | Path, pipeline: str, options: Mapping[str, str]) -> Place:
    """Where a pipeline's state is, below a path or URL. Raises StartError."""
    if isinstance(path, Path) or local(path):
        return Directory(str(Path(path).resolve() / pipeline))
    from slackwater.state.files.objects import Objects

    return Objects.at(path, pipeline, options)
