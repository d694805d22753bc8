"""Stores in Postgres whose staged rows are merged in the background, and what readers see of them, for tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from tests.support.session_store_commits import commit_sessions_of_users, read_session_users

from slackwater.state.commit import Commit
from slackwater.state.postgres import background_merge, staged_row_merge
from slackwater.state.postgres.store import PostgresStore

SECONDS = 60


def merge_after_three_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start a background merge as soon as a shard has three tokens, however few rows they have."""
    monkeypatch.setattr(staged_row_merge, "FEW_ROWS", -1)
    monkeypatch.setattr(staged_row_merge, "MOST_TOKENS", 3)
    monkeypatch.setattr(staged_row_merge, "OVERDUE", 100)


def terminate_connection(url: str, pid: int) -> None:
    """End the connection of a server process."""
    query_rows(url, f"SELECT pg_terminate_backend({pid})")


def create_store(url: str) -> PostgresStore:
    return PostgresStore(url, "public", "p")


def query_rows(url: str, query: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as db:
        return db.execute(query).fetchall()  # type: ignore[arg-type]


def read_table_users(url: str, table_kind: str = "state") -> list[Any]:
    return [user for (user,) in query_rows(url, f'SELECT "user" FROM "slackwater_{table_kind}_p" ORDER BY 1')]


def read_snapshot_users(url: str) -> list[str]:
    with create_store(url).peek() as snapshot:
        return read_session_users(snapshot)


def read_stored_tokens(url: str) -> list[str]:
    with create_store(url).peek() as snapshot:
        assert snapshot is not None
        return [m.file for m in snapshot.commit.stages[0].segments[0]]


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "nothing happened within a minute"
        time.sleep(0.02)


def commit_epochs(store: PostgresStore, *epochs: str, after: Commit | None = None) -> Commit:
    """Commit an epoch per text, which has a letter per user, such as "ab"."""
    done = after
    for users in epochs:
        done = commit_sessions_of_users(store, done, *users)
    assert done is not None
    return done


class HeldMerge:
    """Merges of a store that stop before they update the stored commit, until `release`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self._released = threading.Event(), threading.Event()
        record = background_merge.BackgroundMerges._record_merge

        def wait_and_record(merges: Any, *arguments: Any) -> None:
            self.reached.set()
            assert self._released.wait(SECONDS)
            record(merges, *arguments)

        monkeypatch.setattr(background_merge.BackgroundMerges, "_record_merge", wait_and_record)

    def release(self) -> None:
        self._released.set()
