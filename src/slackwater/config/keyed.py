"""The spec of the keyed step, which runs a keyed operator from a user's package."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from pydantic import PrivateAttr

from slackwater.config.custom_aggregator import PATH, may_import
from slackwater.config.key import Converted, Milliseconds, WithUnit, declare_attribute, declare_key, declare_with_unit
from slackwater.config.keyed_function import (
    KeyedFunction,
    KeyedFunctionError,
    check_keyed_function,
    import_path,
    load_keyed_function,
)
from slackwater.config.spec_base import Problem, Values
from slackwater.config.step_base import LATE_ROWS, LATE_ROWS_TEXT, KeyedStep, StepSummary
from slackwater.config.value_parsers import (
    InvalidValueError,
    attach_json_schema,
    duration_parser,
)


@attach_json_schema(type="string", pattern=f"^{PATH.pattern}$")
def _parse_class(value: Any) -> str:
    """Parse the import path of a class or, in Python, the class itself."""
    if isinstance(value, type) and issubclass(value, KeyedFunction):
        try:
            return import_path(value)
        except KeyedFunctionError as error:
            raise InvalidValueError(str(error).partition("expected ")[2]) from None
    if not isinstance(value, str) or not PATH.fullmatch(value):
        raise InvalidValueError('the import path of a class, as in "shop.rules:Fraud"')
    return str(value)


@attach_json_schema(type="object")
def _parse_options(value: Any) -> dict[str, Any]:
    try:
        plain = json.loads(json.dumps(value))
    except (TypeError, ValueError):
        plain = None
    if not isinstance(plain, dict):
        raise InvalidValueError("a table of texts, numbers, true or false, and lists of them")
    return dict(value)  # not `plain`, so that values from the environment keep their spelling


class Keyed(KeyedStep):
    """A keyed operator of your own: a class derived from `KeyedFunction`, in a package that workers can import."""

    class_: Converted[str | type[KeyedFunction], str] = declare_key(
        _parse_class,
        'The import path of a class derived from `slackwater.KeyedFunction`: "package.module:Class".',
        required='give the import path of a class, as in "shop.rules:Fraud"',
    )
    options: Mapping[str, Any] = declare_key(
        _parse_options, "The arguments of the constructor of the class.", default_factory=dict
    )
    lag_ms: Milliseconds[int] = declare_key(
        duration_parser(0),
        "The maximum time by which the event time of a result may be behind the watermark. Later stages wait that long.",
        default=0,
    )
    lag: WithUnit = declare_with_unit(default=None)
    late_data: str = declare_key(LATE_ROWS, LATE_ROWS_TEXT, default="drop")
    kind: str = declare_attribute(default="keyed")

    _may_load: bool = PrivateAttr(default_factory=may_import)  # False if the spec was read from a state

    CONFIG_PATH: ClassVar[str] = "transform.keyed"
    DOC_LINK: ClassVar[str] = "docs/configuration.md#keyed"

    @property
    def watermark_delay_ms(self) -> int:
        """The maximum time (ms) by which the event time of a result may be behind the watermark."""
        return self.lag_ms

    @property
    def output_columns(self) -> Mapping[str, str] | None:
        """The output columns that the class declares, with their types; None if it keeps the input columns."""
        try:
            declared = self.load_function().output
        except KeyedFunctionError:
            return None
        return None if declared is None else {name: str(type_) for name, type_ in declared.items()}

    def result_types(self, types: Mapping[str, str | None]) -> dict[str, str | None]:
        declared = self.output_columns
        return dict(types) if declared is None else {**declared, "_event_ts": "timestamp"}

    @property
    def options_json(self) -> str:
        return json.dumps(self.options, sort_keys=True)

    def load_function(self) -> KeyedFunction:
        """Load the class and instantiate it with its options.

        Raises KeyedFunctionError if the class cannot be used, or if the spec was read from a state.
        """
        if not self._may_load:
            text = f'"{self.class_}" is named by a state, and reading a state never loads code; pass the config instead'
            raise KeyedFunctionError("class", text)
        return load_keyed_function(self.class_, self.options_json)

    @classmethod
    def check(cls, values: Values, wrong: set[str]) -> Iterator[Problem]:
        """Yield problems with the keys and the class. The class is not loaded if the values come from a state."""
        yield from super().check(values, wrong)
        if "class_" not in values or {"class", "options"} & wrong or not may_import():
            return
        try:
            options = json.dumps(values.get("options", {}), sort_keys=True)
            check_keyed_function(load_keyed_function(values["class_"], options), tuple(values.get("keys", ())))
        except KeyedFunctionError as error:
            yield error.key, str(error)

    def summary(self) -> StepSummary:
        behavior = f"the rows that {self.class_} emits"
        return StepSummary(
            f"{self.class_} by {', '.join(self.keys)}", behavior, "its rows of state, until their timers"
        )
