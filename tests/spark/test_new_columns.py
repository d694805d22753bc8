"""New columns in source tables of a running pipeline, with and without crashes.

Rows of SQL and pairs of a join have these columns in every target. Rows read before the change have NULL in them.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pyarrow as pa
import pytest
from tests.support.case_selection import exhaustive, select_cases
from tests.support.command import command
from tests.support.crashes import CrashAtSteps, CrashError
from tests.support.iceberg_tables import connection, open_sql_catalog
from tests.support.source_tables import COLUMNS, FORMATS, row

from slackwater.config import toml
from slackwater.engine import kill_points
from slackwater.errors import SlackwaterError
from slackwater.runner.run import run

pytestmark = pytest.mark.spark

CONFIG = """name = "grows"
[connections.left]
{left}
[connections.right]
{right}
[connections.warehouse]
kind = "postgres"
url = "{url}"
[connections.lake]
{lake}
[connections.files]
kind = "files"
[[sources]]
name = "l"
connection = "left"
query = "{left_query}"
schema_changes = "add"
max_files_per_trigger = 1
[[sources]]
name = "r"
connection = "right"
query = "{right_query}"
schema_changes = "add"
[[stages]]
name = "all"
from = "l"
sql = "SELECT * FROM source"
[[stages]]
name = "pairs"
[stages.join]
kind = "left"
left_source = "l"
right_source = "r"
left_keys = ["user"]
right_keys = ["user"]
time_window_ms = "5s"
event_time_column = "at"
lateness_ms = "1h"
[[targets]]
name = "rows"
from = "all"
connection = "warehouse"
table = "public.rows"
[[targets]]
name = "lake"
from = "pairs"
connection = "lake"
{place}
[[targets]]
name = "files"
from = "pairs"
connection = "files"
path = "out"
[state_store]
{store}
"""
BEFORE = 5  # seconds of the join
DEATHS = ("commit.after", "write.after", "read.after", "ingest.after", "commit.before", "write.before", "note.before")
Pairs = list[tuple[Any, ...]]


class Story:
    """Two tables that a pipeline reads, the rows written to them, and the results."""

    def __init__(self, home: Path, kind: str, store: str, lake: str, url: str) -> None:
        self.home, self.url, self.lake = home, url, lake
        self.names: list[str] = []
        self.written: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
        for side in ("l", "r"):
            (home / side).mkdir()
        self.tables = [FORMATS[kind](home / side) for side in ("l", "r")]
        self.config = home / "grows.toml"
        self.config.write_text(
            CONFIG.format(
                left=self.tables[0].config,
                right=self.tables[1].config,
                left_query=self.tables[0].query,
                right_query=self.tables[1].query,
                url=url,
                lake='kind = "delta"' if lake == "delta" else connection(home),
                place='path = "pairs"' if lake == "delta" else 'table = "shop.pairs"',
                store='kind = "files"\npath = "state"' if store == "files" else f'kind = "postgres"\nurl = "{url}"',
            )
        )

    def append(self, count: int = 3) -> None:
        """Append a version to each table, with values in the newest column."""
        schema = COLUMNS
        for name in self.names:
            schema = schema.append(pa.field(name, pa.int64()))
        for table, existing in zip(self.tables, self.written, strict=True):
            first = len(existing)
            rows = [row(n, **dict.fromkeys(self.names[-1:], n)) for n in range(first, first + count)]
            table.append(rows, schema)
            existing += rows

    def add_column(self) -> None:
        self.names.append(f"c{len(self.names)}")
        for table in self.tables:
            table.add_column(self.names[-1])

    def run(self, spark: Any, **more: Any) -> list[str]:
        lines: list[str] = []
        run(
            toml.load(self.config),
            available_now=True,
            spark=spark,
            on_notice=lambda level, line: lines.append(line),
            **more,
        )
        return lines

    def rows(self) -> Pairs:
        with psycopg.connect(self.url) as db:
            return sorted(db.execute(f'SELECT "at", {", ".join(self.names)} FROM rows').fetchall(), key=str)

    def pairs(self) -> list[Pairs]:
        """Return the pairs in the lake and in the files. Older files lack columns."""
        lake = (
            pl.read_delta(str(self.home / "pairs"))
            if self.lake == "delta"
            else open_sql_catalog(self.home, "shop.pairs").content()
        )
        files = pl.concat([pl.read_parquet(p) for p in (self.home / "out").glob("*.parquet")], how="diagonal")
        columns = [f"{side}_{name}" for side in ("left", "right") for name in ("at", *self.names)]
        return [sorted(frame.select(columns).rows(), key=str) for frame in (lake, files)]

    def answer(self) -> tuple[Pairs, Pairs]:
        """Compute the rows of the left table and the pairs with a loop."""
        left, right = self.written

        def values(row: dict[str, Any]) -> tuple[Any, ...]:
            return (row.get("at"), *(row.get(name) for name in self.names))

        pairs: Pairs = []
        for one in left:
            near = dt.timedelta(seconds=BEFORE)
            partners = [o for o in right if o["user"] == one["user"] and abs(o["at"] - one["at"]) <= near]
            pairs += [(*values(one), *values(other)) for other in partners or [{}]]
        return sorted(map(values, left), key=str), sorted(pairs, key=str)

    def check(self) -> None:
        rows, pairs = self.answer()
        assert self.rows() == rows
        assert self.pairs() == [pairs, pairs]


@pytest.fixture
def make_story(tmp_path: Path, postgres: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, str], Story]:
    monkeypatch.chdir(tmp_path)
    url = postgres.database(f"grows_{abs(hash(str(tmp_path))):x}")
    return lambda kind, store, lake: Story(tmp_path, kind, store, lake, url)


@pytest.mark.parametrize(
    ("kind", "store", "lake", "deaths"),
    select_cases(
        [
            ("delta", "postgres", "iceberg", DEATHS[:2]),
            ("iceberg", "files", "delta", DEATHS[:2]),
            ("delta", "postgres", "delta", DEATHS),
            ("delta", "files", "iceberg", DEATHS),
        ],
        2,
    ),
)
def test_new_columns_are_added_after_a_crash_at_any_step(
    kind: str,
    store: str,
    lake: str,
    deaths: tuple[str, ...],
    make_story: Callable[..., Story],
    spark: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Add a column after each crash. Rows read before the change have NULL in it, and later rows have a value."""
    story = make_story(kind, store, lake)
    story.append()
    story.run(spark)
    for step in deaths:
        story.append()
        dying = CrashAtSteps(step)
        with monkeypatch.context() as patch:
            patch.setattr(kill_points, "fault_injector_from_environment", lambda dying=dying: dying)
            with pytest.raises((CrashError, SlackwaterError)):
                story.run(spark)
        assert dying.crashes == 1
        story.add_column()
        story.append()
    changes = planned(monkeypatch, capsys)
    assert [line.partition(":")[0] for line in changes] == [
        'source "l", columns',
        'source "r", columns',
        "stages[1].columns",
        'target "rows" columns',
        'target "lake" columns',
        'target "files" columns',
    ]
    last = story.names[-1]
    assert f'"left_{last}" (bigint)' in changes[2] and f'"right_{last}" (bigint): ' in changes[2]
    assert "rows of the state have NULL in new columns" in changes[2]
    lines = story.run(spark, flush=True)
    assert [line for line in changes if line not in lines] == changes[:2], (
        "the start says the same; of sources a warning"
    )
    story.check()
    assert planned(monkeypatch, capsys) == []
    assert command(monkeypatch, "state", "verify", "grows.toml") == 0, capsys.readouterr()


