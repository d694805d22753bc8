"""Long lists that a commit refers to by name: a text file each, with the checksum in its name."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import PurePosixPath

from slackwater.state.files.arrow import checksum
from slackwater.state.files.place import Place, Wanted, verify


def put(place: Place, epoch: int, lines: Sequence[str]) -> str:
    """Write a list of a pipeline; its name. Raises EpochError."""
    text = "".join(f"{line}\n" for line in lines)
    name = f"offsets/{epoch:09d}-{uuid.uuid4().hex[:12]}-{checksum(text.encode())}.jsonl"
    place.put(name, text.encode())
    return name


def read(place: Place, name: str) -> list[str]:
    """The lines of a list. Raises StateError if it is not as it was written."""
    verify(place, wanted(name))
    return place.held(wanted(name)).read_text().splitlines()


def wanted(name: str) -> Wanted:
    """A list as a file: its name ends with the checksum."""
    return Wanted(name, PurePosixPath(name).stem.rpartition("-")[2])
