"""Long lists that a commit refers to by name: a text file each, with the checksum in its name."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

from slackwater.state.files.arrow import checksum, verify, write_synced


def put(directory: Path, epoch: int, lines: Sequence[str]) -> str:
    """Write a list below the directory of a pipeline; its name. Raises EpochError."""
    text = "".join(f"{line}\n" for line in lines)
    name = f"offsets/{epoch:09d}-{uuid.uuid4().hex[:12]}-{checksum(text.encode())}.jsonl"
    (directory / "offsets").mkdir(exist_ok=True)
    write_synced(directory / name, text.encode())
    return name


def read(directory: Path, name: str) -> list[str]:
    """The lines of a list. Raises StateError if it is not as it was written."""
    check(directory, name)
    return (directory / name).read_text().splitlines()


def check(directory: Path, name: str) -> None:
    """Raise StateError if a list is missing, or holds other lines than were written."""
    verify(directory / name, Path(name).stem.rpartition("-")[2])
