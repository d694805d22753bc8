"""Number of Spark jobs and JVM calls of a small epoch. Neither depends on the speed of the machine."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from benchmarks import fixed_epoch_cost
from tests.support.case_selection import exhaustive

pytestmark = pytest.mark.spark


@exhaustive(beside="test_spark_jobs_and_jvm_calls_per_epoch.py::test_epoch_takes_one_spark_job_and_few_jvm_calls")
def test_many_files_do_not_start_a_separate_listing_job(spark: Any, tmp_path: Path) -> None:
    """Spark lists more than 32 files in a separate job, unless it knows that they are local."""
    import slackwater as sw

    files = 40
    fixed_epoch_cost.write_json_event_files(tmp_path, 2 * files)
    with fixed_epoch_cost.count_jvm_calls() as calls:
        epochs = fixed_epoch_cost.EpochReadings(spark, calls)
        spec = fixed_epoch_cost.build_user_window_pipeline(tmp_path, "session", files)
        sw.run(spec, available_now=True, spark=spark, on_status=epochs)
    first, second = epochs.readings
    assert second["jobs"] - first["jobs"] == 1


def test_epoch_takes_one_spark_job_and_few_jvm_calls(spark: Any, tmp_path: Path) -> None:
    """For comparison, an epoch of sessions took one job and 239 calls when Spark planned the epochs."""
    import slackwater as sw

    fixed_epoch_cost.write_json_event_files(tmp_path, 12)
    with fixed_epoch_cost.count_jvm_calls() as calls:
        epochs = fixed_epoch_cost.EpochReadings(spark, calls)
        sw.run(
            fixed_epoch_cost.build_user_window_pipeline(tmp_path, "session"),
            available_now=True,
            spark=spark,
            on_status=epochs,
        )
    readings = epochs.readings[6:]  # the first epochs inspect the first rows and fill caches
    assert len(readings) == 6
    between = [(b["jobs"] - a["jobs"], b["calls"] - a["calls"]) for a, b in pairwise(readings)]
    assert {jobs for jobs, _ in between} == {1}
    newer = tuple(map(int, spark.version.split(".")[:2])) > (
        4,
        0,
    )  # PySpark 4.0 looks up each name in Java before its use
    assert max(count for _, count in between) <= (100 if newer else 180)
