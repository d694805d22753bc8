"""Column names that Slackwater adds to frames of source rows.

A source with a column of such a name is rejected at the start. Stages cannot read or emit names that begin with `__`;
see `config.value_parsers.find_name_problem`.
"""

from __future__ import annotations

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


def find_reserved_collisions(columns: Iterable[str], declared: bool = False) -> list[str]:
    """Return the columns of a source that have a reserved name. Case is ignored, as in Spark.

    `declared`: the columns come from a config, to which no reader has added `_corrupt_record` yet.
    """

    def is_taken(name: str) -> bool:
        folded = name.casefold()
        if folded == CORRUPT:
            return declared or name != CORRUPT
        return folded in ROW_COLUMNS or (folded == EVENT_TIME and name != EVENT_TIME)

    return [c for c in columns if is_taken(c)]
