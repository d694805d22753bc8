"""Faults of an object store under a state: lost answers to uploads, stale lists, incomplete multipart uploads."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.support.case_selection import select_cases
from tests.support.kafka_topics import wait_until
from tests.support.servers.object_store import FaultyProxy, S3Server
from tests.support.session_store_commits import commit_sessions_of_users, open_session_store

from slackwater.connectors.files.output_directory import open_directory
from slackwater.connectors.files.target import FilesTarget
from slackwater.connectors.target import TargetTable
from slackwater.core.schema import Field
from slackwater.errors import EpochError, FencedError, PublishError, SlackwaterError
from slackwater.maintenance import verify_state
from slackwater.state.files.store import FilesStore
from slackwater.state.run_history import Run
from slackwater.storage import object_client, object_store_lease
from slackwater.storage.object_client import ObjectClient

Make = Callable[[], Any]


@pytest.fixture
def s3_proxy(s3: S3Server) -> Iterator[FaultyProxy]:
    with FaultyProxy.start_proxy(s3.port) as faulty_proxy:
        yield faulty_proxy


@pytest.fixture
def proxied_s3_options(s3: S3Server, s3_proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return options that reach the bucket through the proxy. A client retries a request for half a second."""
    monkeypatch.setattr(object_client, "PATIENCE_S", 0.5)
    return {**s3.connection_options(s3_proxy.port), "timeout": "5s", "connect_timeout": "5s"}


@pytest.fixture
def store_factory(bucket: str, proxied_s3_options: dict[str, str]) -> Make:
    return lambda: FilesStore(bucket, "p", proxied_s3_options)


def cut_connection_after_upload(proxy: FaultyProxy, part: str) -> threading.Event:
    """Store the next upload whose path contains `part`, drop the answer, and refuse all later requests.

    The returned event is set after the upload.
    """
    gone = threading.Event()

    def judge(method: str, path: str) -> Any:
        if method == "PUT" and part in path and not gone.is_set():
            gone.set()
            return "lost"
        return "dropped" if gone.is_set() else ""

    proxy.judge = judge
    return gone


def stop_faults(proxy: FaultyProxy) -> None:
    proxy.judge = lambda method, path: ""


def hide_object_from_lists(proxy: FaultyProxy, name: str) -> None:
    """Omit an object from every list."""
    one = re.compile(rb"<Contents>(?:(?!</Contents>).)*?" + re.escape(name).encode() + rb".*?</Contents>", re.S)
    proxy.revise = lambda method, path, content: one.sub(b"", content) if "list-type" in path else content


# -- uploads that were stored without an answer ------------------------------------------------------------------------


