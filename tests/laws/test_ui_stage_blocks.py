"""Compare the page blocks of each stage of random graphs with its records and files, read without the engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.laws.generators import seed_runner
from tests.laws.generators.runs_with_open_state import run_pipeline_without_flush
from tests.support.case_selection import select_cases

from slackwater.cli.web_commands import load_page_sources
from slackwater.evolution.pipeline_from_state import restore_window
from slackwater.query import state_inspection
from slackwater.ui import pages
from slackwater.ui.blocks.upcoming_closes import closing_windows
from slackwater.ui.page_model import PageModel, PageSource, load_key, load_model, load_models, select_window_stage
from slackwater.ui.pages import PageLocation

SEEDS, CHUNK = 40, 10  # more than 100 states, one for each stage
FAR = -(1 << 62)


@pytest.mark.parametrize("first", select_cases(range(0, SEEDS, CHUNK)))
def test_page_blocks_of_each_stage_match_its_records_and_files(tmp_path: Path, first: int) -> None:
    seed_runner.hide_warnings()
    for seed in range(first, first + CHUNK):
        home = tmp_path / str(seed)
        with run_pipeline_without_flush(seed, str(home)) as test:
            stages, now = list(test.pipeline.stage_pipelines), test.now_us
        (watched,) = load_page_sources(str(home))
        records = [
            json.loads(p.read_text().splitlines()[0]) for p in sorted((home / "law" / "manifests").glob("*.json"))
        ]
        whole, each = load_models(watched, now)
        assert [s.stage for s in each] == stages
        for seen in each:
            try:
                check_stage_page(home / "law", watched, records, seen)
                pages.render_page(seen, PageLocation(f"/stage/{seen.stage}", home=""))
            except Exception as error:
                raise AssertionError(f"seed {seed}, stage {seen.stage}: {error}") from error
        assert whole.size.commits[-1].bytes == sum(s.size.commits[-1].bytes for s in each)
        assert whole.top.accounted


def find_stage_record(record: dict[str, Any], stage: str) -> dict[str, Any]:
    return next(s for s in record["stages"] if s["name"] == stage)


def sum_counter(counter: Any) -> int:
    return sum(counter.values()) if isinstance(counter, dict) else int(counter)


def check_stage_page(home: Path, watched: PageSource, records: list[dict[str, Any]], seen: PageModel) -> None:
    name = str(seen.stage)
    stage_records = [find_stage_record(r, name) for r in records]
    check_row_counts(seen, stage_records)
    check_watermark_lanes(seen, records[-1], stage_records[-1], records)
    check_state_size(home, seen, stage_records)
    if stage_records[-1]["fingerprint"]["kind"] == "join":
        assert seen.closing is None
        check_join_buffers(home, seen, stage_records[-1])
    else:
        assert seen.joins is None
        check_closing_time_histogram(watched, seen)


def check_row_counts(seen: PageModel, stage_records: list[dict[str, Any]]) -> None:
    names = {"rows_in": "rows_in", "used": "rows_used", "late": "late", "refused": "rows_refused", "bad": "rows_bad"}
    counted = stage_records[-1]["counters"]
    for ours, theirs in names.items():
        assert getattr(seen.rows.total, ours) == sum_counter(counted.get(theirs, 0)), ours
    keyless = sum(side.get("keyless", 0) for side in counted.get("sides", {}).values())
    assert seen.rows.total.keyless == keyless
    assert (seen.rows.unaccounted, seen.rows.total.by_sql) == (0, 0)
    assert sum(seen.rows.emitted.values()) == sum_counter(counted.get("emitted", {}))
    for n, epoch in enumerate(seen.rows.epochs):
        if n:
            before, after = (m["counters"].get("rows_in", 0) for m in stage_records[n - 1 : n + 1])
            assert epoch.account is not None and epoch.account.rows_in == after - before


def check_watermark_lanes(
    seen: PageModel, record: dict[str, Any], stage_record: dict[str, Any], records: list[dict[str, Any]]
) -> None:
    block = seen.watermark
    assert block.watermark_us == (None if stage_record["watermark_us"] <= FAR else stage_record["watermark_us"])
    lanes = {lane.source: lane for lane in block.lanes if lane.partition is None}
    assert set(lanes) == set(stage_record["clocks"])
    for name, lane in lanes.items():
        clock = stage_record["clocks"][name]
        assert lane.newest_us == clock["max_event_us"]
        assert lane.of_stage is (name not in record["sources"])
        if lane.of_stage:
            read = find_stage_record(record, name)
            promised = read["output_watermark_us"]
            assert lane.lateness_us == read["watermark_us"] - promised
            assert lane.watermark_us == (None if promised <= FAR else promised)
        else:
            assert (lane.idle, lane.quiet_us) == (clock["idle"], clock["quiet_us"])
    held = [lane for lane in block.lanes if lane.holds]
    if held and block.watermark_us is not None:
        (holder,) = held
        least = min((x.watermark_us if x.watermark_us is not None else FAR) for x in lanes.values() if not x.idle)
        assert (holder.watermark_us if holder.watermark_us is not None else FAR) == least
    assert [b.behind_us for b in block.behind] == [
        None
        if (watermark_us := find_stage_record(r, str(seen.stage))["watermark_us"]) <= FAR
        else r["committed_us"] - watermark_us
        for r in records
    ]


def check_state_size(home: Path, seen: PageModel, stage_records: list[dict[str, Any]]) -> None:
    latest = [s for shard in stage_records[-1]["segments"] for s in shard]
    assert seen.size.commits[-1].bytes == sum((home / s["file"]).stat().st_size for s in latest)
    assert [c.rows for c in seen.size.commits] == [
        sum(s["rows"] for shard in m["segments"] for s in shard) for m in stage_records
    ]


def check_join_buffers(home: Path, seen: PageModel, stage_record: dict[str, Any]) -> None:
    """Compare the join buffers with the unexpired rows of the files, by side."""
    assert seen.joins is not None
    low, high = stage_record["fingerprint"]["bounds_us"]
    keep_us = {"left": max(high, 0), "right": max(-low, 0)}
    for side in seen.joins.sides:
        assert side.keep_us == keep_us[side.side] + stage_record["emission"]["retain_us"]
        waiting, counts = 0, dict[Any, int]()
        for meta in (s for shard in stage_record["segments"] for s in shard if s["kind"] == side.side):
            rows = pl.read_ipc((home / meta["file"]).read_bytes())
            rows = rows.filter(pl.col("__ts") + side.keep_us >= stage_record["watermark_us"])
            waiting += rows.height
            for key in rows["__kh"].to_list():
                counts[key] = counts.get(key, 0) + 1
        assert side.rows == waiting == sum(age.rows for age in side.ages)
        assert (0 if side.hot_key is None else side.hot_key.rows) == max(counts.values(), default=0)
        counted = stage_record["counters"].get("sides", {}).get(side.side, {})
        names = {"entered": "buffered", "matched": "matched", "unmatched": "unmatched", "null_keys": "null_keys"}
        assert {n: getattr(side, n) for n in names} == {n: counted.get(theirs, 0) for n, theirs in names.items()}


def check_closing_time_histogram(watched: PageSource, seen: PageModel) -> None:
    """Compare the bins with windows that are listed one key at a time. The bins are computed in another way."""
    assert seen.closing is not None
    with watched.store.peek() as snapshot:
        assert snapshot is not None
        one, _ = select_window_stage(snapshot, seen.stage)
        logic = restore_window(one.commit)
        state = pl.concat([one.reader(s, logic).scan() for s in range(one.commit.shards)])
        watermark = one.commit.stages[0].watermark_us
        frames = [state_inspection.list_open_windows(logic, logic.empty_state(), 0)]
        frames += [
            state_inspection.list_open_windows(logic, unit, watermark) for _, unit in state.group_by(logic.key_names)
        ]
        standing = pl.concat(frames)
        hops = 2 if logic.window.kind == "hopping" else 1  # a key with rows in both panes of a window counts twice
        assert standing.height <= seen.closing.total <= hops * standing.height
        for b in seen.closing.bins:
            inside = standing.filter(pl.col("__closes").is_between(b.from_us, b.to_us, closed="left"))
            assert inside.height <= b.count <= hops * inside.height
            assert [w.closes_us for w in closing_windows(one, b.from_us, b.to_us)] == inside[
                "__closes"
            ].sort().to_list()[:100]
    names = logic.key_names
    for row in standing.head(2).iter_rows(named=True):
        page = load_key(watched, {n: row[n] for n in names}, 0, seen.stage)
        assert (row["__start"], row["__closes"]) in [(bar.start_us, bar.closes_us) for bar in page.bars]
        assert page.told and "key " in page.told[0]


def test_page_model_of_an_older_commit_shows_the_stage_at_that_epoch(tmp_path: Path) -> None:
    with run_pipeline_without_flush(3, str(tmp_path)) as test:
        stages, now = list(test.pipeline.stage_pipelines), test.now_us
    (watched,) = load_page_sources(str(tmp_path))
    for name in stages:
        past, latest = load_model(watched, now, 0, name), load_model(watched, now, stage=name)
        assert (past.top.epoch, past.stage) == (0, name)
        assert past.rows.total.rows_in <= latest.rows.total.rows_in
