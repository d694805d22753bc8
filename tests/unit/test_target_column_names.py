"""Unusual column names in every target without a server: rows are read back under the same names."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from unittest.mock import patch

import polars as pl
import pytest
from deltalake import DeltaTable
from tests.support.iceberg_tables import sql_catalog_table

from slackwater.connectors.console.connector import ConsoleTarget
from slackwater.connectors.delta.target import DeltaTarget
from slackwater.connectors.files.target import FilesTarget
from slackwater.connectors.kafka.message_encoding import KafkaMessageEncoder
from slackwater.connectors.target import TargetTable
from slackwater.core.row_format import value_to_json
from slackwater.core.schema import Field

HOSTILE = (
    "token", "select", "CamelCase", "rate%", "%(x)s", 'a"b', "a'b", "a'); DROP TABLE x; --", "a\\b", "ä€\U0001f600", "a.b", "$1", "?",
    "x" * 300, "__gone", "s", "t", "a`b", "\x01\x1b[2J", "-", "a:b", "#",
)  # fmt: skip
SPACED = ("a b", "a;b", "a,b", "a\nb", "{x}", "a=b", "\t", " ")  # not allowed by Delta


def table_with_odd_column(odd: str) -> tuple[TargetTable, pl.DataFrame]:
    fields = (Field(odd, "string"), Field("n", "bigint"))
    return TargetTable("p", fields, (odd,), "s"), pl.DataFrame({odd: ["u", None, 'v"%s'], "n": [1, 2, 3]})


@pytest.mark.parametrize("odd", [*HOSTILE, *SPACED])
def test_files_and_kafka_messages_preserve_unusual_column_names(
    odd: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, rows = table_with_odd_column(odd)
    for form in ("parquet", "csv", "json"):
        FilesTarget(tmp_path, form, table).publish({"parquet": 0, "csv": 1, "json": 2}[form], rows)
    assert pl.read_parquet(tmp_path / "p-000000000.parquet").equals(rows)
    with (tmp_path / "p-000000001.csv").open(newline="") as file:
        assert next(csv.reader(file)) == rows.columns
    assert pl.read_ndjson(tmp_path / "p-000000002.jsonl").equals(rows)
    ConsoleTarget().publish(0, rows)
    assert "epoch 0: 3 rows" in capsys.readouterr().out
    messages = list(KafkaMessageEncoder(table).messages(rows))
    assert [json.loads(value or b"") for _, value, _ in messages] == rows.to_dicts()
    assert [json.loads(key or b"") for key, _, _ in messages] == rows.select(odd).to_dicts()
    with patch("slackwater.connectors.kafka.message_encoding._ROWS_AT_ONCE", 2):
        assert list(KafkaMessageEncoder(table).messages(rows)) == messages
    tombstones = list(KafkaMessageEncoder(table).tombstones(rows.select(odd)))
    assert [k for k, _, _ in tombstones] == [k for k, _, _ in messages]


@pytest.mark.parametrize("odd", HOSTILE)
def test_delta_target_preserves_unusual_column_names(odd: str, tmp_path: Path) -> None:
    table, rows = table_with_odd_column(odd)
    target = DeltaTarget(str(tmp_path / "d"), "merge", table)
    target.open()
    target.publish(0, rows)
    target.publish(1, rows.with_columns(n=pl.col("n") + 10)[:2], rows.select(odd)[2:])
    stored = pl.from_arrow(DeltaTable(str(tmp_path / "d")).to_pyarrow_table())
    assert isinstance(stored, pl.DataFrame)
    assert stored.sort("n").rows() == [("u", 11), (None, 12)]


@pytest.mark.parametrize("odd", [*HOSTILE, *SPACED])
def test_iceberg_target_preserves_unusual_column_names(odd: str, tmp_path: Path) -> None:
    table, rows = table_with_odd_column(odd)
    lake = sql_catalog_table(tmp_path)
    target = lake.open_target(table)
    target.publish(0, rows)
    target.publish(1, rows.with_columns(n=pl.col("n") + 10)[:2], rows.select(odd)[2:])
    assert lake.read_rows().sort("n").rows() == [("u", 11), (None, 12)]


@pytest.mark.parametrize("odd", [*HOSTILE, *SPACED])
def test_json_preserves_unusual_struct_field_names(odd: str) -> None:
    rows = pl.DataFrame({"v": [{odd: 1}, {odd: None}]}, schema={"v": pl.Struct({odd: pl.Int64})})
    text = rows.select(value_to_json(pl.col("v"), rows.schema["v"]).alias("v"))["v"].to_list()
    assert [json.loads(t) for t in text] == [{odd: 1}, {odd: None}]
