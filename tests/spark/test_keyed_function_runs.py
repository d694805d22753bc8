"""A class of a user's package on Spark: each process loads it by its path, and SIGKILL on the way changes no result."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.laws.generators import reminders

from slackwater.maintenance.verify import verify_state
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


def write_inputs(home: Path) -> list[dict[str, Any]]:
    """Write the package and the input files, and return all rows."""
    (home / "shop").mkdir()
    (home / "shop" / "__init__.py").write_text("")
    (home / "shop" / "rules.py").write_text((ROOT / "tests" / "support" / "reminders.py").read_text())
    (home / "in").mkdir()
    rng, rows, now = random.Random(3), list[dict[str, Any]](), 0
    for number in range(5):
        batch = []
        for _ in range(8):
            now += rng.choice([0, 1, 5, 12])
            batch.append({"user": rng.choice(["x", "y", None]), "ts": reminders.MS * now})
        path = home / "in" / f"{number}.jsonl"
        path.write_text("".join(json.dumps(r) + "\n" for r in batch))
        os.utime(path, (1_600_000_000 + number, 1_600_000_000 + number))
        rows += batch
    return rows


def test_kill_9_changes_no_reminder(tmp_path: Path) -> None:
    rows = write_inputs(tmp_path)
    (tmp_path / "watch.toml").write_text(CONFIG.replace("HOME", str(tmp_path)))

    def run(crash_at: str | None = None) -> int:
        crash = {} if crash_at is None else {"SLACKWATER_CRASH_AT": crash_at}
        command = [sys.executable, "-m", "slackwater.cli.main", "run", "watch.toml", "--available-now"]
        with (tmp_path / "log").open("ab") as log:
            return subprocess.run(
                command,
                cwd=tmp_path,
                stdout=log,
                stderr=log,
                env={**os.environ, "SPARK_MASTER": "local[2]", **crash},
                start_new_session=True,
                timeout=170,
                check=False,
            ).returncode

    for step in ("stage.after@1", "write.before@3"):
        assert run(step) == -signal.SIGKILL, (tmp_path / "log").read_text()[-3000:]
    assert run() == 0, (tmp_path / "log").read_text()[-3000:]

    results = pl.concat([pl.read_parquet(p) for p in (tmp_path / "out").glob("*.parquet")])
    emitted = results.select(pl.col("_event_ts").dt.timestamp("us"), "user", "rows", "number").rows()
    expected = reminders.expect({"every": 10, "most": 2}, rows)
    assert sorted(emitted, key=repr) == sorted(expected.elements(), key=repr)
    assert verify_state(FilesStore(tmp_path / "state", "watch")).problems == []
