"""Block at the top of the page: the commit that is shown, a summary of its rows, and what holds back its watermark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slackwater.core.humanize import format_exact_time, format_number, format_span, plural
from slackwater.query.why_report import WhyReport, describe_watermark_wait, name_clock, quote_stage
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
    return f"{watermark}{behind}; {name_clock(holder)} holds it ({since})."
