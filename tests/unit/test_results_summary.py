"""The last lines of a run: the number of emitted results by reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from tests.support.example_statuses_and_metrics import COUNTERS, STAGE, STATUS

import slackwater as sw
from slackwater.engine.observer import BufferCounts, Status
from slackwater.runner.run_log import summarize_results


def status_with_results(kind: str, emitted: Mapping[str, int], **more: object) -> Status:
    return replace(STATUS, window_kind=kind, counters=replace(COUNTERS, emitted=emitted), **more)


def session_pipeline(cap: str) -> sw.Pipeline:
    window = sw.Window(
        kind="session",
        gap="30m",
        max_session_duration=cap,
        group_by=["u"],
        event_time_column="ts",
        aggregations=[sw.Aggregation(agg="count", as_="n")],
    )
    lake = sw.FilesConnection()
    source = sw.Source(name="s", connection=lake, query="in", format="json", schema="u STRING, ts TIMESTAMP")
    store = sw.StateStore(kind="files", path="state")
    return sw.Pipeline(
        name="p",
        sources=[source],
        transform=sw.Transform(window=window),
        target=sw.Target(connection=lake, path="out"),
        state_store=store,
    )


@pytest.mark.parametrize(
    ("kind", "emitted", "message"),
    [
        ("session", {"flush": 761, "cap": 146, "close": 17_428},
         "18,335 sessions: 17,428 closed by the watermark, 146 cut at 12 hours, 761 by --flush; 12 open"),
        ("session", {"close": 1}, "1 session: 1 closed by the watermark; 12 open"),
        ("session", {}, "0 sessions; 12 open"),
        ("tumbling", {"close": 3, "flush": 0, "late": 2}, "5 windows: 3 closed by the watermark, 2 corrected by late rows; 12 open"),
        ("hopping", {"close": 3, "supersede": 2}, "3 windows: 3 closed by the watermark, and 2 deleted; 12 open"),
        ("tumbling", {"update": 9, "close": 1, "standalone": 4},
         "14 windows: 1 closed by the watermark, 9 updates before they closed, 4 from late rows only; 12 open"),
        ("rows", {"row": 5000}, "5,000 rows; no state"),
    ],
)  # fmt: skip
def test_summary_of_a_stage_counts_results_by_reason(kind: str, emitted: Mapping[str, int], message: str) -> None:
    groups = 0 if kind == "rows" else 11
    assert list(
        summarize_results(status_with_results(kind, emitted, config=session_pipeline("12h"), groups=groups))
    ) == [message]


def test_summary_of_a_join_counts_pairs_and_waiting_rows() -> None:
    join_status = status_with_results(
        "join", {"match": 95_000, "unmatched": 1}, buffered={"left": BufferCounts(812), "right": BufferCounts(30)}
    )
    assert list(summarize_results(join_status)) == [
        "95,001 rows: 95,000 pairs, 1 without a partner; 812 left and 30 right rows wait for partners"
    ]


def test_summary_has_one_line_per_stage() -> None:
    day = replace(STAGE, name="day", kind="tumbling", open=2, counters=replace(COUNTERS, emitted={"flush": 3}))
    assert list(summarize_results(replace(STATUS, stages=(STAGE, day)), "by flush")) == [
        'stage "transform": 42 sessions: 40 closed by the watermark, 2 cut at max_session_duration; 12 open',
        'stage "day": 3 windows: 3 by flush; 2 open',
    ]
