"""A SQL text as a tree, or why it is none: what Spark refuses for certain, and what cannot be read here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from slackwater.config.spelling import near, show
from slackwater.config.sql.words import KEYWORDS, PLAIN

if TYPE_CHECKING:
    from sqlglot import exp

MOST_WORDS = 20_000  # words, signs and values: more would take seconds to read
DEEP = "it is nested too deeply to be read here"
_STARTS = ("SELECT", "WITH", "FROM", "VALUES", "TABLE", "MAP", "REDUCE", "SHOW", "DESCRIBE", "DESC", "EXPLAIN")
_NO_QUERY = 'begins with "{}", expected SELECT … FROM source'


class SyntaxFault(Exception):  # noqa: N818 — a finding, which is collected
    """A text that Spark cannot read; as the end of a line."""


class NotUnderstood(Exception):  # noqa: N818
    """A text that cannot be read here, though Spark may."""


def parsed(sql: str) -> exp.Expr:
    """The tree of a query. Raises SyntaxFault where it is none for certain, else NotUnderstood."""
    import sqlglot
    from sqlglot.errors import ParseError, SqlglotError, TokenError

    try:
        tokens = sqlglot.tokenize(sql, read="spark")
    except TokenError:
        raise SyntaxFault("has a quote that is not closed") from None
    if not tokens:
        raise SyntaxFault("is empty")
    if len(tokens) > MOST_WORDS:
        raise NotUnderstood(f"it has {len(tokens):,} words, and at most {MOST_WORDS:,} are read here")
    first = tokens[0].text
    if (
        tokens[0].token_type.name not in ("SELECT", "WITH", "FROM", "L_PAREN", "VALUES")
        and first.upper() not in _STARTS
    ):
        raise SyntaxFault(
            f'begins with "{first}"{near(first, _STARTS)}' if near(first, _STARTS) else _NO_QUERY.format(first)
        )
    depth = 0
    for token in tokens:
        depth += (token.token_type.name == "L_PAREN") - (token.token_type.name == "R_PAREN")
        if depth < 0:
            raise SyntaxFault(f'has a ")" too many at line {token.line}')
    if depth:
        raise SyntaxFault('has a "(" that is not closed')
    kinds = [token.token_type.name for token in tokens]
    for i in range(len(kinds) - 2):
        if kinds[i : i + 2] == ["COMMA", "FROM"] and kinds[i + 2] != "FROM":
            raise SyntaxFault(f"has a comma too many before FROM (line {tokens[i].line})")
    try:
        trees = [tree for tree in sqlglot.parse(sql, read="spark") if tree is not None]
    except RecursionError:
        raise NotUnderstood(DEEP) from None
    except SqlglotError as error:
        place = error.errors[0] if isinstance(error, ParseError) and error.errors else {}
        at = f" near {show(place['highlight'])} (line {place['line']})" if place.get("highlight") else ""
        meant = _misspelled(sql, tokens)
        if meant is not None:
            raise SyntaxFault(f'is no valid SQL{at}: "{meant[0]}"; did you mean "{meant[1]}"?') from None
        if set(kinds) <= PLAIN:
            raise SyntaxFault(f"is no valid SQL{at}; expected SELECT … FROM source WHERE …") from None
        raise NotUnderstood(f"it is not understood here{at}") from None
    if len(trees) != 1:
        raise SyntaxFault(f"holds {len(trees)} statements, expected one SELECT")
    return trees[0]


def _misspelled(sql: str, tokens: Sequence[Any]) -> tuple[str, str] | None:
    """A word that is nearly a keyword, and that keyword, if the text can be read with it."""
    import sqlglot
    from sqlglot.errors import SqlglotError

    for token in [t for t in tokens if t.token_type.name == "VAR" and len(t.text) > 3][:20]:
        hint = near(token.text, KEYWORDS).partition('"')[2].partition('"')[0]
        if not hint or hint == token.text.upper():
            continue
        try:
            sqlglot.parse_one(f"{sql[: token.start]}{hint}{sql[token.end + 1 :]}", read="spark")
        except SqlglotError:
            continue
        return token.text, hint
    return None
