"""`slackwater why` for a join: the holder of its watermark, the buffered rows of each side, and their expiry.

orders    ●09:00 ●09:10     a row waits for 5 m; the row of 09:00 is expired, and leaves with its file
payments        ●09:08      holds the watermark: 09:07; a row waits for no later order
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.local_pipeline_script import MicroBatch, build_pipeline, run_local_script
from tests.support.why_command_fixtures import JOIN, Say, build_user_event_rows, run_why_json

import slackwater as sw
from slackwater.cli.why import format_report
from slackwater.config import toml
from slackwater.query.why_report_builder import build_why_report
from slackwater.state.files.store import FilesStore


@pytest.fixture(autouse=True)
def _change_to_temp_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run_join_pipeline(**more: Any) -> None:
    Path("p.toml").write_text(JOIN)
    join = toml.loads(JOIN).transform.join
    assert join is not None
    script = [
        MicroBatch(
            {"orders": build_user_event_rows("u1", "9:00", "9:10"), "payments": build_user_event_rows("u2", "9:08")}
        )
    ]
    types = {"user": "string", "price": "decimal(10,2)"}
    run_local_script(join, script, types, ("orders", "payments"), flush=False, state_dir="state", **more)


def test_why_shows_the_buffered_rows_of_a_join_and_their_expiry(run_why: Say) -> None:
    run_join_pipeline()
    printed = run_why()
    assert printed[2].startswith("watermark  2024-03-01T09:07:00Z, ")
    assert printed[3].startswith('held by    source "payments": it had rows in this epoch')
    table = printed[printed.index("") + 1 :]
    below = [line.split("  ") for line in table[table.index("") + 1 :]]
    assert [[c.strip() for c in row if c.strip()] for row in below] == [
        ["side", "source", "rows kept", "each until the watermark is past", "all are gone at watermark"],
        ["left", "orders", "2", "its time + 5 m", "2024-03-01T09:15:00.000001Z"],
        ["right", "payments", "1", "its time + 0.0 s", "2024-03-01T09:08:00.000001Z"],
        ["a pair is emitted in the epoch that reads its second row"],
        ["a row of the left side without a partner is emitted when it leaves the state"],
    ]
    report = run_why_json(run_why)
    assert (report["kind"], report["open_windows"], report["next"]) == ("join", 0, [])
    assert [(s["side"], s["rows"], s["outer"]) for s in report["sides"]] == [("left", 2, True), ("right", 1, False)]
    assert report["holder"]["source"] == "payments"


def test_why_of_a_join_rejects_a_key(run_why: Say) -> None:
    run_join_pipeline()
    assert run_why("--key", "user=u1") == ["1 error: law: --key: a join has no windows to look up by key; omit --key"]


def test_why_reports_the_holder_for_a_window_over_joined_rows() -> None:
    counts = [sw.Aggregation(agg="count", as_="n")]
    window = sw.Window(kind="tumbling", duration_ms="1m", max_groups_per_window=9, aggregations=counts)
    run_join_pipeline(downstream=window)
    pipeline = build_pipeline(toml.loads(JOIN).transform.step, ("orders", "payments"), downstream=window)
    printed = list(format_report(build_why_report(pipeline, FilesStore("state", "law"), 0), "p.toml"))
    assert printed[-1].startswith('stage "')
    assert printed[-1].endswith(": no window is open")
    assert any(line.endswith(', whose watermark is held by source "payments"') for line in printed)
