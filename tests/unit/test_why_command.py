"""`slackwater why` over states of the in-process engine: printed lines and correct predictions.

web   ●09:00 u1   ●09:05 u1   ●10:03 u1          newest 10:03
app   ●09:02 u2                                  newest 09:02, then quiet: it holds the watermark
"""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.case_selection import select_cases
from tests.support.local_pipeline_script import MicroBatch, QuietInterval, run_local_script
from tests.support.why_command_fixtures import (
    HOPPING,
    NOON,
    SESSION,
    STORY,
    TUMBLING,
    TYPES,
    Say,
    build_user_event_rows,
    clock_time_to_microseconds,
    run_toml_pipeline,
    run_why_json,
)

from slackwater.config import toml
from slackwater.query.why_report_builder import build_why_report
from slackwater.state.files.store import FilesStore

NO_HISTORY = (
    '  late rows are unknown: late rows are not kept (late_data = "drop"); late_data = "dlq" keeps them',
    "  published results: none",
)


@pytest.fixture(autouse=True)
def _change_to_temp_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# -- full reports ----------------------------------------------------------------------------------------------------


def test_why_reports_open_sessions_and_their_closing_conditions(run_why: Say) -> None:
    run_toml_pipeline(SESSION, STORY)
    first, *printed = run_why("--key", "user=u1")
    assert first.startswith("law: epoch 2, committed 2024-03-01T12:00:45Z, ")
    assert first.endswith(" ago, published")
    assert printed[1].startswith("watermark  2024-03-01T09:01:00Z, ")
    del printed[1]
    assert printed == [
        "runner     none is running, so nothing changes; start one with: slackwater run p.toml",
        'held by    source "app": quiet for 45.0 s, since 2024-03-01T12:00:00Z',
        "",
        "source  newest event          lateness  watermark             when it was committed",
        "web     2024-03-01T10:04:00Z  30.0 s    2024-03-01T10:03:30Z  had rows",
        "app     2024-03-01T09:02:00Z  60.0 s    2024-03-01T09:01:00Z  quiet for 45.0 s, idle in 15.0 s",
        "",
        "4 open sessions of 3 keys; the next to close:",
        "  user  start                 rows  closes at watermark          closes after",
        '  u2    2024-03-01T09:02:00Z  1     2024-03-01T09:12:00.000001Z  an event is seen on "app" at or after 2024-03-01T09:13:00.000001Z',
        '  u1    2024-03-01T09:00:00Z  2     2024-03-01T09:15:00.000001Z  an event is seen on "app" at or after 2024-03-01T09:16:00.000001Z',
        '  u1    2024-03-01T10:03:00Z  1     2024-03-01T10:13:00.000001Z  an event is seen on "web" at or after 2024-03-01T10:13:30.000001Z and "app" at or after 2024-03-01T10:14:00.000001Z',
        '  NULL  2024-03-01T10:04:00Z  1     2024-03-01T10:14:00.000001Z  an event is seen on "web" at or after 2024-03-01T10:14:30.000001Z and "app" at or after 2024-03-01T10:15:00.000001Z',
        "",
        "key user=u1: 2 open sessions",
        "  session from 2024-03-01T09:00:00Z, last event 2024-03-01T09:05:00Z, 2 rows",
        "    closes at watermark 2024-03-01T09:15:00.000001Z; the watermark is 14 m behind that",
        "    until then, a row within the gap extends the session",
        '    closes after an event is seen on "app" at or after 2024-03-01T09:16:00.000001Z',
        "  session from 2024-03-01T10:03:00Z, last event 2024-03-01T10:03:00Z, 1 row",
        "    closes at watermark 2024-03-01T10:13:00.000001Z; the watermark is 72 m behind that",
        "    until then, a row within the gap extends the session",
        '    closes after an event is seen on "web" at or after 2024-03-01T10:13:30.000001Z and "app" at or after 2024-03-01T10:14:00.000001Z',
        "  rows before 2024-03-01T08:51:00Z are late unless they join an open session",
        *NO_HISTORY,
    ]  # fmt: skip


