"""PromQL over samples of a test: the selectors and labels of a query, and its value.

The parser uses the grammar of Prometheus. The evaluation supports what our rules use and raises KeyError for anything
else. Unlike in Prometheus, `increase` and `rate` do not extrapolate to the edges of their range, so a test must allow
for a small difference.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import promql_parser as promql

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
LOOKBACK = 300.0


def parse_promql_query(expression: str) -> Any:
    """Parse an expression as Grafana sends it, with its variables replaced. Raise ValueError if it is invalid."""
    for variable, value in (("$__rate_interval", "5m"), ("$__range", "6h"), ("$pipeline", ".*")):
        expression = expression.replace(variable, value)
    return promql.parse(expression)


def iterate_selectors(node: Any) -> Iterator[Any]:
    """Yield every selector of a query."""
    if isinstance(node, promql.VectorSelector):
        yield node
    elif isinstance(node, promql.MatrixSelector | promql.SubqueryExpr):
        yield node.vector_selector
    for part in ("expr", "lhs", "rhs", "param"):
        if getattr(node, part, None) is not None:
            yield from iterate_selectors(getattr(node, part))
    for part in getattr(node, "args", None) or []:
        yield from iterate_selectors(part)


def iterate_grouping_labels(node: Any) -> Iterator[str]:
    """Yield every label that a query groups or joins by."""
    modifier = getattr(node, "modifier", None)
    if modifier is not None:
        yield from getattr(modifier, "labels", None) or []
        matching = getattr(modifier, "matching", None)
        yield from getattr(matching, "labels", None) or []
    for part in ("expr", "lhs", "rhs", "param"):
        if getattr(node, part, None) is not None:
            yield from iterate_grouping_labels(getattr(node, part))
    for part in getattr(node, "args", None) or []:
        yield from iterate_grouping_labels(part)


@dataclass
class ScrapedSeriesStore:
    """Series as a scraper stores them. A series ends at the first scrape that does not show the series."""

    series: dict[tuple[str, Labels], list[tuple[float, float]]] = field(default_factory=dict)
    seen: dict[tuple[str, Labels], float] = field(default_factory=dict)
    last: float = 0.0

    def scrape(self, time_s: float, shown: Iterable[tuple[str, dict[str, str], float]]) -> None:
        self.last = time_s
        for name, labels, value in shown:
            key = (name, frozenset(labels.items()))
            self.series.setdefault(key, []).append((time_s, value))
            self.seen[key] = time_s

    def _select_series(self, selector: Any) -> Iterator[tuple[Labels, list[tuple[float, float]], bool]]:
        for key, points in self.series.items():
            if key[0] == selector.name and all(_matches_labels(m, dict(key[1])) for m in selector.matchers.matchers):
                yield key[1], points, self.seen[key] < self.last

    def evaluate_query(self, node: Any) -> Vector | float:
        """Return the value of a query at the last scrape."""
        return self._evaluate_node(node)

    def _evaluate_node(self, node: Any) -> Any:
        if isinstance(node, promql.NumberLiteral):
            return node.val
        if isinstance(node, promql.ParenExpr):
            return self._evaluate_node(node.expr)
        if isinstance(node, promql.VectorSelector):
            fresh = ((labels, points) for labels, points, gone in self._select_series(node) if not gone)
            return {labels: p[-1][1] for labels, p in fresh if p[-1][0] > self.last - LOOKBACK}
        if isinstance(node, promql.AggregateExpr):
            return self._evaluate_sum(node)
        if isinstance(node, promql.Call):
            return self._evaluate_call(node)
        if isinstance(node, promql.BinaryExpr):
            return _evaluate_binary(str(node.op), self._evaluate_node(node.lhs), self._evaluate_node(node.rhs))
        raise KeyError(type(node).__name__)

    def _evaluate_sum(self, node: Any) -> Vector:
        assert str(node.op) == "sum", node.op
        by, sums = set(node.modifier.labels), Vector()
        for labels, value in self._evaluate_node(node.expr).items():
            group = frozenset(pair for pair in labels if pair[0] in by)
            sums[group] = sums.get(group, 0.0) + value
        return sums

    def _evaluate_call(self, node: Any) -> Any:
        name = node.func.name
        if name == "time":
            return self.last
        if name == "histogram_quantile":
            return _histogram_quantile(node.args[0].val, self._evaluate_node(node.args[1]))
        over = node.args[0]
        since = self.last - over.range.total_seconds()
        least, function = _RANGES[name]
        more = [a.val for a in node.args[1:]]
        within = (
            (labels, [p for p in points if p[0] > since])
            for labels, points, _ in self._select_series(over.vector_selector)
        )
        return {
            labels: function(points, over.range.total_seconds(), *more)
            for labels, points in within
            if len(points) >= least
        }


def _matches_labels(matcher: Any, labels: dict[str, str]) -> bool:
    label, op = labels.get(matcher.name, ""), str(matcher.op).rpartition(".")[2]
    if op in ("Equal", "NotEqual"):
        return (label == matcher.value) == (op == "Equal")
    return (re.fullmatch(matcher.value, label) is not None) == (op == "Re")


def _increase(points: list[tuple[float, float]], seconds: float) -> float:
    return sum(b if b < a else b - a for (_, a), (_, b) in itertools.pairwise(points))


def _predict_linear(points: list[tuple[float, float]], seconds: float, ahead: float) -> float:
    now = points[-1][0]
    times, values = [t - now for t, _ in points], [v for _, v in points]
    t, v = sum(times) / len(times), sum(values) / len(values)
    square = sum((x - t) ** 2 for x in times)
    slope = sum((x - t) * (y - v) for x, y in zip(times, values, strict=True)) / square
    return v + slope * (ahead - t)


_RANGES: dict[str, tuple[int, Any]] = {  # name -> minimum number of samples, function of the samples
    "increase": (2, _increase),
    "rate": (2, lambda points, seconds: _increase(points, seconds) / seconds),
    "delta": (2, lambda points, seconds: points[-1][1] - points[0][1]),
    "changes": (
        1,
        lambda points, seconds: float(sum(a[1] != b[1] for a, b in itertools.pairwise(points))),
    ),
    "last_over_time": (1, lambda points, seconds: points[-1][1]),
    "predict_linear": (2, _predict_linear),
}
_COMPARE = {">": float.__gt__, "<": float.__lt__, "==": float.__eq__}
_CALCULATE = {
    "-": float.__sub__,
    "*": float.__mul__,
    "/": lambda a, b: a / b if b else (math.nan if not a else math.inf),
}


def _evaluate_binary(op: str, left_operand: Any, right_operand: Any) -> Any:
    if op == "and":
        return {labels: v for labels, v in left_operand.items() if labels in right_operand}
    if isinstance(left_operand, float | int) and isinstance(right_operand, dict):
        assert op in _CALCULATE
        return {labels: _CALCULATE[op](float(left_operand), float(v)) for labels, v in right_operand.items()}
    others = right_operand if isinstance(right_operand, dict) else dict.fromkeys(left_operand, right_operand)
    pairs = {labels: (float(v), float(others[labels])) for labels, v in left_operand.items() if labels in others}
    if op in _COMPARE:
        return {labels: a for labels, (a, b) in pairs.items() if _COMPARE[op](a, b)}
    return {labels: _CALCULATE[op](a, b) for labels, (a, b) in pairs.items()}


def _histogram_quantile(q: float, buckets: Vector) -> Vector:
    groups: dict[Labels, list[tuple[float, float]]] = {}
    for labels, count in buckets.items():
        rest = frozenset(pair for pair in labels if pair[0] != "le")
        groups.setdefault(rest, []).append((float(dict(labels)["le"]), count))
    quantiles = {}
    for labels, edges in groups.items():
        edges.sort()
        if not edges[-1][1]:
            continue
        rank, low, below = q * edges[-1][1], 0.0, 0.0
        for edge, count in edges:
            if count >= rank:
                quantiles[labels] = low if edge == math.inf else low + (edge - low) * (rank - below) / (count - below)
                break
            low, below = edge, count
    return quantiles
