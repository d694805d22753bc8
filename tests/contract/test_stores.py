"""What every state store promises; run against each of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from slackwater.errors import FencedError, LockHeldError, StateError
from slackwater.state.files import KEPT_EPOCHS, FilesStore, InMemoryStore
from slackwater.state.protocol import Manifest, OutputMeta, SegmentMeta

Make = Callable[[], FilesStore]


@pytest.fixture(params=["files", "in_memory"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Opens the same store again and again; the in-memory one is the files store on a directory of its own."""
    if request.param == "files":
        return lambda: FilesStore(tmp_path, "p")
    first = InMemoryStore("p")
    request.addfinalizer(first.close)
    return lambda: FilesStore(Path(first.root).parent, "p")


def manifest(epoch: int, **more: object) -> Manifest:
    given = {"pipeline": "p", "epoch": epoch, "fingerprint": {}, "committed_us": 1, "shards": 1, "segments": ((),)}
    return Manifest.model_validate({**given, "groups": (0,), "windows": (0,), **more})


def test_a_commit_is_what_the_next_start_finds(make: Make) -> None:
    store = make()
    assert store.open() is None
    store.commit(manifest(0))
    store.commit(manifest(1, watermark_us=77, panes={5: (1,)}))
    store.close()
    again = make()
    assert again.open() == manifest(1, watermark_us=77, panes={5: (1,)})
    again.close()


def test_a_second_runner_is_refused_and_told_who_runs(make: Make) -> None:
    store = make()
    store.open()
    with pytest.raises(
        LockHeldError, match=r"pipeline is already running: process \d+ on .* holds .*lock; stop it first"
    ):
        make().open()
    store.close()
    other = make()
    other.open()
    other.close()


def test_commits_are_fenced(make: Make) -> None:
    store = make()
    store.open()
    store.commit(manifest(0))
    with pytest.raises(FencedError, match="epoch 2 does not follow epoch 0"):
        store.commit(manifest(2))
    path = Path(store.root) / "manifests" / "000000001.json"
    path.write_text(manifest(1).model_dump_json())  # a runner that took over while this one was stalled
    with pytest.raises(FencedError, match="epoch 1 was already committed by another runner"):
        store.commit(manifest(1))
    store.close()


def test_published_is_remembered(make: Make) -> None:
    store = make()
    store.open()
    assert store.published() == -1
    store.note_published(4)
    store.close()
    assert make().published() == 4


def test_garbage_is_what_no_kept_epoch_names(make: Make) -> None:
    store = make()
    store.open()
    root = Path(store.root)
    for epoch in range(KEPT_EPOCHS + 3):
        for folder in ("segments", "outputs"):
            (root / folder / f"{epoch:09d}-000-x.arrow").write_text("x")
        meta = SegmentMeta(
            file=f"segments/{epoch:09d}-000-x.arrow", rows=1, bytes=1, first_due=0, last_due=0, close=0, dead=0
        )
        out = OutputMeta(file=f"outputs/{epoch:09d}-000-x.arrow", rows=1)
        store.commit(manifest(epoch, segments=((meta,),), output=(out,)))
    (root / "segments" / f"{KEPT_EPOCHS + 3:09d}-000-y.arrow").write_text("of the epoch in progress")
    (root / "segments" / "000000009-000-z.arrow").write_text("of a task that ran twice")
    store.collect_garbage()
    kept = [f"{e:09d}-000-x.arrow" for e in range(3, KEPT_EPOCHS + 3)]
    assert sorted(p.name for p in (root / "outputs").iterdir()) == kept
    assert sorted(p.name for p in (root / "segments").iterdir()) == [*kept, f"{KEPT_EPOCHS + 3:09d}-000-y.arrow"]
    assert len(list((root / "manifests").iterdir())) == KEPT_EPOCHS
    store.close()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "manifest .*000000000.json is damaged or unreadable; restore it"),
        ('{"format": 1}', "manifest .*000000000.json is damaged: .* fields do not fit"),
        ('{"format": 2}', "state in .* has format 2, this version reads format 1; install a newer version"),
        ('{"format": 0}', "no migration from it is registered"),
    ],
)
def test_what_cannot_be_read_stops_the_start(make: Make, content: str, message: str) -> None:
    store = make()
    store.open()
    (Path(store.root) / "manifests" / "000000000.json").write_text(content)
    store.close()
    with pytest.raises(StateError, match=message):
        make().open()


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match=r"state directory .* cannot be created .*; expected a writable directory"):
        FilesStore(tmp_path / "file", "p").open()
