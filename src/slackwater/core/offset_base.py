"""Base class for offsets, which defines how offsets are stored, described, and compared with earlier ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self


@dataclass(frozen=True)
class ChangedFiles:
    """Files that changed after they were read: their number, and the names of the last ones to change (`last`)."""

    count: int = 0
    last: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"count": self.count, "last": list(self.last)}


class OffsetChange(NamedTuple):
    """The effect of new offsets on one part of a source, such as a partition.

    Args:
        part: The name of the part.
        before: The old position, as text.
        after: The new position, as text.
        meaning: The effect, as text, such as "5 again".
        rereads: Whether rows will be read again.
        skips_rows: Whether rows will never be read.
    """

    part: str
    before: str
    after: str
    meaning: str = ""
    rereads: bool = False
    skips_rows: bool = False


OffsetLookup = Callable[[str | int], "Offsets"]  # returns the offsets for "earliest", "latest" or a time (µs)
NEEDS_FILE = "pass the pipeline's TOML file as WHERE"


class Offsets(ABC):
    """The position up to which one source was read, as an immutable value.

    An instance created without arguments means that nothing has been read.

    `connector`: the kind of the connector that uses this class. A commit stores the kind, so that a state can be read
    without its config. The kind is empty for files, Kafka and tables, whose offsets are recognized by their keys.
    """

    connector: ClassVar[str] = ""

    @classmethod
    @abstractmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self | None:
        """Return the offsets that a commit stores; None if they are of another kind.

        Raises ValueError for anything that a commit cannot contain.
        """

    @classmethod
    def coerce(cls, offsets: Offsets | None) -> Self:
        """Return `offsets` if they are of this kind.

        Otherwise return empty offsets, since the source used to be of another kind.
        """
        return offsets if isinstance(offsets, cls) else cls()

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return the offsets as a commit stores them."""

    @abstractmethod
    def positions(self) -> dict[str, str]:
        """Return the position in each part of the source (such as each partition), for display in tables."""

    @abstractmethod
    def describe(self) -> str:
        """Describe where reading continues, as in `after 3 files`."""

    @abstractmethod
    def changes(self, before: Offsets | None) -> Sequence[OffsetChange]:
        """Return the effects of continuing to read at these offsets instead of at `before`."""

    @abstractmethod
    def resolve_reset(self, prefix: str, start: object, lookup: OffsetLookup | None) -> Offsets:
        """Return the offsets for starting at "earliest", "latest" or a time.

        Args:
            prefix: The prefix of error messages, which names the option.
            start: "earliest", "latest" or a time (µs).
            lookup: A function that requests offsets from the source's system; None if its config is missing.

        Raises:
            StartError: This kind of offsets does not support `start`, or `lookup` is missing or fails.
        """

    @property
    def lists(self) -> tuple[str, ...]:
        """The names of the lists, stored next to the commits, that contain parts of these offsets.

        Empty if the commit itself contains all of these offsets.
        """
        return ()

    @property
    def changed(self) -> ChangedFiles | None:
        """The files that changed after they were read; None if no file has changed."""
        return None

    def with_list_names(self, listed: Callable[[str], str]) -> Offsets:
        """Return a copy that refers to its stored lists of files by new names. `listed` maps an old name to the new one."""
        return self


def is_valid_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def parse_file_count(value: Any) -> int:
    """Parse a stored number of files. Raises ValueError if the value is not a number of files."""
    if not is_valid_count(value):
        raise ValueError(f"{str(value)[:100]!r} is not a number of files")
    return int(value)
