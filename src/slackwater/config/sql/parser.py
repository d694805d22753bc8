"""Parser for SQL queries. It distinguishes SQL that Spark would reject from SQL that only this parser cannot read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from slackwater.config.message_format import format_value, suggest_word
from slackwater.config.sql import lexer
from slackwater.config.sql.builtins import KEYWORDS

if TYPE_CHECKING:
    from sqlglot import exp

MOST_WORDS = 20_000  # tokens; more would take seconds to parse
DEEP = "the SQL is nested too deeply for this check"
_NO_QUERY = ", expected SELECT … FROM source"
_QUERIES = ("SELECT", "WITH", "FROM", "VALUES", "TABLE", "MAP", "REDUCE")
_BEGINS = frozenset(  # words that usually begin a clause, but are names at the end of an expression
    """
    AND ANTI AS BETWEEN CASE CLUSTER CROSS DISTRIBUTE ELSE EXCEPT FULL GROUP HAVING IN INNER INTERSECT IS JOIN LATERAL LEFT LIKE
    LIMIT MINUS NATURAL NOT OFFSET ON OR ORDER OUTER OVER PARTITION PIVOT QUALIFY RIGHT SEMI SORT TABLESAMPLE THEN UNION UNPIVOT
    USING VIEW WHEN WHERE WINDOW WITH
    """.split()
)
STATEMENTS = frozenset(
    """
    ADD ALTER ANALYZE BEGIN CACHE CALL CLEAR COMMENT COMMIT CREATE DECLARE DELETE DESC DESCRIBE DFS DROP EXECUTE EXPLAIN EXPORT
    GRANT IMPORT INSERT LIST LOAD LOCK MERGE MSCK REFRESH REPAIR REPLACE RESET REVOKE ROLLBACK SET SHOW START TRUNCATE UNCACHE
    UNLOCK UPDATE USE
    """.split()
)


class SqlSyntaxError(Exception):
    """SQL is certainly not a valid query. The message is a predicate, such as "is empty"."""


class UnsupportedSyntax(Exception):  # noqa: N818
    """This parser cannot read the SQL, although Spark might."""


def parse_query(sql: str) -> exp.Expr:
    """Return the syntax tree of a query.

    Raises SqlSyntaxError if Spark would reject the query, and UnsupportedSyntax if only this parser cannot read it.
    """
    import sqlglot
    from sqlglot.errors import ParseError, SqlglotError

    words = _words(sql)
    text = sql[: words[-1].end]
    try:
        (tree,) = (statement for statement in sqlglot.parse(text, read="spark") if statement is not None)
    except RecursionError:
        raise UnsupportedSyntax(DEEP) from None
    except SqlglotError as error:
        place = error.errors[0] if isinstance(error, ParseError) and error.errors else {}
        location = f" near {format_value(place['highlight'])} (line {place['line']})" if place.get("highlight") else ""
        meant = _misspelled(text, words)
        hint = f': "{meant[0]}"; did you mean "{meant[1]}"?' if meant is not None else ""
        raise UnsupportedSyntax(f"this check cannot parse the SQL{location}{hint}") from None
    except Exception:  # errors of the parser itself
        raise UnsupportedSyntax("this check cannot parse the SQL") from None
    return tree


def _words(sql: str) -> list[lexer.Token]:
    """Return the tokens of a query without a final `;`. Raises the same errors as `parse_query`."""
    try:
        words = lexer.tokenize(sql)
    except lexer.UnreadableError as error:
        raise (SqlSyntaxError if error.open_quote else UnsupportedSyntax)(str(error)) from None
    while words and words[-1].text == ";":
        words.pop()
    if not words:
        raise SqlSyntaxError("is empty")
    first = words[0].text
    if words[0].is_word(*STATEMENTS):
        raise SqlSyntaxError(f"{first.upper()} is a statement; expected a query: SELECT … FROM source")
    if not words[0].is_word(*_QUERIES) and first != "(":
        raise SqlSyntaxError(f'begins with "{first}"{suggest_word(first, _QUERIES) or _NO_QUERY}')
    if len(words) > MOST_WORDS:
        raise UnsupportedSyntax(f"the SQL has {len(words):,} words, but this check reads at most {MOST_WORDS:,}")
    depth = 0
    for word in words:
        depth += (word.text == "(") - (word.text == ")")
        if depth < 0:
            line = sql.count("\n", 0, word.start) + 1
            raise SqlSyntaxError(f'has an extra ")" on line {line}; remove it')
        if word.text == ";":
            count = 1 + sum(w.text == ";" for w in words)
            raise SqlSyntaxError(f"holds {count} statements, expected one SELECT")
    if depth:
        raise SqlSyntaxError('has an unclosed "("; close it')
    for before, word, behind in zip(words, words[1:], [*words[2:], None], strict=False):
        ends = behind is None or behind.text.upper() in (",", ")", "FROM")
        if word.is_word(*_BEGINS) and ends and before.text.upper() not in ("AS", ".", ",", "(", "SELECT"):
            raise UnsupportedSyntax(f'this check cannot decide whether "{word.text}" is a name')
    return words


def _misspelled(sql: str, words: Sequence[lexer.Token]) -> tuple[str, str] | None:
    """Return a misspelled keyword and its correction, if the correction makes the SQL valid; otherwise None."""
    import sqlglot

    for token in [w for w in words if w.kind == "word" and len(w.text) > 3][:20]:
        hint = suggest_word(token.text, KEYWORDS).partition('"')[2].partition('"')[0]
        if not hint or hint == token.text.upper():
            continue
        try:
            sqlglot.parse_one(f"{sql[: token.start]}{hint}{sql[token.end :]}", read="spark")
        except Exception:
            continue
        return token.text, hint
    return None
