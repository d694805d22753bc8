"""Base class of connectors whose sources are read by a Spark connector.

Such sources cannot seek: only Spark's checkpoint records where to continue.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, NamedTuple

from slackwater.config.pipeline import Pipeline
from slackwater.config.source import Source
from slackwater.connectors import spark_connect
from slackwater.connectors.batch_planning import DataFrameSource, connect_not_supported_error
from slackwater.connectors.connector import C, Connector, source_time_zone
from slackwater.connectors.payloads import create_payload
from slackwater.connectors.payloads.base import RawRecords
from slackwater.core.column_names import quote_identifier

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class RecordFrame(NamedTuple):
    """A streaming DataFrame of records, with the name of the payload column and SQL for additional columns."""

    frame: DataFrame
    body: str
    extra_columns: list[str]


class SparkStreamConnector(Connector[C]):
    """A connector whose sources are read by a Spark connector."""

    @abstractmethod
    def records(self, session: SparkSession, spec: Source) -> RecordFrame:
        """Return the streaming DataFrame of a source's records. Raises StartError if it cannot be created."""

    def source(
        self, session: SparkSession, pipeline: Pipeline, spec: Source, schema_json: str | None
    ) -> DataFrameSource:
        if spark_connect.is_connect(session):
            raise connect_not_supported_error(pipeline.name, spec.name)
        records = self.records(session, spec)
        payload = create_payload(
            RawRecords(session, spec, records.body, stored_schema=schema_json, zone=source_time_zone(pipeline, spec))
        )
        extra_columns = [*records.extra_columns, f"{quote_identifier(records.body)} AS _value"]
        return DataFrameSource(spec.name, records.frame, lambda rows: payload.decode(rows, extra_columns))
