"""`show` and `diff`: print the results of a pipeline as a table, JSON or CSV, or compare two results, without Spark."""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import typer

from slackwater.cli.dlq import escape_control_characters
from slackwater.cli.output import align_rows
from slackwater.config import toml
from slackwater.config.pipeline import Pipeline
from slackwater.connectors.target import LabeledRows, RowCount
from slackwater.core import row_format
from slackwater.core.humanize import format_datetime, format_iso, mismatch, plural
from slackwater.core.row_format import format_value
from slackwater.errors import SlackwaterError, StartError, Topic
from slackwater.explain import describe_result_location
from slackwater.query import where_condition
from slackwater.query.results import (
    ResultComparison,
    compare_outputs,
    read_rows_at_location,
    result_reader,
    sort_by_start,
)
from slackwater.secret_masking import mask_secrets
from slackwater.state.protocol import StateStore
from slackwater.state.run_history import KILLED

POLL_SECONDS = 0.5  # time between two checks for new rows
MOST = 2**31 - 1  # the limit that means all rows
LIMIT = 20  # default number of rows
WIDEST = 60  # maximum number of characters in a cell


@dataclass(frozen=True)
class ShowOptions:
    """The options that determine the rows, the columns and the output format.

    `limit`: the maximum number of rows; None means 20, or all rows of a SQL query.
    """

    limit: int | None = None
    as_json: bool = False
    as_csv: bool = False
    where: str | None = None
    columns: tuple[str, ...] = ()
    sql: str | None = None

    def check(self, follow: bool) -> None:
        """Raise StartError if the options cannot be combined."""
        if self.as_json and self.as_csv:
            raise StartError("--json and --csv: " + mismatch("both", "one; remove one of them"), Topic.VALUE)
        others = {"--follow": follow, "--where": self.where is not None, "--columns": bool(self.columns)}
        if self.sql is not None and (conflicting := [name for name, is_given in others.items() if is_given]):
            raise StartError(
                f"--sql and {conflicting[0]}: " + mismatch("both", "one; express the selection in the SQL"), Topic.VALUE
            )

    @property
    def is_plain(self) -> bool:
        """Return whether to print whole rows as a table, without a condition or SQL."""
        return not (self.as_json or self.as_csv or self.columns or self.reads_all)

    @property
    def reads_all(self) -> bool:
        """Return whether a condition or SQL needs all rows of the target."""
        return self.where is not None or self.sql is not None

    @property
    def max_rows(self) -> int:
        """Return the maximum number of rows to print."""
        return self.limit or (MOST if self.sql is not None else LIMIT)

    def select(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return the selected rows and columns of a frame. Raises StartError if a condition or SQL is invalid."""
        if self.sql is not None:
            return where_condition.select_with_sql(frame, self.sql)
        return where_condition.select_columns(where_condition.filter_rows(frame, self.where), self.columns)


def show_file(file: Path, view: ShowOptions, follow: bool, target: str | None = None) -> None:
    """Print the newest published rows of a pipeline, ordered by window.

    Args:
        file: The config.
        view: The selected rows and columns, and the output format.
        follow: Whether to print new rows as they are published, until Ctrl-C.
        target: The name of the target; None prints the rows of all targets, one target after the other.

    Raises StartError if the options cannot be combined, or if the results cannot be read.
    """
    view.check(follow)
    pipeline = toml.load(file)
    several = list(pipeline.per_target) if target is None and view.is_plain and not follow else []
    if follow:
        _print_failure(pipeline)
    if len(several) < 2:
        _show_target(pipeline.one_target(target), file, view, follow)
        _print_failure(pipeline)
        return
    for number, (name, target_pipeline) in enumerate(pipeline.per_target.items()):
        print(
            f"{chr(10) if number else ''}{escape_control_characters(name)}: {describe_result_location(target_pipeline)}",
            flush=True,
        )
        try:
            _show_target(target_pipeline, file, view, follow)
        except StartError as error:
            print(error, file=sys.stderr, flush=True)
    _print_failure(pipeline)


def _print_failure(pipeline: Pipeline) -> None:
    """Print to standard error that the last run failed, so that nobody mistakes old results for new ones."""
    from slackwater.state.store_access import create_store

    if pipeline.state_store is None or not pipeline.state_store.durable:
        return
    with closing(create_store(pipeline)) as store:
        failure = describe_last_failure(store, pipeline.name)
    if failure is not None:
        print(escape_control_characters(mask_secrets(f"{pipeline.name}: {failure}")), file=sys.stderr, flush=True)


def _show_target(pipeline: Pipeline, file: Path, view: ShowOptions, follow: bool) -> None:
    results = result_reader(pipeline)
    printer = _Printer(pipeline, view)
    try:
        newest = results.read(limit=None if view.reads_all else view.max_rows)
        if newest is None:
            _print_nothing_published(pipeline, file)
        else:
            count = printer.print_rows(newest, view.max_rows)
            if count > view.max_rows and not (view.as_json or view.as_csv):
                printer.print_truncation(
                    view.max_rows, RowCount(count) if view.reads_all else results.count(newest.height)
                )
        while follow:
            _pause()
            if (new_rows := results.poll()) is not None:
                printer.print_rows(new_rows)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except BrokenPipeError:  # `show … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        results.close()


def _pause() -> None:
    time.sleep(POLL_SECONDS)


def _print_nothing_published(pipeline: Pipeline, file: Path) -> None:
    ask = f"to see what it waits for, run: slackwater why {file}"
    try:
        ran, failed = _run_state(pipeline)
    except StartError:
        ran, failed = True, False
    todo = ask if ran else f"start it with: slackwater run {file}; {ask}"
    print(
        f"{pipeline.name}: nothing published yet{'' if failed and not ran else f'; {todo}'}",
        file=sys.stderr,
        flush=True,
    )


def _run_state(pipeline: Pipeline) -> tuple[bool, bool]:
    """Return whether the pipeline has a commit, and whether its last run failed."""
    from slackwater.state.store_access import create_store

    if pipeline.state_store is None or not pipeline.state_store.durable:
        return False, False
    with closing(create_store(pipeline)) as store, store.peek() as snapshot:
        return snapshot is not None, describe_last_failure(store, pipeline.name) is not None


class _Printer:
    """Prints frames of rows one after the other. Column widths grow only if a later row needs more space."""

    def __init__(self, pipeline: Pipeline, view: ShowOptions) -> None:
        window = pipeline.target_stage.transform.window
        self._start = None if window is None else window.window_start_column
        self._view, self._widths = view, list[int]()
        self._names: list[str] = []

    def print_rows(self, frame: pl.DataFrame, limit: int | None = None) -> int:
        """Print at most `limit` rows. Return the total number of rows."""
        view = self._view
        frame = view.select(sort_by_start(frame, self._start))
        count = frame.height
        if limit is not None:
            frame = frame.head(limit) if view.sql is not None else frame.tail(limit)
        lines = (
            row_format.json_lines(frame) if view.as_json else self._csv(frame) if view.as_csv else self._table(frame)
        )
        if written := "\n".join(lines):
            print(written, flush=True)
        return count

    def _csv(self, frame: pl.DataFrame) -> Iterator[str]:
        is_first = frame.columns != self._names
        self._names = frame.columns
        return row_format.csv_lines(frame, is_first)

    def print_truncation(self, limit: int, total: RowCount | None) -> None:
        """Print to standard error that only `limit` rows are shown. `total`: the total number of rows, if known."""
        newest = "the first" if self._view.sql is not None else "the newest" if self._start else "the last"
        count_text = plural(limit, "row") + ("" if total is None else f" of {total}")
        print(f"({newest} {count_text}; more with --limit)", file=sys.stderr, flush=True)

    def _table(self, frame: pl.DataFrame) -> Iterator[str]:
        head, rows, widths = _cells(frame)
        numbers = [t.is_numeric() for t in frame.schema.values()]
        if head != self._names:
            self._names, self._widths = head, widths
            yield _format_row(head, widths, numbers)
        self._widths = [max(pair) for pair in zip(self._widths, widths, strict=True)]
        for row in rows:
            yield _format_row(row, self._widths, numbers)


def table_lines(frame: pl.DataFrame) -> Iterator[str]:
    """Format a frame as the lines of a table."""
    head, rows, widths = _cells(frame)
    numbers = [t.is_numeric() for t in frame.schema.values()]
    for row in (head, *rows):
        yield _format_row(row, widths, numbers)


def _cells(frame: pl.DataFrame) -> tuple[list[str], list[list[str]], list[int]]:
    """Format a frame as text: return the column names, the cells of each row, and the width of each column."""
    rows = [[format_cell(v) for v in row] for row in frame.iter_rows()]
    head = [escape_control_characters(c) for c in frame.columns]
    return head, rows, [max(map(len, column)) for column in zip(head, *rows, strict=True)]


def _format_row(cells: Sequence[str], widths: Sequence[int], numbers: Sequence[bool]) -> str:
    columns = zip(cells, widths, numbers, strict=True)
    return "  ".join(c.rjust(w) if right else c.ljust(w) for c, w, right in columns).rstrip()


def format_cell(value: Any) -> str:
    """Format a value for a table cell. Times without fractions are shown to the second; control characters are escaped."""
    if isinstance(value, dt.datetime):
        return format_datetime(value) + ("Z" if value.tzinfo else "")
    if isinstance(value, list | dict):
        value = row_format.format_json(value)
    formatted = escape_control_characters(row_format.format_value(value))
    return formatted if len(formatted) <= WIDEST else f"{formatted[: WIDEST - 1]}…"


# -- the last run ------------------------------------------------------------------------------------------------------


def describe_last_failure(store: StateStore, pipeline: str) -> str | None:
    """Describe the failure of the last run on one line.

    Return None if the last run ended normally, if a runner is active, or if no run is recorded.
    """
    try:
        runs = store.runs()
        if not runs or store.runner() is not None:
            return None
    except (SlackwaterError, OSError):  # an unreadable history must not hide the results
        return None
    run = runs[-1]
    if run.outcome is None:
        return f"the last run, which began at {format_iso(run.started_us)}, {KILLED}; the next start reads uncommitted rows again"
    if run.outcome != "failed" or run.ended_us is None:
        return None
    return f"the last run failed at {format_iso(run.ended_us)}: {(run.error or 'no error was recorded').removeprefix(f'{pipeline}: ')}"


# -- diff ----------------------------------------------------------------------------------------------------------------


def print_differences_of_outputs(
    a: str, b: str, by: str | None, ignore: str | None, tolerance: float, examples: int, as_json: bool
) -> None:
    """Compare two outputs or states, and print the result.

    Args:
        a: The location of the first output.
        b: The location of the second output.
        by: Comma-separated names of the columns that identify a row; None for the columns that the outputs define.
        ignore: Comma-separated names of columns that are not compared.
        tolerance: The tolerance for numbers, relative to the largest of 1 and their absolute values.
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
