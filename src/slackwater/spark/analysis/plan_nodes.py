"""Parse Spark's analyzed plan into a tree of nodes, from JSON or from text. Spark Connect returns only text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_LINE = re.compile(r"^(?P<depth>(?:(?:: {2}| {3})*(?:\+- |:- ))?)(?P<kind>[A-Z]\w*)(?P<rest>.*)$")
_CTE = re.compile(r"[ ,]+(\d+)")
_JOIN = re.compile(r"(Inner|Cross|LeftOuter|RightOuter|FullOuter|LeftSemi|LeftAnti|\w+)")
_ALIAS = re.compile(r"\s*(\S+)")
_VIEW = re.compile(r"\s*\(`([^`]+)`")


@dataclass(frozen=True)
class Node:
    """A node of a plan. Fields that do not apply to the node are empty.

    Args:
        kind: The name of Spark's class for this node, without the package.
        children: The nodes directly below this node.
        join: The type of a Join, such as "LeftOuter".
        view: The name of a temporary view.
        alias: The name of a SubqueryAlias.
        cte: The id of the CTE that the node defines or reads. -1 for all other nodes.
        expressions: The expressions of the node as JSON objects. Empty over Spark Connect.
        fields: All fields of the node's JSON object. Empty over Spark Connect.
    """

    kind: str
    children: tuple[Node, ...] = ()
    join: str = ""
    view: str = ""
    alias: str = ""
    cte: int = -1
    expressions: tuple[Mapping[str, Any], ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)

    def walk(self) -> Iterator[Node]:
        """Yield this node and all nodes below it."""
        yield self
        for child in self.children:
            yield from child.walk()


def parse_json(text: str) -> Node:
    """Parse a plan from JSON: a list of nodes in pre-order, each with its number of children."""
    entries = iter(json.loads(text))

    def node() -> Node:
        fields: dict[str, Any] = next(entries)
        kind = read_class_name(fields)
        view = fields.get("desc", {}) if kind == "View" else {}
        identifier = view.get("identifier", {}) if isinstance(view, dict) else {}
        temporary = bool(fields.get("isTempView")) and "database" not in identifier
        return Node(
            kind,
            tuple(node() for _ in range(fields["num-children"])),
            _join_kind(fields.get("joinType", "")),
            str(identifier.get("table", "")) if temporary else "",
            str(fields.get("identifier", {}).get("name", "")) if kind == "SubqueryAlias" else "",
            int(fields.get("cteId", fields.get("id", -1))) if kind.startswith("CTERelation") else -1,
            tuple(e for key, value in fields.items() if key != "desc" for e in _classes(value)),
            fields,
        )

    return node()


def parse_text(text: str) -> Node:
    """Parse a plan from the output of EXPLAIN, which indents each level by three characters.

    Lines that do not describe a node are skipped.
    """
    plan = text[text.find("\nWithCTE\n") + 1 :]  # skips the list of columns before it
    lines = [match for line in plan.splitlines() if (match := _LINE.match(line))]
    root = _Draft(-1, "Plan", "")
    path = [root]
    for match in lines:
        depth = len(match["depth"]) // 3
        while path[-1].depth >= depth:
            path.pop()
        path[-1].children.append(draft := _Draft(depth, match["kind"], match["rest"]))
        path.append(draft)
    return root.children[0].node() if len(root.children) == 1 else root.node()


@dataclass
class _Draft:
    depth: int
    kind: str
    rest: str
    children: list[_Draft] = field(default_factory=list)

    def node(self) -> Node:
        def first(pattern: re.Pattern[str], kind: str) -> str:
            match = pattern.search(self.rest) if self.kind.startswith(kind) else None
            return match[1] if match else ""

        return Node(
            self.kind,
            tuple(child.node() for child in self.children),
            join=first(_JOIN, "Join"),
            view=first(_VIEW, "View"),
            alias=first(_ALIAS, "SubqueryAlias"),
            cte=int(first(_CTE, "CTERelation") or -1),
        )


def read_arguments(expressions: Sequence[Mapping[str, Any]], index: int) -> list[tuple[Mapping[str, Any], ...]]:
    """Return the arguments of the expression at `index`, each as a tuple of its expressions in pre-order.

    `expressions`: a forest of expressions in pre-order.
    """
    children, end = list[tuple[Mapping[str, Any], ...]](), index + 1
    for _ in range(expressions[index]["num-children"]):
        start, open_ones = end, 1
        while open_ones:
            open_ones += expressions[end]["num-children"] - 1
            end += 1
        children.append(tuple(expressions[start:end]))
    return children


def read_class_name(fields: Mapping[str, Any]) -> str:
    """Return the class name of a node or an expression, without the package."""
    return str(fields.get("class", "")).rsplit(".", 1)[-1].rstrip("$")


def _join_kind(value: Any) -> str:
    """Return the join type, which Spark writes as an object (`{"object": "….LeftOuter$"}`) or as a string."""
    return str(value.get("object", "") if isinstance(value, dict) else value).rsplit(".", 1)[-1].strip("$")


def _classes(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield all expressions nested in a JSON value of a plan, in pre-order."""
    if isinstance(value, list):
        for item in value:
            yield from _classes(item)
    elif isinstance(value, dict):
        if "class" in value:
            yield value
        for item in value.values():
            yield from _classes(item)
