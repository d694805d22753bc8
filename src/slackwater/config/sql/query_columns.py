"""Resolves a SQL query against its input columns, without Spark. Finds unknown names and non-row-wise constructs.

A problem is reported only if it is certain. A column that depends on an unknown table, type or construct is itself
unknown, and not reported. Names are resolved as in Spark: case is ignored, and lateral aliases are supported. Output
columns keep their spelling.

sqlglot parses the SQL, but its `qualify` is not used. It stops at the first unknown name, resolves an alias in WHERE
(Spark does not), rejects `col` of explode() and columns of unknown tables, and converts output columns to lower case.
Its `Scope` does not say which rows come from `source`, or which part of a query is not row-wise (see ADR 46).

The result of a query must consist of rows from `source`, each in the epoch that reads the row:

source                                   rows: each is emitted in the epoch that reads it
users, range(3), VALUES (1)              fixed: the same in every epoch
rows JOIN fixed                          rows
rows JOIN rows                           an error: a row could match only rows of the same epoch
fixed LEFT JOIN rows                     an error: each epoch would emit the fixed rows without a match
rows UNION ALL fixed, or fixed alone     an error: the fixed rows would be emitted in every epoch
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from slackwater.config.error_text import suggest_word
from slackwater.config.sql import lexer
from slackwater.config.sql.resolver import DEEP, NameResolver, SqlSyntaxError, UnsupportedSyntax, parse_query
from slackwater.config.sql.select_scope import (
    AGGREGATE,
    UNKNOWN,
    ColumnTypes,
    SelectScope,
    SqlFindings,
    Table,
    infer_expression_type,
    output_columns_of_item,
    rename_columns,
    table_function_columns,
    window_bound_names,
)

if TYPE_CHECKING:
    from sqlglot import exp

_ORDERING = {"order": "ORDER BY", "sort": "ORDER BY", "cluster": "ORDER BY", "offset": "OFFSET"}
SELF_JOIN = "source joined with itself (a join stage does that)"
CONSTANT = "UNION ALL with rows that are not from source"
NO_SOURCE = "no row of source (write SELECT … FROM source)"
LOOKUP_JOINS = {  # messages for a lookup to the left of source, by join type
    "LeftOuter": "a lookup LEFT JOIN source (write source LEFT JOIN lookup)",
    "LeftSemi": "a lookup LEFT SEMI JOIN source (write source LEFT SEMI JOIN lookup)",
    "LeftAnti": "a lookup LEFT ANTI JOIN source (write source LEFT ANTI JOIN lookup)",
}


def resolve_query(
    sql: str, tables: Mapping[str, ColumnTypes], findings: SqlFindings, rows: Sequence[str] = ()
) -> ColumnTypes:
    """Return the output columns of a query, and add its problems to `findings`.

    Args:
        sql: The query.
        tables: The columns of the tables that it may read, by name.
        findings: Receives the problems.
        rows: Names that users may write by mistake instead of `source`.
    """
    tree = _parse(sql, findings)
    if tree is None:
        return UNKNOWN
    readable = {
        name.casefold(): Table(replace(columns, from_source=name == "source"), set())
        for name, columns in tables.items()
    }
    groups = any(columns.groupable for columns in tables.values())
    try:
        out = _QueryResolver(findings, tuple(tables), tuple(rows), groups).visit(tree, readable, findings.non_row_wise)
    except RecursionError:
        findings.undecided.append(DEEP)
        return UNKNOWN
    if out.from_source is False:
        findings.non_row_wise.add(NO_SOURCE)
    return out


def resolve_expression(text: str, columns: ColumnTypes, findings: SqlFindings) -> str | None:
    """Return the type of an expression (None if it is unknown), and add its problems to `findings`.

    Args:
        text: The expression.
        columns: The columns of a row.
        findings: Receives the problems.
    """
    from sqlglot import exp

    tree = _parse(f"SELECT {text}", findings)
    if tree is None:
        return None
    clauses = {key for key, value in tree.args.items() if value not in (None, False, [])}
    if not isinstance(tree, exp.Select) or len(tree.expressions) != 1 or clauses != {"expressions"}:
        findings.problems.append("is not a single SQL expression")
        return None
    (one,) = tree.expressions
    if isinstance(one, exp.Alias | exp.Aliases):
        findings.problems.append("is not a SQL expression, because it has an alias; remove the alias")
        return None
    scope = SelectScope([("", columns)], findings.non_row_wise)
    try:
        NameResolver(scope, findings.problems).check(one)
        return infer_expression_type(one, scope)
    except RecursionError:
        findings.undecided.append(DEEP)
        return None


def _parse(sql: str, findings: SqlFindings) -> exp.Expr | None:
    """Return the syntax tree of a query; None if it cannot be parsed.

    The reason for None, and literals that depend on the clock (`DATE 'today'`), are added to `findings`.
    """
    findings.non_row_wise |= set(lexer.find_current_time_literals(sql))
    try:
        return parse_query(sql)
    except SqlSyntaxError as fault:
        findings.problems.append(str(fault))
    except UnsupportedSyntax as why:
        findings.undecided.append(str(why))
    return None


def _is_fixed(node: exp.Expr) -> bool:
    """Return whether a table expression has the same rows in every epoch."""
    from sqlglot import exp

    function: Any = node.this
    if isinstance(node, exp.Table) and isinstance(function, exp.Anonymous):
        return str(function.this).lower() not in ("identifier", "source")
    return isinstance(node, exp.Values | exp.Unnest) or isinstance(function, exp.GenerateSeries)


@dataclass
class _QueryResolver:
    """Resolves a query from its tables to its SELECT list.

    `tables`: the names of the tables that it may read. `rows`: names that users may write by mistake instead of
    `source`.
    """

    findings: SqlFindings
    tables: tuple[str, ...]
    rows: tuple[str, ...]
    may_group: bool = False  # some tables have groupable columns

    def visit(self, node: exp.Expr, readable: Mapping[str, Table], beyond: set[str]) -> ColumnTypes:
        """Return the output columns of a query or subquery, and add its problems to `findings`.

        Args:
            node: The syntax tree of the query.
            readable: The tables that FROM may name.
            beyond: Receives the constructs that are not row-wise.
        """
        from sqlglot import exp

        with_: Any = node.args.get("with_")
        if with_ is not None and with_.args.get("recursive"):
            return self._undecided("a recursive WITH")
        for cte in with_.expressions if with_ is not None else ():
            cte_beyond: set[str] = set()
            columns = rename_columns(self.visit(cte.this, readable, cte_beyond), cte.alias_column_names)
            readable = {**readable, cte.alias.casefold(): Table(columns, cte_beyond)}
        limit: Any = node.args.get("limit")
        limits_all = isinstance(limit, exp.Limit) and limit.expression.name.upper() == "ALL"
        beyond |= {clause for key, clause in _ORDERING.items() if node.args.get(key)}
        if limit and not limits_all:
            beyond.add("LIMIT")
        if isinstance(node, exp.Subquery):
            inner = self.visit(node.this, readable, beyond) if not isinstance(node.this, exp.Table) else UNKNOWN
            return ColumnTypes(from_source=inner.from_source) if node.args.get("pivots") else inner
        if isinstance(node, exp.SetOperation):
            return self._set_operation(node, readable, beyond)
        if isinstance(node, exp.Select):
            return self._select(node, SelectScope([], beyond, readable, may_group=self.may_group))
        return self._undecided(f"{node.key.upper()}")

    def _undecided(self, construct: str) -> ColumnTypes:
        self.findings.undecided.append(f"this check does not support {construct}")
        return UNKNOWN

    def _set_operation(self, node: exp.SetOperation, readable: Mapping[str, Table], beyond: set[str]) -> ColumnTypes:
        from sqlglot import exp

        left, right = self.visit(node.left, readable, beyond), self.visit(node.right, readable, beyond)
        reads = None
        if not isinstance(node, exp.Union):
            beyond.add(node.key.upper())
        elif left.from_source is not None and right.from_source is not None:
            reads = left.from_source or right.from_source
            if left.from_source != right.from_source:
                beyond.add(CONSTANT)
        if isinstance(node, exp.Union) and node.args.get("distinct"):
            beyond.add("DISTINCT")
        by_name = bool(node.args.get("by_name"))
        if by_name or not (left.is_complete and right.is_complete) or len(left.types) != len(right.types):
            is_complete = left.is_complete and not by_name
            return ColumnTypes(dict.fromkeys(left.types), is_complete, left.groupable, reads)
        pairs = zip(left.types.items(), right.types.values(), strict=True)
        return ColumnTypes({name: a if a == b else None for (name, a), b in pairs}, True, left.groupable, reads)

    def _select(self, node: exp.Select, scope: SelectScope) -> ColumnTypes:
        from sqlglot import exp

        if node.args.get("distinct"):
            scope.non_row_wise.add("DISTINCT")
        source: Any = node.args.get("from_")
        judge = NameResolver(scope, self.findings.problems)
        reads = self._table(source.this, scope) if source is not None else False
        reads = self._joins(node, reads, scope)
        for lateral in node.args.get("laterals") or ():
            judge.check_children(lateral.this)
            scope.tables.append((lateral.alias.casefold(), table_function_columns(lateral.alias_column_names)))
        if node.args.get("where") is not None:
            judge.check(node.args["where"].this)
        group: Any = node.args.get("group")
        scope.is_grouped = group is not None and scope.groups_by_window_bound(group.expressions, node.expressions)
        if (group is not None or node.args.get("having")) and not scope.is_grouped:
            scope.non_row_wise.add(AGGREGATE)
        if node.args.get("windows") or node.args.get("qualify") or node.args.get("match"):
            return self._undecided("WINDOW or QUALIFY")
        types: dict[str, str | None] = {}
        closed = True
        if any(isinstance(item, exp.QueryTransform) for item in node.expressions):
            scope.non_row_wise.add("TRANSFORM … USING")
            return UNKNOWN
        for item in node.expressions:
            plain = item.this if isinstance(item, exp.Alias | exp.Aliases) else item
            judge.check(plain)
            more, complete = output_columns_of_item(item, scope)
            types |= more
            closed = closed and complete
            if isinstance(item, exp.Alias):
                scope.aliases[item.alias.casefold()] = infer_expression_type(plain, scope)
        return ColumnTypes(types, closed, window_bound_names(node, scope), reads)

    # -- FROM ----------------------------------------------------------------------------------------------------

    def _table(self, node: exp.Expr, scope: SelectScope) -> bool | None:
        """Add a table, and the tables that are joined with it, to the scope.

        Return whether its rows come from `source`; None if this is unknown.
        """
        from sqlglot import exp

        columns, alias = UNKNOWN, node.alias
        if isinstance(node, exp.Lateral) and not node.args.get("view"):
            scope.non_row_wise.add("a lateral subquery")
        if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier):
            columns, alias = self._named_table(node, scope), node.alias_or_name
        elif isinstance(node, exp.Subquery) and isinstance(node.this, exp.Table):
            columns = ColumnTypes(from_source=self._table(node.this, replace(scope, tables=[])))
        elif isinstance(node, exp.Subquery):
            columns = self.visit(node, scope.readable, scope.non_row_wise)
        elif isinstance(node, exp.Values | exp.Lateral | exp.Unnest | exp.Table):
            columns = table_function_columns(node.alias_column_names, from_source=False if _is_fixed(node) else None)
        if node.args.get("sample"):
            scope.non_row_wise.add("TABLESAMPLE")
        if node.args.get("pivots"):
            columns = ColumnTypes(from_source=columns.from_source)
            if not all(pivot.args.get("unpivot") for pivot in node.args["pivots"]):
                scope.non_row_wise.add("PIVOT")
        if isinstance(node, exp.Table | exp.Subquery):
            columns = rename_columns(columns, node.alias_column_names)
        scope.tables.append((alias.casefold(), columns))
        return self._joins(node, columns.from_source, scope)

    def _named_table(self, node: exp.Table, scope: SelectScope) -> ColumnTypes:
        name = node.name
        if node.db or node.catalog:
            self.findings.undecided.append(
                f'table "{node.catalog + "." if node.catalog else ""}{node.db}.{name}" is in a catalog'
            )
        elif table := scope.readable.get(name.casefold()):
            scope.non_row_wise |= table.non_row_wise
            return table.columns
        elif name.casefold() in (row.casefold() for row in self.rows):
            self.findings.problems.append(
                f'reads "{name}", which is the name of a source; in the SQL, refer to its rows as "source"'
            )
        elif hint := suggest_word(name, self.tables):
            self.findings.problems.append(f'reads "{name}", which does not exist{hint}')
        else:
            self.findings.catalog_tables.append(name)
        return ColumnTypes(from_source=False)

    def _joins(self, node: exp.Expr, reads: bool | None, scope: SelectScope) -> bool | None:
        """Add to the scope the tables that a node joins. Return whether the joined rows come from `source`.

        `reads`: whether the rows of the node come from `source`; None if this is unknown.
        """
        for join in node.args.get("joins") or ():
            side, kind = join.side.upper(), join.kind.upper()
            is_filter = kind in ("SEMI", "ANTI")
            if side in ("RIGHT", "FULL") and not is_filter:
                scope.non_row_wise.add(f"{side} OUTER JOIN (write source LEFT JOIN lookup)")
            before = len(scope.tables)
            other = self._table(join.this, scope)
            if reads and other:
                scope.non_row_wise.add(SELF_JOIN)
            elif reads is False and other and (is_filter or side == "LEFT"):
                scope.non_row_wise.add(LOOKUP_JOINS[f"Left{kind.capitalize()}" if is_filter else "LeftOuter"])
            reads = True if reads or other else None if None in (reads, other) else False
            if join.method.upper() == "NATURAL":
                scope.natural = True
            scope.merged |= {name.name.casefold() for name in join.args.get("using") or ()}
            if join.args.get("on"):
                NameResolver(scope, self.findings.problems).check(join.args["on"])
            if is_filter:  # only the condition of the join can see the other table
                del scope.tables[before:]
        return reads
