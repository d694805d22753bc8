"""The plot of `benchmarks.flat`: four panels over the number of epochs, as one SVG file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from slackwater.ui.svg import Markup, el, line, path, text

PANELS: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("Seconds per epoch", {"seconds": "on the clock", "cpu_s": "of the processors"}),
    ("Memory, MiB", {"jvm_mib": "JVM", "python_mib": "Python"}),
    ("Files of the state", {"state_files": "files"}),
    ("Of all processes", {"open_files": "open files", "connections": "connections", "threads": "threads"}),
)
_WIDTH, _HEIGHT, _GAP, _LEFT, _RIGHT = 1000, 150, 60, 80, 170
_STYLE = (
    "svg{background:#fff;font-family:system-ui,'Segoe UI','Noto Sans','DejaVu Sans',sans-serif;font-size:13px}"
    "text{fill:#333}.head{font-weight:600}.grid{stroke:#ddd}polyline{stroke-width:1.5}"
    ".s0{stroke:#1f6fb2}.s1{stroke:#c2571a}.s2{stroke:#3b8a3e}text.s0,text.s1,text.s2{stroke:none}"
    "text.s0{fill:#1f6fb2}text.s1{fill:#c2571a}text.s2{fill:#3b8a3e}"
)


def drawn(epochs: Sequence[int], looks: Sequence[Mapping[str, float]]) -> str:
    """The file's text; `looks`: the figures after so many epochs each."""
    height = len(PANELS) * (_HEIGHT + _GAP) + 10
    parts = [part for number, panel in enumerate(PANELS) for part in _panel(number, *panel, epochs, looks)]
    whole = el(
        "svg",
        el("style", Markup(_STYLE)),
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_WIDTH} {height}",
        role="img",
        aria_label=f"Time, memory, files and connections over {epochs[-1]:,} epochs",
    )
    return str(whole).replace("><", ">\n<") + "\n"


def _panel(
    number: int, name: str, series: Mapping[str, str], epochs: Sequence[int], looks: Sequence[Mapping[str, float]]
) -> Iterator[Markup]:
    top = number * (_HEIGHT + _GAP) + 30
    bottom, right = top + _HEIGHT, _WIDTH - _RIGHT
    most = max(max(look[key] for look in looks) for key in series) * 1.1 or 1.0
    yield text(_LEFT, top - 10, name, "head")
    for part in range(5):
        y = bottom - _HEIGHT * part / 4
        yield line(_LEFT, y, right, y, "grid")
        yield text(_LEFT - 8, y + 4, _number(most * part / 4), "tick", "end")
    for part in range(5):
        x = _LEFT + (right - _LEFT) * part / 4
        yield text(x, bottom + 18, f"{epochs[-1] * part / 4:,.0f}", "tick", "middle")
    ends = []
    for which, (key, label) in enumerate(series.items()):
        points = [
            (round(_LEFT + (right - _LEFT) * e / epochs[-1], 1), round(bottom - _HEIGHT * look[key] / most, 1))
            for e, look in zip(epochs, looks, strict=True)
        ]
        yield path(points, f"s{which}")
        ends.append((points[-1][1], which, f"{label}: {_number(looks[-1][key])}"))
    free = float(top)
    for y, which, label in sorted(ends):  # names beside the ends of their lines, none over another
        free = max(y + 4, free)
        yield text(right + 8, free, label, f"s{which}")
        free += 16


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 20 else f"{value:.2f}".rstrip("0").rstrip(".")
