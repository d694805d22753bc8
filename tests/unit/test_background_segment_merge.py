"""Background merges of segments, and the conditions for the replacement of their parts."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import wait
from pathlib import Path

import pytest
from tests.support.session_store_commits import LOGIC, build_open_session_rows, build_session_commit

from slackwater.errors import StateError
from slackwater.state.commit import SegmentMetadata
from slackwater.state.files.segments import SegmentMerge
from slackwater.state.files.store import FilesStore

ALIVE = -(1 << 62)


def segment_metadata(text: str) -> tuple[SegmentMetadata, ...]:
    """Build a segment for each character. All rows of "d" and "e" expire at 10."""
    return tuple(
        SegmentMetadata(file=c, rows=1, bytes=1, first_due=0, last_due=0, close=0, dead=10 if c in "de" else 99)
        for c in text
    )


@pytest.mark.parametrize(
    ("parts", "current", "watermark", "after"),
    [
        ("abc", "abc", 0, "M"),
        ("abc", "xabcy", 0, "xMy"),
        ("abc", "xbcy", 0, "xbcy"),  # an epoch merged "a", whose rows would otherwise be in the state twice
        ("abc", "xab", 0, "xab"),
        ("abc", "xy", 0, "xy"),
        ("dab", "aby", 10, "My"),  # "d" was dropped, because all its rows are expired
        ("dab", "aby", 9, "aby"),  # "d" was removed for another reason
        ("ade", "ay", 10, "My"),
        ("dea", "y", 99, "y"),
        ("ab", "axb", 0, "axb"),
    ],
)
def test_merged_segment_replaces_all_of_its_parts_or_none(parts: str, current: str, watermark: int, after: str) -> None:
    segments = SegmentMerge(segment_metadata(parts), segment_metadata("M")).apply(segment_metadata(current), watermark)
    assert "".join(m.file for m in segments) == after


def test_expired_segments_are_removed_by_an_empty_merge() -> None:
    assert SegmentMerge(segment_metadata("ab"), ()).apply(segment_metadata("xaby"), 0) == segment_metadata("xy")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FilesStore]:
    store = FilesStore(str(tmp_path), "p")
    store.open()
    store.prepare(LOGIC)
    yield store
    store.close()


def commit_session_versions(
    store: FilesStore, epochs: range, before: tuple[SegmentMetadata, ...] = ()
) -> tuple[SegmentMetadata, ...]:
    """Commit a new version of the same three sessions in each epoch."""
    for epoch in epochs:
        shard = store.shard(0, 1, epoch, before)
        staged = shard.stage(LOGIC, build_open_session_rows("a", "b", "c"), LOGIC.empty_state(), ALIVE)
        before = store.commit(build_session_commit(epoch, segments=(staged,))).stages[0].segments[0]
    return before


def wait_for_merges(store: FilesStore) -> None:
    assert wait([future for _, future in store._merger._running.values()], timeout=60).not_done == set()


def test_many_segments_are_merged_in_the_background_before_the_next_epoch(store: FilesStore) -> None:
    segments = commit_session_versions(store, range(8))
    assert len(segments) == 8
    wait_for_merges(store)
    store.collect_garbage()  # does not delete segments that no commit names yet
    shard = store.shard(0, 1, 8, segments)
    assert len(shard.metas) == 1
    assert shard.reader(LOGIC).scan().sort("user").equals(build_open_session_rows("a", "b", "c"))
    after = commit_session_versions(store, range(8, 9), segments)
    assert [m.file for m in after[:1]] == [m.file for m in shard.metas]
    assert len(after) == 2
    assert not store._merger.epochs
    commit_session_versions(store, range(9, 17), after)  # the commits that name the eight segments expire
    wait_for_merges(store)
    store.collect_garbage()
    names = {path.name for path in (Path(store.root) / "segments").iterdir()}
    assert not {Path(m.file).name for m in segments} & names
    assert Path(after[0].file).name in names


def test_epoch_merges_segments_that_were_not_merged_in_the_background(
    store: FilesStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store._merger, "schedule_merges", lambda commit: None)
    segments = commit_session_versions(store, range(15))
    assert len(segments) == 15
    assert len(commit_session_versions(store, range(15, 16), segments)) == 1


def test_background_merge_error_fails_the_next_epoch(store: FilesStore) -> None:
    segments = commit_session_versions(store, range(7))
    (Path(store.root) / segments[0].file).write_bytes(b"damaged")
    shard = store.shard(0, 1, 7, segments)
    staged = shard.stage(LOGIC, build_open_session_rows("a"), LOGIC.empty_state(), ALIVE)
    committed = store.commit(build_session_commit(7, segments=(staged,))).stages[0].segments[0]
    wait_for_merges(store)
    store.commit(build_session_commit(8, segments=(committed,)))  # the commit succeeds although the merge failed
    with pytest.raises(StateError, match=r"segments/.*arrow"):
        store.shard(0, 1, 9, committed)


def test_closed_store_writes_no_more_segments(store: FilesStore) -> None:
    commit_session_versions(store, range(8))
    store.close()
    before = sorted((Path(store.root) / "segments").iterdir())
    assert store._merger._thread is None and not store._merger.epochs
    again = FilesStore(str(Path(store.root).parent), "p")
    latest = again.open()
    assert latest is not None and len(latest.stages[0].segments[0]) == 8
    again.prepare(LOGIC)
    assert again.shard(0, 1, 8, latest.stages[0].segments[0]).reader(LOGIC).scan().height == 3
    again.collect_garbage()
    after = sorted((Path(store.root) / "segments").iterdir())
    assert len(after) == 8 and set(after) <= set(before)
    again.close()
