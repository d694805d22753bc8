"""Paths of local files as users write them, and names of directories that Slackwater creates."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit


def file_uri_to_path(uri: str) -> str:
    """Return the path of a `file:` URI (`file:///in/a%20b.csv` -> `/in/a b.csv`), and any other name unchanged."""
    return unquote(urlsplit(uri).path) if uri.startswith("file:") else uri


def is_local(path: str) -> bool:
    """Return whether a path is on this machine, not in an object store."""
    return "://" not in path or path.startswith("file:")


STATE_FOLDERS = ("manifests", "segments", "outputs")  # within the state directory of a pipeline
OUTPUT_FOLDER = "_slackwater"  # within a target's directory; readers of the target skip it
