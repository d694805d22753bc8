"""Check that observed source statistics of an epoch equal those of a separate job and those of Parquet footers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import pytest
from tests.support.case_selection import exhaustive
from tests.support.sample_events_and_windows import build_simple_session_window
from tests.support.spark_pipeline_runner import SparkPipelineRunner

import slackwater as sw
from slackwater.connectors.files.parquet_footers import ParquetFooters
from slackwater.connectors.files.source import FilesSource
from slackwater.errors import EpochError
from slackwater.spark import first_rows_check
from slackwater.spark.engine import SparkEngine
from slackwater.spark.tuning import source_statistics
from slackwater.state.files.store import FilesStore

pytestmark = pytest.mark.spark

BEGIN_US = 1_709_251_200_000_000  # 2024-03-01


Seconds = list[float | None]
# in the second epoch the SQL filters the newest rows, and two rows are bad: one has no time, one is far in the future
FAR: list[Seconds] = [[0, 1, 2], [10, None, 12, 900, 1e10], [20, 21, 60]]
NEAR: list[Seconds] = [[0, 1, 2], [10, None, 12, 900], [20, 21, 60]]
OUTSIDE: list[Seconds] = [[0, 1, 2], [10, 4e12, 12], [20, 21, None], [30]]


def write_parquet_source(
    runner: SparkPipelineRunner, epochs: Sequence[Seconds], kind: Any = None, declared: str = "TIMESTAMP"
) -> sw.Source:
    """Write columnar files, one epoch each. `kind` is the type of the time column. Numbers are microseconds."""
    for n, seconds in enumerate(epochs):
        micros = [None if s is None else BEGIN_US + round(s * 1e6) for s in seconds]
        users = ["left" if s == 900 else "a" for s in seconds]
        numbers = pl.Series(micros, dtype=pl.Int64)
        times = numbers.cast(pl.Datetime("us", "UTC")) if kind is None else numbers
        if isinstance(kind, pl.Datetime):
            times = numbers.cast(pl.Datetime("us")).cast(kind)
        path = runner.home / "in" / f"{n}.parquet"
        path.parent.mkdir(exist_ok=True)
        pl.DataFrame({"user": users, "i": pl.Series(range(len(users)), dtype=pl.Int32), "ts": times}).write_parquet(
            path
        )
        os.utime(path, (1_600_000_000 + n, 1_600_000_000 + n))
    return sw.Source(
        name="events",
        connection=sw.FilesConnection(),
        query=str(runner.home / "in" / "*.parquet"),
        format="parquet",
        schema=f"user STRING, i INT, ts {declared}",
        max_files_per_trigger=1,
    )


@dataclass
class StatisticsRecorder:
    """Runs the same input in different ways, and records how the epochs collected their statistics."""

    runner: SparkPipelineRunner
    patch: pytest.MonkeyPatch
    seen: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.patch.setattr(source_statistics, "_collect", self.record_calls("job", source_statistics._collect))
        combined_stats = ParquetFooters._combined_stats
        self.patch.setattr(ParquetFooters, "_combined_stats", self.record_calls("footers", combined_stats))

    def record_calls(self, way: str, done: Any) -> Any:
        def do(*arguments: Any) -> Any:
            returned = done(*arguments)
            self.seen.append(way if returned is not None else f"no {way}")
            return returned

        return do

    def run_with_statistics(self, source: sw.Source, many: int, footers_tell: bool, **window: Any) -> tuple[Any, ...]:
        """Return the results, the counters of each epoch, and the clock.

        An epoch with at least `many` rows uses a separate job.
        """
        self.seen.clear()
        self.patch.setattr(source_statistics, "MANY_ROWS", many)
        with self.patch.context() as patch:
            if not footers_tell:
                patch.setattr(FilesSource, "_footers_are_complete", lambda *_: False)
            return self._run_pipeline(source, build_simple_session_window(**({"lateness_ms": "1m"} | window)))

    def _run_pipeline(self, source: sw.Source, window: sw.Window) -> tuple[Any, ...]:
        for folder in ("state", "out"):
            shutil.rmtree(self.runner.home / folder, ignore_errors=True)
        self.runner.statuses.clear()
        sql = "SELECT user, i, _event_ts FROM source WHERE user <> 'left'"
        frame = self.runner.run_pipeline(source=source, transform_sql=sql, window=window, on_error="drop")
        with FilesStore(self.runner.home / "state", "test").peek() as snapshot:
            assert snapshot is not None
            clock = snapshot.commit.clocks["events"]
        return frame.rows(), [s.counters for s in self.runner.statuses], clock


@pytest.fixture
def statistics_recorder(runner: SparkPipelineRunner, monkeypatch: pytest.MonkeyPatch) -> StatisticsRecorder:
    return StatisticsRecorder(runner, monkeypatch)


OBSERVED = source_statistics.MANY_ROWS


def test_statistics_of_columnar_files_are_collected_in_a_separate_job(statistics_recorder: StatisticsRecorder) -> None:
    source = write_parquet_source(statistics_recorder.runner, FAR)
    observed = statistics_recorder.run_with_statistics(source, OBSERVED, False)
    assert not statistics_recorder.seen
    assert statistics_recorder.run_with_statistics(source, 1, False) == observed
    assert statistics_recorder.seen == ["job"] * 3, (
        "none of the first epoch, whose rows are not known yet; two of the second, as a time lay too far ahead"
    )
    assert observed[2].newest_at == str(statistics_recorder.runner.home / "in" / "1.parquet")
    assert observed[1][-1].rows_bad == 2


@exhaustive(beside="test_source_statistics.py::test_footer_statistics_equal_observed_statistics_for_every_time_type")
def test_parquet_footers_provide_statistics_without_a_job(statistics_recorder: StatisticsRecorder) -> None:
    """A time too far ahead needs more statistics than footers have."""
    source = write_parquet_source(statistics_recorder.runner, FAR)
    observed = statistics_recorder.run_with_statistics(source, OBSERVED, False)
    assert statistics_recorder.run_with_statistics(source, OBSERVED, True) == observed
    assert statistics_recorder.seen == ["footers"] * 3
    statistics_recorder.patch.setattr(first_rows_check, "ROWS", 1)
    assert statistics_recorder.run_with_statistics(source, OBSERVED, True) == observed
    assert statistics_recorder.seen == ["footers"] * 3


@pytest.mark.parametrize(
    ("kind", "declared", "unit"),
    [
        (pl.Datetime("us", "UTC"), "TIMESTAMP", None),
        (pl.Datetime("ms"), "TIMESTAMP", None),
        (pl.Int64, "BIGINT", "us"),
    ],
    ids=["times", "times in milliseconds without a zone", "numbers"],
)
def test_footer_statistics_equal_observed_statistics_for_every_time_type(
    statistics_recorder: StatisticsRecorder, kind: Any, declared: str, unit: str | None
) -> None:
    source = write_parquet_source(statistics_recorder.runner, NEAR, kind, declared)
    statistics_recorder.patch.setattr(first_rows_check, "ROWS", 1)
    more = {} if unit is None else {"event_time_unit": unit}
    observed = statistics_recorder.run_with_statistics(source, OBSERVED, False, **more)
    assert observed[1][-1].rows_bad == 1
    assert statistics_recorder.run_with_statistics(source, OBSERVED, True, **more) == observed
    assert statistics_recorder.seen == ["footers"] * 3


def test_windows_closed_by_footer_statistics_are_emitted_without_a_separate_emit_call(
    statistics_recorder: StatisticsRecorder,
) -> None:
    """seconds 0 1 2 | 10 | 100 | 200      gap of 20 s: a session closes in the third epoch, and one in the fourth"""
    source = write_parquet_source(statistics_recorder.runner, [[0, 1, 2], [10], [100], [200]])
    statistics_recorder.patch.setattr(first_rows_check, "ROWS", 1)
    statistics_recorder.patch.setattr(SparkEngine, "emit", statistics_recorder.record_calls("emit", SparkEngine.emit))
    observed = statistics_recorder.run_with_statistics(source, OBSERVED, False, lateness_ms=0)
    assert statistics_recorder.seen == ["emit"] * 3, "the last is the flush"
    assert statistics_recorder.run_with_statistics(source, OBSERVED, True, lateness_ms=0) == observed
    assert statistics_recorder.seen == ["footers"] * 4 + ["emit"]


def test_statistics_missing_in_footers_are_collected_from_the_rows(statistics_recorder: StatisticsRecorder) -> None:
    """A time outside the valid years makes a row bad. Only the rows show the newest of the other times."""
    source = write_parquet_source(statistics_recorder.runner, OUTSIDE, pl.Int64, "BIGINT")
    statistics_recorder.patch.setattr(first_rows_check, "ROWS", 1)
    observed = statistics_recorder.run_with_statistics(source, OBSERVED, False, event_time_unit="us")
    assert observed[1][-1].rows_bad == 2
    assert statistics_recorder.run_with_statistics(source, OBSERVED, True, event_time_unit="us") == observed
    assert statistics_recorder.seen == ["footers"] * 4


@pytest.mark.parametrize("option", ["ignoreCorruptFiles", "ignoreMissingFiles"])
def test_footers_are_not_read_if_spark_may_skip_files(statistics_recorder: StatisticsRecorder, option: str) -> None:
    source = write_parquet_source(statistics_recorder.runner, NEAR)
    statistics_recorder.patch.setattr(first_rows_check, "ROWS", 1)
    statistics_recorder.run_with_statistics(source.model_copy(update={"options": {option: "true"}}), OBSERVED, True)
    assert not statistics_recorder.seen


def test_source_with_decoded_rows_is_not_columnar(runner: SparkPipelineRunner) -> None:
    """A separate job would parse text twice. The results of a stage are already in memory."""
    raw = runner.spark.createDataFrame([(1, None)], "__mark BIGINT, _corrupt_record STRING")
    assert not source_statistics.is_columnar_source(raw)
    assert not source_statistics.is_columnar_source(raw.select("_corrupt_record"))
    assert source_statistics.is_columnar_source(raw.select("__mark"))


def test_failed_statistics_job_is_reported_with_a_one_line_error(
    runner: SparkPipelineRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> Any:
        raise RuntimeError("An error occurred while calling o1.x\nCaused by: java.io.IOException: the file is gone")

    monkeypatch.setattr(source_statistics, "MANY_ROWS", 1)
    monkeypatch.setattr(source_statistics, "_collect", failing)
    with pytest.raises(
        EpochError, match='not committed: the rows of source "events" cannot be counted: IOException: the file is gone'
    ):
        runner.run_pipeline(
            source=write_parquet_source(runner, FAR), window=build_simple_session_window(), on_error="drop"
        )
