"""Compare the current columns of a table with those that a run or a state expects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.errors import NewColumnsError, StartError, Topic

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def find_added_columns(earlier: StructType, now: StructType) -> list[str]:
    """Return the new columns with their types. Names are compared ignoring case, as in Spark."""
    names = {f.name.casefold() for f in earlier.fields}
    return [f'"{f.name}" ({f.dataType.simpleString()})' for f in now.fields if f.name.casefold() not in names]


def _changed_columns(earlier: StructType, now: StructType) -> list[str]:
    """Describe the columns that are missing or have a different type."""
    types = {f.name.casefold(): f.dataType.simpleString() for f in now.fields}
    return [
        f'"{f.name}" is now {types.get(f.name.casefold(), "missing")} (was {f.dataType.simpleString()})'
        for f in earlier.fields
        if types.get(f.name.casefold()) != f.dataType.simpleString()
    ]


def check_column_changes(
    where: str, earlier: StructType, now: StructType, choice: str | None, since: str, running: bool = False
) -> None:
    """Raise StartError if the columns changed in a way that the source does not accept.

    Args:
        where: The prefix of messages.
        earlier: The expected columns.
        now: The current columns.
        choice: The setting `schema_changes`.
        since: The versions in which the columns changed, for messages.
        running: Whether a run is in progress, whose SQL, state and target are bound to the earlier columns. New
            columns then end the run with NewColumnsError, and the next start accepts them.
    """
    if wrong := _changed_columns(earlier, now):
        raise StartError(
            f"{where}: its columns changed in {since}: {'; '.join(wrong)}; restore them, or start over under another "
            "name",
            Topic.TABLE_COLUMNS,
        )
    new = ", ".join(find_added_columns(earlier, now))
    if new and choice in (None, "fail"):
        raise StartError(
            f'{where}: new columns in {since}: {new}; set schema_changes to add them ("add") or to leave them out '
            '("ignore")',
            Topic.TABLE_COLUMNS,
        )
    if new and choice == "add" and running:
        raise NewColumnsError(
            f"{where}: new columns in {since}: {new}; all earlier rows are committed, and the next start adds the "
            "columns"
        )
