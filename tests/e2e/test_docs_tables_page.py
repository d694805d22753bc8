"""The pipeline of docs/sources/tables.md on the command line: appended rows, a new column and deleted rows."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.support.case_selection import exhaustive, select_cases
from tests.support.command import run_command_for_exit_code
from tests.support.delta_and_iceberg_source_tables import FORMATS, build_numbered_row
from tests.support.iceberg_tables import sql_catalog_connection, sql_catalog_table
from tests.support.markdown_pages import read_fenced_block

pytestmark = pytest.mark.spark
PAGE = "docs/sources/tables.md"
START = dt.datetime(2024, 3, 1, 9, tzinfo=dt.UTC)


class ClicksTable:
    """The table of the page, in Delta or Iceberg format."""

    def __init__(self, kind: str, home: Path) -> None:
        self.kind, self.home = kind, home
        text = next(b for n in range(9) if '"visits"' in (b := read_fenced_block("toml", n, PAGE)))
        if kind == "iceberg":
            text = text.replace('kind = "delta"', sql_catalog_connection(home)).replace(
                'query = "lake/clicks"', 'query = "shop.clicks"'
            )
            self.lake = sql_catalog_table(home, "shop.clicks")
        (home / "visits.toml").write_text(text)

    def append_rows(self, minutes: range, **columns: list[int]) -> None:
        event_times = pa.array([START + dt.timedelta(minutes=m) for m in minutes], pa.timestamp("us", "UTC"))
        more = {name: pa.array(values, pa.int64()) for name, values in columns.items()}
        rows = pa.table({"user": [f"u{m % 2}" for m in minutes], "at": event_times, **more})
        if self.kind == "delta":
            write_deltalake(
                str(self.home / "lake" / "clicks"), rows, mode="append", schema_mode="merge" if columns else None
            )
            return
        catalog = self.lake.open_client().catalog
        if not catalog.table_exists("shop.clicks"):
            catalog.create_namespace("shop")
            catalog.create_table("shop.clicks", rows.schema)
        table = self.lake.load_table()
        with table.update_schema() as change:
            change.union_by_name(rows.schema)
        table.append(rows)

    def delete_all_rows(self) -> None:
        from deltalake import DeltaTable

        if self.kind == "delta":
            DeltaTable(str(self.home / "lake" / "clicks")).delete()
        else:
            self.lake.load_table().delete()


@exhaustive(beside="test_delta_and_iceberg_sources.py::test_result_table_is_the_source_of_another_pipeline")
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("kind", select_cases(["iceberg", "delta"]))
def test_pipeline_of_the_tables_page_runs_as_documented(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    table = ClicksTable(kind, tmp_path)

    def said(*arguments: str, code: int = 0) -> str:
        capsys.readouterr()
        assert run_command_for_exit_code(monkeypatch, *arguments) == code
        out = capsys.readouterr()
        return out.out + out.err

    refusal = said("check", "visits.toml", "--connect", code=1)
    assert "is not" in refusal or "does not exist" in refusal, "in the catalog, or on the disk"
    table.append_rows(range(10))
    said("check", "visits.toml", "--connect")
    assert f"{kind.capitalize()} table" in said("explain", "visits.toml")
    said("run", "visits.toml", "--available-now")
    table.append_rows(range(10, 60))
    said("run", "visits.toml", "--available-now", "--flush")
    expected = [(f"u{n}", 30, START + dt.timedelta(minutes=n)) for n in range(2)]
    assert read_session_rows(tmp_path) == expected
    said("run", "visits.toml", "--available-now", "--flush")
    assert read_session_rows(tmp_path) == expected, "there was nothing new"
    assert "nothing changed" in said("plan", "visits.toml")
    table.append_rows(range(300, 302), weight=[1, 2])
    assert "new columns in" in said("plan", "visits.toml", code=1), "as the start says it"
    line = said("run", "visits.toml", "--available-now", code=1)
    assert "new columns in" in line and '"weight" (bigint)' in line and "Traceback" not in line
    key = "max_files_per_trigger"
    config = (tmp_path / "visits.toml").read_text()
    (tmp_path / "visits.toml").write_text(config.replace(key, f'schema_changes = "add"\n{key}'))
    line = said("plan", "visits.toml")
    assert 'state has 2 columns, the table has 3 columns, new: "weight" (bigint): the next start adds it' in line
    said("run", "visits.toml", "--available-now", "--flush")
    assert "nothing changed" in said("plan", "visits.toml"), "it was taken"
    expected += [(f"u{n}", 1, START + dt.timedelta(minutes=300 + n)) for n in range(2)]
    assert read_session_rows(tmp_path) == expected
    table.delete_all_rows()
    line = said("run", "visits.toml", "--available-now", code=1)
    assert "removes or rewrites rows" in line and "Traceback" not in line
    assert "will continue at" in said("state", "reset", "visits.toml", "--offsets", "clicks=latest")
    table.append_rows(range(600, 601), weight=[3])
    said("run", "visits.toml", "--available-now", "--flush")
    assert read_session_rows(tmp_path) == [*expected, ("u0", 1, START + dt.timedelta(minutes=600))]


WINDOWS = """name = "sums"
[connections.lake]
KIND
[connections.out]
kind = "delta"
[connections.files]
kind = "files"
[[sources]]
name = "events"
connection = "lake"
query = "QUERY"
max_files_per_trigger = 2
[transform.window]
kind = "tumbling"
duration_ms = "4s"
event_time_column = "at"
lateness_ms = "12s"
late_data = "dlq"
group_by = ["user", "day"]
max_groups_per_window = 100
aggregations = [
    { agg = "count", as = "n" },
    { agg = "sum", column = "price", as = "paid" },
    { agg = "min", column = "seen", as = "first" },
    { agg = "max", column = "seen", as = "last" },
]
[target]
connection = "out"
path = "out/sums"
mode = "merge"
[dead_letter]
connection = "files"
path = "out/letters"
[state_store]
kind = "files"
path = "state"
"""


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
@exhaustive(beside="test_replay_of_dead_letters.py::test_target_has_the_batch_result_after_a_replay")
def test_replay_and_backfill_give_the_results_of_all_rows(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Late rows of a table correct their windows. A backfill gives the results of one run over all rows."""
    monkeypatch.chdir(tmp_path)
    table = FORMATS[kind](tmp_path)
    connection_toml = sql_catalog_connection(tmp_path) if kind == "iceberg" else 'kind = "delta"'
    Path("sums.toml").write_text(WINDOWS.replace("KIND", connection_toml).replace("QUERY", table.query))

    def said(*arguments: str, code: int = 0) -> str:
        capsys.readouterr()
        exit_code = run_command_for_exit_code(monkeypatch, *arguments)
        out = capsys.readouterr()
        assert exit_code == code, out
        return out.out + out.err

    days = ["a b", None, "ä/c%+"]
    rows = [build_numbered_row(n, days[n % 3]) for n in [*range(12), 60, 61]]
    table.append_rows(rows[:12])
    said("run", "sums.toml", "--available-now")
    table.append_rows(rows[12:])
    said("run", "sums.toml", "--available-now")
    late = [build_numbered_row(n, days[n % 3], price=price) for n, price in ((1, 100), (6, 200), (30, 300))]
    table.append_rows(late)
    said("run", "sums.toml", "--available-now", "--flush")
    assert read_window_rows("out/sums") == expected_windows(rows)
    assert "late" in said("dlq", "list", "sums.toml")
    assert "3 letters" in said("dlq", "replay", "sums.toml", "--dry-run")
    assert read_window_rows("out/sums") == expected_windows(rows), "nothing was changed"
    assert "3 letters applied" in said("dlq", "replay", "sums.toml")
    assert read_window_rows("out/sums") == expected_windows(rows + late)
    assert "0 letters applied" in said("dlq", "replay", "sums.toml")
    span = ("--from", "2024-03-01T00:00:04Z", "--to", "2024-03-01T00:00:12Z")
    output = said("backfill", "sums.toml", *span, "--into", "other/sums")
    assert "late" in output and "windows written to" in output
    within = [r for r in rows + late if 4 <= r["at"].second < 12]
    assert read_window_rows("other/sums") == expected_windows(within)
    assert read_window_rows("out/sums") == expected_windows(rows + late), "the pipeline's own results are left alone"
    said("backfill", "sums.toml", *span)
    assert read_window_rows("out/sums") == expected_windows(rows + late), "the same windows again"


def read_window_rows(path: str) -> list[tuple[Any, ...]]:
    frame = pl.read_delta(path).select("user", "day", "window_start", "n", "paid", "first", "last")
    return sorted(frame.rows(), key=str)


def expected_windows(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Compute the windows of these rows with a loop."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for r in rows:
        start = r["at"].replace(microsecond=0) - dt.timedelta(seconds=r["at"].second % 4)
        groups.setdefault((r["user"], r["day"], start), []).append(r)
    paid = {key: sum(Decimal(str(r["price"])) for r in some) for key, some in groups.items()}
    seen = {key: sorted(r["seen"] for r in some) for key, some in groups.items()}
    return sorted(((*k, len(some), paid[k], seen[k][0], seen[k][-1]) for k, some in groups.items()), key=str)


def read_session_rows(home: Path) -> list[tuple[Any, ...]]:
    """Return the written sessions, ordered by their start."""
    frame = pl.concat([pl.read_parquet(p) for p in (home / "out" / "visits").glob("*.parquet")])
    rows = frame.select("user", "clicks", pl.col("window_start").dt.replace_time_zone("UTC")).rows()
    return sorted(rows, key=lambda r: r[2])
