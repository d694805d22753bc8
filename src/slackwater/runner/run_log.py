"""What a run reports: notices and statuses for observers, log lines, and summaries of the results.

slackwater 0.1.0: clicks, state in files at "state", new; reads "events": …, from its first file; writes …
starting Spark, which takes 5 to 30 s …
Spark 4.3.0 is up after 6 s, local[2], Java 25.0.3
pipeline=clicks epoch=0 rows=3 emitted=0 late=0 … rows_total=3 …
clicks: ended after epoch 12, 34 s: …
18,335 sessions: 17,428 closed by the watermark, 146 cut at 12 hours, 761 by --flush; 0 open
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from slackwater import explain
from slackwater.config.connector_description import CONNECTORS
from slackwater.config.pipeline import Pipeline, resolve_connection
from slackwater.config.source import Source
from slackwater.config.window import KINDS_OF_WINDOW
from slackwater.core.humanize import format_duration, format_stamp, plural
from slackwater.engine.observer import BufferCounts, Observer, ObserverGroup, StageStatus, Status
from slackwater.runner import run_options
from slackwater.secret_masking import mask_secrets
from slackwater.state.commit import Commit

log = logging.getLogger("slackwater")


# -- startup -----------------------------------------------------------------------------------------------------------


def start_line(pipeline: Pipeline, latest: Commit | None) -> str:
    """Return the first log line of a run: version, pipeline, state, sources, and the location of the results."""
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
        return run_options.describe_source_start(pipeline, source)
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

    The first and the last epoch are always logged, as are epochs with emitted or late rows.
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
    """Return the last log line of a run that took `seconds`: the counts of all runs, and where the results are."""
    if status is None:
        return f"{pipeline.name}: ended after {seconds:.0f} s; nothing new, nothing committed"
    c = status.counters
    results = "; ".join(summarize_results(replace(status, config=pipeline), "by flush"))
    between = f"; {describe_late_results(status)}" if status.stages[1:] else ""
    return (
        f"{pipeline.name}: ended after {seconds:.0f} s at epoch {status.epoch}; rows in all: {c.rows_in:,} in, "
        f"{c.used_text}, {c.rows_late:,} late, {c.rows_refused:,} refused, {c.rows_bad:,} bad; "
        f"{results}{between}; results in {explain.describe_result_location(pipeline)}"
    )


def describe_late_results(status: Status) -> str:
    """Describe how many results were late for the stage that reads them. A correct pipeline has none."""
    return f"{plural(status.counters.late_between_stages, 'result')} late between stages"


def describe_last_commit(state: Commit | None) -> str:
    """Describe the last commit in one sentence."""
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
    """Passes notices and statuses on to callbacks and observers. `last`: the status after the latest commit."""

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
        """Report the status after a commit, with the progress of this run."""
        if self._files:
            status = replace(status, files_done=self._files[0], files_total=max(self._files))
        self.last = status
        self.status(status)

    def status(self, status: Status) -> None:
        if self._on_status:
            self._on_status(status)
        self.observers.on_commit(status)


# -- summaries of results ------------------------------------------------------------------------------------------------


FLUSH = "by --flush"  # the name of the option on the command line
_TAKEN_BACK = "supersede"
_REASON_TEXTS = {
    "close": "closed by the watermark",
    "cap": "cut at {cap}",
    "flush": "{flush}",
    "update": "updates before they closed",
    "late": "corrected by late rows",
    "standalone": "from late rows only",
    "match": "pairs",
    "unmatched": "without a partner",
}


def summarize_results(status: Status, flush: str = FLUSH) -> Iterator[str]:
    """Yield a line about the results of a pipeline. For several stages, yield one line per stage, with its name."""
    if not status.stages[1:]:
        yield _result_line(
            status.window_kind, status.counters.emitted, _open_text(status), _cap_text(status.config, None), flush
        )
        return
    for stage in status.stages:
        text = _result_line(
            stage.kind, stage.counters.emitted, _open_text(stage), _cap_text(status.config, stage.name), flush
        )
        yield f'stage "{stage.name}": {text}'


def _result_line(kind: str, emitted: Mapping[str, int], open_text: str, cap: str, flush: str) -> str:
    """Return one line about results. `emitted`: the number of results by reason. The other arguments are texts."""
    counts = {reason: n for reason, n in emitted.items() if n and reason != _TAKEN_BACK}
    total = sum(counts.values())
    noun = "session" if kind == "session" else "window" if kind in KINDS_OF_WINDOW else "row"
    text = plural(total, noun)
    # the only reason of a stateless or keyed step is its name, which is not shown
    if any(reason in _REASON_TEXTS for reason in counts):
        text += ": " + ", ".join(_reason(reason, n, cap, flush) for reason, n in _ordered(counts))
    if gone := emitted.get(_TAKEN_BACK, 0):
        text += f", and {gone:,} deleted"
    return f"{text}; {open_text}"


def _ordered(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    order = [*_REASON_TEXTS]
    return sorted(counts.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order))


def _reason(reason: str, count: int, cap: str, flush: str) -> str:
    if reason == "match":
        return plural(count, "pair")
    return f"{count:,} {_REASON_TEXTS.get(reason, reason).format(cap=cap, flush=flush)}"


def _open_text(status: Status | StageStatus) -> str:
    """Describe how much is in the state: open windows, rows that wait for partners, or keys."""
    kind = status.window_kind if isinstance(status, Status) else status.kind
    buffered: Mapping[str, BufferCounts] = status.buffered
    if buffered:
        return f"{' and '.join(f'{buffer.rows:,} {side}' for side, buffer in buffered.items())} rows wait for partners"
    if kind in KINDS_OF_WINDOW:
        return f"{status.windows_active if isinstance(status, Status) else status.open:,} open"
    return f"{plural(status.groups, 'key')} kept" if status.groups else "no state"


def _cap_text(pipeline: Pipeline | None, stage: str | None) -> str:
    """Format the cap of the sessions of a stage. `stage`: its name; None for the last stage."""
    if pipeline is None:
        return "max_session_duration"
    stage_pipeline: Any = (
        pipeline.target_stage if stage is None else pipeline.stage_pipelines.get(stage, pipeline.target_stage)
    )
    window = stage_pipeline.transform.window
    cap = None if window is None else window.max_session_duration_ms
    return "max_session_duration" if cap is None else format_duration(cap)
