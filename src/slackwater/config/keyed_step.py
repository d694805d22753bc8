"""The spec of the keyed step, and the base class of the keyed operators in users' packages that it runs.

    rows, state rows        ── advance ──▶ emitted rows, new state rows with timers
    state rows that are due ── expire  ──▶ emitted rows, state rows with later timers

`[transform.keyed]` loads the operator by its import path. For security, the import path always comes from a config,
never from a state. Reading a state loads no code.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pydantic import PrivateAttr

from slackwater.config.config_key import (
    Converted,
    Milliseconds,
    WithUnit,
    declare_attribute,
    declare_key,
    declare_with_unit,
)
from slackwater.config.custom_aggregator import PATH, AggregatorError, describe_error, import_attribute, may_import
from slackwater.config.spec_base import Problem, Values
from slackwater.config.step_base import LATE_ROWS, LATE_ROWS_TEXT, KeyedStep, StepSummary
from slackwater.config.value_parsers import (
    InvalidValueError,
    attach_json_schema,
    duration_parser,
)

if TYPE_CHECKING:
    import polars as pl


KEY = "__key"  # hidden column: the number of the key within the epoch
TIME = "__ts"  # hidden column: the event time of a row, in µs
TIMER = "__timer"  # hidden column: the watermark (µs) at which a state row is due; NULL: never


class KeyedResult(NamedTuple):
    """The result of a keyed operator's `advance` or `expire`.

    Args:
        rows: The rows to emit, with the output columns and `TIME`.
        state: The new state rows, with `KEY`, `TIMER` and the state columns.
        changed: For `advance`, the keys whose stored rows are replaced by `state`, as values of `KEY`. By default, these
            are all keys for which the call received rows.
        duplicates: The number of rows that were dropped as duplicates, for the counters of the pipeline.
    """

    rows: pl.DataFrame | None = None
    state: pl.DataFrame | None = None
    changed: pl.Series | None = None
    duplicates: int = 0


class KeyedFunction:
    """The base class for keyed operators. A subclass declares columns, and defines `advance` and, for timers, `expire`.

    It declares these attributes:

    - `state`: the names and Spark types of the columns of a state row. A key may have any number of state rows.
    - `output`: the names and Spark types of the columns of the emitted rows. By default, these are the input columns.
      Slackwater adds the event time as the column `_event_ts`.

    Both methods must be pure: they may use only their arguments and the options. All frames are Polars frames. In
    addition to columns of data, they have hidden columns, whose names are attributes of the class:

    - `KEY`: an integer that identifies the key within one call.
    - `TIME`: the event time (µs).
    - `TIMER`: the watermark (µs) at which a state row is due. NULL means never.

    See docs/stages/own-operators.md for an example.
    """

    state: ClassVar[Mapping[str, str]] = {}
    output: ClassVar[Mapping[str, str] | None] = None

    KEY: ClassVar[str] = KEY
    TIME: ClassVar[str] = TIME
    TIMER: ClassVar[str] = TIMER

    def advance(self, rows: pl.DataFrame, state: pl.DataFrame, watermark: int) -> KeyedResult:
        """Process the rows of an epoch. Return the rows to emit and the new state rows.

        Args:
            rows: The rows, sorted by key, event time and values. Columns: `KEY`, `TIME` and the columns of the SQL.
            state: The state rows of these keys. Columns: `KEY`, `TIMER`, the key columns and the state columns.
            watermark: The watermark (µs) of the previous epoch. No row has an earlier event time, and all timers in
                `state` are later.
        """
        raise NotImplementedError

    def expire(self, due: pl.DataFrame, watermark: int) -> KeyedResult:
        """Process state rows whose timers are due. Return rows to emit, and state rows to add for these keys.

        The due rows have already been removed from the state. Within one call, all rows of a key have the same timer. Rows
        that are added must have a later timer.

        Args:
            due: The due state rows. Columns: `KEY`, `TIMER`, the key columns and the state columns.
            watermark: The current watermark (µs).
        """
        return KeyedResult()


class KeyedFunctionError(Exception):
    """A keyed function cannot be used. `key` is the config key to correct, and the message describes the problem."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__(text)
        self.key = key


