"""Sessions whose gap comes from their rows, and late rows as separate results, on Spark."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from tests.support.case_selection import select_cases
from tests.support.spark_pipeline_runner import SparkPipelineRunner

import slackwater as sw
from slackwater.errors import BadRowError, StartError

pytestmark = pytest.mark.spark

SCHEMA = "user STRING, kind STRING, ms BIGINT, text STRING, ts TIMESTAMP"


def event_row(second: int, kind: str = "click", ms: int | None = 10_000, text: str = "10 seconds") -> dict[str, Any]:
    when = f"2024-03-01T00:{second // 60:02d}:{second % 60:02d}Z"
    return {"user": "a", "kind": kind, "ms": ms, "text": text, "ts": when}


def session_window(gap: str, **more: Any) -> sw.Window:
    return sw.Window(
        kind="session",
        gap_ms=gap,
        max_session_duration_ms="5m",
        event_time_column="ts",
        group_by=["user"],
        aggregations=[sw.Aggregation(agg="count", as_="n")],
        **more,
    )


def session_counts(frame: pl.DataFrame) -> list[int]:
    return frame.sort("window_start")["n"].to_list() if frame.height else []


@pytest.mark.parametrize(
    "gap",
    select_cases(
        [
            "CASE WHEN kind = 'video' THEN 60000 ELSE 10000 END",
            "text",
            "ms",
            "ms / 1.0",
            "make_dt_interval(0, 0, 0, ms / 1000)",
        ],
        keep=2,
    ),
)
def test_session_gap_is_an_expression_over_the_row(runner: SparkPipelineRunner, gap: str) -> None:
    """
    0 click ─10─▶ 10      20 video ──────60──────▶ 80     86 click ─10─▶ 96
    video at 20 starts a new session        click at 75 lies within the gap of the video
    """
    video = {"kind": "video", "ms": 60_000, "text": "1 minute"}
    runner.write_input_file("1.jsonl", [event_row(0), event_row(20, **video), event_row(75), event_row(86)])
    runner.write_input_file("2.jsonl", [event_row(200)])
    frame = runner.run_pipeline(source=runner.files_source(SCHEMA, max_files_per_trigger=1), window=session_window(gap))
    assert session_counts(frame) == [1, 2, 1, 1]
    ends = [e.minute * 60 + e.second for e in frame.sort("window_start")["window_end"]]
    assert ends == [10, 85, 96, 210]


def test_session_gap_may_come_from_a_lookup(runner: SparkPipelineRunner) -> None:
    pl.DataFrame({"kind": ["click", "video"], "gap": [10_000, 60_000]}).write_parquet(runner.home / "gaps.parquet")
    runner.write_input_file("1.jsonl", [event_row(0), event_row(20, "video"), event_row(75), event_row(86)])
    frame = runner.run_pipeline(
        source=runner.files_source(SCHEMA),
        transform_sql="SELECT user, gap, _event_ts FROM source LEFT JOIN gaps USING (kind)",
        lookups={"gaps": sw.Lookup(connection=sw.FilesConnection(), query=str(runner.home / "gaps.parquet"))},
        window=session_window("gap"),
    )
    assert session_counts(frame) == [1, 2, 1]


BAD = [event_row(0, ms=None), event_row(1, ms=0), event_row(2, ms=-5), event_row(3, ms=300_000)]


def test_rows_without_a_usable_gap_are_bad_rows(runner: SparkPipelineRunner) -> None:
    runner.write_input_file("1.jsonl", [*BAD, event_row(4, ms=299_999)])
    with pytest.raises(
        BadRowError, match=r"4 bad rows whose gap \(ms\) is not both positive and less than max_session_dur"
    ):
        runner.run_pipeline(source=runner.files_source(SCHEMA), window=session_window("ms"))
    frame = runner.run_pipeline(source=runner.files_source(SCHEMA), window=session_window("ms"), on_error="drop")
    assert (session_counts(frame), runner.statuses[-1].counters.rows_bad) == ([1], 4)


def test_dead_letters_of_rows_without_a_gap_contain_the_original_values(runner: SparkPipelineRunner) -> None:
    runner.write_input_file("1.jsonl", [*BAD, event_row(4, ms=299_999)])
    frame = runner.run_pipeline(
        source=runner.files_source(SCHEMA),
        transform_sql="SELECT user, ms AS gap, _event_ts FROM source",
        window=session_window("gap"),
        on_error="dlq",
        dead_letter=sw.Target(connection=sw.FilesConnection(), path=str(runner.home / "letters")),
    )
    assert session_counts(frame) == [1]
    letters = runner.read_output("letters").sort("event_time")
    assert letters["reason"].to_list() == ["no gap"] * 4
    assert [b'"ms":0' in v for v in letters["value"]] == [False, True, False, False]
    assert runner.statuses[-1].counters.letters == {"no gap": 4}


@pytest.mark.parametrize(
    ("gap", "said"),
    [
        (
            "nothing",
            'source "events": gap "nothing" is neither a duration nor a valid expression over the row .*available: user',
        ),
        (
            "kind = 'x'",
            'gap "kind = \'x\'" is boolean; expected milliseconds, an interval, or text such as "5 minutes"',
        ),
        *(
            (gap, f"must be row-wise, but it uses .*{part}")
            for gap, part in [
                ("CAST(1000 * rand() AS BIGINT) + 1", r"rand\(\)"),
                ("ms + second(current_timestamp())", r"current_timestamp\(\)"),
                ("CAST(reflect('java.lang.Math', 'random') AS BIGINT)", r"reflect\(\)"),
                ("(SELECT max(id) FROM range(3)) + ms", "a subquery"),
                ("sum(ms) OVER (PARTITION BY user)", "window function"),
                ("CASE WHEN ts < TIMESTAMP 'now' THEN ms ELSE 1 END", "TIMESTAMP 'now'"),
            ]
        ),
    ],
)
def test_invalid_gap_expression_is_reported_at_start(runner: SparkPipelineRunner, gap: str, said: str) -> None:
    runner.write_input_file("1.jsonl", [event_row(0)])
    with pytest.raises(StartError, match=said):
        runner.run_pipeline(source=runner.files_source(SCHEMA), window=session_window(gap))


@pytest.mark.parametrize("kind", select_cases(["session", "tumbling"]))
def test_late_rows_are_emitted_as_separate_results(runner: SparkPipelineRunner, kind: str) -> None:
    shape: dict[str, Any] = (
        {"kind": "session", "gap_ms": "10s", "max_session_duration_ms": "5m"}
        if kind == "session"
        else {"kind": "tumbling", "duration_ms": "1m", "max_groups_per_window": 10}
    )
    window = sw.Window(
        event_time_column="ts",
        group_by=["user"],
        aggregations=[sw.Aggregation(agg="count", as_="n")],
        late_data="standalone",
        emit_metadata=True,
        **shape,
    )
    runner.write_input_file("1.jsonl", [event_row(0), event_row(5), event_row(200)])
    runner.write_input_file("2.jsonl", [event_row(6), event_row(7), event_row(201)])
    frame = runner.run_pipeline(source=runner.files_source(SCHEMA, max_files_per_trigger=1), window=window)
    rows = frame.sort("window_start", "_emit_reason").select("_emit_reason", "n").rows()
    assert rows == [("close", 2), ("standalone", 2), ("flush", 2)]
    assert runner.statuses[-1].counters.emitted == {"close": 1, "standalone": 1, "flush": 1}


@pytest.mark.semantics("event-time")
@pytest.mark.parametrize(
    "time", ["timestamp_millis(CAST(1000 * rand() AS BIGINT))", "current_timestamp()", "ts + INTERVAL 1 HOUR"]
)
def test_event_time_expression_must_be_row_wise(runner: SparkPipelineRunner, time: str) -> None:
    """An event time expression may only use its own row: a start refuses random values and the clock."""
    runner.write_input_file("1.jsonl", [event_row(0)])
    window = session_window("10s").model_copy(update={"event_time_column": time})
    if "ts" in time.split():
        assert session_counts(runner.run_pipeline(source=runner.files_source(SCHEMA), window=window)) == [1]
    else:
        with pytest.raises(
            StartError, match=r"event_time_column .* must be row-wise, but it uses (rand|current_timestamp)"
        ):
            runner.run_pipeline(source=runner.files_source(SCHEMA), window=window)
