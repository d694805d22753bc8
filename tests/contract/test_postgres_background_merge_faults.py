"""Background merges in Postgres and lost connections, other runners, unusual names and settings, and random versions of units."""

from __future__ import annotations

import logging
import random
import socket
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import polars as pl
import psycopg
import pytest
from tests.support import session_store_commits
from tests.support.background_merges import (
    SECONDS,
    HeldMerge,
    commit_epochs,
    create_store,
    merge_after_three_tokens,
    query_rows,
    read_snapshot_users,
    read_stored_tokens,
    terminate_connection,
    wait_until,
)
from tests.support.case_selection import select_cases
from tests.support.session_store_commits import LOGIC, open_session_store

from slackwater.core.schema import Field
from slackwater.errors import FencedError
from slackwater.state.postgres import background_merge, staged_row_merge, staged_rows
from slackwater.windows.aggregations import bind_aggregation
from slackwater.windows.compiled_session_window import CompiledSessionWindow
from slackwater.windows.state_layout import CLEAN, TOMBSTONE


@pytest.fixture
def database_url(postgres: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    yield postgres.database(f"attack_{uuid.uuid4().hex[:12]}")


@pytest.fixture(autouse=True)
def merge_early(monkeypatch: pytest.MonkeyPatch) -> None:
    merge_after_three_tokens(monkeypatch)


def wait_for_merge(store: Any) -> None:
    """Wait until the running merge of a store has ended."""
    merge = store._merges._merge
    assert merge.recorded.wait(SECONDS)


@pytest.mark.parametrize("few", [False, True], ids=["background", "commit"])
@pytest.mark.parametrize("name", ["newest", "place", "version", "versions", "t", "p"])
def test_key_with_the_name_of_a_column_of_the_merge_query(
    name: str, few: bool, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if few:
        monkeypatch.setattr(staged_row_merge, "FEW_ROWS", 1000)
    window = session_store_commits.WINDOW.model_copy(update={"group_by": [name]})
    logic = CompiledSessionWindow(
        "p", window, (Field(name, "string"),), (bind_aggregation(session_store_commits.COUNT, None),)
    )
    store = create_store(database_url)
    store.open()
    store.prepare(logic)
    metas: Any = ()
    for epoch in range(3):
        shard = store.shard(0, 1, epoch, metas)
        rows = session_store_commits.build_open_session_rows("a", "b").rename({"user": name})
        metas = shard.stage(logic, rows, shard.reader(logic).scan(), -(1 << 62))
        done = store.commit(session_store_commits.build_session_commit(epoch, segments=(metas,), windows=(2,)))
        metas = done.stages[0].segments[0]
    if not few:
        wait_for_merge(store)
    assert sorted(r for (r,) in query_rows(database_url, f'SELECT "{name}" FROM slackwater_state_p')) == ["a", "b"]
    store.close()


def test_commit_after_the_server_lost_a_merge(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge ended, but the server loses it (failover to a replica that lags, synchronous_commit = off and a crash).

    The epoch of the stored commit is the one that the runner knows, so the fence does not notice.
    """
    held, store = HeldMerge(monkeypatch), open_session_store(lambda: create_store(database_url))
    done = commit_epochs(store, "ab", "ac", "acd")
    assert held.reached.wait(SECONDS)
    with psycopg.connect(database_url) as db:  # the server as of epoch 2, without the merge
        db.execute("CREATE TABLE before AS SELECT record, commit_id FROM slackwater_pipelines")
        db.execute("CREATE TABLE rows_before AS SELECT * FROM slackwater_state_p")
    held.release()
    wait_for_merge(store)
    with psycopg.connect(database_url) as db:
        db.execute("UPDATE slackwater_pipelines SET record = b.record, commit_id = b.commit_id FROM before b")
        db.execute("DELETE FROM slackwater_state_p")
        db.execute("INSERT INTO slackwater_state_p SELECT * FROM rows_before")
        db.execute("DROP TABLE rows_before, before")
    for (pid,) in query_rows(
        database_url, "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    ):
        terminate_connection(database_url, pid)
    assert read_snapshot_users(database_url) == ["a", "c", "d"]
    shard = store.shard(0, 1, 3, done.stages[0].segments[0])
    rows = session_store_commits.build_open_session_rows("a", "b", "c", "d", "e").filter(pl.col("user") == "e")
    metas = shard.stage(LOGIC, rows, LOGIC.empty_state(), -(1 << 62))
    with pytest.raises(FencedError, match="or the database was reset to an earlier state; this runner is stopping"):
        store.commit(session_store_commits.build_session_commit(3, segments=(metas,), windows=(4,)))
    assert read_snapshot_users(database_url) == ["a", "c", "d"]
    store.close()


def test_all_connections_are_lost_during_the_commit_of_a_merge(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server restarts during COMMIT of a merge. Without a merge, the next commit reconnects."""
    record = background_merge.BackgroundMerges._record_merge

    class Losing:
        def __init__(self, db: Any) -> None:
            self._db = db

        def execute(self, query: str, *arguments: Any) -> Any:
            if query == "COMMIT":
                raise psycopg.OperationalError("the connection is lost")
            return self._db.execute(query, *arguments)

    monkeypatch.setattr(
        background_merge.BackgroundMerges, "_record_merge", lambda s, db, *rest: record(s, Losing(db), *rest)
    )
    store = open_session_store(lambda: create_store(database_url))
    done = commit_epochs(store, "ab", "ac", "acd")
    wait_until(lambda: not store._merges._merge.is_running)
    metas = done.stages[0].segments[0]
    terminate_connection(database_url, store._db.info.backend_pid)
    store.commit(session_store_commits.build_session_commit(3, segments=(metas,), windows=(3,)))  # must reconnect
    store.close()


def test_start_over_while_a_merge_of_a_disconnected_runner_runs(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, first = HeldMerge(monkeypatch), open_session_store(lambda: create_store(database_url))
    commit_epochs(first, "ab", "ac", "acd")
    assert held.reached.wait(SECONDS)
    terminate_connection(database_url, first._db.info.backend_pid)
    second, errors = create_store(database_url), list[BaseException]()

    def start_over() -> None:
        try:
            second.start_over()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=start_over)
    thread.start()
    thread.join(0.5)
    assert thread.is_alive()
    held.release()
    thread.join(SECONDS)
    second.close()
    first.close()
    assert errors == []


def test_default_isolation_of_the_database(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with psycopg.connect(database_url, autocommit=True) as db:
        name = db.info.dbname
        db.execute(f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = 'repeatable read'")  # type: ignore
    held, store = HeldMerge(monkeypatch), open_session_store(lambda: create_store(database_url))
    done = commit_epochs(store, "ab", "ac", "acd")
    assert held.reached.wait(SECONDS)
    commit_epochs(store, "x", after=done)
    held.release()
    wait_for_merge(store)
    assert read_stored_tokens(database_url)[0] == ""
    store.close()


def test_rows_of_a_merge_are_deleted_if_the_pipeline_ends_before_the_next_commit(database_url: str) -> None:
    store = open_session_store(lambda: create_store(database_url))
    commit_epochs(store, "ab", "ac", "acd")
    wait_for_merge(store)
    store.close()
    again = create_store(database_url)
    again.open()
    again.prepare(LOGIC)
    again.close()
    assert query_rows(database_url, "SELECT count(*) FROM slackwater_staged_p") == [(0,)]


def test_rows_that_cannot_be_deleted_after_a_merge_are_not_reported_as_a_failed_merge(
    database_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse_connection(*arguments: Any) -> None:
        raise psycopg.OperationalError("too many connections")

    store = open_session_store(lambda: create_store(database_url))
    done = commit_epochs(store, "ab", "ac", "acd")
    wait_for_merge(store)
    with caplog.at_level(logging.WARNING, logger="slackwater"):
        monkeypatch.setattr(background_merge.client, "open_connection", refuse_connection)
        commit_epochs(store, "acd", after=done)
        wait_until(lambda: not store._merges._merge.is_running)
    monkeypatch.undo()
    store.close()
    assert (
        "could not be deleted from the staged table (too many connections); a later merge deletes them" in caplog.text
    )
    assert "merge of staged rows failed" not in caplog.text


def test_light_commit_after_a_merge_deletes_only_its_own_rows(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load of many keys, then few changes: the next commit deletes the many merged rows itself."""
    store = open_session_store(lambda: create_store(database_url))
    done = commit_epochs(store, "ab", "ac", "acd")
    wait_for_merge(store)
    monkeypatch.setattr(staged_row_merge, "FEW_ROWS", 10)
    deleted = []
    execute = psycopg.Connection.execute

    def spy(self: Any, query: Any, *a: Any, **k: Any) -> Any:
        cursor = execute(self, query, *a, **k)
        if "DELETE FROM" in str(query) and "staged" in str(query) and "unit" not in str(query):
            deleted.append((threading.current_thread().name, cursor.rowcount))
        if "VACUUM" in str(query):
            deleted.append((threading.current_thread().name, "VACUUM"))
        return cursor

    monkeypatch.setattr(psycopg.Connection, "execute", spy)
    commit_epochs(store, "acd", after=done)
    wait_until(lambda: not store._merges._merge.is_running)
    store.close()
    counts = [n for thread, n in deleted if thread == "MainThread"]
    assert counts in ([3], [3, "VACUUM"]), deleted


class Proxy:
    """A TCP proxy in front of Postgres that can become silent, like a paused server or pooler."""

    def __init__(self, port: int) -> None:
        self._port, self.frozen = port, threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._kept: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._kept.append(client)
            if self.frozen.is_set():
                continue
            server = socket.create_connection(("127.0.0.1", self._port))
            self._kept.append(server)
            for a, b in ((client, server), (server, client)):
                threading.Thread(target=self._relay, args=(a, b), daemon=True).start()

    def close(self) -> None:
        for one in (*self._kept, self._listener):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _relay(self, a: socket.socket, b: socket.socket) -> None:
        with suppress(OSError):
            while data := a.recv(1 << 16):
                while self.frozen.is_set() and a.fileno() >= 0:
                    time.sleep(0.1)
                b.sendall(data)
        if not self.frozen.is_set():
            b.close()


def test_close_while_the_server_is_silent(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_merge, "_STOP_S", 1.0)
    monkeypatch.setattr(background_merge, "_CANCEL_S", 0.5)
    port = psycopg.conninfo.conninfo_to_dict(database_url)["port"]
    proxy = Proxy(int(str(port)))
    url = database_url.replace(f":{port}/", f":{proxy.port}/")
    store = open_session_store(lambda: create_store(url))
    done = commit_epochs(store, "ab", "ac")
    with psycopg.connect(database_url) as blocker:
        blocker.execute("LOCK TABLE slackwater_state_p IN EXCLUSIVE MODE")  # a merge that takes long
        commit_epochs(store, "acd", after=done)
        time.sleep(0.5)
        assert store._merges.is_running
        proxy.frozen.set()
        closing = threading.Thread(target=store.close, daemon=True)
        closing.start()
        closing.join(20)
        frame = sys._current_frames().get(closing.ident or 0)
        place = "".join(traceback.format_stack(frame)[-3:]) if frame is not None and closing.is_alive() else ""
    proxy.close()
    closing.join(SECONDS)
    assert place == "", f"close still waits after 20 s: {place}"


def build_rows(units: dict[int, list[int] | None]) -> pl.DataFrame:
    """Rows by unit: a list of counts, one per row; None for a tombstone."""
    rows = [
        (h, CLEAN if counts is not None else TOMBSTONE, i, n)
        for h, counts in sorted(units.items())
        for i, n in enumerate(counts if counts is not None else [0])
    ]
    return pl.DataFrame(
        {
            "__h": [h for h, *_ in rows], "__kh": [h for h, *_ in rows], "__kind": [k for _, k, *_ in rows],
            "__start": [100 * i for *_, i, _ in rows], "__last": [100 * i + 5 for *_, i, _ in rows],
            "__due": [10_006 + i for *_, i, _ in rows], "user": [f"u{h}" for h, *_ in rows],
            "n.n": [n for *_, n in rows],
        },
        schema=LOGIC.state_schema,
    )  # fmt: skip


def scan(readers: Any) -> dict[int, list[int]]:
    rows_by_unit: dict[int, list[int]] = {}
    for reader in readers:
        frame = reader.scan().sort("__h", "__start")
        for h, n in frame.select("__h", "n.n").iter_rows():
            rows_by_unit.setdefault(h, []).append(n)
    return rows_by_unit


@pytest.mark.parametrize("seed", select_cases(range(6)))
def test_random_versions_of_units_equal_a_model(seed: int, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two shards, two tokens per epoch, units with 0 to 4 rows, failed attempts of epochs, lost connections, restarts."""
    choice = random.Random(seed)
    if seed % 2:
        monkeypatch.setattr(staged_rows, "find_local_copy", lambda meta: None)
    monkeypatch.setattr(staged_row_merge, "FEW_ROWS", choice.choice([-1, 25]))
    monkeypatch.setattr(staged_row_merge, "OVERDUE", choice.choice([2, 100]))
    store = open_session_store(lambda: create_store(database_url))
    model: dict[int, list[int]] = {}
    segments: tuple[Any, ...] = ((), ())
    done: Any = None
    epoch, counter = 0, 0
    while epoch < 40:
        fails = choice.random() < 0.15
        attempt, new = dict(model), []
        for number in range(2):
            metas = segments[number]
            for _ in range(choice.choice([0, 1, 2, 2])):
                shard = store.shard(number, 2, epoch, metas)
                changed: dict[int, list[int] | None] = {}
                for h in choice.sample(range(number, 40, 2), choice.randint(1, 6)):
                    counter += 1
                    if h in attempt and choice.random() < 0.4:
                        changed[h] = None
                        del attempt[h]
                    else:
                        changed[h] = attempt[h] = [counter * 10 + i for i in range(choice.randint(1, 4))]
                rows = build_rows(changed)
                before = shard.reader(LOGIC).units(rows["__h"].unique().sort().to_numpy())
                metas = shard.stage(LOGIC, rows, before, -(1 << 62))
            new.append(metas)
        if fails:
            continue  # the rows stay, as garbage of an epoch that is repeated
        if choice.random() < 0.1:
            terminate_connection(database_url, store._db.info.backend_pid)
        merge = store._merges._merge
        if choice.random() < 0.15 and merge.connection is not None:
            with suppress(psycopg.Error):
                terminate_connection(database_url, merge.connection.info.backend_pid)
        if choice.random() < 0.3:
            time.sleep(choice.random() * 0.1)
        commit = session_store_commits.build_session_commit(epoch, segments=tuple(new), windows=(0, 0), groups=(0, 0))
        if done is not None:
            commit = commit.model_copy(
                update={"stages": (commit.stages[0].model_copy(update={"table": done.stages[0].table}),)}
            )
        done = store.commit(commit)
        segments, model, epoch = done.stages[0].segments, attempt, epoch + 1
        readers = [store.shard(i, 2, epoch, segments[i]).reader(LOGIC) for i in range(2)]
        assert scan(readers) == model
        with create_store(database_url).peek() as snapshot:
            assert snapshot is not None
            assert scan([snapshot.reader(i, LOGIC) for i in range(2)]) == model
        view = dict[str, list[int]]()
        for user, n in query_rows(database_url, 'SELECT "user", "n.n" FROM slackwater_windows_p ORDER BY 2'):
            view.setdefault(user, []).append(n)
        assert view == {f"u{h}": v for h, v in model.items()}
        if choice.random() < 0.08:
            store.close()
            done = (store := create_store(database_url)).open()
            store.prepare(LOGIC)
            segments = done.stages[0].segments
    store.close()
    (again := create_store(database_url)).open()
    rows_by_unit: dict[int, list[int]] = {}
    for unit, n in query_rows(database_url, 'SELECT unit, "n.n" FROM slackwater_state_p ORDER BY 1, ordinal'):
        rows_by_unit.setdefault(unit, []).append(n)
    assert rows_by_unit == model
    again.close()
    assert not [t for t in threading.enumerate() if t.name == "slackwater-merge"]
