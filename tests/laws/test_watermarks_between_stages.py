"""Check that results of a stage are never late for the stages that read them.

The input is random graphs of `random_stage_graph_runs.py`, and cases that failed before.
"""

from __future__ import annotations

import datetime as dt
import os
from typing import Any

import pytest
from tests.laws.generators import seed_runner
from tests.laws.generators.random_stage_graph_runs import check_random_graph_run
from tests.support.case_selection import select_cases

import slackwater as sw
from slackwater.cli.output import format_run_summary
from slackwater.query.why_report import describe_watermark_wait
from slackwater.query.why_report_builder import build_why_report_from_snapshot
from slackwater.state.files.store import FilesStore
from slackwater.testing.local_pipeline import LocalPipeline

SEEDS = int(os.environ.get("SLACKWATER_SEEDS", "30"))
MINUTE = 60_000_000
COUNT = [sw.Aggregation(agg="count", as_="n")]
USER = {"user": "string"}


@pytest.mark.semantics("stages")
@pytest.mark.parametrize("first", select_cases(range(0, SEEDS, 10)))
def test_random_graphs_give_the_batch_result_without_late_results(first: int) -> None:
    """In random graphs, no result is late for the next stage, and each stage gives the batch result of its inputs."""
    seed_runner.hide_warnings()
    for seed in range(first, first + 10):
        try:
            check_random_graph_run(seed)
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_graphs_of_formerly_failing_seeds_give_the_batch_result() -> None:
    for seed in (1259, 3959):
        check_random_graph_run(seed)


def tumbling_window(duration: str, **more: Any) -> sw.Window:
    return sw.Window(
        kind="tumbling", duration_ms=duration, group_by=["user"], max_groups_per_window=1000, aggregations=COUNT, **more
    )


def session_window(gap: str = "30m", cap: str = "12h") -> sw.Window:
    return sw.Window(kind="session", gap_ms=gap, max_session_duration_ms=cap, group_by=["user"], aggregations=COUNT)


def pipeline_with_target_per_stage(*stages: sw.Stage, sources: str = "a") -> sw.Pipeline:
    """Return a pipeline in which each stage has a target."""
    return sw.pipeline(
        name="law",
        sources=[sw.Source(name=name, dataframe=object()) for name in sources],
        connections={"t": sw.DeltaConnection()},
        stages=stages,
        targets=[
            sw.Target(
                name=f"of-{s.name}",
                from_=s.name,
                connection="t",
                path=s.name,
                mode="merge" if s.join is None else "append",
            )
            for s in stages
        ],
        state_store=sw.StateStore(kind="files", path="s"),
    )


def event_row(minute: float, user: str = "u") -> dict[str, Any]:
    return {"user": user, "ts": int(minute * MINUTE)}


def read_stage_states(test: LocalPipeline) -> dict[str, Any]:
    return {s.name: s for s in test._driver.state.stages}


def sum_target_counts(test: LocalPipeline, stage: str) -> int:
    return sum(row["n"] for row in test.target(f"of-{stage}").held.to_dicts())


def read_late_counts_by_stage(test: LocalPipeline) -> dict[str, dict[str, int]]:
    return {name: dict(s.counters.get("late", {})) for name, s in read_stage_states(test).items()}


@pytest.mark.semantics("stages")
def test_session_that_may_still_be_split_holds_back_the_output_watermark() -> None:
    """A session that may still be cut holds back the output watermark of its stage, even after a restart.

    u    00:50 ── every 10 minutes ── 12:40          reaches to 13:10, its cap is at 12:50
    w                                        13:05   the watermark; a row of u by 13:10 would cut at 12:50
    u                                        13:08   this row cuts
    """
    spec = pipeline_with_target_per_stage(
        sw.Stage(name="visits", window=session_window()), sw.Stage(name="hours", window=tumbling_window("1h"))
    )
    with LocalPipeline(spec, USER, capture_losses=False) as test:
        test.pipe([event_row(50 + m) for m in range(0, 711, 10)])
        test.pipe([event_row(785, "w")])
        visits = read_stage_states(test)["visits"]
        assert (visits.watermark_us, visits.promised_us) == (785 * MINUTE, 770 * MINUTE)
        assert read_stage_states(test)["hours"].watermark_us == 770 * MINUTE
        store = FilesStore(test._directory, "law")
        with store.peek() as snapshot:
            assert snapshot is not None
            report = build_why_report_from_snapshot(spec, snapshot, None, 0)
        assert 'stage "visits"' in describe_watermark_wait(report.stages[1])
        assert "it holds its results back by 15 minutes, since sessions may still be cut" in describe_watermark_wait(
            report.stages[1]
        )
        test.restart(shards=3)
        assert read_stage_states(test)["visits"].promised_us == 770 * MINUTE
        test.pipe([event_row(788)])
        assert read_stage_states(test)["visits"].promised_us == 788 * MINUTE, "it is cut: nothing holds any more"
        test.flush()
        assert read_late_counts_by_stage(test) == {"visits": {}, "hours": {}}
        assert sum_target_counts(test, "hours") == test.target("of-visits").held.height == 3
        ended = test.target("of-visits").held.filter(user="u")["window_end"].to_list()
        assert ended[0].strftime("%H:%M") == "12:50"


