"""Why a record could not be decoded, where its text tells: a header that is read as a row, a text longer than the reader takes."""

from __future__ import annotations

import csv

from slackwater.config.pipeline import Pipeline
from slackwater.config.source import Source, declared_columns

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


def source_of(pipeline: Pipeline, name: str) -> Source | None:
    return next((source for source in pipeline.sources if source.name == name), None)
