"""Contract tests of a state store, run against each store."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.support.session_store_commits import build_session_commit

from slackwater.config.window import Aggregation, Window
from slackwater.core.schema import Field
from slackwater.errors import FencedError, LockHeldError, StateError
from slackwater.state.commit import Commit, OutputMetadata, SegmentMetadata, SourceRecord
from slackwater.state.files.commit_log import CommitLog
from slackwater.state.files.store import KEPT_EPOCHS, FilesStore, TemporaryFilesStore
from slackwater.state.postgres import pipeline_lock
from slackwater.state.postgres import store as postgres_store
from slackwater.storage import arrow_files
from slackwater.windows.aggregations import bind_aggregation
from slackwater.windows.compiled_session_window import CompiledSessionWindow
from slackwater.windows.state_layout import (
    FAR,
    HIDDEN,
    NEVER,
    WHOLE,
    DueRowFilter,
    ExpiryBounds,
    KeyedStateLayout,
    SegmentStats,
)

Make = Callable[[], Any]


@pytest.fixture
def files_store_factory(tmp_path: Path) -> Make:
    """Return a function that opens the same files store each time."""
    return lambda: FilesStore(tmp_path, "p")


@pytest.fixture(params=["files", "objects", "in_memory", "postgres"])
def store_factory(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Return a function that opens the same store each time. The in-memory store is a temporary files store."""
    if request.param == "files":
        return lambda: FilesStore(tmp_path, "p")
    if request.param == "objects":
        url = request.getfixturevalue("bucket")
        return lambda: FilesStore(url, "p")
    if request.param == "postgres":
        monkeypatch.setattr(pipeline_lock, "LOCK_S", 0.2)
        url = request.getfixturevalue("postgres").database(f"stores_{abs(hash(request.node.name)):x}")
        return lambda: PreparedPostgresStore(url, "public", "p")
    first = TemporaryFilesStore("p")
    request.addfinalizer(first.close)
    return lambda: FilesStore(Path(first.root).parent, "p")


class PreparedPostgresStore(postgres_store.PostgresStore):
    """Postgres store that prepares the tables of a window when it opens, like a driver."""

    def open(self) -> Commit | None:
        commit = super().open()
        count = Aggregation(agg="count", as_="n")
        window = Window(kind="session", gap_ms=1, max_session_duration_ms=9, group_by=["k"], aggregations=[count])
        self.prepare(CompiledSessionWindow("p", window, (Field("k", "string"),), (bind_aggregation(count, None),)))
        return commit


def test_next_start_reads_the_last_commit(store_factory: Make) -> None:
    store = store_factory()
    assert store.open() is None
    store.commit(build_session_commit(0))
    committed = store.commit(build_session_commit(1, watermark_us=77, panes={5: (1,)}))
    store.close()
    again = store_factory()
    reopened = again.open()
    assert reopened == committed
    (stage,) = reopened.stages  # a store in a database adds the names of the table
    without = reopened.model_copy(update={"stages": (stage.model_copy(update={"table": None}),)})
    assert without == build_session_commit(1, watermark_us=77, panes={5: (1,)})
    again.close()


@pytest.mark.semantics("delivery")
def test_a_second_runner_is_refused_and_the_error_names_the_first(store_factory: Make) -> None:
    """Each store refuses a second runner, and the error names the first one."""
    store = store_factory()
    store.open()
    with pytest.raises(
        LockHeldError, match=r"pipeline is already running: process \d+ on .* holds .*; stop that process first"
    ):
        store_factory().open()
    store.close()
    other = store_factory()
    other.open()
    other.close()


@pytest.mark.semantics("delivery")
def test_commit_that_skips_an_epoch_is_fenced(store_factory: Make) -> None:
    """Each store refuses a commit that does not follow its last epoch."""
    store = store_factory()
    store.open()
    store.commit(build_session_commit(0))
    with pytest.raises(FencedError, match="epoch 2 does not follow epoch 0"):
        store.commit(build_session_commit(2))
    store.close()


def test_outputs_and_offset_lists_are_restored_after_a_restart(store_factory: Make) -> None:
    store = store_factory()
    store.open()
    frame = pl.DataFrame({"n": [1, None], "s": ["", None], "b": [b"\0", None], "__reason": ["close", "cap"]})
    meta = store.shard(0, 1, 0, ()).write_output(frame)
    name = store.write_list(0, ["a b", "ü"])
    source = SourceRecord(offsets={"segments": [name], "count": 2})
    store.commit(build_session_commit(0, output=(meta,), sources={"s": source}))
    store.collect_garbage()
    store.close()
    again = store_factory()
    reopened = again.open()
    assert reopened is not None
    assert again.outputs(reopened.output)[0].equals(frame)
    assert again.read_list(name) == ["a b", "ü"]
    again.close()


def test_staged_outputs_are_read_in_shard_order(store_factory: Make) -> None:
    store = store_factory()
    store.open()
    frames = [pl.DataFrame({"n": [shard] * 3}) for shard in range(20)]
    metas = [store.shard(shard, 20, 0, ()).write_output(frame) for shard, frame in enumerate(frames)]
    store.commit(build_session_commit(0, output=tuple(metas)))
    assert [output["n"].to_list() for output in store.outputs(metas)] == [f["n"].to_list() for f in frames]
    assert store.outputs([]) == []
    store.close()


