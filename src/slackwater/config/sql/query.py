"""Resolves SQL against its input columns, without Spark: missing names, non-row-wise constructs, output columns.

A problem is only reported if it is certain. A column that depends on an unknown table, type or construct counts as
unknown, not as wrong. Names are resolved as in Spark: case is ignored, and lateral aliases are supported. Output
columns keep their spelling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slackwater.config.groupable_columns import AGGREGATE
from slackwater.config.message_format import suggest_word
from slackwater.config.sql import group_by, lexer, row_wise_query_check
from slackwater.config.sql.parser import DEEP, SqlSyntaxError, UnsupportedSyntax, parse_query
from slackwater.config.sql.resolver import NameResolver
from slackwater.config.sql.select_output import infer_expression_type, output_columns_of_item
from slackwater.config.sql.select_scope import (
    UNKNOWN,
    ColumnTypes,
    SelectScope,
    SqlFindings,
    rename_columns,
    table_function_columns,
)

if TYPE_CHECKING:
    from sqlglot import exp


def resolve_query(
    sql: str, tables: Mapping[str, ColumnTypes], findings: SqlFindings, rows: Sequence[str] = ()
) -> ColumnTypes:
    """Return the output columns of a query over these tables, and add to `findings`.

    `rows`: names that users mistakenly write instead of `source`.
    """
    try:
        tree = parse_query(sql)
    except SqlSyntaxError as fault:
        findings.problems.append(str(fault))
        return UNKNOWN
    except UnsupportedSyntax as why:
        findings.undecided.append(str(why))
        return UNKNOWN
    readable = {name.casefold(): _Table(columns, set()) for name, columns in tables.items()}
    try:
        if "source" in readable:
            findings.non_row_wise |= row_wise_query_check.find_row_wise_problems(tree) | set(
                lexer.find_clock_literals(sql)
            )
        groups = any(columns.groupable for columns in tables.values())
        return _QueryResolver(findings, tuple(tables), tuple(rows), groups).visit(tree, readable, findings.non_row_wise)
    except RecursionError:
        findings.undecided.append(DEEP)
        return UNKNOWN


def resolve_expression(text: str, columns: ColumnTypes, findings: SqlFindings) -> str | None:
    """Return the type of an expression over one row's columns (None if unknown), and add to `findings`."""
    from sqlglot import exp

    try:
        tree = parse_query(f"SELECT {text}")
    except SqlSyntaxError as fault:
        findings.problems.append(str(fault))
        return None
    except UnsupportedSyntax as why:
        findings.undecided.append(str(why))
        return None
    if not isinstance(tree, exp.Select) or len(tree.expressions) != 1 or set(_set_arguments(tree)) - {"expressions"}:
        findings.problems.append("is not a single expression")
        return None
    (one,) = tree.expressions
    if isinstance(one, exp.Alias | exp.Aliases):
        findings.problems.append("is not an expression")
        return None
    scope = SelectScope([("", columns)])
    try:
        NameResolver(scope, findings.problems, findings.non_row_wise).check(one)
        return infer_expression_type(one, scope)
    except RecursionError:
        findings.undecided.append(DEEP)
        return None


@dataclass(frozen=True)
class _Table:
    """A table in a query: its columns, and the non-row-wise constructs in its definition."""

    columns: ColumnTypes
    non_row_wise: set[str]


def _set_arguments(node: exp.Expr) -> dict[str, Any]:
    """Return the arguments of a node that are set."""
    return {key: value for key, value in node.args.items() if value not in (None, False, [])}


def _is_all(node: Any) -> bool:
    """Return whether a limit is LIMIT ALL, which does not limit anything."""
    from sqlglot import exp

    limit = node.args.get("expression") if isinstance(node, exp.Limit) else None
    return limit is not None and limit.name.upper() == "ALL"


