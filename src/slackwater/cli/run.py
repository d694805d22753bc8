"""`run` and `backfill`: run a pipeline until it ends or a signal stops it, and print a summary."""

from __future__ import annotations

import datetime as dt
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from slackwater.cli import output as views
from slackwater.cli.output import format_run_summary
from slackwater.config import toml
from slackwater.config.pipeline import Pipeline, check_run_flags
from slackwater.core.humanize import format_time, mismatch, plural
from slackwater.core.time import parse_duration_ms
from slackwater.engine.observer import Observer, Status
from slackwater.errors import ConfigError, StartError, Topic
from slackwater.explain import describe_result_location
from slackwater.runner import run_options
from slackwater.runner.backfill import BackfillResult, run_backfill
from slackwater.runner.backfill_plan import backfill_pipeline
from slackwater.runner.run_options import RunOptions
from slackwater.spark.sessions import spark_session

if TYPE_CHECKING:
    from slackwater.ui.page_server import UiServer


# -- run ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MetricsAddress:
    """The address at which a run serves its metrics. `names`: additional host names that clients may use."""

    port: int
    host: str = "127.0.0.1"
    names: Sequence[str] = ()


@dataclass(frozen=True)
class RunFlags:
    """The flags of `slackwater run`. None means that a flag was not specified. `begin` is the value of --from."""

    available_now: bool = False
    flush: bool = False
    metrics: MetricsAddress | None = None
    status_every: float = 1.0
    rebuild: bool = False
    begin: str | None = None
    put_aside_output: bool = False
    keep_output: bool = False
    otel: bool = False
    openlineage: bool = False
    ui_port: int | None = None
    timings: bool = False

    def check(self) -> None:
        """Raise ConfigError if the flags cannot be combined."""
        check_run_flags(self.available_now, self.flush)
        if self.begin is not None and not self.rebuild:
            raise ConfigError(
                ["--from: needs --rebuild, because a stored state determines where its sources continue; add --rebuild"]
            )
        if self.put_aside_output and self.keep_output:
            raise ConfigError(
                [
                    "--put-aside-output and --keep-output: "
                    + mismatch("both", "one; the output of an earlier state can be either moved away or kept")
                ]
            )

    def run_options(self) -> RunOptions:
        """Convert the flags into options for the engine. Raises ConfigError if `begin` cannot be parsed."""
        return RunOptions(
            available_now=self.available_now,
            flush=self.flush,
            rebuild=run_options.parse_offsets(self.begin) if self.rebuild else None,
            former_output="aside" if self.put_aside_output else "keep" if self.keep_output else None,
        )


def run_file(file: Path, flags: RunFlags) -> None:
    """Run the pipeline of a config and print a summary. Raises SlackwaterError if the run fails."""
    began = time.monotonic()
    flags.check()
    pipeline = toml.load(file)
    view = views.choose_view(flags.status_every)
    page = None
    try:
        options = flags.run_options()
        page = None if flags.ui_port is None else _serve_page(pipeline, file, flags.ui_port, view)
        observers = _external_observers(view, flags.otel, flags.openlineage)
        if flags.timings:
            observers.append(views.StartTimeline(view.notice, began))
        status = run_with_view(pipeline, view, replace(options, observers=observers), flags.metrics)
    finally:
        view.close()
        if page is not None:
            page.stop()
    print(format_run_summary(status, pipeline.name, describe_result_location(pipeline)))


def _serve_page(pipeline: Pipeline, file: Path, port: int, view: views.ProgressView) -> UiServer:
    """Serve a pipeline's page during its run. Raises StartError if the state is in memory or the port is in use."""
    from slackwater.cli.web_commands import load_page_sources, page_address
    from slackwater.ui.page_server import serve_pages
    from slackwater.web.server import LOOPBACK

    server = serve_pages(load_page_sources(str(file)), port)
    view.notice("info", f"the page of {pipeline.name}: {page_address(LOOPBACK, server.port)}")
    return server


def _external_observers(view: views.ProgressView, otel: bool, openlineage: bool) -> list[Observer]:
    """Return the observers for OpenTelemetry and OpenLineage. Raises StartError if an extra is not installed."""
    from slackwater import observe

    factories = [make for make, on in ((observe.open_telemetry, otel), (observe.open_lineage, openlineage)) if on]
    return [make(view.notice) for make in factories]


