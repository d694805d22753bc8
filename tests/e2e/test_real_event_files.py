"""Runs of `slackwater run` over real event files emit exactly the known results.

Each pipeline runs over the whole file in one epoch, and over the file split into twelve parts, one per epoch.
"""

from __future__ import annotations

import datetime as dt
import gzip
import json
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pytest
from tests.laws.oracles import naive_oracle
from tests.support.case_selection import exhaustive, select_cases
from tests.support.command import run_command_for_exit_code
from tests.support.real_dataset_pipelines import (
    IBIS,
    PARTS,
    PIPELINES,
    check_known_result,
    read_result_frame,
    split_into_input_files,
    write_dataset_config,
)

pytestmark = [pytest.mark.spark, pytest.mark.shared_data]


@pytest.mark.parametrize(
    "name", select_cases(sorted(PIPELINES, key=lambda name: (name != "ibis", name)))
)  # the smallest file first
@pytest.mark.parametrize("cut", select_cases(["split", "whole"]))
@pytest.mark.usefixtures("spark")
def test_run_over_a_real_file_emits_the_known_result(
    real_events_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    cut: str,
) -> None:
    file = real_events_folder / PIPELINES[name]["file"]
    if cut == "whole":
        path = write_dataset_config(name, tmp_path, str(file))
    else:
        split_into_input_files(file, tmp_path / "in", PIPELINES[name].get("header", 0))
        path = write_dataset_config(name, tmp_path, f"{tmp_path}/in/*", "max_files_per_trigger = 1")
    assert run_command_for_exit_code(monkeypatch, "check", str(path)) == 0
    assert run_command_for_exit_code(monkeypatch, "run", str(path), "--available-now", "--flush") == 0
    check_known_result(name, read_result_frame(tmp_path))
    said = capsys.readouterr()
    assert "0 late, 0 refused, 0 bad" in said.out
    assert "Traceback" not in said.out + said.err


@pytest.mark.usefixtures("spark")
@exhaustive(beside="test_cli_run.py::test_summary_suspects_a_wrong_clock_if_most_rows_are_late")
def test_a_wrong_clock_in_the_input_is_reported(
    real_events_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first 45 rows are up to 50 days off. Nearly all later rows are late, and the run reports it."""
    split_into_input_files(real_events_folder / "wikiticker-bad-clock.json.gz", tmp_path / "in", 0)
    path = write_dataset_config("wiki-hourly", tmp_path, f"{tmp_path}/in/*", "max_files_per_trigger = 1")
    assert run_command_for_exit_code(monkeypatch, "run", str(path), "--available-now", "--flush") == 0
    said = capsys.readouterr()
    assert "late rows were dropped (watermark 2015-11-" in said.err
    assert "most rows were late, and the newest event time is 2015-" in said.out
    assert "if a clock in the input is wrong, set max_future" in said.out
    log = " ".join(said.err.split())
    assert "epoch 1: most rows are late" in log
    assert 'newest event time of source "events" is 2015-' in log
    assert f"read from {tmp_path}/in/" in log


@pytest.mark.parametrize("cut", ["split", "whole"])
@pytest.mark.usefixtures("spark")
@exhaustive(beside="test_max_event_time_jump.py::test_newest_event_time_does_not_depend_on_order_or_batches")
def test_max_jump_ms_prevents_late_rows_after_wrong_event_times(
    real_events_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    cut: str,
) -> None:
    """No row is late, however the file is split. Rows with wrong dates are counted in separate windows."""
    file = real_events_folder / "wikiticker-bad-clock.json.gz"
    if cut == "whole":
        path = write_dataset_config("wiki-hourly", tmp_path, str(file))
    else:
        split_into_input_files(file, tmp_path / "in", 0)
        path = write_dataset_config("wiki-hourly", tmp_path, f"{tmp_path}/in/*", "max_files_per_trigger = 1")
    path.write_text(path.read_text().replace('duration_ms = "1h"', 'duration_ms = "1h"\nmax_jump_ms = "1h"'))
    assert run_command_for_exit_code(monkeypatch, "run", str(path), "--available-now", "--flush") == 0
    said = capsys.readouterr()
    assert "39,244 used, 0 late, 0 refused, 0 bad" in said.out
    assert 'source "events" jumps from 2015-09-1' in " ".join(said.err.split())
    counts = read_result_frame(tmp_path).sort("window_start")
    hour = counts.filter(pl.col("window_start").dt.date() == dt.date(2015, 9, 12))
    assert hour["n"].sum() > 39_190


DAY_US, MINUTE_US = 86_400_000_000, 60_000_000


@pytest.mark.usefixtures("spark")
def test_late_rows_correct_sessions_within_the_allowed_lateness(
    real_events_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    postgres: Any,
) -> None:
    """Rows arrive up to 250 days late. Each is in the table or is a dead letter, as in the naive oracle."""
    file = real_events_folder / PIPELINES["ibis"]["file"]
    split_into_input_files(file, tmp_path / "in", 1)
    url = postgres.database("ibis")
    path = tmp_path / "ibis.toml"
    path.write_text(
        f"""name = "ibis"

[connections.lake]
kind = "files"

[connections.db]
kind = "postgres"
url = "{url}"

[[sources]]
name = "commits"
connection = "lake"
query = "{tmp_path}/in/*"
max_files_per_trigger = 1
{IBIS}

[transform.window]
{PIPELINES["ibis"]["window"].replace('"300d"', '"1d"')}
late_data = "reopen"
allowed_lateness_ms = "30d"

[[transform.window.aggregations]]
agg = "count"
as = "n"

[target]
connection = "db"
table = "sessions"

[dead_letter]
connection = "db"
table = "letters"

[state_store]
kind = "postgres"
url = "{url}"
"""
    )
    assert run_command_for_exit_code(monkeypatch, "run", str(path), "--available-now", "--flush") == 0
    with psycopg.connect(url) as db:
        table = db.execute("SELECT author_id, window_start, window_end, n FROM sessions").fetchall()
        letters = db.execute("SELECT reason, cause, value FROM letters").fetchall()
    assert sum(row[3] for row in table) + len(letters) == 10_178
    assert {letter[:2] for letter in letters} == {("late", "lateness")}
    judge = naive_oracle.SessionEpochOracle(
        naive_oracle.WindowSpec(
            "session", ["author_id"], [("n", "count", None)], gap_us=30 * MINUTE_US, cap_us=30 * DAY_US
        ),
        lateness_us=DAY_US,
        allowed_us=30 * DAY_US,
    )
    lines = gzip.decompress(file.read_bytes()).decode().splitlines()[1:]
    size = -(-len(lines) // PARTS)
    for n in range(PARTS):
        rows = [line.split("\t") for line in lines[n * size : (n + 1) * size]]
        judge.add_epoch([{"ts": int(r[2]) * 1_000_000, "author_id": r[4], "seq": int(r[0])} for r in rows])
    assert {json.loads(value)["seq"] for _, _, value in letters} == {row["seq"] for row in judge.late}
    expected = [(r["author_id"], r["window_start"], r["window_end"], r["n"]) for r in judge.window_rows()]
    windows = [(r[0], *(round(t.timestamp() * 1_000_000) for t in r[1:3]), r[3]) for r in table]
    assert sorted(windows) == sorted(expected)
    assert "late" in capsys.readouterr().out
