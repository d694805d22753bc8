"""`slackwater run` with a fake engine: views, log lines, summary and signals."""

from __future__ import annotations

import io
import logging
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.support.command import GOOD
from tests.support.example_statuses_and_metrics import COUNTERS, STATUS

from slackwater.cli.output import LogProgress, describe_source, format_run_summary, render_status
from slackwater.cli.run import MetricsAddress, RunFlags, run_file, stop_on_signals
from slackwater.core.humanize import format_age, format_time
from slackwater.engine.observer import Counters, Status
from slackwater.runner.run_log import status_line
from slackwater.runner.run_options import RunOptions

QUIET = replace(STATUS, emitted=0, late=0)
STAMP = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ "
FAKE = """
import sys, time
import slackwater.runner.run as engine
from tests.support.example_statuses_and_metrics import STATUS
from slackwater.cli.main import main

def run(pipeline, options):
    on_notice, stop = options.on_notice, options.stop
    on_notice("warning", "look here")
    options.on_status(STATUS)
    {body}
    return STATUS

engine.run_pipeline = run
sys.argv = ["slackwater", "run", {config!r}, *{flags!r}]
main()
"""


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "p.toml"
    path.write_text(GOOD)
    return path


@pytest.fixture
def replace_engine(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Status | None]], None]:
    return lambda run: monkeypatch.setattr("slackwater.runner.run.run_pipeline", run)


def start_run_process(config: Path, body: str, *flags: str, **more: Any) -> subprocess.Popen[str]:
    """Start `slackwater run` with the fake engine in another process."""
    code = FAKE.format(body=body, config=str(config), flags=flags)
    root = str(Path(__file__).parents[2])
    return subprocess.Popen(
        [sys.executable, "-c", code], cwd=root, stdout=subprocess.PIPE, text=True, **{"stderr": subprocess.PIPE} | more
    )


def render_status_text(status: Status) -> str:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(render_status(status))
    return console.export_text()


# -- text ------------------------------------------------------------------------------------------------------------


def test_times_and_ages_are_formatted() -> None:
    assert format_time(0) == "1970-01-01 00:00:00Z"
    assert format_time(-1_000_000) == "1969-12-31 23:59:59Z"
    assert format_time(None) == "none yet"
    assert format_time(1 << 62) == f"{1 << 62} µs"
    assert [format_age(s * 1_000_000) for s in (1, 119, 120, 7200, 172_800)] == [
        "1.0 s",
        "119.0 s",
        "2 m",
        "2 h",
        "2 d",
    ]


def test_source_description_shows_watermark_lag_and_idleness() -> None:
    web, app = STATUS.sources
    assert describe_source(web, STATUS) == "web: watermark 2023-11-14 21:56:40Z, 17 m behind the clock"
    assert describe_source(app, STATUS) == "app: no event yet, idle"


def test_status_is_logged_as_keys_and_values() -> None:
    assert status_line(replace(STATUS, files_done=2, files_total=3)) == (
        "pipeline=clicks epoch=7 rows=100 rows_per_s=200 emitted=4 late=1 open_windows=12 "
        "state_bytes=4096 watermark=2023-11-14T21:56:40Z watermark[web]=2023-11-14T21:56:40Z "
        "watermark[app]=none(idle) rows_total=1000 emitted_total=42 late_total=25 bad_total=10 refused_total=15 files=2/3"
    )


def test_run_summary_accounts_for_every_input_row() -> None:
    assert format_run_summary(STATUS, "clicks", '"out"').splitlines() == [
        "clicks: epoch 7, 1,000 rows in",
        "  950 used, 25 late, 15 refused, 10 bad",
        '  42 sessions: 40 closed by the watermark, 2 cut at max_session_duration; 12 open; results in "out"',
        "  28 dead letters (25 late, 3 no event time)",
    ]


def test_summary_counts_the_dead_letters() -> None:
    assert "dead letter" not in format_run_summary(
        replace(STATUS, counters=replace(COUNTERS, letters={})), "clicks", '"out"'
    )
    status = replace(STATUS, counters=replace(COUNTERS, letters={"undecodable": 1, "late": 1025}))
    assert (
        format_run_summary(status, "clicks", '"out"').splitlines()[-1]
        == "  1,026 dead letters (1,025 late, 1 undecodable)"
    )


def test_summary_counts_rows_that_the_sql_filtered() -> None:
    status = replace(STATUS, counters=replace(COUNTERS, rows_in=1200))
    assert "  950 used, 25 late, 15 refused, 10 bad, 200 filtered by the SQL" in format_run_summary(
        status, "clicks", '"out"'
    )


