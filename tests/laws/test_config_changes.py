"""Config changes between two starts: seeded runs of `config_change_runs.py`, and timelines drawn by hand."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import polars as pl
import pytest
from tests.laws.generators import config_change_runs
from tests.laws.generators.config_change_runs import MS, SCHEMA, RunConfig
from tests.support.case_selection import select_cases
from tests.support.local_pipeline_script import (
    DriverCrash,
    LocalResult,
    MicroBatch,
    PipelineRestart,
    QuietInterval,
    run_local_script,
)

from slackwater.config.custom_aggregator import Aggregator
from slackwater.config.window import Aggregation, Window
from slackwater.errors import StateError
from slackwater.evolution.pipeline_from_state import restore_window
from slackwater.state.files.store import FilesStore

SEEDS = int(os.environ.get("SLACKWATER_SEEDS", "15"))


@pytest.mark.parametrize("kind", select_cases(["session", "tumbling", "hopping"], keep=2))
@pytest.mark.parametrize("crashes", select_cases([True, False]))
def test_runs_with_config_changes_match_the_oracle(kind: str, crashes: bool) -> None:
    for seed in range(SEEDS):
        config_change_runs.check_config_change_run(seed, kind, crashes)


def test_sessions_never_overlap_or_reach_the_maximum_duration_after_config_changes() -> None:
    """The gap grows and shrinks, and the cap grows. Each used row counts once, for any number of shards."""
    cut = 0
    for seed in range(SEEDS):
        chance = random.Random(seed)
        first, items = config_change_runs.draw_config_change_script(seed, "session")
        items = [[{**r, "ts": r["ts"] // 4} for r in i] if isinstance(i, list) else i for i in items]  # closer together
        config = first = replace(first, allowed=None, aggs=("n", "ids"), cap=chance.choice([10, 13]))
        script: list[Any] = []
        for item in items:
            if isinstance(item, RunConfig):
                config = replace(config, gap=min(item.gap, 9), cap=config.cap + chance.choice([0, 0, 15]))
                script.append(PipelineRestart(config.window, chance.choice([1, 2, 5])))
            elif item:
                script.append(MicroBatch({"a": item}))
        result = run_local_script(first.window, script, SCHEMA)
        again = run_local_script(
            first.window, [replace(i, shards=2) if isinstance(i, PipelineRestart) else i for i in script], SCHEMA
        )
        assert sorted_window_counts(again) == sorted_window_counts(result), seed
        assert again.counters == result.counters
        cut += result.counters.emitted.get("cap", 0)
        assert sum(r["n"] for r in result.rows) == result.counters.rows_used, seed
        times_of = {r["id"]: r["ts"] for i in items if isinstance(i, list) for r in i}
        told_apart = len(times_of) == result.counters.rows_in  # ids repeat after 60 rows
        for user in (None, "a", "b"):
            user_sessions = sorted(
                (r["window_start"], r["window_end"], r["ids"]) for r in result.rows if r["u"] == user
            )
            assert all(end <= start for (_, end, _), (start, _, _) in pairwise(user_sessions)), seed
            for start, _, ids in user_sessions if told_apart else []:
                times = [times_of[1 << n] for n in range(60) if ids >> n & 1]
                assert min(times) == start, seed
                assert max(times) - min(times) < config.cap * MS, seed
    assert cut > SEEDS / 3


def rows_input_at(*times: int, u: str = "a") -> MicroBatch:
    return MicroBatch({"a": [{"ts": t * MS, "u": u, "id": 1, "f": 1.0} for t in times]})


def sorted_window_counts(result: LocalResult) -> list[tuple[int, ...]]:
    """Return (start, end, count) of all rows. Times are in milliseconds."""
    return sorted((r["window_start"] // MS, r["window_end"] // MS, r["n"]) for r in result.rows)


def session_window(gap: int, cap: int = 1000, **more: Any) -> Window:
    return replace(RunConfig("session", gap=gap, cap=cap, lateness=1000), **more).window


def test_larger_gap_merges_touching_sessions_at_the_start(tmp_path: Path) -> None:
    """
    gap 5     [0]    [9 ── 12]      [33]
    gap 10    [0 ─────── 12]22      [33]      before any row touches them
    """
    run_local_script(session_window(5), [rows_input_at(0, 9, 12, 33)], SCHEMA, state_dir=str(tmp_path), flush=False)
    run_local_script(session_window(10), [], SCHEMA, state_dir=str(tmp_path), flush=False)
    with FilesStore(tmp_path, "law").peek() as snapshot:
        assert snapshot is not None
        assert (snapshot.commit.epoch, sum(snapshot.commit.stages[0].windows)) == (1, 2)
        logic = restore_window(snapshot.commit)
        held = pl.concat([snapshot.reader(s, logic).scan() for s in range(2)]).sort("__start")
    assert held.select("__start", "__last", "__due", "n.n").rows() == [
        (0, 12 * MS, 22 * MS + 1, 3),
        (33 * MS, 33 * MS, 43 * MS + 1, 1),
    ]


def test_smaller_gap_does_not_split_sessions_and_closes_overdue_ones() -> None:
    """
    gap 20      [0 ── 15]35        watermark 18
    gap 2       [0 ── 15]17        overdue: closes with the next tick
    """
    window = replace(RunConfig("session", gap=20), lateness=0).window
    smaller = replace(RunConfig("session", gap=2), lateness=0).window
    result = run_local_script(
        window,
        [rows_input_at(0, 15), rows_input_at(18, u="b"), PipelineRestart(smaller), QuietInterval(500)],
        SCHEMA,
        flush=False,
    )
    assert sorted_window_counts(result) == [(0, 17, 2)]
    assert (result.rows[0]["_epoch"], result.counters.emitted) == (3, {"close": 1})


def test_larger_gap_does_not_reopen_closed_sessions() -> None:
    """
    gap 5     [0 ── 3]8      watermark 20: closed, its floor removed
    gap 50    rows at 5 and 12 are within the gap of the watermark, but stay late: 12 < 20 - 5
    """
    config = RunConfig("session", gap=5)
    script = [
        rows_input_at(0, 3),
        rows_input_at(20, u="b"),
        PipelineRestart(replace(config, gap=50).window),
        rows_input_at(5, 12),
        rows_input_at(15),
    ]
    result = run_local_script(config.window, script, SCHEMA)
    assert sorted_window_counts(result) == [(0, 8, 2), (15, 65, 1), (20, 70, 1)]
    assert result.counters.rows_late == 2


def test_larger_gap_does_not_merge_sessions_beyond_the_maximum_duration() -> None:
    """cap 100, gap 5 to 20: [0 ── 90] [100 ── 130] touch, and a row at 95 in between joins the first."""
    first, second = [*range(0, 91, 5)], [*range(100, 131, 5)]
    script = [
        rows_input_at(*second),
        rows_input_at(*first),
        PipelineRestart(session_window(20, 100)),
        rows_input_at(95),
        rows_input_at(140),
    ]
    assert sorted_window_counts(run_local_script(session_window(5, 100), script, SCHEMA)) == [
        (0, 100, 20),
        (100, 160, 8),
    ]


def test_longer_maximum_duration_merges_the_parts_of_open_sessions() -> None:
    times = [*range(0, 60, 4)]
    cut = run_local_script(session_window(5, 20), [rows_input_at(*times)], SCHEMA)
    assert len(cut.rows) == 3
    assert sorted_window_counts(
        run_local_script(session_window(5, 20), [rows_input_at(*times), PipelineRestart(session_window(5, 40))], SCHEMA)
    ) == [(0, 40, 10), (40, 61, 5)]
    assert sorted_window_counts(
        run_local_script(
            session_window(5, 20), [rows_input_at(*times), PipelineRestart(session_window(5, 500))], SCHEMA
        )
    ) == [(0, 61, 15)]


def test_smaller_gap_does_not_split_sessions_that_reached_the_maximum_duration() -> None:
    """Rows are 12 ms apart. With a gap of 2 ms, they stay in the sessions that the cap cut."""
    times = [0, 12, 24, 36, 48]
    assert sorted_window_counts(
        run_local_script(
            session_window(15, 30), [rows_input_at(*times), PipelineRestart(session_window(2, 30))], SCHEMA
        )
    ) == [(0, 26, 3), (36, 50, 2)]


def test_larger_gap_supersedes_one_of_two_emitted_updates() -> None:
    def updates(gap: int) -> Window:
        return session_window(gap).model_copy(update={"emit": "updates"})

    result = run_local_script(
        updates(5), [rows_input_at(0, 9), PipelineRestart(updates(10)), QuietInterval(500)], SCHEMA, flush=False
    )
    assert sorted_window_counts(result) == [(0, 5, 1), (0, 19, 2), (9, 14, 1)]
    assert [(r["window_start"] // MS, r["_epoch"]) for r in result.gone] == [(9, 2)]


def test_updates_before_a_change_are_superseded_after_several_restarts() -> None:
    """
    updates     [0]5      [9]14     both are emitted
    on_close    row 4 merges them, after two more restarts: [0 ── 9]14 replaces both
    """
    updates = session_window(5).model_copy(update={"emit": "updates"})
    script = [
        rows_input_at(0, 9),
        QuietInterval(500),
        PipelineRestart(session_window(5)),
        PipelineRestart(),
        PipelineRestart(),
        rows_input_at(4),
    ]
    result = run_local_script(updates, script, SCHEMA)
    assert sorted_window_counts(result)[-1:] == [(9, 14, 1)]
    assert (0, 14, 3) in sorted_window_counts(result)
    assert [r["window_start"] // MS for r in result.gone] == [9]


def test_longer_maximum_duration_supersedes_split_sessions_in_the_target() -> None:
    """The target contains two cut sessions. A higher cap merges them into one session, which replaces both."""

    def updates(cap: int) -> Window:
        return session_window(5, cap).model_copy(update={"emit": "updates"})

    result = run_local_script(
        updates(10),
        [rows_input_at(0, 4, 8, 12, 16), PipelineRestart(updates(50)), QuietInterval(500)],
        SCHEMA,
        flush=False,
    )
    assert [r["window_start"] // MS for r in result.gone] == [12]
    assert sorted_window_counts(result)[-2:] == [(0, 21, 5), (12, 21, 2)]


def test_gap_expression_can_change_but_not_to_a_constant() -> None:
    def by(gap: str) -> Window:
        return session_window(5).model_copy(update={"gap_ms": gap})

    schema = SCHEMA | {"g": "bigint", "h": "bigint"}

    def row(t: int, g: int, h: int) -> MicroBatch:
        return MicroBatch({"a": [{"ts": t * MS, "u": "a", "id": 1, "f": 1.0, "g": g, "h": h}]})

    script = [row(0, 10, 1), row(30, 2, 50), PipelineRestart(by("h")), row(40, 1, 7)]
    assert sorted_window_counts(run_local_script(by("g"), script, schema)) == [(0, 10, 1), (30, 32, 1), (40, 47, 1)]
    with pytest.raises(
        StateError, match="gap: state has g, config has 5ms: 1 state rows were stored for a gap per row"
    ):
        run_local_script(by("g"), [row(0, 10, 1), PipelineRestart(session_window(5))], schema)


class SumAggregator(Aggregator):
    inputs: ClassVar = {"v": "double"}
    accumulators: ClassVar = {"total": "double"}
    output = "double"

    def lift(self, v: pl.Expr) -> dict[str, pl.Expr]:
        return {"total": v.fill_null(0)}

    def merge(self, total: pl.Expr) -> dict[str, pl.Expr]:
        return {"total": total.sum()}

    def finish(self, total: pl.Expr) -> pl.Expr:
        return total


class StickyNullAggregator(SumAggregator):
    """NULL if one part is NULL, so the result for no rows changes each merge."""

    def merge(self, total: pl.Expr) -> dict[str, pl.Expr]:
        return {"total": pl.when(total.null_count() == 0).then(total.max())}


def window_with_aggregator(cls: type[Aggregator]) -> Window:
    window = session_window(5)
    added = Aggregation(agg=cls, columns={"v": "f"}, as_="own")
    return window.model_copy(update={"aggregations": (*window.aggregations, added)})


def test_added_custom_aggregation_starts_without_rows_or_is_rejected() -> None:
    result = run_local_script(
        session_window(5),
        [rows_input_at(0, 2), PipelineRestart(window_with_aggregator(SumAggregator)), rows_input_at(3)],
        SCHEMA,
    )
    assert [(r["n"], r["own"]) for r in result.rows] == [(3, 1.0)]
    with pytest.raises(
        StateError,
        match=r'"own".*StickyNullAggregator.merge changes accumulators when it merges them with the result for no rows',
    ):
        run_local_script(
            session_window(5),
            [rows_input_at(0, 2), PipelineRestart(window_with_aggregator(StickyNullAggregator)), rows_input_at(3)],
            SCHEMA,
        )


def test_removed_aggregation_is_dropped_even_if_its_class_is_missing(tmp_path: Path) -> None:
    run_local_script(
        window_with_aggregator(SumAggregator), [rows_input_at(0, 2)], SCHEMA, state_dir=str(tmp_path), flush=False
    )
    (path,) = (tmp_path / "law" / "manifests").glob("*.json")
    assert "SumAggregator" in path.read_text()
    text, _, _ = path.read_text().rstrip("\n").rpartition("\n")
    assert "test_config_changes:SumAggregator" in text
    text = text.replace("test_config_changes:SumAggregator", "test_missing_module:SumAggregator")
    from slackwater.storage.arrow_files import file_checksum

    path.write_text(f"{text}\n{file_checksum(text.encode())}\n")
    assert sorted_window_counts(
        run_local_script(session_window(5), [rows_input_at(3)], SCHEMA, state_dir=str(tmp_path))
    ) == [(0, 8, 3)]


@pytest.mark.parametrize("kind", ["session", "tumbling", "hopping"])
def test_resharding_does_not_change_the_published_bytes(kind: str, tmp_path: Path) -> None:
    """A run with 2, 8 and 3 shards publishes the same bytes per epoch as a run with two shards."""
    first, items = config_change_runs.draw_config_change_script(7, kind)
    batches = [item for item in items if isinstance(item, list) and item]
    frames: dict[str, list[bytes]] = {}
    for name, restarts in (("moved", {1: 8, 3: 3}), ("still", {1: 2, 3: 2})):
        script: list[Any] = []
        for epoch, batch in enumerate(batches):
            script.append(MicroBatch({"a": batch}))
            script += [PipelineRestart(shards=restarts[epoch])] if epoch in restarts else []
        assert len(batches) > 4
        published: list[bytes] = []
        run_local_script(
            first.window, script, SCHEMA, shards=2, on_publish=lambda f, p=published: p.append(_frame_bytes(f))
        )
        frames[name] = published
    assert sum(map(len, frames["moved"])) > 0
    assert frames["moved"] == frames["still"]


def _frame_bytes(frame: pl.DataFrame) -> bytes:
    from slackwater.storage.arrow_files import encode_frame

    return encode_frame(frame).to_pybytes()  # type: ignore[no-any-return]


def test_window_after_a_join_can_change_but_the_join_cannot() -> None:
    """The state of the second stage continues with the changed window."""
    from slackwater.config.join import Join

    join = Join(kind="inner", left_source="a", right_source="b", left_keys=["u"], right_keys=["u"], time_window_ms=5)

    def counted(*names: str) -> Window:
        aggs = [Aggregation(agg="count", as_="n"), *(Aggregation(agg="sum", column="left_id", as_=n) for n in names)]
        settings = {"max_groups_per_window": 99, "group_by": ["left_u"], "aggregations": aggs}
        return Window(kind="tumbling", duration_ms=50, **settings)

    def both(t: int) -> MicroBatch:
        row = {"ts": t * MS, "u": "x", "id": 1, "f": 1.0}
        return MicroBatch({"a": [row], "b": [row]})

    script = [
        both(0),
        both(10),
        DriverCrash("commit.before"),
        PipelineRestart(downstream=counted("ids"), shards=3),
        both(20),
    ]
    result = run_local_script(join, script, SCHEMA, ("a", "b"), downstream=counted())
    assert [(r["window_start"], r["n"], r["ids"]) for r in result.rows] == [(0, 3, 1)]
    with pytest.raises(
        StateError, match=r"another join .*bounds_us: state has \[-5000, 5000\], config has \[-9000, 9000\]"
    ):
        run_local_script(
            join, [both(0), PipelineRestart(join.model_copy(update={"time_window_ms": 9}))], SCHEMA, ("a", "b")
        )


@pytest.mark.parametrize("step", [f"{p}.{s}" for p in ("read", "stage", "commit") for s in ("before", "after")])
def test_restart_with_a_change_succeeds_after_a_kill_at_any_step(step: str) -> None:
    before = RunConfig("session", lateness=50)
    after = RunConfig("session", gap=9, lateness=50, aggs=("n", "fs"), shards=3)
    script = [rows_input_at(0, 7), DriverCrash(step), PipelineRestart(after.window, 3), rows_input_at(9)]
    assert [(r["n"], r["fs"]) for r in run_local_script(before.window, script, SCHEMA).rows] == [(3, 1)]
