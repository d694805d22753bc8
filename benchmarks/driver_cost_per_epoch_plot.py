"""Plot of `benchmarks.driver_cost_per_epoch`: seconds and bytes over the number of shards, with a line per number of partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import line_charts

PANELS = (
    ("The driver's part of an epoch, CPU seconds", "cpu_s", 1.0),
    ("The record of a commit, MB", "commit_bytes", 1e-6),
)


def draw_driver_cost(figures: Sequence[Mapping[str, Any]]) -> str:
    """Return the SVG text."""
    label = "The driver's part of an epoch over the number of shards"
    return line_charts.draw_line_charts(
        label, [_figure_chart(*panel, figures) for panel in PANELS], line_charts.ChartLayout(190, 70, 200)
    )


def _figure_chart(name: str, key: str, times: float, figures: Sequence[Mapping[str, Any]]) -> line_charts.LineChart:
    shards = sorted({f["shards"] for f in figures})
    lines = []
    for partitions in sorted({f["partitions"] for f in figures}):
        partition_figures = sorted((f for f in figures if f["partitions"] == partitions), key=lambda f: f["shards"])
        lines.append((f"{partitions:,} partitions", [(f["shards"], f[key] * times) for f in partition_figures]))
    return line_charts.LineChart(name, lines, [(count, str(count)) for count in shards], shards[-1], "shards")
