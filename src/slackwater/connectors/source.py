"""The interfaces of sources and planners, the batches that they return, and short messages for Spark errors."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from slackwater.config.relative_paths import SPARK_CONNECTORS
from slackwater.config.source import Source
from slackwater.connectors import spark_connect_support
from slackwater.core.offset_base import Offsets
from slackwater.errors import EpochError, SlackwaterError, StartError, Topic
from slackwater.state.commit import BatchId, SourceRecord
from slackwater.state.protocol import StateStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


# the rows of an epoch up to which one task has the rows of all shards: in a worker (an estimate; measured with 2,500 rows),
# and if the driver runs the shards (measured with 50,000 records per second)
MAX_ONE_TASK_ROWS, MAX_COLLECTED_ROWS = 10_000, 30_000
# local property of a Spark job: how many bytes of records each task may read from a shared DataFrame
MOST_BYTES_PROPERTY = "slackwater.most_bytes"


class ColumnStats(NamedTuple):
    """Statistics of one column over the rows of some files.

    Args:
        rows: The number of rows.
        nulls: The number of rows in which the column is NULL.
        unit_us: The unit of a time column in microseconds. 0 for a column of integers.
        least: The minimum. None if no row has a value.
        greatest: The maximum. None if no row has a value.
        newest_file: The file that contains the maximum.
    """

    rows: int
    nulls: int
    unit_us: int
    least: int | None = None
    greatest: int | None = None
    newest_file: str | None = None


@dataclass(frozen=True)
class SourceBatch:
    """The part of a batch that one source contributes: rows, the offsets after them, and counts."""

    frame: Any
    offsets: Offsets | None
    files: int = 0
    partitions: Mapping[str, int] = field(default_factory=dict)  # record count of each partition, which may be 0
    lost: int = 0  # records that expired before they were read (on_data_loss = "skip")
    # for files: returns the names of files by fingerprint; see `connectors.files.source.make_file_namer`
    name_files: Callable[[int], str | None] | None = None
    column_stats: Callable[[str], ColumnStats | None] | None = None  # reads no rows
    file_rows: Any = None  # for files: the `ParquetRows`, if PyArrow may read them
    is_shared: bool = False  # whether batches share `frame`, which reads other rows in each batch


@dataclass(frozen=True)
class ReplayRecord:
    """The replayed dead letters of an epoch.

    Args:
        record: The name of the stored list of applied letters. None if no letter was applied.
        count: The number of applied letters.
        tried: The name of the stored list with the number of attempts for each letter that was not applied. None if
            there is no such list.
        late: The number of applied letters that are late rows and therefore correct windows.
    """

    record: str | None
    count: int
    tried: str | None
    late: int = 0


@dataclass(frozen=True)
class Batch:
    """The input of one epoch: an id, the offsets of each source after the batch, and the payload for the engine.

    `id` is None if no new input was planned, for example in an epoch without rows.
    """

    id: BatchId | None
    offsets: Mapping[str, Offsets | None]
    payload: Any
    files: int | None = None
    partitions: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # by source, see SourceBatch
    lost: Mapping[str, int] = field(default_factory=dict)
    name_files: Mapping[str, Callable[[int], str | None]] = field(default_factory=dict)
    column_stats: Mapping[str, Callable[[str], ColumnStats | None]] = field(default_factory=dict)
    file_rows: Mapping[str, Any] = field(default_factory=dict)
    shared: frozenset[str] = frozenset()  # the sources whose DataFrame batches share, see SourceBatch
    stage_rows: Mapping[str, int] = field(default_factory=dict)  # the stages in `payload`, with their row counts
    replayed: ReplayRecord | None = None  # set if the batch contains dead letters, which do not advance clocks
    began: float | None = None  # when planning began, in monotonic seconds; None if it began with the epoch


def combine_batches(id_: BatchId, batches: Mapping[str, SourceBatch], began: float | None = None) -> Batch:
    """Combine the batches of several sources into one batch.

    Args:
        id_: The id of the new batch.
        batches: The batch of each source, by name.
        began: When planning began, in monotonic seconds. None if it began with the epoch.
    """
    return Batch(
        id_,
        {name: part.offsets for name, part in batches.items() if part.offsets is not None},
        {name: part.frame for name, part in batches.items()},
        sum(part.files for part in batches.values()),
        {name: part.partitions for name, part in batches.items() if part.partitions},
        {name: part.lost for name, part in batches.items() if part.lost},
        {name: part.name_files for name, part in batches.items() if part.name_files},
        {name: part.column_stats for name, part in batches.items() if part.column_stats},
        {name: part.file_rows for name, part in batches.items() if part.file_rows},
        frozenset(name for name, part in batches.items() if part.is_shared),
        began=began,
    )


class TooManyBytesError(Exception):
    """Raised in a worker if records of a shared DataFrame have more bytes than MOST_BYTES_PROPERTY allows."""


class SourceUnavailableError(Exception):
    """Raised when a source does not respond. Its unread input is unknown, so the source does not become idle.

    `cause`: the underlying error.
    """

    def __init__(self, cause: SlackwaterError) -> None:
        super().__init__(str(cause))
        self.cause = cause


@dataclass(frozen=True)
class SeekableSource(ABC):
    """Source that can resume from the offsets in the state store, without Spark's checkpoint.

    Its batches are planned by the run (`SelfPlannedSource`) or by a Spark streaming query (`SparkPlannedSource`). Some
    sources support both. Sources that are not seekable can resume only from Spark's checkpoint.
    """

    spec: Source

    if TYPE_CHECKING:  # a field in some subclasses, a property in others

        @property
        @abstractmethod
        def schema(self) -> StructType:
            """The columns of the source's rows."""

    @property
    def name(self) -> str:
        return self.spec.name

    def latest(self) -> Offsets | None:
        """Return the offsets after all current input. None if the input has no order."""
        return None

    def configured_start(self) -> Offsets | None:
        """Return the offsets at which the config says to start. None if the input has no order.

        For "latest", call `latest` instead.
        """
        return None

    def advertise(self, offsets: Offsets) -> None:  # noqa: B027 — most sources do nothing here
        """Report the offsets to external tools, such as lag monitors. Slackwater never reads them back."""

    @abstractmethod
    def decode_dead_letter_rows(self, letters: DataFrame, letter: str, file: str) -> DataFrame:
        """Convert dead letters back to rows of this source.

        Args:
            letters: The letters, with the columns of `core.dead_letter_columns`.
            letter: The name of the column that numbers the letters. The rows keep this column.
            file: The name of the column to add for the file of each row. Only sources that read files add it.
        """


