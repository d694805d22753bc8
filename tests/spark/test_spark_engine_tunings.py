"""Tunings of the Spark engine: each can be disabled, results do not depend on them, and PySpark supports them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.support.case_selection import exhaustive
from tests.support.sample_events_and_windows import SIMPLE, build_event_rows, build_simple_session_window
from tests.support.spark_pipeline_runner import SparkPipelineRunner

from slackwater.errors import StartError
from slackwater.spark.tuning import shuffle_tuning, source_statistics
from slackwater.spark.tuning.expression_cache import ExpressionCache
from slackwater.tuning_switches import TUNINGS, VARIABLE, is_enabled

README = Path(__file__).parents[2] / "benchmarks" / "README.md"


def run_without_tunings(runner: SparkPipelineRunner, monkeypatch: pytest.MonkeyPatch, tunings: str) -> Any:
    import shutil

    monkeypatch.setenv(VARIABLE, tunings)
    for folder in ("state", "out"):
        shutil.rmtree(runner.home / folder, ignore_errors=True)
    return runner.run_pipeline(
        source=runner.files_source(SIMPLE, max_files_per_trigger=1), window=build_simple_session_window()
    ).rows()


@exhaustive(beside="test_disabled_tunings.py::test_environment_variable_disables_one_tuning_and_no_other")
def test_results_do_not_depend_on_a_tuning(runner: SparkPipelineRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run three epochs with all tunings, with none, and with each tuning disabled."""
    monkeypatch.setattr(shuffle_tuning, "MANY_ROWS", 1)
    monkeypatch.setattr(source_statistics, "MANY_ROWS", 1)
    for n in range(3):
        runner.write_input_file(f"{n}.jsonl", build_event_rows(20 * n, 20 * n + 9, user="a" if n % 2 else "b"))
    expected = run_without_tunings(runner, monkeypatch, "")
    assert len(expected) >= 3
    for tunings in (",".join(TUNINGS), *TUNINGS):
        assert run_without_tunings(runner, monkeypatch, tunings) == expected, tunings


def test_unknown_tuning_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "preaggregation, expression_cash")
    with pytest.raises(StartError, match=r'^SLACKWATER_TUNINGS_OFF: found "expression_cash", expected one of '):
        is_enabled("statistics")


def test_expression_cache_works_with_private_attributes_of_pyspark(runner: SparkPipelineRunner) -> None:
    """The cache uses the private `_jseq`, `_jdf` and cached `schema`. Adapt or remove it if PySpark drops one."""
    frame = runner.spark.range(3)
    cache = ExpressionCache()
    selected = cache.select(frame, ["id + 1 AS n"], "ids")
    assert [row.n for row in selected.collect()] == [1, 2, 3]
    again = cache.select(runner.spark.range(2), ["id + 1 AS n"], "ids")
    assert again.schema is selected.schema, "the schema was not read from Spark again"


def test_benchmarks_readme_table_lists_every_tuning() -> None:
    section = README.read_text().partition("## Tunings of the engine")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == sorted(TUNINGS)


def test_few_tasks_use_small_memory_pages(spark: Any) -> None:
    """A task that aggregates or sorts allocates at least one page. The session runs with `local[2]`."""
    assert spark.sparkContext.getConf().get("spark.buffer.pageSize") == "16m"
