"""Plan the epochs of table sources without Spark: files of an epoch, order, resumption, and refused tables."""

from __future__ import annotations

import logging
import re
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from tests.support.delta_and_iceberg_source_tables import (
    COLUMNS,
    FORMATS,
    DeltaSourceTable,
    IcebergSourceTable,
    build_numbered_row,
)

from slackwater.connectors.connector import connector_for
from slackwater.connectors.lake_tables.source import LakeTablePlanner
from slackwater.connectors.source import SourceUnavailableError
from slackwater.core.offsets import LakeTableOffsets, parse_offsets
from slackwater.errors import SlackwaterError, StartError
from slackwater.state.commit import SourceRecord

DAYS = ["a b", "ä/c%+", None]


@pytest.fixture(params=FORMATS)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return FORMATS[request.param](tmp_path)


def open_table_source(table: Any, stored_columns: str | None = None, **keys: Any) -> Any:
    spec = table.source(**keys)
    return connector_for(spec.connection).source(None, None, spec, stored_columns)  # type: ignore[arg-type]  # Spark reads the data only


class PlannedRun:
    """Plans a run epoch by epoch. `at` has the offsets that the run would commit."""

    def __init__(self, table: Any, offsets: LakeTableOffsets | None = None, **keys: Any) -> None:
        self.table, self.at = table, offsets
        self.epochs: list[list[int]] = []
        self.lost = 0
        self.source = open_table_source(table, **keys)
        # round trip through the form that a commit stores
        record = SourceRecord.model_validate_json(SourceRecord(offsets=offsets).model_dump_json())
        self.planner = LakeTablePlanner(self.source, record)

    def plan_epoch(self) -> bool:
        part = self.planner.next()
        if part is None:
            return False
        self.at = part.offsets_after
        self.lost += part.lost
        self.epochs.append(sorted(n for file in part.files for n in read_row_numbers(file.path)))
        return True

    def plan_all_epochs(self) -> list[list[int]]:
        while self.plan_epoch():
            pass
        return self.epochs

    @property
    def rows(self) -> list[int]:
        return [n for epoch in self.epochs for n in epoch]


def read_row_numbers(path: str) -> list[int]:
    """Read the numbers that `build_numbered_row` gave to the rows of a file."""
    seconds = pl.read_parquet(path.removeprefix("file://"), columns=["at"], glob=False)["at"].dt.second()
    return [int(n) for n in seconds]


def append_versions(table: Any, *sizes: int, first: int = 0) -> None:
    """Append versions with these numbers of rows, spread over all days."""
    for size in sizes:
        table.append_rows([build_numbered_row(n, DAYS[n % 3]) for n in range(first, first + size)])
        first += size


# -- order of reading --------------------------------------------------------------------------------------------------


def test_current_rows_of_a_table_are_read_before_appended_rows(table: Any) -> None:
    append_versions(table, 4, 3)
    run = PlannedRun(table)
    assert run.plan_epoch()
    assert run.rows == list(range(7))
    assert not run.plan_epoch()
    append_versions(table, 2, 1, first=7)
    assert run.plan_all_epochs()[1:] == [[7, 8, 9]], "versions that are there are an epoch, where nothing bounds it"
    assert PlannedRun(table, run.at).plan_all_epochs() == []


def test_max_files_per_trigger_bounds_epochs_within_and_across_versions(table: Any) -> None:
    """Each version has three files, one for each day. An epoch reads two files."""
    append_versions(table, 6, 3)
    run = PlannedRun(table, max_files_per_trigger=2)
    run.plan_epoch()
    append_versions(table, 3, 3, first=9)
    run.plan_all_epochs()
    assert [len(e) for e in run.epochs[:3]] == [4, 3, 2]
    assert len(run.epochs) == 6
    assert sorted(run.rows) == list(range(15))
    assert sorted(run.rows[:9]) == list(range(9)), "the content comes before what is appended"
    assert sorted(run.rows[:6]) == list(range(6)), "and in it what was added first"