def test_staged_output_is_fetched_in_parallel_from_an_object_store(
    files_store_factory: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sequential requests for the output of 256 shards would take 256 round trips in each epoch."""
    store, meeting = files_store_factory(), threading.Barrier(4)
    store.open()
    metas = [store.shard(shard, 8, 0, ()).write_output(pl.DataFrame({"n": [shard]})) for shard in range(8)]
    place, held = type(store.storage), type(store.storage).local_path
    monkeypatch.setattr(place, "is_remote", True)
    monkeypatch.setattr(place, "local_path", lambda self, name: (meeting.wait(60), held(self, name))[1])
    assert [output["n"].to_list() for output in store.outputs(metas)] == [[shard] for shard in range(8)]
    monkeypatch.undo()
    store.close()


def test_manifest_of_another_runner_fences_the_commit(files_store_factory: Make) -> None:
    store = files_store_factory()
    store.open()
    store.commit(build_session_commit(0))
    path = Path(store.root) / "manifests" / "000000001.json"
    path.write_text(build_session_commit(1).model_dump_json())  # a runner that took over while this one was stalled
    with pytest.raises(FencedError, match=r"epoch 1 was already committed in .* by another runner"):
        store.commit(build_session_commit(1))
    store.close()


def test_published_epoch_is_restored_after_restart(store_factory: Make) -> None:
    store = store_factory()
    store.open()
    assert store.published_epoch() == -1
    store.commit(build_session_commit(0))
    store.mark_published(0)
    store.close()
    again = store_factory()
    again.open()
    assert again.published_epoch() == 0
    again.close()


def test_garbage_collection_removes_files_of_expired_epochs(files_store_factory: Make) -> None:
    store = files_store_factory()
    store.open()
    root = Path(store.root)
    for epoch in range(KEPT_EPOCHS + 3):
        for folder in ("segments", "outputs"):
            (root / folder / f"{epoch:09d}-000-x.arrow").write_text("x")
        meta = SegmentMetadata(
            file=f"segments/{epoch:09d}-000-x.arrow", rows=1, bytes=1, first_due=0, last_due=0, close=0, dead=0
        )
        out = OutputMetadata(file=f"outputs/{epoch:09d}-000-x.arrow", rows=1)
        store.commit(build_session_commit(epoch, segments=((meta,),), output=(out,)))
    (root / "segments" / f"{KEPT_EPOCHS + 3:09d}-000-y.arrow").write_text("of the epoch in progress")
    (root / "segments" / "000000009-000-z.arrow").write_text("of a task that ran twice")
    store.collect_garbage()
    needed_files = [f"{e:09d}-000-x.arrow" for e in range(3, KEPT_EPOCHS + 3)]
    assert sorted(p.name for p in (root / "outputs").iterdir()) == needed_files
    assert sorted(p.name for p in (root / "segments").iterdir()) == [
        *needed_files,
        f"{KEPT_EPOCHS + 3:09d}-000-y.arrow",
    ]
    assert len(list((root / "manifests").iterdir())) == KEPT_EPOCHS
    store.close()


def test_garbage_collection_does_not_read_commits_of_the_same_runner(
    files_store_factory: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commit records of many shards are long. Reading eight retained records would be the slowest part of an epoch."""
    store = files_store_factory()
    store.open()
    for epoch in range(2):
        store.commit(build_session_commit(epoch))
    store.close()
    again, read = files_store_factory(), list[int]()
    again.open()
    reading = CommitLog.read
    monkeypatch.setattr(CommitLog, "read", lambda log, epoch: (read.append(epoch), reading(log, epoch))[1])
    for epoch in range(2, KEPT_EPOCHS):
        again.commit(build_session_commit(epoch))
    again.collect_garbage()
    assert read == [0, 1]  # the commits of the previous runner
    again.commit(build_session_commit(KEPT_EPOCHS))
    again.collect_garbage()
    assert read == [0, 1]
    again.close()


def add_checksum(text: str) -> str:
    return f"{text}\n{arrow_files.file_checksum(text.encode())}\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"manifest .*000000000.json is damaged or unreadable; restore it"),
        (add_checksum('{"format": 2}'), r"manifest .*000000000.json is damaged: .* fields? do(es)? not fit"),
        (add_checksum('{"format": 1}'), r"manifest .*000000000.json is damaged: its record does not fit format 1"),
        (
            add_checksum('{"format": 9}'),
            r"state in .* has format 9, but this version reads formats 1 to 3; install a newer version",
        ),
        (add_checksum('{"format": 0}'), r"this format cannot be migrated"),
        (
            add_checksum(build_session_commit(0).model_dump_json()).replace('"epoch":0', '"epoch":1'),
            r"does not match its checksum",
        ),
        (add_checksum(build_session_commit(0).model_dump_json())[:-30], r"manifest .*000000000.json is damaged"),
    ],
)
def test_start_fails_when_a_manifest_is_unreadable(files_store_factory: Make, content: str, message: str) -> None:
    store = files_store_factory()
    store.open()
    (Path(store.root) / "manifests" / "000000000.json").write_text(content)
    store.close()
    with pytest.raises(StateError, match=message):
        files_store_factory().open()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "is truncated"),
        (lambda path: path.write_bytes(b""), "is truncated|cannot be read"),
        (
            lambda path: path.write_bytes(path.read_bytes()[:600] + b"\x7f" + path.read_bytes()[601:]),
            "does not match its checksum",
        ),
        (lambda path: path.unlink(), "is missing"),
    ],
)
def test_start_fails_and_names_the_segment_when_a_segment_is_damaged(
    files_store_factory: Make, damage: Any, message: str
) -> None:
    store = files_store_factory()
    store.open()
    frame = pl.DataFrame({"__h": list(range(100)), "x": list(range(100))})
    path = Path(store.root) / "segments" / "000000000-000-x.arrow"
    size, digest = arrow_files.write_arrow(path, frame)
    meta = {"file": "segments/000000000-000-x.arrow", "rows": 100, "bytes": size, "checksum": digest}
    store.commit(
        build_session_commit(0, segments=((SegmentMetadata(**meta, first_due=0, last_due=0, close=0, dead=0),),))
    )
    store.close()
    again = files_store_factory()
    again.open()
    again.close()
    damage(path)
    with pytest.raises(StateError, match=rf"state file .*000000000-000-x.arrow ({message}).*; restore it from a copy"):
        files_store_factory().open()


