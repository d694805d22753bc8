"""Find the value that makes a row bad, and the number of the line that contains the row.

    user,ts,amount
    ann,soon,3      undecodable: column "ts" holds "soon", expected TIMESTAMP; line 2

All functions are pure, except `find_line_numbers` and `find_lines_in_file`, which read local files.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from slackwater.config.source import Source
from slackwater.config.sql import schema_ddl
from slackwater.core.schema import INTEGERS, NUMBERS
from slackwater.core.time import parse_timestamp_us

_MAX_SHOWN = 60  # characters of a value in a message
MAX_SEARCHED_BYTES = 64_000_000  # the number of bytes of a file that a command searches for a line
_NOT_A_NUMBER = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_WHOLE = re.compile(r"\s*[+-]?\d+\s*")


def describe_undecodable_row(source: Source, text: str | None, parsed: Mapping[str, Any] | None = None) -> str:
    """Describe briefly why a record could not be decoded. Return an empty string if its text does not show why.

    Args:
        source: The source that the record came from.
        text: The text of the record.
        parsed: The values that the reader decoded, by column, without NULLs. None if they are unknown.
    """
    format_ = source.format or source.payload_format or "json"
    if text is None or format_ not in ("json", "csv"):
        return ""
    types = _types(source)
    if format_ == "csv":
        cells = _cells(source, text)
        if types and len(cells) != len(types):
            return f"{len(cells)} {'value' if len(cells) == 1 else 'values'}, expected {len(types)}"
        values: Mapping[str, Any] = {name: c for name, c in zip(types, cells, strict=False) if c != ""}
    else:
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            return "not JSON"
        if not isinstance(document, Mapping):
            return f"{_format_value(document)}, expected a JSON object"
        values = {name: document[name] for name in types if document.get(name) is not None}
    unparsed = [name for name in values if parsed is not None and parsed.get(name) is None]
    name = next(
        (n for n in (unparsed or values) if not _fits(values[n], types[n], format_)), next(iter(unparsed), None)
    )
    return (
        "" if name is None else f'column "{name}" holds {_format_value(values[name])}, expected {types[name].upper()}'
    )


def describe_event_time(column: str, row: Mapping[str, Any] | None) -> str:
    """Describe the value of a row's event-time column, for example as `column "ts" is missing or NULL`.

    Return an empty string if `row` is None, or if `column` is not a plain column name.
    """
    if row is None or not re.fullmatch(r"\w+", column) or column.startswith("_"):
        return ""
    value = row.get(column)
    return f'column "{column}" ' + ("is missing or NULL" if value is None else f"holds {_format_value(value)}")


def parse_json_object(text: str) -> dict[str, Any] | None:
    """Parse a string as a JSON object. Return None for any other string, such as truncated JSON."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _types(source: Source) -> dict[str, str]:
    try:
        return schema_ddl.parse_ddl_columns(source.schema_ or "")
    except schema_ddl.DdlError:
        return {}


def _cells(source: Source, text: str) -> list[str]:
    options = {key.casefold(): value for key, value in source.options.items()}
    sep = (options.get("sep") or options.get("delimiter") or ",")[:1]
    quote = (options.get("quote") or '"')[:1]
    try:
        return next(csv.reader([text], delimiter=sep, quotechar=quote), [])
    except csv.Error:
        return []


def _fits(value: Any, type_: str, format_: str) -> bool:
    """Return whether a value from a JSON or CSV record can be read as a Spark type. Return True for unchecked types."""
    base = type_.partition("(")[0].partition("<")[0].casefold()
    is_text = isinstance(value, str)
    if base in INTEGERS:
        return (
            bool(_WHOLE.fullmatch(value))
            if format_ == "csv"
            else isinstance(value, int) and not isinstance(value, bool)
        )
    if base in ("double", "float", "decimal"):
        return _is_number(value) if is_text else isinstance(value, int | float) and not isinstance(value, bool)
    if base == "boolean":
        return (
            value.strip().casefold() in ("true", "false") if is_text and format_ == "csv" else isinstance(value, bool)
        )
    if base in ("timestamp", "timestamp_ntz", "date"):
        return parse_timestamp_us(value) is not None if is_text else False
    if base in ("array", "struct", "map"):
        return format_ == "csv" or isinstance(value, list if base == "array" else dict)
    return True


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return bool(_NOT_A_NUMBER.fullmatch(text.strip()))
    return True


def _format_value(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}… ({len(text):,} characters)"


# -- lines -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Record:
    """A record to search for in a file, identified by its text or by its row.

    A line with a different text still matches if its values are equal: `{"a": 1}` matches `{"a":1}`.

    Args:
        text: The text of the record.
        row: The values that were read from the record, by column, without NULLs.
    """

    text: str | None = None
    row: Mapping[str, Any] | None = None


