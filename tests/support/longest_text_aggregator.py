"""Define a custom aggregation: the longest text."""

from __future__ import annotations

from typing import Any

import slackwater as sw


class LongestTextAggregator(sw.Aggregator):
    """Returns the longest text of a key, prefixed with the key. `merge` receives the keys."""

    inputs = {"text": "string"}  # noqa: RUF012 — written as users write it
    accumulators = {"longest_text": "string"}  # noqa: RUF012
    output = "string"
    wants_keys = True

    def __init__(self, mark: str = ": ", fail: bool = False) -> None:
        self.mark, self.fail = mark, fail

    def lift(self, text: Any) -> Any:
        return {"longest_text": text.str.to_integer() if self.fail else text}

    def merge(self, keys: Any, longest_text: Any) -> Any:
        bare = longest_text.str.split(self.mark).list.last()
        best = bare.sort_by([bare.str.len_chars(), bare]).drop_nulls().last()
        return {"longest_text": keys["user"] + self.mark + best}

    def finish(self, longest_text: Any) -> Any:
        return longest_text
