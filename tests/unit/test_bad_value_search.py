"""Search for the value that makes a row bad, and for the line number of the row."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from slackwater.config.source import Source
from slackwater.connectors.bad_value_search import (
    Record,
    describe_event_time,
    describe_undecodable_row,
    find_lines_in_file,
)

SCHEMA = "user STRING, n BIGINT, x DOUBLE, ok BOOLEAN, ts TIMESTAMP, tags ARRAY<STRING>"


def source(form: str = "json", schema: str = SCHEMA, **options: str) -> Source:
    return Source(name="s", connection="c", query="in", format=form, schema=schema, options=options)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"user": "a", "ts": "soon"}, 'column "ts" holds "soon", expected TIMESTAMP'),
        ({"user": "a", "n": "many"}, 'column "n" holds "many", expected BIGINT'),
        ({"user": "a", "n": 1.5}, 'column "n" holds 1.5, expected BIGINT'),
        ({"x": "abc"}, 'column "x" holds "abc", expected DOUBLE'),
        ({"x": "NaN", "ok": 1}, 'column "ok" holds 1, expected BOOLEAN'),
        ({"tags": {"a": 1}}, 'column "tags" holds {"a": 1}, expected ARRAY<STRING>'),
        ({"user": "a", "n": None, "other": "x"}, ""),
        ({"ts": "x" * 10_000}, f'column "ts" holds "{"x" * 59}… (10,002 characters), expected TIMESTAMP'),
    ],
)
def test_undecodable_json_is_described(row: dict[str, Any], message: str) -> None:
    assert describe_undecodable_row(source(), json.dumps(row)) == message


@pytest.mark.parametrize(
    ("text", "message"), [("{broken", "not JSON"), ("[1]", "[1], expected a JSON object"), (None, "")]
)
def test_json_that_is_not_an_object_is_described(text: str | None, message: str) -> None:
    assert describe_undecodable_row(source(), text) == message


def test_column_that_the_reader_could_not_decode_is_reported_first() -> None:
    row = {"user": "a", "n": 9, "x": 3}
    assert (
        describe_undecodable_row(source(), json.dumps(row), {"user": "a", "x": 3.0})
        == 'column "n" holds 9, expected BIGINT'
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,1,2.5,true,2024-03-01T09:00:00Z,x", ""),
        ("a,one,2.5,true,2024-03-01T09:00:00Z,x", 'column "n" holds "one", expected BIGINT'),
        ('a,,,,"1, 2",', 'column "ts" holds "1, 2", expected TIMESTAMP'),
        ("a,1", "2 values, expected 6"),
        ("", "0 values, expected 6"),
    ],
)
def test_undecodable_csv_is_described(text: str, message: str) -> None:
    assert describe_undecodable_row(source("csv"), text) == message
    assert describe_undecodable_row(source("csv", sep=";"), text.replace(",", ";")) == message.replace(
        '"1, 2"', '"1; 2"'
    )


def test_undecodable_binary_formats_have_no_description() -> None:
    assert describe_undecodable_row(source("parquet"), "PAR1") == ""
    assert describe_undecodable_row(Source(name="s", connection="c", query="t", payload_format="avro"), "x") == ""


@pytest.mark.parametrize(
    ("column", "row", "message"),
    [
        ("ts", {"ts": "soon"}, 'column "ts" holds "soon"'),
        ("ts", {"a": 1}, 'column "ts" is missing or NULL'),
        ("CAST(a AS TIMESTAMP)", {"a": 1}, ""),
        ("_event_ts", {"a": 1}, ""),
        ("ts", None, ""),
    ],
)
def test_bad_event_time_of_a_record_is_described(column: str, row: dict[str, Any] | None, message: str) -> None:
    assert describe_event_time(column, row) == message


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_bad_csv_row_is_located_by_line_number(tmp_path: Path, name: str) -> None:
    text = "user,n,ts\nann,1,2024-03-01T09:00:00Z\n\nbob,two,x\nbob,two,x\ncid,,2024-03-01 10:00:00.5Z"
    file = tmp_path / name
    file.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    spec = source("csv", "user STRING, n BIGINT, ts TIMESTAMP", header="true")
    records = [
        Record("bob,two,x"),
        Record(row={"user": "ann", "n": 1, "ts": "2024-03-01T09:00:00.000Z"}),
        Record(row={"user": "cid", "ts": "2024-03-01T10:00:00.500Z"}),
        Record(row={"user": "cid", "ts": "2024-03-01T10:00:00.600Z"}),
        Record("absent"),
        Record(),
    ]
    assert find_lines_in_file(spec, str(file), records) == [4, 2, 6, None, None, None]


def test_record_rewritten_by_spark_is_matched_by_its_values(tmp_path: Path) -> None:
    """Spark rewrites a row with a bad time, without blanks and with other spellings of numbers and booleans."""
    file = tmp_path / "a.jsonl"
    file.write_text('{"user": "ann", "ts": "soon"}\n{"ts": "soon", "user": "bob", "more": 1}\n')
    spec = source(schema="user STRING, n BIGINT, ts TIMESTAMP")
    assert find_lines_in_file(spec, str(file), [Record('{"user":"bob","ts":"soon"}'), Record('{"user":"cid"}')]) == [
        2,
        None,
    ]
    file.write_text("ann,True,1.50,soon\nbob,False,2,soon\n")
    spec = source("csv", "user STRING, ok BOOLEAN, x DOUBLE, ts TIMESTAMP")
    assert find_lines_in_file(spec, str(file), [Record("ann,true,1.5,soon"), Record("ann,true,1.6,soon")]) == [1, None]


def test_bad_json_record_is_located_by_line_number(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"user": "ann", "x": 1}\r\n{broken\r\n{"x": 2.0, "user": "ann", "more": []}\r\n')
    spec = source(schema="user STRING, x DOUBLE")
    assert find_lines_in_file(spec, str(file), [Record("{broken"), Record(row={"user": "ann", "x": 2})]) == [2, 3]
    nested = source(schema="user STRING, x DOUBLE, s STRUCT<a: INT>")
    file.write_text('{"user": "ann", "s": {"a": 1}}\n')
    assert find_lines_in_file(nested, str(file), [Record(row={"user": "ann", "s": {"a": 1}})]) == [
        None
    ]  # rows with nested columns cannot be distinguished


@pytest.mark.parametrize(
    "spec",
    [source(multiLine="true"), source(encoding="utf-16"), source(lineSep=";"), source("parquet", "user STRING")],
)
def test_unsupported_missing_and_remote_files_are_not_searched(tmp_path: Path, spec: Source) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("{broken\n")
    assert find_lines_in_file(spec, str(file), [Record("{broken")]) == [None]
    assert find_lines_in_file(source(), str(tmp_path / "gone"), [Record("{broken")]) == [None]
    assert find_lines_in_file(source(), "s3://lake/a.jsonl", [Record("{broken")]) == [None]
