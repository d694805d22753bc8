"""The columns of dead letters, and a filter that selects letters and columns.

A dead letter records a row that could not be used and, if possible, its original bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import polars as pl

from slackwater.core.schema import Field

LETTER = (
    Field("reason", "string"),  # undecodable | no event time | future | late
    Field("pipeline", "string"),
    Field("source", "string"),
    Field("epoch", "bigint"),
    Field("topic", "string"),
    Field("partition", "int"),
    Field("offset", "bigint"),
    Field("key", "binary"),
    Field("value", "binary"),  # the original bytes; for a decoded row of a file, the row as JSON
    Field("headers", "string"),  # a JSON list of {"key": …, "value": base64}
    Field("event_time", "timestamp"),
    Field("file", "string"),
    # late rows only
    Field("cause", "string"),  # lateness | idle (its source or partition was idle)
    Field("watermark", "timestamp"),  # the watermark that the row was compared with
    Field("watermark_source", "string"),  # the source that held this watermark back; NULL if all were idle
    Field("late_us", "bigint"),  # microseconds from the event time to the watermark
    Field("windows_missed", "int"),
    Field("windows", "string"),  # starts of the windows missed, as a JSON list (the first 100); sessions: NULL
    Field("group_key", "string"),  # the values of group_by as a JSON object; joins: NULL
)
ADDED = ("group_key",)  # columns that earlier versions did not write; targets add these columns to their tables

CHUNK = 10_000  # rows per frame
NEWEST = ("epoch", "event_time", "offset")
SCHEMA = {f.name: f.polars for f in LETTER}


@dataclass(frozen=True)
class DeadLetterFilter:
    """A selection of dead letters and their columns. A field that is None does not restrict the selection."""

    columns: Sequence[str] = tuple(SCHEMA)
    reason: str | None = None
    source: str | None = None
    group_keys: Collection[str] | None = None  # as JSON objects
    limit: int | None = None  # only this many of the newest dead letters

    def apply(self, frame: pl.DataFrame, pipeline: str) -> pl.DataFrame:
        """Return the selected dead letters of a frame, newest first."""
        frame = frame.filter(pl.col("pipeline") == pipeline)
        for name, value in (("reason", self.reason), ("source", self.source)):
            frame = frame if value is None else frame.filter(pl.col(name) == value)
        if self.group_keys is not None:
            frame = frame.filter(pl.col("group_key").is_in(list(self.group_keys)))
        frame = frame.sort(NEWEST, descending=True, nulls_last=True)
        return frame if self.limit is None else frame.head(self.limit)

    @property
    def columns_to_read(self) -> list[str]:
        """Return the columns to read: the selected columns, and the columns needed for filtering and sorting."""
        return [n for n in SCHEMA if n in {*self.columns, "pipeline", "reason", "source", "group_key", *NEWEST}]
