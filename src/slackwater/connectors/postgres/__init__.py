"""Description of the connector for Postgres tables as targets and for dead letters."""

from __future__ import annotations

from slackwater.config.connection import PostgresConnection
from slackwater.config.connector_description import ConnectorDescription, Dataset, TargetKeys


def _write_text(t: TargetKeys, adds: bool, within: bool) -> str:
    return f"{'insert' if adds else 'upsert'} into Postgres table {t.table}{', within the commit' if within else ''}"


def _dataset(connection: PostgresConnection, target: TargetKeys) -> Dataset:
    from psycopg.conninfo import conninfo_to_dict

    conninfo = conninfo_to_dict(connection.url)
    schema, _, name = (target.table or "").rpartition(".")
    return (
        f"postgres://{conninfo.get('host') or 'localhost'}:{conninfo.get('port') or 5432}",
        f"{conninfo.get('dbname') or conninfo.get('user') or 'postgres'}.{schema or 'public'}.{name}",
    )


POSTGRES = ConnectorDescription(
    kind="postgres",
    connection=PostgresConnection,
    connector="slackwater.connectors.postgres.connector:PostgresConnector",
    target_keys=("table",),
    required_target_key=("table", 'a postgres target needs a table, as in "public.sessions"'),
    upserts=lambda t, window: True,
    returns_windows=True,
    location_text=lambda t: f"Postgres table {t.table}",
    write_text=_write_text,
    target_dataset=_dataset,
)
