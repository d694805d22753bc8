"""Dedup on Spark after a SIGKILL of the process: each row is a result, a late row or a counted duplicate."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.laws.generators import dedup_runs
from tests.support.case_selection import exhaustive
from tests.support.run_command_process import read_run_log, start_run_command

import slackwater as sw
from slackwater.maintenance import verify_state
from slackwater.state.files.store import FilesStore

pytestmark = pytest.mark.spark

CONFIG = """
name = "once"

[connections.lake]
kind = "files"

[[sources]]
name = "a"
connection = "lake"
query = "HOME/in/*.jsonl"
format = "json"
schema = "user STRING, f DOUBLE, id BIGINT, tags ARRAY<STRING>, ts BIGINT"
max_files_per_trigger = 1

[transform.dedup]
keys = ["user", "f"]
keep = "KEEP"
within = "10ms"
lateness = "8ms"
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
EPOCHS = 5


def write_input_files(home: Path) -> list[list[dict[str, Any]]]:
    rng = random.Random(7)
    batches = [[dedup_runs.draw_dedup_row(rng, now, 8) for _ in range(12)] for now in range(0, 10 * EPOCHS, 10)]
    (home / "in").mkdir()
    for number, rows in enumerate(batches):
        path = home / "in" / f"{number}.jsonl"
        spelled = [{**r, "f": "NaN" if r["f"] is not None and r["f"] != r["f"] else r["f"]} for r in rows]
        path.write_text("".join(json.dumps(r) + "\n" for r in spelled))
        os.utime(path, (1_600_000_000 + number, 1_600_000_000 + number))
    return batches


@exhaustive(beside="test_kill_matrix_sample.py::test_run_killed_at_named_steps_loses_and_duplicates_no_row")
@pytest.mark.parametrize(("keep", "step"), [("last", "stage.after@1"), ("first", "write.before@3")])
def test_sigkill_does_not_change_dedup_results(keep: str, step: str, tmp_path: Path) -> None:
    batches = write_input_files(tmp_path)
    file = tmp_path / "once.toml"
    file.write_text(CONFIG.replace("HOME", str(tmp_path)).replace("KEEP", keep))

    killed = start_run_command(file, SLACKWATER_CRASH_AT=step).wait(timeout=170)
    assert killed == -signal.SIGKILL, read_run_log(file)[-3000:]
    assert start_run_command(file, "--flush").wait(timeout=170) == 0, read_run_log(file)[-3000:]

    expected = dedup_runs.expected_results(sw.load(file).transform.dedup, batches)
    results = pl.concat([pl.read_parquet(p) for p in (tmp_path / "out").glob("*.parquet")])
    rows = results.with_columns(pl.col("_event_ts").dt.timestamp("us")).to_dicts()
    assert sorted(map(dedup_runs.row_text_without_tags, rows)) == sorted(expected.results.elements())
    store = FilesStore(tmp_path / "state", "once")
    assert verify_state(store).problems == []
    with store.peek() as snapshot:
        counters = snapshot.commit.stages[0].counters
    assert (sum(counters["late"].values()), counters["rows_duplicate"]) == (expected.late, expected.duplicates)
    assert counters["rows_used"] == counters["rows_duplicate"] + len(rows)
