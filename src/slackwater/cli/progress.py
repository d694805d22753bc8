"""Progress of a running pipeline: a live table on a terminal, log lines elsewhere."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import Protocol, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from slackwater.cli.format import describe_source, describe_state
from slackwater.core.humanize import format_size, format_stamp, format_time
from slackwater.engine.status import Status
from slackwater.runner import run_log

log = logging.getLogger("slackwater")


class ProgressView(Protocol):
    """Displays the progress of a run."""

    def status(self, status: Status) -> None: ...

    def notice(self, level: str, line: str) -> None: ...

    def close(self) -> None: ...


class LiveProgress:
    """Redraws a table in place. Log lines of the engine appear above it."""

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
    """Render one status as a table."""
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
    """Logs the status at most once per `every` seconds.

    The first and the last status are always logged, as are those of epochs that emitted results or had late rows.
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
    """Duplicate the descriptor of standard error, because the engine redirects descriptor 2 while Spark starts."""
    try:
        return os.fdopen(os.dup(sys.stderr.fileno()), "w", buffering=1, encoding="utf-8", errors="replace")
    except (OSError, ValueError):  # not a file
        return sys.stderr


def _close_stream(stream: TextIO) -> None:
    if stream is not sys.stderr:
        stream.close()


def _redirect_log(handler: logging.Handler) -> Callable[[], None]:
    """Send the engine's log records to this handler alone. Return a function that restores the previous handlers."""
    before = (log.handlers, log.propagate, log.level)
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO)

    def restore() -> None:
        log.handlers, log.propagate = before[0], before[1]
        log.setLevel(before[2])

    return restore


class _ProgressHandler(logging.Handler):
    """Passes log records to a view as notices."""

    def __init__(self, view: ProgressView) -> None:
        super().__init__()
        self._view = view

    def emit(self, record: logging.LogRecord) -> None:
        self._view.notice("warning" if record.levelno >= logging.WARNING else "info", record.getMessage())


class _ProgressFormatter(logging.Formatter):
    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 — logging's name
        return format_stamp(int(record.created * 1e6))


def choose_view(every: float = 1.0) -> ProgressView:
    """Return a live view on a terminal, otherwise a view that logs a line at most once per `every` seconds."""
    return LiveProgress() if sys.stderr.isatty() else LogProgress(every)
