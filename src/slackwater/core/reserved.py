"""Names that frames of rows have for Slackwater's own columns, next to those of a source.

A column of a source that has one of them is refused at the start. What a step reads or emits may not begin with `__` at all, see
`config.kinds.misnamed`.
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


def reserved_collisions(columns: Iterable[str], declared: bool = False) -> list[str]:
    """Return the columns of a source whose names are taken; Spark does not tell upper from lower case.

    `declared`: they are of a config, where no reader has added `_corrupt_record` yet.
    """

    def is_taken(name: str) -> bool:
        folded = name.casefold()
        if folded == CORRUPT:
            return declared or name != CORRUPT
        return folded in ROW_COLUMNS or (folded == EVENT_TIME and name != EVENT_TIME)

    return [c for c in columns if is_taken(c)]
