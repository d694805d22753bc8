"""`run`: a pipeline in the foreground, stopped cleanly by SIGINT or SIGTERM."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from slackwater.cli import view as views
from slackwater.config import toml
from slackwater.config.pipeline import Pipeline, check_run_flags
from slackwater.engine.status import Status


def run_file(file: Path, available_now: bool, flush: bool, metrics_port: int | None, metrics_host: str) -> None:
    """Load, check and run; print a summary on standard output. Raises SlackwaterError."""
    check_run_flags(available_now, flush)
    pipeline = toml.load(file)
    view = views.choose()
    try:
        status = run_pipeline(pipeline, view, available_now, flush, metrics_port, metrics_host)
    finally:
        view.close()
    print(views.summary(status, pipeline.name, where(pipeline)))


def where(pipeline: Pipeline) -> str:
    """The target for people."""
    return f'"{pipeline.target.path}"' if pipeline.target.path else "the console"


def run_pipeline(
    pipeline: Pipeline,
    view: views.View,
    available_now: bool,
    flush: bool,
    metrics_port: int | None = None,
    metrics_host: str = "127.0.0.1",
) -> Status | None:
    """Run with a view, and metrics if a port is given."""
    from slackwater.engine import run as engine
    from slackwater.metrics import Metrics, serve

    metrics = Metrics()
    server = None
    if metrics_port is not None:
        server, port = serve(metrics, metrics_port, metrics_host)
        view.notice("info", f"metrics at http://{metrics_host}:{port}/metrics")

    def on_status(status: Status) -> None:
        metrics.update(status)
        view.status(status)

    stop = threading.Event()
    with _signals(stop, view):
        try:
            return engine.run(
                pipeline,
                available_now=available_now,
                flush=flush,
                on_status=on_status,
                on_notice=view.notice,
                stop=stop,
            )
        finally:
            if server is not None:
                server.shutdown()


@contextmanager
def _signals(stop: threading.Event, view: views.View) -> Iterator[None]:
    """The first SIGINT or SIGTERM asks for a clean stop, a second SIGINT ends at once."""

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.is_set() and number == signal.SIGINT:
            sys.stderr.flush()
            os._exit(130)
        stop.set()
        view.notice("info", "stopping: the epoch in progress is finished first")

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