def test_why_reports_open_windows_and_their_closing_conditions(run_why: Say) -> None:
    run_toml_pipeline(TUMBLING, STORY)
    printed = run_why("--key", "user=u1")
    assert printed[9:] == [
        "3 open windows; the next to close:",
        "  start                 keys  closes at watermark   closes after",
        '  2024-03-01T09:00:00Z  2     2024-03-01T09:05:00Z  an event is seen on "app" at or after 2024-03-01T09:06:00Z',
        '  2024-03-01T09:05:00Z  1     2024-03-01T09:10:00Z  an event is seen on "app" at or after 2024-03-01T09:11:00Z',
        '  2024-03-01T10:00:00Z  2     2024-03-01T10:05:00Z  an event is seen on "web" at or after 2024-03-01T10:05:30Z and "app" at or after 2024-03-01T10:06:00Z',
        "",
        "key user=u1: 3 open windows",
        "  window from 2024-03-01T09:00:00Z, 1 row",
        "    closes at watermark 2024-03-01T09:05:00Z; the watermark is 4 m behind that",
        '    closes after an event is seen on "app" at or after 2024-03-01T09:06:00Z',
        "  window from 2024-03-01T09:05:00Z, 1 row",
        "    closes at watermark 2024-03-01T09:10:00Z; the watermark is 9 m behind that",
        '    closes after an event is seen on "app" at or after 2024-03-01T09:11:00Z',
        "  window from 2024-03-01T10:00:00Z, 1 row",
        "    closes at watermark 2024-03-01T10:05:00Z; the watermark is 64 m behind that",
        '    closes after an event is seen on "web" at or after 2024-03-01T10:05:30Z and "app" at or after 2024-03-01T10:06:00Z',
        "  rows before 2024-03-01T09:00:00Z are late",
        *NO_HISTORY,
    ]  # fmt: skip


def test_hopping_windows_of_a_key_are_assembled_from_panes(run_why: Say) -> None:
    run_toml_pipeline(HOPPING, STORY)
    report = run_why_json(run_why, "--key", "user=u1")
    starts = [(o["start_us"], o["rows"]) for o in report["key"]["open"]]
    expected = [("8:55", 1), ("9:00", 2), ("9:05", 1), ("9:55", 1), ("10:00", 1)]
    assert starts == [(clock_time_to_microseconds(clock), n) for clock, n in expected]
    assert report["key"]["late_before_us"] == clock_time_to_microseconds("8:55")
    assert (report["open_windows"], report["open_keys"]) == (5, None)


@pytest.mark.parametrize("text", [TUMBLING, HOPPING])
def test_windows_with_early_results_are_shown_as_open(run_why: Say, text: str) -> None:
    """With emit = "updates", windows whose early results are published still count as open."""
    run_toml_pipeline(text, STORY)
    before = run_why_json(run_why, "--key", "user=u1")["key"]["open"]
    run_toml_pipeline(
        text.replace("[transform.window]", '[transform.window]\nemit = "updates"\nemit_metadata = true').replace(
            '"state"', '"other"'
        ),
        STORY,
        state_dir="other",
    )
    assert [(o["start_us"], o["rows"]) for o in run_why_json(run_why, "--key", "user=u1")["key"]["open"]] == [
        (o["start_us"], o["rows"]) for o in before
    ]


@pytest.mark.parametrize("text", [SESSION, TUMBLING, HOPPING])
def test_the_event_that_why_predicts_closes_the_window(run_why: Say, text: str) -> None:
    """The predicted event closes the reported window, and an event one microsecond earlier does not."""
    run_toml_pipeline(text, STORY)
    following = run_why_json(run_why)["next"][0]
    (need,) = following["needs"]
    assert need["source"] == "app"
    for early in (1, 0):
        script = [*STORY, MicroBatch({"app": [{"ts": need["event_us"] - early, "user": "z", "price": None}]})]
        window = toml.loads(text).transform.window
        result = run_local_script(window, script, TYPES, ("web", "app"), flush=False, lateness_ms={"web": 30_000})
        assert [r["window_start"] for r in result.rows] == [following["start_us"]] * (0 if early else len(result.rows))
        assert bool(result.rows) is not bool(early)


