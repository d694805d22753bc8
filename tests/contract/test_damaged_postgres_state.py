"""Starts on state tables that another program changed: the error names the table and the difference."""

from __future__ import annotations

import itertools
import os
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.support.case_selection import select_cases

import slackwater as sw
from slackwater.config.pipeline import Pipeline
from slackwater.engine.kill_points import KILL_POINTS
from slackwater.errors import SlackwaterError, StateError
from slackwater.maintenance.verify_postgres_store import verify_postgres
from slackwater.state.postgres.client import close_idle
from slackwater.state.postgres.store import PostgresStore
from slackwater.testing import LocalPipeline
from slackwater.testing.memory_target import SimulatedCrash

SEEDS = int(os.environ.get("SLACKWATER_SEEDS", "8"))
SCHEMA = {"k": "string", "v": "bigint"}
COUNT = [sw.Aggregation(agg="count", as_="n"), sw.Aggregation(agg="sum", column="v", as_="total")]
fresh = itertools.count()


def session_hopping_and_join_pipeline() -> Pipeline:
    """Build a pipeline with a session, a hopping window and a join, each with its own table."""
    session = sw.Window(
        kind="session", gap_ms="1m", max_session_duration_ms="1h", group_by=["k"], aggregations=COUNT, lateness_ms="1m"
    )
    hopping = sw.Window(
        kind="hopping",
        duration_ms="2m",
        hop_ms="1m",
        group_by=["k"],
        aggregations=COUNT,
        max_groups_per_window=100,
        lateness_ms="1m",
    )
    join = sw.Join(
        kind="left",
        left_source="a",
        right_source="b",
        left_keys=["k"],
        right_keys=["k"],
        lower_ms=0,
        upper_ms="2m",
        lateness_ms="1m",
    )
    stages = [
        sw.Stage(name="visits", from_=["a"], window=session),
        sw.Stage(name="sums", from_=["b"], window=hopping),
        sw.Stage(name="pairs", join=join),
    ]
    return sw.pipeline(
        name="law",
        sources=[sw.Source(name=n, dataframe=object()) for n in "ab"],
        connections={"t": sw.DeltaConnection()},
        stages=stages,
        targets=[sw.Target(name=s.name, from_=s.name, connection="t", path=s.name) for s in stages],
        state_store=sw.StateStore(kind="postgres", url="postgresql://u@h/d"),
    )


@pytest.fixture
def database_url(postgres: Any) -> Iterator[str]:
    yield postgres.database(f"damaged_{os.getpid()}_{next(fresh)}")


def run_random_batches(url: str, seed: int = 0, batches: int = 6, crashes: bool = False) -> LocalPipeline:
    """Run some batches. With `crashes`, the run is killed at named steps, and each start checks the state tables."""
    chance = random.Random(seed)
    test = LocalPipeline(
        session_hopping_and_join_pipeline(),
        SCHEMA,
        store=lambda: PostgresStore(url, "public", "law"),
        capture_losses=False,
        shards=2,
    )
    for n in range(batches):
        rows = [
            {"k": chance.choice("xyz"), "v": 1, "ts": n * 40_000 + chance.randint(-50_000, 30_000)} for _ in range(8)
        ]
        test.pipe({"a": [r for r in rows if chance.random() < 0.7], "b": rows})
        if crashes and chance.random() < 0.6:
            test.crash(chance.choice(list(KILL_POINTS)))
        elif chance.random() < 0.3:
            test.restart(shards=chance.choice([1, 2, 3]))
    return test


def list_filled_state_tables(url: str) -> list[str]:
    """Return the state tables that hold rows."""
    with psycopg.connect(url) as db:
        names = ["law", "law#2", "law#3"]
        return [n for n in names if db.execute(f'SELECT count(*) FROM "slackwater_state_{n}"').fetchone() != (0,)]


