"""`diff`: compares two outputs or states, and prints the differences as text or JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl
import typer

from slackwater.cli.format import align_rows
from slackwater.connectors.target import LabeledRows
from slackwater.core.humanize import plural
from slackwater.core.row_format import format_value
from slackwater.errors import SlackwaterError
from slackwater.query.results import ResultComparison, compare_outputs, read_rows_at_location


def print_differences_of_outputs(
    a: str, b: str, by: str | None, ignore: str | None, tolerance: float, examples: int, as_json: bool
) -> None:
    """Compare two outputs or states, and print the result.

    Args:
        a: The location of the first output.
        b: The location of the second output.
        by: Comma-separated names of the columns that identify a row; None for the columns that the outputs define.
        ignore: Comma-separated names of columns that are not compared.
        tolerance: The tolerance for numbers, relative to the larger of 1 and their absolute value.
        examples: The maximum number of examples per kind of difference.
        as_json: Whether to print one JSON object instead of text.

    Raises typer.Exit with code 1 if the outputs differ, and with code 2 if they cannot be compared.
    """
    try:
        sides = read_rows_at_location(a), read_rows_at_location(b)
        comparison = compare_outputs(*sides, _split_names(by), _split_names(ignore), tolerance, examples)
    except SlackwaterError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    print(
        json.dumps(_to_json(sides, comparison), default=format_value, ensure_ascii=False)
        if as_json
        else "\n".join(_comparison_lines(sides, comparison))
    )
    if not comparison.same:
        raise typer.Exit(1)


def _split_names(names: str | None) -> list[str]:
    return [n.strip() for n in (names or "").split(",") if n.strip()]


def _comparison_lines(sides: Sequence[LabeledRows], comparison: ResultComparison) -> Iterator[str]:
    for letter, side, rows in zip("AB", sides, comparison.rows, strict=True):
        yield f"{letter}  {side.label}, {plural(rows, 'row')}"
    yield f"by {', '.join(comparison.by)}"
    yield ""
    differing = ", ".join(f"{c} {n:,}" for c, n in sorted(comparison.columns.items(), key=lambda item: -item[1]))
    yield from align_rows(
        [
            ["equal", f"{comparison.equal:,}", ""],
            ["only in A", f"{comparison.only[0]:,}", ""],
            ["only in B", f"{comparison.only[1]:,}", ""],
            ["different", f"{comparison.different:,}", differing],
        ]
    )
    for letter, names, repeated in zip("AB", comparison.missing, comparison.repeated, strict=True):
        if names:
            yield f"columns only in {letter}: {', '.join(names)}"
        if repeated:
            yield f"{letter} has {plural(repeated, 'row')} whose identity is not unique; these are compared one by one"
    for letter, rows_of_one_side in zip("AB", comparison.only_examples, strict=True):
        yield from _examples(f"only in {letter}", rows_of_one_side, comparison.by)
    if comparison.different_examples.height:
        yield ""
        yield "different (A | B)"
        for row in comparison.different_examples.iter_rows(named=True):
            values = (
                f"{c}: {format_value(row[c])} | {format_value(row[f'{c}__b'])}"
                for c in _differing_columns(row, comparison)
            )
            yield f"  {_format_columns(row, comparison.by)}  {'  '.join(values)}"


def _examples(title: str, rows: pl.DataFrame, by: Sequence[str]) -> Iterator[str]:
    if rows.height:
        yield ""
        yield title
        for row in rows.iter_rows(named=True):
            yield f"  {_format_columns(row, by)}  {_format_columns(row, [c for c in rows.columns if c not in by])}".rstrip()


def _format_columns(row: dict[str, Any], columns: Sequence[str]) -> str:
    return " ".join(f"{c}={format_value(row[c])}" for c in columns)


def _differing_columns(row: dict[str, Any], comparison: ResultComparison) -> list[str]:
    return [c for c in comparison.columns if row[f"{c}__differs"]]


def _to_json(sides: Sequence[LabeledRows], comparison: ResultComparison) -> dict[str, Any]:
    different = [
        {
            **{c: row[c] for c in comparison.by},
            "a": {c: row[c] for c in _differing_columns(row, comparison)},
            "b": {c: row[f"{c}__b"] for c in _differing_columns(row, comparison)},
        }
        for row in comparison.different_examples.iter_rows(named=True)
    ]
    return {
        "a": {"place": sides[0].label, "rows": comparison.rows[0]},
        "b": {"place": sides[1].label, "rows": comparison.rows[1]},
        "by": comparison.by,
        "same": comparison.same,
        "equal": comparison.equal,
        "only_in_a": comparison.only[0],
        "only_in_b": comparison.only[1],
        "different": comparison.different,
        "columns": dict(comparison.columns),
        "columns_in_a_alone": comparison.missing[0],
        "columns_in_b_alone": comparison.missing[1],
        "repeated": comparison.repeated,
        "examples": {
            "only_in_a": comparison.only_examples[0].to_dicts(),
            "only_in_b": comparison.only_examples[1].to_dicts(),
            "different": different,
        },
    }