def test_run_that_restarts_at_every_position_reads_the_same_epochs(table: Any) -> None:
    """The offsets suffice, even within the first version of a table that has changed since."""
    append_versions(table, 6)
    whole = PlannedRun(table, max_files_per_trigger=1)
    whole.plan_epoch()
    first = whole.at
    append_versions(table, 3, 4, first=6)
    table.compact_files()
    append_versions(table, 3, first=13)
    whole.plan_all_epochs()
    places = [first]
    rows = whole.epochs[:1]
    while True:
        run = PlannedRun(table, places[-1], max_files_per_trigger=1)
        if not run.plan_epoch():
            break
        rows += run.epochs
        places.append(run.at)
    assert rows == whole.epochs
    assert sorted(n for epoch in rows for n in epoch) == list(range(16)), "compaction brings nothing again"
    assert [p for p in places if p is not None and p.content] != [], "some of the places are within the content"


def test_compaction_is_skipped_and_its_version_counts_as_read(table: Any) -> None:
    append_versions(table, 3)
    run = PlannedRun(table)
    run.plan_all_epochs()
    append_versions(table, 3, first=3)
    table.compact_files()
    run.plan_all_epochs()
    assert run.rows == list(range(6))
    assert run.at is not None and run.at.version == table.read_newest_version()


def test_latest_starting_offsets_read_only_rows_appended_later(table: Any) -> None:
    append_versions(table, 3)
    run = PlannedRun(table, starting_offsets="latest")
    assert not run.plan_epoch()
    append_versions(table, 2, first=3)
    assert run.plan_all_epochs() == [[3, 4]]


def test_starting_version_selects_the_first_version_to_read(table: Any) -> None:
    append_versions(table, 3)
    append_versions(table, 2, first=3)
    version = table.read_newest_version()
    append_versions(table, 2, first=5)
    assert PlannedRun(table, starting_version=version).plan_all_epochs() == [[3, 4, 5, 6]]
    assert [
        sorted(e) for e in PlannedRun(table, starting_version=version, max_files_per_trigger=1).plan_all_epochs()
    ] != []
    with pytest.raises(StartError, match=rf"source \"events\": .* has no {table.word} 99"):
        PlannedRun(table, starting_version=99)


def test_run_on_an_empty_table_waits_for_its_first_rows(tmp_path: Path) -> None:
    table = IcebergSourceTable(tmp_path)
    append_versions(table, 1)
    table.lake.open_client().catalog.drop_table("shop.events")
    catalog = table.lake.open_client().catalog
    catalog.create_table("shop.events", COLUMNS)
    for keys in ({}, {"starting_offsets": "latest"}):
        run = PlannedRun(table, **keys)
        assert not run.plan_epoch()
        append_versions(table, 2)
        assert run.plan_all_epochs() == [[0, 1]]
        catalog.drop_table("shop.events")
        catalog.create_table("shop.events", COLUMNS)


def test_rows_appended_after_the_end_was_set_are_not_read(table: Any) -> None:
    append_versions(table, 3)
    run = PlannedRun(table, max_files_per_trigger=1)
    run.planner.stop_at_current_end()
    assert run.planner.unplanned_files == 3
    append_versions(table, 3, first=3)
    run.plan_all_epochs()
    assert sorted(run.rows) == [0, 1, 2]


# -- refused tables ----------------------------------------------------------------------------------------------------


def test_version_that_deletes_rows_ends_the_run_after_earlier_versions(table: Any) -> None:
    append_versions(table, 3, 2)
    run = PlannedRun(table, max_files_per_trigger=1)
    run.plan_epoch()
    append_versions(table, 3, first=5)
    table.delete_rows("x = 4")
    version = table.read_newest_version()
    append_versions(table, 1, first=8)
    with pytest.raises(SlackwaterError) as raised:
        run.plan_all_epochs()
    assert sorted(run.rows) == list(range(8)), "everything before it was read"
    line = str(raised.value)
    assert "\n" not in line
    assert re.search(
        rf'source "events": \w+ table .*: {table.word} {version}\b.* (is|has) .*(DELETE|delete|overwrite)', line
    )
    assert 'on_rewrite = "skip"' in line
    with pytest.raises(SlackwaterError, match="removes or rewrites rows"):
        PlannedRun(table, run.at).plan_all_epochs()