DAMAGES = {
    "truncated": ('TRUNCATE "slackwater_state_{t}"', "found 0 rows, expected [1-9]"),
    "fewer rows": (
        'DELETE FROM "slackwater_state_{t}" WHERE ctid = (SELECT min(ctid) FROM "slackwater_state_{t}")',
        r"found \d+ rows, expected",
    ),
    "more rows": (
        'INSERT INTO "slackwater_state_{t}" SELECT r.* FROM "slackwater_state_{t}" s, LATERAL (SELECT (jsonb_populate_record(s,'
        ' \'{{"ordinal": 99, "row_id": 99}}\')).*) r LIMIT 1',
        r"found \d+ rows, expected",
    ),
    "a renamed column": ('ALTER TABLE "slackwater_state_{t}" RENAME COLUMN {c} TO other', 'found column "{c}" missing'),
    "a dropped column": ('ALTER TABLE "slackwater_state_{t}" DROP COLUMN {c} CASCADE', 'found column "{c}" missing'),
    "another type": (
        'ALTER TABLE "slackwater_state_{t}" ALTER COLUMN {c} TYPE numeric',
        'found column "{c}" numeric, expected bigint',
    ),
}


CASES = [(damage_name, table) for table in ("law", "law#3", "law#2") for damage_name in DAMAGES]


@pytest.mark.parametrize(("damage_name", "table"), select_cases(CASES, keep=len(DAMAGES) + 2))
def test_start_refuses_state_tables_changed_by_another_program(database_url: str, damage_name: str, table: str) -> None:
    with run_random_batches(database_url) as test:
        test._stop()
        assert table in list_filled_state_tables(database_url)
        column = _integer_column(database_url, table)
        statement, problem = (text.format(t=table, c=column) for text in DAMAGES[damage_name])
        with psycopg.connect(database_url, autocommit=True) as db:
            if damage_name == "another type":
                db.execute(f'DROP VIEW IF EXISTS "slackwater_windows_{table}"')
            assert db.execute(statement.replace(column, f'"{column}"')).rowcount
        with pytest.raises(StateError, match=rf'stage ".*": table .*slackwater_state_{table}.*{problem}.*nothing was'):
            test._start()
        report = verify_postgres(PostgresStore(database_url, "public", "law"))
        assert any(f"slackwater_state_{table}" in p.place for p in report.problems)


def _integer_column(url: str, table: str) -> str:
    """Return an integer column of the state rows."""
    with psycopg.connect(url) as db:
        rows = db.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND atttypid = 'bigint'::regtype AND attname NOT IN"
            " ('epoch', 'unit', 'key_hash', 'row_id') AND attnum > 0 AND NOT attisdropped ORDER BY 1",
            (f'"slackwater_state_{table}"',),
        ).fetchall()
    return str(rows[0][0])


# -- invalid values in every column -----------------------------------------------------------------------------------

VALUES = {  # SQL of values that no commit writes, by the type of the column
    "bigint": ("NULL", "-9223372036854775808", "9223372036854775807", "0", "-1"),
    "integer": ("NULL", "-2147483648", "2147483647"),
    "smallint": ("NULL", "-32768", "99"),
    "boolean": ("NULL", "true"),
    "text": ("NULL", "''", "repeat('x', 100000)", "'pipeline'", "'left'"),
    "timestamp with time zone": ("NULL", "'infinity'", "'-infinity'", "'0001-01-01 BC'", "'9999-12-31'"),
    "numeric": ("NULL", "'NaN'", "0"),
    "bigint[]": ("NULL", "'{NULL}'", "'{{1,2},{3,4}}'"),
}


def list_invalid_column_values(url: str) -> list[tuple[str, str, str]]:
    """Return (table, column, value) for all state, staging, pipeline, offset and output tables.

    Each column occurs with NULL and with one other value. The columns of a type take its other values in turn.
    """
    cell_values, columns_of_type = [], Counter[str]()
    with psycopg.connect(url) as db:
        names = [f"slackwater_state_{t}" for t in list_filled_state_tables(url)]
        staged = [n.replace("_state_", "_staged_") for n in names]
        for table in (*names, *staged, "slackwater_pipelines", "slackwater_offsets", "slackwater_outputs"):
            columns = db.execute(
                "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0"
                " AND NOT attisdropped ORDER BY attnum",
                (f'"{table}"',),
            )
            for name, type_ in columns.fetchall():
                null, *others = VALUES.get(type_, ("NULL",))
                cell_values.append((table, name, null))
                if others:
                    cell_values.append((table, name, others[columns_of_type[type_] % len(others)]))
                columns_of_type[type_] += 1
    return cell_values


