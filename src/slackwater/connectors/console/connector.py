"""Connector for the console, which prints rows without keeping them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from slackwater.config.connection import ConsoleConnection
from slackwater.config.pipeline import Pipeline
from slackwater.config.target import Target as TargetSpec
from slackwater.connectors.connector import Connector
from slackwater.connectors.console.target import ConsoleTarget
from slackwater.connectors.result_reader import ResultReader
from slackwater.connectors.target import TargetTable
from slackwater.core.dead_letter_schema import LetterFilter
from slackwater.errors import StartError, Topic

if TYPE_CHECKING:
    import polars as pl


class ConsoleConnector(Connector[ConsoleConnection]):
    """Connector for the console as a target."""

    def target(self, spec: TargetSpec, pipeline: Pipeline, table: TargetTable) -> ConsoleTarget:
        return ConsoleTarget()

    def result_reader(self, pipeline: Pipeline) -> ResultReader:
        raise StartError(
            f"{pipeline.name}: its target is the console, which does not store rows; name another connection in [{'targets' if pipeline.targets else 'target'}]",
            Topic.OUTPUT_UNREADABLE,
        )

    def letters(self, spec: TargetSpec, pipeline: str, letter_filter: LetterFilter) -> Iterator[pl.DataFrame]:
        raise StartError(
            f"{pipeline}: dead letters go to the console, which does not store them; use another connection",
            Topic.DEAD_LETTERS,
        )
