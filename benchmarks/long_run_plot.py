"""Plot of `benchmarks.long_run`: four panels over the number of epochs, as one SVG file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks import line_charts

PANELS: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("Seconds per epoch", {"seconds": "on the clock", "cpu_s": "of the processors"}),
    ("Memory, MiB", {"jvm_mib": "JVM", "python_mib": "Python"}),
    ("Files of the state", {"state_files": "files"}),
    ("Of all processes", {"open_files": "open files", "connections": "connections", "threads": "threads"}),
)


def draw_long_run(epochs: Sequence[int], samples: Sequence[Mapping[str, float]]) -> str:
    """Return the SVG text. `samples` has the figures after each number in `epochs`."""
    last = epochs[-1]
    ticks = [(last * part / 4, f"{last * part / 4:,.0f}") for part in range(5)]
    panels = []
    for name, series in PANELS:
        lines = [
            (title, [(e, sample[key]) for e, sample in zip(epochs, samples, strict=True)])
            for key, title in series.items()
        ]
        panels.append(line_charts.LineChart(name, lines, ticks, last, number=_format_number))
    return line_charts.draw_line_charts(
        f"Time, memory, files and connections over {last:,} epochs", panels, line_charts.ChartLayout(150, 60, 170)
    )


def _format_number(value: float) -> str:
    return f"{value:,.0f}" if value >= 20 else f"{value:.2f}".rstrip("0").rstrip(".")