def overwrite_column(url: str, table: str, column: str, value: str) -> None:
    """Write a value into a column of all rows, after dropping the constraints that would refuse the value."""
    with psycopg.connect(url, autocommit=True) as db:
        for (constraint,) in db.execute(
            "SELECT conname FROM pg_constraint WHERE conrelid = to_regclass(%s) ORDER BY contype = 'n'", (f'"{table}"',)
        ).fetchall():
            db.execute(f'ALTER TABLE "{table}" DROP CONSTRAINT IF EXISTS "{constraint}" CASCADE')
        db.execute(f'ALTER TABLE "{table}" ALTER COLUMN "{column}" DROP NOT NULL')
        db.execute(f'UPDATE "{table}" SET "{column}" = {value}')


@pytest.mark.parametrize("part", select_cases(range(8)))
def test_invalid_column_values_never_raise_an_unwrapped_exception(database_url: str, part: int, postgres: Any) -> None:
    """A start, an epoch and a flush succeed or fail with a one-line error. Invalid NULLs in state rows always fail."""
    copy = f"{database_url.rpartition('/')[2]}_copy"
    other = f"{database_url.rpartition('/')[0]}/{copy}"
    current_url = [database_url]
    kit = {"store": lambda: PostgresStore(current_url[0], "public", "law"), "capture_losses": False, "shards": 2}
    with run_random_batches(database_url) as test:
        test._stop()
        wrong = []
        close_idle()
        for table, column, value in list_invalid_column_values(database_url)[part::8]:
            with psycopg.connect(postgres.url, autocommit=True) as db:
                db.execute(f'DROP DATABASE IF EXISTS "{copy}" WITH (FORCE)')
                db.execute(f'CREATE DATABASE "{copy}" TEMPLATE "{database_url.rpartition("/")[2]}"')
            overwrite_column(other, table, column, value)
            current_url[0] = other
            said = "nothing"
            again = None
            try:
                again = LocalPipeline(session_hopping_and_join_pipeline(), SCHEMA, **kit)  # type: ignore[arg-type]
                again.pipe({s: [{"k": k, "v": 1, "ts": 6 * 40_000} for k in "xyz"] for s in "ab"})
                again.flush()
            except SlackwaterError as error:
                said = str(error)
                assert "\n" not in said
            except Exception as error:
                wrong.append(f"{table}.{column} = {value}: {type(error).__name__}: {error}")
            if value == "NULL" and column in NEVER_NULL and "_state_" in table and said == "nothing":
                wrong.append(f"{table}.{column} = NULL was accepted")
            if again is not None:
                again._stop()
            close_idle()
    assert not wrong, "\n".join(wrong)


NEVER_NULL = ("unit", "key_hash", "kind", "window_start", "last_event", "closes_at", "side", "event_time", "row_id")


@pytest.mark.parametrize("cut", ["''", "substring(data FOR 100)", "'not Arrow'"])
def test_error_for_damaged_staged_output_names_the_output(database_url: str, cut: str) -> None:
    with run_random_batches(database_url) as test:
        test._faults.step = "write.before"
        with pytest.raises(SimulatedCrash):
            test._driver.flush()
        test._faults.step = None
        test._stop()
        with psycopg.connect(database_url, autocommit=True) as db:
            assert db.execute(f"UPDATE slackwater_outputs SET data = {cut}::bytea").rowcount
        with pytest.raises(
            StateError, match=r"output \w+ in table .*slackwater_outputs.* is damaged: it cannot be read"
        ):
            test._start()


@pytest.mark.parametrize("seed", select_cases(range(SEEDS), keep=3))
def test_state_changed_only_by_slackwater_passes_verification(database_url: str, seed: int) -> None:
    """The tables match the commit record after crashes at any step, reshards and merges."""
    with run_random_batches(database_url, seed, batches=14, crashes=True) as test:
        test.restart()
        assert not verify_postgres(PostgresStore(database_url, "public", "law")).problems


def test_next_commit_adds_missing_table_metadata(database_url: str) -> None:
    with run_random_batches(database_url) as test:
        test._stop()
        with psycopg.connect(database_url, autocommit=True) as db:
            db.execute(
                "UPDATE slackwater_pipelines SET record = jsonb_set(record, '{stages}', (SELECT jsonb_agg(s - 'table') FROM"
                " jsonb_array_elements(record -> 'stages') s))"
            )
        test._start()
        assert all(s.table is None for s in test._driver.state.stages)
        test.pipe({s: [{"k": "x", "v": 1, "ts": 400_000}] for s in "ab"})
        assert all(s.table is not None and s.table.columns for s in test._driver.state.stages)
        test.restart()
