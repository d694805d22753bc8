"""Checks the syntax tree of a query: its result must consist of rows of `source`, each in the epoch that reads it.

source                                   rows: each is emitted in the epoch that reads it
users, range(3), VALUES (1)              fixed: the same in every epoch
rows JOIN fixed                          rows
rows JOIN rows                           an error: a row would meet only the rows that its epoch happens to read
fixed LEFT JOIN rows                     an error: a lookup's row is emitted alone if its epoch has no match
rows UNION ALL fixed, or fixed alone     an error: the fixed rows would be emitted in every epoch
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlglot import exp

SELF_JOIN = "source joined with itself (a join stage does that)"
CONSTANT = "UNION ALL with rows that are not from source"
NO_SOURCE = "no row of source (write SELECT … FROM source)"
LOOKUP_JOINS = {  # messages for a lookup to the left of source, by join type
    "LeftOuter": "a lookup LEFT JOIN source (write source LEFT JOIN lookup)",
    "LeftSemi": "a lookup LEFT SEMI JOIN source (write source LEFT SEMI JOIN lookup)",
    "LeftAnti": "a lookup LEFT ANTI JOIN source (write source LEFT ANTI JOIN lookup)",
}


def find_row_wise_problems(tree: exp.Expr) -> set[str]:
    """Return the reasons to reject a query because of what it reads; empty if that cannot be decided."""
    refused = set[str]()
    if _SourceReferences(refused).query(tree, {}) is False and not refused:
        refused.add(NO_SOURCE)
    return refused


class _SourceReferences:
    """Classifies parts of a query: True for rows of `source`, False for fixed rows, and None for unknown ones."""

    def __init__(self, refused: set[str]) -> None:
        self.refused = refused

    def query(self, node: exp.Expr, ctes: Mapping[str, bool | None]) -> bool | None:
        """Return whether the result of a query consists of rows of `source`."""
        from sqlglot import exp

        with_: Any = node.args.get("with_")
        for cte in with_.expressions if with_ is not None else ():
            reads = None if with_.args.get("recursive") else self.query(cte.this, ctes)
            ctes = {**ctes, cte.alias.casefold(): reads}
        if isinstance(node, exp.Subquery):
            return self._from(node, ctes)
        if isinstance(node, exp.Union):
            return self._union(node, ctes)
        if isinstance(node, exp.Select):
            source = node.args.get("from_")
            reads = self._from(source.this, ctes) if source is not None else False
            return self._joins(node, reads, ctes)
        return None

    def _union(self, node: exp.Union, ctes: Mapping[str, bool | None]) -> bool | None:
        left_reads, right_reads = self.query(node.left, ctes), self.query(node.right, ctes)
        if left_reads is None or right_reads is None:
            return None
        if left_reads != right_reads:
            self.refused.add(CONSTANT)
        return left_reads or right_reads

    def _from(self, node: exp.Expr, ctes: Mapping[str, bool | None]) -> bool | None:
        from sqlglot import exp

        reads: bool | None = None
        if isinstance(node, exp.Subquery):
            reads = self.query(node.this, ctes) if isinstance(node.this, exp.Query) else self._from(node.this, ctes)
        elif isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier):
            name = node.name.casefold()
            reads = False if node.db else ctes.get(name, name == "source")
        elif isinstance(node, exp.Values | exp.Unnest):
            reads = False
        elif isinstance(node, exp.Table) and isinstance(node.this, exp.Anonymous | exp.GenerateSeries):
            reads = False if node.this.sql_name().lower() != "identifier" else None
            if isinstance(node.this, exp.Anonymous) and str(node.this.this).lower() in ("identifier", "source"):
                reads = None
        return self._joins(node, reads, ctes)

    def _joins(self, node: exp.Expr, reads: bool | None, ctes: Mapping[str, bool | None]) -> bool | None:
        for join in node.args.get("joins") or ():
            other = self._from(join.this, ctes)
            side, kind = join.side.upper(), join.kind.upper()
            if reads and other:
                self.refused.add(SELF_JOIN)
            elif reads is False and other and (kind in ("SEMI", "ANTI") or side == "LEFT"):
                self.refused.add(LOOKUP_JOINS[f"Left{kind.capitalize()}" if kind in ("SEMI", "ANTI") else "LeftOuter"])
            unknown = None in (reads, other)
            reads = bool(reads or other) or (None if unknown else False)
        return reads
