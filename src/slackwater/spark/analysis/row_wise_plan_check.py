"""Check with Spark's own analyzer that SQL is row-wise: its output for a row depends only on that row and on lookups.

Plan nodes and expressions that are not on an allow list are rejected.

    Project ─▶ Filter ─▶ Join ─┬▶ View source       rows of `source`: read and output in the same epoch
                               └▶ View users        lookups, tables, VALUES: equal in every epoch

Classic Spark returns the analyzed plan as JSON, so every node and expression is checked. Spark Connect returns the plan
only as text, in which a literal may look like an expression. Therefore, over Connect, only the nodes are checked in the
text. The expressions are checked by the parser that `slackwater check` uses.

GROUP BY and OVER may group rows by the start or end of their window. These columns are tracked by expression id, and
only through renames: `window_start + 1` does not count as a window start. A UNION gives one id to the columns of all
its branches, so columns are not tracked in plans with a UNION.

    source: window_start#7, user#8, n#9
    Project [window_start#7 AS begin#12, n#9]               begin#12 is window_start#7, renamed
    Window [row_number()], [begin#12], [n#9 DESC]           PARTITION BY it
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from slackwater.config.sql import lexer
from slackwater.config.sql.query_columns import CONSTANT, LOOKUP_JOINS, NO_SOURCE, SELF_JOIN, resolve_query
from slackwater.config.sql.resolver import STATEMENTS
from slackwater.config.sql.select_scope import AGGREGATE, ROW_BY_ROW, WINDOW, ColumnTypes, GroupableColumns, SqlFindings
from slackwater.connectors import spark_connect_support
from slackwater.spark.analysis import plan_nodes
from slackwater.spark.analysis.plan_nodes import Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# nodes that process their input row by row
_ALLOWED = frozenset(
    """
    Project Filter SubqueryAlias View PipeOperator ResolvedHint UnresolvedHint Generate Expand Repartition
    RepartitionByExpression RebalancePartitions CTERelationDef LimitAll
    """.split()
)
# nodes whose rows are the same in every epoch
_LEAVES = frozenset(
    """
    LocalRelation OneRowRelation Range LogicalRelation LogicalRDD HiveTableRelation DataSourceV2Relation RelationV2
    """.split()
)
# plan nodes that depend on more than one row, with the names that users know
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
    "LateralJoin": "a lateral subquery",
    "ScriptTransformation": "TRANSFORM … USING",
    "UnionLoop": "WITH RECURSIVE",
    "UnionLoopRef": "WITH RECURSIVE",
    "AsOfJoin": "ASOF JOIN",
}
_GROUPED = {"Aggregate": "groupingExpressions", "Window": "partitionSpec"}
_INNER = ("Inner", "Cross")
_OUTER = {"RightOuter": "RIGHT", "FullOuter": "FULL"}
_SCRIPTS = ("CompoundBody", "ExecuteImmediateQuery", "SingleStatement", "UnresolvedExecuteImmediate")
_TO_TIMES = {"ParseToDate": "date", "ParseToTimestamp": "timestamp"}
_UNDETERMINED = "a function that is not deterministic"
_NAMES = (n.partition("(")[0] for n in plan_nodes.NOT_ROW_WISE.values() if "(" in n and " (" not in n)
_CALLED = re.compile(rf"\b({'|'.join(map(re.escape, dict.fromkeys(_NAMES)))}|java_method)\(", re.IGNORECASE)
_SUBQUERY = re.compile(r"\b(?:scalar-subquery|lateral-subquery|exists|list)#\d+ \[")
_CLOCK_CAST = re.compile(r"cast\(\s*(?:now|today|tomorrow|yesterday)\b[^()]* as (?:date|timestamp)", re.IGNORECASE)


def find_statement(session: SparkSession, sql: str) -> str | None:
    """Return the first word of the SQL if the SQL is a statement. None if it is a query.

    The SQL is analyzed but not run. Raises Spark's own error if the SQL is not valid. Over Connect, only the first word
    is checked, because the SQL is later put into parentheses, where only a query is valid.
    """
    word = _first_word(sql)
    if spark_connect_support.is_connect(session):
        return word if word in STATEMENTS else None
    state = session._jsparkSession.sessionState()
    parsed = state.sqlParser().parsePlan(sql)
    if str(parsed.getClass().getSimpleName()).startswith(_SCRIPTS):  # analyzing these would run them
        return word
    assert session._jvm is not None
    skip: Any = session._jvm.org.apache.spark.sql.execution.CommandExecutionMode.SKIP()
    root = plan_nodes.parse_plan_json(state.executePlan(parsed, skip).analyzed().toJSON())
    while root.kind == "WithCTE":
        root = root.children[-1]
    is_query = root.kind in _ALLOWED or root.kind in _LEAVES or root.kind in _NODES or root.kind in ("Join", "Union")
    return None if is_query else word


def _first_word(sql: str) -> str:
    try:
        return next((t.text.upper() for t in lexer.tokenize(sql) if t.kind == "word"), "")
    except lexer.SqlLexError:
        return ""


def find_forbidden_parts(
    frame: DataFrame, view: DataFrame | None = None, groupable: GroupableColumns = ROW_BY_ROW
) -> set[str]:
    """Return the SQL constructs in the plan of a DataFrame that are not row-wise, such as "LIMIT".

    Args:
        frame: The DataFrame.
        view: A DataFrame that the plan reads. None if the plan may not group rows.
        groupable: The columns of `view` by which the plan may group rows.
    """
    plan = frame._jdf.queryExecution().analyzed()
    root = plan_nodes.parse_plan_json(plan.toJSON())
    nodes = [node.fields for node in root.walk()]
    grouping_columns = (
        _add_renamed_ids(nodes, _expression_ids(view, groupable.names)) if view is not None else frozenset[int]()
    )
    walker = _PlanWalker(lambda node: _groups_by_columns(node.fields, grouping_columns))
    walker.check(root)
    if not walker.forbidden and not walker.has_grouping and not plan.deterministic():
        walker.forbidden.add(_UNDETERMINED)
    return walker.forbidden


def find_forbidden_parts_in_text(
    frame: DataFrame, sql: str, rows: DataFrame, groupable: GroupableColumns = ROW_BY_ROW
) -> set[str]:
    """Return the SQL constructs that are not row-wise, such as "LIMIT". Used over Spark Connect.

    If the parser is unsure, text in the plan that merely looks like a forbidden expression counts as one.

    Args:
        frame: The result of the SQL.
        sql: The SQL.
        rows: The DataFrame that the SQL reads as `source`.
        groupable: The columns of `rows` by which the SQL may group rows.
    """
    types = dict.fromkeys(rows.columns)
    grouping_columns = frozenset(map(str.casefold, groupable.names)) & frozenset(map(str.casefold, types))
    findings = SqlFindings()
    resolve_query(sql, {"source": ColumnTypes(types, True, grouping_columns)}, findings, ())
    is_sure = not findings.undecided and not findings.problems
    plan = spark_connect_support.analyzed_plan(frame)
    walker = _PlanWalker(lambda node: bool(grouping_columns) and is_sure)
    walker.check(plan_nodes.parse_text(plan))
    clock_literals = {"a literal such as DATE 'today'"} if _CLOCK_CAST.search(plan) else set[str]()
    forbidden = findings.non_row_wise | walker.forbidden | clock_literals
    if is_sure:
        return forbidden
    subquery = {"a subquery"} if _SUBQUERY.search(plan) else set[str]()
    return forbidden | subquery | {f"{name.lower()}()" for name in _CALLED.findall(plan)}


def _expression_ids(view: DataFrame, names: Iterable[str]) -> frozenset[int]:
    """Return the expression ids of the columns of a view with these names."""
    folded_names = {name.casefold() for name in names}
    output = view._jdf.queryExecution().analyzed().output()
    attributes = (output.apply(i) for i in range(output.size()))
    return frozenset(a.exprId().id() for a in attributes if a.name().casefold() in folded_names)


def _add_renamed_ids(nodes: Sequence[Mapping[str, Any]], columns: frozenset[int]) -> frozenset[int]:
    """Return the expression ids of columns and of all their renames in a plan. Empty if the plan has a UNION.

    `columns`: the expression ids of the columns.
    """
    if not columns or any(plan_nodes.read_class_name(node) == "Union" for node in nodes):
        return frozenset()
    renamed = {}
    for expressions in _expressions(nodes):
        if [plan_nodes.read_class_name(e) for e in expressions] == ["Alias", "AttributeReference"]:
            alias, column = expressions
            renamed[_number(alias)] = _number(column)
    derived = set(columns)
    while added := {new for new, old in renamed.items() if old in derived and new not in derived}:
        derived |= added
    return frozenset(derived)


def _groups_by_columns(node: Mapping[str, Any], columns: frozenset[int]) -> bool:
    """Return whether a node groups or partitions rows by a column. `columns`: the expression ids of the columns."""
    grouped = node.get(_GROUPED.get(plan_nodes.read_class_name(node), ""), [])
    return any(
        [plan_nodes.read_class_name(e) for e in expression] == ["AttributeReference"]
        and _number(expression[0]) in columns
        for expression in grouped
    )


def _expressions(nodes: Sequence[Mapping[str, Any]]) -> Iterable[Sequence[Mapping[str, Any]]]:
    """Yield the expressions in the nodes of a plan, each as a list of JSON objects in pre-order."""
    for node in nodes:
        for value in node.values():
            if isinstance(value, list):
                yield from (e for e in value if isinstance(e, list) and e and isinstance(e[0], dict))


def _number(expression: Mapping[str, Any]) -> int:
    return int(expression["exprId"]["id"])


@dataclass
class _PlanWalker:
    """Walk over a plan that collects the SQL constructs that are not row-wise.

    Args:
        may_group: A function that returns whether a node groups rows by a permitted column.
        forbidden: The SQL constructs that are not row-wise.
        has_grouping: Whether a visited node groups rows by a permitted column.
    """

    may_group: Callable[[Node], bool]
    forbidden: set[str] = field(default_factory=set)
    has_grouping: bool = False
    _defined: dict[int, Node] = field(default_factory=dict)

    def check(self, root: Node) -> None:
        """Collect the constructs in a plan that are not row-wise, and check that the plan reads `source`."""
        self._defined = {node.cte: node for node in root.walk() if node.kind == "CTERelationDef"}
        reads = self._reads(root)
        if not reads and not self.forbidden:
            self.forbidden.add(NO_SOURCE)

    def _reads(self, node: Node) -> bool:
        """Return whether a node outputs rows of `source`. Collect constructs in its subtree that are not row-wise."""
        if node.view.casefold() == "source" or node.alias.startswith(spark_connect_support.ROWS):
            return True
        if node.view or node.alias.startswith(spark_connect_support.TABLES):
            return False  # a lookup
        for expression in node.expressions:
            self._expression(expression)
        for outer, inner in pairwise(node.expressions):  # an expression is followed by its first child
            self._cast(outer, inner)
        for index, expression in enumerate(node.expressions):
            if plan_nodes.read_class_name(expression) == "AesEncrypt":
                self._encryption(plan_nodes.read_arguments(node.expressions, index))
        if node.kind == "WithCTE":
            (query,) = (c for c in node.children if c.kind != "CTERelationDef")
            return self._reads(query)
        if node.kind == "CTERelationRef":
            defined = self._defined.get(node.cte)
            return defined is not None and self._reads(defined)
        if node.kind in _LEAVES:
            return False
        if node.kind == "Join":
            return self._join(node)
        if node.kind == "Union":
            return self._union(node)
        below = [self._reads(child) for child in node.children]
        if node.kind in ("Aggregate", "Window", "Distinct") and self.may_group(node):
            self.has_grouping = True
        elif node.kind in _NODES:
            self.forbidden.add(_NODES[node.kind])
        elif node.kind not in _ALLOWED:
            self.forbidden.add(f"{node.kind} in Spark's plan, which is not known to work row by row")
        return any(below)

    def _join(self, node: Node) -> bool:
        reads_left, reads_right = (self._reads(child) for child in node.children)
        if node.join in _OUTER:
            self.forbidden.add(f"{_OUTER[node.join]} OUTER JOIN (write source LEFT JOIN lookup)")
        elif reads_left and reads_right:
            self.forbidden.add(SELF_JOIN)
        elif reads_right and node.join not in _INNER:
            self.forbidden.add(LOOKUP_JOINS.get(node.join, LOOKUP_JOINS["LeftOuter"]))
        return reads_left or reads_right

    def _union(self, node: Node) -> bool:
        reads = [self._reads(child) for child in node.children]
        if any(reads) and not all(reads):
            self.forbidden.add(CONSTANT)
        return any(reads)

    def _cast(self, outer: Mapping[str, Any], inner: Mapping[str, Any]) -> None:
        """Detect a cast (`outer`) of a literal (`inner`) such as 'today', which results in the current date or time."""
        to = _TO_TIMES.get(plan_nodes.read_class_name(outer)) or str(outer.get("dataType"))
        if (
            plan_nodes.read_class_name(outer) not in ("Cast", *_TO_TIMES)
            or plan_nodes.read_class_name(inner) != "Literal"
        ):
            return
        text = str(inner.get("value"))
        if to in ("date", "timestamp", "timestamp_ntz", "time") and lexer.uses_current_time(text):
            self.forbidden.add(f"{to.upper()} '{text.strip()}'")

    def _encryption(self, arguments: list[tuple[Mapping[str, Any], ...]]) -> None:
        """Detect AES encryption without an explicit initialization vector. Spark would choose a random one."""
        mode, vector = arguments[2], arguments[4]
        constant = [str(e.get("value")) for e in vector if plan_nodes.read_class_name(e) == "Literal"]
        if constant == [""] and str(mode[0].get("value")).upper() != "ECB":
            self.forbidden.add("aes_encrypt() without an initialisation vector")

    def _expression(self, fields: Mapping[str, Any]) -> None:
        kind = plan_nodes.read_class_name(fields)
        if kind in plan_nodes.NOT_ROW_WISE:
            self.forbidden.add(plan_nodes.NOT_ROW_WISE[kind])
        elif kind not in plan_nodes.ROW_WISE and kind not in _ALLOWED | _LEAVES | _NODES.keys():
            self.forbidden.add(f"Spark's expression {kind}, which is not known to return one value for the same row")
        elif fields.get("udfDeterministic") is False:
            self.forbidden.add(_UNDETERMINED)
