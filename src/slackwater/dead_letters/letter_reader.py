"""Read dead letters back from their target, without Spark.

Each connector returns frames with the columns of a letter. Columns that older letters lack are NULL.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import polars as pl

from slackwater.config.connection import ConsoleConnection
from slackwater.config.pipeline import Pipeline, resolve_connection
from slackwater.connectors.connector import connector_for
from slackwater.core.dead_letter_schema import LETTER, SCHEMA, LetterFilter
from slackwater.core.schema import Field
from slackwater.dead_letters.attempt_ledger import COLUMNS, AttemptLedger
from slackwater.errors import StartError, Topic


def read_newest(pipeline: Pipeline, letter_filter: LetterFilter) -> pl.DataFrame:
    """Return the newest dead letters of a pipeline that match the filter. Raises StartError if they cannot be read."""
    letters = pl.DataFrame(schema={n: SCHEMA[n] for n in letter_filter.columns_to_read})
    for frame in _read_frames(pipeline, letter_filter):
        letters = letter_filter.apply(pl.concat([letters, frame]), pipeline.name)
    return letters.select(letter_filter.columns)


def add_attempts(pipeline: Pipeline, letters: pl.DataFrame) -> pl.DataFrame:
    """Add `__applied` and `__tries` to dead letters, from the state of the pipeline. The letters must have all columns.

    Each of several equal letters from a file stands for a separate row. Which of them were applied is unknown and does
    not matter.
    """
    return read_attempt_ledger(pipeline).with_attempts(letters)


def read_attempt_ledger(pipeline: Pipeline) -> AttemptLedger:
    """Read from the state which dead letters were replayed, and how many times. Takes no lock.

    Raises StateError or StartError if the state cannot be read.
    """
    from slackwater.state.store_access import create_store

    if pipeline.state_store is None or not pipeline.state_store.durable:
        return AttemptLedger.from_commit(None, lambda name: [])  # a state in memory: no replay can have used it
    with create_store(pipeline).peek() as snapshot:
        return AttemptLedger.from_commit(
            snapshot.commit if snapshot else None, snapshot.read_list if snapshot else lambda name: []
        )


def count_letters(pipeline: Pipeline) -> pl.DataFrame:
    """Count the dead letters by reason and source, one chunk at a time.

    The columns are the number of letters, how many are `open` and `applied`, the tries of open ones, and the first and
    last event time.
    """
    letter_filter = LetterFilter(COLUMNS)
    counts = read_attempt_ledger(pipeline).count_by_reason(
        letter_filter.apply(frame, pipeline.name) for frame in _read_frames(pipeline, letter_filter)
    )
    still_open = (pl.col("letters") - pl.col("applied")).alias("open")
    columns = ("reason", "source", "letters", still_open, "applied", "tries", "first", "last")
    return counts.select(columns).sort("reason", "source", nulls_last=True)


def _read_frames(pipeline: Pipeline, letter_filter: LetterFilter) -> Iterator[pl.DataFrame]:
    target = pipeline.dead_letter
    if target is None:
        raise StartError(
            f'{pipeline.name}: the config has no [dead_letter], so no dead letters are kept; set on_error or late_data to "dlq"',
            Topic.DEAD_LETTERS,
        )
    connection = resolve_connection(target.connection, pipeline.connections)
    writers = (f"{pipeline.name}-letters", f"{pipeline.name}-letters-aside")
    with closing(connector_for(connection or ConsoleConnection()).result_reader(target, pipeline, writers)) as reader:
        for frame in reader.read_letters(pipeline.name, letter_filter):
            yield _cast_frame(frame, letter_filter.columns_to_read)


def _cast_frame(frame: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    fields = {f.name: f for f in LETTER}
    return frame.select(
        (_cast_column(frame.schema[n], fields[n]) if n in frame.columns else pl.lit(None, SCHEMA[n])).alias(n)
        for n in columns
    )


def _cast_column(stored_type: pl.DataType, field: Field) -> pl.Expr:
    """Return a column cast to its type. Formats that lack times and bytes store them as text."""
    value = pl.col(field.name)
    if stored_type == pl.String and field.type == "binary":
        return value.str.decode("hex")
    if stored_type == pl.String and field.type == "timestamp":
        return value.str.to_datetime("%Y-%m-%dT%H:%M:%S%.fZ", time_unit="us", time_zone="UTC")
    return value.cast(field.polars)
