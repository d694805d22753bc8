"""Parse SQL queries, and resolve the names in the expressions of one SELECT.

The parser distinguishes SQL that Spark would reject from SQL that only this parser cannot read. The resolver finds
unknown names and non-row-wise functions.

sqlglot's `qualify_columns` is not used. It mistakes a collation for a column, stops at the first unknown name, and
ignores Spark's functions and its rules for aliases of the SELECT list (see ADR 46).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from slackwater.config.error_text import format_value, suggest_or_list_words, suggest_word
from slackwater.config.sql import lexer
from slackwater.config.sql.lexer import AGGREGATES, CHANGING, FUNCTIONS, KEYWORDS, WINDOW_FUNCTIONS, WITHOUT_PARENTHESES
from slackwater.config.sql.select_scope import AGGREGATE, WINDOW, SelectScope

if TYPE_CHECKING:
    from sqlglot import exp


@dataclass(frozen=True)
class NameResolver:
    """Checks expressions over the tables of `scope`.

    It adds unknown names to `problems`, and constructs that are not row-wise to `scope.non_row_wise`.
    """

    scope: SelectScope
    problems: list[str]

    def check(self, node: exp.Expr) -> None:
        """Report unknown names, and functions that are not row-wise, in an expression."""
        from sqlglot import exp

        if isinstance(node, exp.Subquery | exp.Select | exp.SetOperation):
            self.scope.non_row_wise.add("a subquery")
            return
        if isinstance(node, exp.Exists) and isinstance(node.this, exp.Query):
            self.scope.non_row_wise.add("a subquery (EXISTS)")
            return
        if isinstance(node, exp.In) and node.args.get("query"):
            self.scope.non_row_wise.add("a subquery (IN)")
            self.check(node.this)
            return
        if isinstance(node, exp.DataType):  # a collation looks like a column
            return
        if isinstance(node, exp.Collate):
            self.check(node.this)
            return
        if isinstance(node, exp.Window):
            if not self.scope.groups_by_window_bound(node.args.get("partition_by") or (exp.null(),), ()):
                self.scope.non_row_wise.add(WINDOW)
                return
            replace(self, scope=replace(self.scope, is_grouped=True)).check_children(node)
            return
        if isinstance(node, exp.Column):
            self._column(node)
            return
        if isinstance(node, exp.Cast) and isinstance(node.this, exp.Literal) and node.this.is_string:
            self._time(node.to.this.name, node.this.name)
        self._function(node)
        self.check_children(node)

    def check_children(self, node: exp.Expr) -> None:
        """Check each child expression of a node."""
        for child in node.iter_expressions():
            self.check(child)

    def _time(self, type_: str, text: str) -> None:
        """Report a literal that depends on the clock, such as `DATE 'today'`."""
        if type_.startswith(("DATE", "TIMESTAMP")) and lexer.uses_current_time(text):
            self.scope.non_row_wise.add(f"{type_.removesuffix('TZ')} '{text.strip()}'")

    def _function(self, node: exp.Expr) -> None:
        from sqlglot import exp

        name, is_aggregate = type(node).__name__, isinstance(node, exp.AggFunc)
        if isinstance(node, exp.Anonymous) and isinstance(node.this, str) and not isinstance(node.parent, exp.Dot):
            name = node.this.lower()
            is_aggregate = name in AGGREGATES or "_agg" in name
            if name not in FUNCTIONS:
                self.problems.append(f'function "{node.this}" does not exist{suggest_word(name, FUNCTIONS)}')
        if not self.scope.is_grouped and (is_aggregate or name in WINDOW_FUNCTIONS):
            self.scope.non_row_wise.add(WINDOW if name in WINDOW_FUNCTIONS else AGGREGATE)
        if name == "aes_encrypt" and len(node.expressions) < 3:
            self.scope.non_row_wise.add("aes_encrypt() without an initialisation vector")
        if name in CHANGING:
            spelled = CHANGING[name]
            bare = spelled.removesuffix("()")
            if bare in WITHOUT_PARENTHESES and (
                not self.scope.is_complete or bare in map(str.casefold, self.scope.names())
            ):
                return  # may be a column
            self.scope.non_row_wise.add(spelled)

    def _column(self, node: exp.Column) -> None:
        """Report a column that does not exist, or that is ambiguous because several tables have it."""
        from sqlglot import exp

        parts = [part.name for part in node.parts]
        if isinstance(node.this, exp.Star):
            self._star(node)
            return
        first = parts[0].casefold()
        if first in self.scope.aliases or first in WITHOUT_PARENTHESES or first in _variables(node):
            return
        tables = [columns for alias, columns in self.scope.tables if alias == first and alias]
        if len(parts) > 1 and tables:
            if any(not columns.is_complete or columns.has(parts[1]) for columns in tables):
                return
            if any(columns.has(first) for _, columns in self.scope.tables) or not self.scope.is_complete:
                return
            theirs = dict.fromkeys(name for columns in tables for name in columns.types)
            self._report(f'column "{parts[0]}.{parts[1]}" does not exist{suggest_or_list_words(parts[1], theirs)}')
            return
        holders = [alias for alias, columns in self.scope.tables if columns.has(first)]
        if not holders:
            if self.scope.is_complete and not isinstance(node.parent, exp.Kwarg | exp.PropertyEQ):
                names = self.scope.names()
                if len(parts) > 1 and not suggest_word(parts[0], names):
                    spelled = ".".join(parts[:2])
                    aliases = [alias for alias, _ in self.scope.tables if alias]
                    self._report(
                        f'"{spelled}": there is no table and no column "{parts[0]}"{suggest_or_list_words(parts[0], aliases)}'
                    )
                    return
                self._report(f'column "{parts[0]}" does not exist{suggest_or_list_words(parts[0], names)}')
        elif (
            len(holders) > 1
            and self.scope.is_complete
            and first not in self.scope.merged
            and not self.scope.natural
            and all(holders)
        ):
            places = " or ".join(f"{alias}.{parts[0]}" for alias in holders)
            self._report(f'column "{parts[0]}" is ambiguous: it may be {places}; use one of them')

    def _star(self, node: exp.Column) -> None:
        owner = node.parts[0].name
        if not self.scope.is_complete or len(node.parts) > 2:
            return
        if any(alias == owner.casefold() or columns.has(owner) for alias, columns in self.scope.tables):
            return
        self._report(
            f'"{owner}.*": there is no table "{owner}"{suggest_or_list_words(owner, [alias for alias, _ in self.scope.tables if alias])}'
        )

    def _report(self, line: str) -> None:
        if line not in self.problems:
            self.problems.append(line)


def _variables(node: exp.Expr) -> Iterator[str]:
    """Yield the case-folded names of the variables of all lambdas that enclose a node."""
    from sqlglot import exp

    parent = node.parent
    while parent is not None:
        if isinstance(parent, exp.Lambda):
            yield from (variable.name.casefold() for variable in parent.expressions)
        parent = parent.parent


# -- parser --------------------------------------------------------------------------------------------------------------


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
        hint = f', perhaps because "{meant[0]}" should be "{meant[1]}"' if meant is not None else ""
        raise UnsupportedSyntax(f"this check cannot parse the SQL{location}{hint}") from None
    except Exception:  # errors of the parser itself
        raise UnsupportedSyntax("this check cannot parse the SQL") from None
    return tree


def _words(sql: str) -> list[lexer.Token]:
    """Return the tokens of a query without a final `;`. Raises the same errors as `parse_query`."""
    try:
        words = lexer.tokenize(sql)
    except lexer.SqlLexError as error:
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
            raise SqlSyntaxError(f"has {count} statements, expected one SELECT")
    if depth:
        raise SqlSyntaxError('has an unclosed "("; close it')
    for before, word, behind in zip(words, words[1:], [*words[2:], None], strict=False):
        ends = behind is None or behind.text.upper() in (",", ")", "FROM")
        if word.is_word(*_BEGINS) and ends and before.text.upper() not in ("AS", ".", ",", "(", "SELECT"):
            raise UnsupportedSyntax(f'this check cannot decide whether "{word.text}" is a name or a keyword')
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
