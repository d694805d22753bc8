"""`show`: the results of a pipeline as a table or as JSON, from wherever it writes them; without Spark."""

from __future__ import annotations

import datetime as dt
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import typer

from slackwater.cli.dlq import plain
from slackwater.config import toml
from slackwater.config.pipeline import Pipeline
from slackwater.core.words import plural
from slackwater.errors import StartError
from slackwater.explain import target_text
from slackwater.query import text
from slackwater.query.published import in_order, published
from slackwater.query.total import Total

POLL_SECONDS = 0.5
WIDEST = 60  # characters of a cell


def show_file(file: Path, limit: int, follow: bool, as_json: bool, target: str | None = None) -> None:
    """Print the newest rows in the order of their windows, then, with `follow`, new ones as they are published.

    Of several targets all, one after the other, unless one is named.
    """
    pipeline = toml.load(file)
    several = list(pipeline.by_target) if target is None and not (follow or as_json) else []
    if len(several) < 2:
        _show(pipeline.one_target(target), file, limit, follow, as_json)
        return
    for number, (name, own) in enumerate(pipeline.by_target.items()):
        print(f"{chr(10) if number else ''}{plain(name)}: {target_text(own)}", flush=True)
        try:
            _show(own, file, limit, follow, as_json)
        except StartError as error:
            print(error, file=sys.stderr, flush=True)


def _show(pipeline: Pipeline, file: Path, limit: int, follow: bool, as_json: bool) -> None:
    results = published(pipeline)
    printer = _Printer(pipeline, as_json)
    try:
        found = results.newest(limit)
        if found is None:
            _nothing_yet(pipeline, file)
        else:
            printer.rows(found, limit)
            if found.height > limit and not as_json:
                printer.left_out(limit, results.total(found.height))
        while follow:
            _pause()
            if (fresh := results.fresh()) is not None:
                printer.rows(fresh)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except BrokenPipeError:  # `show … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        results.close()


def _pause() -> None:
    time.sleep(POLL_SECONDS)


def _nothing_yet(pipeline: Pipeline, file: Path) -> None:
    ask = f"what it waits for: slackwater why {file}"
    try:
        ran = _has_state(pipeline)
    except StartError:
        ran = True
    print(
        f"{pipeline.name}: nothing published yet; {ask if ran else f'it has not run: slackwater run {file}; then {ask}'}",
        file=sys.stderr,
        flush=True,
    )


def _has_state(pipeline: Pipeline) -> bool:
    """Whether it ever committed."""
    from slackwater.runner.assemble import store_of

    if pipeline.state_store is None or not pipeline.state_store.durable:
        return False
    with store_of(pipeline).peek() as snapshot:
        return snapshot is not None


class _Printer:
    """Rows as lines; what follows keeps the columns' widths while it fits."""

    def __init__(self, pipeline: Pipeline, as_json: bool) -> None:
        window = pipeline.last.transform.window
        self._start = None if window is None else window.window_start_column
        self._json, self._widths = as_json, list[int]()
        self._names: list[str] = []

    def rows(self, frame: pl.DataFrame, limit: int | None = None) -> None:
        frame = in_order(frame, self._start)
        frame = frame if limit is None else frame.tail(limit)
        lines = text.json_lines(frame) if self._json else self._table(frame)
        print("\n".join(lines), flush=True)

    def left_out(self, limit: int, total: Total | None) -> None:
        """That these are not all rows. `total`: how many there are, where that is known."""
        newest = "the newest" if self._start else "the last"
        of = plural(limit, "row") + ("" if total is None else f" of {total}")
        print(f"({newest} {of}; more with --limit)", file=sys.stderr, flush=True)

    def _table(self, frame: pl.DataFrame) -> Iterator[str]:
        numbers = [t.is_numeric() for t in frame.schema.values()]
        rows = [[cell(v) for v in row] for row in frame.iter_rows()]
        head = [plain(c) for c in frame.columns]
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        if head != self._names:
            self._names, self._widths = head, widths
            yield _line(head, widths, numbers)
        self._widths = [max(pair) for pair in zip(self._widths, widths, strict=True)]
        for row in rows:
            yield _line(row, self._widths, numbers)


def _line(cells: Sequence[str], widths: Sequence[int], numbers: Sequence[bool]) -> str:
    placed = zip(cells, widths, numbers, strict=True)
    return "  ".join(c.rjust(w) if right else c.ljust(w) for c, w, right in placed).rstrip()


def cell(value: Any) -> str:
    """A value in a table: times to the second if that is all they say; nothing that a terminal would obey."""
    if isinstance(value, dt.datetime):
        shown = f"{value:%Y-%m-%d %H:%M:%S}" + (f".{value:%f}".rstrip("0") if value.microsecond else "")
        return f"{shown}Z" if value.tzinfo else shown
    if isinstance(value, list | dict):
        value = text.plain_json(value)
    shown = plain(text.plain(value))
    return shown if len(shown) <= WIDEST else f"{shown[: WIDEST - 1]}…"