class PlannedBatch(Protocol):
    """The input of one source for the next epoch, which is planned but not yet read."""

    def read(self, session: SparkSession, store: StateStore, epoch: int, record: SourceRecord) -> SourceBatch | None:
        """Return the rows, which Spark reads lazily, and the offsets after them. None if there is nothing to read.

        Args:
            session: The Spark session.
            store: The state store, in which the source may store lists of files.
            epoch: The epoch that reads the rows.
            record: The offsets of the source in the latest commit.
        """
        ...


class Planner(Protocol):
    """Planner for the input of one source. It tracks the run's position in this input.

    Its methods may raise SourceUnavailableError, SlackwaterError and OSError.
    """

    @property
    def unplanned_files(self) -> int:
        """The number of files that have been listed but not yet planned."""
        ...

    def stop_at_current_end(self) -> None:
        """Stop at the current end of the input. Input that arrives later is not planned."""
        ...

    def next(self) -> PlannedBatch | None:
        """Return the next input, within the limits of the source. None if there is no new input."""
        ...


class SelfPlannedSource(SeekableSource):
    """Source whose input can be planned without Spark. `kind`: the word for the source in messages, such as "table"."""

    kind: ClassVar[str] = "source"

    @property
    def plans_without_spark(self) -> bool:
        """True if the run plans the source. False if a setting of the source requires Spark to plan it."""
        return True

    def check_connect(self, pipeline: str) -> None:
        """Raise StartError if this source cannot be read over Spark Connect."""

    @abstractmethod
    def planner(self, record: SourceRecord, files: Iterable[Any]) -> Planner:
        """Return a planner that continues after `record`.

        Args:
            record: The offsets of the source in the latest commit.
            files: For a file source, the files that the state lists as read.

        Raises:
            SlackwaterError: The source cannot determine where to continue.
        """


class SparkPlannedSource(SeekableSource):
    """Source that a Spark streaming query can plan."""

    @abstractmethod
    def signature(self) -> dict[str, Any]:
        """Return the values that identify the source in a checkpoint. If they change, a new checkpoint is needed."""

    @abstractmethod
    def plan(self, session: SparkSession) -> DataFrame:
        """Return a streaming DataFrame that plans batches. It is never used to read rows."""

    @abstractmethod
    def seek(self, checkpoint: Path, index: int, store: StateStore, record: SourceRecord) -> str:
        """Prepare a new checkpoint that continues after `record`. Return the offset line for its batch 0.

        The line "-" stands for the start of the input.

        Args:
            checkpoint: The directory of the checkpoint.
            index: The index of the source in the checkpoint.
            store: The state store.
            record: The offsets of the source in the latest commit.
        """

    @abstractmethod
    def batch(
        self,
        session: SparkSession,
        checkpoint: Path,
        index: int,
        number: int,
        store: StateStore,
        epoch: int,
        record: SourceRecord,
    ) -> SourceBatch | None:
        """Return this source's rows in a batch that Spark planned. None if the batch has no rows of this source.

        Args:
            session: The Spark session.
            checkpoint: The directory of Spark's checkpoint.
            index: The index of the source in the checkpoint.
            number: The number of the batch in the checkpoint.
            store: The state store, in which the source may store lists of files.
            epoch: The epoch that reads the rows.
            record: The offsets of the source in the latest commit.
        """


