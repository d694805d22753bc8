"""Read dead letters from their target without Spark, and the ledger of replay attempts from the state.

    letters (files, Delta, Postgres, Kafka)      written once, never changed
    commit ─▶ replayed: lists of  epoch id count      applied
          └▶ tried:    one list of  epoch id tries   tried and not applied, as of this commit

A letter is identified by the epoch that wrote it and a hash of its content and position. The lists are part of a
commit. Therefore, each attempt is counted exactly once, even after a crash and even if the letters are in a topic,
whose records cannot be modified. A column that an older letter does not have is NULL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import polars as pl

from slackwater.config.connection import ConsoleConnection
from slackwater.config.pipeline import Pipeline, resolve_connection
from slackwater.connectors.connector import connector_for
from slackwater.core.dead_letter_columns import LETTER, SCHEMA, DeadLetterFilter
from slackwater.core.hashing import key_hash
from slackwater.core.schema import Field
from slackwater.errors import StartError, Topic
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


def read_newest(pipeline: Pipeline, letter_filter: DeadLetterFilter) -> pl.DataFrame:
    """Return the newest dead letters of a pipeline that match the filter. Raises StartError if they cannot be read."""
    letters = pl.DataFrame(schema={n: SCHEMA[n] for n in letter_filter.columns_to_read})
    for frame in _read_frames(pipeline, letter_filter):
        letters = letter_filter.apply(pl.concat([letters, frame]), pipeline.name)
    return letters.select(letter_filter.columns)


def add_attempts(pipeline: Pipeline, letters: pl.DataFrame) -> pl.DataFrame:
    """Add `__applied` and `__tries` to dead letters, as the state records them. They need the columns of LETTER.

    If only some of several equal letters were applied, it is arbitrary which of them are marked as applied.
    """
    return read_attempt_ledger(pipeline).with_attempts(letters)


def read_attempt_ledger(pipeline: Pipeline) -> AttemptLedger:
    """Read the ledger of replay attempts from the state, without a lock.

    Raises StateError or StartError if the state cannot be read.
    """
    from slackwater.state.store_access import create_store

    if pipeline.state_store is None or not pipeline.state_store.durable:
        return AttemptLedger.from_commit(None, lambda name: [])  # a replay needs a durable state
    with create_store(pipeline).peek() as snapshot:
        if snapshot is None:
            return AttemptLedger.from_commit(None, lambda name: [])
        return AttemptLedger.from_commit(snapshot.commit, snapshot.read_list)


def count_dead_letters(pipeline: Pipeline) -> pl.DataFrame:
    """Count the dead letters of a pipeline by reason and source. Reads one chunk at a time.

    Returns the columns `reason`, `source`, `letters`, `open` and `applied` (counts), `tries` (attempts at the open
    letters), `first` and `last` (event times).
    """
    letter_filter = DeadLetterFilter(COLUMNS)
    counts = read_attempt_ledger(pipeline).count_by_reason(
        letter_filter.apply(frame, pipeline.name) for frame in _read_frames(pipeline, letter_filter)
    )
    still_open = (pl.col("letters") - pl.col("applied")).alias("open")
    columns = ("reason", "source", "letters", still_open, "applied", "tries", "first", "last")
    return counts.select(columns).sort("reason", "source", nulls_last=True)


def _read_frames(pipeline: Pipeline, letter_filter: DeadLetterFilter) -> Iterator[pl.DataFrame]:
    target = pipeline.dead_letter
    if target is None:
        raise StartError(
            f"{pipeline.name}: the config has no [dead_letter], so the pipeline stores no dead letters; add "
            '[dead_letter], and set on_error or late_data to "dlq"',
            Topic.DEAD_LETTERS,
        )
    connection = resolve_connection(target.connection, pipeline.connections)
    writers = (f"{pipeline.name}-letters", f"{pipeline.name}-letters-aside")
    with closing(connector_for(connection or ConsoleConnection()).result_reader(target, pipeline, writers)) as reader:
        for frame in reader.read_dead_letters(pipeline.name, letter_filter):
            yield _cast_frame(frame, letter_filter.columns_to_read)


def _cast_frame(frame: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    fields = {f.name: f for f in LETTER}
    return frame.select(
        (_cast_column(frame.schema[n], fields[n]) if n in frame.columns else pl.lit(None, SCHEMA[n])).alias(n)
        for n in columns
    )


def _cast_column(stored_type: pl.DataType, field: Field) -> pl.Expr:
    """Return an expression that casts a column to its type. Some formats store times and bytes as text."""
    value = pl.col(field.name)
    if stored_type == pl.String and field.type == "binary":
        return value.str.decode("hex")
    if stored_type == pl.String and field.type == "timestamp":
        return value.str.to_datetime("%Y-%m-%dT%H:%M:%S%.fZ", time_unit="us", time_zone="UTC")
    return value.cast(field.polars)


# -- ledger of replay attempts -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AttemptLedger:
    """Replay attempts, by dead letter.

    `entries`: `epoch` and `__id` identify a letter. `__done` is the number of equal letters that were applied, and
    `__tries` is the number of attempts that did not apply the letter.
    """

    entries: pl.DataFrame

    @classmethod
    def from_commit(cls, commit: Commit | None, read_list: Callable[[str], list[str]]) -> AttemptLedger:
        """Read the ledger of a commit. Without a commit, it is empty. `read_list`: returns the lines of a list by name."""
        done = _lines(commit.replayed if commit else (), read_list, "__done")
        tries = _lines(commit.tried if commit else (), read_list, "__tries")
        every = pl.concat([done, tries], how="diagonal").group_by(_PLACE)
        sums = every.agg(pl.col("__done", "__tries").sum())
        return cls(sums.select(pl.col(n).cast(t) for n, t in _SCHEMA.items()))

    def with_attempts(self, letters: pl.DataFrame) -> pl.DataFrame:
        """Add `__id`, `__applied` and `__tries` to dead letters, and keep their order.

        Equal letters from a file stand for separate rows and are applied one by one. Equal letters of a record in a
        topic are applied together.
        """
        matched = add_dead_letter_ids(letters).join(self.entries, on=_PLACE, how="left", maintain_order="left")
        matched = matched.with_columns(pl.col("__done", "__tries").fill_null(0))
        nth = pl.when(pl.col("offset").is_null()).then(pl.int_range(pl.len()).over(_PLACE)).otherwise(0)
        return matched.with_columns((nth < pl.col("__done")).alias("__applied")).drop("__done")

    def count_by_reason(self, chunks: Iterable[pl.DataFrame]) -> pl.DataFrame:
        """Count dead letters by reason and source. Equal letters may be in different chunks.

        Returns the columns `reason`, `source`, `letters` (count), `applied` (count), `tries` (attempts at the letters
        that are not applied), `first` and `last` (event times).
        """
        identity = [*_GROUP, *_PLACE, "__once"]
        parts = [_count_equal(add_dead_letter_ids(chunk), identity) for chunk in chunks]
        if not parts:
            return pl.DataFrame(schema=_COUNTED)
        equal = pl.concat(parts).group_by(identity)
        sums = equal.agg(pl.col("letters").sum(), pl.col("first").min(), pl.col("last").max())
        sums = sums.join(self.entries, on=_PLACE, how="left").with_columns(pl.col("__done", "__tries").fill_null(0))
        once = pl.when(pl.col("__done") > 0).then(pl.col("letters")).otherwise(0)
        sums = sums.with_columns(
            pl.when(pl.col("__once")).then(once).otherwise(pl.min_horizontal("__done", "letters")).alias("applied")
        )
        tries = pl.when(pl.col("letters") > pl.col("applied")).then(pl.col("__tries")).otherwise(0)
        groups = sums.with_columns((tries * (pl.col("letters") - pl.col("applied"))).alias("tries")).group_by(_GROUP)
        done = groups.agg(pl.col("letters", "applied", "tries").sum(), pl.col("first").min(), pl.col("last").max())
        return done.select(pl.col(n).cast(t) for n, t in _COUNTED.items())

    def update_attempts(self, tried: pl.DataFrame, applied: pl.DataFrame) -> list[str]:
        """Return the lines of the next `tried` list.

        `tried`: dead letters with one more attempt. `applied`: dead letters to remove from the list. Both have `__id`.
        """
        more = tried.select(_PLACE).unique().with_columns(pl.lit(1, pl.Int64).alias("__tries"))
        now = pl.concat([self.entries.select(*_PLACE, "__tries"), more]).group_by(_PLACE).agg(pl.col("__tries").sum())
        pending = now.join(applied.select(_PLACE), on=_PLACE, how="anti").filter(pl.col("__tries") > 0).sort(_PLACE)
        return [" ".join(map(str, row)) for row in pending.iter_rows()]


def _count_equal(letters: pl.DataFrame, identity: Sequence[str]) -> pl.DataFrame:
    """Count the dead letters that are equal in the columns `identity`."""
    event_time = pl.col("event_time")
    groups = letters.with_columns(pl.col("offset").is_not_null().alias("__once")).group_by(identity)
    count = pl.len().cast(pl.Int64).alias("letters")
    return groups.agg(count, event_time.min().alias("first"), event_time.max().alias("last"))


def add_dead_letter_ids(letters: pl.DataFrame) -> pl.DataFrame:
    """Add a column `__id` to dead letters: a hash of their content and position."""
    return letters.with_columns(key_hash(letters, _ID).alias("__id"))


def format_applied_lines(letters: pl.DataFrame) -> list[str]:
    """Return the lines of a `replayed` list that marks these dead letters as applied."""
    counts = letters.group_by(_PLACE, maintain_order=True).len()
    return [" ".join(map(str, row)) for row in counts.iter_rows()]


def _lines(names: Sequence[str], read_list: Callable[[str], list[str]], column: str) -> pl.DataFrame:
    lines = pl.Series("line", [line for name in names for line in read_list(name)], dtype=pl.String)
    parts = lines.str.split_exact(" ", 2).struct.rename_fields([*_PLACE, column]).struct.unnest()
    return parts.select(pl.col(n).cast(pl.Int64) for n in (*_PLACE, column))