def test_session_that_is_split_at_its_maximum_duration_is_marked(run_why: Say) -> None:
    clocks = [f"9:{m:02}" for m in range(0, 60, 9)] + ["10:02", "10:05"]
    run_toml_pipeline(
        SESSION, [MicroBatch({"web": build_user_event_rows("u1", *clocks), "app": build_user_event_rows("u2", "9:02")})]
    )
    printed = run_why("--key", "user=u1")
    assert "    the session is cut there, at max_session_duration; an earlier row can still move the cut" in printed
    one, two = run_why_json(run_why, "--key", "user=u1")["key"]["open"]
    assert (one["reason"], one["start_us"], one["last_us"], one["rows"]) == (
        "cap",
        clock_time_to_microseconds("9:00"),
        clock_time_to_microseconds("9:54"),
        7,
    )
    assert one["closes_us"] == clock_time_to_microseconds("10:00")
    assert (two["reason"], two["start_us"], two["last_us"], two["rows"]) == (
        "close",
        clock_time_to_microseconds("10:02"),
        clock_time_to_microseconds("10:05"),
        2,
    )


def test_key_with_closed_sessions_is_reported_with_the_end_of_the_last_one(run_why: Say) -> None:
    run_toml_pipeline(
        SESSION,
        [
            MicroBatch(
                {"web": build_user_event_rows("u1", "9:00", "9:05"), "app": build_user_event_rows("u2", "9:00")}
            ),
            MicroBatch({"web": build_user_event_rows("u2", "9:19"), "app": build_user_event_rows("u2", "9:19")}),
        ],
    )
    printed = run_why("--key", "user=u1")
    assert printed[-5:] == [
        "key user=u1: no session is open",
        "  floor 2024-03-01T09:15:00Z: the last closed session ended there, and rows up to this time are late",
        "  rows before 2024-03-01T09:08:00Z are late unless they join an open session",
        *NO_HISTORY,
    ]
    assert run_why_json(run_why, "--key", "user=nobody")["key"]["floor_us"] is None


def test_why_finds_the_next_windows_to_close_among_many(run_why: Say) -> None:
    """Sessions on five shards end up to 90 minutes apart. A longer version supersedes one of the sessions."""
    rows = [
        {"ts": clock_time_to_microseconds("9:00") + n * n * 1_000_000, "user": f"u{n}", "price": None}
        for n in range(60)
    ]
    longer = [{"ts": clock_time_to_microseconds("9:00") + 300_000_000, "user": "u0", "price": None}]
    run_toml_pipeline(
        SESSION,
        [MicroBatch({"web": rows, "app": build_user_event_rows("u60", "8:30")}), MicroBatch({"web": longer})],
        shards=5,
    )
    report = run_why_json(run_why)
    assert (report["open_windows"], report["open_keys"]) == (61, 61)
    assert [o["key"]["user"] for o in report["next"]] == ["u60", "u1", "u2", "u3", "u4"]


# -- sources that hold the watermark ---------------------------------------------------------------------------------


def test_source_without_events_holds_the_watermark_until_idle(run_why: Say) -> None:
    run_toml_pipeline(
        SESSION,
        [
            MicroBatch({"web": build_user_event_rows("u1", "9:00")}),
            QuietInterval(50_000),
            MicroBatch({"web": build_user_event_rows("u1", "9:01")}),
        ],
    )
    printed = run_why()
    assert printed[2].startswith("watermark  none yet")
    assert (
        printed[3]
        == 'held by    source "app": no event yet, quiet for 50.0 s, since 2024-03-01T12:00:00Z; it counts as idle after 10.0 s more of silence'
    )
    assert printed[-1].endswith(
        'an event is seen on "web" at or after 2024-03-01T09:11:30.000001Z and "app" at or after 2024-03-01T09:12:00.000001Z'
    )


