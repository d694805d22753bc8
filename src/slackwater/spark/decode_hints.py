"""Bad rows in words: the column and the value to blame, the line of the file, and what to do, where the text tells.

What to do: of a header that is read as a row, of a text longer than the reader takes.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from typing import Any

from slackwater.config.pipeline import Pipeline
from slackwater.config.source import Source, declared_columns
from slackwater.core.local_files import local_name
from slackwater.sources import bad_values
from slackwater.sources.base import CORRUPT

SHOWN = 300  # characters of a row
READ = 20_000  # of a row or a text that is looked into
LOOKED_THROUGH = 4_000_000  # bytes of a file, in an epoch
LONGEST = 20_000_000  # characters of one text in JSON, unless the reader's option maxStringLen says more


def decode_hint(source: Source, text: str | None, length: int | None) -> str:
    """What to do about it, in brackets behind a sample; empty where the text does not tell."""
    options = {key.casefold(): value for key, value in source.options.items()}
    most = int(options["maxstringlen"]) if options.get("maxstringlen", "").isdecimal() else LONGEST
    if source.format != "csv" and length is not None and length > most:
        return (
            f" (the record is {length / 1e6:,.0f} MB long, the JSON reader takes texts of up to {most:,} characters: write shorter "
            'ones, or raise options = { maxStringLen = "…" })'
        )
    if source.format == "csv" and text and options.get("header", "false").casefold() != "true":
        columns = [name.casefold() for name in declared_columns(source.schema_ or "")]
        cells = next(csv.reader([text], delimiter=(options.get("sep") or options.get("delimiter") or ",")[:1]), [])
        if columns and {cell.strip().casefold() for cell in cells} & set(columns):
            return ' (it is the header of the file: set options = { header = "true" })'
    return ""


def describe_samples(source: Source | None, column: str, samples: Sequence[Mapping[str, Any]]) -> list[str]:
    """Bad rows in words: why, the value, the row as JSON, and where it is. `column`: that of the event time.

    A sample has `__bad`, `row` and `text` (both of bounded length), `length` of the whole text, `place`, and `of_file`.
    """
    parsed = [_row(bad) for bad in samples]
    names = [local_name(bad["place"]) if bad["place"] else "" for bad in samples]
    places = [
        (source, name if bad["of_file"] else None, _record(bad, row))
        for bad, row, name in zip(samples, parsed, names, strict=True)
    ]
    lines = bad_values.find_lines(places, LOOKED_THROUGH)
    described = []
    for bad, row, name, line in zip(samples, parsed, names, lines, strict=True):
        cause, advice = _explain(source, column, bad, row)
        place = f" in {name}" + ("" if line is None else f", line {line:,}") if name else ""
        described.append(f"{bad['__bad']}: {f'{cause}: ' if cause else ''}{bad['row'][:SHOWN]}{place}{advice}")
    return described


def _row(bad: Mapping[str, Any]) -> dict[str, Any] | None:
    """The row as its reader made it, without the text of the record; None if it was cut."""
    row = bad_values.parse_object(bad["row"])
    return None if row is None else {k: v for k, v in row.items() if k != CORRUPT}


def _text(bad: Mapping[str, Any]) -> str | None:
    """The text of a record that could not be decoded; None if it was cut."""
    return bad["text"] if bad["length"] is not None and len(bad["text"] or "") == bad["length"] else None


def _record(bad: Mapping[str, Any], row: Mapping[str, Any] | None) -> bad_values.Record:
    return bad_values.Record(text=_text(bad)) if bad["__bad"] == "undecodable" else bad_values.Record(row=row)


def _explain(
    source: Source | None, column: str, bad: Mapping[str, Any], row: Mapping[str, Any] | None
) -> tuple[str, str]:
    """The value to blame, and advice."""
    if bad["__bad"] != "undecodable":
        return bad_values.describe_event_time(column, row), ""
    if source is None:
        return "", ""
    return bad_values.describe_undecodable(source, _text(bad), row), decode_hint(source, bad["text"], bad["length"])


def source_of(pipeline: Pipeline, name: str) -> Source | None:
    return next((source for source in pipeline.sources if source.name == name), None)
