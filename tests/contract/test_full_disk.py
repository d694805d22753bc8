"""Epochs on a full disk fail with a one-line error. Their files are removed at once, or at the next start.

A limit on file sizes simulates the full disk: the kernel refuses the write in any file.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import slackwater as sw
from slackwater.connectors.files.output_directory import LocalDirectory
from slackwater.errors import SlackwaterError
from slackwater.state.files.store import FilesStore
from slackwater.testing import LocalPipeline

USERS = 3000
SCHEMA = {"user": "string"}
MINUTE = 60_000_000
WINDOW = sw.Window(
    kind="session", gap_ms="5m", max_session_duration_ms="12h", group_by=["user"], aggregations=[sw.Aggregation(agg="count", as_="n")]
)  # fmt: skip


@contextmanager
def limit_file_size(size: int) -> Iterator[None]:
    """Limit the size of written files."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def list_file_sizes(root: Path) -> dict[str, int]:
    """Return all files of a directory except the lock, with their sizes."""
    return {str(p.relative_to(root)): p.stat().st_size for p in root.rglob("*") if p.is_file() and p.name != "lock"}


def user_event_rows(ts: int) -> list[dict[str, Any]]:
    return [{"user": f"u{i}", "ts": ts} for i in range(USERS)]


@pytest.mark.parametrize("size", [0, 500, 3000, 20_000, 100_000])
def test_failed_epoch_on_full_disk_leaves_no_files(size: int, tmp_path: Path) -> None:
    with LocalPipeline(WINDOW, SCHEMA, state_dir=str(tmp_path), capture_losses=False) as t:
        t.pipe(user_event_rows(0))
        before = list_file_sizes(tmp_path)
        for _ in range(3):
            with (
                limit_file_size(size),
                pytest.raises(SlackwaterError, match=r"cannot be written .*; free some space") as raised,
            ):
                t.pipe(user_event_rows(6 * MINUTE))
            assert len(str(raised.value).splitlines()) == 1
            assert list_file_sizes(tmp_path) == before
            t._stop()
            t._start()
            assert list_file_sizes(tmp_path) == before
        t.pipe(user_event_rows(6 * MINUTE))
        assert list_file_sizes(tmp_path) != before


def test_next_start_removes_files_of_a_killed_epoch(tmp_path: Path) -> None:
    with LocalPipeline(WINDOW, SCHEMA, state_dir=str(tmp_path), capture_losses=False) as t:
        t.pipe(user_event_rows(0))
        home = Path(FilesStore(tmp_path, "law").root)
        before = list_file_sizes(tmp_path)
        for name in (
            "segments/000000001-000-aaaaaaaaaaaa.arrow",
            "outputs/000000001-001-bbbbbbbbbbbb.arrow",
            ".commit-x1y2",
        ):
            (home / name).write_bytes(b"half of it")
        t._stop()
        t._start()
        assert list_file_sizes(tmp_path) == before


def test_discard_attempt_keeps_files_of_a_committed_epoch(tmp_path: Path) -> None:
    with LocalPipeline(WINDOW, SCHEMA, state_dir=str(tmp_path), capture_losses=False) as t:
        t.pipe(user_event_rows(0))
        before = list_file_sizes(tmp_path)
        store = FilesStore(tmp_path, "law")
        store.discard_attempt(0)
        assert list_file_sizes(tmp_path) == before


@pytest.mark.parametrize("size", [0, 10])
def test_output_directory_keeps_no_partially_written_file(size: int, tmp_path: Path) -> None:
    folder = LocalDirectory(tmp_path)
    folder.write_marker("_slackwater/marker.json", b"{}")
    before = list_file_sizes(tmp_path)
    with limit_file_size(size):
        with pytest.raises(OSError, match="File too large"):
            folder.write("a.parquet", lambda path: path.write_bytes(b"x" * 100) and None)
        with pytest.raises(OSError, match="File too large"):
            folder.write_marker("_slackwater/marker.json", b"y" * 100)
    assert list_file_sizes(tmp_path) == before