def test_source_with_rows_that_holds_the_watermark_is_reported(run_why: Say) -> None:
    run_toml_pipeline(
        SESSION, [MicroBatch({"web": build_user_event_rows("u1", "9:00"), "app": build_user_event_rows("u1", "8:00")})]
    )
    assert run_why()[3] == 'held by    source "app": it had rows in this epoch'


def test_formerly_idle_source_behind_the_watermark_is_reported(run_why: Say) -> None:
    run_toml_pipeline(
        SESSION,
        [
            MicroBatch({"web": build_user_event_rows("u1", "9:00")}),
            QuietInterval(60_000),
            MicroBatch({"web": build_user_event_rows("u1", "10:00")}),
            MicroBatch({"app": build_user_event_rows("u1", "8:00")}),
        ],
    )
    assert (
        run_why()[3]
        == 'held by    source "app": it had rows in this epoch; it was idle, and its newest event is still behind the watermark'
    )


def test_partition_that_holds_the_watermark_is_reported(run_why: Say) -> None:
    parts = {"web": ("clicks-0", "clicks-1", "clicks-2")}
    web = [
        *build_user_event_rows("u1", "9:30", partition="clicks-0"),
        *build_user_event_rows("u1", "9:10", partition="clicks-1"),
    ]
    both = MicroBatch({"web": web, "app": build_user_event_rows("u2", "9:50")}, parts)
    run_toml_pipeline(SESSION, [both, QuietInterval(30_000), both, QuietInterval(30_000), both])
    printed = run_why()
    assert printed[3] == 'held by    source "web", partition clicks-1: it had rows in this epoch'
    assert printed[6:10] == [
        "web         2024-03-01T09:30:00Z  30.0 s    2024-03-01T09:09:30Z  had rows",
        "  clicks-0  2024-03-01T09:30:00Z  30.0 s    2024-03-01T09:29:30Z  had rows",
        "  clicks-1  2024-03-01T09:10:00Z  30.0 s    2024-03-01T09:09:30Z  had rows",
        "  clicks-2  none yet              30.0 s    none yet              idle, quiet for 60.0 s",
    ]
    assert any('on "web" (partition clicks-1) at or after' in line for line in printed)
    assert any('on "web" (each of clicks-0, clicks-1) at or after' in line for line in printed)


def test_no_source_holds_the_watermark_when_all_are_idle(run_why: Say) -> None:
    run_toml_pipeline(
        SESSION,
        [
            MicroBatch({"web": build_user_event_rows("u1", "9:30"), "app": build_user_event_rows("u2", "9:10")}),
            QuietInterval(60_000),
        ],
    )
    printed = run_why()
    assert printed[3] == "held by    nothing: all sources are idle; the watermark does not move until one has an event"
    assert printed[6].endswith("idle, quiet for 60.0 s")
    assert printed[-2].endswith(
        'an event is seen on "web" at or after 2024-03-01T09:20:30.000001Z or "app" at or after 2024-03-01T09:21:00.000001Z'
    )


def test_idle_close_shows_the_remaining_silence(run_why: Say) -> None:
    closing = SESSION.replace('lateness_ms = "1m"', 'lateness_ms = "1m"\nidle_close_ms = "5m"')
    run_toml_pipeline(
        closing,
        [
            MicroBatch({"web": build_user_event_rows("u1", "9:30"), "app": build_user_event_rows("u2", "9:10")}),
            QuietInterval(60_000),
        ],
    )
    printed = run_why()
    assert (
        printed[3]
        == "held by    nothing: all sources are idle; the watermark follows the clock after 5 m of silence, so far 60.0 s"
    )
    assert printed[-2].endswith(", or after 4 m more without any")
    assert [o["silence_us"] for o in run_why_json(run_why)["next"]] == [
        240_000_000,
        (10 * 60 + 30 - 60) * 1_000_000 + 1,
    ]


