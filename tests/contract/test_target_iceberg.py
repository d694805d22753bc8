"""Iceberg target on SQL and REST catalogs: epochs are published once despite faults, and rows are upserted by key."""

from __future__ import annotations

import datetime as dt
import logging
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType
from tests.support.boundary_values import AT, NARROW, TYPES, WIDE, build_typed_frame
from tests.support.case_selection import select_cases
from tests.support.iceberg_tables import IcebergCatalogTable, sql_catalog_table
from tests.support.servers.iceberg_rest_catalog import IcebergRestCatalog
from tests.support.servers.object_store import Fault, FaultyProxy

from slackwater.connectors.iceberg import tables as iceberg_tables
from slackwater.connectors.iceberg.tables import IcebergTables, read_all
from slackwater.connectors.iceberg.target import IcebergTarget
from slackwater.connectors.target import TargetTable
from slackwater.core.schema import Field
from slackwater.errors import PublishError, StartError

BY_KEY = TargetTable("p", NARROW, ("at", "key"))
COMMITS = re.compile(r"/v1/.*/tables/[^/]+$")


def all_type_rows() -> pl.DataFrame:
    return build_typed_frame(WIDE, *zip(*TYPES.values(), strict=True), (None,) * len(WIDE))


def row_with_key(key: str | None, n: int, day: int = 1) -> tuple[object, ...]:
    return (AT.replace(day=day, tzinfo=dt.UTC), key, n)


def open_target(
    lake: IcebergCatalogTable, table: TargetTable = BY_KEY, mode: str = "merge", day_of: str | None = "at", **more: str
) -> IcebergTarget:
    return lake.open_target(table, mode, day_of, **more)


@pytest.fixture(params=["sql", "rest"])
def catalog_table(request: pytest.FixtureRequest, tmp_path: Path) -> IcebergCatalogTable:
    if request.param == "sql":
        return sql_catalog_table(tmp_path)
    return IcebergCatalogTable("rest", request.getfixturevalue("rest_catalog").connection_options())


@pytest.mark.parametrize("mode", ["merge", "append"])
def test_epoch_is_published_once_and_older_epoch_is_ignored(catalog_table: IcebergCatalogTable, mode: str) -> None:
    target = open_target(catalog_table, mode=mode)
    assert target.last_epoch() == -1
    target.publish(3, build_typed_frame(NARROW, row_with_key("a", 1)))
    snapshots = catalog_table.count_snapshots()
    for epoch in (3, 2):
        target.publish(epoch, build_typed_frame(NARROW, row_with_key("a", 2)))
        open_target(catalog_table, mode=mode).publish(epoch, build_typed_frame(NARROW, row_with_key("b", 2)))
    assert catalog_table.count_snapshots() == snapshots == 1
    open_target(catalog_table, TargetTable("other", NARROW, ("at", "key")), mode).publish(
        0, build_typed_frame(NARROW, row_with_key("c", 9))
    )
    target.publish(4, build_typed_frame(NARROW, row_with_key("a", 5)))
    assert open_target(catalog_table, mode=mode).last_epoch() == target.last_epoch() == 4
    assert sorted(catalog_table.read_rows()["n"]) == ([5, 9] if mode == "merge" else [1, 5, 9])
    assert (
        sorted(row[2] for row in catalog_table.read_rows_with_duckdb())
        == catalog_table.read_rows().sort("n")["n"].to_list()
    )
    target.close()


@pytest.mark.parametrize("mode", ["merge", "append"])
def test_empty_epoch_writes_marker_without_snapshot(catalog_table: IcebergCatalogTable, mode: str) -> None:
    target = open_target(catalog_table, mode=mode)
    target.publish(7, build_typed_frame(NARROW))
    assert open_target(catalog_table, mode=mode).last_epoch() == 7
    assert catalog_table.read_rows().is_empty() and catalog_table.count_snapshots() == 0


