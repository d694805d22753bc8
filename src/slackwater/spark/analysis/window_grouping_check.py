"""Check in Spark's analyzed plan (JSON) whether GROUP BY or OVER groups rows by the start or end of their window.

    source: window_start#7, user#8, n#9
    Project [window_start#7 AS begin#12, n#9]               begin#12 is window_start#7, renamed
    Window [row_number()], [begin#12], [n#9 DESC]           PARTITION BY it

Columns are tracked by expression id, and only through renames: `window_start + 1` does not count as a window start. A
UNION gives one id to the columns of all its branches, so plans with a UNION are not tracked.
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
    """Return the expression ids of the columns of a view with these names."""
    folded_names = {name.casefold() for name in names}
    output = view._jdf.queryExecution().analyzed().output()
    attributes = (output.apply(i) for i in range(output.size()))
    return frozenset(a.exprId().id() for a in attributes if a.name().casefold() in folded_names)


def add_renamed_ids(nodes: Sequence[Node], columns: frozenset[int]) -> frozenset[int]:
    """Return `columns` (expression ids) and the ids of all renames of them in a plan; empty if there is a UNION."""
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
    """Return whether a node groups or partitions rows by one of these columns (expression ids)."""
    grouped = node.get(_BY.get(_node_kind(node), ""), [])
    return any(
        [_node_kind(e) for e in expression] == ["AttributeReference"] and _number(expression[0]) in columns
        for expression in grouped
    )


def _expressions(nodes: Sequence[Node]) -> Iterable[Sequence[Node]]:
    """Yield the expressions of a plan's nodes, each as a list of nodes in pre-order."""
    for node in nodes:
        for value in node.values():
            if isinstance(value, list):
                yield from (e for e in value if isinstance(e, list) and e and isinstance(e[0], dict))


def _number(expression: Node) -> int:
    return int(expression["exprId"]["id"])