def test_summary_suspects_a_wrong_clock_if_most_rows_are_late() -> None:
    status = replace(STATUS, counters=Counters(rows_in=100, rows_sql=100, rows_used=40, late={"lateness": 60}))
    last = format_run_summary(status, "clicks", '"out"').splitlines()[-1]
    assert last.startswith("  most rows were late, and the newest event time is 2023-11-14 21:56:41Z; if a clock in")


def test_summary_of_a_run_without_input_reports_no_commit() -> None:
    assert format_run_summary(None, "clicks", '"out"') == "clicks: nothing new, nothing committed"


# -- views -----------------------------------------------------------------------------------------------------------


def test_live_view_shows_every_number_of_the_status() -> None:
    text = render_status_text(replace(STATUS, files_done=1, files_total=4))
    assert [" ".join(t.replace("━", "").replace("╸", "").replace("╺", "").split()) for t in text.splitlines()] == [
        "clicks",
        "epoch 7 rows/s 200",
        "rows in 1,000 emitted 42",
        "late 25 bad 10",
        "open windows 12 state 4.0 KiB",
        "watermark 2023-11-14 21:56:40Z",
        "web: watermark 2023-11-14 21:56:40Z, 17 m behind the clock",
        "app: no event yet, idle",
        "1 of 4 files",
    ]
    assert "━" in text.splitlines()[-1]


def test_live_view_has_no_progress_bar_if_the_end_is_unknown() -> None:
    assert "━" not in render_status_text(STATUS)


@pytest.fixture
def logged_progress(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[LogProgress, list[str]]]:
    view = LogProgress(every=60)
    lines: list[str] = []
    monkeypatch.setattr(logging.getLogger("slackwater").handlers[0], "emit", lambda r: lines.append(r.getMessage()))
    yield view, lines
    view.close()


def find_logged_epochs(lines: list[str]) -> list[str]:
    return [part for text in lines for part in text.split() if part.startswith("epoch=")]


def test_status_logging_is_throttled_except_for_first_last_and_notable_epochs(
    logged_progress: tuple[LogProgress, list[str]],
) -> None:
    view, lines = logged_progress
    for epoch, status in enumerate(
        [QUIET, QUIET, replace(QUIET, emitted=3), QUIET, replace(QUIET, late=1), QUIET, QUIET]
    ):
        view.status(replace(status, epoch=epoch))
    assert find_logged_epochs(lines) == ["epoch=0", "epoch=2", "epoch=4"]
    view.close()
    assert find_logged_epochs(lines) == ["epoch=0", "epoch=2", "epoch=4", "epoch=6"]
    view.close()
    assert len(lines) == 4


def test_every_epoch_is_logged_if_the_interval_is_zero(capsys: pytest.CaptureFixture[str]) -> None:
    view = LogProgress(every=0)
    for epoch in range(3):
        view.status(replace(QUIET, epoch=epoch))
    view.close()
    assert find_logged_epochs(capsys.readouterr().err.splitlines()) == ["epoch=0", "epoch=1", "epoch=2"]


def test_closing_the_view_restores_the_logger() -> None:
    log = logging.getLogger("slackwater")
    before = (log.handlers, log.propagate, log.level)
    LogProgress().close()
    assert (log.handlers, log.propagate, log.level) == before


# -- run -------------------------------------------------------------------------------------------------------------


