"""The blocks of the page against an oracle that reads the input rows and the state files without engine code."""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.support.case_selection import select_cases
from tests.support.local_pipeline_script import MicroBatch, QuietInterval
from tests.support.single_stage_components import replace_stage_fields
from tests.support.ui_pipeline_states import (
    CLOCK,
    PARTITIONS,
    SHAPES,
    M,
    S,
    draw_two_source_script,
    open_page_source,
    run_two_source_pipeline,
    write_two_source_config,
)

from slackwater.core.humanize import format_span
from slackwater.evolution.pipeline_from_state import restore_window
from slackwater.maintenance.state_sizes import list_kept_commits
from slackwater.query import state_inspection
from slackwater.query.why_report_builder import build_why_report
from slackwater.ui import pages
from slackwater.ui.blocks.commit_and_runs import build_header
from slackwater.ui.blocks.row_accounting import build_accounting
from slackwater.ui.blocks.upcoming_closes import BINS, KEYS, bin_times, closing_windows
from slackwater.ui.page_model import PageModel, load_key, load_model
from slackwater.ui.pages import PageLocation
from slackwater.ui.svg import Axis, tick_step

SEEDS = 10  # per shape, so 40 states
CHUNK = 5
CHUNKS = select_cases([(shape, first) for first in range(0, SEEDS, CHUNK) for shape in SHAPES], keep=2)
Manifests = list[dict[str, Any]]
State = tuple[Path, list[Any], Any]


@pytest.mark.parametrize(("shape", "first"), CHUNKS)
def test_page_blocks_match_the_oracle_for_random_states(tmp_path: Path, shape: str, first: int) -> None:
    """Compare every number of each block with the oracle."""
    checks = [check_row_counts, check_watermark_lanes, check_closing_time_histogram]
    checks += [
        check_keys_of_histogram_bins_and_key_pages,
        check_state_size,
        check_commit_pace,
    ]
    checks += [check_open_sessions_by_key] if shape == "session" else []
    for seed in range(first, first + CHUNK):
        (home := tmp_path / str(seed)).mkdir()
        file, story = write_two_source_config(shape, home), draw_two_source_script(seed)
        state = file, story, run_two_source_pipeline(file, story, on_error="drop")
        for check in checks:
            try:
                check(state, shape)
            except Exception as error:
                raise AssertionError(f"seed {seed}: {check.__name__}: {error}") from error


def read_commit_records(file: Path) -> Manifests:
    """Return the raw records of the retained commits."""
    paths = sorted((file.parent / "state" / "law" / "manifests").glob("*.json"))
    return [json.loads(p.read_text().splitlines()[0]) for p in paths]


@cache
def load_page_model(file: Path) -> PageModel:
    return load_model(open_page_source(file), CLOCK + 3600 * S)


def read_input_row_count(record: dict[str, Any]) -> int:
    return read_counter(record["stages"][0]["counters"], "rows_in")


def read_counter(counters: dict[str, Any], name: str) -> int:
    counter = counters.get(name, 0)
    return sum(counter.values()) if isinstance(counter, dict) else int(counter)


def check_row_counts(state: State, shape: str) -> None:
    file, story, result = state
    block = load_page_model(file).rows
    input_rows = [
        r for item in story if isinstance(item, MicroBatch) for source_rows in item.rows.values() for r in source_rows
    ]
    assert block.total.rows_in == len(input_rows)
    assert block.total.bad == sum(r["ts"] is None for r in input_rows)
    assert block.total.used + block.total.late + block.total.refused == len(input_rows) - block.total.bad
    assert (block.unaccounted, block.total.unaccounted, block.total.by_sql) == (0, 0, 0)
    assert sum(block.emitted.values()) == len(result.rows)
    manifests, before = read_commit_records(file), {}
    former = {m["epoch"]: m["stages"][0]["counters"] for m in manifests}
    for epoch, record in zip(block.epochs, manifests, strict=True):
        before = former.get(record["epoch"] - 1, {} if record["epoch"] == 0 else None)
        assert (epoch.epoch, epoch.committed_us) == (record["epoch"], record["committed_us"])
        if before is None:
            assert epoch.account is None
            continue
        assert epoch.account is not None
        names = {"used": "rows_used", "late": "late", "refused": "rows_refused", "bad": "rows_bad", "lost": "rows_lost"}
        for attribute, counter in names.items():
            assert getattr(epoch.account, attribute) == read_counter(
                record["stages"][0]["counters"], counter
            ) - read_counter(before, counter), attribute
        assert epoch.account.rows_in == read_counter(record["stages"][0]["counters"], "rows_in") - read_counter(
            before, "rows_in"
        )
        assert epoch.emitted == read_counter(record["stages"][0]["counters"], "emitted") - read_counter(
            before, "emitted"
        )


