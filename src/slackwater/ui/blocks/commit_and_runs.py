"""Blocks at the top of the page: the commit that is shown, and the recorded runs of the pipeline, newest first.

The first block also summarizes the rows of the commit, and names the source that holds back its watermark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slackwater.core.humanize import format_exact_time, format_number, format_span, plural
from slackwater.query.why_report import WhyReport, describe_watermark_owner, describe_watermark_wait, quote_stage
from slackwater.state.run_history import KILLED, Run
from slackwater.ui.blocks.row_accounting import PARTS, RowAccounting


@dataclass(frozen=True)
class Header:
    """The header block of the page.

    Args:
        stage: The stage that is shown; None for the whole pipeline.
        published: Whether the output of the commit is published.
        accounted: Whether the row counts add up.
        sentence: A sentence that says what happened to all rows.
        held: A sentence that says what holds back the watermark.
        told: The lines that `slackwater why` prints about this commit.
    """

    pipeline: str
    stage: str | None
    epoch: int
    committed_us: int
    runner: str | None
    published: bool
    accounted: bool
    sentence: str
    held: str
    told: tuple[str, ...]


_NAMES = {"replayed": "late and replayed", "keyless": "without a key", "by_sql": "removed by the SQL"}


def build_header(report: WhyReport, rows: RowAccounting, why_lines: Sequence[str], stage: str | None = None) -> Header:
    """Build the header of a page.

    Args:
        report: The `why` report about the commit.
        rows: The row counts of the commit.
        why_lines: The `why` report as lines of text.
        stage: The stage that is shown; None for the whole pipeline.
    """
    return Header(
        pipeline=report.pipeline,
        stage=stage,
        epoch=report.epoch,
        committed_us=report.committed_us,
        runner=report.runner,
        published=report.is_published,
        accounted=not rows.unaccounted,
        sentence=_rows_sentence(rows),
        held=_watermark_sentence(report),
        told=tuple(why_lines),
    )


def _rows_sentence(rows: RowAccounting) -> str:
    t = rows.total
    counts = [
        f"{format_number(abs(v))} {'added by the SQL' if v < 0 else _NAMES.get(n, n)}"
        for n in PARTS
        if (v := getattr(t, n)) or n == "used"
    ]
    became = f"{format_number(t.rows_in)} in = {' + '.join(counts)}"
    if rows.unaccounted:
        return f"{plural(rows.unaccounted, 'row is', 'rows are')} unaccounted for: {became}"
    return f"Every row is accounted for: {became}"


def _watermark_sentence(report: WhyReport) -> str:
    watermark = "There is no watermark yet"
    if report.watermark_us is not None or report.holder is None:
        watermark = f"The watermark is at {format_exact_time(report.watermark_us)}"
    waits = f"{watermark}; stage {quote_stage(report.stage)} waits for {describe_watermark_wait(report)}"
    holder = report.holder
    if holder is None and report.through:
        return f"{waits}."
    if holder is None:
        silence_us = report.idle_close_us
        advances = "" if silence_us is None else f"; it advances after {format_span(silence_us)} of silence"
        return f"{watermark}; no source holds it: all are idle{advances}."
    since = "it had rows in this epoch"
    if holder.quiet_us:
        quiet_since = format_exact_time(report.committed_us - holder.quiet_us)
        since = f"quiet for {format_span(holder.quiet_us)}, since {quiet_since}"
    if report.through:
        return f"{waits} ({since})."
    behind = ""
    if report.watermark_us is not None:
        behind = f", {format_span(report.committed_us - report.watermark_us)} behind the clock of the commit"
    return f"{watermark}{behind}; {describe_watermark_owner(holder)} holds it ({since})."


# -- runs ----------------------------------------------------------------------------------------------------------------


OUTCOMES = {
    "finished": "read its sources to the end",
    "stopped": "was stopped",
    "restarted": "started again for new columns",
    "failed": "failed",
    "killed": KILLED,
    "running": "is running",
}


@dataclass(frozen=True)
class PastRun:
    """One run. Times are in microseconds since 1970 (UTC), and durations in microseconds.

    Args:
        ended_us: The end of the run; None if the run is in progress or was killed.
        lasted_us: The duration of the run; None if `ended_us` is None.
        outcome: The outcome, which is a key of OUTCOMES.
        said: The outcome as text.
        last_epoch: The last epoch that the run committed; None if it did not commit any.
        epochs: The number of epochs that the run committed.
    """

    started_us: int
    ended_us: int | None
    lasted_us: int | None
    runner: str
    outcome: str
    said: str
    first_epoch: int
    last_epoch: int | None
    epochs: int | None
    error: str | None


@dataclass(frozen=True)
class Runs:
    """The block "How did the runs end?".

    `runs`: the runs, newest first. `failure`: the latest run, if it failed or was killed and no runner is active.
    """

    runs: tuple[PastRun, ...]
    failure: PastRun | None


def build_runs(recorded: Sequence[Run], runner: str | None, epoch: int) -> Runs:
    """Build the "How did the runs end?" block.

    Args:
        recorded: The runs, oldest first.
        runner: The active runner; None if no runner is active.
        epoch: The latest epoch.
    """
    nexts: list[Run | None] = [*recorded[1:], None]
    past_runs = [
        _past(run, epoch if next_run is None else next_run.epoch, next_run is None and runner is not None)
        for run, next_run in zip(recorded, nexts[: len(recorded)], strict=True)
    ]
    latest = past_runs[-1] if past_runs else None
    is_failure = runner is None and latest is not None and latest.outcome in ("failed", "killed")
    return Runs(tuple(reversed(past_runs)), latest if is_failure else None)


def _past(run: Run, epoch: int, may_run: bool) -> PastRun:
    """Convert a recorded run to a PastRun.

    `epoch`: the last epoch committed before the next run began. `may_run`: whether the run may still be in progress.
    """
    outcome = run.outcome or ("running" if may_run else "killed")
    last = epoch if run.last_epoch is None else run.last_epoch
    ended = run.ended_us
    return PastRun(
        run.started_us,
        ended,
        None if ended is None else max(ended - run.started_us, 0),
        run.runner,
        outcome,
        OUTCOMES[outcome],
        run.epoch + 1,
        last if last > run.epoch else None,
        max(last - run.epoch, 0),
        run.error,
    )
