"""Replace the expectations of a test file with the actual results. The rest of the file, including comments, is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.items import AoT, Array

from slackwater.testing.case_runner import CaseResult, row_as_toml
from slackwater.testing.difference import Difference

_LEFT_OUT = ("session_id",)  # meaningless to users; omitted unless the file already expects rows


def update_case(path: Path, outcome: CaseResult, whole: bool = False) -> bool:
    """Replace those expectations of a test file that differ from the outcome. Return whether anything changed.

    `whole`: whether to add the rows of the target to a file that does not expect any rows.
    """
    document = tomlkit.parse(path.read_text(encoding="utf-8"))
    if "expect" not in document:
        document["expect"] = tomlkit.table()
    expect: Any = document["expect"]
    changed = False
    for key, difference in outcome.differences.items():
        if not difference or (key == "rows" and key not in expect and not whole):
            continue
        changed = True
        kind, _, name = key.partition(".")
        _apply(expect[kind] if name else expect, name or kind, difference)
    if changed:
        path.write_text(tomlkit.dumps(document), encoding="utf-8")
    return changed


def _apply(expect: Any, key: str, difference: Difference) -> None:
    columns = [c for c in difference.columns if difference.expected or c not in _LEFT_OUT]
    expected_rows = expect.get(key)
    if (
        not isinstance(expected_rows, Array | AoT)
        or len(expected_rows) != len(difference.expected)
        or not len(expected_rows)
    ):
        expect[key] = rows_as_toml([row_as_toml(row, columns) for row in difference.actual])
        return
    rows: Any = expected_rows
    for i, j, differing in difference.pairs:
        for column in differing:
            values = row_as_toml(difference.actual[j], [column])
            if column in values:
                rows[i][column] = values[column]
            else:
                del rows[i][column]
    for i in sorted(difference.missing, reverse=True):
        del rows[i]
    for j in difference.unexpected:
        row = row_as_toml(difference.actual[j], columns)
        if isinstance(rows, AoT):
            rows.append(tomlkit.item(row))
        else:
            rows.add_line(_inline_table(row), indent="  ")


def rows_as_toml(rows: Sequence[Mapping[str, Any]]) -> Array:
    """Return rows as a TOML array with one inline table per line."""
    array = tomlkit.array()
    for row in rows:
        array.add_line(_inline_table(row), indent="  ")
    if rows:
        array.add_line(indent="")
    return array


def _inline_table(row: Mapping[str, Any]) -> Any:
    table = tomlkit.inline_table()
    table.update(row)
    return table


__all__ = ["rows_as_toml", "update_case"]
