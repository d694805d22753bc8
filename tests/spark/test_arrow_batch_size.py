"""Arrow batches to Python: limited by bytes or by rows, depending on the previous epoch, with equal results."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.support.sample_events_and_windows import SIMPLE, build_event_rows, build_simple_session_window
from tests.support.spark_pipeline_runner import SparkPipelineRunner

from slackwater.spark.tuning import shuffle_tuning
from slackwater.spark.tuning.shuffle_tuning import ArrowBatchSizer

pytestmark = pytest.mark.spark

COUNTED = str(2**31 - 1)
KEY = "spark.sql.execution.arrow.maxBytesPerBatch"


@pytest.fixture
def arrow_byte_limits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the byte limit of the Arrow batches of each epoch, as set in Spark."""
    limits: list[str] = []
    sized = ArrowBatchSizer.limit_batches

    @contextmanager
    def seen(sizer: ArrowBatchSizer, rows: Any) -> Iterator[None]:
        with sized(sizer, rows):
            if sizer.__dict__.get("seen"):
                limits.append(rows.sparkSession.conf.get(KEY))
            yield

    def heard(sizer: ArrowBatchSizer, handed: Any) -> None:
        observe(sizer, handed)
        sizer.__dict__["seen"] = True

    observe = ArrowBatchSizer.observe
    monkeypatch.setattr(ArrowBatchSizer, "limit_batches", seen)
    monkeypatch.setattr(ArrowBatchSizer, "observe", heard)
    return limits


def test_narrow_rows_are_limited_by_count_and_wide_rows_by_bytes(
    runner: SparkPipelineRunner, arrow_byte_limits: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """narrow ─▶ narrow: by rows ─▶ wide: by rows, as not yet known ─▶ narrow: by bytes ─▶ narrow: by rows"""
    weighed = runner.spark.conf.get(KEY)
    for n in range(5):
        runner.write_input_file(f"{n}.jsonl", build_event_rows(20 * n, 20 * n + 9, user="w" * 2_000 if n == 2 else "a"))

    def run(many: int) -> tuple[Any, ...]:
        monkeypatch.setattr(shuffle_tuning, "MANY_ROWS", many)
        for folder in ("state", "out"):
            shutil.rmtree(runner.home / folder, ignore_errors=True)
        arrow_byte_limits.clear()
        frame = runner.run_pipeline(
            source=runner.files_source(SIMPLE, max_files_per_trigger=1), window=build_simple_session_window()
        )
        return frame.rows(), list(arrow_byte_limits)

    results, few = run(shuffle_tuning.MANY_ROWS)
    assert set(few) == {weighed}
    assert run(1) == (results, [COUNTED, COUNTED, weighed, COUNTED])


def test_batches_are_limited_by_bytes_after_a_failed_job(runner: SparkPipelineRunner) -> None:
    """A batch was too large, and the next attempt reads the same rows."""
    rows, sizes = runner.spark.range(1), ArrowBatchSizer()
    before = runner.spark.conf.get(KEY)
    sizes.observe([(shuffle_tuning.MANY_ROWS, 1)])
    with pytest.raises(OverflowError), sizes.limit_batches(rows):
        assert runner.spark.conf.get(KEY) == COUNTED
        raise OverflowError
    with sizes.limit_batches(rows):
        assert runner.spark.conf.get(KEY) == before


@pytest.mark.parametrize(
    ("handed", "narrow"),
    [
        ([(shuffle_tuning.MANY_ROWS, 600 * shuffle_tuning.MANY_ROWS)], True),
        ([(shuffle_tuning.MANY_ROWS, 700 * shuffle_tuning.MANY_ROWS)], False),
        ([(shuffle_tuning.MANY_ROWS, 0), (1, 700)], False),  # the widest rows of all shards decide
        ([(shuffle_tuning.MANY_ROWS - 1, 0)], False),
        ([(0, 0)], False),
        ([], False),
    ],
)
def test_many_rows_below_the_width_limit_are_narrow(handed: list[tuple[int, int]], narrow: bool) -> None:
    sizes = ArrowBatchSizer()
    sizes.observe(handed)
    assert sizes._are_narrow is narrow