def check_watermark_lanes(state: State, shape: str) -> None:
    file, story, result = state
    block, record = load_page_model(file).watermark, read_commit_records(file)[-1]
    newest: dict[tuple[str, str | None], int] = {}
    for item in story:
        for source, source_rows in item.rows.items() if isinstance(item, MicroBatch) else ():
            for r in source_rows:
                if r["ts"] is not None:
                    for partition in {None, r.get("partition")}:
                        name = (source, partition)
                        newest[name] = max(newest.get(name, r["ts"]), r["ts"])
    lanes = {(lane.source, lane.partition): lane for lane in block.lanes}
    assert set(lanes) == {("web", None), ("app", None), *(("app", p) for p in PARTITIONS)}
    for name, lane in lanes.items():
        assert lane.newest_us == newest.get(name)
        assert lane.lateness_us == (30 * S if name[0] == "web" else M)
        clock = record["stages"][0]["clocks"][name[0]]
        clock = clock if name[1] is None else clock["partitions"][name[1]]
        assert (lane.idle, lane.quiet_us) == (clock["idle"], clock["quiet_us"])
        assert lane.since_us == record["committed_us"] - clock["quiet_us"]
        if name != ("app", None) and lane.newest_us is not None:
            assert lane.watermark_us == lane.newest_us - lane.lateness_us
    assert block.watermark_us == result.watermark_us
    # the holder of the watermark is the slowest active source, or the slowest partition of it
    far = -(1 << 62)
    awake = {n: lane for n, lane in lanes.items() if n[1] is None and not lane.idle}
    held = [n for n, lane in lanes.items() if lane.holds]
    if not awake:
        assert held == []
    else:
        least = min(lane.watermark_us or far for lane in awake.values())
        (holder,) = held
        assert (lanes[holder].watermark_us or far) == least
    behind = [(b.epoch, b.behind_us) for b in block.behind]
    assert behind == [
        (
            m["epoch"],
            None if m["stages"][0]["watermark_us"] <= far else m["committed_us"] - m["stages"][0]["watermark_us"],
        )
        for m in read_commit_records(file)
    ]


UPDATED = SHAPES["session"] + '\nemit = "updates"\nemit_metadata = true'


@pytest.mark.parametrize(
    "shape",
    select_cases(
        [
            pytest.param("session", id="session"),
            pytest.param("short cap", id="short cap"),
            pytest.param(UPDATED, id="updates"),
        ]
    ),
)
def test_next_windows_are_the_first_five_to_close(tmp_path: Path, shape: str) -> None:
    for seed in range(8):
        (home := tmp_path / str(seed)).mkdir()
        file = write_two_source_config(shape, home)
        run_two_source_pipeline(file, draw_two_source_script(seed), on_error="drop")
        report = build_why_report(open_page_source(file).pipeline, open_page_source(file).store, CLOCK)
        windows = list_all_open_windows(file).sort("__closes")
        assert [o.closes_us for o in report.next] == windows["__closes"].to_list()[:5], seed
        assert report.open_windows >= windows.height if windows.height >= 5 else report.open_windows == windows.height


