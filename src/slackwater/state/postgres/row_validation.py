"""Validate state rows that are read from a table.

If another program has changed the table, a clear error is raised here, before a library fails on the rows.

    table ─▶ check of column types ─▶ check for NULL and for unknown values of `kind` ─▶ rows for the operator
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import polars as pl
import pyarrow as pa

from slackwater.core.humanize import mismatch, plural
from slackwater.errors import EpochError, StateError, Topic
from slackwater.windows.state_rows import CLEAN, DIRTY, EMITTED, EMITTED_FRAGMENT, FLOOR, FRAGMENT, TOMBSTONE, WHOLE

_KINDS = {CLEAN, DIRTY, EMITTED, EMITTED_FRAGMENT, FLOOR, FRAGMENT, TOMBSTONE, WHOLE}
_FAR = 2**62  # µs: limit of times in a commit
_WAYS = (
    "the table was changed outside Slackwater. Restore the database from a backup, check what is intact with "
    "`slackwater state verify`, or start over with: slackwater run FILE --rebuild"
)


@contextmanager
def report_read_errors(table: str) -> Iterator[None]:
    """Convert the errors of a block that fetches rows of a table.

    A connection error becomes an EpochError, and unexpected values become a StateError.
    """
    try:
        yield
    except ConnectionError as error:
        raise EpochError(f"state could not be read: {error}") from None
    except (pl.exceptions.PolarsError, pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())[:200]
        raise StateError(
            f"state could not be read: table {table} has values that are invalid in a state ({reason}): {_WAYS}",
            Topic.STATE_TABLE_CHANGED,
        ) from None


def check_rows(frame: pl.DataFrame, table: str, names: Mapping[str, str]) -> None:
    """Raise StateError for NULL in one of the columns `names`, a time out of range, or an unknown `__kind`.

    `names` maps columns of the frame to columns of the table.
    """
    for column, name in names.items():
        if column in frame.columns and (count := frame[column].null_count()):
            raise StateError(
                "state could not be read: "
                + mismatch(f'NULL in column "{name}" of {plural(count, "row")} of table {table}', f"a value: {_WAYS}"),
                Topic.STATE_TABLE_CHANGED,
            )
    for column in ("__start", "__last", "__due", "__end", "__ts"):
        if column in frame.columns and frame.schema[column] == pl.Int64():
            beyond = frame.filter(pl.col(column).abs() >= _FAR)
            if beyond.height:
                raise StateError(
                    f'state could not be read: found a time out of range in column "{names.get(column, column)}" of '
                    f"{plural(beyond.height, 'row')} of table {table}, expected less than 2^62 microseconds from 1970: {_WAYS}",
                    Topic.STATE_TABLE_CHANGED,
                )
    if "__kind" in frame.columns:
        unknown = frame.filter(~pl.col("__kind").is_in(list(_KINDS)))
        if unknown.height:
            raise StateError(
                f"state could not be read: found {plural(unknown.height, 'row')} of an unknown kind in table {table}, expected "
                f"one of {', '.join(map(str, sorted(_KINDS)))}: {_WAYS}",
                Topic.STATE_TABLE_CHANGED,
            )