def test_superseded_rows_are_deleted_and_other_rows_remain(
    catalog_table: IcebergCatalogTable, caplog: pytest.LogCaptureFixture
) -> None:
    target = open_target(catalog_table)
    target.publish(
        0, build_typed_frame(NARROW, *(row_with_key(key, 0, day) for day in (1, 2, 3) for key in ("a", "b", None)))
    )
    gone = build_typed_frame(NARROW[:2], row_with_key(None, 0, 2)[:2], row_with_key("never", 0, 3)[:2])
    with caplog.at_level(logging.INFO, "slackwater"):
        target.publish(1, build_typed_frame(NARROW, row_with_key("a", 1, 2), row_with_key("c", 1, 2)), gone)
    assert {(r[0].day, r[1], r[2]) for r in catalog_table.read_rows().rows()} == {
        *((day, key, 0) for day in (1, 3) for key in ("a", "b", None)),
        (2, "a", 1), (2, "b", 0), (2, "c", 1),
    }  # fmt: skip
    message = "epoch 1 replaces rows: 1 file rewritten, with 1 row unchanged, of 2 days from 2024-03-02 to 2024-03-03"
    assert message in caplog.text
    files = len(list(catalog_table.load_table().scan().plan_files()))
    assert files == 3, "the days that were not touched keep their files, and the touched one has one again"
    target.publish(
        2,
        build_typed_frame(NARROW),
        build_typed_frame(NARROW[:2], *(row_with_key(k, 0, 2)[:2] for k in ("a", "b", "c"))),
    )
    assert catalog_table.read_rows().height == 6
    target.publish(3, build_typed_frame(NARROW), build_typed_frame(NARROW[:2], row_with_key("never", 0, 1)[:2]))
    assert (target.last_epoch(), catalog_table.read_rows().height) == (3, 6)


@pytest.mark.parametrize("field", WIDE, ids=lambda f: f.name)
def test_every_type_round_trips_and_works_as_key(tmp_path: Path, field: Field) -> None:
    lake, fields = sql_catalog_table(tmp_path), (field, Field("n", "bigint"))
    target = open_target(lake, TargetTable("p", fields, (field.name,)), day_of=None)
    keys = all_type_rows()[field.name]
    for epoch in range(2):
        target.publish(epoch, keys.to_frame().with_columns(n=pl.lit(epoch, pl.Int64)))
    target.publish(10, keys.drop_nulls().to_frame().with_columns(n=pl.lit(9, pl.Int64)))
    rows = lake.read_rows().with_columns(pl.col(field.name).cast(field.polars)).sort(pl.all())
    assert rows.select(field.name).equals(keys.to_frame().sort(pl.all()))
    assert sorted(rows["n"]) == [1, 9, 9]


def test_key_of_all_columns_treats_nulls_as_equal(catalog_table: IcebergCatalogTable) -> None:
    fields = (*WIDE, Field("n", "bigint"))
    target = open_target(catalog_table, TargetTable("p", fields, tuple(f.name for f in WIDE)), day_of="timestamp")
    for epoch in range(2):
        target.publish(epoch, all_type_rows().with_columns(n=pl.lit(epoch, pl.Int64)))
    rows = catalog_table.read_rows().select(pl.col(f.name).cast(f.polars) for f in fields)
    assert rows.sort(pl.all()).equals(all_type_rows().with_columns(n=pl.lit(1, pl.Int64)).sort(pl.all()))
    assert len(list(catalog_table.load_table().scan().plan_files())) == 3, "one for each day, and one for none"


def test_nested_values_and_special_column_names_round_trip(tmp_path: Path) -> None:
    lake = sql_catalog_table(tmp_path)
    names = ("a.b", 'say "x"', "it's", "Two Words", "back`tick", "select")
    nested = (
        Field("list", "array<int>"),
        Field("pair", "struct<a:string,b:array<double>>"),
        Field("m", "map<string,bigint>"),
    )
    fields = (*(Field(name, "timestamp" if name == "a.b" else "int") for name in names), *nested)
    target = open_target(lake, TargetTable("p", fields, names), day_of=None)
    values = ([1, None], {"a": "x", "b": [0.5]}, [{"key": "k", "value": 2}])
    event_time = AT.replace(tzinfo=dt.UTC)
    target.publish(
        0,
        build_typed_frame(
            fields,
            (event_time, *range(1, len(names)), *values),
            (event_time, *range(2, len(names) + 1), None, None, None),
        ),
    )
    target.publish(1, build_typed_frame(fields, (event_time, *range(1, len(names)), [7], None, None)))
    rows = read_all(lake.load_table()).sort("Two Words")
    assert rows["list"].to_list() == [[7], None] and rows.columns == [f.name for f in fields]
    target.publish(2, build_typed_frame(fields, (event_time, *range(1, len(names)), *values)))
    assert read_all(lake.load_table()).sort("Two Words").select("list", "pair").row(0) == values[:2]


