"""Base class of user-defined aggregations, which define three functions over column expressions.

    rows ── lift ──▶ accumulators ── merge ──▶ accumulators ── finish ──▶ one output column

`lift` corresponds to the initializer and the aggregator of a session window in Kafka Streams (KIP-94), and `merge` to
its merger.

This module also loads aggregators by import path, and tests them on rows of NULLs for `slackwater check`. Only this
test imports Polars.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar

from slackwater.config.error_text import suggest_word

if TYPE_CHECKING:
    import polars as pl

_MAY_IMPORT: ContextVar[bool] = ContextVar("may_import", default=True)
PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


class Aggregator:
    """The base class for user-defined aggregations. A subclass declares columns and defines three methods.

    It declares these attributes:

    - `inputs`: the names and Spark types of the input columns. A column of another type is cast if the type of the input
      can hold every value: any number is cast to a floating-point type, and an integer to a wider integer type. Other
      columns are rejected.
    - `accumulators`: the names and Spark types of the values that are stored per group. Each type is a scalar or an
      array of scalars.
    - `output`: the Spark type of the result. It may be `array<…>` or `struct<…>`.
    - `wants_keys`: whether `merge` receives the group keys as its first argument, a mapping of names to expressions. The
      default is `False`.

    The methods take and return Polars expressions:

    - `lift` takes the inputs by name, and returns a row-wise expression for each accumulator.
    - `merge` takes the accumulators by name, and returns an aggregate over the rows of a group for each accumulator. It
      must be associative and commutative, because rows are merged in any order and in batches.
    - `finish` takes the accumulators by name, and returns the result.

    For example, this class computes an average. As with the built-in `avg`, the result for a group without values is NULL:

            import polars as pl
            import slackwater as sw

            class Mean(sw.Aggregator):
                inputs = {"value": "double"}
                accumulators = {"n": "bigint", "total": "double"}
                output = "double"

                def lift(self, value):
                    return {"n": value.is_not_null().cast(int), "total": value.fill_null(0)}

                def merge(self, n, total):
                    return {"n": n.sum(), "total": total.sum()}

                def finish(self, n, total):
                    return pl.when(n > 0).then(total / n)
    """

    inputs: Mapping[str, str] = {}
    accumulators: Mapping[str, str] = {}
    output: str = ""
    wants_keys: ClassVar[bool] = False

    def lift(self, *_: Any, **inputs: Any) -> Mapping[str, pl.Expr]:
        raise NotImplementedError

    def merge(self, *_: Any, **accumulators: Any) -> Mapping[str, pl.Expr]:
        raise NotImplementedError

    def finish(self, *_: Any, **accumulators: Any) -> pl.Expr:
        raise NotImplementedError


class AggregatorError(Exception):
    """An aggregator cannot be used. `key` is the config key to correct, and the message describes the problem."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__(text)
        self.key = key


@contextmanager
def forbid_imports() -> Iterator[None]:
    """Return a context in which classes are loaded only from already imported modules, for an untrusted state."""
    before = _MAY_IMPORT.set(False)
    try:
        yield
    finally:
        _MAY_IMPORT.reset(before)


def load_aggregator(reference: Any, options: Mapping[str, Any]) -> Aggregator:
    """Return the aggregator that an import path, a class or an instance refers to.

    Raises AggregatorError if it cannot be imported, is not an Aggregator, or rejects the options.
    """
    if isinstance(reference, Aggregator):
        if options:
            raise AggregatorError(
                "options",
                "applies only if agg is a class, but agg is an instance; pass the class, or remove the options",
            )
        return reference
    loaded = import_attribute(reference) if isinstance(reference, str) else reference
    if not (isinstance(loaded, type) and issubclass(loaded, Aggregator)) or loaded is Aggregator:
        description = f"the class {loaded.__name__}" if isinstance(loaded, type) else f"a {type(loaded).__name__}"
        raise AggregatorError(
            "agg", f"{_reference_text(reference)} is {description}, expected a class derived from slackwater.Aggregator"
        )
    try:
        return loaded(**options)
    except Exception as error:
        raise AggregatorError(
            "options", f"{loaded.__name__} does not accept these options ({describe_error(error)})"
        ) from None


def _reference_text(reference: Any) -> str:
    return f'"{reference}"' if isinstance(reference, str) else getattr(reference, "__name__", type(reference).__name__)


