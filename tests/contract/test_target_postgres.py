"""Test the Postgres target on a real server: exactly-once epochs, upserts with NULL and NaN keys, existing tables."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import polars as pl
import psycopg
import pytest

from slackwater.connectors.postgres.target import PostgresTarget
from slackwater.connectors.target import TargetTable
from slackwater.core.schema import Field
from slackwater.errors import PublishError, StartError

AT = dt.datetime(2024, 3, 1, 9, 0, 0, 250_001, dt.UTC)
FIELDS = (
    Field("window_start", "timestamp"), Field("key", "string"), Field("f", "double"), Field("n", "bigint"),
    Field("t", "tinyint"), Field("flag", "boolean"), Field("raw", "binary"), Field("day", "date"),
    Field("local", "timestamp_ntz"), Field("price", "decimal(10,2)"), Field("x", "float"), Field("i", "int"),
)  # fmt: skip
TABLE = TargetTable("p", FIELDS, ("key", "f", "window_start"))


def target_row(n: int, key: str | None = None, f: float | None = None) -> dict[str, Any]:
    return {
        "window_start": AT, "key": key, "f": f, "n": n, "t": -1, "flag": True, "raw": b"\x00\xff", "day": dt.date(1969, 1, 2),
        "local": dt.datetime(2024, 1, 1), "price": Decimal("1.50"), "x": 1.5, "i": None,
    }  # fmt: skip


def target_frame(*rows: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame(list(rows), schema={f.name: f.polars for f in FIELDS})


@pytest.fixture
def database_url(postgres: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    yield postgres.database(f"target_{abs(hash(request.node.name)):x}")


def open_target(url: str, table: str = "public.out", target_table: TargetTable = TABLE) -> PostgresTarget:
    target = PostgresTarget(url, table, target_table)
    target.open()
    return target


def read_table(url: str, query: str = "SELECT key, f::text, n FROM out ORDER BY n") -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as db:
        return db.execute(query).fetchall()


def test_repeated_and_older_epochs_are_ignored(database_url: str) -> None:
    target = open_target(database_url)
    target.publish(3, target_frame(target_row(1)))
    target.publish(3, target_frame(target_row(2)))
    target.publish(2, target_frame(target_row(3)))
    assert read_table(database_url) == [(None, None, 1)]
    target.close()
    again = open_target(database_url)
    again.publish(3, target_frame(target_row(4)))
    again.publish(4, target_frame(target_row(5)))
    assert read_table(database_url) == [(None, None, 5)]
    again.close()


def test_null_and_nan_keys_are_upserted_and_all_types_round_trip(database_url: str) -> None:
    target = open_target(database_url)
    target.publish(0, target_frame(target_row(1), target_row(2, "a", float("nan")), target_row(3, "", 0.5)))
    target.publish(1, target_frame(target_row(4), target_row(5, "a", float("nan")), target_row(6, "", 0.5)))
    assert read_table(database_url) == [(None, None, 4), ("a", "NaN", 5), ("", "0.5", 6)]
    rows = read_table(database_url, "SELECT window_start, t, flag, raw, day, local, price, x, i FROM out WHERE n = 4")
    assert rows == [
        (AT, -1, True, b"\x00\xff", dt.date(1969, 1, 2), dt.datetime(2024, 1, 1), Decimal("1.50"), 1.5, None)
    ]
    target.close()


def test_strings_with_special_characters_of_postgres_copy_round_trip(database_url: str) -> None:
    target = open_target(database_url)
    keys = ["", "\\N", 'a"b', "a,b", "a\nb", "\\x00", "NULL", "ü😀", None]
    target.publish(0, target_frame(*(target_row(n, key) for n, key in enumerate(keys))))
    assert [r[0] for r in read_table(database_url)] == keys
    target.close()


def test_existing_table_with_wrong_columns_is_refused_naming_each_column(database_url: str) -> None:
    with psycopg.connect(database_url) as db:
        db.execute('CREATE TABLE out (window_start timestamptz, key text, n integer, other int NOT NULL, "raw" text)')
    with pytest.raises(StartError) as error:
        open_target(database_url)
    text = str(error.value)
    assert "\n" not in text
    assert 'column "f" (double precision) is missing' in text
    assert 'column "n" is integer, expected bigint' in text
    assert 'column "raw" is text, expected bytea' in text
    assert 'column "other" must not be NULL and is not written' in text
    assert PostgresTarget(database_url, "public.out", TABLE).problems()


def test_existing_table_needs_a_unique_index_on_the_key(database_url: str) -> None:
    small = TargetTable("p", (Field("window_start", "timestamp"), Field("key", "string")), ("key", "window_start"))
    with psycopg.connect(database_url) as db:
        db.execute("CREATE TABLE out (window_start timestamptz, key varchar, more int, UNIQUE (window_start, key))")
    with pytest.raises(
        StartError, match=r'CREATE UNIQUE INDEX ON "public"."out" \("key", "window_start"\) NULLS NOT DISTINCT'
    ):
        open_target(database_url, target_table=small)
    with psycopg.connect(database_url) as db:
        db.execute("ALTER TABLE out ALTER key TYPE text, ALTER key SET NOT NULL, ALTER window_start SET NOT NULL")
    open_target(database_url, target_table=small).close()


def test_names_are_quoted_and_missing_schemas_are_created(database_url: str) -> None:
    odd = TargetTable("p", (Field('a"b; DROP', "string"), Field("SELECT", "bigint")), ('a"b; DROP',))
    target = open_target(database_url, 'My Schema.t"x', odd)
    target.publish(0, pl.DataFrame({'a"b; DROP': ["k"], "SELECT": [1]}))
    target.publish(1, pl.DataFrame({'a"b; DROP': ["k"], "SELECT": [2]}))
    assert read_table(database_url, 'SELECT * FROM "My Schema"."t""x"') == [("k", 2)]
    target.close()


def test_table_without_identity_only_appends_rows(database_url: str) -> None:
    letters = TargetTable("p-letters", (Field("n", "bigint"),), None)
    target = open_target(database_url, "letters", letters)
    target.publish(0, pl.DataFrame({"n": [1, 1]}))
    target.publish(0, pl.DataFrame({"n": [1]}))
    target.publish(1, pl.DataFrame({"n": [1]}))
    assert read_table(database_url, "SELECT count(*) FROM letters") == [(3,)]
    target.close()


def test_value_refused_by_postgres_raises_publish_error(database_url: str) -> None:
    target = open_target(database_url)
    with pytest.raises(
        PublishError, match=r"did not accept epoch 0 .*; the epoch is committed and will be published at the next start"
    ):
        target.publish(0, target_frame(target_row(1, "nul\0")))
    target.publish(0, target_frame(target_row(1, "fine")))
    assert read_table(database_url) == [("fine", None, 1)]
    target.close()


def test_lost_connection_is_reopened_at_the_next_publish(database_url: str) -> None:
    target = open_target(database_url)
    assert target._connection is not None
    with psycopg.connect(database_url, autocommit=True) as db:
        db.execute("SELECT pg_terminate_backend(%s)", (target._connection.info.backend_pid,))
    with pytest.raises(PublishError):
        target.publish(0, target_frame(target_row(1)))
    target.publish(0, target_frame(target_row(1)))
    assert read_table(database_url) == [(None, None, 1)]
    target.close()


def test_password_is_hidden_in_errors_and_description(database_url: str) -> None:
    with pytest.raises(StartError) as error:
        PostgresTarget("postgresql://me:hunter2@127.0.0.1:1/shop", "out", TABLE).open()
    assert "hunter2" not in str(error.value)
    assert "hunter2" not in PostgresTarget("postgresql://me:hunter2@127.0.0.1:1/shop", "out", TABLE).description


def test_epochs_of_a_new_state_are_accepted_after_a_reset(database_url: str) -> None:
    first = open_target(database_url, target_table=TargetTable("p", FIELDS, TABLE.identity, "first"))
    first.publish(500, target_frame(target_row(1)))
    first.close()
    second = open_target(database_url, target_table=TargetTable("p", FIELDS, TABLE.identity, "second"))
    second.publish(0, target_frame(target_row(2)))
    second.publish(0, target_frame(target_row(3)))
    assert read_table(database_url) == [(None, None, 2)]
    second.close()


@pytest.mark.parametrize(
    "url", ["postgressql://me:hunter2@host/db", "postgresql://me:p/hunter2@host/db", "postgresql://me:hun@ter2@host/db"]
)
def test_invalid_url_is_refused_without_printing_the_url(url: str) -> None:
    with pytest.raises(StartError, match="the url is not valid; expected postgresql://user:password@host") as error:
        PostgresTarget(url, "out", TABLE).open()
    assert "hun" not in str(error.value) + PostgresTarget(url, "out", TABLE).description


def recreate_table(url: str, table: str) -> None:
    """Replace a table with another table that has the same rows."""
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(f"CREATE TABLE other (LIKE {table} INCLUDING ALL)")
        db.execute(f"INSERT INTO other SELECT * FROM {table}")
        db.execute(f"DROP TABLE {table}")
        db.execute(f"ALTER TABLE other RENAME TO {table}")


def test_marker_of_a_recreated_table_is_ignored(database_url: str) -> None:
    target = open_target(database_url)
    target.publish(3, target_frame(target_row(1)))
    assert target.read_marker("").epoch == 3  # type: ignore[union-attr]
    with psycopg.connect(database_url, autocommit=True) as db:
        db.execute("ALTER TABLE out ADD COLUMN mine int")
        db.execute("VACUUM FULL out")
    assert target.read_marker("").epoch == 3, "a table that was rewritten is the same"  # type: ignore[union-attr]
    recreate_table(database_url, "out")
    assert target.read_marker("") is None
    target.publish(4, target_frame(target_row(2)))
    assert target.read_marker("").epoch == 4  # type: ignore[union-attr]
    target.close()


def test_markers_of_a_restored_database_are_accepted(database_url: str) -> None:
    """Restoring a database gives a new OID to each table."""
    target = open_target(database_url)
    target.publish(3, target_frame(target_row(1)))
    recreate_table(database_url, "out")
    recreate_table(database_url, "slackwater_targets")
    assert target.read_marker("").epoch == 3  # type: ignore[union-attr]
    target.close()


def test_markers_written_by_an_earlier_version_are_accepted(database_url: str) -> None:
    target = open_target(database_url)
    target.publish(3, target_frame(target_row(1)))
    with psycopg.connect(database_url, autocommit=True) as db:
        db.execute(
            "ALTER TABLE slackwater_targets DROP COLUMN table_oid, DROP COLUMN marker_oid, DROP COLUMN commit_id"
        )
    assert target.read_marker("").epoch == 3  # type: ignore[union-attr]
    target.close()
    target = open_target(database_url)
    assert target.read_marker("").epoch == 3  # type: ignore[union-attr]
    target.publish(4, target_frame(target_row(2)))
    recreate_table(database_url, "out")
    assert target.read_marker("") is None
    target.close()
