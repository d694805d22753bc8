"""`why` for pipelines of several stages: its statements about seeded graphs come true.

a ─▶ window ─┐            holder of the join: the source whose event moves its watermark; events of other sources do not
b ─▶ window ─┴▶ join      needs of a window: events at these times close it, events a microsecond earlier do not
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.laws.generators import seed_runner
from tests.laws.generators.fixed_stage_graph_runs import MS, SCHEMA, counting_stage
from tests.laws.generators.runs_with_open_state import run_pipeline_without_flush
from tests.support.case_selection import select_cases

import slackwater as sw
from slackwater.evolution.pipeline_from_state import rebuild_pipeline
from slackwater.query.why_report import StageReport, WhyReport
from slackwater.query.why_report_builder import build_why_report_from_snapshot
from slackwater.testing.local_pipeline import LocalPipeline

SEEDS = 40
FAR = 10**12


def build_why_report(test: LocalPipeline, **more: Any) -> WhyReport:
    with test._driver.store.peek() as snapshot:
        assert snapshot is not None
        return build_why_report_from_snapshot(test.pipeline, snapshot, None, test.now_us, **more)


def read_stage_watermarks(test: LocalPipeline) -> dict[str, int]:
    return {s.name: s.watermark_us for s in test._driver.state.stages}


def branched_pipeline() -> sw.Pipeline:
    """Return the pipeline a ─▶ w ─▶ s, a ─▶ t. Each of w, s and t has a target."""
    sessions = sw.Window(
        kind="session",
        gap_ms=50,
        max_session_duration_ms=500,
        group_by=["k"],
        aggregations=[sw.Aggregation(agg="count", as_="m")],
    )
    return sw.pipeline(
        name="law",
        sources=[sw.Source(name="a", dataframe=object())],
        connections={"tables": sw.DeltaConnection()},
        stages=[counting_stage("w", "a"), sw.Stage(name="s", from_="w", window=sessions), counting_stage("t", "a")],
        targets=[sw.Target(name=n, from_=n, connection="tables", path=n, mode="merge") for n in ("w", "s", "t")],
        state_store=sw.StateStore(kind="files", path="state"),
    )


@pytest.mark.parametrize("first", select_cases(range(0, SEEDS, 20)))
def test_only_rows_of_the_source_that_holds_a_stage_watermark_advance_it(first: int) -> None:
    """Rows of other sources do not advance a watermark that the holder holds. Rows of the holder do."""
    seed_runner.hide_warnings()
    for seed in range(first, first + 20):
        test = run_pipeline_without_flush(seed)
        with test:
            before, answer = read_stage_watermarks(test), build_why_report(test)
            held = [s for s in answer.reported_stages if s.holder is not None]
            for name in {s.holder.source for s in held if s.holder is not None}:
                assert name in ("a", "b"), seed
            report_by_stage = {s.stage: s for s in answer.reported_stages}
            for s in held:
                for up, down in zip((s.stage, *s.through), s.through, strict=False):
                    assert down in report_by_stage[up].reads, (seed, s)
                end = report_by_stage[(s.stage, *s.through)[-1]]
                assert s.holder is not None and s.holder.source in end.reads, (seed, s)
            names = {s.holder.source for s in held if s.holder is not None}
            if len(names) != 1 or len(held) < len(answer.reported_stages):
                continue
            (holder,) = names
            if all(c.idle for s in answer.reported_stages for c in s.clocks if c.source != holder and not c.of_stage):
                continue  # the other sources would become active and hold the watermark
            test.pipe({n: [{"k": "far", "v": 1, "ts": FAR}] for n in ("a", "b") if n != holder})
            assert read_stage_watermarks(test) == before, (seed, holder)
            test.pipe({holder: [{"k": "far", "v": 1, "ts": FAR}]})
            after = read_stage_watermarks(test)
            assert all(after[n] > before[n] for n in after), (seed, holder)


def find_stage_report(answer: WhyReport, name: str) -> StageReport:
    return next(s for s in answer.reported_stages if s.stage == name)


@pytest.mark.parametrize("first", select_cases(range(0, SEEDS, 20)))
def test_events_at_the_reported_times_close_a_window_of_a_later_stage(first: int) -> None:
    """Events at the reported times close the window, and earlier events do not. A choice needs one event."""
    seed_runner.hide_warnings()
    checked = 0
    for seed in range(first, first + 20):
        for early in (1, 0):
            test = run_pipeline_without_flush(seed)
            with test:
                answer = build_why_report(test)
                later = [s for s in answer.reported_stages if s.next]
                if not later:
                    break
                stage = later[-1]
                opened = stage.next[-1]
                chosen = {n.choice: n for n in opened.needs if n.choice is not None}
                needs = [n for n in opened.needs if n.choice is None or chosen[n.choice] is n]
                assert needs, (seed, opened)
                event_times: dict[str, int] = {}
                for n in needs:
                    event_times[n.source] = max(event_times.get(n.source, 0), n.event_us)
                test.pipe({n: [{"k": "far", "v": 1, "ts": us - early}] for n, us in event_times.items()})
                reached = read_stage_watermarks(test)[stage.stage]
                assert (reached >= opened.closes_us) is not bool(early), (seed, stage, opened)
                checked += bool(stage.through) and not early
    assert checked >= 1, "windows that wait for another stage"


@pytest.mark.parametrize("first", select_cases(range(0, SEEDS, 50)))
def test_why_report_is_the_same_with_and_without_the_config(first: int) -> None:
    seed_runner.hide_warnings()
    for seed in range(first, first + 50):
        test = run_pipeline_without_flush(seed)
        with test:
            with_config = build_why_report(test)
            with test._driver.store.peek() as snapshot:
                assert snapshot is not None
                other = build_why_report_from_snapshot(rebuild_pipeline(snapshot.commit), snapshot, None, test.now_us)
            assert [s.stage for s in other.reported_stages] == [s.stage for s in with_config.reported_stages], seed
            for one, two in zip(with_config.reported_stages, other.reported_stages, strict=True):
                assert (one.watermark_us, one.through, one.open_windows) == (
                    two.watermark_us,
                    two.through,
                    two.open_windows,
                ), seed
                assert (one.holder and one.holder.source) == (two.holder and two.holder.source), seed
                assert [(o.key, o.closes_us) for o in one.next] == [(o.key, o.closes_us) for o in two.next], seed


def test_why_report_of_several_targets_needs_no_config() -> None:
    with LocalPipeline(branched_pipeline(), SCHEMA, capture_losses=False) as test:
        test.pipe({"a": [{"k": "x", "v": n, "ts": n * MS} for n in range(100)]})
        with test._driver.store.peek() as snapshot:
            assert snapshot is not None
            report = build_why_report_from_snapshot(rebuild_pipeline(snapshot.commit), snapshot, None, test.now_us)
        assert [(s.stage, s.kind, s.reads) for s in report.reported_stages] == [
            ("w", "tumbling", ("a",)),
            ("s", "session", ("w",)),
            ("t", "tumbling", ("a",)),
        ]
