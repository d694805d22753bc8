"""Repeated kill -9 of `slackwater run`: the final output equals the output of an uninterrupted run.

`make faults` kills twenty times in a row, and `make test-all` once. `make test` relies on `test_kill_matrix_sample.py`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest
from tests.laws.oracles import window_oracle
from tests.support.case_selection import exhaustive
from tests.support.run_command_process import read_run_log, start_run_command
from tests.support.servers.object_store import Fault, FaultyProxy

from slackwater.config import toml
from slackwater.state.files.store import FilesStore

KILLS = int(os.environ.get("SLACKWATER_KILLS", "1"))
FILES = 4 + 5 * KILLS
START_US = 1_700_000_000_000_000

CONFIG = """name = "killed"

[connections.lake]
kind = "files"

[[sources]]
name = "events"
connection = "lake"
query = "{home}/in/*.jsonl"
format = "json"
schema = "user STRING, x BIGINT, at BIGINT"
max_files_per_trigger = 1

[transform.window]
kind = "session"
gap_ms = "10s"
max_session_duration_ms = "2m"
event_time_column = "at"
event_time_unit = "us"
lateness_ms = "5s"
group_by = ["user"]

[[transform.window.aggregations]]
agg = "count"
as = "n"

[[transform.window.aggregations]]
agg = "sum"
column = "x"
as = "total"

[target]
connection = "lake"
path = "{home}/out"

[state_store]
kind = "files"
path = "{home}/state"
"""


def write_event_files(home: Path) -> list[dict[str, object]]:
    """Write files of 200 rows, out of order by less than the lateness. Users come and go."""
    rng = random.Random(5)
    rows = []
    for n in range(FILES * 200):
        time_us = START_US + n * 50_000 + rng.randrange(4_000_000)
        rows.append({"user": f"u{rng.randrange(40) + n // 500}", "x": rng.randrange(100), "at": time_us})
    (home / "in").mkdir()
    for n in range(FILES):
        path = home / "in" / f"{n:04}.jsonl"
        path.write_text("".join(json.dumps(r) + "\n" for r in rows[n * 200 : n * 200 + 200]))
        os.utime(path, (1_600_000_000 + n, 1_600_000_000 + n))
    return rows


def read_committed_epoch(home: Path | str) -> int:
    return max(FilesStore(str(home), "killed").epochs(), default=-1)


def random_request_faults(seed: int) -> Callable[[str, str], Fault]:
    """Return a judge that gives one request in twenty a fault, like a bad network."""
    rng = random.Random(seed)
    return lambda method, path: rng.choice(("503", "dropped", "lost", "slow")) if rng.random() < 0.05 else ""


@pytest.fixture(params=["disk", "bucket"])
def state_location(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the location of the state: below the config, or in a bucket behind an unreliable server."""
    if request.param == "disk":
        yield str(tmp_path / "state")
        return
    url = request.getfixturevalue("bucket")
    with FaultyProxy.start_proxy(request.getfixturevalue("s3").port) as door:
        monkeypatch.setenv("AWS_ENDPOINT", f"http://127.0.0.1:{door.port}")
        door.judge = random_request_faults(random.randrange(10**6))
        yield url
        assert door.faults


@exhaustive(beside="test_kill_matrix_sample.py::test_run_killed_at_named_steps_loses_and_duplicates_no_row")
def test_sigkill_neither_loses_nor_duplicates_rows(tmp_path: Path, state_location: str) -> None:
    rows = write_event_files(tmp_path)
    config = tmp_path / "killed.toml"
    config.write_text(CONFIG.format(home=tmp_path).replace(f"{tmp_path}/state", state_location))
    seed = random.randrange(10**6)
    rng = random.Random(seed)
    for kill in range(KILLS):
        before, process = read_committed_epoch(state_location), start_run_command(config)
        until = time.monotonic() + 400
        goal = before + rng.randrange(4)  # sometimes before the first commit of this run, sometimes after several
        while read_committed_epoch(state_location) <= goal and process.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(rng.uniform(0, 0.6))
        assert process.poll() is None, f"it ended before kill {kill}: {read_run_log(config)}"
        process.send_signal(signal.SIGKILL)
        process.wait()
    process = start_run_command(config, "--flush")
    assert process.wait(timeout=300) == 0, read_run_log(config)
    expected = window_oracle.compute_windows_over_all_rows(
        toml.load(config).transform.window, [{**r, "ts": r["at"]} for r in rows]
    )
    frame = pl.concat([pl.read_parquet(p) for p in sorted((tmp_path / "out").glob("*.parquet"))])
    times = [pl.col(c).dt.timestamp("us") for c in ("window_start", "window_end")]
    got = frame.with_columns(times).select("user", "window_start", "window_end", "n", "total").rows()
    assert sorted(got) == sorted(
        tuple(r[c] for c in ("user", "window_start", "window_end", "n", "total")) for r in expected
    )


@exhaustive(beside="test_cli_run.py::test_signal_stops_the_run_after_the_current_epoch")
def test_run_finishes_its_epoch_after_sigterm_and_the_next_run_continues(tmp_path: Path) -> None:
    rows = write_event_files(tmp_path)
    config = tmp_path / "killed.toml"
    config.write_text(CONFIG.format(home=tmp_path))
    process = start_run_command(config)
    until = time.monotonic() + 400
    while read_committed_epoch(tmp_path / "state") < 1 and process.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=300) == 0, read_run_log(config)
    assert "stopping after the current epoch" in read_run_log(config)
    assert "Traceback" not in read_run_log(config)
    process = start_run_command(config, "--flush")
    assert process.wait(timeout=300) == 0, read_run_log(config)
    frame = pl.concat([pl.read_parquet(p) for p in sorted((tmp_path / "out").glob("*.parquet"))])
    assert frame["n"].sum() == len(rows)