NESTED = (
    "array<struct<a:int>>",
    "array<int>",
    "map<string,struct<a:int>>",
    "map<string,int>",
    "struct<a:array<struct<b:int>>>",
)


@pytest.mark.parametrize("kind", NESTED)
@pytest.mark.parametrize("mode", ["merge", "append"])
def test_null_list_or_map_is_distinguished_from_empty_one(tmp_path: Path, kind: str, mode: str) -> None:
    """Keep NULL lists and maps, also in a rewritten file. PyIceberg itself writes and reads them as empty."""
    fields = (Field("k", "int"), Field("v", kind))
    entry: Any = {"key": "x", "value": {"a": 1} if "struct" in kind else 1} if kind.startswith("map") else 1
    entry = {"a": 1} if kind == NESTED[0] else entry
    full: list[Any] = [[entry], [], None, [entry, entry], None]
    if kind.startswith("struct"):
        full = [{"a": [{"b": 1}, None]}, {"a": []}, {"a": None}, None, {"a": [{"b": None}]}]
    rows = pl.DataFrame({"k": range(5), "v": full}, schema={f.name: f.polars for f in fields})
    lake, table = sql_catalog_table(tmp_path), TargetTable("p", fields, ("k",))
    target = lake.open_target(table, mode)
    target.publish(0, rows)
    rest = rows
    if mode == "merge":
        target.publish(1, rows.head(1), rows.select("k")[1:2])
        rest = rows.filter(pl.col("k") != 1)
    stored = lake.read_rows().sort("k")
    assert stored["v"].to_list() == rest["v"].to_list()
    assert sorted(map(repr, lake.read_rows_with_duckdb("v IS NULL"))) == sorted(map(repr, zip(rest["v"].is_null())))


def test_rows_are_partitioned_by_day_including_days_before_1970(catalog_table: IcebergCatalogTable) -> None:
    fields = (*NARROW, Field("at_day", "string"))
    target = open_target(catalog_table, TargetTable("p", fields, ("at", "key")))
    days = [
        dt.datetime(1969, 12, 31, 23, tzinfo=dt.UTC),
        dt.datetime(1, 1, 1, tzinfo=dt.UTC),
        AT.replace(tzinfo=dt.UTC),
    ]
    target.publish(0, build_typed_frame(fields, *((day, "a", 0, "x") for day in days), (None, "a", 0, "x")))
    target.publish(1, build_typed_frame(fields, (days[0], "a", 1, "x")))
    assert [f.name for f in catalog_table.load_table().spec().fields] == ["at_day_"], "no column's name"
    assert len({str(t.file.partition) for t in catalog_table.load_table().scan().plan_files()}) == 4
    assert sorted(catalog_table.read_rows()["n"]) == [0, 0, 0, 1]


def test_marker_survives_expiration_of_older_snapshots(catalog_table: IcebergCatalogTable) -> None:
    target = open_target(catalog_table, mode="append")
    for epoch in range(5):
        target.publish(epoch, build_typed_frame(NARROW, row_with_key("a", epoch)))
    catalog_table.expire_old_snapshots()
    assert catalog_table.count_snapshots() == 1
    fresh = open_target(catalog_table, mode="append")
    for stale in (target, fresh):
        stale.publish(4, build_typed_frame(NARROW, row_with_key("a", 99)))
    target.publish(5, build_typed_frame(NARROW, row_with_key("a", 5)))
    assert catalog_table.read_rows().sort("n")["n"].to_list() == list(range(6))


