"""Delta and Iceberg sources on Spark: values are unchanged and each row is read once despite crashes and compaction."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.support.case_selection import exhaustive, select_cases
from tests.support.delta_and_iceberg_source_tables import COLUMNS, FORMATS, DeltaSourceTable, build_numbered_row
from tests.support.simulated_driver_crashes import CrashAtSteps, CrashError
from tests.support.spark_pipeline_runner import SparkPipelineRunner

import slackwater as sw
from slackwater.engine import kill_points
from slackwater.errors import SlackwaterError

pytestmark = pytest.mark.spark

DAYS = ["a b", "ä/c%+", None, "x:y=z"]
WINDOW = sw.Window(
    kind="tumbling",
    duration_ms="4s",
    event_time_column="at",
    lateness_ms="8s",
    group_by=["day", "user"],
    max_groups_per_window=100,
    aggregations=[
        sw.Aggregation(agg="count", as_="n"),
        sw.Aggregation(agg="sum", column="x", as_="total"),
        sw.Aggregation(agg="sum", column="price", as_="paid"),
        sw.Aggregation(agg="min", column="seen", as_="first"),
        sw.Aggregation(agg="max", column="tag", as_="tag"),
    ],
)
SQL = "SELECT day, user, x, price, seen, tags[0] AS tag, _event_ts FROM source"


@pytest.fixture(params=select_cases(FORMATS))
def source_table(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return FORMATS[request.param](tmp_path)


def numbered_rows(first: int, count: int) -> list[dict[str, Any]]:
    return [build_numbered_row(n, DAYS[n % 4]) for n in range(first, first + count)]


def compute_windows(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Compute the windows of these rows by a loop."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for r in rows:
        start = r["at"].replace(microsecond=0) - dt.timedelta(seconds=r["at"].second % 4)
        groups.setdefault((start.replace(tzinfo=None), r["day"], r["user"]), []).append(r)
    return sorted(
        (
            (
                *key,
                len(some),
                sum(r["x"] for r in some if r["x"] is not None) if any(r["x"] is not None for r in some) else None,
                round(sum(r["price"] for r in some), 2),
                min(r["seen"] for r in some),
                max(r["tags"][0] for r in some),
            )
            for key, some in groups.items()
        ),
        key=str,
    )


def read_result_windows(results: pl.DataFrame) -> list[tuple[Any, ...]]:
    columns = ["window_start", "day", "user", "n", "total", "paid", "first", "tag"]
    times = [pl.col(c).dt.replace_time_zone(None) for c in ("window_start", "first")]
    frame = results.with_columns(*times, pl.col("paid").cast(pl.Float64)).select(columns)
    return sorted(((*r[:5], round(r[5], 2), *r[6:]) for r in frame.rows()), key=str)


@exhaustive(beside="test_kill_matrix_sample.py::test_run_killed_at_named_steps_loses_and_duplicates_no_row")
def test_table_rows_are_read_once_with_all_values_despite_crashes(
    source_table: Any, runner: SparkPipelineRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows have NULLs, partitions, times with and without a zone, decimals and lists. The table grows after crashes."""
    dying = CrashAtSteps(
        "read.after", "ingest.after", "commit.before", "commit.after", "write.after", "note.after", "checkpoint.before"
    )
    count = len(dying.left)
    monkeypatch.setattr(kill_points, "fault_injector_from_environment", lambda: dying)
    appended = numbered_rows(0, 12)
    source_table.append_rows(appended[:5])
    source_table.append_rows(appended[5:])
    settings: dict[str, Any] = {"window": WINDOW, "transform_sql": SQL, "flush": False}
    for n in range(count):
        with pytest.raises((CrashError, SlackwaterError)):
            runner.run_pipeline(source=source_table.source(max_files_per_trigger=2), **settings)
        assert dying.crashes == n + 1, "that, and nothing else"
        more = numbered_rows(len(appended), 3)
        source_table.append_rows(more)
        appended += more
        if n == 3:
            source_table.compact_files()
    runner.run_pipeline(source=source_table.source(), **settings | {"flush": True})
    assert read_result_windows(runner.read_output()) == compute_windows(appended)
    assert runner.statuses[-1].counters.rows_in == len(appended)
    assert runner.statuses[-1].counters.rows_late == 0


def test_result_table_is_the_source_of_another_pipeline(tmp_path: Path, runner: SparkPipelineRunner) -> None:
    """Two pipelines are connected by a table: the second reads the windows that the first one writes."""
    table = DeltaSourceTable(tmp_path)
    table.append_rows(numbered_rows(0, 8))
    lake = sw.DeltaConnection()
    first = {"name": "first", "target": lake, "target_path": str(tmp_path / "results")}
    runner.run_pipeline(source=table.source(), window=WINDOW, transform_sql=SQL, **first)
    per_day = sw.Window(
        kind="tumbling",
        duration_ms="1d",
        event_time_column="window_start",
        group_by=["day"],
        max_groups_per_window=100,
        aggregations=[
            sw.Aggregation(agg="sum", column="n", as_="rows"),
            sw.Aggregation(agg="sum", column="paid", as_="paid"),
        ],
    )
    results = sw.Source(name="windows", connection=lake, query=str(tmp_path / "results"))
    frame = runner.run_pipeline(
        source=results, window=per_day, transform_sql="SELECT day, n, paid, _event_ts FROM source"
    )
    assert sorted(frame.select("day", "rows").rows(), key=str) == sorted([(d, 2) for d in DAYS], key=str)


def test_renamed_and_added_iceberg_columns_are_read(tmp_path: Path, runner: SparkPipelineRunner) -> None:
    """An Iceberg table has files that were written under another column name, and files that lack a column."""
    import pyarrow as pa

    table = FORMATS["iceberg"](tmp_path)
    table.append_rows(numbered_rows(0, 4))
    with table.table.update_schema() as change:
        change.rename_column("x", "amount")
    table.add_column("weight")
    renamed = pa.schema(
        [f.with_name("amount") if f.name == "x" else f for f in COLUMNS] + [pa.field("weight", pa.int64())]
    )
    table.append_rows(
        [{**{"amount" if k == "x" else k: v for k, v in r.items()}, "weight": 5} for r in numbered_rows(4, 4)], renamed
    )
    window = WINDOW.model_copy(
        update={
            "group_by": (),
            "aggregations": (
                sw.Aggregation(agg="sum", column="amount", as_="total"),
                sw.Aggregation(agg="sum", column="weight", as_="weight"),
            ),
        }
    )
    frame = runner.run_pipeline(
        source=table.source(), window=window, transform_sql="SELECT amount, weight, _event_ts FROM source"
    )
    assert frame["total"].sum() == sum(r["x"] for r in numbered_rows(0, 8) if r["x"] is not None)
    assert frame["weight"].sum() == 20


def test_missing_data_file_is_reported_with_a_one_line_error(
    source_table: Any, runner: SparkPipelineRunner, tmp_path: Path
) -> None:
    source_table.append_rows(numbered_rows(0, 3))
    for path in tmp_path.rglob("*.parquet"):
        path.unlink()
    with pytest.raises(
        SlackwaterError, match=r'source "events": .* one of its files is gone .*this epoch was not committed'
    ) as raised:
        runner.run_pipeline(source=source_table.source(), window=WINDOW, transform_sql=SQL)
    assert "\n" not in str(raised.value)
