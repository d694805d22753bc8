"""Data structures of the SQL check: columns with types, the tables of one SELECT, and findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slackwater.config.error_text import format_value
from slackwater.config.sql import schema_ddl
from slackwater.config.sql.lexer import GENERATORS

if TYPE_CHECKING:
    from sqlglot import exp

AGGREGATE = "an aggregate (GROUP BY, count(), …)"
WINDOW = "a window function (OVER)"


@dataclass(frozen=True)
class GroupableColumns:
    """Columns by which SQL may group rows (`names`), although each epoch sees only its own rows.

    All tumbling and hopping windows with the same start and end close at the same watermark. Their results are emitted
    in the same epoch, for all keys, so a GROUP BY on their start or end is exact. If `names` is empty, the SQL must be
    row-wise. In this case, `reason` may explain why.
    """

    names: frozenset[str] = frozenset()
    reason: str = ""

    def advice_for(self, non_row_wise: set[str]) -> str:
        """Return advice about non-row-wise constructs, to append to the error that reports them; may be empty."""
        if not non_row_wise & {AGGREGATE, WINDOW}:
            return ""
        if self.names:
            shown = " or ".join(format_value(name) for name in sorted(self.names))
            return f"; SQL may group the results of a window only by its start or end; name {shown} in GROUP BY or PARTITION BY"
        return f"; {self.reason}" if self.reason else ""


ROW_BY_ROW = GroupableColumns()
SEVERAL = GroupableColumns(
    reason="this SQL runs over each input of the stage separately, but a group may have rows of several inputs"
)


@dataclass(frozen=True)
class ColumnTypes:
    """Columns of a table or query.

    Args:
        types: The type of each column, as Spark prints it; None if it is unknown.
        is_complete: Whether `types` has all columns.
        groupable: The case-folded names of the columns by which rows may be grouped (see `GroupableColumns`).
        from_source: Whether each row comes from a row of `source`. False: the rows are fixed; None: unknown.
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
    """Findings about SQL: problems, constructs that are not row-wise, and checks that could not be decided."""

    problems: list[str] = field(default_factory=list)
    non_row_wise: set[str] = field(default_factory=set)
    undecided: list[str] = field(default_factory=list)
    catalog_tables: list[str] = field(default_factory=list)  # names of tables that may come from a catalog


@dataclass(frozen=True)
class Table:
    """Table that a query may read: its columns, and the non-row-wise constructs in its definition."""

    columns: ColumnTypes
    non_row_wise: set[str]


@dataclass
class SelectScope:
    """Names that the expressions of one SELECT may use.

    Args:
        tables: The columns of the tables in FROM, each with its alias.
        non_row_wise: Receives the non-row-wise constructs of the query.
        readable: The tables that FROM may name.
        aliases: The types of the aliases in the SELECT list, which later items may use.
    """

    tables: list[tuple[str, ColumnTypes]]
    non_row_wise: set[str]
    readable: Mapping[str, Table] = field(default_factory=dict)
    aliases: dict[str, str | None] = field(default_factory=dict)
    merged: set[str] = field(default_factory=set)  # columns in USING, which are not ambiguous
    natural: bool = False
    may_group: bool = False  # some tables have groupable columns
    is_grouped: bool = False  # rows are grouped by a window bound, so aggregates are allowed

    @property
    def is_complete(self) -> bool:
        return all(columns.is_complete for _, columns in self.tables)

    def names(self) -> list[str]:
        return list(dict.fromkeys(name for _, columns in self.tables for name in columns.types))

    def is_window_bound(self, node: exp.Expr) -> bool:
        """Return whether an expression is a column that contains the start or end of a window."""
        from sqlglot import exp

        return isinstance(node, exp.Column) and any(c.groups_by(node.parts[-1].name) for _, c in self.tables)

    def groups_by_window_bound(self, expressions: Sequence[exp.Expr], items: Sequence[exp.Expr]) -> bool:
        """Return whether GROUP BY or PARTITION BY may contain a window's start or end. `items`: the SELECT list."""
        from sqlglot import exp

        if not self.may_group:
            return False
        if not expressions or not self.is_complete:  # GROUP BY ALL and similar
            return True
        names = {e.name.casefold() for e in expressions}
        named = [i.this for i in items if isinstance(i, exp.Alias) and i.alias.casefold() in names]
        return any(isinstance(e, exp.Literal) or self.is_window_bound(e) for e in (*expressions, *named))


def table_function_columns(names: Sequence[str], from_source: bool | None = None) -> ColumnTypes:
    """Return the columns of a table function. `names`: the column names in its alias; empty if there are none."""
    return ColumnTypes(dict.fromkeys(names), bool(names), from_source=from_source)


def rename_columns(columns: ColumnTypes, names: Sequence[str]) -> ColumnTypes:
    """Return the columns after an alias such as `AS t(a, b)`. `names`: the names in the alias; may be empty."""
    if not names:
        return columns
    if len(names) != len(columns.types) or not columns.is_complete:
        any_of_them = frozenset(map(str.casefold, names)) if columns.groupable else frozenset[str]()
        return ColumnTypes(dict.fromkeys(names), True, any_of_them, columns.from_source)
    pairs = list(zip(names, columns.types.items(), strict=True))
    bounds = frozenset(new.casefold() for new, (old, _) in pairs if columns.groups_by(old))
    return ColumnTypes({new: type_ for new, (_, type_) in pairs}, True, bounds, columns.from_source)


def infer_expression_type(node: exp.Expr, scope: SelectScope) -> str | None:
    """Return the type of an expression if it is a column, a literal or a cast; otherwise None."""
    from sqlglot import exp

    if isinstance(node, exp.Paren):
        return infer_expression_type(node.this, scope)
    if isinstance(node, exp.Cast | exp.TryCast):
        return schema_ddl.parse_type(node.args["to"].sql(dialect="spark"))
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
    """Return the output columns of one item of a SELECT list, and whether the item has no others."""
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
    if isinstance(item, exp.Cast | exp.TryCast):  # it has the name of the column
        inner, _ = output_columns_of_item(item.this, scope) if isinstance(item.this, exp.Column) else ({}, True)
        return dict.fromkeys(inner, infer_expression_type(item, scope)), False
    name = item.this.lower() if isinstance(item, exp.Anonymous) and isinstance(item.this, str) else type(item).__name__
    own_name = isinstance(item, exp.Dot | exp.UDTF) or name in GENERATORS
    return {}, not own_name  # otherwise its name is its text, with parentheses or operators


def _star_columns(tables: Sequence[tuple[str, ColumnTypes]], star: exp.Expr) -> dict[str, str | None]:
    """Return the columns that `*` selects from these tables, without those in EXCEPT."""
    except_ = {e.name.casefold() for e in star.args.get("except_") or ()}
    return {n: t for _, columns in tables for n, t in columns.types.items() if n.casefold() not in except_}


def window_bound_names(node: exp.Select, scope: SelectScope) -> frozenset[str]:
    """Return the case-folded output names of the columns that contain the start or end of a window."""
    from sqlglot import exp

    names: set[str] = set()
    for item in node.expressions:
        if isinstance(item, exp.Star) or (isinstance(item, exp.Column) and isinstance(item.this, exp.Star)):
            names |= {name for _, columns in scope.tables for name in columns.groupable}
        elif scope.is_window_bound(item.this if isinstance(item, exp.Alias) else item):
            names.add(item.alias_or_name.casefold())
    return frozenset(names)
