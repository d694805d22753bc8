"""Staged output: for each output, one row that contains an Arrow file, until the epoch is published."""

from __future__ import annotations

from typing import Any

import polars as pl
import psycopg
import pyarrow as pa

from slackwater.core.humanize import mismatch, plural
from slackwater.errors import StateError, Topic
from slackwater.state.commit import OutputMeta
from slackwater.state.postgres.table_names import TableNames


def read_staged_output(
    db: psycopg.Connection[Any], tables: TableNames, location: str, meta: OutputMeta
) -> pl.DataFrame:
    """Read staged output. Raises StateError if it is missing or damaged."""
    row = db.execute(f"SELECT data FROM {tables.outputs} WHERE token = %s", (meta.file,)).fetchone()
    if row is None:
        raise StateError(
            f"staged output {meta.file} is missing from {tables.outputs} {location}; restore it from a backup",
            Topic.STATE_DAMAGED,
        )
    try:
        frame = pl.from_arrow(pa.ipc.open_file(pa.py_buffer(row[0])).read_all())
    except (pa.ArrowException, OSError, pl.exceptions.PolarsError) as error:
        raise StateError(
            f"staged output {meta.file} in {tables.outputs} {location} is damaged: it cannot be read "
            f"({type(error).__name__}), but should hold {plural(meta.rows, 'row')}; restore it from a backup",
            Topic.STATE_DAMAGED,
        ) from None
    assert isinstance(frame, pl.DataFrame)
    if frame.height != meta.rows:
        raise StateError(
            f"staged output {meta.file} in {tables.outputs} {location} is damaged: "
            + mismatch(plural(frame.height, "row"), f"{meta.rows:,}; restore it from a backup"),
            Topic.STATE_DAMAGED,
        )
    return frame
