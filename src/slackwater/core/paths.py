"""Paths as users write them, their OpenLineage names, and the names of directories that Slackwater creates."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

STATE_FOLDERS = ("manifests", "segments", "outputs")  # within the state directory of a pipeline
OUTPUT_FOLDER = "_slackwater"  # within a target's directory; readers of the target skip it
_WILD = re.compile(r"[*?\[{]")


def file_uri_to_path(uri: str) -> str:
    """Return the path of a `file:` URI (`file:///in/a%20b.csv` -> `/in/a b.csv`), and any other name unchanged."""
    return unquote(urlsplit(uri).path) if uri.startswith("file:") else uri


def is_local(path: str) -> bool:
    """Return whether a path is on this machine, not in an object store."""
    return "://" not in path or path.startswith("file:")


def build_openlineage_dataset(path: str) -> tuple[str, str]:
    """Return the OpenLineage dataset (namespace, name) of a path; for a glob, the dataset of its fixed directory."""
    parts = path.split("/")
    fixed = next((i for i, part in enumerate(parts) if _WILD.search(part)), len(parts))
    path = "/".join(parts[:fixed])
    if is_local(path):
        return "file", str(Path(re.sub("^file:(//)?", "", path) or ".").absolute())
    scheme, _, rest = path.partition("://")
    bucket, _, key = rest.partition("/")
    bucket = bucket.rpartition("@")[2] if scheme not in ("abfs", "abfss", "wasb", "wasbs") else bucket
    return f"{'s3' if scheme in ('s3a', 's3n') else scheme}://{bucket}", key.strip("/") or "/"
