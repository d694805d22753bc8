"""Columns by name and type, the tables of one SELECT, and the findings of a check.

If it is unclear whether a SELECT groups rows by the start or end of their window, this is checked when a run starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from slackwater.config.sql import ddl
from slackwater.config.sql.builtins import GENERATORS

if TYPE_CHECKING:
    from sqlglot import exp

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlglot import exp


@dataclass(frozen=True)
class ColumnTypes:
    """Columns by name, with their types as Spark prints them (None: unknown).

    `is_complete`: there are no other columns.

    `groupable`: the case-folded names by which rows may be grouped (see `config.groupable_columns`), as far as this
    check tracks them.

    `from_source`: whether each row comes from a row of `source` (False: the rows are fixed, None: unknown).
    """

    types: Mapping[str, str | None] = field(default_factory=dict)
    is_complete: bool = False
    groupable: frozenset[str] = frozenset()
    from_source: bool | None = None

    def has(self, name: str) -> bool:
        return name.casefold() in (column.casefold() for column in self.types)

    def groups_by(self, name: str) -> bool:
        return name.casefold() in self.groupable

    def type_of(self, name: str) -> str | None:
        return next((t for column, t in self.types.items() if column.casefold() == name.casefold()), None)


UNKNOWN = ColumnTypes()


@dataclass
class SqlFindings:
    """The findings about a step's SQL: mistakes, constructs that are not row-wise, and what could not be decided."""

    problems: list[str] = field(default_factory=list)
    non_row_wise: set[str] = field(default_factory=set)
    undecided: list[str] = field(default_factory=list)
    catalog_tables: list[str] = field(default_factory=list)  # names of tables that may come from a catalog


@dataclass(frozen=True)
class Table:
    """A table in a query: its columns, and the non-row-wise constructs in its definition."""

    columns: ColumnTypes
    non_row_wise: set[str]


@dataclass
class SelectScope:
    """The tables of one SELECT by alias, and the aliases in its list that later items may use.

    `non_row_wise`: the non-row-wise constructs of its query. `readable`: the tables that its FROM may name.
    """

    tables: list[tuple[str, ColumnTypes]]
    non_row_wise: set[str]
    readable: Mapping[str, Table] = field(default_factory=dict)
    aliases: dict[str, str | None] = field(default_factory=dict)
    merged: set[str] = field(default_factory=set)  # columns of USING, which both tables have
    natural: bool = False
    may_group: bool = False  # some of the rows may be grouped by a window bound
    is_grouped: bool = False  # they are grouped by one, so aggregates are allowed

    @property
    def is_complete(self) -> bool:
        return all(columns.is_complete for _, columns in self.tables)

    def names(self) -> list[str]:
        return list(dict.fromkeys(name for _, columns in self.tables for name in columns.types))

    def is_window_bound(self, node: exp.Expr) -> bool:
        """Return whether an expression is a column with the start or end of a window."""
        from sqlglot import exp

        return isinstance(node, exp.Column) and any(c.groups_by(node.parts[-1].name) for _, c in self.tables)

    def groups_by_window_bound(self, expressions: Sequence[exp.Expr], items: Sequence[exp.Expr]) -> bool:
        """Return whether a GROUP BY or PARTITION BY may use a window's start or end. `items`: the SELECT list."""
        from sqlglot import exp

        if not self.may_group:
            return False
        if not expressions or not self.is_complete:  # GROUP BY ALL and similar
            return True
        names = {e.name.casefold() for e in expressions}
        named = [i.this for i in items if isinstance(i, exp.Alias) and i.alias.casefold() in names]
        return any(isinstance(e, exp.Literal) or self.is_window_bound(e) for e in (*expressions, *named))


def table_function_columns(names: Sequence[str], from_source: bool | None = None) -> ColumnTypes:
    """Return the columns of a table function, if the SQL names them."""
    return ColumnTypes(dict.fromkeys(names), bool(names), from_source=from_source)


