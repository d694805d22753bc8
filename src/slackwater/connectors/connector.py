"""Base classes for connectors, and `Backlog`, the unread input of a source.

Connectors rely on a config that has been checked, so only operations that their system supports are called.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, NoReturn, TypeVar

from slackwater.config.connection import Connection
from slackwater.config.connector_description import CONNECTORS
from slackwater.config.pipeline import Pipeline
from slackwater.config.source import Source
from slackwater.config.state_comparison import KeyChange
from slackwater.config.target import Target as TargetSpec
from slackwater.connectors import spark_connect_support
from slackwater.connectors.payloads import create_payload
from slackwater.connectors.payloads.base import RawRecords
from slackwater.connectors.pipeline_sources import AnySource, DataFrameSource, connect_not_supported_error
from slackwater.connectors.target import ResultReader, TargetTable, TargetWithMarker, TargetWriter
from slackwater.connectors.timestamp_parsing import UTC
from slackwater.core.column_names import quote_identifier
from slackwater.core.connector_registry import load_object
from slackwater.core.offset_base import Offsets
from slackwater.errors import StartError, Topic
from slackwater.state.commit import SourceRecord
from slackwater.state.protocol import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Backlog:
    """The unread input of one source, relative to a commit.

    For files, it consists of the files that the commit does not reference. For Kafka, it consists of the records
    between the offsets in the commit and the ends of the partitions. An `InputLister` lists the input. The
    `BacklogCounter` that it returns can then be applied to several commits.

    Args:
        source: The name of the source.
        unit: The unit of `count`: "files" or "records".
        count: The number of unread files or records. None if it is unknown, in which case `problem` says why.
        rows: The estimated number of unread rows. For files, the estimate is based on the files that were read so far.
            None if there is no estimate.
        problem: Why `count` is unknown.
    """

    source: str
    unit: str
    count: int | None
    rows: int | None
    problem: str | None = None


BacklogCounter = Callable[[Snapshot], Backlog]  # counts the listed input that the snapshot's commit does not contain
InputLister = Callable[[], BacklogCounter]  # lists the input; may raise SlackwaterError, OSError
C = TypeVar("C", bound=Connection)


@dataclass(frozen=True)
class Connector(Generic[C]):
    """Base class for the connector to a system. Every method that accesses the system may raise StartError."""

    connection: C
    has_versions: ClassVar[bool] = False  # whether `changes` can compare a table without Spark

    # -- sources ---------------------------------------------------------------------------------------------------

    def source(self, session: SparkSession, pipeline: Pipeline, spec: Source, schema_json: str | None) -> AnySource:
        """Return the source that `spec` configures.

        Args:
            session: The Spark session that reads the source.
            pipeline: The pipeline that contains the source.
            spec: The config of the source.
            schema_json: The schema with which the source was first read, in Spark's JSON format. None on the first
                start.
        """
        self._unsupported("be read")

    def check_source(self, spec: Source) -> None:
        """Raise StartError if the source does not exist. Do nothing if that cannot be checked."""

    def resolve_position(self, spec: Source, position: str | int) -> Offsets:
        """Resolve "earliest", "latest" or a time (in microseconds UTC) to offsets."""
        self._unsupported("resolve a position")

    def input_lister(self, spec: Source) -> InputLister | None:
        """Return a function that lists a source's input without Spark, so that the unread part can be counted.

        Return None if the system does not support this. See `Backlog`.
        """
        return None

    def changes(self, spec: Source, record: SourceRecord) -> tuple[Sequence[KeyChange], Mapping[str, str]]:
        """Compare the current columns of a table with those recorded in the state.

        Return the changes that will be accepted at the next start, and the types of the columns that will then be read,
        by name. Raises StartError for a change that will be rejected, and SourceUnavailableError if the table is
        unreachable.
        """
        self._unsupported("compare columns")

    # -- targets ---------------------------------------------------------------------------------------------------

    def target(self, spec: TargetSpec, pipeline: Pipeline, table: TargetTable) -> TargetWriter:
        """Return the target that `spec` configures.

        Args:
            spec: The config of the target, or of the destination of dead letters.
            pipeline: The pipeline that contains the target.
            table: The columns and the writer.
        """
        self._unsupported("be written to")

    def check_target(self, spec: TargetSpec, key: str) -> None:
        """Raise StartError if the target does not exist or is unreachable. `key`: the config key for messages."""

    def will_create(self, spec: TargetSpec, key: str) -> str | None:
        """Describe what would be created in the system at startup, or return None if nothing would be created."""
        return None

    def create_target(self, spec: TargetSpec, pipeline: Pipeline) -> None:
        """Create the target if this is possible without knowing its columns. Raises StartError on failure."""

    def target_with_marker(self, spec: TargetSpec, table: TargetTable) -> TargetWithMarker | None:
        """Return the target in a form that can only read its marker, or None if the target does not store markers."""
        return None

    # -- reading a target back -----------------------------------------------------------------------------------------

    def result_reader(self, spec: TargetSpec, pipeline: Pipeline, writers: Sequence[str]) -> ResultReader:
        """Return a reader for the rows in a target of the pipeline, or for the pipeline's dead letters.

        Args:
            spec: The target, or the destination of the dead letters.
            pipeline: The pipeline.
            writers: The names of the writers whose rows are read.

        Raises:
            StartError: The system does not store rows.
        """
        raise StartError(
            f"{pipeline.name}: its target is {self.connection.kind}, which Slackwater cannot read back; read the rows "
            "with a client of that system",
            Topic.OUTPUT_UNREADABLE,
        )

    def _unsupported(self, operation: str) -> NoReturn:
        raise AssertionError(
            f"{self.connection.kind} cannot {operation}; the check of the config should have reported this"
        )


def source_time_zone(pipeline: Pipeline, spec: Source) -> str:
    """Return the time zone of local times in a source: `event_time_zone` of the first stage that reads it, or UTC."""
    readers = (
        stage_pipeline
        for stage_pipeline in pipeline.stage_pipelines.values()
        if stage_pipeline.input_paths_from(spec.name)
    )
    return next((stage_pipeline.transform.step.event_time_zone for stage_pipeline in readers), None) or UTC


def connector_for(connection: Connection) -> Connector[Any]:
    """Return the connector for a connection. The connector's modules are imported on the first call."""
    connector_class: type[Connector[Any]] = load_object(CONNECTORS[connection.kind].connector)
    return connector_class(connection)