def test_skipped_version_that_deletes_rows_is_named_and_counted(table: Any, caplog: pytest.LogCaptureFixture) -> None:
    append_versions(table, 3, 3)
    run = PlannedRun(table, on_rewrite="skip")
    run.plan_epoch()
    table.append_rows([build_numbered_row(n, "a b") for n in (6, 7, 8, 9)])
    table.delete_rows("x = 6")  # its file is rewritten with three rows
    version = table.read_newest_version()
    append_versions(table, 1, first=10)
    with caplog.at_level(logging.WARNING, "slackwater"):
        run.plan_all_epochs()
    assert sorted(run.rows) == list(range(11))
    assert run.lost == 3
    assert f"{table.word} {version}" in caplog.text and "skipped, along with the 3 rows" in caplog.text
    assert PlannedRun(table, run.at, on_rewrite="skip").plan_all_epochs() == []


def test_expired_unread_version_ends_the_run_instead_of_losing_rows(table: Any) -> None:
    append_versions(table, 3)
    run = PlannedRun(table)
    run.plan_all_epochs()
    append_versions(table, 1, 1, 1, 1, first=3)
    table.expire_old_versions()
    with pytest.raises(SlackwaterError) as raised:
        PlannedRun(table, run.at).plan_all_epochs()
    assert re.search(
        r'source "events": .*(its log is gone|have expired).*rows would have been lost.*events=latest',
        str(raised.value),
    )
    assert "\n" not in str(raised.value)


def test_an_expired_first_version_ends_the_run(table: Any) -> None:
    append_versions(table, 3)
    run = PlannedRun(table, max_files_per_trigger=1)
    run.plan_epoch()
    append_versions(table, 1, 1, first=3)
    table.expire_old_versions()
    with pytest.raises(SlackwaterError, match=r"is gone|has expired"):
        PlannedRun(table, run.at, max_files_per_trigger=1).plan_all_epochs()


def test_expired_versions_that_were_already_read_are_not_needed(table: Any) -> None:
    append_versions(table, 3, 1)
    run = PlannedRun(table)
    run.plan_all_epochs()
    append_versions(table, 2, first=4)
    table.expire_old_versions()
    assert PlannedRun(table, run.at).plan_all_epochs() == [[4, 5]]


def test_recreated_table_of_the_same_name_is_refused(table: Any, tmp_path: Path) -> None:
    append_versions(table, 3)
    run = PlannedRun(table)
    run.plan_all_epochs()
    if isinstance(table, DeltaSourceTable):
        shutil.rmtree(table.path)
    else:
        table.lake.open_client().catalog.drop_table("shop.events")
    with pytest.raises(SlackwaterError, match="does not exist"):
        PlannedRun(table, run.at)
    append_versions(table, 1, 1, 1)
    with pytest.raises(StartError, match=r"was created again after it had been read up to"):
        PlannedRun(table, run.at)
    with pytest.raises(SlackwaterError, match=r"created again|was replaced by another table"):
        run.plan_all_epochs()  # while it runs


def test_a_table_that_was_rolled_back_is_refused(tmp_path: Path) -> None:
    table = IcebergSourceTable(tmp_path)
    append_versions(table, 1)
    first = table.read_newest_version()
    append_versions(table, 1, first=1)
    run = PlannedRun(table)
    run.plan_all_epochs()
    with table.table.manage_snapshots() as change:
        change.rollback_to_snapshot(first)
    with pytest.raises(StartError, match=r"does not descend from snapshot .* rolled back"):
        PlannedRun(table, run.at).plan_all_epochs()