def test_marker_of_another_state_is_ignored_and_existing_rows_are_reported(catalog_table: IcebergCatalogTable) -> None:
    old = open_target(catalog_table, TargetTable("p", NARROW, None, "old"), "append")
    assert old.describe_previous_output() is None
    old.publish(5, build_typed_frame(NARROW, row_with_key("a", 5)))
    assert old.describe_previous_output() is None
    new = open_target(catalog_table, TargetTable("p", NARROW, None, "new"), "append")
    assert (
        new.describe_previous_output()
        == f'rows of another state of "p" in Iceberg table {catalog_table.name}, up to epoch 5'
    )
    new.publish(0, build_typed_frame(NARROW, row_with_key("a", 0)))
    assert new.describe_previous_output() is None
    old.publish(5, build_typed_frame(NARROW, row_with_key("a", 99)))
    assert sorted(catalog_table.read_rows()["n"]) == [0, 5], "an epoch of the old state stays done"


def test_table_with_different_columns_is_refused_with_a_one_line_error(catalog_table: IcebergCatalogTable) -> None:
    catalog = catalog_table.open_client().catalog
    catalog.create_namespace(catalog_table.name.partition(".")[0])
    columns = [("at", LongType(), False), ("key", StringType(), True), ("extra", TimestamptzType(), False)]
    catalog.create_table(
        catalog_table.name, Schema(*(NestedField(i, n, t, required=r) for i, (n, t, r) in enumerate(columns, 1)))
    )
    with pytest.raises(StartError) as caught:
        open_target(catalog_table, TargetTable("p", (*NARROW, Field("d", "decimal(12,2)")), None), "append")
    assert str(caught.value) == (
        f'the columns of Iceberg table {catalog_table.name} differ from those of the pipeline: column "at" is bigint, expected timestamp; '
        'column "n" (bigint) is missing; column "d" (decimal(12,2)) is missing; '
        'column "extra" (timestamp) is not in the output of the pipeline; '
        'column "key" is required, expected an optional one; '
        "change the table or the pipeline, or choose another table"
    )


def test_existing_table_keeps_column_order_and_partitioning(catalog_table: IcebergCatalogTable) -> None:
    catalog_table.open_client().create(catalog_table.name, tuple(reversed(NARROW)), None)
    for epoch, mode in enumerate(("merge", "append")):
        open_target(catalog_table, mode=mode).publish(epoch, build_typed_frame(NARROW, row_with_key("a", epoch)))
    assert catalog_table.read_rows().columns == ["n", "key", "at"] and catalog_table.read_rows().sort("n")[
        "n"
    ].to_list() == [0, 1]
    assert catalog_table.load_table().spec().is_unpartitioned()


@pytest.mark.parametrize("mode", ["merge", "append"])
def test_stale_runner_does_not_change_rows_or_marker(catalog_table: IcebergCatalogTable, mode: str) -> None:
    """The table refuses commits of a runner with an old version, also an empty one, which would reset the marker."""
    stale = open_target(catalog_table, mode=mode)
    for epoch in range(3):
        open_target(catalog_table, mode=mode).publish(
            epoch, build_typed_frame(NARROW, row_with_key(f"k{epoch}", epoch))
        )
    stale.publish(0, build_typed_frame(NARROW))
    late = open_target(catalog_table, mode=mode)
    open_target(catalog_table, mode=mode).publish(3, build_typed_frame(NARROW, row_with_key("k3", 3)))
    late.publish(3, build_typed_frame(NARROW, row_with_key("k3", 99)))
    assert open_target(catalog_table, mode=mode).last_epoch() == 3
    assert catalog_table.read_rows().sort("n")["n"].to_list() == [0, 1, 2, 3]


