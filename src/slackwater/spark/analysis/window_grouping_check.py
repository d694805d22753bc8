"""Check in Spark's analyzed plan (JSON) whether a GROUP BY or an OVER clause groups rows by a bound of their window.

    source: window_start#7, user#8, n#9
    Project [window_start#7 AS begin#12, n#9]               begin#12 is window_start#7 under another name
    Window [row_number()], [begin#12], [n#9 DESC]           PARTITION BY it

Columns are tracked by expression id, and only through renames: an expression over a bound is not a bound. Below a
UNION, one id stands for the columns of all branches, so tracking stops there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Node = Mapping[str, Any]
_BY = {"Aggregate": "groupingExpressions", "Window": "partitionSpec"}


def _node_kind(node: Node) -> str:
    """Return the class name of a node."""
    return str(node.get("class", "")).rsplit(".", 1)[-1]


def expression_ids(view: DataFrame, names: Iterable[str]) -> frozenset[int]:
    """Return the expression ids of these columns of a view."""
    folded_names = {name.casefold() for name in names}
    output = view._jdf.queryExecution().analyzed().output()
    attributes = (output.apply(i) for i in range(output.size()))
    return frozenset(a.exprId().id() for a in attributes if a.name().casefold() in folded_names)


def add_renamed_ids(nodes: Sequence[Node], columns: frozenset[int]) -> frozenset[int]:
    """Return the ids of these columns, and of all columns of a plan that are renames of them."""
    if not columns or any(_node_kind(node) == "Union" for node in nodes):
        return frozenset()
    renamed = {}
    for expressions in _expressions(nodes):
        if [_node_kind(e) for e in expressions] == ["Alias", "AttributeReference"]:
            alias, column = expressions
            renamed[_number(alias)] = _number(column)
    derived = set(columns)
    while added := {new for new, old in renamed.items() if old in derived and new not in derived}:
        derived |= added
    return frozenset(derived)


def groups_by_columns(node: Node, columns: frozenset[int]) -> bool:
    """Return whether a node groups or partitions by one of these columns."""
    grouped = node.get(_BY.get(_node_kind(node), ""), [])
    return any(
        [_node_kind(e) for e in expression] == ["AttributeReference"] and _number(expression[0]) in columns
        for expression in grouped
    )


def _expressions(nodes: Sequence[Node]) -> Iterable[Sequence[Node]]:
    """Yield the expressions of a plan's nodes, each as a list of its parts."""
    for node in nodes:
        for value in node.values():
            if isinstance(value, list):
                yield from (e for e in value if isinstance(e, list) and e and isinstance(e[0], dict))


def _number(expression: Node) -> int:
    return int(expression["exprId"]["id"])