class RecordFrame(NamedTuple):
    """A streaming DataFrame of records.

    Args:
        frame: The DataFrame.
        body: The name of the column with the payload.
        extra_columns: SQL for the columns to add to those of the payload.
    """

    frame: DataFrame
    body: str
    extra_columns: list[str]


class SparkStreamConnector(Connector[C]):
    """Base class for connectors whose sources are read by a Spark connector.

    Their sources cannot seek, because only Spark's checkpoint stores the position.
    """

    @abstractmethod
    def records(self, session: SparkSession, spec: Source) -> RecordFrame:
        """Return the streaming DataFrame of a source's records. Raises StartError if it cannot be created."""

    def source(
        self, session: SparkSession, pipeline: Pipeline, spec: Source, schema_json: str | None
    ) -> DataFrameSource:
        if spark_connect_support.is_connect(session):
            raise connect_not_supported_error(pipeline.name, spec.name)
        records = self.records(session, spec)
        payload = create_payload(
            RawRecords(session, spec, records.body, stored_schema=schema_json, zone=source_time_zone(pipeline, spec))
        )
        extra_columns = [*records.extra_columns, f"{quote_identifier(records.body)} AS _value"]
        return DataFrameSource(spec.name, records.frame, lambda rows: payload.decode(rows, extra_columns))
