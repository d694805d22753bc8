"""A keyed function from a user's package on Spark. Each process imports it by path, and kills change no result."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.laws.generators import keyed_timer_runs
from tests.support.case_selection import exhaustive
from tests.support.run_command_process import read_run_log, start_run_command

from slackwater.maintenance import verify_state
from slackwater.state.files.store import FilesStore

pytestmark = pytest.mark.spark

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
name = "watch"

[connections.lake]
kind = "files"

[[sources]]
name = "a"
connection = "lake"
query = "HOME/in/*.jsonl"
format = "json"
schema = "user STRING, ts BIGINT"
max_files_per_trigger = 1

[transform]
sql = "SELECT user, _event_ts FROM source"

[transform.keyed]
class = "shop.rules:Reminders"
keys = ["user"]
options = { every = 10, most = 2 }
event_time_column = "ts"
event_time_unit = "us"

[target]
connection = "lake"
path = "HOME/out"
format = "parquet"

[state_store]
kind = "files"
path = "HOME/state"
shards = 2
"""


def write_package_and_input_files(home: Path) -> list[dict[str, Any]]:
    """Write the package and the input files, and return all rows."""
    (home / "shop").mkdir()
    (home / "shop" / "__init__.py").write_text("")
    (home / "shop" / "rules.py").write_text((ROOT / "tests" / "support" / "keyed_functions.py").read_text())
    (home / "in").mkdir()
    rng, rows, now = random.Random(3), list[dict[str, Any]](), 0
    for number in range(5):
        batch = []
        for _ in range(8):
            now += rng.choice([0, 1, 5, 12])
            batch.append({"user": rng.choice(["x", "y", None]), "ts": keyed_timer_runs.MS * now})
        path = home / "in" / f"{number}.jsonl"
        path.write_text("".join(json.dumps(r) + "\n" for r in batch))
        os.utime(path, (1_600_000_000 + number, 1_600_000_000 + number))
        rows += batch
    return rows


@exhaustive(beside="test_kill_matrix_sample.py::test_run_killed_at_named_steps_loses_and_duplicates_no_row")
def test_kills_do_not_change_the_results_of_a_keyed_function(tmp_path: Path) -> None:
    rows = write_package_and_input_files(tmp_path)
    config = tmp_path / "watch.toml"
    package = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    config.write_text(CONFIG.replace("HOME", str(tmp_path)))

    run = start_run_command(config, PYTHONPATH=package, SLACKWATER_CRASH_AT="write.before@3")
    assert run.wait(timeout=170) == -signal.SIGKILL, read_run_log(config)[-3000:]
    assert start_run_command(config, PYTHONPATH=package).wait(timeout=170) == 0, read_run_log(config)[-3000:]

    results = pl.concat([pl.read_parquet(p) for p in (tmp_path / "out").glob("*.parquet")])
    emitted = results.select(pl.col("_event_ts").dt.timestamp("us"), "user", "rows", "number").rows()
    expected = keyed_timer_runs.expected_reminders({"every": 10, "most": 2}, rows)
    assert sorted(emitted, key=repr) == sorted(expected.elements(), key=repr)
    assert verify_state(FilesStore(tmp_path / "state", "watch")).problems == []