def run_with_view(
    pipeline: Pipeline, view: views.ProgressView, options: RunOptions, metrics: MetricsAddress | None = None
) -> Status | None:
    """Run a pipeline until it ends or a signal stops it after the current epoch, and return the last status.

    Args:
        pipeline: The pipeline to run.
        view: Displays the progress.
        options: The options of the run. A signal sets `options.stop`.
        metrics: The address at which metrics are served; None for no metrics.
    """
    from slackwater.health_probes import HealthProbes
    from slackwater.metrics import Metrics, serve_metrics
    from slackwater.runner import run as engine

    server, observers, stop = None, list(options.observers), options.stop or threading.Event()
    if metrics is not None:
        observers += [collector := Metrics(), health := HealthProbes(stop)]
        server = serve_metrics(collector, metrics.port, metrics.host, metrics.names, health)
        view.notice("info", f"metrics at http://{metrics.host}:{server.port}/metrics")
    with stop_on_signals(stop, view):
        try:
            return engine.run_pipeline(
                pipeline, replace(options, on_status=view.status, on_notice=view.notice, stop=stop, observers=observers)
            )
        finally:
            if server is not None:
                server.stop()


@contextmanager
def stop_on_signals(stop: threading.Event, view: views.ProgressView) -> Iterator[None]:
    """Set `stop` on the first SIGINT or SIGTERM. Exit the process on a second SIGINT, or if Spark is still starting.

    On exit, the Spark process ends by itself, because its standard input is closed.

    Signals are read from a pipe in a separate thread. A Python handler would run in the main thread, where it could
    deadlock on `stop`'s lock, and would be delayed while the main thread waits for Spark.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def listen() -> None:
        while number := os.read(reader, 1):
            if spark_session.is_spark_starting():
                view.notice("info", "stopped while Spark was starting; nothing was read or committed")
                view.close()
                os._exit(128 + number[0])
            if not stop.is_set():
                stop.set()
                view.notice("info", "stopping after the current epoch")
            elif number[0] == signal.SIGINT:
                os._exit(130)

    thread = threading.Thread(target=listen, name="signals", daemon=True)
    thread.start()
    wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    before = {number: signal.signal(number, _ignore_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        os.close(writer)
        thread.join()
        os.close(reader)


def _ignore_signal(number: int, frame: FrameType | None) -> None:
    """Do nothing. Python has already written the signal number to the pipe of `signal.set_wakeup_fd`."""


# -- backfill ----------------------------------------------------------------------------------------------------------


_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def backfill_file(
    file: Path, since: str, until: str, partial: bool, into: str | None, slack: str | None, target: str | None = None
) -> None:
    """Run a backfill and print its summary. A signal stops the backfill after the current epoch.

    Args:
        file: The config.
        since: Write windows that start at or after this time (ISO 8601, UTC).
        until: Write windows that start before this time (ISO 8601, UTC).
        partial: Whether to also write windows that extend beyond the range.
        into: The path or table to write to; None for the pipeline's own target.
        slack: How far the time of a Kafka record may be from its event time, as a duration; None for the default.
        target: The name of the target; None if the pipeline has only one.

    Raises SlackwaterError if the backfill fails.
    """
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
    """Parse an ISO 8601 time (UTC if it has no offset) into microseconds. Raises StartError for any other text."""
    try:
        time = dt.datetime.fromisoformat(text)
    except ValueError:
        raise StartError(
            f"{option}: " + mismatch(f'"{text}"', "a time such as 2026-03-01 or 2026-03-01T12:00:00Z"), Topic.VALUE
        ) from None
    return (time.replace(tzinfo=time.tzinfo or dt.UTC) - _EPOCH) // dt.timedelta(microseconds=1)


def _parse_duration_ms(text: str) -> int:
    try:
        ms = parse_duration_ms(int(text) if text.isdecimal() else text)
        if ms >= 0:
            return ms
    except ValueError:
        pass
    raise StartError("--slack: " + mismatch(f'"{text}"', "a duration such as 30s, 5m or 2h"), Topic.VALUE)


def _summary_lines(outcome: BackfillResult, span: str, where: str, durable: bool) -> Iterator[str]:
    """Yield the lines that summarize a backfill.

    `span`: the range of event times. `where`: the location of the results. `durable`: whether the state is durable, so
    that the same command can continue a backfill that was stopped.
    """
    written, status = outcome.written, outcome.status
    if status is None:
        yield f"{outcome.pipeline}: stopped before the first epoch"
        return
    c = status.counters
    yield f"{outcome.pipeline}: {span}, {plural(c.rows_in, 'row')} read"
    yield f"  {c.used_text}, {c.rows_late:,} late, {c.rows_refused:,} refused, {c.rows_bad:,} bad"
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
            else "its state was in memory, so the next run starts over"
        )
