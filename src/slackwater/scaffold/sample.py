"""The first rows of a user's files (JSON lines, CSV or Parquet, compressed or not), read without Spark, and their types.

The types are column types in Spark's DDL, inferred from JSON values, CSV cells and Parquet schemas.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slackwater.core.column_names import quote_identifier_if_needed
from slackwater.core.humanize import plural
from slackwater.core.time import parse_timestamp_us
from slackwater.errors import StartError, Topic

ROWS = 100_000  # maximum number of rows
_CHARACTERS = 64_000_000
_LINE = 20_000_000  # characters; the longest text that Spark reads
_SUFFIXES = {"json": "json", "jsonl": "json", "ndjson": "json", "csv": "csv", "tsv": "csv", "parquet": "parquet"}
_SHOWN = 60  # characters of a value in a message
_SEPARATORS = (",", "\t", ";", "|", " ")


@dataclass(frozen=True)
class Sample:
    """The rows of a sample, in the order in which a run would read them, with their format and columns."""

    path: Path
    query: str  # the `query` for a run: the file, or a glob over the directory
    format: str
    columns: Mapping[str, str]  # name -> type, as Spark's DDL
    rows: list[dict[str, Any]]
    options: Mapping[str, str] = field(default_factory=dict)
    bad: int = 0  # lines that cannot be decoded
    skipped: tuple[str, ...] = ()  # columns that are not read, with the reason
    lines: Sequence[int] = ()  # for a single text file: the line of each row, from 1
    first_bad: str = ""  # describes the first line that cannot be decoded

    def row_location(self, row: int) -> str:
        """Return the location of the row with index `row`: its line in the file if known, otherwise its number."""
        return f"line {self.lines[row]:,}" if self.lines else f"row {row + 1:,}"


def read_sample(path: Path) -> Sample:
    """Read a sample from a file, or from the files of a directory. Raises a one-line StartError if that fails."""
    try:
        files, query = _files(path)
        first = files[0]
        form = _format(first)
        if form == "parquet":
            return _parquet(path, query, files)
        lines = list(_lines(files))
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or "is not a complete gzip file"
        raise StartError(f"--sample: {path} cannot be read ({reason})", Topic.INIT_SAMPLE) from None
    except UnicodeDecodeError:
        raise StartError(
            f"--sample: {path} is not UTF-8 text; expected JSON lines, CSV or Parquet", Topic.INIT_SAMPLE
        ) from None
    if not any(line.strip() for line in lines):
        raise StartError(f"--sample: {path} is empty; expected JSON lines, CSV or Parquet", Topic.INIT_SAMPLE)
    if form is None:
        form = "json" if next(line for line in lines if line.strip()).lstrip().startswith(("{", "[")) else "csv"
    several = len(files) > 1
    return _json(path, query, lines, several) if form == "json" else _csv(path, query, lines, several)


def _files(path: Path) -> tuple[list[Path], str]:
    if not path.is_dir():
        if not path.exists():
            raise StartError(
                f"--sample: {path} does not exist; expected a file or a directory of JSON lines, CSV or Parquet",
                Topic.INIT_SAMPLE,
            )
        return [path], str(path)
    files_of_directory = [
        p for p in path.iterdir() if p.is_file() and not p.name.startswith((".", "_")) and p.stat().st_size
    ]
    if not files_of_directory:
        raise StartError(f"--sample: {path} has no files; expected JSON lines, CSV or Parquet", Topic.INIT_SAMPLE)
    endings: dict[str, list[Path]] = {}
    for p in files_of_directory:
        endings.setdefault("".join(p.suffixes[-2:] if p.suffix == ".gz" else p.suffixes[-1:]), []).append(p)
    ending, files = max(endings.items(), key=lambda item: (item[0].split(".")[-1] != "", len(item[1])))
    files.sort(key=lambda p: (p.stat().st_mtime_ns, p.name))  # the order in which a run reads them
    return files, os.path.join(path, f"*{ending}")  # noqa: PTH118  # a glob is not a path


def _format(file: Path) -> str | None:
    """Return the format that the magic bytes or the suffix of a file imply; None if neither implies one."""
    with file.open("rb") as stream:
        if stream.read(4) == b"PAR1":
            return "parquet"
    return next((_SUFFIXES[s[1:].lower()] for s in reversed(file.suffixes) if s[1:].lower() in _SUFFIXES), None)


def _lines(files: list[Path]) -> Iterator[str]:
    rows = characters = 0
    for file in files:
        with file.open("rb") as raw:
            stream: Any = gzip.GzipFile(fileobj=raw) if file.suffix == ".gz" else raw
            text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
            while line := text.readline(_LINE):
                yield line
                rows, characters = rows + 1, characters + len(line)
                if rows >= ROWS or characters >= _CHARACTERS:
                    return


def abbreviate_value(value: object) -> str:
    """Format a value as one line of JSON, and truncate it if it is long."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _json(path: Path, query: str, lines: list[str], several: bool) -> Sample:
    if next(line for line in lines if line.strip()).lstrip().startswith("["):
        raise StartError(
            f"--sample: {path} is one JSON array; expected one object per line, without commas between them",
            Topic.INIT_SAMPLE,
        )
    rows: list[dict[str, Any]] = []
    bad, line_numbers, first = 0, [], ""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            rows.append(row)
            line_numbers.append(number)
        else:
            bad += 1
            first = first or f"{f'line {number:,}' if not several else 'the first'} is {abbreviate_value(line.strip())}"
    if not rows:
        raise StartError(
            f"--sample: {path}: none of the first {plural(bad, 'line')} is a JSON object; {first}; expected one object per line",
            Topic.INIT_SAMPLE,
        )
    stats = TypeStats()
    for row in rows:
        stats.add(row)
    names = distinct_ignoring_case(name for name in stats.fields if name)
    skipped = tuple(
        f"{name}: differs from another column only in case" for name in stats.fields if name and name not in names
    )
    return Sample(
        path,
        query,
        "json",
        {name: stats.fields[name].ddl() for name in names},
        rows,
        {},
        bad,
        skipped,
        () if several else line_numbers,
        first,
    )


