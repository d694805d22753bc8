"""Checks on the columns that a window or another step reads from the result of the SQL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from slackwater.config.aggregation import Aggregation
from slackwater.config.custom_aggregator import AggregatorError
from slackwater.config.error_text import format_value, suggest_or_list_words
from slackwater.config.join import EVENT_TIME
from slackwater.config.sql.query_columns import resolve_expression
from slackwater.config.sql.schema_ddl import NO_KEYS, NUMBERS, strip_type_parameters
from slackwater.config.sql.select_scope import ColumnTypes, SqlFindings
from slackwater.config.window import Window


@dataclass
class CheckResult:
    """Result of a check: lines `key: problem`, and lines `key: reason` for skipped checks (`unchecked`)."""

    problems: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    def add(self, key: str, line: str) -> None:
        if f"{key}: {line}" not in self.problems:
            self.problems.append(f"{key}: {line}")

    def skip(self, key: str, line: str) -> None:
        if f"{key}: {line}" not in self.unchecked:
            self.unchecked.append(f"{key}: {line}")


_NEEDS_NUMBER = ("sum", "avg", "var", "stddev", "approx_quantile")


@dataclass
class WindowColumns:
    """Checks the columns of a window, and adds findings to `result`. `path`: the config key of the window's stage."""

    window: Window
    path: str
    result: CheckResult

    def check_gap(self, out: ColumnTypes) -> None:
        """Check the gap if it is a SQL expression. `out`: the output columns of the SQL."""
        if not isinstance(self.window.gap_ms, str):
            return
        key, findings = f"{self.path}.window.gap_ms", SqlFindings()
        type_ = resolve_expression(self.window.gap_ms, out, findings)
        shown = format_value(self.window.gap_ms)
        for line in findings.problems:
            reason = f"it {line}" if line.startswith(("is ", "has ", "begins ")) else line
            self.result.add(
                key,
                f'{shown} is neither a duration ("30s", "5m", "2h" or milliseconds) nor an expression over the row: '
                f"{reason}",
            )
        if findings.non_row_wise and not findings.problems:
            self.result.add(key, f"{shown} must be row-wise, but it uses {', '.join(sorted(findings.non_row_wise))}")
        if findings.undecided or (not findings.problems and not out.is_complete):
            why = findings.undecided[0] if findings.undecided else "the columns are known only when the pipeline starts"
            self.result.skip(key, f"{shown} is not a duration, so it is read as a SQL expression over the row: {why}")
        if type_ is not None and not findings.problems and strip_type_parameters(type_) not in (*NUMBERS, "string"):
            self.result.add(
                key, f'{shown} has type {type_}, expected milliseconds, an interval, or text such as "5 minutes"'
            )

    def check_columns(self, out: ColumnTypes) -> None:
        """Check that the key columns and the aggregation inputs exist. `out`: the output columns of the SQL."""
        window_key = f"{self.path}.window"
        if not out.is_complete and not any(line.startswith(f"{self.path}.sql:") for line in self.result.problems):
            unknown = [name for name in dict.fromkeys(self.used_columns()) if name not in out.types]
            if unknown:
                self.result.skip(
                    window_key,
                    f"whether the SQL selects {', '.join(map(format_value, unknown))}",
                )
        for name in self.window.group_by:
            check_scalar_column(self.result, f"{window_key}.group_by", name, out)
        for i, aggregation in enumerate(self.window.aggregations):
            for key, name in _columns_read(aggregation):
                type_ = check_scalar_column(self.result, f"{window_key}.aggregations[{i}].{key}", name, out)
                if (
                    key == "column"
                    and aggregation.agg in _NEEDS_NUMBER
                    and type_ is not None
                    and strip_type_parameters(type_) not in NUMBERS
                ):
                    self.result.add(
                        f"{window_key}.aggregations[{i}].column",
                        f"{aggregation.agg} needs a number, but column {format_value(name)} is {type_}; cast it in the SQL",
                    )

    def used_columns(self) -> list[str]:
        """Return the key columns, and the columns that the aggregations read."""
        return [*self.window.group_by, *(name for a in self.window.aggregations for _, name in _columns_read(a))]

    def result_columns(self, out: ColumnTypes) -> ColumnTypes:
        """Return the result columns of the window. `out`: the output columns of the SQL.

        Most aggregations have an unknown type until the pipeline starts.
        """
        types: dict[str, str | None] = {name: out.types.get(name) for name in self.window.group_by}
        types |= dict.fromkeys(
            (self.window.window_start_column, self.window.window_end_column, EVENT_TIME), "timestamp"
        )
        if self.window.kind == "session":
            types["session_id"] = "bigint"
        types |= {a.as_: "bigint" if a.agg in ("count", "count_distinct") else None for a in self.window.aggregations}
        if self.window.emit_metadata:
            types |= {"_revision": "bigint", "_final_at": "timestamp", "_emit_reason": "string"}
        return ColumnTypes(types, True)


def check_scalar_column(result: CheckResult, key: str, name: str, out: ColumnTypes, prefix: str = "") -> str | None:
    """Return the type of a column; None if it is unknown. Report a missing or non-scalar column.

    Args:
        result: Receives the problem.
        key: The config key that names the column.
        name: The name of the column.
        out: The output columns of the SQL.
        prefix: Text to put before the message.
    """
    type_ = out.types.get(name)
    if name not in out.types:
        if out.is_complete:
            hint = suggest_or_list_words(name, out.types)
            result.add(key, f"{prefix}column {format_value(name)} does not come out of the SQL{hint}")
    elif type_ is not None and strip_type_parameters(type_) in NO_KEYS:
        line = f"{prefix}column {format_value(name)} has type {type_}, expected a scalar type; cast it in the SQL"
        result.add(key, line)
        return None
    return type_


def check_same_columns(
    result: CheckResult, key: str, outputs: Mapping[str, ColumnTypes], names: Sequence[str] | None = None
) -> None:
    """Report columns that differ between the sources of a step.

    Args:
        result: Receives the problems.
        key: The config key to report the problems under.
        outputs: The output columns of the SQL, by source.
        names: The columns to compare; by default, all columns.
    """
    (first, expected), *others = outputs.items()
    for source, out in others:
        if not (expected.is_complete and out.is_complete):
            continue
        named = (*expected.types, *out.types) if names is None else (n for n in names if n in expected.types)
        for column in dict.fromkeys(named):
            present = column in expected.types, column in out.types
            types = a, b = expected.types.get(column), out.types.get(column)
            if all(present) and (a == b or None in types):
                continue
            shown = [
                f"{(t or 'present') if is_there else 'missing'} in source {format_value(name)}"
                for t, is_there, name in zip(types, present, (first, source), strict=True)
            ]
            result.add(
                key,
                f"column {format_value(column)} is {shown[0]} and {shown[1]}; expected the same columns from every source; cast or "
                "rename the column in the SQL",
            )


def _columns_read(aggregation: Aggregation) -> Iterator[tuple[str, str]]:
    """Yield (config key, column) for each column that an aggregation reads."""
    if aggregation.column:
        yield "column", aggregation.column
    try:
        further = aggregation.further_columns()
    except AggregatorError:
        return
    for name in further:
        yield "by" if aggregation.builtin else "columns", name
