"""What the driver asks of a target."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import polars as pl

from slackwater.core.schema import Field
from slackwater.state.commit import TargetMark


@dataclass(frozen=True)
class TargetTable:
    """What a target is given: who writes, the columns in order, and those that tell rows apart.

    `writer` names the marker (writer, last epoch) that a target keeps with its rows. `identity` is None where rows are only
    ever added (dead letters); else a row replaces the one of equal identity, NULL being equal to NULL. `state` names the
    state behind the epochs: a marker of another one does not count, as its pipeline was started over. `new` names columns that
    this state has not written there yet: one that is missing is added when the target is opened, others are refused.
    """

    writer: str
    fields: tuple[Field, ...]
    identity: tuple[str, ...] | None
    state: str = ""
    new: tuple[str, ...] = ()

    def missing(self, existing_columns: Container[str]) -> list[Field]:
        """The new columns that a place with these does not have."""
        return [f for f in self.fields if f.name in self.new and f.name not in existing_columns]


def columns_text(fields: Iterable[Field]) -> str:
    """Columns in a message."""
    return ", ".join(f'"{f.name}" ({f.type})' for f in fields)


class TargetWriter(Protocol):
    """Takes the staged output of one epoch. Publishing an epoch again, or an older one, must change nothing.

    One that cannot hold every value has a `capacity` (see `core.capacity`): rows beyond it are bad rows, before the commit.
    """

    guarantee: str  # "exactly once" or "at least once"
    upserts: (
        bool  # whether a row replaces the one of equal identity, and a superseded one goes; else rows are only added
    )
    description: str  # as in: delivery to {description}; never holds a secret

    def open(self) -> None:
        """Connect; create what is absent, add columns that are new, compare what is there with the columns. Raises StartError."""
        ...

    def publish(self, epoch: int, rows: pl.DataFrame, gone: pl.DataFrame | None = None, commit: str = "") -> None:
        """Write `rows` (the columns of the table, in order), take back `gone`, and write the epoch's marker, in one step.

        `commit`: the id of the epoch's commit, part of the marker.

        `gone`: the identities of superseded rows (its columns, for sessions `session_id` too), none of them in `rows`; it may
        be empty, and only a target that upserts is given any. Raises PublishError.
        """
        ...

    def close(self) -> None: ...


class MarkingTarget(Protocol):
    """A target that stores a marker next to its rows, and reads it without being opened."""

    description: str

    def read_mark(self, state: str, expected: Sequence[TargetMark] = (), fence: bool = False) -> TargetMark | None:
        """Return the last mark of this writer, whichever state wrote it; None if there is none, or the rows are gone.

        `state`: the lineage that asks. `expected`: marks of its own that may be there. `fence`: end what an earlier process
        of this writer left unfinished; only for the holder of the state's lock. Raises StartError.
        """
        ...

    def writers(self) -> list[str]:
        """Return all writers that left a marker there, this one and those of other pipelines. Raises StartError."""
        ...


@runtime_checkable
class ReadableTarget(Protocol):
    """A target that gives back what it holds, so that windows which left the state can be corrected."""

    def read_ranges(self, ranges: pl.DataFrame, column: str) -> pl.DataFrame:
        """The rows whose keys are those of a row of `ranges` and whose `column`, a time, is from `__low` to `__high`.

        `ranges`: the columns of the identity but `column`, and the bounds in µs UTC; disjoint for equal keys. NULL equals
        NULL. Gives all columns of the table, in order. Raises StartError.
        """
        ...
