"""Resets on Spark with a real broker and files: sources continue at the new offsets and open windows remain."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.case_selection import exhaustive, select_cases
from tests.support.kafka_topics import START_MS, Make, minute_window, to_count_rows
from tests.support.spark_pipeline_runner import SparkPipelineRunner

import slackwater as sw
from slackwater.cli.main import main

pytestmark = pytest.mark.spark
CONFIG = """
name = "test"
[connections.bus]
kind = "kafka"
bootstrap_servers = "{address}"
[connections.lake]
kind = "files"
[[sources]]
name = "events"
connection = "bus"
query = "{topic}"
schema = "user STRING, amount BIGINT"
[transform.window]
kind = "tumbling"
duration_ms = "1m"
group_by = ["user"]
max_groups_per_window = 1000
[[transform.window.aggregations]]
agg = "count"
as = "n"
[[transform.window.aggregations]]
agg = "sum"
column = "amount"
as = "total"
[target]
connection = "lake"
path = "out"
[state_store]
kind = "files"
path = "{state}"
"""


def run_state_reset(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    monkeypatch.setattr(sys, "argv", ["slackwater", "state", "reset", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    captured = capsys.readouterr()
    assert not ended.value.code, captured.err
    return captured.out


@exhaustive(beside="test_state_reset_command.py::test_reset_sets_only_offsets_of_partitions_and_files")
def test_reset_of_kafka_offsets_rereads_and_skips_records(
    runner: SparkPipelineRunner,
    topic_factory: Make,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Records from a timestamp on are read again and count twice in the open window. Then three records are skipped."""
    events = topic_factory(2)
    for second in (1, 2, 3, 4):
        events.send_rows({"user": "a", "amount": second}, second=second)
    events.send_rows({"user": "b", "amount": 10}, second=5, partition=1)
    window = minute_window()
    runner.run_pipeline(source=events.source(), window=window, flush=False)
    file = runner.home / "p.toml"
    file.write_text(CONFIG.format(address=events.broker.address, topic=events.name, state=runner.home / "state"))
    text = run_state_reset(monkeypatch, capsys, str(file), "--offsets", "events=2023-11-14T22:13:23Z")
    assert START_MS + 3000 == 1_700_000_003_000  # equals the timestamp of the reset
    lines = [line.split() for line in text.splitlines()]
    assert ["events", f"{events.name}-0", "4", "2", "2", "again"] in lines
    assert ["events", f"{events.name}-1", "1", "0", "1", "again"] in lines
    runner.run_pipeline(source=events.source(), window=window, flush=False)
    events.send_rows(*[{"user": "a", "amount": 100}] * 3, second=6)
    text = run_state_reset(monkeypatch, capsys, str(file), "--offsets", "latest")
    assert "3 skipped" in text
    assert "warning: skipped rows are lost" in text
    assert run_state_reset(monkeypatch, capsys, str(file), "--offsets", "earliest", "--dry-run").endswith(
        "(--dry-run)\n"
    )
    events.send_rows({"user": "a", "amount": 1000}, second=7)
    out = runner.run_pipeline(source=events.source(), window=window)
    assert to_count_rows(out) == [("a", 4 + 2 + 1, 10 + 7 + 1000), ("b", 2, 20)]


@pytest.mark.parametrize("kind", select_cases(["postgres", "files"]))
def test_reset_to_earliest_rereads_files(
    kind: str,
    runner: SparkPipelineRunner,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    rows: list[dict[str, Any]] = [{"user": "a", "amount": 1, "ts": f"2026-03-01T12:00:0{n}"} for n in range(3)]
    runner.write_input_file("0.jsonl", rows[:2])
    runner.write_input_file("1.jsonl", rows[2:])
    store = sw.StateStore(kind="files", path=str(tmp_path / "state"))
    where = [str(tmp_path / "state")]
    if kind == "postgres":
        url = request.getfixturevalue("postgres").database("reset_files")
        store, where = sw.StateStore(kind="postgres", url=url), [url]
    settings = {
        "source": runner.files_source("user STRING, amount BIGINT, ts TIMESTAMP"),
        "window": minute_window(event_time_column="ts"),
        "state_store": store,
    }
    runner.run_pipeline(**settings, flush=False)
    text = run_state_reset(monkeypatch, capsys, *where, "--offsets", "earliest")
    assert "events files 2 files read none read 2 files again" in " ".join(text.split())
    assert to_count_rows(runner.run_pipeline(**settings)) == [("a", 6, 6)]