# -- the runner and missing state ------------------------------------------------------------------------------------


def test_running_process_is_named_and_can_still_commit(run_why: Say) -> None:
    run_toml_pipeline(SESSION, STORY)
    store = FilesStore("state", "law")
    latest = store.open()
    assert run_why()[1].startswith("runner     process ")
    assert run_why()[1].endswith("; rows that it has read since the commit are not included")
    assert latest is not None
    store.commit(latest.model_copy(update={"epoch": latest.epoch + 1}))
    store.close()


def test_why_reports_an_unpublished_epoch(run_why: Say) -> None:
    script = [MicroBatch({"web": build_user_event_rows("u1", "9:00"), "app": build_user_event_rows("u1", "9:00")})]
    run_toml_pipeline(TUMBLING, script)
    Path("p.toml").write_text(TUMBLING)
    store = FilesStore("state", "law")
    latest = store.open()
    assert latest is not None
    meta = {"file": "outputs/x.arrow", "rows": 1}
    store.commit(latest.model_validate({**latest.model_dump(), "epoch": latest.epoch + 1, "output": [meta]}))
    store.close()
    assert run_why()[0].endswith(" ago, NOT YET PUBLISHED")


def test_absence_of_open_windows_is_reported(run_why: Say) -> None:
    run_toml_pipeline(TUMBLING, STORY, flush=True)
    assert run_why()[-1] == "no window is open"


def test_missing_state_is_reported_without_creating_files(run_why: Say) -> None:
    Path("p.toml").write_text(SESSION)
    assert run_why() == ["1 error: law: there is no state yet; start it with: slackwater run p.toml"]
    assert [p.name for p in Path().iterdir()] == ["p.toml"], "nothing was made"
    store = FilesStore("state", "law")
    store.open()
    (line,) = run_why()
    assert line.startswith("1 error: law: there is no state yet; process ")
    assert line.endswith(" is running, but has not committed its first epoch yet")
    store.close()


def test_state_in_memory_is_refused(run_why: Say) -> None:
    Path("p.toml").write_text(TUMBLING.split("[state_store]")[0])
    assert run_why() == [
        '1 error: law: its state is in memory, which only the runner can read; set [state_store] kind = "files" or "postgres"'
    ]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('["user"]', '["price"]', "another window (keys: state has ['user string'], config has ['price decimal(10,2)']: "),
        ('["user"]', '["usr"]', "another window (keys: state has ['user string'], config has ['usr']: "),
        ('"max"', '"min"', "state has max price decimal(10,2), config has min price decimal(10,2): "),
    ],
)  # fmt: skip
def test_why_refuses_the_state_of_another_window(run_why: Say, old: str, new: str, message: str) -> None:
    run_toml_pipeline(SESSION, STORY)
    Path("p.toml").write_text(SESSION.replace(old, new))
    (line,) = run_why()
    assert line.startswith("1 error: law: the state in epoch 2 was written for another window")
    assert message in line


def test_state_that_needs_a_migration_is_reported_unchanged(run_why: Say) -> None:
    run_toml_pipeline(SESSION, STORY)
    Path("p.toml").write_text(SESSION)
    before = run_why()
    Path("p.toml").write_text(SESSION.replace('"10m"', '"11m"'))
    assert run_why() == before


# -- keys ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("usr=u1", '--key: "usr" is not a key of this window; did you mean "user"?'),
        ("zzz", '--key: found "zzz", expected a column name and a value: user=zzz,n=…'),
        ("user=u1", '--key: "n" is missing; expected user=…,n=…'),
        ("user=u1,n=x", '--key: n: found "x", expected a value of type bigint'),
    ],
)
def test_invalid_key_option_is_reported_with_a_one_line_error(run_why: Say, option: str, message: str) -> None:
    two = SESSION.replace('["user"]', '["user", "n"]')
    run_toml_pipeline(
        two,
        [MicroBatch({"web": [{"ts": clock_time_to_microseconds("9:00"), "user": "u", "n": 1, "price": None}]})],
        {**TYPES, "n": "bigint"},
    )
    assert run_why("--key", option) == [f"1 error: law: {message}"]