def planned(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the lines of `plan` about columns, without their verdicts."""
    capsys.readouterr()
    assert command(monkeypatch, "plan", "grows.toml") == 0
    return [line.split(maxsplit=1)[1] for line in capsys.readouterr().out.splitlines() if "columns: " in line]


def test_run_restarts_itself_with_new_columns(make_story: Callable[..., Story], spark: Any) -> None:
    """The run stays in its process and Spark session. It commits the rows it has read and binds its sources again."""
    story = make_story("delta", "files", "iceberg")
    story.append()
    lines: list[str] = []
    logging.getLogger("slackwater").setLevel(logging.ERROR)
    handle = run(
        toml.load(story.config), spark=spark, background=True, on_notice=lambda level, line: lines.append(line)
    )

    def until(rows: int) -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                if len(story.rows()) == rows:
                    return
            except psycopg.Error:
                pass  # the table, or its column, does not exist yet
            time.sleep(0.1)
        raise AssertionError(f"{rows} rows did not come: {lines}")

    story.names.append("x")
    until(3)
    story.names.clear()
    for total in (6, 9):
        story.add_column()
        story.append()
        until(total)
    handle.stop()
    assert sum("restarts with new columns" in line for line in lines) == 2
    story.run(spark, flush=True)
    story.check()


@exhaustive(beside="test_new_columns.py::test_run_restarts_itself_with_new_columns")
def test_run_fails_with_advice_if_a_new_column_was_dropped_again(make_story: Callable[..., Story], spark: Any) -> None:
    story = make_story("iceberg", "files", "delta")
    story.append()
    story.run(spark)
    story.add_column()
    story.append()
    for table in story.tables:
        with table.table.update_schema() as change:
            change.delete_column("c0")
    with pytest.raises(
        SlackwaterError,
        match=r'the next start did not find them; set schema_changes = "ignore" .* "c0"',
    ):
        story.run(spark)