def _csv(path: Path, query: str, lines: list[str], several: bool) -> Sample:
    head = [line for line in lines[:200] if line.strip()]
    widths_by_separator = [(sep, [len(r) for r in csv.reader(head, delimiter=sep)]) for sep in _SEPARATORS]
    fit = [
        (sep, widths[0])
        for sep, widths in widths_by_separator
        if widths[0] > 1 and widths.count(widths[0]) >= 0.95 * len(widths)
    ]
    if not fit:
        raise StartError(
            f"--sample: {path} is not a table: its lines have no common separator (the first line is "
            f"{abbreviate_value(head[0].strip())}); expected JSON lines, CSV or Parquet",
            Topic.INIT_SAMPLE,
        )
    sep, width = max(fit, key=lambda item: (item[0] != " ", item[1]))
    reader = csv.reader(lines, delimiter=sep)
    numbered = [(reader.line_num, r) for r in reader if len(r) > 1 or (r and r[0].strip())]
    line_numbers, table = [n for n, _ in numbered], [r for _, r in numbered]
    header = _is_header(table[0])
    if header and several:
        table = [table[0], *(r for r in table[1:] if r != table[0])]
        line_numbers = list(range(1, len(table) + 1))  # with several files, messages do not give lines
    names = _column_names(table[0] if header else [f"c{i + 1}" for i in range(width)])
    first_body_row = 1 if header else 0
    numbered_body = list(zip(line_numbers[first_body_row:], table[first_body_row:], strict=True))
    body = [r for _, r in numbered_body if len(r) == width]
    first = next(((n, r) for n, r in numbered_body if len(r) != width), None)
    rows = [dict(zip(names, map(parse_csv_cell, r), strict=True)) for r in body]
    if not rows:
        raise StartError(f"--sample: {path} has a header but no rows; pass a sample that has rows", Topic.INIT_SAMPLE)
    columns: dict[str, str] = {}
    for i, name in enumerate(names):
        seen = TypeStats()
        for row in rows:
            seen.add(row[name])
        columns[name] = seen.ddl()
        if columns[name] == "STRING":  # keep the original text, since some cells were parsed as numbers
            for row, spelled in zip(rows, body, strict=True):
                row[name] = spelled[i] or None
    options = ({"sep": sep} if sep != "," else {}) | ({"header": "true"} if header else {})
    bad = len(table) - header - len(rows)
    position = "the first" if several or first is None else f"line {first[0]:,}"
    first_bad = (
        ""
        if first is None
        else f"{position} has {len(first[1])} cells, expected {width}: {abbreviate_value(sep.join(first[1]))}"
    )
    lines_of = () if several else [n for n, r in numbered_body if len(r) == width]
    return Sample(path, query, "csv", columns, rows, options, bad, (), lines_of, first_bad)


