"""Statistics of a column from Parquet footers of several writers, and footers without usable statistics."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slackwater.connectors.files.parquet_footers import ParquetFooters
from slackwater.connectors.source import ColumnStats

BEGIN = dt.datetime(2024, 3, 1, tzinfo=dt.UTC)
BEGIN_US = 1_709_251_200_000_000


def times_after_begin(*seconds: int | None) -> list[dt.datetime | None]:
    return [None if s is None else BEGIN + dt.timedelta(seconds=s) for s in seconds]


def write_parquet_column(path: Path, column: pa.Array, **how: Any) -> Path:
    pq.write_table(pa.table({"v": range(len(column)), "ts": column}), path, **how)
    return path


US, MS = pa.timestamp("us", tz="UTC"), pa.timestamp("ms", tz="UTC")


@pytest.mark.parametrize(
    ("kind", "unit_us"),
    [(US, 1), (MS, 1000), (pa.timestamp("us"), 1), (pa.timestamp("ms"), 1000)],
    ids=["us", "ms", "us, no zone", "ms, no zone"],
)
def test_column_statistics_cover_all_files_row_groups_and_units(tmp_path: Path, kind: Any, unit_us: int) -> None:
    """
    a   20 | - | 30 | 25        b   - - | 20        four row groups, and two
    """
    bare = [None if t is None else t.replace(tzinfo=None) for t in times_after_begin(20, None, 30, 25)]
    a = write_parquet_column(tmp_path / "a", pa.array(bare).cast(kind), row_group_size=1)
    b = write_parquet_column(tmp_path / "b", pa.array([None, None, bare[0]]).cast(kind), row_group_size=2)
    begin = BEGIN_US // unit_us
    expected = ColumnStats(7, 3, unit_us, begin + 20_000_000 // unit_us, begin + 30_000_000 // unit_us, str(a))
    assert ParquetFooters([a, b]).column_stats("ts") == ParquetFooters([b, a]).column_stats("ts") == expected
    assert ParquetFooters([a, b]).column_stats("TS") == expected, "Spark does not tell names apart by their case"


@pytest.mark.parametrize("kind", [pa.int64(), pa.int32(), pa.int16()], ids=str)
def test_integer_columns_have_statistics_without_a_time_unit(tmp_path: Path, kind: Any) -> None:
    path = write_parquet_column(tmp_path / "a", pa.array([7, -3, None], kind))
    assert ParquetFooters([path]).column_stats("ts") == ColumnStats(3, 1, 0, -3, 7, str(path))


def test_files_written_by_polars_have_statistics(tmp_path: Path) -> None:
    path = tmp_path / "a"
    pl.DataFrame({"ts": times_after_begin(1, 9, None)}).write_parquet(path, row_group_size=2)
    assert ParquetFooters([path]).column_stats("ts") == ColumnStats(
        3, 1, 1, BEGIN_US + 1_000_000, BEGIN_US + 9_000_000, str(path)
    )


def test_files_without_rows_or_times_have_counts_but_no_range(tmp_path: Path) -> None:
    none, nulls = (
        write_parquet_column(tmp_path / "0", pa.array([], US)),
        write_parquet_column(tmp_path / "1", pa.array([None, None], US)),
    )
    some = write_parquet_column(tmp_path / "2", pa.array(times_after_begin(5)).cast(US))
    assert ParquetFooters([none]).column_stats("ts") == ColumnStats(0, 0, 1)
    assert ParquetFooters([none, nulls]).column_stats("ts") == ColumnStats(2, 2, 1)
    assert ParquetFooters([nulls, some, none]).column_stats("ts") == ColumnStats(
        3, 2, 1, BEGIN_US + 5_000_000, BEGIN_US + 5_000_000, str(some)
    )
    assert ParquetFooters([]).column_stats("ts") is None


@pytest.mark.parametrize(
    ("column", "how"),
    [
        (pa.array(times_after_begin(1)).cast(US), {"write_statistics": False}),
        (pa.array(times_after_begin(1)).cast(US), {"use_deprecated_int96_timestamps": True}),
        (pa.array(times_after_begin(1)).cast(pa.timestamp("ns", tz="UTC")), {"version": "2.6"}),
        (pa.array([BEGIN.date()]), {}),
        (pa.array([1], pa.uint64()), {}),
        (pa.array([1.5]), {}),
        (pa.array(["2024-03-01"]), {}),
        (pa.array([[1]]), {}),
        (pa.array([{"ts": 1}]), {}),
        (pa.array([dt.datetime(1899, 12, 31, tzinfo=dt.UTC)]).cast(US), {}),
    ],
    ids=[
        "no statistics",
        "int96",
        "ns",
        "a date",
        "unsigned",
        "a float",
        "text",
        "a list",
        "a struct",
        "by another calendar, it may be",
    ],
)
def test_columns_without_usable_footers_have_no_statistics(tmp_path: Path, column: Any, how: Any) -> None:
    path = write_parquet_column(tmp_path / "a", column, **how)
    good = write_parquet_column(tmp_path / "b", pa.array(times_after_begin(1)).cast(US))
    assert ParquetFooters([path]).column_stats("ts") is None
    assert ParquetFooters([good, path]).column_stats("ts") is None


def test_missing_or_ambiguous_columns_have_no_statistics(tmp_path: Path) -> None:
    path = tmp_path / "a"
    pq.write_table(pa.table({"ts": [1], "Ts": [2], "s": [{"x": 3}], "t.x": [4]}), path)
    assert [ParquetFooters([path]).column_stats(name) for name in ("ts", "x", "s.x", "t.x", "s", "gone")] == [None] * 6


def test_files_with_different_time_units_have_no_statistics(tmp_path: Path) -> None:
    a, b = (write_parquet_column(tmp_path / str(k), pa.array(times_after_begin(1)).cast(k)) for k in (US, MS))
    assert ParquetFooters([a, b]).column_stats("ts") is None


def test_unreadable_files_have_no_statistics(tmp_path: Path) -> None:
    good = write_parquet_column(tmp_path / "a", pa.array(times_after_begin(1)).cast(US))
    torn = tmp_path / "torn"
    torn.write_bytes(good.read_bytes()[:-20])
    (tmp_path / "empty").touch()
    for bad in (torn, tmp_path / "empty", tmp_path / "gone", tmp_path):
        assert ParquetFooters([good, bad]).column_stats("ts") is None


def test_footers_count_the_nulls_of_top_level_columns(tmp_path: Path) -> None:
    """Two files, with one and two NULLs. A list or an ambiguous name has no count."""
    for name, values in (("a", [1, None]), ("b", [None, None, 2])):
        columns = {"v": values, "W": ["x"] * len(values), "w": ["y"] * len(values), "list": [[1]] * len(values)}
        pq.write_table(pa.table(columns), tmp_path / name, row_group_size=1)
    footers = ParquetFooters([tmp_path / "a", tmp_path / "b"])
    assert [footers.count_nulls(name) for name in ("v", "V", "w", "list", "gone")] == [3, 3, None, None, None]
    pq.write_table(pa.table({"v": [1, None]}), tmp_path / "c", write_statistics=False)
    assert ParquetFooters([tmp_path / "a", tmp_path / "c"]).count_nulls("v") is None
    assert ParquetFooters([tmp_path / "gone"]).count_nulls("v") is None
