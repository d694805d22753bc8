"""What a SQL text does with the columns it is given, without Spark: names that are not there, rows looked beyond, what comes out.

Whatever is not understood for certain is not judged: an unknown table, type or construct makes columns unknown, never wrong.
`Spark` resolves names as this does: without regard to case, lateral aliases included; what comes out keeps its spelling.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from slackwater.config import ddl
from slackwater.config.bounds import AGGREGATE, WINDOW
from slackwater.config.spelling import near, nearest, show
from slackwater.config.sql_words import (
    AGGREGATES,
    CHANGING,
    FUNCTIONS,
    GENERATORS,
    KEYWORDS,
    PLAIN,
    WITHOUT_PARENTHESES,
)

if TYPE_CHECKING:
    from sqlglot import exp


@dataclass(frozen=True)
class Columns:
    """Columns by name, with their types as Spark prints them (None: unknown). `closed`: there are no others.

    `bounds`: those, case-folded, by which rows may be put together (see `config.bounds`), as far as they are followed here.
    """

    types: Mapping[str, str | None] = field(default_factory=dict)
    closed: bool = False
    bounds: frozenset[str] = frozenset()

    def has(self, name: str) -> bool:
        return name.casefold() in (known.casefold() for known in self.types)

    def type_of(self, name: str) -> str | None:
        return next((t for known, t in self.types.items() if known.casefold() == name.casefold()), None)


UNKNOWN = Columns()


class SyntaxFault(Exception):  # noqa: N818 — a finding, which is collected
    """A text that Spark cannot read; as the end of a line."""


class NotUnderstood(Exception):  # noqa: N818
    """A text that cannot be read here, though Spark may."""


@dataclass
class Findings:
    """What was found in one text: mistakes, what looks beyond the row, and what could not be judged."""

    problems: list[str] = field(default_factory=list)
    beyond: set[str] = field(default_factory=set)
    unsure: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)  # names of tables that may be in a catalog


def query(sql: str, tables: Mapping[str, Columns], found: Findings, rows: Sequence[str] = ()) -> Columns:
    """The columns that come out of a query over these tables. `rows`: names that people give `source` by mistake."""
    try:
        tree = _parsed(sql)
    except SyntaxFault as fault:
        found.problems.append(str(fault))
        return UNKNOWN
    except NotUnderstood as why:
        found.unsure.append(str(why))
        return UNKNOWN
    known = {name.casefold(): _Table(columns, set()) for name, columns in tables.items()}
    try:
        groups = any(columns.bounds for columns in tables.values())
        return _Reader(found, tuple(tables), tuple(rows), groups).visit(tree, known, found.beyond)
    except RecursionError:
        found.unsure.append(_DEEP)
        return UNKNOWN


def expression(text: str, columns: Columns, found: Findings) -> str | None:
    """The type of an expression over one row's columns, None where it is unknown."""
    from sqlglot import exp

    try:
        tree = _parsed(f"SELECT {text}")
    except SyntaxFault as fault:
        found.problems.append(str(fault))
        return None
    except NotUnderstood as why:
        found.unsure.append(str(why))
        return None
    if not isinstance(tree, exp.Select) or len(tree.expressions) != 1 or set(_given(tree)) - {"expressions"}:
        found.problems.append("is no single expression")
        return None
    (one,) = tree.expressions
    if isinstance(one, exp.Alias | exp.Aliases):
        found.problems.append("is no expression")
        return None
    scope = _Scope([("", columns)])
    reader = _Reader(found, (), ())
    try:
        reader.judge(one, scope, found.beyond)
        return reader.type_of(one, scope)
    except RecursionError:
        found.unsure.append(_DEEP)
        return None


# -- the text --------------------------------------------------------------------------------------------------------


def _parsed(sql: str) -> exp.Expr:
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
        raise NotUnderstood(_DEEP) from None
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


MOST_WORDS = 20_000  # words, signs and values: more would take seconds to read
_DEEP = "it is nested too deeply to be read here"
_STARTS = ("SELECT", "WITH", "FROM", "VALUES", "TABLE", "MAP", "REDUCE", "SHOW", "DESCRIBE", "DESC", "EXPLAIN")
_NO_QUERY = 'begins with "{}", expected SELECT … FROM source'


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


# -- the tree --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Table:
    """What may be read by a name: its columns, and what of it looks beyond the row."""

    columns: Columns
    beyond: set[str]