def _is_header(row: list[str]) -> bool:
    """Return whether a row is a header: distinct names, none of which is a number, a flag or a date.

    A header cell may also be empty, for example above an index column.
    """
    names = [c.strip() for c in row if c.strip()]
    plain = all(isinstance(parse_csv_cell(c), str) and not re.match(r"\d{4}-", c) for c in names)
    return bool(names) and plain and len(set(names)) == len(names)


def _column_names(row: list[str]) -> list[str]:
    names: list[str] = []
    for i, cell in enumerate(row):
        name = cell.strip() or f"c{i + 1}"
        taken = {n.casefold() for n in names}
        names.append(name if name.casefold() not in taken else f"{name}_{i + 1}")
    return names


def _parquet(path: Path, query: str, files: list[Path]) -> Sample:
    import polars as pl

    try:
        frames = []
        remaining = ROWS
        for file in files:
            frames.append(pl.scan_parquet(file).head(remaining).collect())
            remaining -= frames[-1].height
            if remaining <= 0:
                break
    except pl.exceptions.PolarsError:
        raise StartError(f"--sample: {path} cannot be read as Parquet", Topic.INIT_SAMPLE) from None
    schema = frames[0].schema
    frames = [f for f in frames if f.schema == schema]
    types = {name: polars_type_to_ddl(kind) for name, kind in schema.items()}
    distinct_names = {name: types[name] for name in distinct_ignoring_case(types)}
    skipped = tuple(
        f"{name}: Spark does not read {schema[name]} from Parquet"
        for name, kind in distinct_names.items()
        if kind is None
    )
    rows = pl.concat(frames).to_dicts()
    if not rows:
        raise StartError(f"--sample: {path} has no rows; pass a sample that has rows", Topic.INIT_SAMPLE)
    columns = {name: kind for name, kind in distinct_names.items() if kind is not None}
    return Sample(path, query, "parquet", columns, rows, {}, 0, skipped)


# -- types ---------------------------------------------------------------------------------------------------------------


_MANY_KEYS = 64  # objects with more distinct keys are maps
_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)?\.?[0-9]+([eE][+-]?[0-9]{1,3})?")