def test_full_disk_is_reported_and_commits_nothing(tmp_path: Path) -> None:
    """Simulate a full disk with a limit of 64 bytes per file."""
    script = f"""
import resource, polars as pl
from pathlib import Path
from tests.support.session_store_commits import build_session_commit
from slackwater.errors import EpochError
from slackwater.state.files.store import FilesStore
from slackwater.storage.arrow_files import write_arrow
store = FilesStore({str(tmp_path)!r}, "p")
store.open()
store.commit(build_session_commit(0))
resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
for write in (lambda: store.commit(build_session_commit(1)), lambda: write_arrow(Path(store.root) / "segments/x", pl.DataFrame({{"a": [1]}}))):
    try:
        write()
    except EpochError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    first, second = done.stdout.splitlines()
    assert "epoch 1 was not committed: a file in" in first
    assert "cannot be written (File too large); free some space, and start again" in first
    assert "segments/x cannot be written (File too large); the epoch was not committed" in second
    store = FilesStore(tmp_path, "p")
    assert store.open() == build_session_commit(0)
    store.commit(build_session_commit(1))
    store.close()


def test_state_directory_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match=r"state directory .* cannot be created .*; expected a writable directory"):
        FilesStore(tmp_path / "file", "p").open()


class KeyCountLayout(KeyedStateLayout):
    """Operator that is not a window and stores one number per key without expiry. No store knows this class."""

    pipeline = "p"
    keys = (Field("k", "string"),)
    accumulators = {"seen": pl.Int64()}  # noqa: RUF012

    @property
    def state_schema(self) -> dict[str, pl.DataType]:
        return {**HIDDEN, "k": pl.String(), **self.accumulators}

    def stats(self, state: pl.DataFrame) -> SegmentStats:
        return SegmentStats(FAR, FAR, NEVER, FAR)

    def due_between(self, since: int, watermark: int, early: bool = False) -> DueRowFilter:
        return DueRowFilter((), (), (), NEVER, NEVER)

    def expiry_bounds(self, watermark: int) -> ExpiryBounds:
        return ExpiryBounds(NEVER, NEVER)

    def drop_expired(self, state: pl.DataFrame, watermark: int) -> pl.DataFrame:
        return state

    def state_rows(self, seen: dict[str, int]) -> pl.DataFrame:
        hashes = [ord(k) for k in seen]
        fixed = {"__kind": WHOLE, "__start": 0, "__last": 0, "__due": 0}
        values = {"__h": hashes, "__kh": hashes, **{n: [v] * len(seen) for n, v in fixed.items()}}
        return pl.DataFrame({**values, "k": list(seen), "seen": list(seen.values())}, schema=self.state_schema)


def test_store_persists_state_of_an_operator_without_windows(store_factory: Make) -> None:
    store, tally = store_factory(), KeyCountLayout()
    store.open()
    store.prepare(tally)
    segments: tuple[SegmentMetadata, ...] = ()
    for epoch, seen in enumerate(({"a": 1, "b": 2}, {"b": 7, "c": 3})):
        shard = store.shard(0, 1, epoch, segments)
        before = shard.reader(tally).units(pl.Series([ord(k) for k in seen]).to_numpy())
        staged = shard.stage(tally, tally.state_rows(seen), before, 0)
        segments = store.commit(build_session_commit(epoch, segments=(staged,))).stages[0].segments[0]
    store.close()
    again = store_factory()
    again.open()
    again.prepare(tally)
    rows = again.shard(0, 1, 2, segments).reader(tally).scan()
    assert dict(rows.select("k", "seen").iter_rows()) == {"a": 1, "b": 7, "c": 3}
    again.close()
