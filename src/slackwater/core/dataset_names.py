"""Names of files and directories by OpenLineage's naming rules."""

from __future__ import annotations

import re
from pathlib import Path

_WILD = re.compile(r"[*?\[{]")


def path_dataset(path: str) -> tuple[str, str]:
    """Return the dataset (namespace, name) of a file or directory; for a glob, that of the directory above it."""
    parts = path.split("/")
    fixed = next((i for i, part in enumerate(parts) if _WILD.search(part)), len(parts))
    path = "/".join(parts[:fixed])
    if "://" not in path or path.startswith("file:"):
        return "file", str(Path(re.sub("^file:(//)?", "", path) or ".").absolute())
    scheme, _, rest = path.partition("://")
    bucket, _, key = rest.partition("/")
    bucket = bucket.rpartition("@")[2] if scheme not in ("abfs", "abfss", "wasb", "wasbs") else bucket
    return f"{'s3' if scheme in ('s3a', 's3n') else scheme}://{bucket}", key.strip("/") or "/"