@dataclass
class TypeStats:
    """The kinds of values seen in one column, field or list item."""

    kinds: set[str] = field(default_factory=set)
    fields: dict[str, TypeStats] = field(default_factory=dict)
    items: TypeStats | None = None
    digits: int = 0
    times: bool = True  # every string so far is a date with a time of day

    def add(self, value: Any) -> None:
        if value is None:
            return
        if isinstance(value, bool):
            self.kinds.add("boolean")
        elif isinstance(value, int):
            self.kinds.add("whole" if -(2**63) <= value < 2**63 else "long")
            self.digits = max(self.digits, len(str(abs(value))))
        elif isinstance(value, float):
            self.kinds.add("number")
        elif isinstance(value, str):
            self.kinds.add("text")
            self.times = self.times and len(value.strip()) > 10 and parse_timestamp_us(value) is not None
        elif isinstance(value, Mapping):
            self.kinds.add("object")
            for key, inner in value.items():
                self.fields.setdefault(key, TypeStats()).add(inner)
        else:
            self.kinds.add("list")
            self.items = self.items or TypeStats()
            for inner in value:
                self.items.add(inner)

    def ddl(self) -> str:
        """Return the narrowest type that fits all values. STRING fits everything."""
        kinds = self.kinds
        if kinds == {"boolean"}:
            return "BOOLEAN"
        if kinds == {"whole"}:
            return "BIGINT"
        if kinds and kinds <= {"whole", "long"} and self.digits <= 38:
            return "DECIMAL(38,0)"
        if kinds and kinds <= {"whole", "number"}:
            return "DOUBLE"
        if kinds == {"text"}:
            return "TIMESTAMP" if self.times else "STRING"
        if kinds == {"list"} and self.items is not None:
            return f"ARRAY<{self.items.ddl()}>"
        if kinds == {"object"} and self.fields:
            return self._object()
        return "STRING"

    def _object(self) -> str:
        if len(self.fields) > _MANY_KEYS:
            types = {stats.ddl() for stats in self.fields.values() if stats.kinds}
            return f"MAP<STRING, {types.pop() if len(types) == 1 else 'STRING'}>"
        names = distinct_ignoring_case(self.fields)
        if not all(names):
            return "STRING"
        return (
            f"STRUCT<{', '.join(f'{quote_identifier_if_needed(name)}: {self.fields[name].ddl()}' for name in names)}>"
        )


def distinct_ignoring_case(names: Iterable[str]) -> list[str]:
    """Return the names without those that differ from an earlier name only in case, which Spark cannot distinguish."""
    first_spelling: dict[str, str] = {}
    for name in names:
        first_spelling.setdefault(name.casefold(), name)
    return list(first_spelling.values())


def parse_csv_cell(text: str | None) -> Any:
    """Return the value of a CSV cell; None if it is empty. A number with leading zeros remains a string."""
    if text is None or text == "":
        return None
    if _WHOLE.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text) and not re.match(r"-?0[0-9]", text):
        return float(text)
    return text.lower() == "true" if text.lower() in ("true", "false") else text


def polars_type_to_ddl(kind: Any) -> str | None:
    """Return the Spark type of a Parquet column with the Polars type `kind`; None if Spark cannot read it."""
    import polars as pl

    simple = {
        pl.Boolean: "BOOLEAN",
        pl.Int8: "TINYINT",
        pl.Int16: "SMALLINT",
        pl.Int32: "INT",
        pl.Int64: "BIGINT",
        pl.UInt8: "SMALLINT",
        pl.UInt16: "INT",
        pl.UInt32: "BIGINT",
        pl.UInt64: "DECIMAL(20,0)",
        pl.Float32: "FLOAT",
        pl.Float64: "DOUBLE",
        pl.String: "STRING",
        pl.Binary: "BINARY",
        pl.Date: "DATE",
        pl.Categorical: "STRING",
        pl.Enum: "STRING",
    }
    base = kind.base_type()
    if base in simple:
        return simple[base]
    if base is pl.Datetime:
        return None if kind.time_unit == "ns" else "TIMESTAMP" if kind.time_zone else "TIMESTAMP_NTZ"
    if base is pl.Decimal:
        return f"DECIMAL({kind.precision or 38},{kind.scale})"
    if base is pl.List:
        inner = polars_type_to_ddl(kind.inner)
        return None if inner is None else f"ARRAY<{inner}>"
    if base is pl.Struct:
        fields = [(f.name, polars_type_to_ddl(f.dtype)) for f in kind.fields]
        members = [
            f"{quote_identifier_if_needed(name)}: {inner}" for name, inner in fields if name and inner is not None
        ]
        return f"STRUCT<{', '.join(members)}>" if members and len(members) == len(fields) else None
    return None
