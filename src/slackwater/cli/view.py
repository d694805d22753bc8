"""What a running pipeline shows: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import datetime as dt
import logging
import sys
import time
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from slackwater.cli.describe import size
from slackwater.engine.status import SourceStatus, Status

log = logging.getLogger("slackwater")


class View(Protocol):
    def status(self, status: Status) -> None: ...

    def notice(self, level: str, line: str) -> None: ...

    def close(self) -> None: ...


def moment(us: int | None) -> str:
    """A time in microseconds UTC for people; `none yet` for None."""
    if us is None:
        return "none yet"
    try:
        at = dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=us)
    except OverflowError:
        return f"{us} µs"
    return f"{at:%Y-%m-%d %H:%M:%S}Z"


def ago(us: int) -> str:
    """A distance in time, in its largest sensible unit."""
    seconds = us / 1e6
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if abs(seconds) >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s"


class LiveView:
    """A table that is redrawn in place."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self._live = Live(Text("starting Spark …"), console=self.console, refresh_per_second=4, transient=False)
        self._live.start()

    def status(self, status: Status) -> None:
        self._live.update(render(status))

    def notice(self, level: str, line: str) -> None:
        self.console.print(Text(line, style="bold yellow" if level == "warning" else "dim"))

    def close(self) -> None:
        self._live.stop()


def render(status: Status) -> Group:
    """The live view of one status."""
    table = Table.grid(padding=(0, 2))
    c = status.counters
    table.add_row("epoch", f"{status.epoch:,}", "rows/s", f"{status.rows_per_second:,.0f}")
    table.add_row("rows in", f"{c.rows_in:,}", "emitted", f"{c.rows_emitted:,}")
    table.add_row("late", f"{c.rows_late:,}", "bad", f"{c.rows_bad:,}")
    table.add_row("open windows", f"{status.windows_active:,}", "state", size(status.state_bytes))
    table.add_row("watermark", moment(status.watermark_us), "", "")
    lines = [Text(f"  {describe(s, status)}") for s in status.sources]
    parts: list[object] = [Text(status.pipeline, style="bold"), table, *lines]
    if status.files_total:
        parts.append(ProgressBar(total=status.files_total, completed=status.files_done or 0, width=60))
        parts.append(Text(f"{status.files_done} of {status.files_total} files"))
    return Group(*parts)  # type: ignore[arg-type]


def describe(source: SourceStatus, status: Status) -> str:
    """One source: its watermark, how far that is behind the clock, and whether it is idle."""
    if source.watermark_us is None:
        behind = "no event yet"
    else:
        behind = (
            f"watermark {moment(source.watermark_us)}, {ago(status.clock_us - source.watermark_us)} behind the clock"
        )
    return f"{source.name}: {behind}{', idle' if source.idle else ''}"


class LogView:
    """Log lines, at most one status per second, and always those that emitted or lost something."""

    def __init__(self) -> None:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_Formatter("%(asctime)s %(levelname)s %(message)s"))
        self._before = (log.handlers, log.propagate, log.level)
        log.handlers, log.propagate = [handler], False
        log.setLevel(logging.INFO)
        self._last = 0.0

    def status(self, status: Status) -> None:
        now = time.monotonic()
        if now - self._last < 1 and not (status.emitted or status.late):
            return
        self._last = now
        log.info("%s", line(status))

    def notice(self, level: str, line: str) -> None:
        log.log(logging.WARNING if level == "warning" else logging.INFO, "%s", line)

    def close(self) -> None:
        log.handlers, log.propagate, level = self._before
        log.setLevel(level)


class _Formatter(logging.Formatter):
    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 — logging's name
        return f"{dt.datetime.fromtimestamp(record.created, dt.UTC):%Y-%m-%dT%H:%M:%S}Z"


def line(status: Status) -> str:
    """A status as one line of key=value."""
    c = status.counters
    sources = " ".join(
        f"watermark[{s.name}]={moment(s.watermark_us).replace(' ', 'T')}{'(idle)' if s.idle else ''}"
        for s in status.sources
    )
    progress = f" files={status.files_done}/{status.files_total}" if status.files_total else ""
    return (
        f"pipeline={status.pipeline} epoch={status.epoch} rows={status.rows} rows_per_s={status.rows_per_second:.0f} "
        f"emitted={status.emitted} late={c.rows_late} bad={c.rows_bad} refused={c.rows_refused} "
        f"open_windows={status.windows_active} state_bytes={status.state_bytes} "
        f"watermark={moment(status.watermark_us).replace(' ', 'T')} {sources}{progress}"
    )


def choose() -> View:
    """The live view on a terminal, else log lines."""
    return LiveView() if sys.stderr.isatty() else LogView()


def summary(status: Status | None, pipeline: str, where: str) -> str:
    """What a finished run says."""
    if status is None:
        return f"{pipeline}: nothing new, nothing committed"
    c = status.counters
    emitted = ", ".join(f"{n:,} {reason}" for reason, n in sorted(c.emitted.items())) or "none"
    lines = [
        f"{pipeline}: epoch {status.epoch}, {c.rows_in:,} rows in",
        f"  {c.rows_used:,} used, {c.rows_late:,} late, {c.rows_refused:,} refused, {c.rows_bad:,} bad"
        + (
            f", {c.rows_in - c.rows_bad - c.rows_sql:,} filtered by the SQL"
            if c.rows_in - c.rows_bad != c.rows_sql
            else ""
        ),
        f"  {c.rows_emitted:,} windows emitted ({emitted}), {status.windows_active:,} open; results in {where}",
    ]
    if c.rows_sql and c.rows_late > c.rows_sql / 2:
        lines.append(
            f"  most rows came late: the newest event time read is {moment(max(s.max_event_us or 0 for s in status.sources))}; "
            "a clock in the input may be wrong: bound it with max_future_ms or filter it at the source, or raise lateness_ms"
        )
    return "\n".join(lines)
