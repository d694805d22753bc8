"""Connector for Postgres: tables for results and for dead letters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import polars as pl

from slackwater.config.connection import PostgresConnection
from slackwater.config.pipeline import Pipeline
from slackwater.config.target import Target as TargetSpec
from slackwater.connectors.connector import Connector
from slackwater.connectors.postgres.reader import PostgresResultReader
from slackwater.connectors.target import TargetTable
from slackwater.core.dead_letter_schema import CHUNK, NEWEST, SCHEMA, LetterFilter
from slackwater.errors import StartError, Topic

if TYPE_CHECKING:
    from slackwater.connectors.postgres.target import PostgresTarget


class PostgresConnector(Connector[PostgresConnection]):
    """Connector for Postgres tables as targets and for dead letters."""

    def target(self, spec: TargetSpec, pipeline: Pipeline, table: TargetTable) -> PostgresTarget:
        return self.existing_target(spec, table)

    def existing_target(self, spec: TargetSpec, table: TargetTable) -> PostgresTarget:
        from slackwater.connectors.postgres.target import PostgresTarget

        return PostgresTarget(self.connection.url, spec.table or "", table)

    def target_with_marker(self, spec: TargetSpec, table: TargetTable) -> PostgresTarget:
        return self.existing_target(spec, table)

    def check_target(self, spec: TargetSpec, key: str) -> None:
        from slackwater.state.postgres import client

        client.open_connection(self.connection.url, f"{key} {spec.table}").close()

    def result_reader(self, pipeline: Pipeline) -> PostgresResultReader:
        target, window = pipeline.target, pipeline.target_stage.transform.window
        order = None if window is None else window.window_start_column
        return PostgresResultReader(str(self.connection.url), target.table or "", order)

    def letters(self, spec: TargetSpec, pipeline: str, letter_filter: LetterFilter) -> Iterator[pl.DataFrame]:
        import psycopg

        from slackwater.state.postgres import client

        table = spec.table or ""
        schema, _, name = table.rpartition(".")
        quoted = f"{client.quote_name(schema or 'public')}.{client.quote_name(name)}"
        with client.open_connection(self.connection.url, f"dead_letter {table}") as db:
            existing_columns = db.execute(
                "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
                (quoted,),
            ).fetchall()
            columns = [n for n in letter_filter.columns_to_read if (n,) in existing_columns]
            if not columns:
                return  # no run has created the table yet
            conditions = {"pipeline": pipeline, "reason": letter_filter.reason, "source": letter_filter.source}
            filters = {n: v for n, v in conditions.items() if v is not None}
            query = (
                f"SELECT {client.quote_names(columns)} FROM {quoted} WHERE {' AND '.join(f'{client.quote_name(n)} = %s' for n in filters)}"
                f" ORDER BY {', '.join(f'{client.quote_name(n)} DESC NULLS LAST' for n in NEWEST)}"
                + (f" LIMIT {letter_filter.limit}" if letter_filter.limit is not None else "")
            )
            try:
                with db.transaction(), db.cursor(name="slackwater_letters") as cursor:
                    cursor.execute(query, list(filters.values()))
                    while rows := cursor.fetchmany(CHUNK):
                        yield pl.DataFrame(rows, schema={n: SCHEMA[n] for n in columns}, orient="row")
            except psycopg.Error as error:
                raise StartError(
                    f"table {table}: {client.error_reason(error)}; expected a table of dead letters", Topic.DEAD_LETTERS
                ) from None