def rename_columns(columns: ColumnTypes, names: Sequence[str]) -> ColumnTypes:
    """Rename columns by an alias such as `AS t(a, b)`."""
    if not names:
        return columns
    if len(names) != len(columns.types) or not columns.is_complete:
        any_of_them = frozenset(map(str.casefold, names)) if columns.groupable else frozenset[str]()
        return ColumnTypes(dict.fromkeys(names), True, any_of_them, columns.from_source)
    pairs = list(zip(names, columns.types.items(), strict=True))
    bounds = frozenset(new.casefold() for new, (old, _) in pairs if columns.groups_by(old))
    return ColumnTypes({new: type_ for new, (_, type_) in pairs}, True, bounds, columns.from_source)


def infer_expression_type(node: exp.Expr, scope: SelectScope) -> str | None:
    """Return the type of an expression, or None if it is not obvious."""
    from sqlglot import exp

    if isinstance(node, exp.Paren):
        return infer_expression_type(node.this, scope)
    if isinstance(node, exp.Cast | exp.TryCast):
        return ddl.parse_type(node.args["to"].sql(dialect="spark"))
    if isinstance(node, exp.Literal):
        return "string" if node.is_string else None
    if isinstance(node, exp.Boolean):
        return "boolean"
    if isinstance(node, exp.Column) and not isinstance(node.this, exp.Star):
        parts = [part.name for part in node.parts]
        if len(parts) == 1:
            holders = [columns for _, columns in scope.tables if columns.has(parts[0])]
            if not holders:
                return scope.aliases.get(parts[0].casefold()) if scope.is_complete else None
            return holders[0].type_of(parts[0]) if scope.is_complete or len(scope.tables) == 1 else None
        if len(parts) == 2 and not any(columns.has(parts[0]) for _, columns in scope.tables):
            owners = [columns for alias, columns in scope.tables if alias == parts[0].casefold()]
            return owners[0].type_of(parts[1]) if len(owners) == 1 else None
    return None


def output_columns_of_item(item: exp.Expr, scope: SelectScope) -> tuple[dict[str, str | None], bool]:
    """Return the output columns of one SELECT item, and whether these are all of them."""
    from sqlglot import exp

    if isinstance(item, exp.Star):
        return _star_columns(scope.tables, item), scope.is_complete
    if isinstance(item, exp.Column) and isinstance(item.this, exp.Star):
        owner = item.parts[0].name.casefold()
        owners = [(alias, columns) for alias, columns in scope.tables if alias == owner]
        if len(item.parts) > 2 or len(owners) != 1:
            return {}, False
        return _star_columns(owners, item.this), owners[0][1].is_complete
    if isinstance(item, exp.Alias):
        return {item.alias: infer_expression_type(item.this, scope)}, True
    if isinstance(item, exp.Aliases):
        return {part.name: None for part in item.expressions}, True
    if isinstance(item, exp.Column):
        return {item.parts[-1].name: infer_expression_type(item, scope)}, True
    if isinstance(item, exp.Cast | exp.TryCast):  # its name is that of the column
        inner, _ = output_columns_of_item(item.this, scope) if isinstance(item.this, exp.Column) else ({}, True)
        return dict.fromkeys(inner, infer_expression_type(item, scope)), False
    name = item.this.lower() if isinstance(item, exp.Anonymous) and isinstance(item.this, str) else type(item).__name__
    own_name = isinstance(item, exp.Dot | exp.UDTF) or name in GENERATORS
    return {}, not own_name  # otherwise its name is its text, with parentheses or operators


def _star_columns(tables: Sequence[tuple[str, ColumnTypes]], star: exp.Expr) -> dict[str, str | None]:
    """Return the columns of a `*`."""
    except_ = {e.name.casefold() for e in star.args.get("except_") or ()}
    return {n: t for _, columns in tables for n, t in columns.types.items() if n.casefold() not in except_}


def window_bound_names(node: exp.Select, scope: SelectScope) -> frozenset[str]:
    """Return the output names of the starts and ends of windows in a SELECT, case-folded."""
    from sqlglot import exp

    names: set[str] = set()
    for item in node.expressions:
        if isinstance(item, exp.Star) or (isinstance(item, exp.Column) and isinstance(item.this, exp.Star)):
            names |= {name for _, columns in scope.tables for name in columns.groupable}
        elif scope.is_window_bound(item.this if isinstance(item, exp.Alias) else item):
            names.add(item.alias_or_name.casefold())
    return frozenset(names)
