"""The page's pipeline over a table, by the command line: what it holds, then what was appended; a new column; a version that rewrites."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.support.command import command
from tests.support.effort import some
from tests.support.lakes import connection, sql
from tests.support.pages import block

pytestmark = pytest.mark.spark
PAGE = "docs/sources.md"
START = dt.datetime(2024, 3, 1, 9, tzinfo=dt.UTC)


class Clicks:
    """The table of the page, of either format."""

    def __init__(self, kind: str, home: Path) -> None:
        self.kind, self.home = kind, home
        text = next(b for n in range(9) if '"visits"' in (b := block("toml", n, PAGE)))
        if kind == "iceberg":
            text = text.replace('kind = "delta"', connection(home)).replace(
                'query = "lake/clicks"', 'query = "shop.clicks"'
            )
            self.lake = sql(home, "shop.clicks")
        (home / "visits.toml").write_text(text)

    def append(self, minutes: range, **columns: list[int]) -> None:
        at = pa.array([START + dt.timedelta(minutes=m) for m in minutes], pa.timestamp("us", "UTC"))
        more = {name: pa.array(values, pa.int64()) for name, values in columns.items()}
        rows = pa.table({"user": [f"u{m % 2}" for m in minutes], "at": at, **more})
        if self.kind == "delta":
            write_deltalake(
                str(self.home / "lake" / "clicks"), rows, mode="append", schema_mode="merge" if columns else None
            )
            return
        catalog = self.lake.tables().catalog
        if not catalog.table_exists("shop.clicks"):
            catalog.create_namespace("shop")
            catalog.create_table("shop.clicks", rows.schema)
        table = self.lake.table()
        with table.update_schema() as change:
            change.union_by_name(rows.schema)
        table.append(rows)

    def delete(self) -> None:
        from deltalake import DeltaTable

        if self.kind == "delta":
            DeltaTable(str(self.home / "lake" / "clicks")).delete()
        else:
            self.lake.table().delete()


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("kind", some(["iceberg", "delta"]))
def test_the_page_on_tables(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    table = Clicks(kind, tmp_path)

    def said(*arguments: str, code: int = 0) -> str:
        capsys.readouterr()
        assert command(monkeypatch, *arguments) == code
        out = capsys.readouterr()
        return out.out + out.err

    assert "is not" in said("check", "visits.toml", "--connect", code=1), "there, or in the catalog"
    table.append(range(10))
    said("check", "visits.toml", "--connect")
    assert f"{kind.capitalize()} table" in said("explain", "visits.toml")
    said("run", "visits.toml", "--available-now")
    table.append(range(10, 60))
    said("run", "visits.toml", "--available-now", "--flush")
    expected = [(f"u{n}", 30, START + dt.timedelta(minutes=n)) for n in range(2)]
    assert output(tmp_path) == expected
    said("run", "visits.toml", "--available-now", "--flush")
    assert output(tmp_path) == expected, "there was nothing new"
    table.append(range(300, 302), weight=[1, 2])
    line = said("run", "visits.toml", "--available-now", code=1)
    assert "columns are new" in line and '"weight" (bigint)' in line and "Traceback" not in line
    key = "max_files_per_trigger"
    config = (tmp_path / "visits.toml").read_text()
    (tmp_path / "visits.toml").write_text(config.replace(key, f'schema_changes = "add"\n{key}'))
    said("run", "visits.toml", "--available-now", "--flush")
    expected += [(f"u{n}", 1, START + dt.timedelta(minutes=300 + n)) for n in range(2)]
    assert output(tmp_path) == expected
    table.delete()
    line = said("run", "visits.toml", "--available-now", code=1)
    assert "removes or rewrites rows" in line and "Traceback" not in line
    assert "will go on at" in said("state", "reset", "visits.toml", "--offsets", "clicks=latest")
    table.append(range(600, 601), weight=[3])
    said("run", "visits.toml", "--available-now", "--flush")
    assert output(tmp_path) == [*expected, ("u0", 1, START + dt.timedelta(minutes=600))]


def output(home: Path) -> list[tuple[Any, ...]]:
    """The sessions that were written, by their start."""
    found = pl.concat([pl.read_parquet(p) for p in (home / "out" / "visits").glob("*.parquet")])
    rows = found.select("user", "clicks", pl.col("window_start").dt.replace_time_zone("UTC")).rows()
    return sorted(rows, key=lambda r: r[2])
