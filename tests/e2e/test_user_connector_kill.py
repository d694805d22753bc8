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
from tests.support.run_process import read_log, start_run
from tests.support.toy_packages import CONFIG, install_journal_connector

LINES = 120


def entry(i: int) -> str:
    """Return a line of the journal. Every fifth line is a refund, which the source skips. Line 33 has no event time."""
    time_text = None if i == 33 else f"2024-01-01T00:{i // 60:02}:{i % 60:02}Z"
    return json.dumps({"topic": "order.eu" if i % 5 else "refund", "user": f"u{i % 3}", "amount": i, "ts": time_text})


def expected_rows() -> Counter[tuple[str, str, int, int]]:
    rows: dict[tuple[str, str], list[int]] = {}
    for i in range(LINES):
        if i % 5 and i != 33:
            start = f"2024-01-01T00:{i // 60:02}:{i % 60 // 10 * 10:02}.000000Z"
            rows.setdefault((start, f"u{i % 3}"), []).append(i)
    return Counter((start, user, sum(v), len(v)) for (start, user), v in rows.items())


def published(folder: Path) -> Counter[tuple[str, str, int, int]]:
    path = folder / "out" / "totals.journal"
    entries = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return Counter(
        (row["window_start"], row["user"], row["amount"], row["orders"]) for e in entries for row in e["rows"]
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    install_journal_connector(tmp_path / "site")
    (tmp_path / "totals.toml").write_text(CONFIG)
    (tmp_path / "orders.journal").write_text("".join(f"{entry(i)}\n" for i in range(LINES)))
    return tmp_path


def python_path(folder: Path) -> str:
    return os.pathsep.join([*filter(None, sys.path), str(folder / "site")])


def command(folder: Path, *arguments: str) -> str:
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


@exhaustive(beside="test_faults.py::test_run_killed_at_named_steps_loses_and_duplicates_no_row")
def test_killed_run_of_a_user_connector_publishes_each_window_once(folder: Path) -> None:
    config = folder / "totals.toml"
    run = start_run(config, PYTHONPATH=python_path(folder))
    until = time.monotonic() + 120
    while not published(folder) and run.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    before = published(folder)
    assert 0 < before.total() < expected_rows().total(), read_log(config)
    with (folder / "out" / "totals.journal").open("a") as journal:
        journal.write('{"writer": "totals", "epo')  # the incomplete entry of a process that is killed while it writes

    assert start_run(config, "--flush", PYTHONPATH=python_path(folder)).wait(timeout=150) == 0, read_log(config)
    assert published(folder) == expected_rows()

    shown = command(folder, "show", "totals.toml", "--json", "--limit", "1000").splitlines()
    assert len([line for line in shown if line.startswith("{")]) == expected_rows().total()
    assert f'{{"line": {LINES}}}' in command(folder, "state", "show", "state")
    assert "no event time" in command(folder, "dlq", "show", "totals.toml")
    # the replayed row still has no event time
    replayed = command(folder, "dlq", "replay", "totals.toml")
    assert "1 letter not applied: bad again: no event time" in replayed, replayed
    assert f"equal      {expected_rows().total()}" in command(folder, "diff", "totals.toml", "totals.toml")

    reset = command(folder, "state", "reset", "totals.toml", "--offsets", "orders=earliest", "--dry-run")
    assert re.search(rf"orders +line +{LINES} +0", reset), reset
    config.write_text(CONFIG.replace('duration = "10s"', 'duration = "20s"').replace('"order"', '"ord"'))
    assert "duration: state has 10s, config has 20s" in command(folder, "plan", "totals.toml")
