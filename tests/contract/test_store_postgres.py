"""Failures of the Postgres store on a real server: cut connections, crashes, lock conflicts and other formats."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.support.local_pipeline_script import MicroBatch, run_local_script
from tests.support.session_store_commits import LOGIC, build_open_session_rows, build_session_commit

from slackwater.config.window import Aggregation, Window
from slackwater.errors import EpochError, FencedError, LockHeldError, StartError, StateError
from slackwater.state.commit import Commit
from slackwater.state.postgres import client, pipeline_lock
from slackwater.state.postgres.store import PostgresStore


@pytest.fixture
def database_url(postgres: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    yield postgres.database(f"store_{abs(hash(request.node.name)):x}")


def open_store(url: str, **more: Any) -> PostgresStore:
    store = PostgresStore(url, "public", "p", **more)
    store.open()
    try:
        store.prepare(LOGIC)
    except StateError:
        store.close()
        raise
    return store


def stage_sessions(store: PostgresStore, epoch: int, *users: str) -> Commit:
    """Build the commit of an epoch with these staged sessions."""
    shard = store.shard(0, 1, epoch, ())
    metas = shard.stage(LOGIC, build_open_session_rows(*users), LOGIC.empty_state(), -(1 << 62))
    return build_session_commit(epoch, segments=(metas,), windows=(len(users),))


def read_session_users(url: str) -> list[str]:
    with psycopg.connect(url) as db:
        return [r[0] for r in db.execute('SELECT "user" FROM slackwater_state_p ORDER BY 1')]


def kill_backend(url: str, store: PostgresStore) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("SELECT pg_terminate_backend(%s)", (store._db.info.backend_pid,))


def test_epoch_is_committed_once_when_the_connection_is_lost_before_the_commit(database_url: str) -> None:
    store = open_store(database_url)
    record = stage_sessions(store, 0, "a", "b")
    kill_backend(database_url, store)
    store.commit(record)
    assert read_session_users(database_url) == ["a", "b"]
    store.commit(stage_sessions(store, 1, "a", "c"))
    store.close()
    again = PostgresStore(database_url, "public", "p")
    reopened = again.open()
    assert reopened is not None
    assert reopened.epoch == 1
    again.close()


def test_commit_is_repeated_when_the_connection_is_lost_inside_it(database_url: str) -> None:
    """The backend is killed inside the transaction, so the commit certainly failed and is repeated."""
    store, calls = open_store(database_url), []

    def publish(db: Any) -> None:
        calls.append(1)
        if len(calls) == 1:
            kill_backend(database_url, store)
            db.execute("SELECT 1")

    store.commit(stage_sessions(store, 0, "a"), publish)
    assert len(calls) == 2
    assert read_session_users(database_url) == ["a"]
    store.close()


def test_commit_with_lost_acknowledgement_is_recognized_as_done(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(database_url)
    transact = PostgresStore._transact

    def lose_the_answer(self: PostgresStore, *arguments: Any) -> Commit:
        transact(self, *arguments)
        kill_backend(database_url, self)
        self._db.execute("SELECT 1")
        raise AssertionError("the connection is dead")

    record = stage_sessions(store, 0, "a")
    monkeypatch.setattr(PostgresStore, "_transact", lose_the_answer)
    done = store.commit(record)
    monkeypatch.undo()
    assert done.epoch == 0
    assert [m.file for m in done.stages[0].segments[0]] == [""]
    store.commit(stage_sessions(store, 1, "b"))
    assert read_session_users(database_url) == [
        "b"
    ]  # the second commit lists only its own rows, so it removes those of the first
    store.close()


def test_unreachable_server_leaves_commit_unknown_until_next_start(
    postgres: Any, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_lock, "PATIENCE_S", 1.0)
    store = open_store(database_url)
    record = stage_sessions(store, 0, "a")
    postgres.stop()
    try:
        with pytest.raises(
            EpochError, match=r"it is unknown whether epoch 0 was committed: .*cannot be reached.*next start"
        ):
            store.commit(record)
    finally:
        postgres.start()
    store.close()
    again = PostgresStore(database_url, "public", "p")
    assert again.open() is None
    again.close()


def test_staged_rows_survive_a_server_crash(postgres: Any, database_url: str) -> None:
    store = open_store(database_url)
    record = stage_sessions(store, 0, "a")
    postgres.crash()
    postgres.start()
    store.commit(record)
    assert read_session_users(database_url) == ["a"]
    store.close()


def test_commit_fails_when_staged_rows_are_missing(database_url: str) -> None:
    """A server with asynchronous commits may lose staged rows in a crash. The epoch must not be committed then."""
    store = open_store(database_url)
    record = stage_sessions(store, 0, "a")
    with psycopg.connect(database_url) as db:
        db.execute("DELETE FROM slackwater_staged_p")
    with pytest.raises(EpochError, match=r"found 0 of its rows in .*, expected 1 .* start again to repeat the epoch"):
        store.commit(record)
    store.close()
    again = open_store(database_url)
    again.commit(stage_sessions(again, 0, "a"))
    assert read_session_users(database_url) == ["a"]
    again.close()


def test_second_runner_is_refused_and_the_error_names_the_first(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_lock, "LOCK_S", 0.2)
    store = open_store(database_url)
    with pytest.raises(LockHeldError, match=r"pipeline is already running: process \d+ on .* holds its lock in schema"):
        PostgresStore(database_url, "public", "p").open()
    other = PostgresStore(database_url, "public", "other")
    other.open()
    other.close()
    store.close()
    open_store(database_url).close()


def test_runner_that_lost_its_lock_to_another_is_fenced(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_lock, "PATIENCE_S", 0.5)
    monkeypatch.setattr(pipeline_lock, "LOCK_S", 0.2)
    first = open_store(database_url)
    first.commit(stage_sessions(first, 0, "a"))
    kill_backend(database_url, first)
    second = PostgresStore(database_url, "public", "p")
    second.open()
    with pytest.raises(FencedError, match="another runner took the lock"):
        first.commit(build_session_commit(1))
    second.close()
    first.close()


def test_commit_out_of_order_or_after_another_runner_is_fenced(database_url: str) -> None:
    store = open_store(database_url)
    store.commit(stage_sessions(store, 0, "a"))
    with pytest.raises(FencedError, match="epoch 2 does not follow epoch 0"):
        store.commit(build_session_commit(2))
    with psycopg.connect(database_url) as db:
        db.execute("UPDATE slackwater_pipelines SET epoch = 1")
    with pytest.raises(FencedError, match=r"epoch 1 was already committed in .* by another runner"):
        store.commit(build_session_commit(1))
    store.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("UPDATE slackwater_pipelines SET state_version = 9", "has format 9, .* install a newer version"),
        ("UPDATE slackwater_pipelines SET state_version = 0", "has format 0, .* this format cannot be migrated"),
        ("UPDATE slackwater_pipelines SET record = '{}'", 'the record of pipeline "p" in .* is damaged'),
        ("DROP TABLE slackwater_state_p CASCADE", "slackwater_state_p.* is missing .* restore the table"),
    ],
)
def test_start_refuses_damaged_or_unsupported_state(database_url: str, change: str, message: str) -> None:
    store = open_store(database_url)
    store.commit(stage_sessions(store, 0, "a"))
    store.close()
    with psycopg.connect(database_url) as db:
        db.execute(change)
    with pytest.raises(StateError, match=message):
        open_store(database_url)


def test_unreachable_server_is_reported_with_a_one_line_error_without_password() -> None:
    store = PostgresStore("postgresql://me:hunter2@127.0.0.1:1/shop", "public", "p")
    with pytest.raises(
        StartError, match=r"^state store: Postgres at 127.0.0.1:1/shop cannot be reached \(.*\); check"
    ) as e:
        store.open()
    assert "hunter2" not in str(e.value)
    assert "\n" not in str(e.value)


def test_reserved_quoted_and_long_names_work_in_sql(database_url: str) -> None:
    """Keys have the names of store columns, names contain quotes and dots, and the pipeline name is too long."""
    window = Window(
        kind="session", gap_ms=10, max_session_duration_ms=1000, group_by=['kind', 'a"b', "x.y"],
        aggregations=[Aggregation(agg="count", as_="epoch"), Aggregation(agg="max", column="unit", as_='m"x')],
    )  # fmt: skip
    row = {"ts": 0, "kind": "k", 'a"b': "q", "x.y": "d", "unit": 3}
    schema = {"kind": "string", 'a"b': "string", "x.y": "string", "unit": "int"}
    name = "p" * 60
    done = run_local_script(
        window,
        [MicroBatch({"a": [row]}), MicroBatch({"a": [row]})],
        schema,
        store=lambda: PostgresStore(database_url, "My Schema", name),
    )
    assert [(r["kind"], r['a"b'], r["x.y"], r["epoch"], r['m"x']) for r in done.rows] == [("k", "q", "d", 2, 3)]
    with psycopg.connect(database_url) as db:
        tables = [r[0] for r in db.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'My Schema'")]
    assert all(len(t) <= 63 for t in tables)
    assert any(t.startswith("slackwater_state_ppp") for t in tables)


def test_column_name_too_long_for_postgres_is_refused(database_url: str) -> None:
    window = Window(
        kind="session", gap_ms=10, max_session_duration_ms=1000, group_by=["user"],
        aggregations=[Aggregation(agg="count", as_="n" * 70)],
    )  # fmt: skip
    with pytest.raises(StartError, match=r'column "n{70}\.n" has a name of 72 bytes, but Postgres allows at most 63'):
        run_local_script(
            window,
            [MicroBatch({"a": []})],
            {"user": "string"},
            store=lambda: PostgresStore(database_url, "public", "p"),
        )


def test_checkpoint_directory_is_deleted_on_close_unless_configured(database_url: str, tmp_path: Path) -> None:
    store = open_store(database_url)
    checkpoint = store.checkpoint
    assert checkpoint.is_dir()
    store.close()
    assert not checkpoint.exists()
    named = open_store(database_url, path=tmp_path)
    named.close()
    assert (tmp_path / "p" / "checkpoint").is_dir()


def worker_backend_id(url: str) -> int:
    """Return the ID of the server process that runs the next statement of a worker."""
    with client.arrow_cursor(url) as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def test_workers_reuse_pooled_connections(database_url: str) -> None:
    assert worker_backend_id(database_url) == worker_backend_id(database_url)
    used = []
    for _ in range(2):  # while one connection is in use, a second one opens; then both stay in the pool
        with client.arrow_cursor(database_url) as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            used.append({int(cursor.fetchone()[0]), worker_backend_id(database_url)})
    assert used[0] == used[1] and len(used[0]) == 2
    client.close_idle()
    with psycopg.connect(database_url) as db:
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        for _ in range(50):
            if (other_connections := db.execute(query).fetchone()) == (0,):
                break
            db.execute("SELECT pg_sleep(0.1)")
            db.rollback()
        assert other_connections == (0,)


def test_idle_connections_to_many_databases_are_limited(postgres: Any) -> None:
    client.close_idle()
    urls = [postgres.database(f"many_{n}") for n in range(8)]
    for url in urls:
        worker_backend_id(url)
        with client.borrow_connection(url, "state store") as db:
            db.execute("SELECT 1")
    with psycopg.connect(urls[-1]) as db:
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname LIKE 'many%' AND pid <> pg_backend_pid()"
        for _ in range(50):
            held = db.execute(query).fetchone()
            if held is not None and held[0] <= client.MAX_IDLE:
                break
            db.execute("SELECT pg_sleep(0.1)")
            db.rollback()
        assert held == (client.MAX_IDLE,)
    assert worker_backend_id(urls[-1]) == worker_backend_id(urls[-1])
    client.close_idle()


def test_lost_or_long_idle_connections_are_not_reused(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = worker_backend_id(database_url)
    with psycopg.connect(database_url, autocommit=True) as db:
        db.execute("SELECT pg_terminate_backend(%s)", (first,))
    second = worker_backend_id(database_url)
    assert second != first
    monkeypatch.setattr(client, "MAX_IDLE_S", 0.0)
    assert worker_backend_id(database_url) != second


def test_failed_statement_discards_its_connection(database_url: str) -> None:
    first = worker_backend_id(database_url)
    with (
        pytest.raises(ConnectionError, match='relation "nowhere" does not exist'),
        client.arrow_cursor(database_url) as cursor,
    ):
        cursor.execute("SELECT * FROM nowhere")
    assert worker_backend_id(database_url) != first