@dataclass
class _QueryResolver:
    """Walks a query from its tables to its SELECT list.

    `tables`: the known tables. `rows`: names that users mistakenly write instead of `source`.
    """

    findings: SqlFindings
    tables: tuple[str, ...]
    rows: tuple[str, ...]
    may_group: bool = False  # some of the rows may be grouped by a window bound

    def visit(self, node: exp.Expr, readable: Mapping[str, _Table], beyond: set[str]) -> ColumnTypes:
        """Return the output columns of a query, and add its problems to the findings."""
        from sqlglot import exp

        with_: Any = node.args.get("with_")
        if with_ is not None and with_.args.get("recursive"):
            return self._undecided("a recursive WITH")
        for cte in with_.expressions if with_ is not None else ():
            cte_beyond: set[str] = set()
            columns = rename_columns(self.visit(cte.this, readable, cte_beyond), cte.alias_column_names)
            readable = {**readable, cte.alias.casefold(): _Table(columns, cte_beyond)}
        for key, clause in (
            ("order", "ORDER BY"),
            ("sort", "ORDER BY"),
            ("cluster", "ORDER BY"),
            ("limit", "LIMIT"),
            ("offset", "OFFSET"),
        ):
            if node.args.get(key) and not _is_all(node.args[key]):
                beyond.add(clause)
        if isinstance(node, exp.Subquery):
            inner = self.visit(node.this, readable, beyond) if not isinstance(node.this, exp.Table) else UNKNOWN
            return UNKNOWN if node.args.get("pivots") else inner
        if isinstance(node, exp.SetOperation):
            return self._set_operation(node, readable, beyond)
        if isinstance(node, exp.Select):
            return self._select(node, readable, beyond)
        return self._undecided(f"{node.key.upper()}")

    def _undecided(self, construct: str) -> ColumnTypes:
        self.findings.undecided.append(f"this check does not support {construct}")
        return UNKNOWN

    def _set_operation(self, node: exp.SetOperation, readable: Mapping[str, _Table], beyond: set[str]) -> ColumnTypes:
        from sqlglot import exp

        left_columns, right_columns = self.visit(node.left, readable, beyond), self.visit(node.right, readable, beyond)
        if isinstance(node, exp.Union):
            if node.args.get("distinct"):
                beyond.add("DISTINCT")
        else:
            beyond.add(node.key.upper())
        if (
            node.args.get("by_name")
            or not (left_columns.is_complete and right_columns.is_complete)
            or len(left_columns.types) != len(right_columns.types)
        ):
            return ColumnTypes(
                dict.fromkeys(left_columns.types),
                left_columns.is_complete and not node.args.get("by_name"),
                left_columns.groupable,
            )
        pairs = zip(left_columns.types.items(), right_columns.types.values(), strict=True)
        return ColumnTypes({name: a if a == b else None for (name, a), b in pairs}, True, left_columns.groupable)

    def _select(self, node: exp.Select, readable: Mapping[str, _Table], beyond: set[str]) -> ColumnTypes:
        from sqlglot import exp

        if node.args.get("distinct"):
            beyond.add("DISTINCT")
        source = node.args.get("from_")
        scope = SelectScope([], may_group=self.may_group)
        judge = NameResolver(scope, self.findings.problems, beyond)
        if source is not None:
            self._table(source.this, readable, scope, beyond)
        for join in node.args.get("joins") or ():
            self._join(join, readable, scope, beyond)
        for lateral in node.args.get("laterals") or ():
            judge.check_children(lateral.this)
            scope.tables.append((lateral.alias.casefold(), table_function_columns(lateral.alias_column_names)))
        if node.args.get("where") is not None:
            judge.check(node.args["where"].this)
        group: Any = node.args.get("group")
        scope.is_grouped = group is not None and group_by.groups_by_window_bound(
            group.expressions, group_by.select_item_aliases(node), scope
        )
        if (group is not None or node.args.get("having")) and not scope.is_grouped:
            beyond.add(AGGREGATE)
        if node.args.get("windows") or node.args.get("qualify") or node.args.get("match"):
            return self._undecided("WINDOW or QUALIFY")
        types: dict[str, str | None] = {}
        closed = True
        if any(isinstance(item, exp.QueryTransform) for item in node.expressions):
            beyond.add("TRANSFORM … USING")
            return UNKNOWN
        for item in node.expressions:
            plain = item.this if isinstance(item, exp.Alias | exp.Aliases) else item
            judge.check(plain)
            more, complete = output_columns_of_item(item, scope)
            types |= more
            closed = closed and complete
            if isinstance(item, exp.Alias):
                scope.aliases[item.alias.casefold()] = infer_expression_type(plain, scope)
        return ColumnTypes(types, closed, group_by.window_bound_names(node, scope))

    # -- FROM ----------------------------------------------------------------------------------------------------

    def _table(self, node: exp.Expr, readable: Mapping[str, _Table], scope: SelectScope, beyond: set[str]) -> None:
        from sqlglot import exp

        columns, alias = UNKNOWN, ""
        if isinstance(node, exp.Lateral) and not node.args.get("view"):
            beyond.add("a lateral subquery")
        if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier):
            alias = node.alias_or_name
            columns = self._named_table(node, readable, beyond)
        elif isinstance(node, exp.Subquery) and not isinstance(node.this, exp.Table):
            alias = node.alias
            columns = self.visit(node, readable, beyond)
        elif isinstance(node, exp.Values | exp.Lateral | exp.Unnest | exp.Table):
            alias = node.alias
            columns = table_function_columns(node.alias_column_names)
        else:
            alias = getattr(node, "alias", "")
        if node.args.get("sample"):
            beyond.add("TABLESAMPLE")
        if node.args.get("pivots"):
            columns = UNKNOWN
            if not all(pivot.args.get("unpivot") for pivot in node.args["pivots"]):
                beyond.add("PIVOT")
        if isinstance(node, exp.Table | exp.Subquery):
            columns = rename_columns(columns, node.alias_column_names)
        scope.tables.append((alias.casefold(), columns))
        for join in node.args.get("joins") or ():
            self._join(join, readable, scope, beyond)

    def _named_table(self, node: exp.Table, readable: Mapping[str, _Table], beyond: set[str]) -> ColumnTypes:
        name = node.name
        if node.db or node.catalog:
            self.findings.undecided.append(
                f'table "{node.catalog + "." if node.catalog else ""}{node.db}.{name}" is in a catalog'
            )
            return UNKNOWN
        table = readable.get(name.casefold())
        if table is not None:
            beyond |= table.non_row_wise
            return table.columns
        if name.casefold() in (row.casefold() for row in self.rows):
            self.findings.problems.append(
                f'reads "{name}", which is the name of a source; in the SQL its rows are called source'
            )
        else:
            names = self.tables
            hint = suggest_word(name, names)
            if hint:
                self.findings.problems.append(f'reads "{name}", which does not exist{hint}')
            else:
                self.findings.catalog_tables.append(name)
        return UNKNOWN

    def _join(self, join: exp.Join, readable: Mapping[str, _Table], scope: SelectScope, beyond: set[str]) -> None:
        side, kind = join.side.upper(), join.kind.upper()
        if side in ("RIGHT", "FULL") and kind not in ("SEMI", "ANTI"):
            beyond.add(f"{side} OUTER JOIN (write source LEFT JOIN lookup)")
        before = len(scope.tables)
        self._table(join.this, readable, scope, beyond)
        if join.method.upper() == "NATURAL":
            scope.natural = True
        for name in join.args.get("using") or ():
            scope.merged.add(name.name.casefold())
        if join.args.get("on"):
            NameResolver(scope, self.findings.problems, beyond).check(join.args["on"])
        if kind in ("SEMI", "ANTI"):  # only the condition of the join can see the other table
            del scope.tables[before:]
