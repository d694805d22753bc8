"""Read rows back from Postgres, Delta and Iceberg by key and time, and restore accumulators from stored values."""

from __future__ import annotations

import datetime as dt
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.support.iceberg_tables import sql_catalog_table

from slackwater.config.aggregation import Aggregation
from slackwater.connectors.delta.target import DeltaTarget
from slackwater.connectors.iceberg.target import IcebergTarget
from slackwater.connectors.postgres.target import PostgresTarget
from slackwater.connectors.target import ReadableTarget, TargetTable
from slackwater.core.schema import Field
from slackwater.errors import StartError
from slackwater.windows.aggregations import bind_aggregation, find_unrestorable_aggregations, restore_accumulators

AT = dt.datetime(2024, 3, 1, 9, tzinfo=dt.UTC)
US = int(AT.timestamp()) * 10**6
FIELDS = (
    Field("at", "timestamp"), Field("key", "string"), Field("f", "double"), Field("raw", "binary"), Field("n", "bigint"),
    Field("price", "decimal(12,2)"), Field("set", "array<double>"),
)  # fmt: skip
SCHEMA = {f.name: f.polars for f in FIELDS}


def target_row(second: int, key: str | None, f: float | None, n: int) -> tuple[Any, ...]:
    return AT + dt.timedelta(seconds=second, microseconds=1), key, f, b"\0\xff", n, Decimal("1.50"), [0.5, 2.0]


ROWS = pl.DataFrame(
    [
        target_row(0, "a", 1.0, 1),
        target_row(9, "a", 1.0, 2),
        target_row(0, None, 1.0, 3),
        target_row(0, "a", None, 4),
        target_row(0, "b", 1.0, 5),
    ],
    schema=SCHEMA,
    orient="row",
)


@pytest.fixture(params=["postgres", "delta", "iceberg"])
def target_factory(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    def make(identity: tuple[str, ...]) -> PostgresTarget | DeltaTarget | IcebergTarget:
        table = TargetTable("p", FIELDS, identity)
        if request.param == "delta":
            return DeltaTarget(str(tmp_path / "-".join(identity)), "merge", table)
        if request.param == "iceberg":
            return sql_catalog_table(tmp_path).create_target(table, day_of="at")
        url = request.getfixturevalue("postgres").database(f"stored{time.time_ns()}")
        return PostgresTarget(url, "out", table)

    return make


def open_target(target: Any, *identity: str) -> Any:
    new_target = target(identity)
    new_target.open()
    return new_target


def test_rows_are_read_by_key_and_time_range_with_null_matching_null(target_factory: Any) -> None:
    place = open_target(target_factory, "key", "f", "at")
    assert isinstance(place, ReadableTarget)
    place.publish(0, ROWS)
    ranges = pl.DataFrame(
        [("a", 1.0, US, US + 1), (None, 1.0, US + 1, US + 1), ("a", None, US + 2, US + 9), ("c", 1.0, 0, US * 2)],
        schema={"key": pl.String, "f": pl.Float64, "__low": pl.Int64, "__high": pl.Int64},
        orient="row",
    )
    rows = place.read_ranges(ranges, "at")
    assert rows.schema == SCHEMA
    assert rows.sort("n").rows() == ROWS.filter(pl.col("n").is_in([1, 3])).rows()
    assert place.read_ranges(ranges.clear(), "at").is_empty()
    place.close()


def test_rows_without_keys_are_selected_by_time_range(target_factory: Any) -> None:
    place = open_target(target_factory, "at")
    place.publish(0, ROWS.head(2))
    rows = place.read_ranges(pl.DataFrame({"__low": [US + 2], "__high": [US + 10**8]}), "at")
    assert rows["n"].to_list() == [2]
    place.close()


def test_reading_a_dropped_postgres_table_raises_start_error(postgres: Any) -> None:
    place = PostgresTarget(postgres.database("stored_gone"), "out", TargetTable("p", FIELDS, ("at",)))
    place.open()
    place._connection.execute("DROP TABLE out")  # type: ignore[union-attr]
    ranges = pl.DataFrame({"__low": [0], "__high": [1]})
    with pytest.raises(
        StartError, match=r"table out in Postgres at .* cannot be read \(.*does not exist.*nothing was replayed"
    ):
        place.read_ranges(ranges, "at")
    place.close()


def test_reading_deleted_delta_files_raises_start_error(tmp_path: Path) -> None:
    place = DeltaTarget(str(tmp_path / "t"), "merge", TargetTable("p", FIELDS, ("at",)))
    place.open()
    place.publish(0, ROWS.head(2))
    for file in (tmp_path / "t").glob("*.parquet"):
        file.unlink()
    ranges = pl.DataFrame({"__low": [US], "__high": [US + 1]})
    with pytest.raises(StartError, match=r"Delta table .* cannot be read \(.*nothing was replayed"):
        place.read_ranges(ranges, "at")


def test_reading_a_dropped_iceberg_table_raises_start_error(tmp_path: Path) -> None:
    lake = sql_catalog_table(tmp_path)
    place = lake.open_target(TargetTable("p", FIELDS, ("at",)))
    lake.open_client().catalog.drop_table(lake.name)
    ranges = pl.DataFrame({"__low": [US], "__high": [US + 1]})
    with pytest.raises(
        StartError, match=r"Iceberg table .* cannot be read \(the table no longer exists\); nothing was replayed"
    ):
        place.read_ranges(ranges, "at")


KINDS = {"bigint": [None, 5, -7, 2**62], "double": [None, 0.5, -1.25], "decimal(10,2)": [None, Decimal("1.25")]}


@pytest.mark.parametrize("kind", KINDS)
def test_accumulators_restored_from_results_produce_the_same_results(kind: str) -> None:
    column = Field("v", kind)
    calls = ("count", "sum", "avg", "min", "max", "collect_set")
    more = {"collect_set": {"max_values_per_group": 9}}
    aggs = [bind_aggregation(Aggregation(agg=a, column="v", as_=a, **more.get(a, {})), column) for a in calls]
    rows = pl.DataFrame({"v": pl.Series(KINDS[kind], dtype=column.polars), "__ts": range(len(KINDS[kind]))})
    lifted = rows.select(e for a in aggs for e in a.lift(rows, "__ts"))
    lifted = lifted.cast({n: t for a in aggs for n, t in a.accumulators.items()})
    finished = pl.DataFrame([a.finish(lifted).alias(a.name) for a in aggs])
    assert find_unrestorable_aggregations(aggs) == []
    again = restore_accumulators(aggs, finished)
    assert again.schema == lifted.schema
    assert pl.DataFrame([a.finish(again).alias(a.name) for a in aggs]).equals(finished)


def test_aggregations_that_cannot_be_restored_are_named() -> None:
    column = Field("v", "bigint")
    calls = ("sum", "avg", "first", "var", "count_distinct")
    aggs = [bind_aggregation(Aggregation(agg=a, column="v", as_=f"my_{a}"), column) for a in calls]
    lost = ['"my_avg" (avg)', '"my_first" (first)', '"my_var" (var)', '"my_count_distinct" (count_distinct)']
    assert find_unrestorable_aggregations(aggs) == lost
    accumulators = restore_accumulators(aggs, pl.DataFrame({"my_sum": [3]}))
    assert accumulators["my_avg.hi"].to_list() == [None]
    assert accumulators.select("my_sum.n", "my_sum.lo").rows() == [(1, 3)]
