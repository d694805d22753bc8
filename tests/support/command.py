"""Helpers that run the command line in this process, and a valid config."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from slackwater.cli.main import main

GOOD = """name = "user-sessions"

[connections.lake]
kind = "files"

[[sources]]
name = "events"
connection = "lake"
query = "in/*.jsonl"
format = "json"
schema = "user_id STRING, page STRING, ts TIMESTAMP"

[transform.window]
kind = "session"
gap_ms = "30s"
max_session_duration_ms = "2h"
event_time_column = "ts"
group_by = ["user_id"]
max_groups_per_window = 1000

[[transform.window.aggregations]]
agg = "count"
as = "events"

[[transform.window.aggregations]]
agg = "count_distinct"
column = "page"
as = "pages"

[target]
connection = "lake"
path = "out"

[state_store]
kind = "files"
path = "state"
"""


class CommandResult(NamedTuple):
    code: int
    out: str
    err: str


Command = Callable[..., CommandResult]


@pytest.fixture
def run_slackwater(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Return a function that runs the command in this process, in a temporary directory."""
    monkeypatch.chdir(tmp_path)

    def said(*arguments: str) -> CommandResult:
        monkeypatch.setattr(sys, "argv", ["slackwater", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return CommandResult(int(ended.value.code or 0), out, err)

    return said


def run_command_for_exit_code(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run a command in this process, with the running Spark session, and return the exit code."""
    monkeypatch.setattr(sys, "argv", ["slackwater", *arguments])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(SystemExit) as ended:
            main()
    return int(ended.value.code or 0)
