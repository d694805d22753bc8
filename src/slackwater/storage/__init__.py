"""Storage of files in local directories and object stores, with clients, caches and locks.

This package does not depend on states, configs or targets.

May import: core, errors, logging, secret_masking.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from slackwater.core.paths import is_local

if TYPE_CHECKING:
    from slackwater.storage.base import Storage


def storage_for(path: str | Path, pipeline: str, options: Mapping[str, str]) -> Storage:
    """Return the storage for the state of a pipeline. Raises StartError for invalid options.

    Args:
        path: The directory or URL that contains the states of all pipelines.
        pipeline: The name of the pipeline.
        options: Settings for access to an object store; not used for a directory.
    """
    if isinstance(path, Path) or is_local(path):
        from slackwater.storage.local import LocalStorage

        return LocalStorage(str(Path(path).resolve() / pipeline))
    from slackwater.storage.object_store import ObjectStorage

    return ObjectStorage.from_url(path, pipeline, options)