@dataclass
class _Scope:
    """The tables of one SELECT by alias, and the aliases of its list that further items may use."""

    tables: list[tuple[str, Columns]]
    aliases: dict[str, str | None] = field(default_factory=dict)
    merged: set[str] = field(default_factory=set)  # columns of USING: both tables have them
    natural: bool = False
    grouped: bool = False  # rows are put together by a bound: an aggregate is at home here

    @property
    def closed(self) -> bool:
        return all(columns.closed for _, columns in self.tables)

    def names(self) -> list[str]:
        return list(dict.fromkeys(name for _, columns in self.tables for name in columns.types))


def _given(node: exp.Expr) -> dict[str, Any]:
    return {key: value for key, value in node.args.items() if value not in (None, False, [])}


@dataclass
class _Reader:
    found: Findings
    tables: tuple[str, ...]
    rows: tuple[str, ...]
    groups: bool = False  # some of the rows may be put together by a bound

    def visit(self, node: exp.Expr, known: Mapping[str, _Table], beyond: set[str]) -> Columns:
        """The columns of a query; notes what is wrong in it."""
        from sqlglot import exp

        with_: Any = node.args.get("with_")
        if with_ is not None and with_.args.get("recursive"):
            return self._unsure("a recursive WITH")
        for cte in with_.expressions if with_ is not None else ():
            own: set[str] = set()
            columns = _renamed(self.visit(cte.this, known, own), cte.alias_column_names)
            known = {**known, cte.alias.casefold(): _Table(columns, own)}
        for key, what in (("order", "ORDER BY"), ("sort", "ORDER BY"), ("limit", "LIMIT"), ("offset", "OFFSET")):
            if node.args.get(key):
                beyond.add(what)
        if isinstance(node, exp.Subquery):
            inner = self.visit(node.this, known, beyond) if not isinstance(node.this, exp.Table) else UNKNOWN
            return UNKNOWN if node.args.get("pivots") else inner
        if isinstance(node, exp.SetOperation):
            return self._set(node, known, beyond)
        if isinstance(node, exp.Select):
            return self._select(node, known, beyond)
        return self._unsure(f"{node.key.upper()}")

    def _unsure(self, what: str) -> Columns:
        self.found.unsure.append(f"{what} is not understood here")
        return UNKNOWN

    def _set(self, node: exp.SetOperation, known: Mapping[str, _Table], beyond: set[str]) -> Columns:
        from sqlglot import exp

        left, right = self.visit(node.left, known, beyond), self.visit(node.right, known, beyond)
        if isinstance(node, exp.Union):
            if node.args.get("distinct"):
                beyond.add("DISTINCT")
        else:
            beyond.add(node.key.upper())
        if node.args.get("by_name") or not (left.closed and right.closed) or len(left.types) != len(right.types):
            return Columns(dict.fromkeys(left.types), left.closed and not node.args.get("by_name"), left.bounds)
        pairs = zip(left.types.items(), right.types.values(), strict=True)
        return Columns({name: a if a == b else None for (name, a), b in pairs}, True, left.bounds)

    def _select(self, node: exp.Select, known: Mapping[str, _Table], beyond: set[str]) -> Columns:
        from sqlglot import exp

        if node.args.get("distinct"):
            beyond.add("DISTINCT")
        source = node.args.get("from_")
        scope = _Scope([])
        if source is not None:
            self._table(source.this, known, scope, beyond)
        for join in node.args.get("joins") or ():
            self._join(join, known, scope, beyond)
        for lateral in node.args.get("laterals") or ():
            self._items(lateral.this, scope, beyond)
            scope.tables.append((lateral.alias.casefold(), _made(lateral.alias_column_names)))
        if node.args.get("where") is not None:
            self.judge(node.args["where"].this, scope, beyond)
        group: Any = node.args.get("group")
        scope.grouped = group is not None and self._is_by(group.expressions, _aliases(node), scope)
        if (group is not None or node.args.get("having")) and not scope.grouped:
            beyond.add(AGGREGATE)
        if node.args.get("windows") or node.args.get("qualify") or node.args.get("match"):
            return self._unsure("WINDOW or QUALIFY")
        types: dict[str, str | None] = {}
        closed = True
        for item in node.expressions:
            plain = item.this if isinstance(item, exp.Alias | exp.Aliases) else item
            self.judge(plain, scope, beyond)
            made, complete = self._comes_out(item, scope)
            types |= made
            closed = closed and complete
            if isinstance(item, exp.Alias):
                scope.aliases[item.alias.casefold()] = self.type_of(plain, scope)
        return Columns(types, closed, self._bounds(node, scope))

    def _is_by(self, expressions: Sequence[exp.Expr], aliases: Mapping[str, exp.Expr], scope: _Scope) -> bool:
        """Whether rows are put together by a bound, or may be: a start judges what is not followed here."""
        from sqlglot import exp

        if not self.groups:
            return False
        if not expressions or not scope.closed:  # GROUP BY ALL, and the like
            return True
        named = [aliases[e.name.casefold()] for e in expressions if e.name.casefold() in aliases]
        return any(isinstance(e, exp.Literal) or self._is_bound(e, scope) for e in (*expressions, *named))

    def _is_bound(self, node: exp.Expr, scope: _Scope) -> bool:
        from sqlglot import exp

        return isinstance(node, exp.Column) and any(
            node.parts[-1].name.casefold() in columns.bounds for _, columns in scope.tables
        )

    def _bounds(self, node: exp.Select, scope: _Scope) -> frozenset[str]:
        """Under which names bounds come out of a SELECT."""
        from sqlglot import exp

        found: set[str] = set()
        for item in node.expressions:
            if isinstance(item, exp.Star) or (isinstance(item, exp.Column) and isinstance(item.this, exp.Star)):
                found |= {name for _, columns in scope.tables for name in columns.bounds}
            elif self._is_bound(item.this if isinstance(item, exp.Alias) else item, scope):
                found.add(item.alias_or_name.casefold())
        return frozenset(found)

    # -- FROM ----------------------------------------------------------------------------------------------------

    def _table(self, node: exp.Expr, known: Mapping[str, _Table], scope: _Scope, beyond: set[str]) -> None:
        from sqlglot import exp

        columns, alias = UNKNOWN, ""
        if isinstance(node, exp.Lateral) and not node.args.get("view"):
            beyond.add("a lateral subquery")
        if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier):
            alias = node.alias_or_name
            columns = self._named(node, known, beyond)
        elif isinstance(node, exp.Subquery) and not isinstance(node.this, exp.Table):
            alias = node.alias
            columns = self.visit(node, known, beyond)
        elif isinstance(node, exp.Values | exp.Lateral | exp.Unnest | exp.Table):
            alias = node.alias
            columns = _made(node.alias_column_names)
        else:
            alias = getattr(node, "alias", "")
        if node.args.get("sample"):
            beyond.add("TABLESAMPLE")
        if node.args.get("pivots"):
            columns = UNKNOWN
            if not all(pivot.args.get("unpivot") for pivot in node.args["pivots"]):
                beyond.add("PIVOT")
        if isinstance(node, exp.Table | exp.Subquery):
            columns = _renamed(columns, node.alias_column_names)
        scope.tables.append((alias.casefold(), columns))
        for join in node.args.get("joins") or ():
            self._join(join, known, scope, beyond)

    def _named(self, node: exp.Table, known: Mapping[str, _Table], beyond: set[str]) -> Columns:
        name = node.name
        if node.db or node.catalog:
            self.found.unsure.append(
                f'table "{node.catalog + "." if node.catalog else ""}{node.db}.{name}" is of a catalog'
            )
            return UNKNOWN
        table = known.get(name.casefold())
        if table is not None:
            beyond |= table.beyond
            return table.columns
        if name.casefold() in (row.casefold() for row in self.rows):
            self.found.problems.append(
                f'reads "{name}", which is the name of a source; in the SQL its rows are called source'
            )
        else:
            names = self.tables
            hint = near(name, names)
            if hint:
                self.found.problems.append(f'reads "{name}", which is not there{hint}')
            else:
                self.found.assumed.append(name)
        return UNKNOWN

    def _join(self, join: exp.Join, known: Mapping[str, _Table], scope: _Scope, beyond: set[str]) -> None:
        side, kind = join.side.upper(), join.kind.upper()
        if side in ("RIGHT", "FULL") and kind not in ("SEMI", "ANTI"):
            beyond.add(f"{side} OUTER JOIN (write source LEFT JOIN lookup)")
        before = len(scope.tables)
        self._table(join.this, known, scope, beyond)
        if join.method.upper() == "NATURAL":
            scope.natural = True
        for name in join.args.get("using") or ():
            scope.merged.add(name.name.casefold())
        if join.args.get("on"):
            self.judge(join.args["on"], scope, beyond)
        if kind in ("SEMI", "ANTI"):  # only its condition sees the other table
            del scope.tables[before:]

    # -- expressions ---------------------------------------------------------------------------------------------

    def judge(self, node: exp.Expr, scope: _Scope, beyond: set[str]) -> None:
        """Note names that are not there, and functions that look beyond the row."""
        from sqlglot import exp

        if isinstance(node, exp.Subquery | exp.Select | exp.SetOperation):
            beyond.add("a subquery")
            return
        if isinstance(node, exp.Exists) and isinstance(node.this, exp.Query):
            beyond.add("a subquery (EXISTS)")
            return
        if isinstance(node, exp.In) and node.args.get("query"):
            beyond.add("a subquery (IN)")
            self.judge(node.this, scope, beyond)
            return
        if isinstance(node, exp.Window):
            if not self._is_by(node.args.get("partition_by") or (exp.null(),), {}, scope):
                beyond.add(WINDOW)
                return
            self._items(node, replace(scope, grouped=True), beyond)
            return
        if isinstance(node, exp.Column):
            self._column(node, scope)
            return
        self._function(node, scope, beyond)
        self._items(node, scope, beyond)

    def _items(self, node: exp.Expr, scope: _Scope, beyond: set[str]) -> None:
        for child in node.iter_expressions():
            self.judge(child, scope, beyond)

    def _function(self, node: exp.Expr, scope: _Scope, beyond: set[str]) -> None:
        from sqlglot import exp

        name = type(node).__name__
        if isinstance(node, exp.Anonymous) and isinstance(node.this, str) and not isinstance(node.parent, exp.Dot):
            name = node.this.lower()
            if name not in FUNCTIONS:
                self.found.problems.append(f'function "{node.this}" is not there{near(name, FUNCTIONS)}')
        if name in AGGREGATES and not scope.grouped:
            beyond.add(AGGREGATE)
        if name in CHANGING:
            spelled = CHANGING[name]
            bare = spelled.removesuffix("()")
            if bare in WITHOUT_PARENTHESES and (not scope.closed or bare in map(str.casefold, scope.names())):
                return  # may be a column
            beyond.add(spelled)

    def _column(self, node: exp.Column, scope: _Scope) -> None:
        """Report a column that none of the tables has, or that several have."""
        from sqlglot import exp

        parts = [part.name for part in node.parts]
        if isinstance(node.this, exp.Star):
            self._star(node, scope)
            return
        first = parts[0].casefold()
        if first in scope.aliases or first in WITHOUT_PARENTHESES or first in _variables(node):
            return
        tables = [columns for alias, columns in scope.tables if alias == first and alias]
        if len(parts) > 1 and tables:
            if any(not columns.closed or columns.has(parts[1]) for columns in tables):
                return
            if any(columns.has(first) for _, columns in scope.tables) or not scope.closed:
                return
            theirs = dict.fromkeys(name for columns in tables for name in columns.types)
            self._report(f'column "{parts[0]}.{parts[1]}" is not there{nearest(parts[1], theirs)}')
            return
        holders = [alias for alias, columns in scope.tables if columns.has(first)]
        if not holders:
            if scope.closed and not isinstance(node.parent, exp.Kwarg | exp.PropertyEQ):
                names = scope.names()
                if len(parts) > 1 and not near(parts[0], names):
                    spelled = ".".join(parts[:2])
                    aliases = [alias for alias, _ in scope.tables if alias]
                    self._report(
                        f'"{spelled}": there is no table and no column "{parts[0]}"{nearest(parts[0], aliases)}'
                    )
                    return
                self._report(f'column "{parts[0]}" is not there{nearest(parts[0], names)}')
        elif len(holders) > 1 and scope.closed and first not in scope.merged and not scope.natural and all(holders):
            places = " and ".join(f"{alias}.{parts[0]}" for alias in holders)
            self._report(f'column "{parts[0]}" is ambiguous: it may be {places}; write one of them')

    def _star(self, node: exp.Column, scope: _Scope) -> None:
        owner = node.parts[0].name
        if not scope.closed or len(node.parts) > 2:
            return
        if any(alias == owner.casefold() or columns.has(owner) for alias, columns in scope.tables):
            return
        self._report(
            f'"{owner}.*": there is no table "{owner}"{nearest(owner, [alias for alias, _ in scope.tables if alias])}'
        )

    def _report(self, line: str) -> None:
        if line not in self.found.problems:
            self.found.problems.append(line)

    # -- what comes out ------------------------------------------------------------------------------------------

    def type_of(self, node: exp.Expr, scope: _Scope) -> str | None:
        """The type of an expression where it is plain to see."""
        from sqlglot import exp

        if isinstance(node, exp.Paren):
            return self.type_of(node.this, scope)
        if isinstance(node, exp.Cast | exp.TryCast):
            return ddl.type_of(node.args["to"].sql(dialect="spark"))
        if isinstance(node, exp.Literal):
            return "string" if node.is_string else None
        if isinstance(node, exp.Boolean):
            return "boolean"
        if isinstance(node, exp.Column) and not isinstance(node.this, exp.Star):
            parts = [part.name for part in node.parts]
            if len(parts) == 1:
                holders = [columns for _, columns in scope.tables if columns.has(parts[0])]
                if not holders:
                    return scope.aliases.get(parts[0].casefold()) if scope.closed else None
                return holders[0].type_of(parts[0]) if scope.closed or len(scope.tables) == 1 else None
            if len(parts) == 2 and not any(columns.has(parts[0]) for _, columns in scope.tables):
                found = [columns for alias, columns in scope.tables if alias == parts[0].casefold()]
                return found[0].type_of(parts[1]) if len(found) == 1 else None
        return None

    def _comes_out(self, item: exp.Expr, scope: _Scope) -> tuple[dict[str, str | None], bool]:
        """The columns that one item of a SELECT list becomes, and whether these are all."""
        from sqlglot import exp

        if isinstance(item, exp.Star):
            return _without(scope.tables, item), scope.closed
        if isinstance(item, exp.Column) and isinstance(item.this, exp.Star):
            owner = item.parts[0].name.casefold()
            owners = [(alias, columns) for alias, columns in scope.tables if alias == owner]
            if len(item.parts) > 2 or len(owners) != 1:
                return {}, False
            return _without(owners, item.this), owners[0][1].closed
        if isinstance(item, exp.Alias):
            return {item.alias: self.type_of(item.this, scope)}, True
        if isinstance(item, exp.Aliases):
            return {part.name: None for part in item.expressions}, True
        if isinstance(item, exp.Column):
            return {item.parts[-1].name: self.type_of(item, scope)}, True
        if isinstance(item, exp.Cast | exp.TryCast):  # is called as the column that it casts
            inner, _ = self._comes_out(item.this, scope) if isinstance(item.this, exp.Column) else ({}, True)
            return dict.fromkeys(inner, self.type_of(item, scope)), False
        name = (
            item.this.lower() if isinstance(item, exp.Anonymous) and isinstance(item.this, str) else type(item).__name__
        )
        own_name = isinstance(item, exp.Dot) or name in GENERATORS
        return {}, not own_name  # else it is called as it is written, with its parentheses or operators