@pytest.mark.parametrize(
    ("content", "words"), [("POSITION_DELETES", "position deletes"), ("EQUALITY_DELETES", "equality deletes")]
)
def test_delete_files_are_refused_with_their_kind(tmp_path: Path, content: str, words: str) -> None:
    table = IcebergSourceTable(tmp_path)
    append_versions(table, 3)
    run = PlannedRun(table)
    run.plan_all_epochs()
    table.add_delete_file(content)
    with pytest.raises(SlackwaterError, match=f"removes or rewrites rows .{words}"):
        run.plan_all_epochs()
    with pytest.raises(StartError, match=f'source "events": .* has {words} at snapshot .*starting_offsets = "latest"'):
        PlannedRun(table).plan_all_epochs()


def test_new_column_is_refused_by_name_unless_schema_changes_is_set(table: Any) -> None:
    append_versions(table, 1)
    run = PlannedRun(table)
    run.plan_all_epochs()
    stored_columns = run.source.schema.json()
    table.add_column("weight")
    more = COLUMNS.append(pa.field("weight", pa.int64()))
    table.append_rows([build_numbered_row(1, weight=7)], more)
    with pytest.raises(
        StartError, match=r'new columns in (version|snapshot) .*: "weight" \(bigint\); set schema_changes'
    ):
        run.plan_all_epochs()
    with pytest.raises(StartError, match=r'source "events": .* new columns .*"weight" \(bigint\)'):
        open_table_source(table, stored_columns)
    assert "weight" in open_table_source(table, stored_columns, schema_changes="add").schema.names
    assert "weight" not in open_table_source(table, stored_columns, schema_changes="ignore").schema.names
    assert PlannedRun(table, run.at, schema_changes="ignore", stored_columns=stored_columns).plan_all_epochs() == [[1]]
    running = PlannedRun(table, schema_changes="add")
    table.add_column("height")
    table.append_rows([build_numbered_row(2, height=1)], more.append(pa.field("height", pa.int64())))
    assert running.plan_epoch(), "what the table held"
    with pytest.raises(
        SlackwaterError, match=r'new columns .* "height" .*all earlier rows are committed, and the next start'
    ):
        running.plan_epoch()
    assert PlannedRun(table, running.at, schema_changes="add").plan_all_epochs() == [[2]]
    assert PlannedRun(table, run.at, schema_changes="add").plan_all_epochs() == [[1, 2]], (
        "columns came since, and between its versions"
    )


def test_an_unavailable_table_is_polled_again(table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    append_versions(table, 1)
    run = PlannedRun(table)

    def away(*arguments: Any) -> Any:
        raise OSError("connection refused, with the password hunter2hunter2")

    with monkeypatch.context() as patch:
        patch.setattr(run.source.log, "versions_after", away)
        with pytest.raises(SourceUnavailableError, match=r"does not answer .connection refused"):
            run.plan_epoch()
    assert run.plan_all_epochs() == [[0]]


# -- positions ---------------------------------------------------------------------------------------------------------


def test_lake_table_offsets_survive_json_serialization() -> None:
    for offsets in (
        LakeTableOffsets("t", 5),
        LakeTableOffsets("t", 5, 3, 2, True),
        LakeTableOffsets(files=0, content=True),
        LakeTableOffsets("t"),
    ):
        assert parse_offsets(offsets.to_json()) == offsets


@pytest.mark.parametrize(
    "stored",
    [
        {"table": "t"},
        {"table": "t", "version": "12"},
        {"table": "t", "version": -2},
        {"table": "t", "version": 1, "files": -1},
        {"table": "t", "version": 1, "content": 3},
        {"table": "t", "version": True},
        {"table": "t", "version": 1, "path": "/etc"},
    ],
)
def test_invalid_stored_offsets_are_refused(stored: Any) -> None:
    with pytest.raises(ValueError):
        parse_offsets(stored)
