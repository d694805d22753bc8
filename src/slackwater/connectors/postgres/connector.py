"""Connector for Postgres tables with results and dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from slackwater.config.connection import PostgresConnection
from slackwater.config.pipeline import Pipeline
from slackwater.config.target import Target as TargetSpec
from slackwater.connectors.connector import Connector
from slackwater.connectors.target import TargetTable

if TYPE_CHECKING:
    from slackwater.connectors.postgres.reader import PostgresResultReader
    from slackwater.connectors.postgres.target import PostgresTarget


class PostgresConnector(Connector[PostgresConnection]):
    """Connector for Postgres tables as targets and for dead letters."""

    def target(self, spec: TargetSpec, pipeline: Pipeline, table: TargetTable) -> PostgresTarget:
        return self.target_with_marker(spec, table)

    def target_with_marker(self, spec: TargetSpec, table: TargetTable) -> PostgresTarget:
        from slackwater.connectors.postgres.target import PostgresTarget

        return PostgresTarget(self.connection.url, spec.table or "", table)

    def check_target(self, spec: TargetSpec, key: str) -> None:
        from slackwater.state.postgres import client

        client.open_connection(self.connection.url, f"{key} {spec.table}").close()

    def result_reader(self, spec: TargetSpec, pipeline: Pipeline, writers: Sequence[str]) -> PostgresResultReader:
        from slackwater.connectors.postgres.reader import PostgresResultReader

        window = pipeline.target_stage.transform.window
        order = None if window is None else window.window_start_column
        return PostgresResultReader(str(self.connection.url), spec.table or "", order)
