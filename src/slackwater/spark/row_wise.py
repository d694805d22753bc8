"""Whether SQL says about a row what depends on that row and on lookups only, by Spark's own analysis of it.

classic: every node and expression of the analysed plan, as JSON
Connect: it gives that plan as text, where a literal may look like an expression: the nodes are read there, the expressions by the
         parser of `check`
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from slackwater.config.bounds import AGGREGATE, ROW_BY_ROW, WINDOW, Bounds
from slackwater.config.sql.columns import Columns, Findings
from slackwater.config.sql.query import query
from slackwater.sources import connect
from slackwater.spark import grouping

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# plan nodes and expressions that look beyond the row, and how a user knows them
_NODES = {
    "Aggregate": AGGREGATE,
    "Distinct": "DISTINCT",
    "Deduplicate": "DISTINCT",
    "GlobalLimit": "LIMIT",
    "LocalLimit": "LIMIT",
    "Offset": "OFFSET",
    "Tail": "LIMIT",
    "Sort": "ORDER BY",
    "Window": WINDOW,
    "Intersect": "INTERSECT",
    "Except": "EXCEPT",
    "Sample": "TABLESAMPLE",
    "Pivot": "PIVOT",
}
_EXPRESSIONS = {
    "ScalarSubquery": "a subquery",
    "Exists": "a subquery (EXISTS)",
    "ListQuery": "a subquery (IN)",
    "InSubquery": "a subquery (IN)",
    "LateralSubquery": "a lateral subquery",
    "Rand": "rand()",
    "Randn": "randn()",
    "RandStr": "randstr()",
    "Uniform": "uniform()",
    "Uuid": "uuid()",
    "Shuffle": "shuffle()",
    "CurrentTimestamp": "current_timestamp()",
    "CurrentTimestampLike": "current_timestamp()",
    "Now": "now()",
    "CurrentDate": "current_date()",
    "CurrentTime": "current_time()",
    "LocalTimestamp": "localtimestamp()",
    "UnixTimestamp$": "unix_timestamp()",
    "MonotonicallyIncreasingID": "monotonically_increasing_id()",
    "SparkPartitionID": "spark_partition_id()",
    "InputFileName": "input_file_name()",
}
_FUNCTIONS = "|".join(re.escape(name.removesuffix("()")) for name in _EXPRESSIONS.values() if name.endswith("()"))
_CALLED = re.compile(rf"\b({_FUNCTIONS})\(", re.IGNORECASE)
_SUBQUERY = re.compile(r"\b(?:scalar-subquery|lateral-subquery|exists|list)#\d+ \[")
_NODE = re.compile(r"^[\s:+|-]*([A-Z]\w*)", re.MULTILINE)
_OUTER = re.compile(r"^[\s:+|-]*(?:\w+)?Join (FullOuter|RightOuter)\b", re.MULTILINE)


def forbidden(frame: DataFrame, view: DataFrame | None = None, bounds: Bounds = ROW_BY_ROW) -> set[str]:
    """What in a DataFrame's plan looks beyond the row, as users call it.

    `bounds`: the columns of `view`, which it reads, by any of which rows may be grouped all the same.
    """
    plan = json.loads(frame._jdf.queryExecution().analyzed().toJSON())
    nodes, found = _nodes(plan), set[str]()
    alike = grouping.columns(nodes, grouping.identities(view, bounds.names)) if view is not None else frozenset[int]()
    for node in nodes:
        name = grouping.kind(node)
        if name in _NODES and not grouping.is_by(node, alike):
            found.add(_NODES[name])
        if name in _EXPRESSIONS:
            found.add(_EXPRESSIONS[name])
        if name == "Join":
            kind = str(node.get("joinType", {}).get("object", node.get("joinType", ""))).rsplit(".", 1)[-1].strip("$")
            if kind in ("FullOuter", "RightOuter"):
                found.add(f"{'FULL' if kind == 'FullOuter' else 'RIGHT'} OUTER JOIN (write source LEFT JOIN lookup)")
    return found


def _nodes(tree: Any) -> list[Mapping[str, Any]]:
    """Every object of a plan's JSON, whatever it is nested in."""
    if isinstance(tree, list):
        return [n for item in tree for n in _nodes(item)]
    if isinstance(tree, dict):
        return [tree, *(n for value in tree.values() for n in _nodes(value))]
    return []


def beyond(frame: DataFrame, sql: str, rows: DataFrame, bounds: Bounds = ROW_BY_ROW) -> set[str]:
    """The same over Connect, of one text that reads `rows` as `source`. Where the parser is unsure, an expression that only looks
    like one is refused as well."""
    types = dict.fromkeys(rows.columns)
    bounded = frozenset(map(str.casefold, bounds.names)) & frozenset(map(str.casefold, types))
    said = Findings()
    query(sql, {"source": Columns(types, True, bounded)}, said, ())
    plan = connect.analyzed(frame)
    found = said.beyond | {_outer(kind) for kind in _OUTER.findall(plan)}
    sure = not said.unsure and not said.problems
    grouped = {AGGREGATE, WINDOW, "DISTINCT"} if bounded and sure else set()
    found |= {_NODES[node] for node in _NODE.findall(plan) if node in _NODES} - grouped
    if sure:
        return found
    subquery = {"a subquery"} if _SUBQUERY.search(plan) else set[str]()
    return found | subquery | {f"{name.lower()}()" for name in _CALLED.findall(plan)}


def _outer(kind: str) -> str:
    return f"{'FULL' if kind == 'FullOuter' else 'RIGHT'} OUTER JOIN (write source LEFT JOIN lookup)"
