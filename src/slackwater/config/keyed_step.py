"""Base class of steps that process whole rows by key. It declares the key columns and the event time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from slackwater.config.key import Texts, declare_key
from slackwater.config.spec_base import Problem, Values
from slackwater.config.step_base import StepBase
from slackwater.config.value_parsers import choice_parser, parse_texts

LATE_ROWS = choice_parser("drop", "dlq")  # for steps that refuse rows behind the watermark
LATE_ROWS_TEXT = "What happens to late rows: drop and count them, or write dead letters."


class KeyedStep(StepBase):
    """A step that processes whole rows by key.

    A subclass defines its `kind` (the name of its table in a config), CONFIG_PATH, its own keys and `summary`.
    """

    keys: Texts = declare_key(
        parse_texts,
        "The key columns, from the result of the SQL. Rows with equal values in them belong together.",
        required='name columns, as in ["user"]',
        elsewhere=("key", "key_columns", "group_by", "by"),
    )

    STATE_KEYS: ClassVar[tuple[str, ...]] = ("keys",)
    DOC_LINK: ClassVar[str] = "docs/configuration.md#transform"

    @property
    def added_columns(self) -> Mapping[str, str]:
        """Columns that the step adds to rows, with their types."""
        return {}

    def result_types(self, types: Mapping[str, str | None]) -> dict[str, str | None]:
        """Return the types of the columns of the results, given those of the rows."""
        return {**types, **self.added_columns}

    @classmethod
    def check(cls, values: Values, wrong: set[str]) -> Iterator[Problem]:
        yield from super().check(values, wrong)
        names = values.get("keys", ())
        if "keys" in values and not names:
            yield "keys", 'empty; expected at least one column that groups the rows, as in ["user"]'
        if any(name.casefold() == "_event_ts" for name in names):
            yield "keys", '"_event_ts" is the event time; it cannot be a key'
        for name in dict.fromkeys(n for n in names if names.count(n) > 1):
            yield "keys", f'contains column "{name}" more than once; name each column once'
