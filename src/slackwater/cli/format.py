"""Text for the command line: the status and the summary of a run, aligned columns, and the program's own name."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from slackwater.core.humanize import format_age, format_time, plural
from slackwater.engine.observer import SourceStatus, Status
from slackwater.runner.run_log import describe_late_results, summarize_results


def program_command() -> str:
    """Return the command that runs this program: its name if it is on PATH, otherwise its path."""
    script = Path(sys.executable).parent / "slackwater"
    if shutil.which("slackwater") is not None or not script.exists():
        return "slackwater"
    return shlex.quote(str(script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script))


def describe_source(source: SourceStatus, status: Status) -> str:
    """Describe a source: its watermark, the lag of the watermark behind the clock, and whether the source is idle."""
    if source.watermark_us is None:
        behind = "no event yet"
    else:
        behind = f"watermark {format_time(source.watermark_us)}, {format_age(status.clock_us - source.watermark_us)} behind the clock"
    return f"{source.name}: {behind}{', idle' if source.idle else ''}"


def describe_state(status: Status) -> tuple[str, str]:
    """Return a label such as `open windows`, and the formatted number of windows or rows in the state."""
    if status.buffered:
        return "buffered", " + ".join(f"{side.rows:,}" for side in status.buffered.values())
    return "open windows", f"{status.windows_active:,}"


def format_run_summary(status: Status | None, pipeline: str, where: str) -> str:
    """Return the summary of a finished run.

    Args:
        status: The status of the last commit; None if nothing was committed.
        pipeline: The name of the pipeline.
        where: The location of the results.
    """
    if status is None:
        return f"{pipeline}: nothing new, nothing committed"
    c = status.counters
    keyless = sum(side.get("keyless", 0) for side in c.sides.values())
    lines = [
        f"{pipeline}: epoch {status.epoch}, {plural(c.rows_in, 'row')} in",
        f"  {c.used_text}, {c.rows_late:,} late, {c.rows_refused:,} refused, {c.rows_bad:,} bad"
        + (f", {keyless:,} without a key" if keyless else "")
        + (
            f", {c.rows_in - c.rows_bad - c.rows_sql:,} filtered by the SQL"
            if c.rows_in - c.rows_bad != c.rows_sql
            else ""
        ),
    ]
    *earlier, last = summarize_results(status)
    lines += [*(f"  {line}" for line in earlier), f"  {last}; results in {where}"]
    if status.stages[1:]:
        lines.append(f"  {describe_late_results(status)}")
    if c.letters:
        reasons = ", ".join(f"{n:,} {reason}" for reason, n in sorted(c.letters.items()))
        lines.append(f"  {plural(sum(c.letters.values()), 'dead letter')} ({reasons})")
    if c.rows_sql and c.rows_late > c.rows_sql / 2:
        lines.append(
            f"  most rows were late, and the newest event time is {format_time(max(s.max_event_us or 0 for s in status.sources))}; "
            "if a clock in the input is wrong, set max_future or filter its rows at the source; otherwise, raise lateness"
        )
    return "\n".join(lines)


def align_rows(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield each row as a line in which columns are aligned. All rows must have the same number of cells."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
