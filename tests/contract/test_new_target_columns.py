"""New columns in target tables: added once, as a metadata change, and only if all other columns match."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pytest
from deltalake import DeltaTable
from tests.support.case_selection import select_cases
from tests.support.iceberg_tables import IcebergCatalogTable, sql_catalog_table

from slackwater.connectors.delta.target import DeltaTarget
from slackwater.connectors.postgres.target import PostgresTarget
from slackwater.connectors.target import TargetTable
from slackwater.core.schema import Field
from slackwater.errors import StartError

BEFORE = (Field("k", "string"), Field("n", "bigint"))
NEW = (
    Field("few", "smallint"),
    Field("price", "decimal(10,2)"),
    Field("seen", "timestamp"),
    Field("tags", "array<string>"),
)
TABLE = TargetTable("p", BEFORE, ("k",), "s")
MORE = replace(TABLE, fields=(*BEFORE, *NEW), new=tuple(f.name for f in NEW))


class TargetSystem:
    """A table in one system. `open_target` returns a target, `read_rows` the rows, and `files` the number of data files."""

    def __init__(
        self, open_: Callable[[TargetTable], Any], content: Callable[[], pl.DataFrame], files: Callable[[], int]
    ) -> None:
        self.made, self.content, self.files = open_, content, files

    @contextmanager
    def open_target(self, table: TargetTable) -> Iterator[Any]:
        target = self.made(table)
        target.open()
        yield target
        target.close()


def _postgres_system(home: Path, postgres: Any) -> TargetSystem:
    url = postgres.database(f"new_columns_{abs(hash(str(home))):x}")

    def content() -> pl.DataFrame:
        with psycopg.connect(url) as db:
            cursor = db.execute("SELECT * FROM out")
            names = [c.name for c in cursor.description or ()]
            return pl.DataFrame(cursor.fetchall(), schema=names, orient="row", infer_schema_length=None)

    return TargetSystem(lambda table: PostgresTarget(url, "public.out", table), content, lambda: 0)


def _delta_system(home: Path, postgres: Any) -> TargetSystem:
    path = str(home / "out")
    return TargetSystem(
        lambda table: DeltaTarget(path, "merge", table),
        lambda: pl.read_delta(path),
        lambda: len(DeltaTable(path).file_uris()),
    )


def _iceberg_system(home: Path, postgres: Any) -> TargetSystem:
    lake: IcebergCatalogTable = sql_catalog_table(home, "shop.out")
    return TargetSystem(lake.create_target, lake.read_rows, lambda: len(list(lake.load_table().scan().plan_files())))


@pytest.fixture(params=[_postgres_system, _delta_system, _iceberg_system], ids=["postgres", "delta", "iceberg"])
def target_system(request: pytest.FixtureRequest, tmp_path: Path, postgres: Any) -> TargetSystem:
    new_place: TargetSystem = request.param(tmp_path, postgres)
    return new_place


def build_one_row_frame(table: TargetTable, **values: Any) -> pl.DataFrame:
    return pl.DataFrame([values], schema={f.name: f.polars for f in table.fields})


def test_new_columns_are_added_and_existing_rows_have_null(target_system: TargetSystem) -> None:
    with target_system.open_target(TABLE) as target:
        target.publish(0, build_one_row_frame(TABLE, k="a", n=1))
    files = target_system.files()
    with target_system.open_target(MORE):
        pass  # the run ends before it publishes
    assert target_system.files() == files, "no file was rewritten"
    assert target_system.content().rows(named=True) == [{"k": "a", "n": 1, **dict.fromkeys(MORE.new)}]
    with target_system.open_target(MORE) as target:
        target.publish(1, build_one_row_frame(MORE, k="b", n=2, few=3, tags=["x", None]))
        target.publish(1, build_one_row_frame(MORE, k="b", n=9, few=9))
        target.publish(2, build_one_row_frame(MORE, k="a", n=4, few=5))
    rows = {r["k"]: (r["n"], r["few"], r["price"], r["tags"]) for r in target_system.content().rows(named=True)}
    assert rows == {"a": (4, 5, None, None), "b": (2, 3, None, ["x", None])}
    with target_system.open_target(replace(MORE, new=())) as target:  # the next start
        target.publish(3, build_one_row_frame(MORE, k="c", n=6, few=7))
    assert target_system.content().height == 3


@pytest.mark.parametrize("wrong", select_cases(["another type", "not said"]))
def test_other_schema_mismatch_is_refused_and_adds_no_columns(target_system: TargetSystem, wrong: str) -> None:
    with target_system.open_target(TABLE):
        pass
    if wrong == "another type":
        changed_table = replace(MORE, fields=(Field("k", "string"), Field("n", "string"), *NEW))
        words = r'column "n" is bigint, expected (text|string)'
    else:
        changed_table, words = replace(MORE, new=MORE.new[1:]), r'column "few" \((smallint|int)\) is missing'
    with pytest.raises(StartError, match=words), target_system.open_target(changed_table):
        pass
    assert target_system.content().columns == ["k", "n"]


def test_error_for_table_of_another_owner_lists_the_new_columns(postgres: Any) -> None:
    url = postgres.database("new_columns_owned")
    target = PostgresTarget(url, "public.out", TABLE)
    target.open()
    target.close()
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("DROP ROLE IF EXISTS columns_writer")
        db.execute("CREATE ROLE columns_writer LOGIN PASSWORD 'w'")
        db.execute("GRANT ALL ON out, slackwater_targets TO columns_writer")
        db.execute("GRANT ALL ON SCHEMA public TO columns_writer")
    _, _, server = url.partition("@")
    with pytest.raises(
        StartError,
        match=r'table public.out .* lacks new columns \("few" \(smallint\), .*\), which could not be added \(must be owner of '
        r"table out\); add them as the owner of the table, then start again",
    ) as raised:
        PostgresTarget(f"postgresql://columns_writer:w@{server}", "public.out", MORE).open()
    assert "\n" not in str(raised.value)
