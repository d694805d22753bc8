"""Which columns of Parquet files workers may read instead of Spark, and in which tables they read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slackwater.connectors.files import parquet_rows
from slackwater.connectors.files.parquet_footers import FileVersion, ParquetFooters
from slackwater.connectors.files.parquet_rows import ParquetRows, read_tables
from slackwater.core.schema import Field
from slackwater.errors import NeedsSparkError

TIME = Field("ts", "timestamp")
US = pa.timestamp("us", tz="UTC")


def write_columns(path: Path, columns: dict[str, pa.Array], **how: Any) -> ParquetRows:
    pq.write_table(pa.table({"ts": pa.array([0, 1], pa.int64()).cast(US), **columns}), path, **how)
    return ParquetRows(ParquetFooters([path]))


@pytest.mark.parametrize(
    ("declared", "stored", "is_equal"),
    [
        ("string", pa.string(), True),
        ("string", pa.large_string(), True),
        ("string", pa.binary(), False),
        ("tinyint", pa.int8(), True),
        ("smallint", pa.int16(), True),
        ("smallint", pa.int32(), False),
        ("int", pa.int32(), True),
        ("int", pa.uint32(), False),
        ("bigint", pa.int64(), True),
        ("bigint", pa.int32(), False),
        ("int", pa.int64(), False),
        ("double", pa.float64(), True),
        ("double", pa.float32(), False),
        ("float", pa.float32(), True),
        ("boolean", pa.bool_(), True),
        ("decimal(9,2)", pa.decimal128(9, 2), True),
        ("decimal(9,2)", pa.decimal128(9, 3), False),
        ("decimal(10,2)", pa.decimal128(9, 2), False),
        ("date", pa.date32(), False),
        ("timestamp", US, False),
    ],
    ids=lambda value: str(value).replace("/", "-"),
)
def test_workers_read_only_columns_with_the_declared_type(
    tmp_path: Path, declared: str, stored: pa.DataType, is_equal: bool
) -> None:
    """Times other than the event time may be in another calendar, which the footers would have to rule out."""
    rows = write_columns(tmp_path / "a", {"v": pa.nulls(2, stored)})
    assert rows.reads_like_spark([Field("v", declared)], TIME) == is_equal


@pytest.mark.parametrize(
    ("declared", "stored", "is_time"),
    [
        ("timestamp", US, True),
        ("timestamp", pa.timestamp("ms", tz="UTC"), True),
        ("timestamp", pa.timestamp("us"), False),
        ("timestamp", pa.int64(), False),
        ("bigint", pa.int64(), True),
        ("bigint", pa.int32(), False),
        ("int", pa.int32(), True),
        ("bigint", US, False),
        ("string", pa.string(), False),
    ],
    ids=str,
)
def test_event_times_are_timestamps_or_integers(
    tmp_path: Path, declared: str, stored: pa.DataType, is_time: bool
) -> None:
    rows = write_columns(tmp_path / "a", {"at": pa.nulls(2, stored)})
    assert rows.reads_like_spark([], Field("at", declared)) == is_time


def test_columns_with_ambiguous_names_are_left_to_spark(tmp_path: Path) -> None:
    value = pa.array([1, 2], pa.int32())
    assert not write_columns(tmp_path / "a", {"V": value}).reads_like_spark([Field("v", "int")], TIME)
    assert not write_columns(tmp_path / "b", {"v": value, "V": value}).reads_like_spark([Field("v", "int")], TIME)
    assert not write_columns(tmp_path / "c", {"s.v": value}).reads_like_spark([Field("s.v", "int")], TIME)
    assert not write_columns(tmp_path / "d", {"s": pa.array([{"v": 1}, None])}).reads_like_spark(
        [Field("v", "int")], TIME
    )
    assert not ParquetRows(ParquetFooters([tmp_path / "gone"])).reads_like_spark([], TIME)


def test_small_row_groups_and_files_are_combined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files a and b have five rows each, in batches of two. A table has at least four rows, except the last."""
    monkeypatch.setattr(parquet_rows, "_ROWS_PER_TABLE", 4)
    monkeypatch.setattr(parquet_rows, "_ROWS_PER_BATCH", 2)
    for name, kind in (("a", pa.string()), ("b", pa.large_string())):
        pq.write_table(pa.table({"v": pa.array(list("abcde"), kind), "w": range(5)}), tmp_path / name, row_group_size=2)
    pq.write_table(pa.table({"v": pa.array([], pa.string()), "w": pa.array([], pa.int64())}), tmp_path / "c")
    tables = list(read_tables([FileVersion.read(tmp_path / name) for name in "abc"], [Field("v", "string")]))
    assert [table["v"].to_pylist() for table in tables] == [list("abcd"), list("eabcd"), list("e")]
    assert all(table["v"].num_chunks == 1 and table.schema.types == [pa.large_string()] for table in tables)


def test_columns_of_another_type_and_too_many_bytes_need_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver has seen other files, or only the encoded size of a repeated string."""
    pq.write_table(pa.table({"v": ["x" * 1000] * 50}), tmp_path / "a")
    with pytest.raises(NeedsSparkError, match="v is string, expected int"):
        list(read_tables([FileVersion.read(tmp_path / "a")], [Field("v", "int")]))
    monkeypatch.setattr(parquet_rows, "_MOST_BYTES", 10_000)
    with pytest.raises(NeedsSparkError, match="MiB"):
        list(read_tables([FileVersion.read(tmp_path / "a")], [Field("v", "string")]))


@pytest.mark.parametrize("when", ["before", "during"])
def test_replaced_files_need_spark(tmp_path: Path, when: str) -> None:
    """Each task reads the files at another time. If it reads another version, rows can be lost or counted twice."""
    path = tmp_path / "a"
    pq.write_table(pa.table({"v": ["a", "b"]}), path)
    version = FileVersion.read(path)
    tables = read_tables([version._replace(modified_ns=1) if when == "before" else version], [Field("v", "string")])
    with pytest.raises(NeedsSparkError, match="a was replaced"):
        if when == "during":
            with pytest.MonkeyPatch.context() as patch:
                versions = iter([version, version._replace(size=1)])
                patch.setattr(FileVersion, "read", lambda *arguments: next(versions))
                list(tables)
        list(tables)


def test_files_without_nulls_and_with_nulls_are_combined(tmp_path: Path) -> None:
    required = pa.schema([pa.field("v", pa.string(), nullable=False)])
    pq.write_table(pa.table({"v": ["a"]}, required), tmp_path / "a")
    pq.write_table(pa.table({"v": ["b", None]}), tmp_path / "b")
    (table,) = read_tables([FileVersion.read(tmp_path / name) for name in "ab"], [Field("v", "string")])
    assert table["v"].to_pylist() == ["a", "b", None]


@pytest.mark.parametrize("special", ["a checksum file", "a colon", "a codec", "names that differ in case"])
def test_files_that_spark_rejects_are_left_to_spark(tmp_path: Path, special: str) -> None:
    path = tmp_path / ("a:b" if special == "a colon" else "a")
    columns = {"v": pa.array([1, 2], pa.int32())}
    if special == "names that differ in case":
        columns["V"] = pa.array([{"x": 1}, None])
    rows = write_columns(path, columns, compression="brotli" if special == "a codec" else "snappy")
    if special == "a checksum file":
        (tmp_path / ".a.crc").touch()
    assert not rows.reads_like_spark([Field("v", "int")], TIME)