def test_lease_survives_renewal_that_was_stored_without_answer(
    store_factory: Make, s3_proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(object_store_lease, "RENEW_S", 0.1)
    store = open_session_store(store_factory)
    done = commit_sessions_of_users(store, None, "a")
    cut_connection_after_upload(s3_proxy, "/lock")
    wait_until(lambda: "the next attempt to renew the lease" in caplog.text)
    stop_faults(s3_proxy)
    store._lock._until = 0.0  # the lease expires
    commit_sessions_of_users(store, done, "b")
    store.close()
    assert store_factory().runner() is None


def test_renewal_without_answer_does_not_reclaim_lease_of_another_runner(
    store_factory: Make, bucket: str, s3: S3Server, s3_proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Renew a lease without an answer, let another runner take it, and expect the first runner to be fenced."""
    monkeypatch.setattr(object_store_lease, "RENEW_S", 1000.0)
    store = open_session_store(store_factory)
    done = commit_sessions_of_users(store, None, "a")
    cut_connection_after_upload(s3_proxy, "/lock")
    with pytest.raises(SlackwaterError, match="it is unknown whether lock was written"):
        store._lock.renew()
    stop_faults(s3_proxy)
    ObjectClient(f"{bucket}/p", s3.connection_options()).put(
        "lock", b'{"token": "other", "held": true, "holder": "process 1 on x"}'
    )
    store._lock._until = 0.0
    with pytest.raises(FencedError, match="process 1 on x took over"):
        commit_sessions_of_users(store, done, "b")
    store.close()


@pytest.mark.parametrize("note", select_cases(["runs", "reached", "published"]))
def test_record_stored_without_answer_is_overwritten_by_next_write(
    note: str, store_factory: Make, s3_proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next write has other content: for `runs`, the run continues and records its end."""
    monkeypatch.setattr(object_store_lease, "RENEW_S", 1000.0)
    store = open_session_store(store_factory)
    done = commit_sessions_of_users(store, commit_sessions_of_users(store, None, "a"), "b")
    writes: dict[str, list[Callable[[], None]]] = {
        "runs": [
            lambda: store.save_run(Run(started_us=1, runner="r", epoch=-1)),
            lambda: store.save_run(Run(started_us=1, runner="r", epoch=-1, ended_us=2, outcome="finished")),
        ],
        "reached": [lambda: store.mark_delivered(1, "x"), lambda: store.mark_delivered(1, "y")],
        "published": [lambda: store.mark_published(0), lambda: store.mark_published(1)],
    }
    before, after = writes[note]
    for _ in range(2):  # first create the object, then overwrite it
        cut_connection_after_upload(s3_proxy, f"/{note}")
        with pytest.raises(EpochError, match=f"it is unknown whether {note} was written"):
            before()
        stop_faults(s3_proxy)
        after()
    assert (note != "runs" or [r.ended_us for r in store_factory().runs()] == [2]) and store.epochs() == [0, 1]
    assert note != "published" or store_factory().published_epoch() == 1
    commit_sessions_of_users(store, done, "c")
    store.close()


def test_target_recognizes_its_own_marker_after_a_lost_upload_response(
    bucket: str, proxied_s3_options: dict[str, str], s3_proxy: FaultyProxy
) -> None:
    table = TargetTable("p", (Field("n", "bigint"),), None)
    target = FilesTarget(bucket, "parquet", table, proxied_s3_options)
    for epoch in range(4):
        cut_connection_after_upload(s3_proxy, "/_slackwater/p.json")
        with pytest.raises(PublishError, match=rf"epoch {epoch} is committed and will be published at the next start"):
            target.publish(epoch, pl.DataFrame({"n": [epoch]}))
        stop_faults(s3_proxy)
        target.publish(epoch, pl.DataFrame({"n": [epoch]}))
    assert target.last_epoch() == 3
    rows = pl.concat([pl.read_parquet(p) for p in sorted(open_directory(bucket).local_copy().glob("*.parquet"))])
    assert rows["n"].to_list() == [0, 1, 2, 3]


# -- stale lists -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("behind", select_cases([1, 3]))
def test_garbage_collection_spares_files_of_commit_missing_from_list(
    behind: int, store_factory: Make, bucket: str, s3_proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list omits a commit, so the files of this commit look like garbage."""
    monkeypatch.setattr(object_store_lease, "RENEW_S", 1000.0)
    store, done = open_session_store(store_factory), None
    for n in range(12):
        done = commit_sessions_of_users(store, done, "a", f"u{n}")
    hide_object_from_lists(s3_proxy, f"manifests/{store.epochs()[-behind]:09d}")
    store.collect_garbage()
    s3_proxy.revise = lambda method, path, content: content
    store.collect_garbage()
    store.close()
    assert verify_state(FilesStore(bucket, "p")).problems == []
    assert FilesStore(bucket, "p").epochs() == list(range(4, 12))


@pytest.mark.parametrize("hidden_file", select_cases(["manifest", "segment"], keep=2))
def test_open_reads_latest_commit_despite_file_missing_from_list(
    hidden_file: str, store_factory: Make, s3_proxy: FaultyProxy
) -> None:
    store, done = open_session_store(store_factory), None
    for n in range(3):
        done = commit_sessions_of_users(store, done, "a", f"u{n}")
    assert done is not None
    store.close()
    hide_object_from_lists(
        s3_proxy, f"manifests/{done.epoch:09d}" if hidden_file == "manifest" else done.stages[0].segments[0][-1].file
    )
    again = store_factory()
    assert again.open() == done
    again.close()


# -- incomplete multipart uploads --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "method", "part"),
    select_cases(
        [
            ("done-404", "POST", "uploadId"),  # a request whose answer was lost completed the upload
            ("400", "PUT", "partNumber"),
            ("half", "PUT", "partNumber"),
            ("500", "PUT", "partNumber"),
            ("lost", "POST", "uploadId"),
            ("hangs", "POST", "uploadId"),
            ("dropped", "POST", "uploads"),
        ],
        keep=3,
    ),
)
def test_multipart_upload_is_complete_after_fault(
    fault: str,
    method: str,
    part: str,
    bucket: str,
    proxied_s3_options: dict[str, str],
    s3_proxy: FaultyProxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(object_client, "PATIENCE_S", 60.0)
    client, content = ObjectClient(bucket, proxied_s3_options), os.urandom(2 * object_client.PART + 1)
    hit: list[str] = []

    def judge(request_method: str, path: str) -> Any:
        if request_method == method and part in path and not hit:
            hit.append(path)
            return fault
        return ""

    s3_proxy.judge = judge
    client.put("segments/x", memoryview(content))
    assert hit and bytes(client.get("segments/x", len(content)).content) == content


def test_refused_multipart_upload_fails_with_a_one_line_error_and_leaves_no_object(
    bucket: str, proxied_s3_options: dict[str, str], s3_proxy: FaultyProxy, tmp_path: Path
) -> None:
    client = ObjectClient(bucket, proxied_s3_options)
    s3_proxy.judge = lambda method, path: "403" if "partNumber" in path else ""
    with pytest.raises(SlackwaterError, match=r"access was denied \(AccessDenied\)") as raised:
        client.put("segments/x", memoryview(bytes(2 * object_client.PART + 1)))
    assert "\n" not in str(raised.value)
    stop_faults(s3_proxy)
    assert not client.has("segments/x")
