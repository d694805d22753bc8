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
from tests.support.command import run_command_for_exit_code
from tests.support.delta_and_iceberg_source_tables import COLUMNS, FORMATS, build_numbered_row
from tests.support.iceberg_tables import sql_catalog_connection, sql_catalog_table
from tests.support.simulated_driver_crashes import CrashAtSteps, CrashError

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


class TablesWithNewColumns:
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
                left=self.tables[0].connection_config,
                right=self.tables[1].connection_config,
                left_query=self.tables[0].query,
                right_query=self.tables[1].query,
                url=url,
                lake='kind = "delta"' if lake == "delta" else sql_catalog_connection(home),
                place='path = "pairs"' if lake == "delta" else 'table = "shop.pairs"',
                store='kind = "files"\npath = "state"' if store == "files" else f'kind = "postgres"\nurl = "{url}"',
            )
        )

    def append_rows(self, count: int = 3) -> None:
        """Append a version to each table, with values in the newest column."""
        schema = COLUMNS
        for name in self.names:
            schema = schema.append(pa.field(name, pa.int64()))
        for table, existing in zip(self.tables, self.written, strict=True):
            first = len(existing)
            rows = [build_numbered_row(n, **dict.fromkeys(self.names[-1:], n)) for n in range(first, first + count)]
            table.append_rows(rows, schema)
            existing += rows

    def add_column(self) -> None:
        self.names.append(f"c{len(self.names)}")
        for table in self.tables:
            table.add_column(self.names[-1])

    def run_pipeline(self, spark: Any, **more: Any) -> list[str]:
        lines: list[str] = []
        run(
            toml.load(self.config),
            available_now=True,
            spark=spark,
            on_notice=lambda level, line: lines.append(line),
            **more,
        )
        return lines

    def read_rows(self) -> Pairs:
        with psycopg.connect(self.url) as db:
            return sorted(db.execute(f'SELECT "at", {", ".join(self.names)} FROM rows').fetchall(), key=str)

    def read_pairs(self) -> list[Pairs]:
        """Return the pairs in the lake and in the files. Older files lack columns."""
        lake = (
            pl.read_delta(str(self.home / "pairs"))
            if self.lake == "delta"
            else sql_catalog_table(self.home, "shop.pairs").read_rows()
        )
        files = pl.concat([pl.read_parquet(p) for p in (self.home / "out").glob("*.parquet")], how="diagonal")
        columns = [f"{side}_{name}" for side in ("left", "right") for name in ("at", *self.names)]
        return [sorted(frame.select(columns).rows(), key=str) for frame in (lake, files)]

    def compute_rows_and_pairs(self) -> tuple[Pairs, Pairs]:
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

    def check_targets(self) -> None:
        rows, pairs = self.compute_rows_and_pairs()
        assert self.read_rows() == rows
        assert self.read_pairs() == [pairs, pairs]


@pytest.fixture
def create_tables_with_new_columns(
    tmp_path: Path, postgres: Any, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, str, str], TablesWithNewColumns]:
    monkeypatch.chdir(tmp_path)
    url = postgres.database(f"grows_{abs(hash(str(tmp_path))):x}")
    return lambda kind, store, lake: TablesWithNewColumns(tmp_path, kind, store, lake, url)


@pytest.mark.parametrize(
    ("kind", "store", "lake", "deaths"),
    select_cases(
        [
            ("delta", "postgres", "iceberg", DEATHS[:2]),
            ("iceberg", "files", "delta", DEATHS[:2]),
            ("delta", "files", "delta", DEATHS),
        ],
        2,
    ),
)
def test_new_columns_are_added_after_a_crash_at_any_step(
    kind: str,
    store: str,
    lake: str,
    deaths: tuple[str, ...],
    create_tables_with_new_columns: Callable[..., TablesWithNewColumns],
    spark: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Add a column after each crash. Rows read before the change have NULL in it, and later rows have a value."""
    story = create_tables_with_new_columns(kind, store, lake)
    story.append_rows()
    story.run_pipeline(spark)
    for step in deaths:
        story.append_rows()
        dying = CrashAtSteps(step)
        with monkeypatch.context() as patch:
            patch.setattr(kill_points, "fault_injector_from_environment", lambda dying=dying: dying)
            with pytest.raises((CrashError, SlackwaterError)):
                story.run_pipeline(spark)
        assert dying.crashes == 1
        story.add_column()
        story.append_rows()
    changes = list_planned_column_changes(monkeypatch, capsys)
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
    lines = story.run_pipeline(spark, flush=True)
    assert [line for line in changes if line not in lines] == changes[:2], (
        "the start says the same; of sources a warning"
    )
    story.check_targets()
    assert list_planned_column_changes(monkeypatch, capsys) == []
    assert run_command_for_exit_code(monkeypatch, "state", "verify", "grows.toml") == 0, capsys.readouterr()


def list_planned_column_changes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the lines of `plan` about columns, without their verdicts."""
    capsys.readouterr()
    assert run_command_for_exit_code(monkeypatch, "plan", "grows.toml") == 0
    return [line.split(maxsplit=1)[1] for line in capsys.readouterr().out.splitlines() if "columns: " in line]


def test_run_restarts_itself_with_new_columns(
    create_tables_with_new_columns: Callable[..., TablesWithNewColumns], spark: Any
) -> None:
    """The run stays in its process and Spark session. It commits the rows it has read and binds its sources again."""
    story = create_tables_with_new_columns("delta", "files", "iceberg")
    story.append_rows()
    lines: list[str] = []
    logging.getLogger("slackwater").setLevel(logging.ERROR)
    handle = run(
        toml.load(story.config), spark=spark, background=True, on_notice=lambda level, line: lines.append(line)
    )

    def until(rows: int) -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                if len(story.read_rows()) == rows:
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
        story.append_rows()
        until(total)
    handle.stop()
    assert sum("restarts with new columns" in line for line in lines) == 2
    story.run_pipeline(spark, flush=True)
    story.check_targets()


@exhaustive(beside="test_new_columns.py::test_run_restarts_itself_with_new_columns")
def test_run_fails_with_advice_if_a_new_column_was_dropped_again(
    create_tables_with_new_columns: Callable[..., TablesWithNewColumns], spark: Any
) -> None:
    story = create_tables_with_new_columns("iceberg", "files", "delta")
    story.append_rows()
    story.run_pipeline(spark)
    story.add_column()
    story.append_rows()
    for table in story.tables:
        with table.table.update_schema() as change:
            change.delete_column("c0")
    with pytest.raises(
        SlackwaterError,
        match=r'the next start did not find them; set schema_changes = "ignore" .* "c0"',
    ):
        story.run_pipeline(spark)
