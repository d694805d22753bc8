"""Records of a commit: every value has a declared type, and a mismatch is reported with its path."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import pytest
from tests.fixtures.states.write_state_fixtures import HERE, KINDS
from tests.laws.fuzzers.fuzz_state_records import (
    LIES,
    MISSING,
    NodePath,
    last_manifest_path,
    node_paths,
    node_value,
    replace_value,
)
from tests.support.case_selection import select_cases

from slackwater.core.schema import parse_field
from slackwater.engine.observer import Counters
from slackwater.errors import StateError
from slackwater.state.commit import FORMAT, Commit, parse_commit
from slackwater.state.commit_record_fields import MAX_DEPTH, CounterTable, RecordError

STATES = [(number, kind) for number in range(1, FORMAT + 1) for kind in KINDS]


def read_commit_record(number: int, kind: str) -> dict[str, Any]:
    record = json.loads(last_manifest_path(HERE / f"format-{number}" / "files" / kind).read_text().splitlines()[0])
    assert isinstance(record, dict)
    return record


def parse_record(record: Mapping[str, Any]) -> Commit:
    return parse_commit(record, record["format"], "a state")


def node_accepts_text(path: NodePath) -> bool:
    """Return whether the path takes a text instead of a number, as settings and column gaps do."""
    return "described" in path or path[-1] == "gap_ms"


@pytest.mark.parametrize(("number", "kind"), select_cases(STATES[::-1], keep=2))
def test_each_commit_record_value_is_accepted_only_with_its_declared_type(number: int, kind: str) -> None:
    """Put a wrong value at each node of a record. The record is parsed or refused in one line with a path."""
    record, refused = read_commit_record(number, kind), 0
    for path in node_paths(record):
        value = node_value(record, path)
        for lie in LIES:
            changed = replace_value(record, path, lie)
            try:
                parse_commit(changed, number, "a state")
            except (RecordError, StateError) as error:
                refused += 1
                assert len(str(error).splitlines()) == 1
                assert len(str(error)) < 600
                continue
            if number < FORMAT:
                continue  # old formats lack some fields
            if type(value) is int and not node_accepts_text(path):
                assert type(lie) is int or lie is None, f"{path} is {value} and takes {lie!r}"
            if type(value) is bool:
                assert type(lie) is bool or lie is None, f"{path} is {value} and takes {lie!r}"
    assert refused > 1000


@pytest.mark.parametrize(("number", "kind"), STATES)
def test_commit_record_without_a_value_is_parsed_or_refused_with_a_one_line_error(number: int, kind: str) -> None:
    record = read_commit_record(number, kind)
    for path in node_paths(record):
        try:
            parse_commit(replace_value(record, path, MISSING), number, "a state")
        except (RecordError, StateError) as error:
            assert len(str(error).splitlines()) == 1


TODAY = read_commit_record(FORMAT, "chained")
REFUSALS: dict[str, tuple[NodePath, Any, str]] = {
    "a table where a number belongs": (
        ("stages", 0, "counters", "rows_used"),
        {"a": 1},
        "1 field does not fit (stages.0.counters.rows_used: found a table, expected a whole number)",
    ),
    "one side of a join": (
        ("stages", 0, "fingerprint", "columns"),
        [["user string"]],
        "1 field does not fit (stages.0.fingerprint.columns: found a list of 1, expected a list of at least 2)",
    ),
    "no type": (
        ("stages", 1, "fingerprint", "keys", 0),
        "user strnig",
        '1 field does not fit (stages.1.fingerprint.keys.0: found "user strnig", it is not the name and the type of a column)',
    ),
    "a counter of another version": (
        ("stages", 0, "counters", "evil"),
        1,
        "1 field does not fit (stages.0.counters.evil: found 1, expected no such field (this version does not know it))",
    ),
    "not a number": (
        ("stages", 0, "watermark_us"),
        float("nan"),
        "1 field does not fit (stages.0.watermark_us: found nan, expected a finite number)",
    ),
    "a number of 100 digits": (
        ("stages", 0, "described", "join", "time_window_ms"),
        10**100,
        "1 field does not fit (stages.0.described.join.time_window_ms: found a number with more than 64 bits)",
    ),
    "half a character": (
        ("pipeline",),
        "\ud800",
        "1 field does not fit (pipeline: found a text that is not valid Unicode)",
    ),
    "a name of two lines": (
        ("stages", 0, "described", "a\nb\u2028c"),
        float("inf"),
        "1 field does not fit (stages.0.described.a b c: found inf, expected a finite number)",
    ),
    "a watermark of 2^63": (
        ("stages", 0, "watermark_us"),
        2**63,
        f"1 field does not fit (stages.0.watermark_us: found {2**63}, expected a number of at most {2**62})",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refused_commit_record_error_names_the_path_and_the_expected_value(name: str) -> None:
    path, value, text = REFUSALS[name]
    with pytest.raises(RecordError) as raised:
        parse_record(replace_value(TODAY, path, value))
    assert str(raised.value) == text


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 500, 100_000])
def test_deeply_nested_commit_record_is_refused(depth: int) -> None:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    with pytest.raises(RecordError, match="nested"):
        parse_record({**TODAY, "sources": value})


def test_stored_counters_have_the_fields_of_the_counters_dataclass() -> None:
    assert set(CounterTable.__annotations__) == {field.name for field in dataclasses.fields(Counters)}


@pytest.mark.parametrize("text", ["k string", "a b int", "s struct<my field:int,b:array<string>>", "x decimal(38,0)"])
def test_valid_column_declaration_is_parsed(text: str) -> None:
    field = parse_field(text)
    assert f"{field.name} {field.type}" == text


@pytest.mark.parametrize(
    "text", ["", "k", " string", "k strnig", "x decimal(39,0)", f"x decimal({'9' * 5000},0)", "x " + "array<" * 9000, 5]
)
def test_invalid_column_declaration_is_refused(text: object) -> None:
    with pytest.raises(TypeError, match="not a column"):
        parse_field(text)