def import_path(function: type[KeyedFunction]) -> str:
    """Return the import path of a class. Raises KeyedFunctionError for a class that workers cannot import."""
    if function.__module__ == "__main__" or "<" in function.__qualname__:
        raise KeyedFunctionError(
            "class",
            f"found {function.__name__}, which workers cannot import; expected a class at the top level of a module "
            "other than __main__; move the class to such a module",
        )
    return f"{function.__module__}:{function.__qualname__}"


@lru_cache(maxsize=64)
def load_keyed_function(path: str, options: str) -> KeyedFunction:
    """Load the class at an import path, and create an instance with these options (JSON).

    Raises KeyedFunctionError if the class cannot be loaded, does not implement KeyedFunction, or rejects the options.
    """
    try:
        loaded = import_attribute(path)
    except AggregatorError as error:
        raise KeyedFunctionError("class", str(error)) from None
    if not (isinstance(loaded, type) and issubclass(loaded, KeyedFunction)) or loaded is KeyedFunction:
        kind = f"the class {loaded.__name__}" if isinstance(loaded, type) else f"a {type(loaded).__name__}"
        raise KeyedFunctionError(
            "class", f'"{path}" is {kind}, expected a class derived from slackwater.KeyedFunction; name such a class'
        )
    try:
        function = loaded(**json.loads(options))
    except Exception as error:
        text = f"{loaded.__name__} does not accept these options ({describe_error(error)}); correct them"
        raise KeyedFunctionError("options", text) from None
    if loaded.advance is KeyedFunction.advance:
        raise KeyedFunctionError("class", f"{loaded.__name__} does not define the method advance; define it")
    return function


def check_keyed_function(function: KeyedFunction, keys: tuple[str, ...]) -> None:
    """Raise KeyedFunctionError if the columns that a function declares are invalid. `keys`: the key columns."""
    from slackwater.core.schema import is_column_type

    name = type(function).__name__

    def wrong(text: str) -> KeyedFunctionError:
        return KeyedFunctionError("class", f"{name}: {text}")

    for attribute in ("state", "output"):
        declared = getattr(function, attribute)
        if declared is None and attribute == "output":
            continue
        if not isinstance(declared, Mapping):
            raise wrong(
                f'{attribute} is a {type(declared).__name__}, expected a mapping of names to types, as in {{"n": '
                '"bigint"}'
            )
        for column, type_ in declared.items():
            if not isinstance(column, str) or not column or column.startswith("__") or column == "_event_ts":
                raise wrong(f"{attribute} has a column {column!r}, whose name is reserved or empty; rename it")
            if not is_column_type(str(type_)):
                raise wrong(
                    f'{attribute} column "{column}" has type "{type_}", expected a Spark type, such as "bigint"'
                )
            if attribute == "state" and column in keys:
                raise wrong(
                    f'state has a column "{column}", which is a key; remove it, because every state row has the key '
                    "columns"
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
    """A keyed operator, which you write as a subclass of `KeyedFunction` in a package that workers can import."""

    class_: Converted[str | type[KeyedFunction], str] = declare_key(
        _parse_class,
        'The import path of a class derived from `slackwater.KeyedFunction`: "package.module:Class".',
        required='give the import path of a class, as in "shop.rules:Fraud"',
    )
    options: Mapping[str, Any] = declare_key(
        _parse_options, "The constructor arguments of the class.", default_factory=dict
    )
    lag_ms: Milliseconds[int] = declare_key(
        duration_parser(0),
        "How far the event time of a result may be behind the watermark. Later stages wait that much longer.",
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
            text = (
                f'"{self.class_}" comes from a state, but Slackwater never imports code when it reads a state; pass '
                "the config instead"
            )
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
