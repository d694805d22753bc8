"""Select the storage for a path or URL."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from slackwater.core.paths import is_local
from slackwater.storage.base import Storage
from slackwater.storage.local import LocalStorage


def storage_for(path: str | Path, pipeline: str, options: Mapping[str, str]) -> Storage:
    """Return the storage of a pipeline below a path or URL. Raises StartError for invalid options."""
    if isinstance(path, Path) or is_local(path):
        return LocalStorage(str(Path(path).resolve() / pipeline))
    from slackwater.storage.object_store import ObjectStorage

    return ObjectStorage.from_url(path, pipeline, options)
