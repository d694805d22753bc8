"""Base classes of the connectors, and the unread input of a source that they can determine without Spark.

The config has already been checked, so only operations that the kind of system supports are called.
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
from slackwater.config.state_differences import KeyChange
from slackwater.config.target import Target as TargetSpec
from slackwater.connectors import spark_connect
from slackwater.connectors.batch_planning import AnySource, DataFrameSource, connect_not_supported_error
from slackwater.connectors.payloads import create_payload
from slackwater.connectors.payloads.base import RawRecords
from slackwater.connectors.result_reader import ResultReader
from slackwater.connectors.target import TargetTable, TargetWithMarker, TargetWriter
from slackwater.connectors.timestamp_parsing import UTC
from slackwater.core.column_names import quote_identifier
from slackwater.core.connector_table import load_object
from slackwater.core.offset_base import Offsets
from slackwater.errors import StartError, Topic
from slackwater.state.commit import SourceRecord
from slackwater.state.protocol import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Backlog:
    """The unread input of one source, relative to a commit.

    These are the files that the commit does not reference, or the Kafka records between the commit's offsets and the
    end of each partition. The input is listed first (a `Question`) and compared with a commit afterward (an `Answer`),
    so one listing can be compared with several commits.

    Args:
        source: The name of the source.
        unit: What is counted, "files" or "records".
        count: The number of unread files or records. None if it is unknown; `problem` then says why.
        rows: The estimated number of unread rows. For files, the estimate is based on the files that were read so far;
            without any, it is None.
        problem: Why `count` is unknown.
    """

    source: str
    unit: str
    count: int | None
    rows: int | None
    problem: str | None = None


Answer = Callable[[Snapshot], Backlog]  # subtracts what the commit of the snapshot contains
Question = Callable[[], Answer]  # may raise SlackwaterError, OSError
C = TypeVar("C", bound=Connection)


@dataclass(frozen=True)
class Connector(Generic[C]):
    """The connector for one system, given its connection. Every method that accesses the system may raise StartError."""

    connection: C
    has_versions: ClassVar[bool] = False  # whether `changes` can compare a table without Spark

    # -- sources ---------------------------------------------------------------------------------------------------

    def source(self, session: SparkSession, pipeline: Pipeline, spec: Source, schema_json: str | None) -> AnySource:
        """Return the source. `schema_json`: the schema with which it was first read, if any, in Spark's JSON format."""
        self._unsupported("be read")

    def check_source(self, spec: Source) -> None:
        """Raise StartError if the source does not exist. Do nothing if that cannot be checked."""

    def resolve_position(self, spec: Source, position: str | int) -> Offsets:
        """Resolve "earliest", "latest" or a time (in microseconds UTC) to offsets."""
        self._unsupported("be asked where that is")

    def question(self, spec: Source) -> Question | None:
        """Return a function that lists the input without Spark, so that its unread part can be counted (see `Backlog`).

        None if the system does not support that.
        """
        return None

    def changes(self, spec: Source, record: SourceRecord) -> tuple[Sequence[KeyChange], Mapping[str, str]]:
        """Compare the columns of a table with those in the state.

        Return the changes that the next start accepts, and the types of the columns that it will read, by name. Raises
        StartError for a change that a start rejects, and SourceUnavailableError if the table is unreachable.
        """
        self._unsupported("be asked for its columns")

    # -- targets ---------------------------------------------------------------------------------------------------

    def target(self, spec: TargetSpec, pipeline: Pipeline, table: TargetTable) -> TargetWriter:
        """Return the target that writes `table`."""
        self._unsupported("be written to")

    def check_target(self, spec: TargetSpec, key: str) -> None:
        """Raise StartError if the target does not exist or is unreachable. `key`: its config key, for messages."""

    def will_create(self, spec: TargetSpec, key: str) -> str | None:
        """Describe the object that a start would create in the system; None if it would create nothing."""
        return None

    def create_target(self, spec: TargetSpec, pipeline: Pipeline) -> None:
        """Create the target if that is possible without knowing its columns. Raises StartError if it fails."""

    def target_with_marker(self, spec: TargetSpec, table: TargetTable) -> TargetWithMarker | None:
        """Return the target, to read its marker; None if it does not store one."""
        return None

    # -- reading a target back -----------------------------------------------------------------------------------------

    def result_reader(self, spec: TargetSpec, pipeline: Pipeline, writers: Sequence[str]) -> ResultReader:
        """Return the reader of the rows that some writers left in a target of the pipeline, or in its dead letters.

        Raises StartError if the system does not store rows.
        """
        raise StartError(
            f"{pipeline.name}: its target is {self.connection.kind}, which cannot be read back", Topic.OUTPUT_UNREADABLE
        )

    def _unsupported(self, operation: str) -> NoReturn:
        raise AssertionError(
            f"{self.connection.kind} cannot {operation}; the check of the config should have reported this"
        )


def source_time_zone(pipeline: Pipeline, spec: Source) -> str:
    """Return the time zone for a source's local times: `event_time_zone` of the first stage that reads it, or UTC."""
    readers = (
        stage_pipeline
        for stage_pipeline in pipeline.stage_pipelines.values()
        if stage_pipeline.input_paths_from(spec.name)
    )
    return next((stage_pipeline.transform.step.event_time_zone for stage_pipeline in readers), None) or UTC


def connector_for(connection: Connection) -> Connector[Any]:
    """Import the modules for a kind of system, and return its connector."""
    connector_class: type[Connector[Any]] = load_object(CONNECTORS[connection.kind].connector)
    return connector_class(connection)


class RecordFrame(NamedTuple):
    """A streaming DataFrame of records, with the name of the payload column and SQL for additional columns."""

    frame: DataFrame
    body: str
    extra_columns: list[str]


class SparkStreamConnector(Connector[C]):
    """A connector whose sources are read by a Spark connector.

    Such sources cannot seek: only Spark's checkpoint records where to continue.
    """

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
