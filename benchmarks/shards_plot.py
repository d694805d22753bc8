"""The plot of `benchmarks.shards`: seconds and bytes over the number of shards, a line per number of partitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from slackwater.ui.svg import Markup, el, line, path, text

PANELS = (
    ("The driver's part of an epoch, seconds of a processor", "cpu_s", 1.0),
    ("The record of a commit, MB", "commit_bytes", 1e-6),
)
_WIDTH, _HEIGHT, _GAP, _LEFT, _RIGHT = 1000, 190, 70, 80, 200
_STYLE = (
    "svg{background:#fff;font-family:system-ui,'Segoe UI','Noto Sans','DejaVu Sans',sans-serif;font-size:13px}"
    "text{fill:#333}.head{font-weight:600}.grid{stroke:#ddd}polyline{stroke-width:1.5}"
    ".s0{stroke:#1f6fb2}.s1{stroke:#c2571a}.s2{stroke:#3b8a3e}text.s0,text.s1,text.s2{stroke:none}"
    "text.s0{fill:#1f6fb2}text.s1{fill:#c2571a}text.s2{fill:#3b8a3e}"
)


def drawn(figures: Sequence[Mapping[str, Any]]) -> str:
    """The file's text."""
    height = len(PANELS) * (_HEIGHT + _GAP) + 10
    whole = el(
        "svg",
        el("style", Markup(_STYLE)),
        *(part for number, panel in enumerate(PANELS) for part in _panel(number, *panel, figures)),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_WIDTH} {height}",
        role="img",
        aria_label="The driver's part of an epoch over the number of shards",
    )
    return str(whole).replace("><", ">\n<") + "\n"


def _panel(number: int, name: str, key: str, times: float, figures: Sequence[Mapping[str, Any]]) -> Iterator[Markup]:
    top = number * (_HEIGHT + _GAP) + 30
    bottom, right = top + _HEIGHT, _WIDTH - _RIGHT
    most = max(f[key] for f in figures) * times * 1.1 or 1.0
    shards = sorted({f["shards"] for f in figures})
    yield text(_LEFT, top - 10, name, "head")
    for part in range(5):
        y = bottom - _HEIGHT * part / 4
        yield line(_LEFT, y, right, y, "grid")
        yield text(_LEFT - 8, y + 4, f"{most * part / 4:.2f}", "tick", "end")
    for count in shards:
        yield text(_x(count, shards, right), bottom + 18, str(count), "tick", "middle")
    yield text(right, bottom + 36, "shards", "tick", "end")
    free = float(top)
    ends = []
    for which, partitions in enumerate(sorted({f["partitions"] for f in figures})):
        own = sorted((f for f in figures if f["partitions"] == partitions), key=lambda f: f["shards"])
        points = [
            (round(_x(f["shards"], shards, right), 1), round(bottom - _HEIGHT * f[key] * times / most, 1)) for f in own
        ]
        yield path(points, f"s{which}")
        ends.append((points[-1][1], which, f"{partitions:,} partitions: {own[-1][key] * times:.2f}"))
    for y, which, label in sorted(ends):  # names beside the ends of their lines, none over another
        free = max(y + 4, free)
        yield text(right + 8, free, label, f"s{which}")
        free += 16


def _x(count: int, shards: Sequence[int], right: float) -> float:
    return _LEFT + (right - _LEFT) * count / shards[-1]