def test_why_refuses_a_key_for_a_window_without_keys(run_why: Say) -> None:
    bare = TUMBLING.replace('group_by = ["user"]\n', "")
    run_toml_pipeline(bare, STORY)
    assert run_why("--key", "user=u1") == [
        "1 error: law: --key: this window has no group_by, so there are no keys; omit --key"
    ]
    assert run_why_json(run_why)["key"] is None


@pytest.mark.parametrize(
    ("type_", "value", "text"),
    [
        ("string", "a,b=c", "a,b=c"),
        ("string", None, None),
        ("string", "", ""),
        ("int", -7, "-7"),
        ("boolean", True, "TRUE"),
        ("double", float("nan"), "NaN"),
        ("double", -0.0, "0"),
        ("decimal(10,2)", "1.50", "1.5"),
        ("date", dt.date(2024, 2, 29), "2024-02-29"),
        ("timestamp", clock_time_to_microseconds("9:00"), "2024-03-01T09:00:00Z"),
        ("timestamp", clock_time_to_microseconds("9:00"), "2024-03-01T10:00:00+01:00"),
        ("timestamp", clock_time_to_microseconds("9:00"), "2024-03-01 09:00"),
        ("timestamp_ntz", clock_time_to_microseconds("9:00"), "2024-03-01 09:00"),
        ("binary", b"\x00\xff", "00ff"),
    ],
)
@pytest.mark.parametrize("shape", select_cases([SESSION, TUMBLING]))
def test_keys_of_every_type_are_parsed_from_command_line_text(
    run_why: Say, shape: str, type_: str, value: Any, text: str | None
) -> None:
    """The other key is a string with a comma. The command line has both orders of the keys, in one option or in two."""
    two = shape.replace('["user"]', '["user", "k"]')
    row = {"ts": clock_time_to_microseconds("9:00"), "user": "x,y", "k": value, "price": None}
    run_toml_pipeline(two, [MicroBatch({"web": [row, row | {"user": "z"}]})], {**TYPES, "k": type_})
    key = "k" if text is None else f"k={text}"
    for options in (["--key", f"{key},user=x,y"], ["--key", f"user=x,y,{key}"], ["--key", key, "--key", "user=x,y"]):
        key_report = run_why_json(run_why, *options)["key"]
        assert [o["rows"] for o in key_report["open"]] == [1], options
        assert key_report["key"]["user"] == "x,y"


def test_without_a_count_aggregation_the_number_of_rows_is_unknown(run_why: Say) -> None:
    run_toml_pipeline(
        SESSION.replace('agg = "count"\nas = "clicks"', 'agg = "min"\ncolumn = "user"\nas = "clicks"'), STORY
    )
    report = run_why_json(run_why, "--key", "user=u1")
    assert {o["rows"] for o in [*report["next"], *report["key"]["open"]]} == {None}
    assert not any("1 row" in line for line in run_why("--key", "user=u1"))


def test_why_does_not_import_spark_or_connector_libraries() -> None:
    run_toml_pipeline(SESSION, STORY)
    code = """
import sys
sys.argv = ["slackwater", "why", "p.toml", "--key", "user=u1"]
from slackwater.cli.main import main
try:
    main()
finally:
    print(sorted({"pyspark", "pandas", "psycopg", "confluent_kafka", "deltalake"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_why_report_can_be_built_from_python() -> None:
    run_toml_pipeline(SESSION, STORY)
    report = build_why_report(toml.loads(SESSION), FilesStore("state", "law"), NOON + 60_000_000)
    assert (report.epoch, report.watermark_us, report.runner) == (2, clock_time_to_microseconds("9:01"), None)
