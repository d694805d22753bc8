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
from tests.support.iceberg_tables import IcebergLake, open_sql_catalog

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


class Place:
    """A table in one system. `open` returns a target, `content` the rows, and `files` the number of data files."""

    def __init__(
        self, open_: Callable[[TargetTable], Any], content: Callable[[], pl.DataFrame], files: Callable[[], int]
    ) -> None:
        self.made, self.content, self.files = open_, content, files

    @contextmanager
    def open(self, table: TargetTable) -> Iterator[Any]:
        target = self.made(table)
        target.open()
        yield target
        target.close()


def _postgres(home: Path, postgres: Any) -> Place:
    url = postgres.database(f"new_columns_{abs(hash(str(home))):x}")

    def content() -> pl.DataFrame:
        with psycopg.connect(url) as db:
            cursor = db.execute("SELECT * FROM out")
            names = [c.name for c in cursor.description or ()]
            return pl.DataFrame(cursor.fetchall(), schema=names, orient="row", infer_schema_length=None)

    return Place(lambda table: PostgresTarget(url, "public.out", table), content, lambda: 0)


def _delta(home: Path, postgres: Any) -> Place:
    path = str(home / "out")
    return Place(
        lambda table: DeltaTarget(path, "merge", table),
        lambda: pl.read_delta(path),
        lambda: len(DeltaTable(path).file_uris()),
    )


def _iceberg(home: Path, postgres: Any) -> Place:
    lake: IcebergLake = open_sql_catalog(home, "shop.out")
    return Place(lake.target, lake.content, lambda: len(list(lake.table().scan().plan_files())))


@pytest.fixture(params=[_postgres, _delta, _iceberg], ids=["postgres", "delta", "iceberg"])
def place(request: pytest.FixtureRequest, tmp_path: Path, postgres: Any) -> Place:
    new_place: Place = request.param(tmp_path, postgres)
    return new_place


def frame(table: TargetTable, **values: Any) -> pl.DataFrame:
    return pl.DataFrame([values], schema={f.name: f.polars for f in table.fields})


def test_new_columns_are_added_and_existing_rows_have_null(place: Place) -> None:
    with place.open(TABLE) as target:
        target.publish(0, frame(TABLE, k="a", n=1))
    files = place.files()
    with place.open(MORE):
        pass  # the run ends before it publishes
    assert place.files() == files, "no file was rewritten"
    assert place.content().rows(named=True) == [{"k": "a", "n": 1, **dict.fromkeys(MORE.new)}]
    with place.open(MORE) as target:
        target.publish(1, frame(MORE, k="b", n=2, few=3, tags=["x", None]))
        target.publish(1, frame(MORE, k="b", n=9, few=9))
        target.publish(2, frame(MORE, k="a", n=4, few=5))
    rows = {r["k"]: (r["n"], r["few"], r["price"], r["tags"]) for r in place.content().rows(named=True)}
    assert rows == {"a": (4, 5, None, None), "b": (2, 3, None, ["x", None])}
    with place.open(replace(MORE, new=())) as target:  # the next start
        target.publish(3, frame(MORE, k="c", n=6, few=7))
    assert place.content().height == 3


@pytest.mark.parametrize("wrong", select_cases(["another type", "not said"]))
def test_other_schema_mismatch_is_refused_and_adds_no_columns(place: Place, wrong: str) -> None:
    with place.open(TABLE):
        pass
    if wrong == "another type":
        changed_table = replace(MORE, fields=(Field("k", "string"), Field("n", "string"), *NEW))
        words = r'column "n" is bigint, expected (text|string)'
    else:
        changed_table, words = replace(MORE, new=MORE.new[1:]), r'column "few" \((smallint|int)\) is missing'
    with pytest.raises(StartError, match=words), place.open(changed_table):
        pass
    assert place.content().columns == ["k", "n"]


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
