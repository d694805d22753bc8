"""Validate the SQL of a `where` condition from untrusted users before Polars evaluates it, and select rows and columns.

    text ──▶ tokens ──▶ sqlglot tree ──▶ allow list ──▶ SQL generated from the tree ──▶ Polars
          length, depth  no statement   no function whose result is
                                        much larger than its input

Polars receives SQL generated from the validated tree. Therefore, a difference between the two parsers cannot bypass the
validation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import polars as pl

from slackwater.config.error_text import describe_value_mismatch, format_value, suggest_or_list_words, suggest_word
from slackwater.core.humanize import mismatch
from slackwater.errors import StartError, Topic

if TYPE_CHECKING:
    from sqlglot import errors, exp


# limits of a condition
CHARS = 4000
TOKENS = 400
DEPTH = 30  # the parser of Polars fails at 50, and can be extremely slow before that
DIGITS = 40  # per number
FUNCTIONS = (
    "ABS",
    "CEIL",
    "COALESCE",
    "ENDS_WITH",
    "FLOOR",
    "LENGTH",
    "LOWER",
    "NULLIF",
    "ROUND",
    "STARTS_WITH",
    "UPPER",
)
_SPLIT = "use several shorter conditions"
_OPERATORS = "AND OR NOT = <> < <= > >= + - * / % IN BETWEEN LIKE ILIKE IS CASE CAST"
_TYPES = ("BOOLEAN", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "TEXT", "VARCHAR", "DATE", "TIMESTAMP")


def parse_condition(where: str, columns: Iterable[str]) -> pl.Expr:
    """Parse a SQL condition over these columns into a Polars expression. Raises StartError if it is not valid."""
    try:
        return pl.sql_expr(_validated_sql(where, list(columns)))
    except RecursionError:
        raise _condition_error("the condition is nested too deeply", _SPLIT) from None
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise _condition_error(_first_line(error)) from None


def _validated_sql(where: str, columns: list[str]) -> str:
    """Validate a condition, and return SQL generated from its syntax tree.

    Raises StartError if the text is not a condition, or if it contains SQL that is not allowed.
    """
    import sqlglot
    from sqlglot import errors, exp

    _check_size(where)
    try:
        tree = sqlglot.parse_one(where, into=exp.Condition, dialect="postgres")
    except errors.SqlglotError as error:
        raise _condition_error(f"{format_value(where)} cannot be parsed ({_parser_message(error)})") from None
    _check_depth(tree)
    for node in tree.walk():
        _check_node(node, columns)
    return tree.sql(dialect="postgres", identify=True, comments=False)


def _check_size(where: str) -> None:
    """Raise StartError for a condition that is too long for a recursive parser."""
    import sqlglot
    from sqlglot import errors

    if len(where) > CHARS:
        raise _condition_error(mismatch(f"{len(where)} characters", f"at most {CHARS}"), _SPLIT)
    try:
        count = len(sqlglot.tokenize(where, dialect="postgres"))
    except errors.SqlglotError:
        fact = f"{format_value(where)} cannot be parsed: it has an unclosed quote or an invalid character"
        raise _condition_error(fact) from None
    if not count:
        raise _condition_error("the condition is empty")
    if count > TOKENS:
        raise _condition_error(mismatch(f"{count} words and signs", f"at most {TOKENS}"), _SPLIT)


def _check_depth(tree: exp.Expr) -> None:
    """Raise StartError for a tree that is nested too deeply. A chain such as `a OR b OR c` is not deep."""
    from sqlglot import exp

    nodes: list[tuple[exp.Expr, int]] = [(tree, 1)]
    while nodes:
        node, depth = nodes.pop()
        if depth > DEPTH:
            raise _condition_error(f"the condition is nested more than {DEPTH} levels deep", _SPLIT)
        chain = node.this if isinstance(node, exp.Binary) else None
        nodes += [(part, depth + (part is not chain)) for part in node.iter_expressions()]


def _check_node(node: exp.Expr, columns: list[str]) -> None:
    """Raise StartError for a node that is not on the allow list."""
    from sqlglot import exp

    signs: tuple[type, ...] = (
        *(exp.And, exp.Or, exp.Not, exp.Paren, exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE),
        *(exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.Neg, exp.Between, exp.Like, exp.ILike, exp.Is),
        *(exp.Null, exp.Boolean, exp.Identifier, exp.Case, exp.If),
        *(exp.Abs, exp.Ceil, exp.Coalesce, exp.EndsWith, exp.Floor, exp.Length, exp.Lower, exp.Nullif, exp.Round),
        *(exp.StartsWith, exp.Upper),
    )
    if type(node) in signs:
        return
    if isinstance(node, exp.Column):
        if node.args.get("table") is not None:
            raise _condition_error(f"{format_value(node.sql())} is qualified by a table; name only the column")
        if isinstance(node.this, exp.Star) or node.name not in columns:
            hint = suggest_or_list_words(node.name, columns)
            raise _condition_error(f"unable to find column {format_value(node.name)}{hint}", "")
    elif isinstance(node, exp.Literal):
        if not node.is_string and len(re.sub(r"\D", "", node.this)) > DIGITS:
            raise _condition_error(mismatch(f"a number of more than {DIGITS} digits", f"at most {DIGITS}"), "")
    elif isinstance(node, exp.In):
        if {k for k, v in node.args.items() if v} - {"this", "expressions"}:
            raise _condition_error("IN accepts only a list of values in parentheses, not a query", "")
    elif isinstance(node, exp.DataType):
        if node.this.name not in (*_TYPES, "TIMESTAMPTZ") or node.expressions:
            raise _condition_error(f"CAST to {node.sql()[:40]} is not allowed; expected one of {', '.join(_TYPES)}", "")
    elif type(node) is not exp.Cast:
        construct = node.name if isinstance(node, exp.Anonymous) else getattr(type(node), "sql_name", lambda: "")()
        construct = (construct or type(node).__name__.upper())[:40]
        expected = f"{_OPERATORS}, or the functions {', '.join(FUNCTIONS)}"
        raise _condition_error(f"{construct} is not allowed here; expected {expected}", "")


def filter_frame(frame: pl.DataFrame, condition: pl.Expr, slices: int = 100_000) -> Iterator[pl.DataFrame]:
    """Yield the rows that satisfy a condition. Raises StartError if the condition cannot be evaluated.

    `slices`: the largest number of rows to evaluate at a time.
    """
    for part in frame.iter_slices(slices) if frame.height else [frame]:
        try:
            yield part.filter(condition)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            raise _condition_error(f"{_first_line(error)}; available: {', '.join(frame.columns)}", "") from None


def _condition_error(
    fact: str, advice: str = "expected a condition in SQL, as in: events > 100 AND _status = 'open'"
) -> StartError:
    return StartError(f"where: {fact}{'; ' * bool(advice)}{advice}", Topic.CONDITION)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or ["the condition cannot be evaluated"])[0][:300]


def _parser_message(error: errors.SqlglotError) -> str:
    """Return the message of a parser error, with the position of the error."""
    problems = getattr(error, "errors", None) or [{}]
    description, column = str(problems[0].get("description") or "it is not a condition"), problems[0].get("col")
    fact = "it is incomplete" if "<class" in description else description.rstrip(". ")
    return f"{fact}{f', at character {column}' if column else ''}"


def filter_rows(frame: pl.DataFrame, where: str | None) -> pl.DataFrame:
    """Return the rows that satisfy a SQL condition; all rows for None. Raises StartError for an invalid condition."""
    if where is None:
        return frame
    try:
        return frame.filter(parse_condition(where, frame.columns))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise StartError(f"where: {_one_line(error)}", Topic.CONDITION) from None


def select_columns(frame: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """Return the named columns in this order, or all columns if `names` is empty.

    `names`: column names. A string may contain several names, separated by commas.
    Raises StartError if a column does not exist.
    """
    split_names = [n for text in names for n in ([text] if text in frame.columns else text.split(","))]
    selected = list(dict.fromkeys(n if n in frame.columns else n.strip() for n in split_names))
    for name in selected:
        if name not in frame.columns:
            raise StartError(
                f"columns: {format_value(name)} is not a column of the result{suggest_word(name, frame.columns)}; "
                f"available: {', '.join(frame.columns)}",
                Topic.SQL,
            )
    return frame.select(selected) if selected else frame


def select_with_sql(frame: pl.DataFrame, sql: str) -> pl.DataFrame:
    """Run a SQL query over the frame as the table `result`. Raises StartError if the query fails."""
    try:
        return pl.SQLContext(result=frame, eager=True).execute(sql)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        expected = f"SELECT … FROM result over: {', '.join(frame.columns)}"
        raise StartError(f"sql: {_one_line(error)}; {describe_value_mismatch(sql, expected)}", Topic.VALUE) from None


def _one_line(error: BaseException) -> str:
    """Return the message of an error as one line."""
    return " ".join(str(error).split("\n\nResolved plan")[0].split())[:300] or type(error).__name__
