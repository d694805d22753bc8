"""Bad rows in words: the column and the value to blame, the line of the file, and what to do, where the text tells.

What to do: of a header that is read as a row, of a text longer than the reader takes.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from typing import Any

from slackwater.config.pipeline import Pipeline
from slackwater.config.source import Source, declared_columns
from slackwater.core.local_files import local_name
from slackwater.sources import bad_values
from slackwater.sources.base import CORRUPT

SHOWN = 300  # characters of a row
READ = 20_000  # of a row or a text that is looked into
LONGEST = 20_000_000  # characters of one text in JSON, unless the reader's option maxStringLen says more


def why(source: Source, text: str | None, length: int | None) -> str:
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
        found = next(csv.reader([text], delimiter=(options.get("sep") or options.get("delimiter") or ",")[:1]), [])
        if columns and {cell.strip().casefold() for cell in found} & set(columns):
            return ' (it is the header of the file: set options = { header = "true" })'
    return ""


def sample(source: Source | None, column: str, bad: Mapping[str, Any]) -> str:
    """A bad row in words: why, its value, the row as JSON, and where it is. `column`: that of the event time.

    `bad`: `__bad`, `row` and `text` (both of bounded length), `length` of the whole text, `place`, and `of_file`.
    """
    text = bad["text"] if bad["length"] is not None and len(bad["text"] or "") == bad["length"] else None
    row = _object(bad["row"])
    parsed = {k: v for k, v in row.items() if k != CORRUPT} if row is not None else None
    if bad["__bad"] == "undecodable":
        told = bad_values.told(source, text, parsed) if source is not None else ""
        advice = why(source, bad["text"], bad["length"]) if source is not None else ""
        record = bad_values.Record(text=text)
    else:
        told, advice = bad_values.time_told(column, parsed), ""
        record = bad_values.Record(row=parsed)
    place = local_name(bad["place"]) if bad["place"] else ""
    if place and bad["of_file"] and source is not None:
        (line,) = bad_values.lines_of(source, place, [record])
        place += "" if line is None else f", line {line:,}"
    said = f"{bad['__bad']}: " + (f"{told}: " if told else "")
    return f"{said}{bad['row'][:SHOWN]}" + (f" in {place}" if place else "") + advice


def _object(text: str) -> dict[str, Any] | None:
    """A row as it was shown; None if it was cut."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def source_of(pipeline: Pipeline, name: str) -> Source | None:
    return next((source for source in pipeline.sources if source.name == name), None)
