"""Carry `_origin` through the user's SQL, so that the origin of late rows is known.

    SELECT user, _event_ts FROM source            ─▶  SELECT user, _event_ts, _origin FROM source
    SELECT * FROM (SELECT user FROM source) AS s  ─▶  SELECT * EXCEPT (_origin), _origin
                                                      FROM (SELECT user, _origin FROM source) AS s

`sqlglot` parses the SQL to find each SELECT that reads `source`, directly, through a CTE or through a derived table.
`_origin` is inserted before the FROM of each of these SELECTs. The rest of the SQL is unchanged. Spark's analyzer
checks the result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from slackwater.operators.dead_letters import ORIGIN

if TYPE_CHECKING:
    from sqlglot import Token, exp

_MARK = "__slackwater_select_"


class OriginError(Exception):
    """Raised when `_origin` cannot be inserted into a query. The message gives the reason as a clause."""


def mentions_origin(sql: str) -> bool:
    """Return whether SQL contains the name `_origin`."""
    return re.search(rf"(?<![\w]){ORIGIN}(?![\w])", sql, re.IGNORECASE) is not None


def add_origin_column(sql: str) -> str:
    """Add `_origin` as the last column of every SELECT that reads `source`, and return the SQL.

    Raises OriginError if the column cannot be added.
    """
    import sqlglot
    from sqlglot.errors import SqlglotError

    try:
        selects = _selects(sqlglot.tokenize(sql, read="spark"))
        marked = _insert(sql, [(s.position, f", 0 AS {_MARK}{n} ") for n, s in enumerate(selects)])
        tree = sqlglot.parse_one(marked, read="spark")
    except (SqlglotError, RecursionError):
        raise OriginError("the SQL cannot be parsed") from None
    readers: dict[int, str | None] = {}
    if not _visit(tree, {"source": True}, readers):
        raise OriginError("the SELECT that reads source is not found")
    edits: list[tuple[int, str]] = []
    for number, alias in readers.items():
        edits.append((selects[number].position, f", {ORIGIN} "))
        edits += [(s.position, s.text) for s in selects[number].stars if s.owner is None or s.owner == alias]
    return _insert(sql, edits)


def _insert(sql: str, edits: list[tuple[int, str]]) -> str:
    for position, text in sorted(edits, reverse=True):
        sql = sql[:position] + text + sql[position:]
    return sql


# -- positions in the text --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Star:
    """A `*` in a SELECT list.

    Args:
        owner: The table whose columns the star selects, in lower case. None for all tables.
        position: The index in the SQL at which to insert `text`.
        text: SQL that excludes `_origin` from the star.
    """

    owner: str | None
    position: int
    text: str


@dataclass
class _Select:
    """A SELECT in the text of the SQL.

    Args:
        position: The index of its FROM in the SQL. -1 until the FROM is reached.
        stars: The stars in the SELECT list.
    """

    position: int = -1
    stars: list[_Star] = field(default_factory=list)


def _selects(tokens: list[Token]) -> list[_Select]:
    """Return the SELECTs that have a FROM, in the order of the FROMs.

    A FROM belongs to the SELECT at the same depth of parentheses. A star in the parentheses of a function, such as
    `struct(*)`, belongs to the enclosing SELECT, even if it follows the FROM.
    """
    from sqlglot import TokenType as T

    selects: list[_Select] = []
    open_: list[_Select | None] = [None]
    for i, token in enumerate(tokens):
        kind, current = token.token_type, open_[-1]
        if kind == T.L_PAREN:
            open_.append(None)
        elif kind == T.R_PAREN and len(open_) > 1:
            open_.pop()
        elif kind == T.SELECT:
            open_[-1] = _Select()
        elif kind == T.STAR and _is_all_columns(tokens, i):
            around = current or next((s for s in reversed(open_) if s is not None), None)
            if around is not None:
                around.stars.append(_star(tokens, i))
        elif current is None or current.position >= 0:
            continue
        elif kind == T.FROM and tokens[i - 1].token_type != T.DISTINCT:  # IS DISTINCT FROM
            current.position = token.start
            selects.append(current)
    return selects


def _is_all_columns(tokens: list[Token], i: int) -> bool:
    """Return whether the `*` at index `i` means all columns, rather than multiplication."""
    from sqlglot import TokenType as T

    if i + 1 == len(tokens) or i == 0:
        return False
    before, after = tokens[i - 1].token_type, tokens[i + 1].token_type
    return after in (T.COMMA, T.FROM, T.EXCEPT) or (after == T.R_PAREN and before in (T.L_PAREN, T.COMMA, T.DOT))


def _star(tokens: list[Token], i: int) -> _Star:
    from sqlglot import TokenType as T

    owner = tokens[i - 2].text.lower() if tokens[i - 1].token_type == T.DOT else None
    if [t.token_type for t in tokens[i + 1 : i + 3]] == [T.EXCEPT, T.L_PAREN]:
        return _Star(owner, tokens[i + 2].end + 1, f"{ORIGIN}, ")
    return _Star(owner, tokens[i].end + 1, f" EXCEPT ({ORIGIN})")


# -- SELECTs that read `source` ---------------------------------------------------------------------------------------


def _visit(query: exp.Expr, readable: Mapping[str, bool], readers: dict[int, str | None]) -> bool:
    """Return whether the rows of a query come from `source`, and add every SELECT that reads `source` to `readers`.

    Args:
        query: The parsed query.
        readable: For the name of each table that the query can read, whether its rows come from `source`.
        readers: Output: the name under which a SELECT reads the rows of `source`, by the number of the SELECT. None if
            the rows have no name.
    """
    from sqlglot import exp

    for cte in query.ctes if isinstance(query, exp.Query) else ():
        readable = {**readable, cte.alias.lower(): _visit(cte.this, readable, readers)}
    if isinstance(query, exp.SetOperation):
        sides = {_visit(side, readable, readers) for side in (query.left, query.right)}
        if len(sides) > 1:
            raise OriginError("a branch of its UNION does not read source")
        return sides.pop()
    if isinstance(query, exp.Subquery):
        return _visit(query.this, readable, readers)
    if not isinstance(query, exp.Select):
        raise OriginError(f"{query.key.upper()} is not supported")
    names = [name for name, reads in _tables(query, readable, readers) if reads]
    if len(names) > 1:
        raise OriginError("it joins source with itself")
    if names:
        marks = [p.alias for p in query.selects if p.alias.startswith(_MARK)]
        if not marks:
            raise OriginError("the end of a SELECT list is not found")
        readers[int(marks[0].removeprefix(_MARK))] = names[0]
    return bool(names)


def _tables(
    node: exp.Expr, readable: Mapping[str, bool], readers: dict[int, str | None]
) -> Iterator[tuple[str | None, bool]]:
    """Yield the lowercase name (or None) of each table in a FROM, and whether the table has rows of `source`."""
    from sqlglot import exp

    inside: Any = node.args.get("from_") if isinstance(node, exp.Select) else None
    if inside is not None:
        yield from _tables(inside.this, readable, readers)
    elif isinstance(node, exp.Table):
        plain = isinstance(node.this, exp.Identifier) and not node.db
        yield node.alias_or_name.lower(), plain and readable.get(node.name.lower(), False)
    elif isinstance(node, exp.Subquery):
        alias = node.alias.lower() or None
        if isinstance(node.this, exp.Table):  # a join in parentheses
            yield from ((alias or name, reads) for name, reads in _tables(node.this, readable, readers))
        else:
            yield alias, _visit(node.this, readable, readers)
    for join in node.args.get("joins") or ():
        yield from _tables(join.this, readable, readers)
