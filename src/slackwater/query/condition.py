"""A `where`: SQL of strangers, checked piece by piece before Polars sees it.

    text ──▶ tokens ──▶ tree of sqlglot ──▶ only what is listed here ──▶ written anew ──▶ Polars
          length, depth     no statement        no function that can make
                                                much of little

Polars is given what was checked, in the checked tree's own words: no text that two parsers read in two ways passes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import polars as pl

from slackwater.config.message_format import format_value, suggestion_or_list
from slackwater.errors import StartError

if TYPE_CHECKING:
    from sqlglot import errors, exp

CHARS = 4000
TOKENS = 400
DEPTH = 30  # Polars' parser gives up at 50, and may take for ever to say so
DIGITS = 40  # of a number
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
_OPERATORS = "AND OR NOT = <> < <= > >= + - * / % IN BETWEEN LIKE ILIKE IS CASE CAST"
_TYPES = ("BOOLEAN", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "TEXT", "VARCHAR", "DATE", "TIMESTAMP")


def parse_condition(where: str, columns: Iterable[str]) -> pl.Expr:
    """The condition over columns that a text states. Raises StartError, one line."""
    try:
        written = _checked(where, list(columns))
        return pl.sql_expr(written)
    except RecursionError:
        raise _wrong("too many things are within each other", "ask in several steps") from None
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise _wrong(_line(error)) from None


def _checked(where: str, columns: list[str]) -> str:
    """The text as it was understood. Raises StartError for what is not a condition, or not allowed in one."""
    import sqlglot
    from sqlglot import errors, exp

    _check_size(where)
    try:
        tree = sqlglot.parse_one(where, into=exp.Condition, dialect="postgres")
    except errors.SqlglotError as error:
        raise _wrong(f"{format_value(where)} cannot be read ({_said(error)})") from None
    _check_depth(tree)
    for node in tree.walk():
        _check(node, columns)
    return tree.sql(dialect="postgres", identify=True, comments=False)


def _check_size(where: str) -> None:
    """Raise StartError for a text that is too long for a parser that follows brackets by calling itself."""
    import sqlglot
    from sqlglot import errors

    if len(where) > CHARS:
        raise _wrong(f"{len(where)} characters; at most {CHARS} are read", "ask in several steps")
    try:
        count = len(sqlglot.tokenize(where, dialect="postgres"))
    except errors.SqlglotError:
        raise _wrong(f"{format_value(where)} cannot be read: a quote is not closed, or a sign means nothing") from None
    if not count:
        raise _wrong("is empty")
    if count > TOKENS:
        raise _wrong(f"{count} words and signs; at most {TOKENS} are read", "ask in several steps")


def _check_depth(tree: exp.Expr) -> None:
    """Raise StartError for too much within each other; a chain, as in `a OR b OR c`, is not deep."""
    from sqlglot import exp

    nodes: list[tuple[exp.Expr, int]] = [(tree, 1)]
    while nodes:
        node, depth = nodes.pop()
        if depth > DEPTH:
            raise _wrong(f"more than {DEPTH} things are within each other", "ask in several steps")
        chain = node.this if isinstance(node, exp.Binary) else None
        nodes += [(part, depth + (part is not chain)) for part in node.iter_expressions()]


def _check(node: exp.Expr, columns: list[str]) -> None:
    """Raise StartError for a part of a condition that is not listed."""
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
            raise _wrong(f"{format_value(node.sql())} is a column of a table; name the column alone")
        if isinstance(node.this, exp.Star) or node.name not in columns:
            raise _wrong(f"unable to find column {format_value(node.name)}{suggestion_or_list(node.name, columns)}", "")
    elif isinstance(node, exp.Literal):
        if not node.is_string and len(re.sub(r"\D", "", node.this)) > DIGITS:
            raise _wrong(f"a number of more than {DIGITS} digits", "")
    elif isinstance(node, exp.In):
        if {k for k, v in node.args.items() if v} - {"this", "expressions"}:
            raise _wrong("IN is followed by values in brackets here, not by a query", "")
    elif isinstance(node, exp.DataType):
        if node.this.name not in (*_TYPES, "TIMESTAMPTZ") or node.expressions:
            raise _wrong(f"CAST to {node.sql()[:40]} is not allowed; expected one of {', '.join(_TYPES)}", "")
    elif type(node) is not exp.Cast:
        construct = node.name if isinstance(node, exp.Anonymous) else getattr(type(node), "sql_name", lambda: "")()
        construct = construct or type(node).__name__.upper()
        raise _wrong(
            f"{construct[:40]} is not allowed here; there are {_OPERATORS}, and the functions {', '.join(FUNCTIONS)}",
            "",
        )


def filter_frame(frame: pl.DataFrame, condition: pl.Expr, slices: int = 100_000) -> Iterator[pl.DataFrame]:
    """The rows of a frame that a condition holds for, a slice at a time. Raises StartError."""
    for part in frame.iter_slices(slices) if frame.height else [frame]:
        try:
            yield part.filter(condition)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            raise _wrong(f"{_line(error)}; there are: {', '.join(frame.columns)}", "") from None


def _wrong(
    fact: str, advice: str = "expected a condition in SQL, as in: events > 100 AND _status = 'open'"
) -> StartError:
    return StartError(f"where: {fact}{'; ' * bool(advice)}{advice}")


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or ["it cannot be answered"])[0][:300]


def _said(error: errors.SqlglotError) -> str:
    """What a parser says, and where."""
    problems = getattr(error, "errors", None) or [{}]
    description, column = str(problems[0].get("description") or "it is not a condition"), problems[0].get("col")
    fact = "something is missing" if "<class" in description else description.rstrip(". ")
    return f"{fact}{f', at character {column}' if column else ''}"