def declared_schema(session: SparkSession, source: str, text: str) -> StructType:
    """Return the columns that the config of a source declares. Raises StartError if Spark cannot parse them.

    `source`: the name of the source, for messages. `text`: the columns as DDL.
    """
    try:
        return spark_connect_support.parse_ddl_schema(session, text)
    except Exception as error:
        raise StartError(
            f'source "{source}": schema is not valid DDL ({spark_error_reason(error)}); expected "name TYPE, name TYPE, …"',
            Topic.SOURCE_SCHEMA,
        ) from None


def checkpoint_line(checkpoint: Path, source: int, batch: int) -> str | None:
    """Return the offset line of a source after a batch. None if the source had no offset yet.

    Args:
        checkpoint: The directory of Spark's checkpoint.
        source: The index of the source in the checkpoint.
        batch: The number of the batch.

    Raises:
        EpochError: The checkpoint file is missing or damaged.
    """
    path = checkpoint / "offsets" / str(batch)
    try:
        line = path.read_text().splitlines()[2 + source]
    except (OSError, IndexError) as error:
        raise EpochError(
            f"checkpoint file {path} is missing or damaged; delete the directory {checkpoint} and start again",
            Topic.CHECKPOINT_DAMAGED,
        ) from error
    return None if line == "-" else line


# Messages for out-of-memory errors, by the text that identifies them. The last cause that Spark reports is misleading:
# a closed pipe.
_OUT_OF_MEMORY = {
    "Python worker exited unexpectedly": "a Python worker of Spark was killed, as the system does when memory runs out; read less per "
    "epoch (max_files_per_trigger, max_offsets_per_trigger), or use fewer cores at once (spark.master)",
    "java.lang.OutOfMemoryError": 'Spark ran out of memory; give it more ("spark.driver.memory" in [spark]; the default is 2g) or read '
    "less per epoch (max_files_per_trigger, max_offsets_per_trigger)",
}


_CLASSES = {"S3AFileSystem": "s3a", "SecureAzureBlobFileSystem": "abfss", "GoogleHadoopFileSystem": "gs"}
_NOT_PERMITTED = re.compile(r"FileNotFoundException: (?:file:/*(?=/))?(.+?) \(Permission denied\)")
_NO_CONNECTOR = re.compile(
    r'(S3AFileSystem|SecureAzureBlobFileSystem|GoogleHadoopFileSystem) not found|No FileSystem for scheme "([\w.+-]+)"'
)


def spark_error_reason(error: BaseException) -> str:
    """Return the most important line of a Spark error, without plans and stack traces."""
    for sign, fact in _OUT_OF_MEMORY.items():
        if sign in str(error):
            return fact
    if (absent := _NO_CONNECTOR.search(str(error))) is not None:
        scheme = _CLASSES.get(absent[1] or "", absent[2])
        return f"Spark has no connector for {scheme}:// {_connector(scheme)}"
    if (refused := _NOT_PERMITTED.search(str(error))) is not None:
        return f'"{refused[1]}" cannot be read (Permission denied); give this user read access'
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    if "Python worker" in text or "foreach batch" in text or "Python streaming data source" in text:
        raised = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b.*:", line)]
        text = re.sub(r"^slackwater\.errors\.\w+: ", "", raised[-1]) if raised else text
    if text.startswith("An error occurred while calling"):
        causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
        text = causes[-1] if causes else lines[1].removeprefix(": ") if len(lines) > 1 else text
        text = re.sub(r"^(?:[\w$]+\.)+", "", text)
    return re.sub(r"\s*SQLSTATE: \w+\s*$", "", text)


def _connector(scheme: str) -> str:
    """Return advice about a URL scheme without a file system connector, to append to an error message."""
    if scheme in ("s3", "s3n"):
        return "addresses; write s3a://"
    package = SPARK_CONNECTORS.get(scheme)
    return f'addresses; name {package or "one"} in "spark.jars.packages" ([spark])' + (
        ", of Spark's Hadoop version" if package and "hadoop:" in package else ""
    )
