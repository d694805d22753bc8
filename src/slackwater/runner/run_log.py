"""Reports of a run: `RunNotifier` passes notices and statuses on; the log has lines at the start, per epoch and at the end.

slackwater 0.1.0: clicks, state in files at "state", new; reads "events": …, from its first file; writes …
starting Spark, which takes 5 to 30 s …
Spark 4.3.0 is up after 6.1 s, local[2]
pipeline=clicks epoch=0 rows=3 emitted=0 late=0 … rows_total=3 …
clicks: ended after epoch 12, 34 s: …
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version

from slackwater import explain
from slackwater.config.connector_description import CONNECTORS
from slackwater.config.pipeline import Pipeline, resolve_connection
from slackwater.config.source import Source
from slackwater.core.humanize import format_stamp, plural
from slackwater.engine.observer import Observer, ObserverGroup
from slackwater.engine.status import Status
from slackwater.runner import starting_offsets
from slackwater.runner.results_summary import summarize_results
from slackwater.secrets import mask_secrets
from slackwater.state.commit import Commit

log = logging.getLogger("slackwater")


# -- the start ---------------------------------------------------------------------------------------------------------


def start_line(pipeline: Pipeline, latest: Commit | None) -> str:
    """Return the first log line of a run: version, pipeline, state with its epoch, sources with their offsets, target."""
    epoch = "new" if latest is None else f"at epoch {latest.epoch}, committed {format_stamp(latest.committed_us)}"
    sources = "; ".join(
        f'"{s.name}": {_source_text(pipeline, s)}, {_position_text(pipeline, s, latest)}' for s in pipeline.sources
    )
    letters = "" if pipeline.dead_letter is None else "; bad or late rows to [dead_letter]"
    return (
        f"slackwater {version('slackwater')}: {pipeline.name}, {explain.describe_state_location(pipeline)}, {epoch}; reads {sources}; "
        f"results in {explain.describe_result_location(pipeline)}{letters}"
    )


def _source_text(pipeline: Pipeline, source: Source) -> str:
    connection = resolve_connection(source.connection, pipeline.connections)
    if source.dataframe is not None or connection is None:
        return "a streaming DataFrame"
    return CONNECTORS[connection.kind].short_name(source)


def _position_text(pipeline: Pipeline, source: Source, latest: Commit | None) -> str:
    record = None if latest is None else latest.sources.get(source.name)
    rows = 0 if latest is None or record is None else latest.clocks[source.name].rows
    if record is None or (record.offsets is None and not rows):
        return starting_offsets.describe_source_start(pipeline, source)
    if record.offsets is None:
        return f"after {plural(rows, 'row')}"
    return record.offsets.describe()


# -- epochs ------------------------------------------------------------------------------------------------------------


def status_line(status: Status) -> str:
    """Format a status as one line of key=value: the epoch, the current state, and totals of all runs (`…_total`)."""
    c = status.counters
    sources = " ".join(
        f"watermark[{s.name}]={format_stamp(s.watermark_us)}{'(idle)' if s.idle else ''}" for s in status.sources
    )
    progress = f" files={status.files_done}/{status.files_total}" if status.files_total else ""
    return (
        f"pipeline={status.pipeline} epoch={status.epoch} rows={status.rows} rows_per_s={status.rows_per_second:.0f} "
        f"emitted={status.emitted} late={status.late} {_open_fields(status)} state_bytes={status.state_bytes} "
        f"watermark={format_stamp(status.watermark_us)} {sources} rows_total={c.rows_in} emitted_total={c.rows_emitted} "
        f"late_total={c.rows_late} bad_total={c.rows_bad} refused_total={c.rows_refused}{progress}"
    )


def _open_fields(status: Status) -> str:
    if status.buffered:
        return " ".join(f"buffered_{side}={buffer.rows}" for side, buffer in status.buffered.items())
    return f"open_windows={status.windows_active}"


class ThrottledStatusLog:
    """Logs epochs, with at most one line per `interval_s` seconds.

    The first and the last epoch are always logged, as are epochs that emitted rows or had late ones.
    """

    def __init__(self, interval_s: float = 1.0) -> None:
        self._interval_s, self._last = interval_s, -math.inf
        self._skipped: Status | None = None

    def status(self, status: Status) -> None:
        now = time.monotonic()
        if now - self._last < self._interval_s and not (status.emitted or status.late):
            self._skipped = status
            return
        self._last, self._skipped = now, None
        log.info("%s", status_line(status))

    def close(self) -> None:
        if self._skipped is not None:
            log.info("%s", status_line(self._skipped))
            self._skipped = None


# -- the end -----------------------------------------------------------------------------------------------------------


def end_line(pipeline: Pipeline, status: Status | None, seconds: float) -> str:
    """Return the last line of a run."""
    if status is None:
        return f"{pipeline.name}: ended after {seconds:.0f} s; nothing new, nothing committed"
    c = status.counters
    came = "; ".join(summarize_results(replace(status, config=pipeline), "by flush"))
    between = f"; {describe_late_results(status)}" if status.stages[1:] else ""
    return (
        f"{pipeline.name}: ended after {seconds:.0f} s at epoch {status.epoch}; rows in all: {c.rows_in:,} in, "
        f"{c.used_text}, {c.rows_late:,} late, {c.rows_refused:,} refused, {c.rows_bad:,} bad; "
        f"{came}{between}; results in {explain.describe_result_location(pipeline)}"
    )


def describe_late_results(status: Status) -> str:
    """Describe how many results were late for the stage that reads them; there should be none."""
    return f"{plural(status.counters.late_between_stages, 'result')} late between stages"


def describe_last_commit(state: Commit | None) -> str:
    """Return a sentence about the last commit."""
    if state is None or state.epoch < 0:
        return "nothing was committed yet"
    return f"epoch {state.epoch} was committed last, at {format_stamp(state.committed_us)}"


# -- logging -----------------------------------------------------------------------------------------------------------


@contextmanager
def log_to_stderr() -> Iterator[Callable[[str, str], None]]:
    """Yield a function that logs notices. If logging is not configured, lines go to standard error within the block."""
    handler = None
    level, propagate = log.level, log.propagate
    if not log.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_RunLogFormatter("%(asctime)s %(levelname)s %(message)s"))
        log.addHandler(handler)
        log.propagate = False  # the root logger may get a handler in the meantime
        if level == logging.NOTSET:
            log.setLevel(logging.INFO)
    try:
        yield log_notice
    finally:
        if handler is not None:
            log.removeHandler(handler)
            log.setLevel(level)
            log.propagate = propagate


def log_notice(level: str, text: str) -> None:
    log.log(logging.WARNING if level == "warning" else logging.INFO, "%s", text)


class _RunLogFormatter(logging.Formatter):
    """A formatter that uses UTC times."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 — logging's name
        return format_stamp(int(record.created * 1e6))


class RunNotifier:
    """Sends notices and statuses. `last` is the status after the latest commit of this run; None before the first."""

    def __init__(
        self,
        on_notice: Callable[[str, str], None],
        on_status: Callable[[Status], None] | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.observers = ObserverGroup(observers)
        self.last: Status | None = None
        self._on_notice, self._on_status = on_notice, on_status
        self._files: tuple[int, int] | None = None  # files read by this run, and in total; None if the input has no end

    def notice(self, level: str, line: str) -> None:
        self._on_notice(level, mask_secrets(line))

    def expect_files(self, total: int) -> None:
        """Set the number of files that this run will read, so that statuses can show its progress."""
        self._files = (0, total)

    def files_read(self, count: int) -> None:
        if self._files:
            self._files = (self._files[0] + count, self._files[1])

    def committed(self, status: Status) -> None:
        """Report the status after a commit of this run, with its progress."""
        if self._files:
            status = replace(status, files_done=self._files[0], files_total=max(self._files))
        self.last = status
        self.status(status)

    def status(self, status: Status) -> None:
        if self._on_status:
            self._on_status(status)
        self.observers.on_commit(status)