class _Search:
    """A search for one record in the lines of a file.

    If the record has a distinctive string value, only lines that contain this string are parsed, to save time.
    """

    def __init__(self, source: Source, format_: str, record: Record) -> None:
        self._source, self._form, self._types = source, format_, _types(source)
        self._text = None if record.text is None else record.text.strip()
        self._row = record.row or {}
        self._values = None if self._text is None else self._read(self._text)
        values = self._row if self._text is None else self._values or {}
        texts = [v for v in values.values() if isinstance(v, str) and re.fullmatch(r"[A-Za-z0-9_.-]+", v)]
        texts = [v for v in texts if v.casefold() not in ("true", "false") and not _is_number(v)]
        self._part = max(texts, key=len, default="")
        self.is_possible = bool(self._text or self._row)

    def is_in(self, line: str) -> bool:
        if self._text is not None and line.strip() == self._text:
            return True
        if self._part not in line or not self._types or (self._text is not None and not self._values):
            return False
        line_values = self._read(line)
        if not line_values:
            return False
        if self._values is not None:
            return all(_is_same_text(line_values.get(n), self._values.get(n)) for n in self._types)
        return all(_is_read_as(line_values.get(n), self._row.get(n), t) for n, t in self._types.items())

    def _read(self, line: str) -> Mapping[str, Any] | None:
        """Return the values of a line by column, or None if the line is not a record."""
        if self._form == "csv":
            cells = _cells(self._source, line)
            return dict(zip(self._types, cells, strict=True)) if len(cells) == len(self._types) else None
        return parse_json_object(line)


def _is_same_text(first: Any, second: Any) -> bool:
    """Return whether two values have the same text, ignoring case, surrounding spaces and number formatting."""
    if first == second or (first in (None, "") and second in (None, "")):
        return True
    if not isinstance(first, str) or not isinstance(second, str):
        return False
    return first.strip().casefold() == second.strip().casefold() or (
        _is_number(first) and _is_number(second) and float(first) == float(second)
    )


def _is_read_as(written: Any, read: Any, type_: str) -> bool:
    """Return whether a reader would read `written` as `read`. Return False for types that are not compared."""
    if written in (None, "") or read is None:
        return written in (None, "") and read is None
    base = type_.partition("(")[0].casefold()
    if base in NUMBERS:
        return _is_number(str(written)) and _is_number(str(read)) and float(written) == float(read)
    if base in ("timestamp", "timestamp_ntz", "date"):
        written_us = parse_timestamp_us(str(written))
        return written_us is not None and written_us == parse_timestamp_us(str(read))
    return base in ("string", "boolean") and str(written).casefold() == str(read).casefold()


def find_line_numbers(
    searches: Sequence[tuple[Source | None, str | None, Record]], max_bytes: int = MAX_SEARCHED_BYTES
) -> list[int | None]:
    """Return the line number of each record in its file; see `find_lines_in_file`. Each file is read once.

    Args:
        searches: The source, the file and the record of each search. Without a source or a file, the result is None.
        max_bytes: How many bytes of each file to search.
    """
    lines: list[int | None] = [None] * len(searches)
    files: dict[tuple[str, str], list[int]] = {}
    for number, (source, file, _) in enumerate(searches):
        if source is not None and file:
            files.setdefault((source.name, file), []).append(number)
    for (_, file), numbers in files.items():
        source = searches[numbers[0]][0]
        assert source is not None
        records = [searches[n][2] for n in numbers]
        for number, line in zip(numbers, find_lines_in_file(source, file, records, max_bytes), strict=True):
            lines[number] = line
    return lines


def find_lines_in_file(
    source: Source, file: str, records: Sequence[Record], max_bytes: int = MAX_SEARCHED_BYTES
) -> list[int | None]:
    """Return the 1-based line number of each record in a text file, or None for a record without a match.

    Equal records get the line of their first match. Files whose records span several lines, files in encodings
    other than UTF-8, and files on other machines are not searched.

    Args:
        source: The source that read the file.
        file: The path of the file.
        records: The records to search for.
        max_bytes: How many bytes of the file to search.
    """
    lines: list[int | None] = [None] * len(records)
    options = {key.casefold(): value.casefold() for key, value in source.options.items()}
    encoding = options.get("encoding") or options.get("charset") or "utf-8"
    format_ = source.format or ""
    if format_ not in ("json", "csv") or options.get("multiline") == "true" or encoding not in ("utf-8", "utf8"):
        return lines
    if "linesep" in options or "://" in file:
        return lines
    searches, bytes_read = [_Search(source, format_, record) for record in records], 0
    missing = {i for i, search in enumerate(searches) if search.is_possible}
    try:
        with Path(file).open("rb") as raw:
            stream = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if file.endswith(".gz") else raw
            for number, line in enumerate(stream, 1):
                bytes_read += len(line)
                if not missing or bytes_read > max_bytes:
                    break
                text = line.decode(errors="replace").lstrip("\ufeff")
                for i in [i for i in missing if searches[i].is_in(text)]:
                    lines[i] = number
                    missing.discard(i)
    except (OSError, EOFError, zlib.error):
        return lines
    return lines
