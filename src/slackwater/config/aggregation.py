"""The spec of an aggregation (a built-in function or a user-defined one), and the keys that each function takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from slackwater.config import custom_aggregator as custom
from slackwater.config.custom_aggregator import Aggregator
from slackwater.config.message_format import format_value, suggest_word_or_list
from slackwater.config.spec_base import Problem, Spec, Values
from slackwater.config.value_parsers import (
    InvalidValueError,
    ValueParser,
    attach_json_schema,
    choice_parser,
    integer_parser,
    parse_text,
)
from slackwater.core.humanize import mismatch

AGGREGATES = (
    *("count", "sum", "min", "max", "avg", "first", "last", "count_distinct"),
    *("stddev", "var", "approx_quantile", "top_k", "collect_set", "collect_list", "min_by", "max_by"),
)
ROWS_ONLY = (
    "var",
    "stddev",
    "approx_quantile",
    "top_k",
    "collect_list",
)  # SQL cannot reduce these to less than their rows
QUANTILE_K = 200  # rank error 1.33 %
_PATH = 'or the import path of a class ("package.module:Class")'
_aggregate = choice_parser(*AGGREGATES)
_MEANT = {  # names in other systems
    **dict.fromkeys(("median", "p50"), '"approx_quantile" with quantile = 0.5'),
    **dict.fromkeys(
        ("quantile", "percentile", "approx_percentile", "percentile_approx", "p90", "p95", "p99"),
        '"approx_quantile" with a quantile, as in 0.95',
    ),
    **dict.fromkeys(("mean", "average"), '"avg"'),
    **dict.fromkeys(("std", "stdev", "stddev_samp"), '"stddev"'),
    **dict.fromkeys(("variance", "var_samp"), '"var"'),
    **dict.fromkeys(("approx_count_distinct", "nunique", "distinct", "unique"), '"count_distinct"'),
    **dict.fromkeys(("array_agg", "list", "collect"), '"collect_list"'),
    **dict.fromkeys(("mode", "topk", "most_common"), '"top_k"'),
    "set": '"collect_set"',
    "argmin": '"min_by"',
    "argmax": '"max_by"',
    "total": '"sum"',
    "latest": '"last"',
    "arg_min": '"min_by"',
    "arg_max": '"max_by"',
    "earliest": '"first"',
    "any_value": '"first"',
}

_BELONGS = {
    "mode": ("count_distinct",),
    "max_distinct_values_per_group": ("count_distinct", "top_k"),
    "hll_precision": ("count_distinct",),
    "quantile": ("approx_quantile",),
    "k": ("approx_quantile", "top_k"),
    "max_values_per_group": ("collect_set", "collect_list"),
    "by": ("min_by", "max_by"),
    "on_overflow": ("sum", "avg"),
    "columns": (),
    "options": (),
}
_NEEDS = {
    "approx_quantile": (("quantile", "needs the quantile, as in 0.95"),),
    "top_k": (
        ("k", "needs the number of values, as in 10"),
        ("max_distinct_values_per_group", "stores every value and needs a limit, as in 10000"),
    ),
    "collect_set": (("max_values_per_group", "needs a limit, as in 1000"),),
    "collect_list": (("max_values_per_group", "needs a limit, as in 1000"),),
    "min_by": (("by", "needs the column that orders the rows"),),
    "max_by": (("by", "needs the column that orders the rows"),),
}


@attach_json_schema(
    enum=[*AGGREGATES, "count_col"], otherwise={"type": "string", "pattern": f"^{custom.PATH.pattern}$"}
)
def _agg(value: Any) -> Any:
    """Parse `agg`: the name of a built-in, an import path or, in Python, an `Aggregator` class or instance."""
    if value == "count_col" or isinstance(value, Aggregator):
        return value
    if isinstance(value, type) and issubclass(value, Aggregator):
        return value
    if isinstance(value, str) and custom.PATH.fullmatch(value):
        return value
    try:
        return _aggregate(value)
    except InvalidValueError as error:
        expected, mark, hint = str(error).partition(";")
        if isinstance(value, str) and (meant := _MEANT.get(value.casefold())):
            mark, hint = ";", f" did you mean {meant}?"
        raise InvalidValueError(f"{expected} {_PATH}{mark}{hint}") from None


@attach_json_schema(type="number", minimum=0, maximum=1)
def _share(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
        raise InvalidValueError("a number from 0 to 1")
    return float(value)


@attach_json_schema(type="object", additionalProperties={"type": "string", "minLength": 1})
def _columns(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(v, str) and v for v in value.values()):
        raise InvalidValueError('a table of column names ({ value = "price", weight = "quantity" })')
    return {str(k): v for k, v in value.items()}


@attach_json_schema(type="object")
def _options(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidValueError("a table of arguments for the class ({ k = 3 })")
    return {str(k): v for k, v in value.items()}


class Aggregation(Spec):
    """One aggregation: `Aggregation(agg="sum", column="amount", as_="total")`.

    - `agg`: a built-in (see docs/aggregations.md), or the import path of an `Aggregator`, as in
      "mypackage.mymodule:WeightedAverage". In Python, `agg` may also be such a class or an instance of it. The built-in
      `count` counts rows if there is no `column`.
    - `columns`: for a user-defined aggregation, the column that each of its inputs reads.
    - `options`: for a user-defined aggregation, the arguments with which its class is instantiated.
    - `mode` (count_distinct): "approximate" (HLL, `hll_precision` 4 to 18) or "exact" (needs
      `max_distinct_values_per_group`).
    - `on_overflow` (sum, avg): "fail" stops the pipeline if the result does not fit its type; "null" returns NULL.
    """

    agg: Any
    column: str | None = None
    as_: str = Field(default="", alias="as")
    by: str | None = None
    on_overflow: str = "fail"
    mode: str | None = None
    max_distinct_values_per_group: int | None = None
    max_values_per_group: int | None = None
    hll_precision: int = 14
    quantile: float | None = None
    k: int | None = None
    columns: Mapping[str, str] = Field(default_factory=dict)
    options: Mapping[str, Any] = Field(default_factory=dict)

    if TYPE_CHECKING:  # accepted types of arguments; the attributes hold the parsed values

        def __init__(
            self,
            *,
            agg: str | Aggregator | type[Aggregator],
            column: str | None = None,
            as_: str,
            by: str | None = None,
            on_overflow: str = "fail",
            mode: str | None = None,
            max_distinct_values_per_group: int | None = None,
            max_values_per_group: int | None = None,
            hll_precision: int = 14,
            quantile: float | None = None,
            k: int | None = None,
            columns: Mapping[str, str] = ...,
            options: Mapping[str, Any] = ...,
        ) -> None: ...

    PARSERS: ClassVar[Mapping[str, ValueParser]] = {
        "agg": _agg,
        "column": parse_text,
        "as": parse_text,
        "by": parse_text,
        "on_overflow": choice_parser("fail", "null"),
        "mode": choice_parser("approximate", "exact"),
        "max_distinct_values_per_group": integer_parser(1),
        "max_values_per_group": integer_parser(1),
        "hll_precision": integer_parser(4, 18),
        "quantile": _share,
        "k": integer_parser(1, 65535),
        "columns": _columns,
        "options": _options,
    }
    ATTRIBUTES: ClassVar[Mapping[str, str]] = {"as": "as_"}
    ALIASES: ClassVar[Mapping[str, str]] = {"kind": "agg", "input_column": "column", "output_name": "as"}
    REQUIRED: ClassVar[tuple[str, ...]] = ("agg", "as")

    @classmethod
    def read(cls, data: Values, file: str, path: str, problems: list[str]) -> tuple[Values, set[str]]:
        values, wrong = super().read(data, file, path, problems)
        if values.get("agg") == "count_col":  # the older spelling of count with a column
            values["agg"] = "count"
        if values.get("agg") == "count_distinct":
            values.setdefault("mode", "approximate")
        return values, wrong

    def derived(self) -> Values:
        return {"mode": "approximate"} if self.agg == "count_distinct" else {}

    @classmethod
    def missing_hint(cls, key: str) -> str:
        return (
            "name the output column"
            if key == "as"
            else f"expected {' or '.join(map(format_value, AGGREGATES))} {_PATH}"
        )

    @property
    def builtin(self) -> bool:
        return self.agg in AGGREGATES

    @property
    def in_sql(self) -> bool:
        """Return whether Spark SQL can aggregate rows before the shuffle."""
        return self.builtin and self.agg not in ROWS_ONLY

    @property
    def call(self) -> str:
        """The aggregation in the form of a function call, such as `sum(amount)`."""
        if not self.builtin:
            name = self.agg.rpartition(":")[2] if isinstance(self.agg, str) else _class(self.agg).__name__
            return f"{name}({', '.join(self.columns.values())})"
        details = [self.column or "*", *([f"by {self.by}"] if self.by else [])]
        details += [self.mode or "approximate"] if self.agg == "count_distinct" else []
        details += [str(d) for d in (self.quantile, self.k) if d is not None]
        return f"{self.agg}({', '.join(details)})"

    def aggregator(self) -> Aggregator:
        """Load the user-defined aggregation that `agg` names.

        Raises `custom_aggregator.AggregatorError` if its class has changed since this spec was validated and can no
        longer be used.
        """
        return custom.load_aggregator(self.agg, self.options)

    def further_columns(self) -> tuple[str, ...]:
        """Return the columns other than `column` that the aggregation reads.

        For a user-defined aggregation, the columns are in the order of its inputs.
        """
        if self.builtin:
            return (self.by,) if self.by else ()
        return tuple(self.columns[name] for name in self.aggregator().inputs)

    @classmethod
    def check(cls, values: Values, wrong: set[str]) -> Iterator[Problem]:
        agg = values.get("agg")
        if agg is None:
            return
        if agg in AGGREGATES or agg == "count_col":
            yield from cls._check_builtin(agg, values, wrong)
        else:
            yield from cls._check_custom(agg, values, wrong)
        if values.get("as_", "").casefold() == "_event_ts":
            yield "as", '"_event_ts" is the event time; choose another name'

    @classmethod
    def _check_builtin(cls, agg: str, values: Values, wrong: set[str]) -> Iterator[Problem]:
        def missing(key: str) -> bool:
            return key not in values and key not in wrong

        if agg != "count" and missing("column"):
            purpose = "count" if agg == "count_col" else "aggregate"
            yield "column", f"missing; {format_value(agg)} needs a column to {purpose}"
        for key, kinds in _BELONGS.items():
            if key in values and agg not in kinds:
                owners = " and ".join(map(format_value, kinds)) or "custom aggregations"
                yield key, f"applies only to {owners}, not to {format_value(agg)}; remove it"
        for key, why in _NEEDS.get(agg, ()):
            if missing(key):
                yield key, f"missing; {format_value(agg)} {why}"
        if agg == "approx_quantile" and values.get("k", QUANTILE_K) < 8:
            yield "k", mismatch(values["k"], "a whole number of at least 8 and at most 65535")
        if agg != "count_distinct":
            return
        if values.get("mode") == "exact":
            if missing("max_distinct_values_per_group"):
                yield (
                    "max_distinct_values_per_group",
                    'missing; mode = "exact" needs a limit; set one, or use mode = "approximate"',
                )
        elif "max_distinct_values_per_group" in values:
            yield "max_distinct_values_per_group", 'applies only to mode = "exact"; set that mode, or remove the limit'

    @classmethod
    def _check_custom(cls, agg: Any, values: Values, wrong: set[str]) -> Iterator[Problem]:
        for key in [*_BELONGS, "column"]:
            if key in values and key not in ("columns", "options"):
                advice = "name the inputs in columns" if key == "column" else "give the arguments in options"
                yield key, f"applies only to built-in aggregations; {advice}"
        if "options" in wrong:
            return
        try:
            aggregator = custom.load_aggregator(agg, values.get("options", {}))
            custom.check_aggregator(aggregator)
        except custom.AggregatorError as unfit:
            yield unfit.key, str(unfit)
            return
        columns = values.get("columns", {})
        for name in columns:
            if name not in aggregator.inputs:
                yield (
                    "columns",
                    f"{format_value(name)} is not an input of {type(aggregator).__name__}{suggest_word_or_list(name, aggregator.inputs)}",
                )
        absent = [name for name in aggregator.inputs if name not in columns]
        if absent and "columns" not in wrong:
            names = ", ".join(absent)
            yield (
                "columns",
                f"no column for {names}; name the columns that {type(aggregator).__name__} reads, as in {{ "
                f"{absent[0]} = "
                f'"price" }}',
            )


def _class(class_or_object: Any) -> type:
    return class_or_object if isinstance(class_or_object, type) else type(class_or_object)


__all__ = ["AGGREGATES", "QUANTILE_K", "ROWS_ONLY", "Aggregation"]