def test_why_report_reads_only_the_next_of_many_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even with a large state and many sessions due at once, the report merges about as many sessions as it lists."""
    file = write_two_source_config("session", tmp_path)
    rows = [{"ts": CLOCK + n * 7, "user": f"u{n}"} for n in range(5000)]
    run_two_source_pipeline(
        file,
        [
            MicroBatch({"web": rows[:4000], "app": []}),
            MicroBatch({"web": rows[4000:], "app": [{"ts": CLOCK, "user": None}]}),
        ],
    )
    read = list[int]()
    put_together = state_inspection.list_open_windows

    def counted(logic: Any, intervals: pl.DataFrame, watermark: int) -> pl.DataFrame:
        read.append(intervals.height)
        return put_together(logic, intervals, watermark)

    monkeypatch.setattr(state_inspection, "list_open_windows", counted)
    report = build_why_report(open_page_source(file).pipeline, open_page_source(file).store, CLOCK)
    assert report.open_windows == 5001
    assert len(report.next) == 5
    assert max(read) <= 20


@cache
def list_all_open_windows(file: Path) -> pl.DataFrame:
    """Return all open windows, merged one key at a time, unlike the code under test."""
    with open_page_source(file).store.peek() as snapshot:
        assert snapshot is not None
        logic = restore_window(snapshot.commit)
        rows = pl.concat([snapshot.reader(s, logic).scan() for s in range(snapshot.commit.shards)])
        frames = []
        for _, unit in rows.group_by(logic.key_names):
            frames.append(state_inspection.list_open_windows(logic, unit, snapshot.commit.watermark_us))
        return pl.concat([state_inspection.list_open_windows(logic, logic.empty_state(), 0), *frames])


def check_closing_time_histogram(state: State, shape: str) -> None:
    file, _, _ = state
    block, windows = load_page_model(file).closing, list_all_open_windows(file)
    assert block is not None
    assert len(block.bins) <= BINS
    for low, high in zip(block.bins, block.bins[1:], strict=False):
        assert low.to_us <= high.from_us
    inside = [
        windows.filter((pl.col("__closes") >= b.from_us) & (pl.col("__closes") < b.to_us)).height for b in block.bins
    ]
    assert sum(inside) == windows.height
    if shape == "hopping":  # a key with rows in both panes of a window counts twice, which is the maximum
        assert all(n <= b.count <= 2 * n for n, b in zip(inside, block.bins, strict=True))
    else:
        assert inside == [b.count for b in block.bins]
        assert block.total == windows.height


def check_keys_of_histogram_bins_and_key_pages(state: State, shape: str) -> None:
    file, _, _ = state
    block, windows = load_page_model(file).closing, list_all_open_windows(file)
    assert block is not None
    for b in block.bins[:: max(len(block.bins) // 4, 1)]:
        expected = windows.filter((pl.col("__closes") >= b.from_us) & (pl.col("__closes") < b.to_us)).sort("__closes")
        with open_page_source(file).store.peek() as snapshot:
            assert snapshot is not None
            closing = closing_windows(snapshot, b.from_us, b.to_us)
        assert [w.closes_us for w in closing] == expected["__closes"].to_list()[:KEYS]
        if expected.height <= KEYS:
            same = Counter((w.key["user"], w.start_us, w.reason) for w in closing)
            assert same == Counter(expected.select("user", "__start", "__reason").iter_rows())
        for w in closing[:3]:
            one = load_key(open_page_source(file), {"user": w.key["user"]}, CLOCK)  # the key as its link has it
            assert (w.start_us, w.closes_us) in [(bar.start_us, bar.closes_us) for bar in one.bars]
            assert one.key == w.key


def check_open_sessions_by_key(state: State, shape: str) -> None:
    """Check that the open sessions of a key without late rows follow from the rows alone."""
    file, story, result = state
    input_rows = [
        r
        for item in story
        if isinstance(item, MicroBatch)
        for source_rows in item.rows.values()
        for r in source_rows
        if r["ts"]
    ]
    gap, cap, checked = 10 * M, 60 * M, 0
    for user in {r["user"] for r in input_rows}:
        times = sorted(r["ts"] for r in input_rows if r["user"] == user)
        recent = [t for t in times if t >= times[-1] - 30 * M]
        if times[0] != recent[0] or times[-1] + gap < result.watermark_us:
            continue  # old rows may have been late
        runs: list[list[int]] = []
        for t in recent:
            if runs and t - runs[-1][-1] <= gap:
                runs[-1].append(t)
            else:
                runs.append([t])
        if any(run[0] + gap < result.watermark_us + 20 * M for run in runs):
            continue
        checked += 1
        bars = [b for b in load_key(open_page_source(file), {"user": user}, CLOCK).bars if b.status == "open"]
        assert [(b.start_us, b.last_us, b.end_us, b.values["clicks"]) for b in bars] == [
            (run[0], run[-1], run[-1] + gap, len(run)) for run in runs
        ]
        assert all(b.cap_us == b.start_us + cap and b.closes_us == b.end_us + 1 for b in bars)
    assert checked or result.watermark_us > 0


def check_state_size(state: State, shape: str) -> None:
    file, _, _ = state
    block, home = load_page_model(file).size, file.parent / "state" / "law"
    manifests = read_commit_records(file)
    assert [c.epoch for c in block.commits] == [m["epoch"] for m in manifests]
    latest = [s for shard in manifests[-1]["stages"][0]["segments"] for s in shard]
    assert block.commits[-1].bytes == sum((home / s["file"]).stat().st_size for s in latest)
    assert [c.rows for c in block.commits] == [
        sum(s["rows"] for shard in m["stages"][0]["segments"] for s in shard) for m in manifests
    ]


def check_commit_pace(state: State, shape: str) -> None:
    file, _, _ = state
    block, manifests = load_page_model(file).pace, read_commit_records(file)
    assert [(lap.epoch, lap.committed_us) for lap in block.laps] == [(m["epoch"], m["committed_us"]) for m in manifests]
    for n, (lap, record) in enumerate(zip(block.laps, manifests, strict=True)):
        if n == 0:
            assert lap.since_us is None
            assert lap.rows == (
                read_counter(record["stages"][0]["counters"], "rows_in") if record["epoch"] == 0 else None
            )
        else:
            assert lap.since_us == record["committed_us"] - manifests[n - 1]["committed_us"]
            assert lap.rows == read_input_row_count(record) - read_input_row_count(manifests[n - 1])
        assert ("commit" in lap.phases) == (n + 1 < len(manifests))
        assert ("emit" in lap.phases) == (n > 0 or record["epoch"] == 0)
        assert all(us >= 0 for us in lap.phases.values())
        for phase in ("commit", "write", "note") if n + 1 < len(manifests) else ():
            assert (
                lap.phases[phase]
                == manifests[n + 1]["counters"]["spent_us"][phase] - record["counters"]["spent_us"][phase]
            )
    spent = [sum(m["counters"]["spent_us"].values()) for m in manifests]
    rows, over, worked = (
        read_input_row_count(manifests[-1]),
        manifests[-1]["committed_us"] - manifests[0]["committed_us"],
        spent[-1],
    )
    if manifests[0]["epoch"] == 0:  # from the start of the first epoch, which records no phase after its commit
        over += spent[0]
    else:
        rows, worked = rows - read_input_row_count(manifests[0]), worked - spent[0]
    assert (block.rows, block.over_us) == ((rows, over) if over else (None, None))
    assert block.rows_per_s == (pytest.approx(1e6 * rows / over) if rows and over else None)
    life = (read_input_row_count(manifests[-1]), spent[-1])
    read, within = (rows, worked) if rows and over else life
    assert block.busy_per_s == (pytest.approx(1e6 * read / within) if read else None)
    assert [(w.source, w.unit, w.count) for w in block.waits] == [("web", "files", 0), ("app", "files", 0)]
    assert load_page_model(file).joins is None


# -- single blocks -----------------------------------------------------------------------------------------------------


def test_unaccounted_rows_are_reported_in_the_header(tmp_path: Path) -> None:
    """The page recomputes the counts of the engine and reports a mismatch."""
    file = write_two_source_config("session", tmp_path)
    run_two_source_pipeline(file, draw_two_source_script(1))
    commits = list_kept_commits(open_page_source(file).store)
    counted = commits[-1].stages[0].counters
    broken = replace_stage_fields(commits[-1], counters={**counted, "rows_used": counted["rows_used"] - 3})
    block = build_accounting([*commits[:-1], broken])
    assert (block.unaccounted, block.total.unaccounted) == (3, 3)
    header = build_header(
        build_why_report(open_page_source(file).pipeline, open_page_source(file).store, CLOCK), block, []
    )
    assert not header.accounted
    assert header.sentence.startswith("3 rows are unaccounted for: ")
    # a source row that never reached the window, without an SQL filter that could drop it
    broken = replace_stage_fields(commits[-1], counters={**counted, "rows_in": counted["rows_in"] + 2})
    assert build_accounting([*commits[:-1], broken]).unaccounted == 2


def test_dead_letters_are_counted_by_reason(tmp_path: Path) -> None:
    file = write_two_source_config(SHAPES["session"] + '\nlate_data = "dlq"', tmp_path)
    text = file.read_text() + '[dead_letter]\nconnection = "lake"\npath = "letters"\n'
    file.write_text(text)
    result = run_two_source_pipeline(file, draw_two_source_script(3), on_error="dlq")
    block = load_page_model(file).rows
    assert block.letters == dict(Counter(letter["reason"] for letter in result.letters))
    assert set(block.letters) >= {"late"}
    assert b"<h3>Dead letters</h3>" in pages.render_page(load_page_model(file), PageLocation(""))


def test_hostile_keys_are_escaped_in_every_page(tmp_path: Path) -> None:
    file = write_two_source_config("session", tmp_path)
    names = [
        "<script>alert(1)</script>",
        "'\"><img src=x onerror=alert(1)>",
        "a,user=b",
        "{{ 1234567*7 }}",
        "\u202e\x00&#x3c;",
        "%3Cb%3E",
    ]
    run_two_source_pipeline(
        file, [MicroBatch({"web": [{"ts": CLOCK, "user": n} for n in names], "app": [{"ts": CLOCK, "user": None}]})]
    )
    seen = load_page_model(file)
    assert seen.closing is not None
    (b,) = seen.closing.bins
    with open_page_source(file).store.peek() as snapshot:
        assert snapshot is not None
        closing = closing_windows(snapshot, b.from_us, b.to_us)
    assert {w.key["user"] for w in closing} == {*names, None}
    shown = [
        pages.render_page(seen, PageLocation("")),
        pages.render_page(seen, PageLocation(None)),
        pages.render("bin.html", model=seen, low=0, high=1, windows=closing),
    ]
    shown += [
        pages.render("key.html", pipeline="law", stage=None, key=load_key(open_page_source(file), {"user": n}, CLOCK))
        for n in names
    ]
    for content in shown:
        text = content.decode()
        assert "<script>alert" not in text
        assert "<img" not in text
        assert "8641969" not in text.replace(",", "")
        assert not re.search(r"\son\w+=", re.sub(r"&[^;]+;[^<]*", "", text))


def test_state_without_rows_has_a_page(tmp_path: Path) -> None:
    file = write_two_source_config("session", tmp_path)
    run_two_source_pipeline(
        file,
        [
            MicroBatch({"web": [], "app": []}),
            MicroBatch({"web": [{"ts": None, "user": "u"}], "app": []}),
            QuietInterval(1000),
        ],
    )
    seen = load_page_model(file)
    assert seen.watermark.watermark_us is None
    assert seen.closing is not None and seen.closing.bins == ()
    content = pages.render_page(seen, PageLocation(""))
    assert b"There is no watermark yet" in content
    assert b"No window is open" in content


def test_closing_time_histogram_is_bounded_and_covers_all_windows() -> None:
    for times in ([5], [0, 1], list(range(0, 10**9, 12_345)), [-(3600 * S), 0, 7200 * S], [*range(1000), 10**15]):
        width, bins = bin_times(np.array(times, dtype=np.int64), np.ones(len(times), dtype=np.int64))
        assert 0 < len(bins) <= BINS
        assert sum(b.count for b in bins) == len(times)
        for b in bins:
            assert b.count == sum(b.from_us <= t < b.to_us for t in times)
        assert width > 0


def test_axis_ticks_positions_and_durations_are_readable() -> None:
    assert tick_step(60 * S, 6) == 10 * S
    assert 6 * tick_step(30 * 365 * 86_400 * S, 6) >= 30 * 365 * 86_400 * S
    axis = Axis(0, 100, 0, 10)
    assert [axis.position(v) for v in (-5, 0, 50, 100, 500)] == [0, 0, 5, 10, 10]
    for most in (1, 3, 7, 10, 999, 123_456_789):
        named = Axis(0, most, 0, 1).counts()
        assert named[0] == 0 and named[-1] <= most and len(named) <= 5
    assert [format_span(us) for us in (0, 1, 1500, S, 61 * S, 3600 * S, 90_000 * S, -5 * S)] == [
        "0 s", "1 µs", "1 ms", "1 s", "1 min 1 s", "1 h", "1 d 1 h", "−5 s",
    ]  # fmt: skip
