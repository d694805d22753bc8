"""Staged output: Arrow in a row each, until its epoch is published."""

from __future__ import annotations

from typing import Any

import polars as pl
import psycopg
import pyarrow as pa

from slackwater.errors import StateError
from slackwater.state.commit import OutputMeta
from slackwater.state.postgres.tables import Tables


def read(db: psycopg.Connection[Any], tables: Tables, place: str, meta: OutputMeta) -> pl.DataFrame:
    """The rows. Raises StateError if they are not there."""
    row = db.execute(f"SELECT data FROM {tables.outputs} WHERE token = %s", (meta.file,)).fetchone()
    if row is None:
        raise StateError(f"staged output {meta.file} is missing in {tables.outputs} {place}; restore it from a backup")
    frame = pl.from_arrow(pa.ipc.open_file(pa.py_buffer(row[0])).read_all())
    assert isinstance(frame, pl.DataFrame)
    return frame
