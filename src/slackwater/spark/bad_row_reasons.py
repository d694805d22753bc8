"""Describe bad rows for messages: the column and value at fault, the line in the file, and advice for two causes.

The two causes are a header that was read as a row, and a string that is longer than the reader accepts.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from typing import Any

from slackwater.config.pipeline import Pipeline
from slackwater.config.source import Source, parse_declared_columns
from slackwater.connectors import bad_value_search
from slackwater.core.column_names import CORRUPT
from slackwater.core.paths import file_uri_to_path

_MAX_SHOWN = 300  # characters of a row in a message
MAX_ANALYZED = 20_000  # characters of a row or a record
_MAX_SEARCHED_BYTES = 4_000_000  # the part of a file that an epoch searches for a line
_MAX_STRING_LENGTH = 20_000_000  # the JSON reader's default limit in characters; the option maxStringLen changes it


def decode_hint(source: Source, text: str | None, length: int | None) -> str:
    """Return advice about an undecodable record, to append to its description. Empty if the cause is unknown.

    Args:
        source: The source of the record.
        text: The text of the record, which may be truncated.
        length: The length of the complete record in characters.
    """
    options = {key.casefold(): value for key, value in source.options.items()}
    max_length = int(options["maxstringlen"]) if options.get("maxstringlen", "").isdecimal() else _MAX_STRING_LENGTH
    if source.format != "csv" and length is not None and length > max_length:
        return (
            f" (the record is {length / 1e6:,.0f} MB long, but the JSON reader accepts strings of at most "
            f"{max_length:,} characters; write shorter strings, or raise options"
            ' = { maxStringLen = "…" })'
        )
    if source.format == "csv" and text and options.get("header", "false").casefold() != "true":
        columns = [name.casefold() for name in parse_declared_columns(source.schema_ or "")]
        cells = next(csv.reader([text], delimiter=(options.get("sep") or options.get("delimiter") or ",")[:1]), [])
        if columns and {cell.strip().casefold() for cell in cells} & set(columns):
            return ' (it is the header of the file: set options = { header = "true" })'
    return ""


def describe_bad_rows(source: Source | None, column: str, samples: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a description of each bad row: the reason, the value at fault, the row as JSON, its location and advice.

    Args:
        source: The source of the rows. None if it is unknown.
        column: The event-time column.
        samples: The bad rows. Each has the reason (`__bad`), the row as JSON (`row`), the original record (`text`), the
            length of the complete record (`length`), the location (`place`), and whether the location is a file
            (`of_file`). `row` and `text` may be truncated.
    """
    parsed = [_row(bad) for bad in samples]
    names = [file_uri_to_path(bad["place"]) if bad["place"] else "" for bad in samples]
    searches = [
        (source, name if bad["of_file"] else None, _record(bad, row))
        for bad, row, name in zip(samples, parsed, names, strict=True)
    ]
    lines = bad_value_search.find_line_numbers(searches, _MAX_SEARCHED_BYTES)
    described = []
    for bad, row, name, line in zip(samples, parsed, names, lines, strict=True):
        cause, advice = _explain(source, column, bad, row)
        place = f" in {name}" + ("" if line is None else f", line {line:,}") if name else ""
        described.append(f"{bad['__bad']}: {f'{cause}: ' if cause else ''}{bad['row'][:_MAX_SHOWN]}{place}{advice}")
    return described


def _row(bad: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the decoded values of a bad row, without the original record. None if the JSON was truncated."""
    row = bad_value_search.parse_json_object(bad["row"])
    return None if row is None else {k: v for k, v in row.items() if k != CORRUPT}


def _text(bad: Mapping[str, Any]) -> str | None:
    """Return the complete text of a record that could not be decoded. None if the text is missing or truncated."""
    return bad["text"] if bad["length"] is not None and len(bad["text"] or "") == bad["length"] else None


def _record(bad: Mapping[str, Any], row: Mapping[str, Any] | None) -> bad_value_search.Record:
    return (
        bad_value_search.Record(text=_text(bad)) if bad["__bad"] == "undecodable" else bad_value_search.Record(row=row)
    )


def _explain(
    source: Source | None, column: str, bad: Mapping[str, Any], row: Mapping[str, Any] | None
) -> tuple[str, str]:
    """Return two texts, which may be empty: the column and value that make a row bad, and advice.

    Args:
        source: The source of the row. None if it is unknown.
        column: The event-time column.
        bad: A sample of `describe_bad_rows`.
        row: The values of the row, by column. None if they are unknown.
    """
    if bad["__bad"] != "undecodable":
        return bad_value_search.describe_event_time(column, row), ""
    if source is None:
        return "", ""
    return bad_value_search.describe_undecodable_row(source, _text(bad), row), decode_hint(
        source, bad["text"], bad["length"]
    )


def find_source(pipeline: Pipeline, name: str) -> Source | None:
    return next((source for source in pipeline.sources if source.name == name), None)
