"""Comparison of expected and actual rows: which rows are missing or unexpected, and which columns differ."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

from slackwater.core.humanize import plural
from slackwater.core.time import parse_timestamp_us

Row = Mapping[str, Any]
_ZERO = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_SHOWN = 10  # the number of rows shown per kind of difference


@dataclass
class RowDifference:
    """Difference between two lists of rows.

    Args:
        columns: The compared columns.
        identity: The columns that identify a row.
        expected: The expected rows.
        actual: The actual rows.
        missing: The indexes of expected rows that no actual row matches.
        unexpected: The indexes of actual rows that no expected row matches.
        pairs: Similar rows: the index of an expected row, the index of an actual row, and the columns that differ.
    """

    columns: Sequence[str]
    identity: Sequence[str]
    expected: Sequence[Row]
    actual: Sequence[Row]
    missing: list[int] = field(default_factory=list)
    unexpected: list[int] = field(default_factory=list)
    pairs: list[tuple[int, int, list[str]]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected or self.pairs)

    def lines(self, title: str) -> list[str]:
        """Return a headline and a line for each of the first rows that differ; empty if no row differs.

        `title`: the name of the compared rows.
        """
        if not self:
            return []
        counts = [
            plural(len(rows), f"{name} row")
            for name, rows in (("missing", self.missing), ("unexpected", self.unexpected))
            if rows
        ]
        if self.pairs:
            differing = ", ".join(dict.fromkeys(c for _, _, columns in self.pairs for c in columns))
            verb = "differs" if len(self.pairs) == 1 else "differ"
            counts.append(f"{plural(len(self.pairs), 'row')} {verb} in {differing}")
        lines = [f"{title}: {', '.join(counts)}"]
        lines += _shorten([f"  - missing     {self._text(self.expected[i])}" for i in self.missing])
        lines += _shorten([f"  + unexpected  {self._text(self.actual[i])}" for i in self.unexpected])
        differing_lines = []
        for i, j, columns in self.pairs:
            shown_columns = [
                c for c in self.columns if c not in columns and (not self.identity or c in self.identity)
            ] or [c for c in self.columns if c not in columns]
            place = " ".join(f"{c}={_format_value(self.actual[j].get(c))}" for c in shown_columns)
            parts = [
                f"{c}: expected {_format_value(self.expected[i].get(c))}, found {_format_value(self.actual[j].get(c))}"
                for c in columns
            ]
            differing_lines.append(f"  ~ differs     {place + '  ' if place else ''}{'; '.join(parts)}")
        return lines + _shorten(differing_lines)

    def _text(self, row: Row) -> str:
        text = " ".join(f"{c}={_format_value(row[c])}" for c in self.columns if row.get(c) is not None)
        return text or "a row of NULLs"


def _shorten(lines: list[str]) -> list[str]:
    more = len(lines) - _SHOWN
    return lines if more <= 0 else [*lines[:_SHOWN], f"    … and {more} more"]


def compare_rows(
    expected: Sequence[Row], actual: Sequence[Row], columns: Sequence[str], identity: Sequence[str] = ()
) -> RowDifference:
    """Compare expected and actual rows, regardless of their order.

    Args:
        expected: The expected rows. Only columns that occur in at least one of them are compared.
        actual: The actual rows.
        columns: All columns that a row may have.
        identity: The columns that identify a row.
    """
    expected_columns = dict.fromkeys(c for row in expected for c in row)
    order = [
        *(c for c in columns if c in expected_columns),
        *(c for c in expected_columns if c not in columns),
    ] or list(columns)
    identity_columns = [c for c in identity if c in order]
    difference = RowDifference(order, identity_columns, expected, actual)
    missing, unexpected = list(range(len(expected))), list(range(len(actual)))
    for i in list(missing):
        same = next((j for j in unexpected if not _differing(expected[i], actual[j], order)), None)
        if same is not None:
            missing.remove(i)
            unexpected.remove(same)
    for needed in (identity_columns if len(identity_columns) == len(identity) else (), None):
        for i in list(missing):
            best = _nearest(expected[i], actual, unexpected, order, needed)
            if best is not None:
                difference.pairs.append((i, best, _differing(expected[i], actual[best], order)))
                missing.remove(i)
                unexpected.remove(best)
    difference.missing, difference.unexpected = missing, unexpected
    difference.pairs.sort()
    return difference


def _nearest(
    row: Row, actual: Sequence[Row], among: Iterable[int], columns: Sequence[str], needed: Sequence[str] | None
) -> int | None:
    """Return the index of the actual row that is most similar to an expected row; None if none is similar enough.

    Args:
        row: The expected row.
        actual: The actual rows.
        among: The indexes in `actual` to choose from.
        columns: The compared columns.
        needed: The columns that must be equal. With None, more than half of `columns` must be equal.
    """
    if needed is not None:
        return next((j for j in among if needed and not _differing(row, actual[j], needed)), None)
    distances = [(len(_differing(row, actual[j], columns)), j) for j in among]
    best = min(distances, default=None)
    return None if best is None or 2 * best[0] >= len(columns) else best[1]


def _differing(a: Row, b: Row, columns: Sequence[str]) -> list[str]:
    return [c for c in columns if not equal_values(a.get(c), b.get(c))]


def equal_values(a: Any, b: Any) -> bool:
    """Return whether two values are equal. Numbers may differ in type, and times may differ in notation."""
    if a is None or b is None:
        return a is b
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, dt.datetime) or isinstance(b, dt.datetime):
        return (one := _time_us(a)) is not None and one == _time_us(b)
    if isinstance(a, Decimal) or isinstance(b, Decimal):
        try:
            return Decimal(str(a)) == Decimal(str(b))
        except InvalidOperation:
            return False
    if isinstance(a, int | float) and isinstance(b, int | float):
        return (
            a == b
            or (a != a and b != b)
            or ((isinstance(a, float) or isinstance(b, float)) and math.isclose(a, b, rel_tol=1e-9))
        )
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return all(equal_values(a.get(k), b.get(k)) for k in {**a, **b})
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(equal_values, a, b))
    return to_toml_value(a) == to_toml_value(b)


def _time_us(value: Any) -> int | None:
    if isinstance(value, dt.datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=dt.UTC)
        return (aware - _ZERO) // dt.timedelta(microseconds=1)
    return parse_timestamp_us(value) if isinstance(value, str) else None


def to_toml_value(value: Any) -> Any:
    """Convert a value to a type that TOML supports. NULL stays None."""
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC) if value.tzinfo else value
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, Mapping):
        return {k: to_toml_value(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [to_toml_value(v) for v in value if v is not None]
    if isinstance(value, dt.date):
        return value.isoformat()
    return value


def _format_value(value: Any) -> str:
    """Format a value for a line of output."""
    if value is None:
        return "NULL"
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).isoformat().replace("+00:00", "Z") if value.tzinfo else value.isoformat()
    if isinstance(value, str):
        return value if value and " " not in value and "=" not in value else json.dumps(value, ensure_ascii=False)
    plain = to_toml_value(value)
    return json.dumps(plain, ensure_ascii=False, default=str) if isinstance(plain, list | dict) else str(plain)


__all__ = ["RowDifference", "compare_rows", "equal_values", "to_toml_value"]