def test_session_that_ends_where_the_next_begins_closes_by_its_gap() -> None:
    """
    u     269              287        302  311    gap 15, cap 33: two sessions
    w                        289                  the watermark is at 289 minutes
    u            278                              joins the first one, and not both, since 311 - 269 >= cap
    u     [269 ── 278 ──────)[287 ── 302 ── 311   the first one ends at 287
    w                             294             and closes at 293, before its start + cap = 302
    """
    spec = pipeline_with_target_per_stage(
        sw.Stage(name="visits", window=session_window("15m", "33m").model_copy(update={"lateness_ms": 15 * 60_000})),
        sw.Stage(name="quarters", window=tumbling_window("1m")),
    )
    with LocalPipeline(spec, USER, capture_losses=False) as test:
        test.pipe([event_row(269)])
        test.pipe([event_row(287), event_row(299, "w")])
        assert read_stage_states(test)["visits"].watermark_us == 284 * MINUTE
        test.pipe([event_row(302), event_row(278), event_row(311)])
        for minute in (308, 309, 315, 316, 318, 330):
            test.pipe([event_row(minute, "w")])
            visits, quarters = read_stage_states(test)["visits"], read_stage_states(test)["quarters"]
            assert quarters.watermark_us <= visits.promised_us
        test.flush()
        first = test.target("of-visits").held.filter(user="u").sort("window_start").row(0, named=True)
        assert (first["window_end"].strftime("%H:%M"), first["n"]) == ("04:47", 2)
        assert read_late_counts_by_stage(test) == {"visits": {}, "quarters": {}}
        assert sum_target_counts(test, "quarters") == test.target("of-visits").held.height
        assert test.result().counters.late_between_stages == 0


def test_session_closed_by_its_gap_releases_the_output_watermark() -> None:
    spec = pipeline_with_target_per_stage(
        sw.Stage(name="visits", window=session_window()), sw.Stage(name="hours", window=tumbling_window("1h"))
    )
    with LocalPipeline(spec, USER, capture_losses=False) as test:
        test.pipe([event_row(50 + m) for m in range(0, 711, 10)])
        for minute, promised in ((785, 770), (790, 770), (791, 791)):
            test.pipe([event_row(minute, "w")])
            assert read_stage_states(test)["visits"].promised_us == promised * MINUTE


def test_new_stage_starts_at_the_held_back_watermark_of_its_input() -> None:
    apart = (
        sw.Stage(name="visits", window=session_window()),
        sw.Stage(name="x", from_=["a"], window=tumbling_window("1h")),
    )
    both = pipeline_with_target_per_stage(
        *apart, sw.Stage(name="hours", from_=["visits"], window=tumbling_window("1h"))
    )
    with LocalPipeline(pipeline_with_target_per_stage(*apart), USER, capture_losses=False) as test:
        test.pipe([event_row(50 + m) for m in range(0, 711, 10)])
        test.pipe([event_row(785, "w")])
        assert read_stage_states(test)["visits"].holds is None
        test.restart(both)
        assert read_stage_states(test)["hours"].watermark_us == 770 * MINUTE
        test.pipe([event_row(788)])
        test.flush()
        assert read_late_counts_by_stage(test) == {"visits": {}, "x": {}, "hours": {}}
        assert test.result().counters.late_between_stages == 0


