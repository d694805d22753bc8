"""Storage of files: local directories and object stores, with their clients, caches and locks.

This package knows nothing about states, configs or targets.

May import: core, errors, logging, secrets.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from slackwater.core.paths import is_local

if TYPE_CHECKING:
    from slackwater.storage.base import Storage


def storage_for(path: str | Path, pipeline: str, options: Mapping[str, str]) -> Storage:
    """Return the storage of a pipeline below a path or URL. Raises StartError for invalid options."""
    if isinstance(path, Path) or is_local(path):
        from slackwater.storage.local import LocalStorage

        return LocalStorage(str(Path(path).resolve() / pipeline))
    from slackwater.storage.object_store import ObjectStorage

    return ObjectStorage.from_url(path, pipeline, options)
