"""An aggregation of a user's own: the longest word."""

from __future__ import annotations

from typing import Any

import slackwater as sw


class Longest(sw.Aggregator):
    """The longest text of a key, with the key in front of it: its merge takes the keys."""

    inputs = {"text": "string"}  # noqa: RUF012 — as users write it
    accumulators = {"found": "string"}  # noqa: RUF012
    output = "string"
    wants_keys = True

    def __init__(self, mark: str = ": ", fail: bool = False) -> None:
        self.mark, self.fail = mark, fail

    def lift(self, text: Any) -> Any:
        return {"found": text.str.to_integer() if self.fail else text}

    def merge(self, keys: Any, found: Any) -> Any:
        bare = found.str.split(self.mark).list.last()
        best = bare.sort_by([bare.str.len_chars(), bare]).drop_nulls().last()
        return {"found": keys["user"] + self.mark + best}

    def finish(self, found: Any) -> Any:
        return found
