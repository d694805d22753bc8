"""Golden pipelines on Spark: complete runs with two shard counts, crashes at named steps, and random rows."""

from __future__ import annotations

import random
from typing import Any

import polars as pl
import pytest
from tests.laws.oracles import window_oracle
from tests.support.case_selection import exhaustive, select_cases
from tests.support.sample_events_and_windows import (
    SIMPLE,
    build_event_rows,
    build_simple_session_window,
    format_iso_time,
    to_microseconds,
)
from tests.support.simulated_driver_crashes import CrashOnce
from tests.support.spark_pipeline_runner import SparkPipelineRunner

import slackwater as sw
from slackwater.engine import kill_points

pytestmark = pytest.mark.spark

# user a     0 ........ 45       60 ... 95                 300 .. 320
# user b            20 ....... 70                                         (gap 20 s: 45 to 60 is one session)
# epochs     |   0     |    1     |    2     |     3       |
EPOCHS = [
    build_event_rows(0, 30),
    build_event_rows(30, 50) + build_event_rows(20, 50, user="b"),
    build_event_rows(60, 100) + build_event_rows(50, 75, user="b"),
    build_event_rows(300, 325),
]
GOLDEN = {
    "session": [("a", 0, 115, 18), ("a", 300, 340, 5), ("b", 20, 90, 11)],
    "tumbling": [("a", 0, 60, 10), ("a", 60, 120, 8), ("a", 300, 360, 5), ("b", 0, 60, 8), ("b", 60, 120, 3)],
}
SHAPE = {
    "session": {},
    "tumbling": {
        "kind": "tumbling", "duration_ms": "1m", "gap_ms": None, "max_session_duration_ms": None, "max_groups_per_window": 99,
    },
}  # fmt: skip
KINDS = pytest.mark.parametrize("kind", select_cases(GOLDEN))


def read_window_rows(frame: pl.DataFrame) -> list[tuple[Any, ...]]:
    """Return (user, start, end, n), with times in seconds after the first event."""
    zero = to_microseconds(format_iso_time(0))
    times = [(pl.col(c).dt.timestamp("us") - zero) // 1_000_000 for c in ("window_start", "window_end")]
    return sorted(frame.select("user", *times, "n").rows())


def write_epoch_files(runner: SparkPipelineRunner) -> Any:
    for n, rows in enumerate(EPOCHS):
        runner.write_input_file(f"{n}.jsonl", rows)
    return runner.files_source(SIMPLE, max_files_per_trigger=1)


def golden_window(kind: str) -> sw.Window:
    return build_simple_session_window(**SHAPE[kind], lateness_ms="40s")


STEPS = [s for s in kill_points.KILL_POINTS if not s.startswith("stage.") and s != "checkpoint.after"]


@pytest.mark.matrix
@KINDS
@pytest.mark.parametrize("shards", select_cases([3, 1]))
def test_run_with_one_or_three_shards_gives_the_golden_windows(
    runner: SparkPipelineRunner, kind: str, shards: int
) -> None:
    store = sw.StateStore(kind="files", path=str(runner.home / "state"), shards=shards)
    assert (
        read_window_rows(
            runner.run_pipeline(source=write_epoch_files(runner), window=golden_window(kind), state_store=store)
        )
        == GOLDEN[kind]
    )


@pytest.mark.semantics("epochs")
@pytest.mark.parametrize(
    ("kind", "step"),
    select_cases(
        [("session", s) for s in sorted(STEPS, key=lambda s: s != "commit.after")]
        + [("tumbling", s) for s in STEPS if s.startswith("commit.")]
    ),
)
def test_crash_at_a_named_step_changes_no_result(
    runner: SparkPipelineRunner, kind: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run on Spark that crashes at a named step continues at the next start with the same results.

    The last epoch of the input emits, so it passes every step.
    """
    death = CrashOnce(step, 3)
    monkeypatch.setattr(kill_points, "fault_injector_from_environment", lambda: death)
    source = write_epoch_files(runner)
    with pytest.raises(
        sw.SlackwaterError,
        match=r"test: epoch 3 was (not committed|committed, but could not be published; it will be published at the next start): ",
    ):
        runner.run_pipeline(source=source, window=golden_window(kind))
    assert death.died
    assert read_window_rows(runner.run_pipeline(source=source, window=golden_window(kind))) == GOLDEN[kind]
    assert runner.statuses[-1].counters.rows_in == sum(map(len, EPOCHS))


@pytest.mark.parametrize("seed", [2, 0, 1])
@exhaustive(beside="test_window_invariants.py::test_disorder_within_the_lateness_gives_the_batch_result")
def test_windows_of_random_rows_match_the_oracle(runner: SparkPipelineRunner, seed: int) -> None:
    """Rows of two sources with random disorder within the lateness give the batch result."""
    rng = random.Random(seed)
    shape = [
        build_simple_session_window(gap_ms="7s", max_session_duration_ms="31s", lateness_ms="20s"),
        build_simple_session_window(**SHAPE["tumbling"] | {"duration_ms": "13s"}, lateness_ms="20s"),
        build_simple_session_window(
            **SHAPE["tumbling"] | {"kind": "hopping", "duration_ms": "13s", "hop_ms": "4s"}, lateness_ms="20s"
        ),
    ][seed]
    rows, second = [], 0
    for _ in range(400):
        second += rng.choice([0, 0, 1, 2, 7, 8])
        rows.append({"user": rng.choice(["a", "b", None]), "i": rng.randrange(9), "ts": second})
    arrived = sorted(rows, key=lambda r: r["ts"] + rng.uniform(0, 19))
    for n, chunk in enumerate(arrived[k : k + 100] for k in range(0, 400, 100)):
        plain = [{**r, "ts": format_iso_time(r["ts"])} for r in chunk]
        runner.write_input_file(f"{n}.jsonl", plain[::2])
        runner.write_input_file(f"{n}.jsonl", plain[1::2], folder="more")
    sources = [runner.files_source(SIMPLE, max_files_per_trigger=1)]
    sources.append(runner.files_source(SIMPLE, name="more", folder="more", max_files_per_trigger=1))
    frame = runner.run_pipeline(sources=sources, window=shape)
    expected = window_oracle.compute_windows_over_all_rows(
        shape, [{**r, "ts": to_microseconds(format_iso_time(r["ts"]))} for r in rows]
    )
    times = [pl.col(c).dt.timestamp("us") for c in ("window_start", "window_end")]
    got = frame.with_columns(times).drop("session_id", strict=False).to_dicts()
    key = lambda r: (r["user"] or "", r["window_start"])  # noqa: E731 — used twice
    assert sorted(got, key=key) == sorted(({k: r[k] for k in got[0]} for r in expected), key=key)
    assert runner.statuses[-1].counters.rows_late == 0
