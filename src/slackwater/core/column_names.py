"""Reserved column names, and the quoting of names and strings in SQL.

Slackwater adds columns with reserved names to frames of source rows, so a source that has a column with such a name is
rejected. Stages cannot read or emit names that begin with `__`; see `config.value_parsers.find_name_problem`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

EVENT_TIME = "_event_ts"
CORRUPT = "_corrupt_record"
ROW_COLUMNS = frozenset(
    {
        "__bad",
        "__batch",
        "__clock",
        "__file",
        "__mark",
        "__letter",
        "__number",
        "__unfit",
        "__upto",
        "__reason",
        "__key",
        "__value",
        "__headers",
        "__topic",
        "__partition",
        "__offset",
        "__time",
    }
)
_SIMPLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def find_reserved_collisions(columns: Iterable[str], declared: bool = False) -> list[str]:
    """Return the columns of a source that have a reserved name. Case is ignored, as in Spark.

    `declared`: whether the columns come from a config. In a DataFrame, `_corrupt_record` is allowed, because Spark's
    readers add this column.
    """

    def is_taken(name: str) -> bool:
        folded = name.casefold()
        if folded == CORRUPT:
            return declared or name != CORRUPT
        return folded in ROW_COLUMNS or (folded == EVENT_TIME and name != EVENT_TIME)

    return [c for c in columns if is_taken(c)]


def quote_identifier(name: str) -> str:
    """Return a name as an SQL identifier in backticks."""
    return "`" + name.replace("`", "``") + "`"


def quote_identifier_if_needed(name: str) -> str:
    """Return a name as an SQL identifier, in backticks only if necessary."""
    return name if _SIMPLE.fullmatch(name) else quote_identifier(name)


def quote_string(value: str) -> str:
    """Return a string as an SQL literal."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