@pytest.mark.semantics("stages")
def test_result_behind_the_watermark_of_the_next_stage_gets_the_watermark_as_its_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After a config change, a result behind its reader's watermark gets that watermark as its event time.

    A hundred sessions that reached to 00:30 end at 00:05 by the new gap, while the watermark of their reader is at 00:20.
    """
    minutes = sw.Stage(name="minutes", window=tumbling_window("1m"))
    with LocalPipeline(
        pipeline_with_target_per_stage(sw.Stage(name="visits", window=session_window()), minutes),
        USER,
        capture_losses=False,
    ) as test:
        test.pipe([event_row(0, f"u{i}") for i in range(100)])
        test.pipe([event_row(20, "w")])
        test.restart(pipeline_with_target_per_stage(sw.Stage(name="visits", window=session_window(gap="5m")), minutes))
        test.pipe([event_row(21, "w")])
        test.flush()
        ends = {row["window_end"].strftime("%H:%M") for row in test.target("of-visits").held.to_dicts()}
        assert ends == {"00:05", "00:26"}, "what a target gets is as it is"
        held = test.target("of-minutes").held.filter(test.target("of-minutes").held["user"] != "w")
        assert {row["window_start"].strftime("%H:%M") for row in held.to_dicts()} == {"00:20"}
        assert (held["n"].sum(), read_late_counts_by_stage(test)["minutes"]) == (100, {})
        assert test.result().counters.late_between_stages == 100
    (line,) = [r.getMessage() for r in caplog.records if "arrived too late for stage" in r.getMessage()]
    assert line.startswith('law: epoch 3: 100 results of stage "visits" arrived too late for stage ')
    assert "user=u" in line
    assert "at 1970-01-01T00:05:00" in line


def inner_join_within_ten_minutes(event_time: Any) -> sw.Join:
    return sw.Join(
        kind="inner",
        left_source="a",
        right_source="b",
        left_keys=["user"],
        right_keys=["user"],
        lower_ms=0,
        upper_ms="10m",
        event_time=event_time,
        left_prefix="",
        output_left_columns=["user"],
        output_right_columns=[],
    )


@pytest.mark.parametrize(("before", "after"), [(("later", "j"), ("left", "j")), (("left", "a"), ("left", "j"))])
def test_join_results_with_earlier_event_times_after_a_config_change_are_not_lost(
    before: tuple[str, str], after: tuple[str, str]
) -> None:
    def spec(event_time: str, read: str) -> sw.Pipeline:
        stages = (
            sw.Stage(name="j", join=inner_join_within_ten_minutes(event_time)),
            sw.Stage(name="w", from_=[read], window=tumbling_window("1m")),
        )
        return pipeline_with_target_per_stage(*stages, sources="ab")

    with LocalPipeline(spec(*before), USER, capture_losses=False) as test:
        test.pipe({"a": [event_row(0), event_row(8, "w")], "b": [event_row(8, "w")]})
        test.restart(spec(*after))
        test.pipe({"b": [event_row(9)]})
        test.flush()
        assert test.target("of-j").held.filter(user="u").height == 1
        assert read_late_counts_by_stage(test) == {"j": {}, "w": {}}
        assert test.result().counters.late_between_stages == 1


@pytest.mark.semantics("stages")
@pytest.mark.parametrize("idle_source", [True, False])
def test_idle_sources_and_stages_do_not_hold_back_their_readers(idle_source: bool) -> None:
    """Idle sources do not hold a stage back. If all its sources are idle, it advances with the inputs of its
    readers.
    """
    quick = tumbling_window("1h", source_idleness_ms="1m")
    first = sw.Stage(name="first", from_=["b" if not idle_source else "a"], window=quick)
    both = sw.Stage(name="both", from_=["first", "b" if idle_source else "a"], window=quick)
    with LocalPipeline(pipeline_with_target_per_stage(first, both, sources="ab"), USER, capture_losses=False) as test:
        test.pipe({"a": [event_row(0)], "b": [event_row(0)]})
        for hour in range(1, 6):
            test.quiet(30_000)
            test.pipe({"a": [event_row(60 * hour)]})
        assert read_stage_states(test)["both"].watermark_us >= 4 * 60 * MINUTE
        assert test.target("of-first").held.height >= 1
        assert test.target("of-both").held.height >= 4
        test.pipe({"b": [event_row(1)]})
        causes = read_late_counts_by_stage(test)
        assert causes == ({"first": {}, "both": {"idle": 1}} if idle_source else {"first": {"idle": 1}, "both": {}})


def test_idle_stage_emits_due_windows_while_no_rows_arrive() -> None:
    quick = tumbling_window("1h", source_idleness_ms="1m")
    first = sw.Stage(name="first", from_=["b"], window=quick)
    both = sw.Stage(name="both", from_=["first", "a"], window=tumbling_window("1h", source_idleness_ms="1h"))
    with LocalPipeline(pipeline_with_target_per_stage(first, both, sources="ab"), USER, capture_losses=False) as test:
        test.pipe({"a": [event_row(0)], "b": [event_row(0)]})
        test.pipe({"a": [event_row(200)]})
        for _ in range(5):
            test.quiet(30_000)
        assert test.target("of-first").held.height == 1
        assert read_stage_states(test)["both"].watermark_us == 200 * MINUTE


def test_watermarks_do_not_advance_while_all_sources_are_idle() -> None:
    quick = tumbling_window("1h", source_idleness_ms="1m")
    first = sw.Stage(name="first", from_=["b"], window=quick)
    both = sw.Stage(name="both", from_=["first", "a"], window=quick)
    with LocalPipeline(pipeline_with_target_per_stage(first, both, sources="ab"), USER, capture_losses=False) as test:
        test.pipe({"a": [event_row(10)], "b": [event_row(0)]})
        for _ in range(10):
            test.quiet(30_000)
        assert {s.watermark_us for s in read_stage_states(test).values()} == {0}


def test_flush_brings_all_stages_to_the_same_watermark() -> None:
    """Rows behind this watermark are late in the stage that reads them, and in no later stage."""
    spec = pipeline_with_target_per_stage(
        sw.Stage(name="minute", window=tumbling_window("1m")), sw.Stage(name="day", window=tumbling_window("24h"))
    )
    with LocalPipeline(spec, USER, capture_losses=False) as test:
        test.pipe([event_row(0)])
        test.flush()
        assert {s.watermark_us for s in read_stage_states(test).values()} == {24 * 60 * MINUTE}
        test.restart()
        for minute in (10, 20, 30):
            test.pipe([event_row(minute)])
        test.pipe([event_row(24 * 60 + 1)])
        test.flush()
        assert read_late_counts_by_stage(test) == {"minute": {"flush": 3}, "day": {}}
        assert test.target("of-minute").held.height == sum_target_counts(test, "day") == 2
        shown = format_run_summary(test._result.statuses[-1], "law", "t")
    assert "0 results late between stages" in shown


def test_flush_advances_a_join_past_the_watermark_of_its_reader() -> None:
    """A flush advances a join by the ten minutes that its results may lie back, so no later pair of rows is late."""
    stages = (
        sw.Stage(name="j", join=inner_join_within_ten_minutes("left")),
        sw.Stage(name="w", from_=["j"], window=tumbling_window("1h")),
    )
    with LocalPipeline(pipeline_with_target_per_stage(*stages, sources="ab"), USER, capture_losses=False) as test:
        test.pipe({"a": [event_row(0), event_row(55)], "b": [event_row(1)]})
        test.flush()
        stage_states = read_stage_states(test)
        assert (stage_states["w"].watermark_us, stage_states["j"].watermark_us) == (60 * MINUTE, 70 * MINUTE)
        test.pipe({"a": [event_row(70)], "b": [event_row(61), event_row(71)]})
        test.flush()
        assert test.target("of-j").held.height == sum_target_counts(test, "w")
        assert test.result().counters.late_between_stages == 0


@pytest.mark.parametrize("on_error", ["fail", "drop"])
@pytest.mark.parametrize("first", [tumbling_window("1d"), session_window(gap="2h")])
def test_max_future_does_not_apply_to_results_of_a_stage(first: sw.Window, on_error: Any) -> None:
    """A flush emits windows that end further ahead of the clock than `max_future_ms`."""
    now = int(dt.datetime(2026, 11, 24, 10, 5, tzinfo=dt.UTC).timestamp()) * 10**6
    second = sw.Window(kind="tumbling", duration_ms="1d", max_groups_per_window=1000, aggregations=COUNT)
    spec = pipeline_with_target_per_stage(
        sw.Stage(name="users", window=first), sw.Stage(name="days", window=second, on_error=on_error)
    )
    with LocalPipeline(spec, USER, capture_losses=False, clock_us=now) as test:
        test.pipe([{"user": f"u{i}", "ts": now - MINUTE} for i in range(5)])
        test.flush()
        assert test.target("of-users").held.height == sum_target_counts(test, "days") == 5
        assert read_stage_states(test)["days"].counters["rows_bad"] == 0


def test_sessions_split_behind_the_watermark_are_not_late_for_the_next_stage() -> None:
    """Cut sessions behind the watermark, with a source that has rows in every epoch."""
    cut = sw.Window(kind="session", gap_ms="20s", max_session_duration_ms="50s", group_by=["user"], aggregations=COUNT)
    spec = pipeline_with_target_per_stage(
        sw.Stage(name="visits", window=cut), sw.Stage(name="tens", window=tumbling_window("10s"))
    )
    rows = [[("z", -500)], [("u", 0), ("u", 20)], [("u", 40)], [("w", 60)], [("u", 60)], [("w", 80), ("u", 80)]]
    with LocalPipeline(spec, USER, capture_losses=False) as test:
        for some_rows in rows:
            test.pipe([event_row(second / 60, user) for user, second in some_rows])
        test.flush()
        assert read_late_counts_by_stage(test) == {"visits": {}, "tens": {}}
        assert sum_target_counts(test, "tens") == test.target("of-visits").held.height
