"""A lost Postgres server is a one-line Slackwater error: libpq does not print to stderr, and no process crashes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.support.case_selection import select_cases

from slackwater.errors import EpochError
from slackwater.runner.error_boundary import ErrorBoundary
from slackwater.state.postgres import client

SCRIPT = """
import os, signal, sys, time
from contextlib import suppress
import polars as pl
import psycopg
from slackwater.errors import SlackwaterError
from slackwater.state.postgres import client
from slackwater.state.postgres.store import PostgresStore

url, how = sys.argv[1], getattr(signal, sys.argv[2])


def other():
    while True:  # the server recovers
        try:
            return psycopg.connect(url, autocommit=True)
        except psycopg.Error:
            time.sleep(0.1)


def runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(") ")[2][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it ended, also between open and read
        return False


def end_all():
    with other() as connection:
        query = "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()"
        left = [pid for pid, in connection.execute(query).fetchall()]
        for pid in left:
            with suppress(ProcessLookupError):  # a killed backend makes the server end the others
                os.kill(pid, how)
    while left:  # until the client notices it
        left = [pid for pid in left if runs(pid)]
        time.sleep(0.05)
    other().close()


def wait_in_pool():
    with client.arrow_cursor(url) as cursor:
        cursor.execute("SELECT 1")
    with client.borrow_connection(url, "x") as connection:
        connection.execute("SELECT 1")


with other() as connection:
    connection.execute("CREATE TABLE t (a bigint)")

wait_in_pool()
end_all()
wait_in_pool()  # the pooled connections are broken: new ones replace them
end_all()
client.close_idle()
print("waiting ones: ok")

for work in ("query", "ingest", "fetch"):
    try:
        with client.arrow_cursor(url) as cursor:
            cursor.execute("SELECT g, repeat('x', 1000) FROM generate_series(1, 100000) g" if work == "fetch" else "SELECT 1")
            end_all()
            if work == "query":
                cursor.execute("SELECT 2")
            elif work == "ingest":
                client.append_frame(cursor, "public", "t", pl.DataFrame({"a": range(100_000)}))
            else:
                cursor.fetch_arrow_table()
    except ConnectionError as error:
        assert str(error).startswith("Postgres at 127.0.0.1:") and len(str(error).splitlines()) == 1, error
        print(f"{work}: one line")

store = PostgresStore(url, "public", "p")
store.open()
end_all()
try:
    store.open()
except (SlackwaterError, psycopg.Error) as error:
    print("store: refused")
store.close()
"""


@pytest.fixture(scope="module")
def postgres_server() -> Iterator[Any]:
    """Yield a separate server, because a killed backend makes the server end all other backends."""
    from slackwater.testing.services import Postgres

    with Postgres.started() as postgres:
        yield postgres


@pytest.mark.parametrize("how", select_cases(["SIGTERM", "SIGKILL", "SIGQUIT"]))
def test_server_outage_fails_with_a_one_line_error_without_libpq_output(postgres_server: Any, how: str) -> None:
    url = postgres_server.database(f"gone_{how.lower()}")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, url, how], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[:4] == [
        "waiting ones: ok",
        "query: one line",
        "ingest: one line",
        "fetch: one line",
    ]


def test_error_of_terminated_connection_names_server(postgres_server: Any) -> None:
    url = postgres_server.database("ended")
    with psycopg.connect(url, autocommit=True) as other, psycopg.connect(url) as connection:
        other.execute("SELECT pg_terminate_backend(%s)", (connection.info.backend_pid,))
        with pytest.raises(EpochError) as raised, ErrorBoundary("clicks"), connection.cursor() as cursor:
            for _ in range(100):  # the signal takes a moment
                cursor.execute("SELECT 1")
    line = str(raised.value)
    assert line.startswith(f"clicks: Postgres at {client.server_address(url)}: ")
    assert line.endswith("; committed epochs are safe; fix the cause, and start again")
    assert len(line.splitlines()) == 1