def test_delayed_marker_commit_is_refused(catalog_table: IcebergCatalogTable) -> None:
    """The network delays a request while the runner retries the commit and continues."""
    target = open_target(catalog_table, mode="append")
    target.publish(0, build_typed_frame(NARROW, row_with_key("a", 0)))
    requests = record_commit_requests(target)
    target.publish(1, build_typed_frame(NARROW))
    target.publish(2, build_typed_frame(NARROW, row_with_key("a", 2)))
    table = catalog_table.load_table()
    with pytest.raises(CommitFailedException):
        table.catalog.commit_table(table, *requests[0])
    assert open_target(catalog_table, mode="append").last_epoch() == 2


def record_commit_requests(target: IcebergTarget) -> list[tuple[Any, Any]]:
    """Record the commit requests to the catalog."""
    requests: list[tuple[Any, Any]] = []
    catalog: Any = target._tables.catalog
    real = catalog.commit_table

    def commit(table: Any, requirements: Any, updates: Any) -> Any:
        requests.append((requirements, updates))
        return real(table, requirements, updates)

    catalog.commit_table = commit
    return requests


def test_epoch_is_rebuilt_after_concurrent_commit_of_another_writer(
    catalog_table: IcebergCatalogTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maintenance and other pipelines also commit. The target then rebuilds the epoch on the new version."""
    target = open_target(catalog_table)
    target.publish(0, build_typed_frame(NARROW, row_with_key("a", 0), row_with_key("b", 0)))
    real, times = IcebergTarget._commit_once, []

    def between(self: IcebergTarget, *arguments: Any) -> None:
        if self is target and len(times) < 3:
            times.append(1)
            open_target(catalog_table, TargetTable("other", NARROW, ("at", "key"))).publish(
                len(times), build_typed_frame(NARROW, row_with_key("b", len(times)))
            )
        real(self, *arguments)

    monkeypatch.setattr(IcebergTarget, "_commit_once", between)
    target.publish(1, build_typed_frame(NARROW, row_with_key("a", 1)))
    assert sorted(r[1:] for r in catalog_table.read_rows().rows()) == [("a", 1), ("b", 3)]


# -- lost answers and duplicate requests -------------------------------------------------------------------------------


@pytest.fixture
def catalog_proxy(rest_catalog: IcebergRestCatalog) -> Iterator[FaultyProxy]:
    with FaultyProxy.start_proxy(rest_catalog.port) as faulty_proxy:
        yield faulty_proxy


def is_commit_request(method: str, path: str) -> bool:
    return method == "POST" and COMMITS.search(path) is not None


def commit_fault_judge(fault: Fault, every: int = 1, first: int = 10**9) -> Callable[[str, str], Fault]:
    seen = [0]

    def judge(method: str, path: str) -> Fault:
        seen[0] += is_commit_request(method, path)
        return fault if is_commit_request(method, path) and seen[0] % every == 0 and seen[0] <= first else ""

    return judge


@pytest.mark.parametrize("mode", select_cases(["merge", "append"]))
@pytest.mark.parametrize("fault", ["lost", "twice", "dropped", "503", "slow"])
def test_catalog_faults_neither_lose_nor_duplicate_rows(
    catalog_proxy: FaultyProxy, rest_catalog: IcebergRestCatalog, fault: Fault, mode: str
) -> None:
    lake = IcebergCatalogTable("rest", rest_catalog.connection_options())
    target = open_target(lake, mode=mode, **rest_catalog.connection_options(catalog_proxy.port))
    catalog_proxy.judge, catalog_proxy.pause_s = commit_fault_judge(fault, 2), 0.05
    for epoch in range(6):
        target.publish(epoch, build_typed_frame(NARROW, row_with_key("a", epoch), row_with_key(f"b{epoch}", epoch)))
        if epoch == 2:
            lake.expire_old_snapshots()
    assert len(catalog_proxy.faults) >= 3 and all(is_commit_request(m, p) for m, p, _ in catalog_proxy.faults)
    assert open_target(lake, mode=mode).last_epoch() == 5
    expected = [("b0", 0), ("b1", 1), ("b2", 2), ("b3", 3), ("b4", 4), ("b5", 5)]
    expected = sorted([*expected, *([("a", 5)] if mode == "merge" else [("a", n) for n in range(6)])])
    assert sorted(r[1:] for r in lake.read_rows().rows()) == expected
    assert sorted(r[1:] for r in lake.read_rows_with_duckdb()) == expected


def test_table_creation_resumes_after_lost_answers(
    catalog_proxy: FaultyProxy, rest_catalog: IcebergRestCatalog
) -> None:
    """Lose the answer to the creation of the namespace, then of the table. Both exist at the next start."""
    lake = IcebergCatalogTable("rest", rest_catalog.connection_options())
    catalog_proxy.judge = lambda method, path: (
        "lost" if method == "POST" and not is_commit_request(method, path) else ""
    )
    for _ in range(2):
        with pytest.raises(StartError) as caught_:
            open_target(lake, mode="append", **rest_catalog.connection_options(catalog_proxy.port))
        assert str(caught_.value) == (
            f"Iceberg table {lake.name} cannot be opened (Remote end closed connection without response); "
            'check the options of the rest catalog "default"'
        )
    target = open_target(lake, mode="append", **rest_catalog.connection_options(catalog_proxy.port))
    target.publish(0, build_typed_frame(NARROW, row_with_key("a", 0)))
    assert lake.read_rows().sort("n")["n"].to_list() == [0]


def test_unreachable_catalog_is_reported_and_epoch_is_published_later(
    catalog_proxy: FaultyProxy, rest_catalog: IcebergRestCatalog
) -> None:
    lake = IcebergCatalogTable("rest", rest_catalog.connection_options())
    target = open_target(lake, mode="append", **rest_catalog.connection_options(catalog_proxy.port))
    catalog_proxy.judge = lambda method, path: "lost" if is_commit_request(method, path) else "dropped"
    with pytest.raises(
        PublishError,
        match=r"did not accept epoch 0 \(.*\); the epoch is committed and will be published at the next start",
    ):
        target.publish(0, build_typed_frame(NARROW, row_with_key("a", 0)))
    catalog_proxy.judge = lambda method, path: ""
    for again in (target, open_target(lake, mode="append")):
        again.publish(0, build_typed_frame(NARROW, row_with_key("a", 0)))
    assert lake.read_rows().sort("n")["n"].to_list() == [0], "the first commit was taken, and its answer lost"


def test_start_retries_requests_whose_answer_is_lost(
    catalog_proxy: FaultyProxy, rest_catalog: IcebergRestCatalog
) -> None:
    lake = IcebergCatalogTable("rest", rest_catalog.connection_options())
    open_target(lake, mode="append").publish(0, build_typed_frame(NARROW, row_with_key("a", 0)))
    tables, faults = (
        lake.open_client(**rest_catalog.connection_options(catalog_proxy.port)),
        list[Fault](["dropped", "lost"]),
    )
    assert tables.catalog
    catalog_proxy.judge = lambda method, path: faults.pop(0) if faults else ""
    target = IcebergTarget(tables, lake.name, "append", BY_KEY)
    target.open()
    assert not faults and target.last_epoch() == 0


def test_commit_accepted_at_last_retry_is_recognized(
    catalog_proxy: FaultyProxy, rest_catalog: IcebergRestCatalog
) -> None:
    """The catalog refuses five requests and receives the sixth twice. The table shows that the sixth was accepted."""
    lake = IcebergCatalogTable("rest", rest_catalog.connection_options())
    target = open_target(lake, mode="append", **rest_catalog.connection_options(catalog_proxy.port))
    faults: list[Fault] = ["503", "503", "503", "503", "503", "twice"]
    catalog_proxy.judge = lambda method, path: faults.pop(0) if is_commit_request(method, path) else ""
    target.publish(0, build_typed_frame(NARROW, row_with_key("a", 0)))
    assert not faults and lake.read_rows()["n"].to_list() == [0]


def test_pyiceberg_commit_deletes_files_of_accepted_commit(
    catalog_proxy: FaultyProxy, rest_catalog: IcebergRestCatalog
) -> None:
    """Show why Slackwater does not use the commit of PyIceberg: without retries, it breaks the table."""
    lake = IcebergCatalogTable("rest", rest_catalog.connection_options())
    open_target(lake, mode="append").publish(0, build_typed_frame(NARROW, row_with_key("a", 0)))
    table = lake.open_client(**rest_catalog.connection_options(catalog_proxy.port)).load(lake.name)
    assert table is not None
    table.transaction().set_properties({"commit.retry.num-retries": "0"}).commit_transaction()
    catalog_proxy.judge = commit_fault_judge("twice")
    with pytest.raises(CommitFailedException):
        table.append(build_typed_frame(NARROW, row_with_key("a", 1)).to_arrow().cast(table.schema().as_arrow()))
    with pytest.raises(FileNotFoundError):
        lake.read_rows()


def test_two_concurrent_runners_publish_each_epoch_once(catalog_table: IcebergCatalogTable) -> None:
    """Two threads represent two processes, each with a separate catalog and tables."""
    open_target(catalog_table, mode="append")
    start, failed = threading.Barrier(2), []

    def run() -> None:
        target = open_target(catalog_table, mode="append")
        start.wait()
        for epoch in range(5):
            try:
                target.publish(epoch, build_typed_frame(NARROW, row_with_key("a", epoch)))
            except PublishError as error:
                failed.append(error)
                return

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    open_target(catalog_table, mode="append").publish(4, build_typed_frame(NARROW, row_with_key("a", 4)))
    assert len(failed) < 2
    assert catalog_table.read_rows().sort("n")["n"].to_list() == list(range(5))


# -- invalid requests ----------------------------------------------------------------------------------------------------


def test_merge_mode_requires_row_identity() -> None:
    with pytest.raises(StartError, match='use mode = "append"'):
        IcebergTarget(IcebergTables("sql", "default", {}), "n.t", "merge", TargetTable("p", NARROW, None))


def test_unreachable_catalog_is_reported_without_secrets(tmp_path: Path) -> None:
    from slackwater.config.connection import IcebergConnection

    uri = f"postgresql+psycopg://me:hush-hush-hush@127.0.0.1:1/{tmp_path.name}"
    connection = IcebergConnection(
        catalog="sql", options={"uri": uri, "warehouse": "/w", "s3.secret-access-key": "hidden-hidden"}
    )
    with pytest.raises(StartError, match=r"Iceberg table n\.t cannot be opened") as caught_:
        IcebergTarget(
            IcebergTables("sql", "default", connection.options),
            "n.t",
            "append",
            TargetTable("p", NARROW, None),
        ).open()
    assert "hush-hush" not in str(caught_.value) and len(str(caught_.value).splitlines()) == 1
    assert "hush-hush" not in repr(connection) and "hidden" not in repr(connection)


def test_row_of_wrong_type_is_refused_without_retry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = sql_catalog_table(tmp_path)
    target = open_target(lake, mode="append")
    monkeypatch.setattr("time.sleep", lambda s: pytest.fail("nobody waits for this to become better"))
    with pytest.raises(PublishError, match="did not accept epoch 0"):
        target.publish(0, pl.DataFrame({"at": ["x"], "key": ["a"], "n": [1]}))


@pytest.mark.parametrize("epochs", select_cases([12, 104]))
def test_manifest_and_metadata_file_counts_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epochs: int
) -> None:
    lake = sql_catalog_table(tmp_path)
    if epochs < 100:
        few = {"commit.manifest.min-count-to-merge": "10", "write.metadata.previous-versions-max": "10"}
        monkeypatch.setattr(iceberg_tables, "_PROPERTIES", {**iceberg_tables._PROPERTIES, **few})
    target = open_target(lake, mode="append")
    for epoch in range(epochs):
        target.publish(epoch, build_typed_frame(NARROW, row_with_key("a", epoch)))
    snapshot = lake.load_table().current_snapshot()
    most = min(epochs, 100)
    assert snapshot is not None and len(snapshot.manifests(lake.load_table().io)) < most
    assert len(list((tmp_path / "warehouse").rglob("*.metadata.json"))) <= most + 2
    assert lake.read_rows().height == epochs
