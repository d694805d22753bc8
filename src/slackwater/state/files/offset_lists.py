"""Long lists that a commit references by name: one text file each, with the checksum in its name."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import PurePosixPath

from slackwater.storage.arrow_files import file_checksum
from slackwater.storage.base import FileRef, Storage, verify_file


def write_list(storage: Storage, epoch: int, lines: Sequence[str]) -> str:
    """Write a list and return its name. Raises EpochError if it cannot be written."""
    text = "".join(f"{line}\n" for line in lines)
    name = f"offsets/{epoch:09d}-{uuid.uuid4().hex[:12]}-{file_checksum(text.encode())}.jsonl"
    storage.put(name, text.encode())
    return name


def read_list(storage: Storage, name: str) -> list[str]:
    """Return the lines of a list. Raises StateError if it is damaged."""
    verify_file(storage, list_file(name))
    return storage.local_path(list_file(name)).read_text().splitlines()


def list_file(name: str) -> FileRef:
    """Return a reference to the file of a list. The checksum is taken from the end of the name."""
    return FileRef(name, PurePosixPath(name).stem.rpartition("-")[2])
