"""Output of the commands: the status and summary of a run, its live progress, aligned columns, and the program's name.

The progress of a run is a live table on a terminal, and log lines elsewhere.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from slackwater.config.pipeline import Pipeline
from slackwater.core.humanize import format_age, format_size, format_stamp, format_time, plural
from slackwater.engine.observer import Observer, RunSchema, SourceStatus, Status
from slackwater.runner import run_log
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


# -- progress of a run ---------------------------------------------------------------------------------------------------


_SHORTEST_S = 0.05  # shorter phases of an epoch are not listed in a timeline
log = logging.getLogger("slackwater")


class ProgressView(Protocol):
    """The interface of a view that displays the progress of a run."""

    def status(self, status: Status) -> None: ...

    def notice(self, level: str, line: str) -> None: ...

    def close(self) -> None: ...


class LiveProgress:
    """A table on the terminal that is redrawn in place. The engine's log lines appear above it."""

    def __init__(self) -> None:
        self._out = _duplicate_stderr()
        self.console = Console(file=self._out)
        self._live = Live(Text("starting Spark …"), console=self.console, refresh_per_second=4, transient=False)
        self._live.start()
        self._restore = _redirect_log(_ProgressHandler(self))

    def status(self, status: Status) -> None:
        self._live.update(render_status(status))

    def notice(self, level: str, line: str) -> None:
        self.console.print(Text(line, style="bold yellow" if level == "warning" else "dim"))

    def close(self) -> None:
        self._restore()
        self._live.stop()
        _close_stream(self._out)


def render_status(status: Status) -> Group:
    """Render the status of a run as a table, with a line per source and a progress bar for files."""
    table = Table.grid(padding=(0, 2))
    c = status.counters
    table.add_row("epoch", f"{status.epoch:,}", "rows/s", f"{status.rows_per_second:,.0f}")
    table.add_row("rows in", f"{c.rows_in:,}", "emitted", f"{c.rows_emitted:,}")
    table.add_row("late", f"{c.rows_late:,}", "bad", f"{c.rows_bad:,}")
    table.add_row(*describe_state(status), "state", format_size(status.state_bytes))
    table.add_row("watermark", format_time(status.watermark_us), "", "")
    lines = [Text(f"  {describe_source(s, status)}") for s in status.sources]
    parts: list[object] = [Text(status.pipeline, style="bold"), table, *lines]
    if status.files_total:
        progress = Table.grid(padding=(0, 2))
        done = status.files_done or 0
        bar = ProgressBar(total=status.files_total, completed=done, width=40)
        progress.add_row(bar, Text(f"{done} of {status.files_total} files"))
        parts.append(progress)
    return Group(*parts)  # type: ignore[arg-type]


class LogProgress:
    """A view that logs the status of a run at most once per `every` seconds.

    Regardless of this limit, it logs the first and the last status, and that of any epoch with results or late rows.
    """

    def __init__(self, every: float = 1.0) -> None:
        self._out = _duplicate_stderr()
        handler = logging.StreamHandler(self._out)
        handler.setFormatter(_ProgressFormatter("%(asctime)s %(levelname)s %(message)s"))
        self._restore = _redirect_log(handler)
        self._lines = run_log.ThrottledStatusLog(every)

    def status(self, status: Status) -> None:
        self._lines.status(status)

    def notice(self, level: str, line: str) -> None:
        run_log.log_notice(level, line)

    def close(self) -> None:
        self._lines.close()
        self._restore()
        _close_stream(self._out)


def _duplicate_stderr() -> TextIO:
    """Return a stream to standard error that still works while the engine redirects file descriptor 2."""
    try:
        return os.fdopen(os.dup(sys.stderr.fileno()), "w", buffering=1, encoding="utf-8", errors="replace")
    except (OSError, ValueError):  # a replaced stream may have no descriptor
        return sys.stderr


def _close_stream(stream: TextIO) -> None:
    if stream is not sys.stderr:
        stream.close()


def _redirect_log(handler: logging.Handler) -> Callable[[], None]:
    """Send the engine's log records only to `handler`. Return a function that restores the previous handlers."""
    before = (log.handlers, log.propagate, log.level)
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO)

    def restore() -> None:
        log.handlers, log.propagate = before[0], before[1]
        log.setLevel(before[2])

    return restore


class _ProgressHandler(logging.Handler):
    """A log handler that shows log records in a progress view."""

    def __init__(self, view: ProgressView) -> None:
        super().__init__()
        self._view = view

    def emit(self, record: logging.LogRecord) -> None:
        self._view.notice("warning" if record.levelno >= logging.WARNING else "info", record.getMessage())


class _ProgressFormatter(logging.Formatter):
    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 — logging's name
        return format_stamp(int(record.created * 1e6))


def choose_view(every: float = 1.0) -> ProgressView:
    """Return a table for a terminal; otherwise, a view that logs a line at most once per `every` seconds."""
    return LiveProgress() if sys.stderr.isatty() else LogProgress(every)


# -- the startup timeline (`slackwater run --timings`) -----------------------------------------------------------------


class StartTimeline(Observer):
    """An observer that prints the startup timeline once the first epoch is committed or the run ends.

    Example:
        start of clicks, in seconds since the command began:
           0.8  the config is checked
           6.7  Spark runs
           8.2  the SQL is bound to the sources
          10.1  sources and targets are open
          14.0  epoch 0 is committed: 500,000 rows; plan 0.3, ingest 3.1, commit 0.1, write 0.4

    Args:
        notice: Receives the level and the text of the timeline.
        began: When the command began, as returned by `time.monotonic`.
    """

    def __init__(self, notice: Callable[[str, str], None], began: float) -> None:
        self._notice, self._began = notice, began
        self._pipeline = ""
        self._lines: list[str] = []
        self._is_running = self._is_printed = False

    def on_start(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline.name
        self._add("the config is checked")

    def on_spark(self) -> None:
        self._add("Spark runs")

    def on_schema(self, columns: RunSchema) -> None:
        self._add("the SQL is bound to the sources")

    def on_running(self) -> None:
        self._is_running = True
        self._add("sources and targets are open")

    def on_commit(self, status: Status) -> None:
        if not self._is_running or self._is_printed:  # a commit of an earlier run is reported before
            return
        phases = [f"{name} {seconds:.1f}" for name, seconds in status.phases.items() if seconds >= _SHORTEST_S]
        self._add("; ".join([f"epoch {status.epoch} is committed: {plural(status.rows, 'row')}", ", ".join(phases)]))
        self._print()

    def on_end(self, error: BaseException | None) -> None:
        if not self._is_printed:
            self._add("the run ends" if error is None else "the run fails")
            self._print()

    def _add(self, text: str) -> None:
        self._lines.append(f"{time.monotonic() - self._began:>7.1f}  {text}")

    def _print(self) -> None:
        self._is_printed = True
        self._notice(
            "info", "\n".join([f"start of {self._pipeline}, in seconds since the command began:", *self._lines])
        )
