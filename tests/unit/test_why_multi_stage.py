"""`slackwater why` of a pipeline with several stages: the stages that wait, and the source that holds them back.

orders ─▶ sessions ─▶ minutes ─┐
       clicks ─────────────────┴▶ seen (join) ─▶ target

`test_ui_stages` checks the status page of this pipeline.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.three_stage_pipeline import SCHEMA, TEXT, run_three_stage_pipeline
from tests.support.why_command_fixtures import (
    NOON,
    Say,
    build_user_event_rows,
    clock_time_to_microseconds,
    run_why_json,
)

import slackwater as sw
from slackwater.config import toml
from slackwater.testing.local_pipeline import LocalPipeline


@pytest.fixture(autouse=True)
def _run_three_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_three_stage_pipeline(tmp_path)


ROOT = 'whose watermark is held by source "orders", partition o-1'


def test_why_describes_every_stage_and_key(run_why: Say) -> None:
    first, *printed = run_why("--key", "user=u1")
    assert first.startswith("law: epoch 1, committed 2024-03-01T12:00:45Z, ")
    del printed[1]
    assert printed == [
        "runner     none is running, so nothing changes; start one with: slackwater run p.toml",
        f'held by    stage "minutes", which waits for stage "sessions", {ROOT}: quiet for 45.0 s, since 2024-03-01T12:00:00Z',
        "",
        "stage     reads            watermark             waits for",
        'sessions  orders           2024-03-01T09:49:00Z  source "orders", partition o-1',
        f'minutes   sessions         2024-03-01T09:49:00Z  stage "sessions", {ROOT}',
        f'seen      clicks, minutes  2024-03-01T09:49:00Z  stage "minutes", which waits for stage "sessions", {ROOT}',
        "",
        "source  newest event          lateness  watermark             when it was committed",
        "orders  2024-03-01T10:30:00Z  60.0 s    2024-03-01T09:49:00Z  quiet for 45.0 s, idle in 15.0 s",
        "  o-0   2024-03-01T10:30:00Z  60.0 s    2024-03-01T10:29:00Z  quiet for 45.0 s, idle in 15.0 s",
        "  o-1   2024-03-01T09:50:00Z  60.0 s    2024-03-01T09:49:00Z  quiet for 45.0 s, idle in 15.0 s",
        "clicks  2024-03-01T10:21:00Z  30.0 s    2024-03-01T10:20:30Z  had rows",
        "",
        'stage "sessions": 2 open sessions of 2 keys; the next to close:',
        "  user  start                 rows  closes at watermark          closes after",
        '  u2    2024-03-01T09:50:00Z  1     2024-03-01T10:00:00.000001Z  an event is seen on "orders" (partition o-1) at or after 2024-03-01T10:01:00.000001Z',
        '  u1    2024-03-01T10:30:00Z  1     2024-03-01T10:40:00.000001Z  an event is seen on "orders" (each of o-0, o-1) at or after 2024-03-01T10:41:00.000001Z',
        "",
        'stage "minutes": no window is open',
        "",
        'stage "seen": 3 rows kept by the join',
        "side   source   rows kept  each until the watermark is past  all are gone at watermark",
        "left   minutes  0          its time + 5 m",
        "right  clicks   3          its time + 0.0 s                  2024-03-01T10:21:00.000001Z",
        "a pair is emitted in the epoch that reads its second row",
        "a row of the left side without a partner is emitted when it leaves the state",
        "",
        'stage "sessions": key user=u1: 1 open session',
        "  session from 2024-03-01T10:30:00Z, last event 2024-03-01T10:30:00Z, 1 row",
        "    closes at watermark 2024-03-01T10:40:00.000001Z; the watermark is 51 m behind that",
        "    until then, a row within the gap extends the session",
        '    closes after an event is seen on "orders" (each of o-0, o-1) at or after 2024-03-01T10:41:00.000001Z',
        "  rows before 2024-03-01T09:39:00Z are late unless they join an open session",
        '  its result goes to stage "minutes"',
        '  late rows are unknown: late rows are not kept (late_data = "drop"); late_data = "dlq" keeps them',
        "",
        'stage "minutes": key user=u1: no window is open',
        "  late rows: none",
    ]  # fmt: skip


def test_stage_option_limits_answer_to_one_stage(run_why: Say) -> None:
    printed = run_why("--stage", "minutes")
    assert printed[2].startswith("watermark  2024-03-01T09:49:00Z, ")
    assert printed[3:] == [
        f'held by    stage "sessions", {ROOT}: quiet for 45.0 s, since 2024-03-01T12:00:00Z',
        "",
        "source          newest event          lateness  watermark             when it was committed",
        "stage sessions  2024-03-01T09:15:00Z  0.0 s     2024-03-01T09:49:00Z  what it emitted",
        "",
        "no window is open",
    ]
    report = run_why_json(run_why, "--stage", "minutes")
    assert (report["stage"], report["through"], report["stages"]) == ("minutes", ["sessions"], [])
    assert report["holder"]["partition"] == "o-1"
    assert [s["stage"] for s in run_why_json(run_why)["stages"]] == ["sessions", "minutes", "seen"]


def test_unknown_stage_or_key_is_reported_with_available_names(run_why: Say) -> None:
    assert run_why("--stage", "minute") == [
        '1 error: law: --stage: found "minute", which is not a stage of the state in epoch 1; did you mean "minutes"?; '
        "available: sessions, minutes, seen"
    ]
    assert run_why("--key", "usr=u1") == [
        "1 error: law: --key: no stage has windows with these key columns; key columns by stage: "
        "sessions: user; minutes: user; seen: none"
    ]


def test_idle_sources_of_first_stage_hold_watermark_of_last_stage(run_why: Say) -> None:
    with LocalPipeline(toml.loads(TEXT), SCHEMA, state_dir="state", capture_losses=False, clock_us=NOON) as test:
        test.quiet("2m")
    printed = run_why()
    assert printed[3] == (
        'held by    nothing: stage "minutes", which waits for stage "sessions", whose sources are all idle; the watermark does not move until one of them has an event'
    )
    assert printed[6].endswith("all sources are idle")


def test_window_waits_for_any_idle_source_and_every_lagging_source(run_why: Say) -> None:
    """A window waits for a stage over idle sources and for one more source."""
    text = TEXT.split('[[stages]]\nname = "seen"')[0] + TEXT[TEXT.index("[target]") :]
    text = text.replace('name = "minutes"\nfrom = "sessions"', 'name = "minutes"\nfrom = ["sessions", "clicks"]')
    text = text.replace('name = "sessions"\nfrom = "orders"', 'name = "sessions"\nfrom = ["orders", "more"]')
    more = '[[sources]]\nname = "more"\nconnection = "lake"\nquery = "more/*.jsonl"\nformat = "json"\n[[stages]]'
    text = text.replace("[[stages]]", more, 1).replace('path = "state"', 'path = "other"')
    text = text.replace(
        '[stages.window]\nkind = "tumbling"', '[stages.window]\nevent_time_column = "ts"\nkind = "tumbling"'
    )
    Path("p.toml").write_text(text)
    with LocalPipeline(toml.loads(text), SCHEMA, state_dir="other", capture_losses=False, clock_us=NOON) as test:
        test.pipe(
            {
                "orders": build_user_event_rows("u1", "9:00"),
                "more": build_user_event_rows("u1", "9:01"),
                "clicks": build_user_event_rows("u2", "9:10"),
            }
        )
        test.quiet("2m")
        test.pipe({"clicks": build_user_event_rows("u2", "9:11")})
    (line,) = [x for x in run_why("--stage", "minutes") if x.startswith("  2024-03-01T09:11:00Z")]
    assert line.endswith(
        'an event is seen on "clicks" at or after 2024-03-01T09:12:00Z and ("orders" or "more" at or after 2024-03-01T09:13:00Z)'
    )


def test_python_why_reports_key_and_stage_of_same_answer() -> None:
    report = sw.why("p.toml", key={"user": "u2"}, stage="sessions")
    assert report.key is not None and [o.start_us for o in report.key.open] == [clock_time_to_microseconds("9:50")]
    assert sw.why("p.toml").stage == "seen"
    assert "seen" in sw.why("p.toml")._repr_html_()
