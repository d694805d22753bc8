"""A connector from a user's package on Spark: a run is killed and restarted, and every command works with it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.support.case_selection import exhaustive
from tests.support.run_command_process import read_run_log, start_run_command
from tests.support.toy_packages import CONFIG, install_journal_connector

LINES = 120


def format_journal_line(i: int) -> str:
    """Return a line of the journal. Every fifth line is a refund, which the source skips. Line 33 has no event time."""
    time_text = None if i == 33 else f"2024-01-01T00:{i // 60:02}:{i % 60:02}Z"
    return json.dumps({"topic": "order.eu" if i % 5 else "refund", "user": f"u{i % 3}", "amount": i, "ts": time_text})


def count_expected_rows() -> Counter[tuple[str, str, int, int]]:
    rows: dict[tuple[str, str], list[int]] = {}
    for i in range(LINES):
        if i % 5 and i != 33:
            start = f"2024-01-01T00:{i // 60:02}:{i % 60 // 10 * 10:02}.000000Z"
            rows.setdefault((start, f"u{i % 3}"), []).append(i)
    return Counter((start, user, sum(v), len(v)) for (start, user), v in rows.items())


def count_published_rows(folder: Path) -> Counter[tuple[str, str, int, int]]:
    path = folder / "out" / "totals.journal"
    entries = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return Counter(
        (row["window_start"], row["user"], row["amount"], row["orders"]) for e in entries for row in e["rows"]
    )


@pytest.fixture
def pipeline_directory(tmp_path: Path) -> Path:
    install_journal_connector(tmp_path / "site")
    (tmp_path / "totals.toml").write_text(CONFIG)
    (tmp_path / "orders.journal").write_text("".join(f"{format_journal_line(i)}\n" for i in range(LINES)))
    return tmp_path


def python_path(folder: Path) -> str:
    return os.pathsep.join([*filter(None, sys.path), str(folder / "site")])


def run_slackwater(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": python_path(folder)}
    done = subprocess.run(
        [sys.executable, "-m", "slackwater.cli.main", *arguments],
        cwd=folder,
        env=environment,
        text=True,
        capture_output=True,
        check=False,  # type: ignore[call-overload]
    )
    return str(done.stdout + done.stderr)


@exhaustive(beside="test_kill_matrix_sample.py::test_run_killed_at_named_steps_loses_and_duplicates_no_row")
def test_killed_run_of_a_user_connector_publishes_each_window_once(pipeline_directory: Path) -> None:
    config = pipeline_directory / "totals.toml"
    run = start_run_command(config, PYTHONPATH=python_path(pipeline_directory))
    until = time.monotonic() + 120
    while not count_published_rows(pipeline_directory) and run.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    before = count_published_rows(pipeline_directory)
    assert 0 < before.total() < count_expected_rows().total(), read_run_log(config)
    with (pipeline_directory / "out" / "totals.journal").open("a") as journal:
        journal.write('{"writer": "totals", "epo')  # the incomplete entry of a process that is killed while it writes

    assert start_run_command(config, "--flush", PYTHONPATH=python_path(pipeline_directory)).wait(timeout=150) == 0, (
        read_run_log(config)
    )
    assert count_published_rows(pipeline_directory) == count_expected_rows()

    shown = run_slackwater(pipeline_directory, "show", "totals.toml", "--json", "--limit", "1000").splitlines()
    assert len([line for line in shown if line.startswith("{")]) == count_expected_rows().total()
    assert f'{{"line": {LINES}}}' in run_slackwater(pipeline_directory, "state", "show", "state")
    assert "no event time" in run_slackwater(pipeline_directory, "dlq", "show", "totals.toml")
    # the replayed row still has no event time
    replayed = run_slackwater(pipeline_directory, "dlq", "replay", "totals.toml")
    assert "1 letter not applied: bad again: no event time" in replayed, replayed
    assert f"equal      {count_expected_rows().total()}" in run_slackwater(
        pipeline_directory, "diff", "totals.toml", "totals.toml"
    )

    reset = run_slackwater(
        pipeline_directory, "state", "reset", "totals.toml", "--offsets", "orders=earliest", "--dry-run"
    )
    assert re.search(rf"orders +line +{LINES} +0", reset), reset
    config.write_text(CONFIG.replace('duration = "10s"', 'duration = "20s"').replace('"order"', '"ord"'))
    assert "duration: state has 10s, config has 20s" in run_slackwater(pipeline_directory, "plan", "totals.toml")