def describe_error(error: Exception) -> str:
    """Format an error as one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]


def may_import() -> bool:
    """Return whether modules may be imported, which is not the case inside `forbid_imports`."""
    return _MAY_IMPORT.get()


def import_attribute(path: str) -> Any:
    """Return the object at an import path. Raises AggregatorError if it cannot be imported."""
    module_name, _, names = path.partition(":")
    if not _MAY_IMPORT.get() and module_name not in sys.modules:
        raise AggregatorError(
            "agg",
            f'"{path}" is a custom aggregation, but Slackwater never imports code when it reads a state; pass the '
            f"config's TOML file instead of the state, or import {module_name} in Python first",
        )
    try:
        attribute: Any = importlib.import_module(module_name)
    except Exception as error:
        advice = (
            "put the module on PYTHONPATH, or in the working directory"
            if isinstance(error, ImportError)
            else "correct the module"
        )
        raise AggregatorError(
            "agg", f'module "{module_name}" cannot be imported ({describe_error(error)}); {advice}'
        ) from None
    for name in names.split("."):
        if not hasattr(attribute, name):
            raise AggregatorError("agg", f'module "{module_name}" has no "{names}"{suggest_word(name, dir(attribute))}')
        attribute = getattr(attribute, name)
    return attribute


class _AnyKey(dict[str, Any]):
    """Mapping that returns NULL for any name, as a placeholder for the keys of a group."""

    def __missing__(self, name: str) -> Any:
        import polars as pl

        return pl.lit(None)


def check_aggregator(aggregator: Aggregator) -> None:
    """Test an aggregator on two rows of NULLs.

    Raises AggregatorError if a function fails, or if the declarations do not match the functions.
    """
    import polars as pl

    from slackwater.core.schema import Field

    name = type(aggregator).__name__

    def unfit(text: str) -> AggregatorError:
        return AggregatorError("agg", f"{name}: {text}")

    for role, declared in (("input", aggregator.inputs), ("accumulator", aggregator.accumulators)):
        if not isinstance(declared, Mapping):
            found_type = type(declared).__name__
            raise unfit(f'{role}s is a {found_type}, expected a mapping of names to types, as in {{"value": "double"}}')
        for part, kind in declared.items():
            field = Field(part, str(kind))
            scalar = field.element if field.element is not None and role == "accumulator" else field
            if not scalar.is_scalar:
                if role == "input":
                    raise unfit(f'input "{part}" has type "{kind}", expected a scalar Spark type, such as "double"')
                raise unfit(
                    f'accumulator "{part}" has type "{kind}", expected a scalar Spark type or an array of scalars; '
                    "use several accumulators instead of a struct"
                )
    if not aggregator.accumulators:
        raise unfit('declares no accumulators; expected at least one, as in {"total": "double"}')
    if not Field(name, str(aggregator.output)).is_result_type:
        raise unfit(f'output is "{aggregator.output}", expected a Spark type, such as "double" or "array<string>"')
    kinds = {n: Field(n, t).polars for n, t in aggregator.inputs.items()}
    parts = {n: Field(n, t).polars for n, t in aggregator.accumulators.items()}
    rows = pl.DataFrame({"__g": [0, 0]}).with_columns(pl.lit(None, t).alias(n) for n, t in kinds.items())
    step = "lift"
    try:
        lifted = rows.select(
            "__g", *build_accumulator_expressions(aggregator, step, {n: pl.col(n) for n in kinds})
        ).cast(parts)  # type: ignore[arg-type]
        step = "merge"
        keys = (_AnyKey(),) if aggregator.wants_keys else ()
        merges = build_accumulator_expressions(aggregator, step, {n: pl.col(n) for n in parts}, *keys)
        merged = lifted.group_by("__g").agg(merges)
        for part, dtype in parts.items():
            if isinstance(merged.schema[part], pl.List) and not isinstance(dtype, pl.List):
                raise unfit(f'merge returns a list for "{part}"; expected one value per group, such as {part}.sum()')
        merged = merged.cast(parts)  # type: ignore[arg-type]
        step = "finish"
        finished = aggregator.finish(**{n: pl.col(n) for n in parts})
        merged.select(finished.alias("x")).cast(Field("x", aggregator.output).polars)
    except AggregatorError:
        raise
    except NotImplementedError:
        raise unfit(f"does not define {step}") from None
    except Exception as error:
        raise unfit(f"{step} fails on rows of NULLs ({describe_error(error)})") from None


def build_accumulator_expressions(
    aggregator: Aggregator, step: str, columns: Mapping[str, pl.Expr], *leading_arguments: Any
) -> list[pl.Expr]:
    """Call `lift` or `merge`, and return one expression per accumulator, aliased to the accumulator's name.

    Args:
        aggregator: The aggregator.
        step: "lift" or "merge".
        columns: The inputs (for `lift`) or accumulators (for `merge`), by name.
        leading_arguments: The keys of the group, if `merge` takes them.

    Raises AggregatorError if the function does not return exactly one expression per accumulator.
    """
    expression_by_name = getattr(aggregator, step)(*leading_arguments, **columns)
    if not isinstance(expression_by_name, Mapping) or set(expression_by_name) != set(aggregator.accumulators):
        returned = f"a {type(expression_by_name).__name__}"
        if isinstance(expression_by_name, Mapping):
            keys = ", ".join(map(str, expression_by_name))
            returned = f"a mapping with the keys {keys}" if keys else "an empty mapping"
        expected = ", ".join(aggregator.accumulators)
        name = type(aggregator).__name__
        raise AggregatorError("agg", f"{name}: {step} returns {returned}, expected a mapping with the keys {expected}")
    return [expression_by_name[part].alias(part) for part in aggregator.accumulators]


__all__ = [
    "PATH",
    "Aggregator",
    "AggregatorError",
    "build_accumulator_expressions",
    "check_aggregator",
    "describe_error",
    "forbid_imports",
    "import_attribute",
    "load_aggregator",
    "may_import",
]
