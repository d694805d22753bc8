"""Describe bad rows: the column and value at fault, the line in the file, and advice if the cause is known.

There is advice for a header that was read as a row, and for a string that is longer than the reader accepts.
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

SHOWN = 300  # characters of a row
READ = 20_000  # how many characters of a row or a text are analyzed
LOOKED_THROUGH = 4_000_000  # how many bytes of a file an epoch searches for a line
LONGEST = 20_000_000  # maximum length of a JSON text in characters, unless the reader's option maxStringLen is set


def decode_hint(source: Source, text: str | None, length: int | None) -> str:
    """Return advice about an undecodable record, to append to its description. Empty if the cause is unknown.

    `text`: the text of the record, possibly truncated. `length`: the length of the record in characters.
    """
    options = {key.casefold(): value for key, value in source.options.items()}
    max_length = int(options["maxstringlen"]) if options.get("maxstringlen", "").isdecimal() else LONGEST
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
        source: The source; None if unknown.
        column: The event-time column.
        samples: One mapping per bad row: `__bad`, the reason; `row`, the row as JSON; `text`, the original record (both
            possibly truncated); `length`, the length of the whole record; `place`, the location; `of_file`, whether the
            location is a file.
    """
    parsed = [_row(bad) for bad in samples]
    names = [file_uri_to_path(bad["place"]) if bad["place"] else "" for bad in samples]
    places = [
        (source, name if bad["of_file"] else None, _record(bad, row))
        for bad, row, name in zip(samples, parsed, names, strict=True)
    ]
    lines = bad_value_search.find_line_numbers(places, LOOKED_THROUGH)
    described = []
    for bad, row, name, line in zip(samples, parsed, names, lines, strict=True):
        cause, advice = _explain(source, column, bad, row)
        place = f" in {name}" + ("" if line is None else f", line {line:,}") if name else ""
        described.append(f"{bad['__bad']}: {f'{cause}: ' if cause else ''}{bad['row'][:SHOWN]}{place}{advice}")
    return described


def _row(bad: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a bad row as Spark decoded it, without the original record; None if its JSON was truncated."""
    row = bad_value_search.parse_json_object(bad["row"])
    return None if row is None else {k: v for k, v in row.items() if k != CORRUPT}


def _text(bad: Mapping[str, Any]) -> str | None:
    """Return the original text of a record that could not be decoded; None if the text is missing or was truncated."""
    return bad["text"] if bad["length"] is not None and len(bad["text"] or "") == bad["length"] else None


def _record(bad: Mapping[str, Any], row: Mapping[str, Any] | None) -> bad_value_search.Record:
    return (
        bad_value_search.Record(text=_text(bad)) if bad["__bad"] == "undecodable" else bad_value_search.Record(row=row)
    )


def _explain(
    source: Source | None, column: str, bad: Mapping[str, Any], row: Mapping[str, Any] | None
) -> tuple[str, str]:
    """Return two strings, which may be empty: the column and value that make a row bad, and advice."""
    if bad["__bad"] != "undecodable":
        return bad_value_search.describe_event_time(column, row), ""
    if source is None:
        return "", ""
    return bad_value_search.describe_undecodable_row(source, _text(bad), row), decode_hint(
        source, bad["text"], bad["length"]
    )


def find_source(pipeline: Pipeline, name: str) -> Source | None:
    return next((source for source in pipeline.sources if source.name == name), None)