def _aliases(node: exp.Select) -> dict[str, exp.Expr]:
    """What the names of a SELECT's items stand for, where GROUP BY may use them."""
    from sqlglot import exp

    return {item.alias.casefold(): item.this for item in node.expressions if isinstance(item, exp.Alias)}


def _made(names: Sequence[str]) -> Columns:
    """The columns that a table function makes, where they are named."""
    return Columns(dict.fromkeys(names), bool(names))


def _renamed(columns: Columns, names: Sequence[str]) -> Columns:
    if not names:
        return columns
    if len(names) != len(columns.types) or not columns.closed:
        return Columns(
            dict.fromkeys(names), True, frozenset(map(str.casefold, names)) if columns.bounds else frozenset()
        )
    bounds = {new.casefold() for new, old in zip(names, columns.types, strict=True) if old.casefold() in columns.bounds}
    return Columns(dict(zip(names, columns.types.values(), strict=True)), columns.closed, frozenset(bounds))


def _without(tables: Sequence[tuple[str, Columns]], star: exp.Expr) -> dict[str, str | None]:
    """What a `*` stands for."""
    except_ = {e.name.casefold() for e in star.args.get("except_") or ()}
    return {n: t for _, columns in tables for n, t in columns.types.items() if n.casefold() not in except_}


def _variables(node: exp.Expr) -> Iterator[str]:
    """The variables of the lambdas around a node."""
    from sqlglot import exp

    parent = node.parent
    while parent is not None:
        if isinstance(parent, exp.Lambda):
            yield from (variable.name.casefold() for variable in parent.expressions)
        parent = parent.parent
