"""`backfill`: runs a pipeline over bounded history and prints a summary."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterator
from pathlib import Path

from slackwater.cli import progress as views
from slackwater.cli.run import stop_on_signals
from slackwater.config import toml
from slackwater.core.humanize import format_time, mismatch, plural
from slackwater.core.time import parse_duration_ms
from slackwater.errors import StartError
from slackwater.explain import describe_result_location
from slackwater.runner.backfill import BackfillResult, run_backfill
from slackwater.runner.backfill_plan import backfill_pipeline

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def backfill_file(
    file: Path, since: str, until: str, partial: bool, into: str | None, slack: str | None, target: str | None = None
) -> None:
    """Run a backfill and print its summary. A signal stops it after the epoch in progress. Raises SlackwaterError."""
    pipeline = toml.load(file).one_target(target)
    since_us, until_us = _parse_time_us(since, "--from"), _parse_time_us(until, "--to")
    where = describe_result_location(backfill_pipeline(pipeline, since_us, until_us, into))
    view, stop = views.choose_view(1.0), threading.Event()
    try:
        with stop_on_signals(stop, view):
            outcome = run_backfill(
                pipeline,
                since_us,
                until_us,
                partial=partial,
                into=into,
                slack_ms=None if slack is None else _parse_duration_ms(slack),
                on_status=view.status,
                on_notice=view.notice,
                stop=stop,
            )
    finally:
        view.close()
    durable = pipeline.state_store is not None and pipeline.state_store.durable
    print("\n".join(_summary_lines(outcome, f"{format_time(since_us)} to {format_time(until_us)}", where, durable)))


def _parse_time_us(text: str, option: str) -> int:
    """Parse a time in ISO 8601 (UTC if it has no offset) to microseconds. Raises StartError."""
    try:
        time = dt.datetime.fromisoformat(text)
    except ValueError:
        raise StartError(
            f"{option}: " + mismatch(f'"{text}"', "a time such as 2026-03-01 or 2026-03-01T12:00:00Z")
        ) from None
    return (time.replace(tzinfo=time.tzinfo or dt.UTC) - _EPOCH) // dt.timedelta(microseconds=1)


def _parse_duration_ms(text: str) -> int:
    try:
        ms = parse_duration_ms(int(text) if text.isdecimal() else text)
        if ms >= 0:
            return ms
    except ValueError:
        pass
    raise StartError("--slack: " + mismatch(f'"{text}"', "a duration such as 30s, 5m or 2h"))


def _summary_lines(outcome: BackfillResult, span: str, where: str, durable: bool) -> Iterator[str]:
    """Yield the lines of a backfill's summary."""
    written, status = outcome.written, outcome.status
    if status is None:
        yield f"{outcome.pipeline}: stopped before the first epoch"
        return
    c = status.counters
    yield f"{outcome.pipeline}: {span}, {plural(c.rows_in, 'row')} read"
    yield f"  {c.rows_used:,} used, {c.rows_late:,} late, {c.rows_refused:,} refused, {c.rows_bad:,} bad"
    since = "" if outcome.after is None else f", resumed after epoch {outcome.after}"
    yield f"  {plural(written.windows, 'window')} written to {where}{since}"
    left_out = [
        text
        for count, text in (
            (written.before, f"{written.before:,} begin before the range"),
            (written.unfinished, f"{written.unfinished:,} are not complete yet"),
        )
        if count
    ]
    if left_out:
        yield f"  {plural(written.before + written.unfinished, 'window')} left out: {', '.join(left_out)}; --partial writes them"
    if not outcome.done:
        yield "  stopped; " + (
            "the same command continues from here"
            if durable
            else "its state was in memory, so the next one starts over"
        )
