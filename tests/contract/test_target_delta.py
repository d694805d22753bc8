"""Delta target with the real library: epochs published once, rows upserted by identity, and columns compared."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema
from tests.support.boundary_values import AT, NARROW, TYPES, WIDE, build_typed_frame

from slackwater.connectors.delta.target import DeltaTarget
from slackwater.connectors.target import TargetTable
from slackwater.core.schema import Field, to_arrow_schema
from slackwater.errors import PublishError, StartError


def all_type_rows() -> pl.DataFrame:
    return build_typed_frame(WIDE, *zip(*TYPES.values(), strict=True), (None,) * len(WIDE))


def open_target(path: Path, table: TargetTable, mode: str = "merge") -> DeltaTarget:
    target = DeltaTarget(str(path), mode, table)
    target.open()
    return target


def read_table(path: Path) -> pl.DataFrame:
    frame = pl.from_arrow(pa.table(DeltaTable(path).to_pyarrow_table()))
    assert isinstance(frame, pl.DataFrame)
    return frame.sort(pl.all())


def row_with_key(key: str | None, n: int) -> tuple[object, ...]:
    return (AT.replace(tzinfo=dt.UTC), key, n)


@pytest.mark.parametrize("mode", ["merge", "append"])
def test_epoch_is_published_once_and_older_epochs_are_ignored(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "deep" / "table"
    table = TargetTable("p", NARROW, ("at", "key"))
    target = open_target(path, table, mode)
    assert target.last_epoch() == -1
    target.publish(3, build_typed_frame(NARROW, row_with_key("a", 1)))
    version = DeltaTable(path).version()
    for epoch in (3, 2):
        target.publish(epoch, build_typed_frame(NARROW, row_with_key("a", 2)))
        open_target(path, table, mode).publish(epoch, build_typed_frame(NARROW, row_with_key("b", 2)))
    assert DeltaTable(path).version() == version
    open_target(path, TargetTable("other", NARROW, ("at", "key")), mode).publish(
        0, build_typed_frame(NARROW, row_with_key("c", 9))
    )
    target.publish(4, build_typed_frame(NARROW, row_with_key("a", 5)))
    assert target.last_epoch() == 4
    assert read_table(path)["n"].to_list() == ([5, 9] if mode == "merge" else [1, 5, 9])
    target.close()


@pytest.mark.parametrize("mode", ["merge", "append"])
def test_empty_epoch_writes_its_marker(tmp_path: Path, mode: str) -> None:
    target = open_target(tmp_path, TargetTable("p", NARROW, ("at", "key")), mode)
    target.publish(7, build_typed_frame(NARROW))
    assert target.last_epoch() == 7
    assert read_table(tmp_path).is_empty()


@pytest.mark.parametrize("field", WIDE, ids=lambda f: f.name)
def test_every_type_round_trips_and_works_as_a_key(tmp_path: Path, field: Field) -> None:
    fields = (field, Field("n", "bigint"))
    target = open_target(tmp_path, TargetTable("p", fields, (field.name,)))
    keys = all_type_rows()[field.name]
    for epoch in range(2):
        target.publish(epoch, keys.to_frame().with_columns(n=pl.lit(epoch, pl.Int64)))
        target.publish(10 + epoch, keys.drop_nulls().to_frame().with_columns(n=pl.lit(9, pl.Int64)))
    assert read_table(tmp_path).select(field.name).equals(keys.to_frame().sort(pl.all()))
    assert sorted(read_table(tmp_path)["n"].to_list()) == [0, 9, 9]


def test_composite_key_comparison_is_null_safe(tmp_path: Path) -> None:
    fields = (*WIDE, Field("n", "bigint"))
    target = open_target(tmp_path, TargetTable("p", fields, tuple(f.name for f in WIDE)))
    for epoch in range(2):
        target.publish(epoch, all_type_rows().with_columns(n=pl.lit(epoch, pl.Int64)))
    assert read_table(tmp_path).equals(all_type_rows().with_columns(n=pl.lit(1, pl.Int64)).sort(pl.all()))
    assert pa.schema(DeltaTable(tmp_path).schema().to_arrow()).equals(to_arrow_schema(list(fields)))


def test_merge_accepts_column_names_with_quotes_dots_and_spaces(tmp_path: Path) -> None:
    names = ("a.b", 'say "x"', "it's", "Two Words", "back`tick", "select")
    fields = (*(Field(name, "int") for name in names), Field("n", "bigint"))
    target = open_target(tmp_path, TargetTable("p", fields, names))
    target.publish(0, build_typed_frame(fields, (*range(len(names)), 1), (*range(1, len(names) + 1), 1)))
    target.publish(1, build_typed_frame(fields, (*range(len(names)), 2)))
    assert read_table(tmp_path)["n"].to_list() == [2, 1]


def test_merge_scans_only_files_that_may_contain_its_keys(tmp_path: Path) -> None:
    target = open_target(tmp_path, TargetTable("p", NARROW, ("at", "key")))
    days = [AT.replace(day=day, tzinfo=dt.UTC) for day in range(1, 6)]
    for epoch, day in enumerate(days):
        target.publish(epoch, build_typed_frame(NARROW, (day, "a", 0)))
    target.publish(9, build_typed_frame(NARROW, (days[2], "a", 1), (days[2], "b", 1)))
    metrics = DeltaTable(tmp_path).history(1)[0]["operationMetrics"]
    assert (metrics["num_target_files_scanned"], metrics["num_target_files_skipped_during_scan"]) == (1, 4)
    assert read_table(tmp_path)["n"].to_list() == [0, 0, 1, 1, 0, 0]


def test_epoch_marker_survives_a_delta_checkpoint(tmp_path: Path) -> None:
    table = TargetTable("p", NARROW, ("at", "key"))
    open_target(tmp_path, table).publish(5, build_typed_frame(NARROW, row_with_key("a", 1)))
    DeltaTable(tmp_path).create_checkpoint()
    (tmp_path / "_delta_log" / f"{1:020d}.json").unlink()
    assert open_target(tmp_path, table).last_epoch() == 5


def test_table_with_columns_in_a_different_order_is_accepted(tmp_path: Path) -> None:
    DeltaTable.create(tmp_path, Schema.from_arrow(to_arrow_schema(list(reversed(NARROW)))))
    for epoch, mode in enumerate(("merge", "append")):
        open_target(tmp_path, TargetTable("p", NARROW, ("at", "key")), mode).publish(
            epoch, build_typed_frame(NARROW, row_with_key("a", epoch))
        )
    assert read_table(tmp_path)["n"].to_list() == [0, 1]


def test_table_with_different_columns_is_refused_with_a_one_line_error(tmp_path: Path) -> None:
    existing_fields = [
        Field("at", "timestamp_ntz"),
        Field("key", "string"),
        Field("d", "decimal(10,2)"),
        Field("extra", "int"),
    ]
    DeltaTable.create(tmp_path, Schema.from_arrow(to_arrow_schema(existing_fields)))
    fields = (*NARROW, Field("d", "decimal(12,2)"))
    with pytest.raises(StartError) as caught:
        open_target(tmp_path, TargetTable("p", fields, ("at",)))
    assert str(caught.value) == (
        f'the columns of Delta table {tmp_path} differ from those of the pipeline: column "at" is timestamp_ntz, expected timestamp; '
        'column "n" (bigint) is missing; column "d" is decimal(10,2), expected decimal(12,2); '
        'column "extra" (int) is not in the output of the pipeline; change the table or the pipeline, or choose another path'
    )


def test_two_runners_publish_the_same_epoch_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = TargetTable("p", NARROW, ("at", "key"))
    late, early = open_target(tmp_path, table, "append"), open_target(tmp_path, table, "append")
    early.publish(0, build_typed_frame(NARROW, row_with_key("a", 1)))
    monkeypatch.setattr(DeltaTable, "update_incremental", lambda self: None)
    with pytest.raises(
        PublishError,
        match=r"did not accept epoch 0 \(.*\); the epoch is committed and will be published at the next start",
    ):
        late.publish(0, build_typed_frame(NARROW, row_with_key("a", 1)))
    monkeypatch.undo()
    late.publish(0, build_typed_frame(NARROW, row_with_key("a", 1)))
    assert read_table(tmp_path).height == 1


def test_path_that_cannot_hold_a_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match=r"Delta table .* cannot be opened \(.*\); expected"):
        open_target(tmp_path / "file" / "table", TargetTable("p", NARROW, ("at",)))


def test_column_names_that_differ_only_in_case_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"Duplicate field name"):
        open_target(tmp_path, TargetTable("p", (Field("a", "int"), Field("A", "int")), ("a",)))


def test_merge_without_an_identity_is_refused() -> None:
    with pytest.raises(StartError, match='use mode = "append"'):
        DeltaTarget("t", "merge", TargetTable("p", NARROW, None))


def test_secrets_are_masked_in_error_messages(tmp_path: Path) -> None:
    options = {"aws_secret_access_key": "hush"}
    target = DeltaTarget(str(tmp_path / "hush" / "t"), "append", TargetTable("p", NARROW, None), options)
    assert target._reason(OSError("bad hush")) == "bad ***"
