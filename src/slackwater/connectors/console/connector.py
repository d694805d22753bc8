"""Console connector, which prints the rows of each epoch as a table, at least once, and does not store them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import polars as pl

from slackwater.config.connection import ConsoleConnection
from slackwater.config.pipeline import Pipeline
from slackwater.config.target import Target as TargetSpec
from slackwater.connectors.connector import Connector
from slackwater.connectors.files.target import json_columns
from slackwater.connectors.target import ResultReader, TargetTable
from slackwater.core.humanize import plural
from slackwater.core.schema import ANYTHING
from slackwater.errors import StartError, Topic


class ConsoleTarget:
    """Target that prints the first rows of each epoch as a table."""

    guarantee = "at least once"
    upserts = False
    description = "the console"
    capacity = ANYTHING

    def open(self) -> None:
        return

    def close(self) -> None:
        return

    def publish(self, epoch: int, rows: pl.DataFrame, superseded: pl.DataFrame | None = None, commit: str = "") -> None:
        with pl.Config(
            tbl_rows=20, tbl_cols=-1, tbl_hide_dataframe_shape=True, fmt_str_lengths=40, tbl_width_chars=160
        ):
            sys.stdout.write(f"epoch {epoch}: {plural(rows.height, 'row')}\n{json_columns(rows)}\n")
        sys.stdout.flush()


class ConsoleConnector(Connector[ConsoleConnection]):
    """Connector for the console as a target."""

    def target(self, spec: TargetSpec, pipeline: Pipeline, table: TargetTable) -> ConsoleTarget:
        return ConsoleTarget()

    def result_reader(self, spec: TargetSpec, pipeline: Pipeline, writers: Sequence[str]) -> ResultReader:
        if spec is pipeline.dead_letter:
            raise StartError(
                f"{pipeline.name}: dead letters go to the console, which does not store them; name another connection "
                "in [dead_letter]",
                Topic.DEAD_LETTERS,
            )
        raise StartError(
            f"{pipeline.name}: its target is the console, which does not store rows; name another connection in [{'targets' if pipeline.targets else 'target'}]",
            Topic.OUTPUT_UNREADABLE,
        )
