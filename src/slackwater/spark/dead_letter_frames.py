"""Convert dead letters to rows of their sources, so that an epoch can read them again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import polars as pl

from slackwater.connectors.batch_planning import AnySource
from slackwater.connectors.source import Seekable
from slackwater.errors import StartError, Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILE, LETTER = "__file", "__letter"  # hidden columns: the file of a row, the number of its dead letter
_TAKEN = ["source", "reason", "key", "value", "topic", "partition", "offset", "headers", "file", "event_time", LETTER]


def letters_to_source_frames(
    session: SparkSession, sources: Sequence[AnySource], letters: pl.DataFrame
) -> Mapping[str, DataFrame]:
    """Return the rows of dead letters, by source, with the number of each row's dead letter in `__letter`.

    Rows of file sources also have `__file`. Raises StartError if the source of a letter is not in the config, or cannot
    turn letters back into rows.
    """
    frames: dict[str, DataFrame] = {}
    by_name = {s.name: s for s in sources}
    for name, source_letters in letters.group_by("source", maintain_order=True):
        source = by_name.get(str(name[0]))
        if source is None:
            raise StartError(
                f'dead letters of source "{name[0]}" cannot be replayed: the config has no such source, only '
                f"{', '.join(by_name)}; restore the source, or select others with --reason and --epoch",
                Topic.DEAD_LETTERS,
            )
        if not isinstance(source, Seekable):
            raise StartError(
                f'dead letters of source "{source.name}" cannot be replayed yet: only those of files, tables and '
                "Kafka can be turned back into rows; select others with --reason and --epoch",
                Topic.DEAD_LETTERS,
            )
        records = session.createDataFrame(source_letters.select(_TAKEN).to_arrow(compat_level=pl.CompatLevel.oldest()))
        frames[source.name] = source.rows_of_letters(records, LETTER, FILE)
    return frames
