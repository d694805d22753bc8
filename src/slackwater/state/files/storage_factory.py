"""Select the storage for a path or URL."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from slackwater.config.config_paths import is_local
from slackwater.state.files.local_storage import LocalStorage
from slackwater.state.files.storage import Storage


def storage_for(path: str | Path, pipeline: str, options: Mapping[str, str]) -> Storage:
    """Return the storage of a pipeline below a path or URL. Raises StartError."""
    if isinstance(path, Path) or is_local(path):
        return LocalStorage(str(Path(path).resolve() / pipeline))
    from slackwater.state.files.object_storage import ObjectStorage

    return ObjectStorage.from_url(path, pipeline, options)
