"""What every kind of offsets answers: how it is stored, told to people, and compared with where a source stood before."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self


@dataclass(frozen=True)
class ChangedFiles:
    """Files that changed after they were read: how many, and the names of the `last` ones."""

    count: int = 0
    last: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"count": self.count, "last": list(self.last)}


class OffsetChange(NamedTuple):
    """What going on elsewhere means for a part of a source, for people. `again`: rows come once more; `skips`: rows never come."""

    part: str
    was: str
    will: str
    meaning: str = ""
    again: bool = False
    skips: bool = False


OffsetLookup = Callable[
    [str | int], "Offsets"
]  # asks the system of a source where "earliest", "latest" or a time (µs) is
NEEDS_FILE = "give the pipeline's TOML file as WHERE"


class Offsets(ABC):
    """How far one source was read. A value; without arguments: nothing was."""

    @classmethod
    @abstractmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self | None:
        """What a commit holds; None where it is of another kind. Raises ValueError for what no commit holds."""

    @classmethod
    def coerce(cls, offsets: Offsets | None) -> Self:
        """What a commit knows of a source of this kind; nothing where it was another kind of source before."""
        return offsets if isinstance(offsets, cls) else cls()

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """As a commit holds it."""

    @abstractmethod
    def positions(self) -> dict[str, str]:
        """For people who look into a database: a name, and how far that is."""

    @abstractmethod
    def describe(self) -> str:
        """Where reading goes on, in words: as in `after 3 files`."""

    @abstractmethod
    def changes(self, before: Offsets | None) -> Sequence[OffsetChange]:
        """What it means to go on here instead of `before`."""

    @abstractmethod
    def resolve_reset(self, prefix: str, start: object, lookup: OffsetLookup | None) -> Offsets:
        """Where a source goes on that is to begin at a word or a time. `prefix`: who asks for it; `lookup`: None without its config.

        Raises StartError, also for what nothing of this kind can begin at.
        """

    @property
    def lists(self) -> tuple[str, ...]:
        """The names of lists beside the state that belong to it; none where it is short enough for a commit."""
        return ()

    @property
    def changed(self) -> ChangedFiles | None:
        """The files that changed after they were read; None: none did, or none were read."""
        return None

    def with_list_names(self, listed: Callable[[str], str]) -> Offsets:
        """The same, with lists of other names."""
        return self


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def count_of_files(value: Any) -> int:
    """Raises ValueError for what is no count."""
    if not is_count(value):
        raise ValueError(f"{str(value)[:100]!r} is no count of files")
    return int(value)
