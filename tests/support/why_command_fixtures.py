"""States for tests of `slackwater why`: two sources, one of which holds back the watermark."""

from __future__ import annotations

import datetime as dt
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.local_pipeline_script import DriverCrash, MicroBatch, QuietInterval, run_local_script

from slackwater.cli.main import main
from slackwater.config import toml

BASE = """name = "law"
[connections.lake]
kind = "files"
[[sources]]
name = "web"
connection = "lake"
query = "web/*.jsonl"
format = "json"
lateness_ms = "30s"
[[sources]]
name = "app"
connection = "lake"
query = "app/*.jsonl"
format = "json"
[transform.window]
SHAPE
event_time_column = "ts"
lateness_ms = "1m"
group_by = ["user"]
[[transform.window.aggregations]]
agg = "count"
as = "clicks"
[[transform.window.aggregations]]
agg = "max"
column = "price"
as = "dearest"
[target]
connection = "lake"
path = "out"
[state_store]
kind = "files"
path = "state"
"""
SESSION = BASE.replace("SHAPE", 'kind = "session"\ngap_ms = "10m"\nmax_session_duration_ms = "1h"')
TUMBLING = BASE.replace("SHAPE", 'kind = "tumbling"\nduration_ms = "5m"\nmax_groups_per_window = 10')
HOPPING = BASE.replace("SHAPE", 'kind = "hopping"\nduration_ms = "10m"\nhop_ms = "5m"\nmax_groups_per_window = 10')
TYPES = {"user": "string", "price": "decimal(10,2)"}
DAY = int(dt.datetime(2024, 3, 1, tzinfo=dt.UTC).timestamp()) * 1_000_000
NOON = DAY + 12 * 3600 * 1_000_000
Say = Callable[..., list[str]]


def clock_time_to_microseconds(clock: str) -> int:
    hours, minutes = clock.split(":")
    return DAY + (int(hours) * 3600 + int(minutes) * 60) * 1_000_000


def build_user_event_rows(user: str | None, *clocks: str, partition: str | None = None) -> list[dict[str, Any]]:
    rows = [{"ts": clock_time_to_microseconds(c), "user": user, "price": None} for c in clocks]
    return [r | {"partition": partition} for r in rows] if partition else rows


STORY = [
    MicroBatch({"web": build_user_event_rows("u1", "9:00", "9:05"), "app": build_user_event_rows("u2", "9:02")}),
    MicroBatch({"web": build_user_event_rows("u1", "10:03")}),
    QuietInterval(45_000),
    MicroBatch({"web": build_user_event_rows(None, "10:04")}),
]


def run_toml_pipeline(
    text: str, script: Sequence[MicroBatch | QuietInterval | DriverCrash], types: dict[str, str] = TYPES, **more: Any
) -> None:
    """Run a pipeline with this script and stop without a flush. The clock is at noon."""
    Path("p.toml").write_text(text)
    window = toml.loads(text).transform.window
    run_options: dict[str, Any] = {
        "lateness_ms": {"web": 30_000},
        "flush": False,
        "state_dir": "state",
        "clock_us": NOON,
    }
    run_local_script(window, script, types, ("web", "app"), **{**run_options, **more})


@pytest.fixture
def run_why(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """Return a function that runs `slackwater why p.toml …` and returns the printed lines.

    An error is returned as one string that begins with the exit code.
    """

    def command(*arguments: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", ["slackwater", "why", "p.toml", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return said.out.splitlines() if not ended.value.code else [f"{ended.value.code} {said.err}".rstrip()]

    return command


def run_why_json(say: Say, *arguments: str) -> dict[str, Any]:
    (line,) = say("--json", *arguments)
    return json.loads(line)  # type: ignore[no-any-return]


JOIN = """name = "law"
[connections.lake]
kind = "files"
[[sources]]
name = "orders"
connection = "lake"
query = "orders/*.jsonl"
format = "json"
[[sources]]
name = "payments"
connection = "lake"
query = "payments/*.jsonl"
format = "json"
[transform.join]
kind = "left"
left_source = "orders"
right_source = "payments"
left_keys = ["user"]
right_keys = ["user"]
lower_ms = "0s"
upper_ms = "5m"
event_time_column = "ts"
lateness_ms = "1m"
[target]
connection = "lake"
path = "out"
[state_store]
kind = "files"
path = "state"
"""
