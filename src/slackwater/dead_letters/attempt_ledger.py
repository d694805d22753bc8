"""The ledger of dead letters in a state: which letters were applied, and how many times the others were tried.

    letters (files, Delta, Postgres, Kafka)      written once, never changed
    commit ─▶ replayed: lists of  epoch id count      applied
           └▶ tried:    one list of  epoch id tries   tried and not applied, as of this commit

A letter is identified by the epoch that wrote it and a hash of its content and position. Both lists are part of a
commit, so each attempt is counted exactly once, regardless of crashes. This works for every kind of target, even for a
topic, whose records cannot be modified.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import polars as pl

from slackwater.core.dead_letter_schema import LETTER
from slackwater.core.hashing import key_hash
from slackwater.state.commit import Commit

_ID = [
    f
    for f in LETTER
    if f.name in ("reason", "source", "topic", "partition", "offset", "key", "value", "event_time", "file")
]
COLUMNS = ("epoch", *(f.name for f in _ID))  # the columns that identify a dead letter
_PLACE = ["epoch", "__id"]
_GROUP = ["reason", "source"]
_MOMENT = pl.Datetime("us", "UTC")
_COUNTED = {
    **dict.fromkeys(_GROUP, pl.String()),
    **dict.fromkeys(("letters", "applied", "tries"), pl.Int64()),
    **dict.fromkeys(("first", "last"), _MOMENT),
}
_SCHEMA = {"epoch": pl.Int64(), "__id": pl.Int64(), "__done": pl.Int64(), "__tries": pl.Int64()}


@dataclass(frozen=True)
class AttemptLedger:
    """The attempts by dead letter (`epoch`, `__id`): `__done`, the number of equal letters applied, and `__tries`."""

    entries: pl.DataFrame

    @classmethod
    def from_commit(cls, commit: Commit | None, read_list: Callable[[str], list[str]]) -> AttemptLedger:
        """Read the ledger of a commit; it is empty if there is no commit."""
        done = _lines(commit.replayed if commit else (), read_list, "__done")
        tries = _lines(commit.tried if commit else (), read_list, "__tries")
        every = pl.concat([done, tries], how="diagonal").group_by(_PLACE)
        sums = every.agg(pl.col("__done", "__tries").sum())
        return cls(sums.select(pl.col(n).cast(t) for n, t in _SCHEMA.items()))

    def with_attempts(self, letters: pl.DataFrame) -> pl.DataFrame:
        """Add `__id`, `__applied` and `__tries` to dead letters, keeping their order.

        Each of several equal letters from a file stands for a separate row, so they are applied one by one. Equal
        letters of a record in a topic are applied together.
        """
        matched = add_letter_ids(letters).join(self.entries, on=_PLACE, how="left", maintain_order="left")
        matched = matched.with_columns(pl.col("__done", "__tries").fill_null(0))
        nth = pl.when(pl.col("offset").is_null()).then(pl.int_range(pl.len()).over(_PLACE)).otherwise(0)
        return matched.with_columns((nth < pl.col("__done")).alias("__applied")).drop("__done")

    def count_by_reason(self, chunks: Iterable[pl.DataFrame]) -> pl.DataFrame:
        """Count dead letters that arrive in chunks; equal letters may be in different chunks.

        Returns, by reason and source, the number of `letters`, how many were `applied`, the `tries` of the others, and
        the `first` and `last` event time.
        """
        identity = [*_GROUP, *_PLACE, "__once"]
        parts = [_count_equal(add_letter_ids(chunk), identity) for chunk in chunks]
        if not parts:
            return pl.DataFrame(schema=_COUNTED)
        sums = (
            pl.concat(parts)
            .group_by(identity)
            .agg(pl.col("letters").sum(), pl.col("first").min(), pl.col("last").max())
        )
        sums = sums.join(self.entries, on=_PLACE, how="left").with_columns(pl.col("__done", "__tries").fill_null(0))
        once = pl.when(pl.col("__done") > 0).then(pl.col("letters")).otherwise(0)
        sums = sums.with_columns(
            pl.when(pl.col("__once")).then(once).otherwise(pl.min_horizontal("__done", "letters")).alias("applied")
        )
        tries = pl.when(pl.col("letters") > pl.col("applied")).then(pl.col("__tries")).otherwise(0)
        groups = sums.with_columns((tries * (pl.col("letters") - pl.col("applied"))).alias("tries")).group_by(_GROUP)
        done = groups.agg(pl.col("letters", "applied", "tries").sum(), pl.col("first").min(), pl.col("last").max())
        return done.select(pl.col(n).cast(t) for n, t in _COUNTED.items())

    def update_attempts(self, tried: pl.DataFrame, applied: Iterable[pl.DataFrame]) -> list[str]:
        """Return the lines of the next `tried` list.

        The dead letters `tried` have one more attempt; those that were `applied` are removed.
        """
        more = tried.select(_PLACE).unique().with_columns(pl.lit(1, pl.Int64).alias("__tries"))
        now = pl.concat([self.entries.select(*_PLACE, "__tries"), more]).group_by(_PLACE).agg(pl.col("__tries").sum())
        for letters in applied:
            now = now.join(letters.select(_PLACE).unique(), on=_PLACE, how="anti")
        pending = now.filter(pl.col("__tries") > 0).sort(_PLACE)
        return [" ".join(map(str, row)) for row in pending.iter_rows()]


def _count_equal(letters: pl.DataFrame, identity: Sequence[str]) -> pl.DataFrame:
    """Count dead letters that are equal in the columns `identity`."""
    return (
        letters.with_columns(pl.col("offset").is_not_null().alias("__once"))
        .group_by(identity)
        .agg(
            pl.len().cast(pl.Int64).alias("letters"),
            pl.col("event_time").min().alias("first"),
            pl.col("event_time").max().alias("last"),
        )
    )


def add_letter_ids(letters: pl.DataFrame) -> pl.DataFrame:
    """Add `__id`, the hash of content and position, to dead letters."""
    return letters.with_columns(key_hash(letters, _ID).alias("__id"))


def format_applied_lines(letters: pl.DataFrame) -> list[str]:
    """Return the lines of a `replayed` list that records these dead letters as applied."""
    counts = letters.group_by(_PLACE, maintain_order=True).len()
    return [" ".join(map(str, row)) for row in counts.iter_rows()]


def _lines(names: Sequence[str], read_list: Callable[[str], list[str]], column: str) -> pl.DataFrame:
    lines = pl.Series("line", [line for name in names for line in read_list(name)], dtype=pl.String)
    parts = lines.str.split_exact(" ", 2).struct.rename_fields([*_PLACE, column]).struct.unnest()
    return parts.select(pl.col(n).cast(pl.Int64) for n in (*_PLACE, column))
