"""Dedup in both stores, and in every command that reads a state.

within 10 s, keep = "last"     0 s     5 s        20 s       31 s
rows of x                      ●       ●──────────│
                                       └─ 15 s ───┘ emitted
rows of y                                         ●──────────│
                                                  └─ 30 s ───┘
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.laws.generators import dedup_runs
from tests.support.local_pipeline_script import (
    DriverCrash,
    MicroBatch,
    PipelineRestart,
    QuietInterval,
    build_pipeline,
    run_local_script,
)

import slackwater as sw
from slackwater.cli.why import format_report
from slackwater.config.state_comparison import COMPATIBLE, MIGRATED, REBUILD
from slackwater.core.schema import Field
from slackwater.errors import StartError, StateError
from slackwater.evolution import pipeline_from_state
from slackwater.evolution.config_state_comparison import compare_config
from slackwater.evolution.pipeline_from_state import restore_operator
from slackwater.maintenance import verify_state
from slackwater.maintenance.compact import compact_state
from slackwater.maintenance.state_sizes import find_hot_keys
from slackwater.operators.dedup import DedupOperator
from slackwater.operators.keyed_operator_base import KeyedOperator
from slackwater.operators.registry import compile_step
from slackwater.query.state_view import StateView
from slackwater.query.why_report_builder import build_why_report
from slackwater.state.files.store import FilesStore
from slackwater.state.postgres.store import PostgresStore

NAME = "law"
SCHEMA = {"user": "string", "page": "string"}
S = 1_000_000
FIRST = sw.Dedup(keys=["user"], within="10s")
LAST = sw.Dedup(keys=["user"], keep="last", within="10s")
Make = Callable[[], Any]


@pytest.fixture(params=["files", "postgres"])
def store_factory(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    if request.param == "files":
        return lambda: FilesStore(tmp_path / "state", NAME)
    url = request.getfixturevalue("postgres").database(f"dedup_{abs(hash(request.node.name)):x}")

    def database() -> PostgresStore:
        store = PostgresStore(url, "public", NAME)
        request.addfinalizer(store.close)
        return store

    return database


def event_row(user: str | None, seconds: int, page: str = "p") -> dict[str, Any]:
    return {"user": user, "page": page, "ts": seconds * S}


def run_dedup(make: Make, *items: Any, step: sw.Dedup = LAST, **more: Any) -> Any:
    return run_local_script(step, items, SCHEMA, store=make, flush=False, **more)


def sort_result_rows(result: Any) -> list[tuple[Any, ...]]:
    return sorted((r["_event_ts"] // S, r["user"], r["page"]) for r in result.rows)


def count_stored_rows_by_user(make: Make) -> dict[Any, int]:
    """Return the number of stored rows that are not due, by user."""
    counts: dict[Any, int] = {}
    with make().peek() as snapshot:
        step = restore_operator(snapshot.commit)
        assert isinstance(step, KeyedOperator)
        for shard in range(snapshot.commit.shards):
            rows = step.drop_expired(snapshot.reader(shard, step).scan(), snapshot.commit.watermark_us)
            for user, n in rows["user"].value_counts().iter_rows():
                counts[user] = counts.get(user, 0) + n
    return counts


@pytest.mark.parametrize("seed", range(8))
def test_dedup_matches_the_reference_loop_in_both_stores(seed: int, store_factory: Make) -> None:
    dedup_runs.check_dedup_seed(seed, store_factory)


def test_last_row_is_emitted_once_after_the_watermark_passes_its_timer(store_factory: Make) -> None:
    epochs = [
        MicroBatch({"a": [event_row("x", 0), event_row("x", 5, "last")]}),
        MicroBatch({"a": [event_row("y", 14)]}),
    ]
    assert sort_result_rows(run_dedup(store_factory, *epochs)) == [], (
        "the watermark is 14, and the row of x is due at 15"
    )
    after = run_dedup(
        store_factory, DriverCrash("commit.after"), MicroBatch({"a": [event_row("y", 20)]}), PipelineRestart(shards=3)
    )
    assert sort_result_rows(after) == [(5, "x", "last")]
    assert count_stored_rows_by_user(store_factory) == {"y": 1}
    assert sort_result_rows(run_dedup(store_factory, MicroBatch({"a": [event_row("z", 31)]}))) == [(20, "y", "p")]
    assert count_stored_rows_by_user(store_factory) == {"z": 1}
    assert verify_state(store_factory()).problems == []


def test_dedup_state_can_be_verified_measured_and_compacted(store_factory: Make) -> None:
    run_dedup(
        store_factory,
        MicroBatch({"a": [event_row("x", 0), event_row("y", 1), event_row(None, 2)]}),
        MicroBatch({"a": [event_row("x", 13)]}),
        step=FIRST,
    )
    assert count_stored_rows_by_user(store_factory) == {"x": 1}, "results are forgotten `within` after them"
    report = verify_state(store_factory())
    assert (report.problems, report.rows > 0) == ([], True)
    store = store_factory()
    with store.peek() as snapshot:
        assert [k.key["user"] for k in find_hot_keys(store, snapshot, 9)] == ["x"]
        assert (snapshot.commit.stages[0].groups, sum(snapshot.commit.stages[0].windows)) in (((0, 1), 1), ((1, 0), 1))
    compact_state(store_factory())
    assert count_stored_rows_by_user(store_factory) == {"x": 1}
    assert verify_state(store_factory()).problems == []


def test_verify_reports_key_counts_that_differ_from_the_commit(
    store_factory: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = DedupOperator.counts_after_ingest
    monkeypatch.setattr(
        DedupOperator,
        "counts_after_ingest",
        lambda self, before, reports: whole(self, whole(self, before, reports), reports),
    )
    run_dedup(store_factory, MicroBatch({"a": [event_row("x", 0)]}))
    assert [p for p in verify_state(store_factory()).problems if "1 key in 1 row, but the commit says 2 in 2" in str(p)]


def test_config_changes_are_compatible_migrated_or_need_a_rebuild(store_factory: Make) -> None:
    run_dedup(store_factory, MicroBatch({"a": [event_row("x", 0)]}))

    def changed(step: sw.Dedup, columns: dict[str, str] = SCHEMA) -> list[tuple[str, str]]:
        pipeline = build_pipeline(step, ["a"], name=NAME)
        fields = {name: Field(name, type_) for name, type_ in columns.items()}
        operators = [compile_step(pipeline, {"a": fields})]
        with store_factory().peek() as snapshot:
            return [(c.key, c.verdict) for c in compare_config(pipeline, snapshot.commit, steps=operators).changes]

    assert changed(LAST) == []
    assert changed(LAST.model_copy(update={"within_ms": 20_000})) == [("within_ms", COMPATIBLE)]
    assert changed(FIRST) == [("keep", REBUILD)]
    assert changed(sw.Dedup(keys=["page"], keep="last", within="10s")) == [("keys", REBUILD)]
    assert changed(LAST, SCHEMA | {"new": "bigint"}) == [("state", MIGRATED)]
    assert changed(LAST, {"user": "string"}) == [("state", REBUILD)], "a column that is stored is gone"
    assert changed(LAST, SCHEMA | {"page": "bigint"}) == [("state", REBUILD)]
    with pytest.raises(StateError, match=r"written for another dedup \(keep: state has last, config has first"):
        run_dedup(store_factory, MicroBatch({"a": [event_row("x", 1)]}), step=FIRST)


def test_new_column_is_null_in_rows_already_in_the_state(store_factory: Make) -> None:
    run_dedup(store_factory, MicroBatch({"a": [event_row("x", 0), event_row("y", 3)]}))
    wider = SCHEMA | {"new": "bigint"}
    more = [{**event_row("x", 4), "new": 7}, {**event_row("z", 40), "new": 8}]
    result = run_local_script(LAST, [MicroBatch({"a": more})], wider, store=store_factory, flush=False)
    assert sorted((r["_event_ts"] // S, r["user"], r["new"]) for r in result.rows) == [(3, "y", None), (4, "x", 7)]
    assert verify_state(store_factory()).problems == []


def test_longer_within_applies_to_rows_read_after_the_change(store_factory: Make) -> None:
    run_dedup(store_factory, MicroBatch({"a": [event_row("x", 0)]}), step=FIRST)
    longer = FIRST.model_copy(update={"within_ms": 30_000})
    result = run_dedup(
        store_factory, MicroBatch({"a": [event_row("x", 9), event_row("x", 10), event_row("x", 39)]}), step=longer
    )
    assert sort_result_rows(result) == [(10, "x", "p")], "9 is within 10 of 0, and 39 within 30 of 10"


def test_why_report_lists_the_next_timers(store_factory: Make) -> None:
    run_dedup(store_factory, MicroBatch({"a": [event_row("x", 0), event_row("x", 4), event_row("y", 9)]}))
    pipeline = build_pipeline(LAST, ["a"], name=NAME)
    report = build_why_report(pipeline, store_factory(), 1)
    assert (report.kind, report.open_keys, [o.closes_us for o in report.next]) == ("dedup", 2, [14 * S, 19 * S])
    lines = list(format_report(report, "x.toml"))
    assert "2 keys kept; the next timers:" in lines
    assert any(line.split()[:4] == ["x", "1970-01-01T00:00:04Z", "1970-01-01T00:00:14Z", "an"] for line in lines), lines
    lines = list(format_report(build_why_report(pipeline, store_factory(), 1, ["user=x"]), "x.toml"))
    assert "key user=x: 1 timer" in lines
    assert "  due at watermark 1970-01-01T00:00:14Z, last event 1970-01-01T00:00:04Z" in lines
    assert "  rows before 1970-01-01T00:00:09Z are late" in lines
    with store_factory().peek() as snapshot:
        assert pipeline_from_state.rebuild_pipeline(snapshot.commit).transform.step == LAST


def test_state_view_shows_only_rows_that_are_not_due(store_factory: Make) -> None:
    run_dedup(store_factory, MicroBatch({"a": [event_row("x", 0), event_row("x", 4, "last"), event_row("y", 9)]}))
    with StateView(store_factory()) as view:
        (x,) = view.fetch("x").to_dicts()
        assert (x["page"], x["_due_at"].timestamp(), x["_first_at"].timestamp(), x["_epoch"]) == ("last", 14, 0, 0)
        assert view.scan(where="page = 'p'")["user"].to_list() == ["y"]
        assert view.columns.keys() >= {"user", "page", "_due_at", "_last_event"}
        with pytest.raises(
            StartError, match="find_sessions: found the state of a dedup stage, expected the state of session"
        ):
            view.find_sessions("x")


@pytest.mark.semantics("stages")
def test_dedup_output_is_never_late_for_the_next_stage() -> None:
    """With `keep = "last"`, dedup's output watermark trails its watermark by `within`, because rows wait that long."""
    count = sw.Window(
        kind="tumbling", duration="5s", group_by=["user"], aggregations=[sw.Aggregation(agg="count", as_="n")]
    )  # fmt: skip
    for step, delay in ((LAST, 10), (FIRST, 0)):
        result = run_local_script(
            step,
            [MicroBatch({"a": [event_row("x", t)]}) for t in (0, 11, 12, 30, 60)],
            SCHEMA,
            downstream=count,
            flush=False,
        )
        status = result.statuses[-1]
        assert status.counters.late_between_stages == 0
        first, second = status.stages
        assert first.watermark_us - second.watermark_us == delay * S


def test_late_rows_become_dead_letters(store_factory: Make) -> None:
    step = LAST.model_copy(update={"late_data": "dlq"})
    result = run_dedup(
        store_factory,
        MicroBatch({"a": [event_row("x", 20)]}),
        MicroBatch({"a": [event_row("y", 19), event_row("x", 21)]}),
        step=step,
    )
    assert [(letter["reason"], letter["group_key"]) for letter in result.letters] == [("late", '{"user":"y"}')]
    counters = result.statuses[-1].counters
    assert (counters.rows_late, counters.rows_duplicate, counters.letters) == (1, 1, {"late": 1})


def test_idle_close_makes_timers_due_without_new_rows(store_factory: Make) -> None:
    step = sw.Dedup(keys=["user"], keep="last", within="2s", source_idleness="1s", idle_close="1s")
    result = run_dedup(store_factory, MicroBatch({"a": [event_row("x", 0)]}), *[QuietInterval(1000)] * 4, step=step)
    assert sort_result_rows(result) == [(0, "x", "p")]
