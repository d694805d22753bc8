"""State in an object store: leases, fencing, recovery from faults, requests per epoch, cache and error messages."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.support.case_selection import select_cases
from tests.support.kafka_topics import wait_until
from tests.support.servers.object_store import FaultyProxy, S3Server
from tests.support.session_store_commits import (
    LOGIC,
    build_open_session_rows,
    build_session_commit,
    commit_sessions_of_users,
    open_session_store,
    read_session_users,
)
from typer.testing import CliRunner

from slackwater.cli.main import app
from slackwater.errors import EpochError, FencedError, LockHeldError, StartError, StateError
from slackwater.maintenance import verify_state
from slackwater.maintenance.state_sizes import measure_state_sizes
from slackwater.state.files.segments import file_ref
from slackwater.state.files.store import FilesStore
from slackwater.storage import object_client, object_store, object_store_lease

Make = Callable[[], Any]


@pytest.fixture
def store_factory(bucket: str) -> Make:
    return lambda: FilesStore(bucket, "p")


@pytest.fixture
def s3_proxy(s3: S3Server) -> Iterator[FaultyProxy]:
    with FaultyProxy.start_proxy(s3.port) as faulty_proxy:
        yield faulty_proxy


@pytest.fixture
def proxied_store_factory(bucket: str, s3: S3Server, s3_proxy: FaultyProxy) -> Make:
    """Return a function that opens a store behind the proxy, with short waits."""
    return lambda: FilesStore(
        bucket, "p", {**s3.connection_options(s3_proxy.port), "timeout": "2s", "connect_timeout": "2s"}
    )


def move_leases_to_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the processes of existing leases look as if they ran on another machine."""
    machine = object_store_lease._machine
    monkeypatch.setattr(object_store_lease, "_machine", lambda: machine() | {"boot": "another"})


def single_request_fault(fault: str, method: str, part: str) -> Callable[[str, str], Any]:
    """Return a judge that applies the fault to the first matching request."""
    done: list[str] = []

    def judge(request_method: str, path: str) -> Any:
        if request_method == method and part in path and not done:
            done.append(path)
            return fault
        return ""

    return judge


# -- leases ------------------------------------------------------------------------------------------------------------


def test_second_runner_on_another_machine_is_refused_after_a_lease_renewal(
    store_factory: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store_lease, "RENEW_S", 0.2)
    monkeypatch.setattr(object_store_lease, "LOOK_S", 0.05)
    first = store_factory()
    first.open()
    move_leases_to_another_machine(monkeypatch)
    with pytest.raises(
        LockHeldError,
        match=r"already running: process \d+ on .* holds the lock s3://.*/p/lock until at least 20.*; stop that",
    ):
        store_factory().open()
    assert store_factory().runner().startswith("process ")
    first.close()
    assert store_factory().runner() is None
    second = store_factory()
    second.open()
    second.close()


def test_start_waits_for_the_lease_of_a_lost_runner_on_another_machine(
    store_factory: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store_lease, "LEASE_S", 1.0)
    monkeypatch.setattr(object_store_lease, "SKEW_S", 0.2)
    monkeypatch.setattr(object_store_lease, "LOOK_S", 0.05)
    monkeypatch.setattr(object_store_lease, "RENEW_S", 1000.0)  # it never renews its lease
    first, began = store_factory(), time.monotonic()
    commit_sessions_of_users(first, first.open(), "a")
    move_leases_to_another_machine(monkeypatch)
    second = store_factory()
    last_commit = second.open()
    assert last_commit.epoch == 0 and time.monotonic() - began >= 1.2
    commit_sessions_of_users(second, last_commit, "b")
    # the first runner continues: every write is refused, and the error names the new runner
    for doing, act in (
        ("commit epoch 1", lambda: commit_sessions_of_users(first, build_session_commit(0), "x")),
        ("mark epoch 0 as published", lambda: first.mark_published(0)),
    ):
        with pytest.raises(FencedError, match=f"can no longer {doing}: .*/p/lock .* and process .* took over"):
            act()
    with store_factory().peek() as snapshot:
        assert read_session_users(snapshot) == ["b"]
    second.close()


