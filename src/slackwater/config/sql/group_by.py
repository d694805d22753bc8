"""Decides whether a SELECT groups rows by a bound of their window. If this is unclear, the start of a run decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from slackwater.config.sql.select_scope import SelectScope

if TYPE_CHECKING:
    from sqlglot import exp


def groups_by_window_bound(
    expressions: Sequence[exp.Expr], aliases: Mapping[str, exp.Expr], scope: SelectScope
) -> bool:
    """Return whether a GROUP BY or PARTITION BY uses, or may use, a window bound."""
    from sqlglot import exp

    if not scope.may_group:
        return False
    if not expressions or not scope.is_complete:  # GROUP BY ALL and similar
        return True
    named = [aliases[e.name.casefold()] for e in expressions if e.name.casefold() in aliases]
    return any(isinstance(e, exp.Literal) or _is_bound(e, scope) for e in (*expressions, *named))


def window_bound_names(node: exp.Select, scope: SelectScope) -> frozenset[str]:
    """Return the output names of window bounds in a SELECT, case-folded."""
    from sqlglot import exp

    names: set[str] = set()
    for item in node.expressions:
        if isinstance(item, exp.Star) or (isinstance(item, exp.Column) and isinstance(item.this, exp.Star)):
            names |= {name for _, columns in scope.tables for name in columns.groupable}
        elif _is_bound(item.this if isinstance(item, exp.Alias) else item, scope):
            names.add(item.alias_or_name.casefold())
    return frozenset(names)


def select_item_aliases(node: exp.Select) -> dict[str, exp.Expr]:
    """Return the aliases of a SELECT's items with their expressions. GROUP BY may use them."""
    from sqlglot import exp

    return {item.alias.casefold(): item.this for item in node.expressions if isinstance(item, exp.Alias)}


def _is_bound(node: exp.Expr, scope: SelectScope) -> bool:
    from sqlglot import exp

    return isinstance(node, exp.Column) and any(
        node.parts[-1].name.casefold() in columns.groupable for _, columns in scope.tables
    )
