"""Base class of keyed operators in a user's package, which `[transform.keyed]` loads by import path.

    rows, rows of state        ── advance ──▶ emitted rows, new rows of state with timers
    rows of state that are due ── expire  ──▶ emitted rows, rows of state with later timers

For security, the import path always comes from a config, never from a state. Reading a state loads no code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from slackwater.config.custom_aggregator import AggregatorError, describe_error, import_attribute

if TYPE_CHECKING:
    import polars as pl

KEY = "__key"  # hidden column: the number of the key within the epoch
TIME = "__ts"  # hidden column: the event time of a row, in µs
TIMER = "__timer"  # hidden column: the watermark (µs) at which a row of state is due; NULL: never


class KeyedResult(NamedTuple):
    """The result of a keyed operator's `advance` or `expire`.

    Args:
        rows: The rows to emit, with the output columns and `TIME`.
        state: The new rows of state, with `KEY`, `TIMER` and the state columns.
        changed: For `advance`, the numbers of the keys whose rows of state `state` replaces. By default, all keys of
            the epoch.
        duplicates: The number of rows that were dropped as duplicates.
    """

    rows: pl.DataFrame | None = None
    state: pl.DataFrame | None = None
    changed: pl.Series | None = None
    duplicates: int = 0


class KeyedFunction:
    """Base class for keyed operators. A subclass declares columns, and defines `advance` and, for timers, `expire`.

    - `state`: the columns of a row of state, as name -> Spark type. A key may have any number of rows of state.
    - `output`: the columns of the emitted rows, as name -> Spark type. By default, the input columns. The event
      time is added as `_event_ts`.

    `advance` and `expire` must be pure: they may use only their arguments and the options. All frames are Polars
    frames. `KEY` is the number of the key in this epoch, `TIME` the event time (µs), and `TIMER` the timer (µs).
    """

    state: ClassVar[Mapping[str, str]] = {}
    output: ClassVar[Mapping[str, str] | None] = None

    KEY: ClassVar[str] = KEY
    TIME: ClassVar[str] = TIME
    TIMER: ClassVar[str] = TIMER

    def advance(self, rows: pl.DataFrame, state: pl.DataFrame, watermark: int) -> KeyedResult:
        """Process the rows of an epoch. Return the rows to emit and the new rows of state.

        Args:
            rows: The rows, sorted by key, event time and values. Columns: `KEY`, `TIME` and the columns of the SQL.
            state: The rows of state for these keys. Columns: `KEY`, `TIMER`, the key columns and the state columns.
            watermark: The watermark (µs) of the previous epoch. All rows and timers are later.
        """
        raise NotImplementedError

    def expire(self, due: pl.DataFrame, watermark: int) -> KeyedResult:
        """Process rows of state whose timers are due. Return rows to emit, and rows of state to add for these keys.

        The due rows have already been removed from the state. Within one call, all rows of a key have the same timer.

        Args:
            due: The rows of state. Columns: `KEY`, `TIMER`, the key columns and the state columns.
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
            f"found {function.__name__}, which is not in a module that workers can import; expected a class at the top "
            "level of a module; move it there",
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
        raise KeyedFunctionError("class", f"{loaded.__name__} does not define advance; define it")
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
                f'{attribute} is a {type(declared).__name__}, expected a mapping of names to types: {{"n": "bigint"}}'
            )
        for column, type_ in declared.items():
            if not isinstance(column, str) or not column or column.startswith("__") or column == "_event_ts":
                raise wrong(f"{attribute} has a column {column!r}, which is a reserved name; rename it")
            if not is_column_type(str(type_)):
                raise wrong(f'{attribute} column "{column}" has type "{type_}", expected a Spark type, as in "bigint"')
            if attribute == "state" and column in keys:
                raise wrong(
                    f'state has a column "{column}", which is a key; every row of state has the keys, so remove it'
                )


__all__ = [
    "KEY",
    "TIME",
    "TIMER",
    "KeyedFunction",
    "KeyedFunctionError",
    "KeyedResult",
    "check_keyed_function",
    "import_path",
    "load_keyed_function",
]
