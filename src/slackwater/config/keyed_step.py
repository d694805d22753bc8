"""Base class of steps that process whole rows by key. It declares the key columns and the event time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from slackwater.config.spec_base import Problem, Values
from slackwater.config.step_base import RECOVERY, TIMES, StepBase
from slackwater.config.value_parsers import ValueParser, parse_texts


class KeyedStep(StepBase):
    """A step that processes whole rows by key.

    A subclass defines its `kind` (its table in a config), CONFIG_PATH, its own keys and `summary`.
    """

    key: tuple[str, ...]

    PARSERS: ClassVar[Mapping[str, ValueParser]] = {"key": parse_texts, **TIMES, "crash_recovery": RECOVERY}
    REQUIRED: ClassVar[tuple[str, ...]] = ("key",)
    STATE_KEYS: ClassVar[tuple[str, ...]] = ("key",)
    TEXTS: ClassVar[Mapping[str, str]] = {"key": "The columns by which rows belong together."}
    DOC_LINK: ClassVar[str] = "docs/configuration.md#transform"

    @property
    def added_columns(self) -> Mapping[str, str]:
        """Columns that the step adds to rows, with their types."""
        return {}

    @classmethod
    def missing_hint(cls, key: str) -> str:
        return 'name columns, as in ["user"]' if key == "key" else "give it"

    @classmethod
    def check(cls, values: Values, wrong: set[str]) -> Iterator[Problem]:
        yield from super().check(values, wrong)
        if "key" in values and not values["key"]:
            yield "key", 'empty; expected at least one column that groups the rows, as in ["user"]'
