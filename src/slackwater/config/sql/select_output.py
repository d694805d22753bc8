"""Types of expressions where they are obvious, and the output columns of a SELECT list.

sqlglot's `annotate_types` is not used: it takes 1.5 for a DOUBLE, coalesce(n, 0) of an INT for a BIGINT, and the
difference of two timestamps for a TIMESTAMP. A wrong type would cause a false alarm (see ADR 46).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from slackwater.config.sql import ddl
from slackwater.config.sql.builtins import GENERATORS
from slackwater.config.sql.select_scope import ColumnTypes, SelectScope

if TYPE_CHECKING:
    from sqlglot import exp


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
