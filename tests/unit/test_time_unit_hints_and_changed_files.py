"""Hints about time units and column names from the first rows, and files that change after they were read."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path

import pytest

import slackwater as sw
from slackwater.connectors.files.planner import (
    FILES_PER_CHECK,
    FileChangeTracker,
    changed_files_text,
    store_changed_files,
)
from slackwater.connectors.files.source import (
    FileEntry,
    absolute_query,
    check_directory_exists,
    load_file_list,
    readable_path,
    store_file_list,
)
from slackwater.core.offset_base import ChangedFiles
from slackwater.core.offsets import FileOffsets
from slackwater.errors import StartError
from slackwater.spark.first_rows_check import NonNullCounts, describe_empty_column, suggest_time_unit
from slackwater.state.files.store import FilesStore

NOW = int(dt.datetime(2026, 1, 1, tzinfo=dt.UTC).timestamp() * 1e6)
PER_S = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@pytest.mark.parametrize("unit", PER_S)
@pytest.mark.parametrize("meant", PER_S)
def test_wrong_time_unit_is_detected_for_every_pair_of_units(unit: str, meant: str) -> None:
    number = int(dt.datetime(2024, 3, 1, tzinfo=dt.UTC).timestamp()) * PER_S[meant]
    expected = None if unit == meant else f'did you mean event_time_unit = "{meant}"?'
    assert suggest_time_unit(number, unit, "integer", NOW) == expected


def test_time_unit_is_suggested_only_for_plausible_times() -> None:
    assert suggest_time_unit(5, "s", "integer", NOW) is None
    assert suggest_time_unit(None, "s", "integer", NOW) is None
    assert suggest_time_unit(1_709_287_200, None, "timestamp", NOW) is None
    assert 'BIGINT and event_time_unit = "ms"' in (suggest_time_unit(1_709_287_200_000, None, "timestamp", NOW) or "")
    assert 'BIGINT and event_time_unit = "s"' in (suggest_time_unit(1_709_287_200, None, "string", NOW) or "")


def test_empty_column_is_reported_with_nearest_name_in_any_case() -> None:
    assert describe_empty_column("s", "user_id", 7, ["b", "User_ID"]).endswith(
        'available: User_ID, b; did you mean "User_ID"?'
    )
    assert "did you mean" not in describe_empty_column("s", "user_id", 7, ["x"])
    look = NonNullCounts(["a", "b"])
    look.add(600, {"a": 1, "b": 0})
    assert look.needs_more_rows
    look.add(600, {"a": 0, "b": 0})
    assert (look.needs_more_rows, look.missing) == (False, ["b"])


def current_file_entry(path: Path) -> FileEntry:
    current = FileEntry(path.as_uri(), 0).current
    assert current is not None
    return current


def test_a_changed_file_is_reported_once_by_size_or_time(tmp_path: Path) -> None:
    paths = [tmp_path / f"{n} ä.json" for n in range(3)]
    for path in paths:
        path.write_text("x")
        os.utime(path, (1000, 1000))
    tracker = FileChangeTracker()
    tracker.add(current_file_entry(p) for p in paths)
    assert tracker.find_changed() == []
    paths[0].write_text("xy")
    os.utime(paths[0], (1000, 1000))  # its modification time is unchanged
    os.utime(paths[1], (2000, 2000))
    paths[2].unlink()
    assert sorted(e.path for e in tracker.find_changed(None)) == sorted(p.as_uri() for p in paths[:2])
    assert tracker.find_changed(None) == []
    old_tracker = FileChangeTracker()
    old_tracker.add([FileEntry(paths[0].as_uri(), 1_000_000)])  # from a state that stored no sizes
    assert old_tracker.find_changed() == []


def test_each_change_check_reads_some_files_and_reaches_all_files_in_turn(tmp_path: Path) -> None:
    path = tmp_path / "grows.json"
    path.write_text("x")
    tracker = FileChangeTracker()
    tracker.add([current_file_entry(path)])
    tracker.add(FileEntry(f"file:///nowhere/{n}", n) for n in range(100_000))
    path.write_text("xyz")
    looks, file_count = 0, len(tracker.entries)
    while not tracker.find_changed():
        looks += 1
        assert len(tracker._unchecked) == file_count - FILES_PER_CHECK * looks
    assert looks == 100_001 // FILES_PER_CHECK


def test_changed_files_are_stored_in_offsets_and_old_lists_are_readable(tmp_path: Path) -> None:
    store = FilesStore(str(tmp_path), "p")
    store.open()
    name = store.write_list(0, ['["file:///a", 1]', '["file:///b", 2]'])
    before = FileOffsets((name,), 2)
    after = store_changed_files(store, 1, before, [FileEntry("file:///a", 9, 4)])
    assert load_file_list(store, after) == [FileEntry("file:///a", 9, 4), FileEntry("file:///b", 2)]
    assert (after.count, after.changed) == (2, ChangedFiles(1, ("/a",)))
    later = store_file_list(store, 2, after, [FileEntry("file:///c", 3, 1)])
    assert (later.count, later.changed) == (3, ChangedFiles(1, ("/a",)))
    store.close()


def test_warning_lists_changed_files_and_their_number() -> None:
    assert 'source "s": 1 file changed after it was read, and is not read again: /a;' in changed_files_text(
        "s", ["/a"], 1
    )
    assert "5 files changed after they were read, and are not read again: /a, /b and 3 more;" in changed_files_text(
        "s", ["/a", "/b"], 5
    )


# -- names of files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file:///in/a%20b.json", "file:///in/a b.json"),
        ("file:///in/a%2520b.json", "file:///in/a%20b.json"),
        ("file:///in/%5Bx%5D%3F%23.json", r"file:///in/\[x\]\?#.json"),
        ("s3a://bucket/st*r%7B1,2%7D/ä%5C.json", r"s3a://bucket/st\*r\{1,2\}/ä\\.json"),
    ],
)
def test_listed_uri_is_converted_to_an_escaped_path(uri: str, path: str) -> None:
    assert readable_path(uri) == path


def test_an_existing_path_with_brackets_is_not_a_pattern(tmp_path: Path) -> None:
    """An existing file or folder such as `in [1]` is taken literally. The rest of the query may be a pattern."""
    folder = tmp_path / "in [1]"
    folder.mkdir()
    (folder / "{a}.json").touch()
    escaped = rf"{tmp_path}/in \[1\]"
    assert absolute_query(str(folder)) == escaped
    assert absolute_query(str(folder / "[ab]*.json")) == f"{escaped}/[ab]*.json"
    assert absolute_query(str(folder / "{a}.json")) == rf"{escaped}/\{{a\}}.json"
    assert absolute_query(str(tmp_path / "in*")) == str(tmp_path / "in*")
    assert absolute_query("s3a://bucket/[a]/*") == "s3a://bucket/[a]/*"
    source = sw.Source(name="a", connection=sw.FilesConnection(), query=str(folder / "sub" / "*.json"), format="json")
    with pytest.raises(StartError, match=r"in \[1\]/sub. does not exist"):
        check_directory_exists(source)
