"""Columns of a JSON Schema: column types, types that become text, and references."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slackwater.connectors.payloads.json_payload import schema_columns

A_REF = {"$ref": "#/$defs/a"}


def parse_single_column_type(schema: Any, **others: Any) -> str:
    """Return the type of the single column."""
    columns = schema_columns(
        json.dumps({"properties": {"c": schema}, "$defs": DEFS}), {n: json.dumps(s) for n, s in others.items()}
    )
    return columns.removeprefix("`c` ")


DEFS = {
    "a": {"type": "integer"},
    "tree": {"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"}, "n": A_REF}},
    "of/tilde~": {"type": "boolean"},
    "again": {"$ref": "#/$defs/again"},
}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string"}, "STRING"),
        ({"type": "string", "format": "date-time"}, "TIMESTAMP"),
        ({"type": "string", "format": "date"}, "DATE"),
        ({"type": "string", "format": "uuid"}, "STRING"),
        ({"type": "string", "contentEncoding": "base64"}, "BINARY"),
        ({"type": "integer"}, "BIGINT"),
        ({"type": "number"}, "DOUBLE"),
        ({"type": "boolean"}, "BOOLEAN"),
        ({"type": ["null", "integer"]}, "BIGINT"),
        ({"type": ["string", "integer"]}, "STRING"),
        ({"oneOf": [{"type": "null"}, {"type": "number"}]}, "DOUBLE"),
        ({"anyOf": [{"type": "string"}, {"type": "number"}]}, "STRING"),
        ({"enum": ["A", "B"]}, "STRING"),
        (True, "STRING"),
        ({}, "STRING"),
        ({"type": "array", "items": {"type": "integer"}}, "ARRAY<BIGINT>"),
        ({"type": "array"}, "STRING"),
        ({"type": "array", "items": [{"type": "integer"}]}, "STRING"),
        ({"type": "object"}, "STRING"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "MAP<STRING, DOUBLE>"),
        ({"type": "object", "additionalProperties": False}, "STRING"),
        ({"properties": {"x": {"type": "integer"}, "y z": A_REF}}, "STRUCT<`x`: BIGINT, `y z`: BIGINT>"),
        ({"allOf": [{"properties": {"x": A_REF}}, {"properties": {"y": A_REF}}]}, "STRUCT<`x`: BIGINT, `y`: BIGINT>"),
        (A_REF, "BIGINT"),
        ({"$ref": "#/$defs/of~1tilde~0"}, "BOOLEAN"),
        ({"$ref": "#/$defs/tree"}, "STRUCT<`left`: STRING, `n`: BIGINT>"),  # a recursive type becomes text
        ({"$ref": "#/$defs/again"}, "STRING"),
    ],
)  # fmt: skip
def test_json_schema_type_becomes_a_column_type(schema: Any, expected: str) -> None:
    assert parse_single_column_type(schema) == expected


def test_references_into_other_subjects_are_resolved() -> None:
    other = {"definitions": {"money": {"properties": {"cents": {"$ref": "#/definitions/n"}}}, "n": {"type": "integer"}}}
    assert (
        parse_single_column_type({"$ref": "money.json#/definitions/money"}, **{"money.json": other})
        == "STRUCT<`cents`: BIGINT>"
    )
    assert parse_single_column_type({"$ref": "whole.json"}, **{"whole.json": {"type": "number"}}) == "DOUBLE"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"type": "string"}', "it does not describe an object with properties, which become columns"),
        ("true", "it does not describe an object with properties, which become columns"),
        ('{"properties": {"a": {"$ref": "#/nowhere"}}}', '"#/nowhere" is not defined in it or in its references'),
        (
            '{"properties": {"a": {"$ref": "other.json"}}}',
            '"other.json" is not defined in it or in its references',
        ),
    ],
)
def test_schema_without_columns_or_with_unknown_references_is_refused(text: str, expected: str) -> None:
    with pytest.raises(ValueError) as raised:
        schema_columns(text, {})
    assert str(raised.value) == expected
