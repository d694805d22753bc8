"""The spec of an aggregation, which is a built-in or user-defined function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from slackwater.config import custom_aggregator as custom
from slackwater.config.config_key import Converted, declare_key
from slackwater.config.custom_aggregator import Aggregator
from slackwater.config.error_text import format_value, suggest_or_list_words
from slackwater.config.spec_base import Problem, Spec, Values
from slackwater.config.value_parsers import (
    InvalidValueError,
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
# Spark SQL cannot pre-aggregate these
ROWS_ONLY = ("var", "stddev", "approx_quantile", "top_k", "collect_list")
CUSTOM = "custom aggregations"  # in `ConfigKey.kinds`: user-defined aggregations
QUANTILE_K = 200  # default accuracy of approx_quantile: a rank error of 1.33%
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


@attach_json_schema(
    enum=[*AGGREGATES, "count_col"], otherwise={"type": "string", "pattern": f"^{custom.PATH.pattern}$"}
)
def _agg(value: Any) -> Any:
    """Parse `agg`: a built-in aggregation, an import path or, in Python, an `Aggregator` class or instance."""
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

    `agg` is the name of a built-in aggregation (see docs/aggregations.md), or the import path of an `Aggregator`, as in
    `"mypackage.mymodule:WeightedAverage"`. In Python, it may also be an `Aggregator` class or instance.
    """

    agg: Converted[str | Aggregator | type[Aggregator], Any] = declare_key(
        _agg,
        'A built-in aggregation, or the import path of a custom one, as in "package.module:Class". `count_col` is the former name of `count` with a column.',
        required=f"expected {' or '.join(map(format_value, AGGREGATES))} {_PATH}",
        aliases=("kind",),
    )
    column: str | None = declare_key(
        parse_text,
        "The column to aggregate. count also works without a column: it then counts rows.",
        default=None,
        aliases=("input_column",),
    )
    as_: str = declare_key(
        parse_text, "The name of the output column.", required="name the output column", aliases=("output_name",)
    )
    by: str | None = declare_key(
        parse_text,
        "The column whose minimum or maximum selects the row (min_by, max_by).",
        default=None,
        kinds=dict.fromkeys(("min_by", "max_by"), "needs the column that orders the rows"),
    )
    on_overflow: str = declare_key(
        choice_parser("fail", "null"),
        "What to do if the result is outside the range of its type (sum, avg): stop the pipeline, or return NULL.",
        default="fail",
        kinds={"sum": "", "avg": ""},
    )
    mode: str | None = declare_key(
        choice_parser("approximate", "exact"),
        "How count_distinct counts values: approximately (HLL, the default), or exactly up to a limit.",
        default=None,
        kinds={"count_distinct": ""},
    )
    quantile: float | None = declare_key(
        _share,
        "The quantile to compute, from 0 to 1 (approx_quantile).",
        default=None,
        kinds={"approx_quantile": "needs the quantile, for example 0.95"},
    )
    k: int | None = declare_key(
        integer_parser(1, 65535),
        "The number of values (top_k), or the accuracy (approx_quantile): a larger k is more accurate.",
        default=None,
        kinds={"approx_quantile": "", "top_k": "needs the number of values, for example 10"},
    )
    max_distinct_values_per_group: int | None = declare_key(
        integer_parser(1),
        "The maximum number of distinct values per window and key (exact count_distinct, top_k).",
        default=None,
        kinds={"count_distinct": "", "top_k": "stores every distinct value, so it needs a limit, for example 10000"},
    )
    max_values_per_group: int | None = declare_key(
        integer_parser(1),
        "The maximum number of values per window and key (collect_set, collect_list).",
        default=None,
        kinds=dict.fromkeys(("collect_set", "collect_list"), "needs a limit, for example 1000"),
    )
    hll_precision: int = declare_key(
        integer_parser(4, 18),
        "The precision of approximate count_distinct, from 4 to 18. Each step doubles the memory.",
        default=14,
        kinds={"count_distinct": ""},
    )
    columns: Mapping[str, str] = declare_key(
        _columns,
        "The columns that a custom aggregation reads, by the names of its inputs.",
        default_factory=dict,
        kinds={CUSTOM: ""},
    )
    options: Mapping[str, Any] = declare_key(
        _options, "The constructor arguments of a custom aggregation.", default_factory=dict, kinds={CUSTOM: ""}
    )

    DOC_LINK: ClassVar[str] = "docs/configuration.md#aggregations"

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

    @property
    def builtin(self) -> bool:
        return self.agg in AGGREGATES

    @property
    def in_sql(self) -> bool:
        """Return whether Spark SQL can pre-aggregate rows before the shuffle."""
        return self.builtin and self.agg not in ROWS_ONLY

    @property
    def call(self) -> str:
        """The aggregation as a function call, such as `sum(amount)`, for messages and the UI."""
        if not self.builtin:
            name = self.agg.rpartition(":")[2] if isinstance(self.agg, str) else _class(self.agg).__name__
            return f"{name}({', '.join(self.columns.values())})"
        details = [self.column or "*", *([f"by {self.by}"] if self.by else [])]
        details += [self.mode or "approximate"] if self.agg == "count_distinct" else []
        details += [str(d) for d in (self.quantile, self.k) if d is not None]
        return f"{self.agg}({', '.join(details)})"

    def aggregator(self) -> Aggregator:
        """Load the user-defined aggregation.

        Raises `custom_aggregator.AggregatorError` if the class has changed since this spec was validated, and can no
        longer be used.
        """
        return custom.load_aggregator(self.agg, self.options)

    def further_columns(self) -> tuple[str, ...]:
        """Return the columns other than `column` that the aggregation reads, in the order of its inputs."""
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
            yield "as", '"_event_ts" is reserved for the event time; choose another name'

    @classmethod
    def builtin_keys(cls) -> list[str]:
        """Return the keys that apply only to built-in aggregations."""
        return [key for key, declared in cls.KEYS.items() if declared.kinds and CUSTOM not in declared.kinds]

    @classmethod
    def _check_builtin(cls, agg: str, values: Values, wrong: set[str]) -> Iterator[Problem]:
        def missing(key: str) -> bool:
            return key not in values and key not in wrong

        if agg != "count" and missing("column"):
            purpose = "count" if agg == "count_col" else "aggregate"
            yield "column", f"missing; {format_value(agg)} needs a column to {purpose}"
        for key, declared in cls.KEYS.items():
            if key in values and declared.kinds and agg not in declared.kinds:
                owners = " and ".join(kind if kind == CUSTOM else format_value(kind) for kind in declared.kinds)
                yield key, f"applies only to {owners}, not to {format_value(agg)}; remove it"
        for key, declared in cls.KEYS.items():
            if missing(key) and declared.kinds.get(agg):
                yield key, f"missing; {format_value(agg)} {declared.kinds[agg]}"
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
        for key in [*cls.builtin_keys(), "column"]:
            if key in values:
                advice = (
                    'name its input columns in the key "columns" instead'
                    if key == "column"
                    else 'give its arguments in the key "options" instead'
                )
                yield key, f"applies only to built-in aggregations, but this one is custom; {advice}"
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
                    f"{format_value(name)} is not an input of {type(aggregator).__name__}{suggest_or_list_words(name, aggregator.inputs)}",
                )
        absent = [name for name in aggregator.inputs if name not in columns]
        if absent and "columns" not in wrong:
            names = " and ".join(map(format_value, absent))
            yield (
                "columns",
                f"found no column for {names}, expected a column for each input of {type(aggregator).__name__}, as in "
                f'{{ {absent[0]} = "price" }}',
            )


def _class(class_or_object: Any) -> type:
    return class_or_object if isinstance(class_or_object, type) else type(class_or_object)


__all__ = ["AGGREGATES", "QUANTILE_K", "ROWS_ONLY", "Aggregation"]