def test_run_passes_its_flags_to_the_engine_and_prints_a_summary(
    config_file: Path, replace_engine: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    names: list[str] = []
    received = RunOptions()

    def run(pipeline: Any, options: RunOptions) -> Status:
        nonlocal received
        names.append(pipeline.name)
        received = options
        assert options.on_notice is not None
        assert options.on_status is not None
        assert options.stop is not None
        assert not options.stop.is_set()
        options.on_notice("warning", "look here")
        options.on_status(STATUS)
        return STATUS

    replace_engine(run)
    run_file(config_file, RunFlags(available_now=True, flush=True, metrics=MetricsAddress(0)))
    output = capsys.readouterr()
    assert names == ["user-sessions"]
    assert [type(one).__name__ for one in received.observers] == ["Metrics", "HealthProbes"]
    expected = RunOptions(available_now=True, flush=True)
    assert replace(received, on_status=None, on_notice=None, stop=None, observers=()) == expected
    assert output.out.startswith("user-sessions: epoch 7, 1,000 rows in\n")
    lines = output.err.splitlines()
    assert len(lines) == 3
    assert all(re.match(STAMP, text) for text in lines)
    assert " INFO metrics at http://127.0.0.1:" in lines[0]
    assert lines[1].endswith(" WARNING look here")
    assert " INFO pipeline=clicks epoch=7 " in lines[2]


def test_metrics_are_served_only_during_the_run(
    config_file: Path, replace_engine: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    from urllib.error import URLError
    from urllib.request import urlopen

    seen: list[str] = []

    def run(pipeline: Any, options: RunOptions) -> Status:
        for one in options.observers:
            one.on_commit(STATUS)
        seen.append(capsys.readouterr().err.split("metrics at ")[1].split()[0])
        with urlopen(seen[0]) as answer:
            seen.append(answer.read().decode())
        return STATUS

    replace_engine(run)
    run_file(config_file, RunFlags(metrics=MetricsAddress(0)))
    assert 'slackwater_streaming_rows_in_total{pipeline="clicks"} 1000.0' in seen[1]
    with pytest.raises(URLError):
        urlopen(seen[0])


def test_run_reports_to_opentelemetry_and_openlineage(
    config_file: Path, replace_engine: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    observer_names: list[str] = []

    def run(pipeline: Any, options: RunOptions) -> Status:
        observer_names.extend(type(one).__name__ for one in options.observers)
        return STATUS

    replace_engine(run)
    monkeypatch.setenv("OPENLINEAGE_CONFIG", str(config_file.parent / "lineage.yml"))
    (config_file.parent / "lineage.yml").write_text('{"transport": {"type": "noop"}}')
    run_file(config_file, RunFlags(otel=True, openlineage=True))
    assert observer_names == ["OpenTelemetry", "OpenLineage"]
    assert "OpenTelemetry metrics to http://localhost:4318/v1/metrics every 60 s" in capsys.readouterr().err


def test_messages_during_the_start_of_spark_are_not_lost(config_file: Path) -> None:
    """While Spark starts, the engine redirects descriptor 2 to a file, because Java writes to it."""
    body = "import os; saved = os.dup(2); os.dup2(os.open(os.devnull, os.O_WRONLY), 2); on_notice('info', 'said'); os.dup2(saved, 2)"
    process = start_run_process(config_file, body)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0
    assert err.endswith(" INFO said\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_stops_the_run_after_the_current_epoch(config_file: Path, number: int) -> None:
    process = start_run_process(config_file, "stop.wait(30)", "--available-now")
    assert process.stderr is not None
    lines = [process.stderr.readline(), process.stderr.readline()]
    assert lines[0].endswith(" WARNING look here\n")
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0
    assert err.endswith(" INFO stopping after the current epoch\n")
    assert out.startswith("user-sessions: epoch 7")


def test_second_interrupt_stops_the_run_immediately(config_file: Path) -> None:
    """The main thread may be in one long call, for example while Spark starts."""
    process = start_run_process(config_file, "time.sleep(60)")
    assert process.stderr is not None
    for expected in ("look here", "epoch=7"):
        assert expected in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert "stopping after" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    try:
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out, err) == (130, "", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_while_spark_starts_stops_the_run_immediately(config_file: Path, number: int) -> None:
    """One signal suffices, because no epoch has begun."""
    body = "import slackwater.spark.sessions.spark_session as s; s._starting = True; on_notice('info', 'starting'); time.sleep(600)"
    process = start_run_process(config_file, body)
    assert process.stderr is not None
    for expected in ("look here", "epoch=7", "starting"):
        assert expected in process.stderr.readline()
    process.send_signal(number)
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out) == (128 + number, "")
    assert err.endswith(" INFO stopped while Spark was starting; nothing was read or committed\n")
    assert len(err.splitlines()) == 1


def test_signal_during_a_wait_for_the_stop_event_causes_no_deadlock() -> None:
    """`Event.wait` holds the lock of the event for a moment, in the thread that handles signals."""
    lines: list[str] = []

    class View(LogProgress):
        def notice(self, level: str, line: str) -> None:
            lines.append(line)

    stop, view = threading.Event(), View()
    with stop_on_signals(stop, view):
        with stop._cond:  # type: ignore[attr-defined]
            signal.raise_signal(signal.SIGTERM)
        assert stop.wait(10)
    view.close()
    assert lines == ["stopping after the current epoch"]


def test_signal_handlers_are_restored_after_the_run() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    view = LogProgress()
    with stop_on_signals(threading.Event(), view):
        assert signal.getsignal(signal.SIGTERM) is not before[1]
    view.close()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_live_view_is_shown_on_a_terminal(config_file: Path) -> None:
    body = 'import logging; logging.getLogger("slackwater").warning("3 late rows dropped")'
    ours, theirs = pty.openpty()
    process = start_run_process(config_file, body, stderr=theirs, env={**os.environ, "TERM": "xterm", "COLUMNS": "100"})
    os.close(theirs)
    screen = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # the other side is closed
            break
        if not piece:
            break
        screen += piece
    os.close(ours)
    out, _ = process.communicate(timeout=120)
    text = screen.decode()
    assert process.returncode == 0
    assert out.startswith("user-sessions: epoch 7, 1,000 rows in\n")
    for part in ("look here", "3 late rows dropped", "open windows", "17 m behind the clock", "\x1b["):
        assert part in text
    assert "Traceback" not in text