def test_clock_skew_allows_a_takeover_but_not_two_commits_of_an_epoch(
    store_factory: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second runner whose clock is an hour ahead takes over at once. Each epoch is committed by only one runner."""
    first = store_factory()
    done = commit_sessions_of_users(first, first.open(), "a")
    move_leases_to_another_machine(monkeypatch)
    clock = time.time_ns
    monkeypatch.setattr(object_store_lease.time, "time_ns", lambda: clock() + 3600 * 10**9)
    second = store_factory()
    assert second.open() == done
    commit_sessions_of_users(second, done, "b")
    with pytest.raises(FencedError, match="epoch 1 was already committed in s3://"):
        commit_sessions_of_users(first, done, "c")
    with store_factory().peek() as snapshot:
        assert read_session_users(snapshot) == ["b"]
    second.close()


def test_stalled_runner_is_fenced_after_its_epoch_was_cleaned_up(
    store_factory: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runner stalls just before its commit. Meanwhile another runner commits 20 epochs and cleans up the first."""
    first = store_factory()
    done = commit_sessions_of_users(first, first.open(), "a")
    create = object_store.ObjectStorage.create
    second: list[Any] = []

    def stalls(self: object_store.ObjectStorage, file: str, content: bytes) -> bool:
        if not second:
            move_leases_to_another_machine(monkeypatch)
            monkeypatch.setattr(object_store_lease, "_is_over", lambda content: True)
            second.append(store_factory())
            last = second[0].open()
            for _ in range(20):
                last = commit_sessions_of_users(second[0], last, "b")
            first._lock._until = 0.0  # the lease expires
        return create(self, file, content)

    monkeypatch.setattr(object_store.ObjectStorage, "create", stalls)
    with pytest.raises(FencedError, match=r"can no longer continue from epoch 1: .* and process .* took over"):
        first.commit(done.model_copy(update={"epoch": 1}))
    with store_factory().peek() as snapshot:
        assert read_session_users(snapshot) == ["b"]
    second[0].collect_garbage()
    assert verify_state(store_factory()).problems == []
    second[0].close()


def test_start_does_not_wait_for_a_killed_runner_on_the_same_machine(
    store_factory: Make, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Start without a delay, whatever the length of the lease."""
    code = (
        "import os, sys\nfrom slackwater.storage import object_store_lease\nfrom slackwater.state.files.store import FilesStore\n"
        "object_store_lease.LEASE_S = 1e6\nFilesStore(sys.argv[1], 'p').open()\nos.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, bucket]).returncode == -9
    monkeypatch.setattr(object_store_lease, "LEASE_S", 1e6)
    assert store_factory().runner() is None
    store = store_factory()
    store.open()
    store.close()


def test_a_lease_is_renewed_while_nothing_is_committed(store_factory: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store_lease, "RENEW_S", 0.05)
    store = store_factory()
    store.open()
    seen, end = set(), time.monotonic() + 60
    while len(seen) < 3 and time.monotonic() < end:
        seen.add(bytes(store.storage.client.get("lock").content))
    assert len(seen) == 3
    store.close()


def test_damaged_lease_expires_like_a_valid_lease(store_factory: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store_lease, "LEASE_S", 0.3)
    monkeypatch.setattr(object_store_lease, "SKEW_S", 0.1)
    monkeypatch.setattr(object_store_lease, "LOOK_S", 0.05)
    store = store_factory()
    store.storage.client.put("lock", b"\xff{")
    assert store.runner() == "another process"
    store.open()
    store.close()


# -- faults ------------------------------------------------------------------------------------------------------------

FAULTS = ("503", "dropped", "lost", "slow", "hangs")


@pytest.mark.parametrize(
    ("method", "part", "fault"),
    select_cases(
        [
            *(("PUT", "/manifests/", fault) for fault in FAULTS),
            ("PUT", "/lock", "lost"),
            ("PUT", "/lock", "hangs"),
            ("PUT", "/segments/", "503"),
            ("PUT", "/segments/", "lost"),
            ("PUT", "/published", "dropped"),
            ("PUT", "/published", "lost"),
            ("GET", "/manifests/", "hangs"),
            ("GET", "/manifests/", "503"),
            ("POST", "delete", "slow"),
            ("POST", "delete", "dropped"),
        ],
        len(FAULTS),
    ),
)
def test_request_fault_does_not_change_the_committed_epochs(
    fault: str, method: str, part: str, proxied_store_factory: Make, store_factory: Make, s3_proxy: FaultyProxy
) -> None:
    """A runner recognises its own upload when the store saved the upload but the response was lost."""
    s3_proxy.judge = single_request_fault(fault, method, part)
    store = open_session_store(proxied_store_factory)
    done = None
    for n in range(10):
        if n == 5:  # another runner continues from the same state
            store.close()
            store = open_session_store(proxied_store_factory)
        done = commit_sessions_of_users(store, done, "a", f"u{n}")
        store.mark_published(n)
    store.close()
    assert [f for _, _, f in s3_proxy.faults] == [fault]
    s3_proxy.judge = lambda method, path: ""
    assert verify_state(store_factory()).problems == []
    again = store_factory()
    assert again.open() == done and again.published_epoch() == 9
    again.close()
    assert store_factory().runner() is None


@pytest.mark.parametrize("part", ["/segments/", "/manifests/000000001"])
def test_unanswered_request_is_retried_by_default(
    part: str, bucket: str, s3: S3Server, s3_proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a `timeout` option, one unanswered request uses only a part of the total time that a runner waits."""
    assert 2 * object_client.ANSWER_S < object_client.PATIENCE_S
    monkeypatch.setattr(object_client, "ANSWER_S", 1.0)
    store = FilesStore(bucket, "p", s3.connection_options(s3_proxy.port))
    done = commit_sessions_of_users(store, store.open(), "a")
    s3_proxy.judge = single_request_fault("hangs", "PUT", part)
    commit_sessions_of_users(store, done, "b")
    assert [fault for _, _, fault in s3_proxy.faults] == ["hangs"]
    store.close()


def test_unanswered_lease_renewal_is_retried_before_the_lease_expires(
    bucket: str, s3: S3Server, s3_proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert object_store_lease.RENEW_S + 2 * object_store_lease.ANSWER_S < object_store_lease.LEASE_S
    monkeypatch.setattr(object_client, "ANSWER_S", 1e5)
    monkeypatch.setattr(object_store_lease, "ANSWER_S", 0.5)
    monkeypatch.setattr(object_store_lease, "RENEW_S", 0.2)
    store = FilesStore(bucket, "p", s3.connection_options(s3_proxy.port))
    store.open()
    s3_proxy.judge = single_request_fault("hangs", "PUT", "/lock")
    wait_until(lambda: s3_proxy.faults)
    before = len(s3_proxy.seen)
    wait_until(lambda: len(s3_proxy.seen) > before)
    store.close()


def test_next_start_reads_a_commit_whose_response_was_lost(
    proxied_store_factory: Make, store_factory: Make, s3_proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store loses the response and then becomes unreachable. The run ends with a one-line error."""
    monkeypatch.setattr(object_client, "PATIENCE_S", 1.0)
    store = open_session_store(proxied_store_factory)
    done = commit_sessions_of_users(store, None, "a")
    gone = threading.Event()

    def judge(method: str, path: str) -> Any:
        if "/manifests/000000001" in path:
            gone.set()
            return "lost" if method == "PUT" else "dropped"
        return "dropped" if gone.is_set() else ""

    s3_proxy.judge = judge
    with pytest.raises(
        EpochError, match=r"state store s3://.*/p: .* committed epochs are safe; check that the store can be reached"
    ) as raised:
        commit_sessions_of_users(store, done, "b")
    assert "\n" not in str(raised.value)
    store.close()
    s3_proxy.judge = lambda method, path: ""
    again = store_factory()
    assert again.open().epoch == 1
    with again.peek() as snapshot:
        assert read_session_users(snapshot) == ["b"]
    again.close()


def test_next_start_completes_an_interrupted_start_over(store_factory: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_session_store(store_factory)
    commit_sessions_of_users(store, None, "a")
    store.close()

    class Killed(BaseException):
        pass

    def dies(self: object_store.ObjectStorage) -> None:
        self.delete([f for f in self.client.sizes("") if f.startswith("manifests/")])
        raise Killed

    with monkeypatch.context() as dying:
        dying.setattr(object_store.ObjectStorage, "_clear", dies)
        with pytest.raises(Killed):
            store_factory().start_over()
    again = store_factory()
    assert again.open() is None
    assert set(again.storage.sizes("")) == {"lock"}
    again.close()
    aside = next(n for n in object_store.pipeline_names(again.storage.url, {}) if ".before-" in n)
    assert FilesStore(again.storage.url, aside).epochs() == [0]


# -- requests ----------------------------------------------------------------------------------------------------------


def test_epoch_needs_a_bounded_number_of_requests(proxied_store_factory: Make, s3_proxy: FaultyProxy) -> None:
    """Count requests at the proxy. Each shard uploads its files. The driver sends fewer than four requests per epoch."""
    store = open_session_store(proxied_store_factory)
    commit_sessions_of_users(store, None, "a")
    before, shards = len(s3_proxy.seen), 4
    metas: list[tuple[Any, ...]] = [()] * shards
    epochs = 12
    for epoch in range(1, 1 + epochs):
        staged = []
        for number in range(shards):
            shard = store.shard(number, shards, epoch, metas[number])
            old = shard.reader(LOGIC).scan()
            metas[number] = shard.stage(LOGIC, build_open_session_rows("a", f"u{epoch}"), old, -(1 << 62))
            staged.append(shard.write_output(pl.DataFrame({"user": ["a"], "__reason": ["close"]})))
        listed = store.write_list(epoch, ["a file"])
        segments = tuple(tuple(m) for m in metas)
        next_commit = build_session_commit(
            epoch, shards=shards, segments=segments, windows=(1,) * shards, groups=(1,) * shards, output=tuple(staged)
        )
        store.commit(next_commit)
        assert listed and store.published_epoch() < epoch and store.delivered_targets() == frozenset()
        assert sum(frame.height for frame in store.outputs(staged)) == shards
        store.mark_published(epoch)
    request_counts = Counter(
        (method, path.split("?")[0].split("/p/")[-1].split("/")[0]) for method, path in s3_proxy.seen[before:]
    )
    leases = request_counts.pop(("PUT", "lock"), 0)
    assert request_counts[("PUT", "manifests")] == request_counts[("PUT", "offsets")] == epochs
    assert set(request_counts) <= {("PUT", n) for n in ("manifests", "offsets", "published", "segments", "outputs")} | {
        ("GET", "published"),
        ("GET", "reached"),
    }
    of_shards = request_counts[("PUT", "segments")] + request_counts[("PUT", "outputs")]
    assert of_shards / epochs / shards <= 2.5  # a segment, an output, and sometimes a merged segment
    assert (sum(request_counts.values()) - of_shards) / epochs < 4
    measured = measure_state_sizes(proxied_store_factory()).requests
    assert measured is not None and leases < 10
    assert measured.per_shard == pytest.approx(of_shards / epochs / shards, rel=0.25)
    assert measured.per_commit <= 4
    store.close()


def test_state_sizes_reports_requests_per_epoch(store_factory: Make, bucket: str) -> None:
    store, done = open_session_store(store_factory), None
    for epoch in range(3):
        done = commit_sessions_of_users(store, done, "a")
        store.storage.client.delete([f"manifests/{epoch:09d}.json"])
        done = done.model_copy(update={"committed_us": epoch * 10_000_000})
        store._log.put(done, -1)
    store.close()
    text = CliRunner().invoke(app, ["state", "sizes", bucket]).output
    assert "per shard and" in text and "per commit (means of 3 kept epochs), a commit every 10.0 s" in text
    requests = json.loads(CliRunner().invoke(app, ["state", "sizes", bucket, "--json"]).output)["requests"]
    assert requests["epochs"] == 3 and requests["seconds"] == 10


def test_segments_of_another_machine_are_fetched_once(
    store_factory: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_session_store(store_factory)
    done = commit_sessions_of_users(store, None, "a")
    store.close()
    monkeypatch.setenv("SLACKWATER_CACHE_DIR", str(tmp_path / "of another machine"))
    monkeypatch.setattr(object_store, "_clients", {})
    other = store_factory()
    other.open()
    for _ in range(3):
        assert other.shard(0, 1, 1, done.stages[0].segments[0]).reader(LOGIC).scan().height == 1
    assert other.storage.client.requests["get"] <= 6  # lease, fork, commit, published, segment
    other.close()


# -- the cache ---------------------------------------------------------------------------------------------------------


def test_damaged_cache_copy_is_fetched_again(
    store_factory: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_session_store(store_factory)
    done = commit_sessions_of_users(store, None, "a")
    store.close()
    file = done.stages[0].segments[0][0]
    copy = store.storage.local_path(file_ref(file))
    copy.write_bytes(copy.read_bytes()[:-9])
    monkeypatch.setattr(object_store, "_clients", {})
    with store_factory().peek() as snapshot:
        assert read_session_users(snapshot) == ["a"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda c, f: c.delete([f]), "is missing"),
        (lambda c, f: c.put(f, bytes(c.get(f).content)[:-9]), "is truncated"),
        (lambda c, f: c.put(f, bytes(c.get(f).content)[:-1] + b"?"), "does not match its checksum"),
    ],
)
def test_damaged_segment_is_reported_with_its_url(
    damage: Any, message: str, store_factory: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_session_store(store_factory)
    done = commit_sessions_of_users(store, None, "a")
    store.close()
    file = done.stages[0].segments[0][0].file
    damage(store.storage.client, file)
    monkeypatch.setenv("SLACKWATER_CACHE_DIR", str(tmp_path / "empty"))
    monkeypatch.setattr(object_store, "_clients", {})
    with pytest.raises(StateError, match=f"state file s3://.*/p/{file} {message}; restore it"), store_factory().peek():
        pass
    assert [p.what for p in verify_state(store_factory()).problems] == [message]
    if message != "does not match its checksum":  # only fetching the file detects this
        with pytest.raises(StateError, match=f"state file s3://.*/p/{file} {message}"):
            store_factory().open()


def test_cache_writable_by_other_users_is_refused(
    store_factory: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    monkeypatch.setenv("SLACKWATER_CACHE_DIR", str(open_to_all))
    monkeypatch.setattr(object_store, "_clients", {})
    store = store_factory()
    store.open()
    with pytest.raises(
        StateError,
        match="belongs to another user, or other users can write to it; remove it, or set SLACKWATER_CACHE_DIR",
    ):
        store.write_list(0, ["x"])
    store.close()


def test_least_recently_used_files_are_evicted_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    from slackwater.storage import file_cache

    for n in range(4):
        path = tmp_path / "s" / str(n)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * 100)
        os.utime(path, (n, n))
    monkeypatch.setenv("SLACKWATER_CACHE_BYTES", "250")
    file_cache.trim_cache(tmp_path)
    assert sorted(p.name for p in (tmp_path / "s").iterdir()) == ["2", "3"]


# -- error messages ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "more", "message"),
    [
        ("s3://no-such-bucket/x", {}, 'there is no bucket "no-such-bucket"; create it, or correct the path'),
        (
            "{url}",
            {"endpoint": "http://127.0.0.1:9"},
            r"lock cannot be read .*committed epochs are safe; check that the store can be",
        ),
        (
            "{url}",
            {"regoin": "x"},
            r"Configuration key: 'regoin' is not valid for store 'S3'.*check the URL and its options",
        ),
    ],
)
def test_unreachable_or_misconfigured_store_is_reported_without_secrets(
    url: str, more: dict[str, str], message: str, bucket: str, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_client, "PATIENCE_S", 0.5)
    with pytest.raises(StartError, match=message) as raised:
        FilesStore(url.format(url=bucket), "p", {**s3.connection_options(), **more}).open()
    assert "\n" not in str(raised.value) and "not-so-secret" not in str(raised.value)


def test_missing_credentials_are_reported(bucket: str, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_client, "PATIENCE_S", 0.5)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    nobody = {
        "endpoint": s3.connection_options()["endpoint"],
        "metadata_endpoint": "http://127.0.0.1:9",
        "region": "us-east-1",
    }
    with pytest.raises(
        StateError, match=r"no credentials were found .*; set them in the environment \(AWS_ACCESS_KEY_ID"
    ):
        FilesStore(bucket, "p", nobody).open()


def test_denied_access_is_reported_with_the_required_permissions(
    bucket: str, s3: S3Server, s3_proxy: FaultyProxy
) -> None:
    s3_proxy.judge = lambda method, path: "403"
    with pytest.raises(
        StateError, match=r"access was denied \(AccessDenied\); check the credentials, and that they allow get, put"
    ):
        FilesStore(bucket, "p", s3.connection_options(s3_proxy.port)).open()


def test_repr_of_objects_sent_to_workers_hides_credentials(bucket: str, s3: S3Server) -> None:
    store = FilesStore(bucket, "p", s3.connection_options())
    assert "not-so-secret" not in repr(store.shard(0, 1, 0, ())) and "AKIA" not in repr(store.storage)
