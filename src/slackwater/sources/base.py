"""What every source has in common: the batch it hands to an engine, bad records, and Spark's errors in one line."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from slackwater.config.paths import SPARK_CONNECTORS
from slackwater.config.source import Source
from slackwater.core.offsets import Offsets
from slackwater.errors import EpochError, SlackwaterError, StartError
from slackwater.sources import spark_connect
from slackwater.state.commit import BatchId, SourceRecord
from slackwater.state.protocol import StateStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from slackwater.sources.parquet_footers import ColumnStats

CORRUPT = "_corrupt_record"


@dataclass(frozen=True)
class SourceBatch:
    """What one source has in a batch: its rows, how it continues after them, and what a progress bar or a clock wants."""

    frame: Any
    offsets: Offsets | None
    files: int = 0
    partitions: Mapping[str, int] = field(default_factory=dict)  # every partition there is, and how many records it has
    lost: int = 0  # records that were gone before they were read (on_data_loss = "skip")
    # of files: which of them a mark is of, see `sources.files.marked`
    describe_mark: Callable[[int], str | None] | None = None
    column_stats: Callable[[str], ColumnStats | None] | None = (
        None  # of a column: what is known of it without reading a row
    )


@dataclass(frozen=True)
class ReplayRecord:
    """Dead letters of an epoch: the list that names the applied ones (None: none was) and their `count`; `tried`: the list of
    those that are left, with how often they were tried."""

    record: str | None
    count: int
    tried: str | None
    late: int = 0  # of the applied ones: late rows, which correct windows


@dataclass(frozen=True)
class Batch:
    """One micro-batch: its identity (None: a tick), how each source continues after it, and the engine's own handle."""

    id: BatchId | None
    offsets: Mapping[str, Offsets | None]
    payload: Any
    files: int | None = None
    partitions: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # per source, see SourceBatch
    lost: Mapping[str, int] = field(default_factory=dict)
    describe_mark: Mapping[str, Callable[[int], str | None]] = field(default_factory=dict)
    column_stats: Mapping[str, Callable[[str], ColumnStats | None]] = field(default_factory=dict)
    results: frozenset[str] = frozenset()  # of the names in `payload`: stages, which no limit of a source judges
    replayed: ReplayRecord | None = None  # it holds dead letters, and no clock hears them
    began: float | None = None  # when its planning began, by the monotonic clock; None: with the epoch


def batch_of(id_: BatchId, parts: Mapping[str, SourceBatch], began: float | None = None) -> Batch:
    """The batch of what each source has, by name."""
    return Batch(
        id_,
        {name: part.offsets for name, part in parts.items() if part.offsets is not None},
        {name: part.frame for name, part in parts.items()},
        sum(part.files for part in parts.values()),
        {name: part.partitions for name, part in parts.items() if part.partitions},
        {name: part.lost for name, part in parts.items() if part.lost},
        {name: part.describe_mark for name, part in parts.items() if part.describe_mark},
        {name: part.column_stats for name, part in parts.items() if part.column_stats},
        began=began,
    )


class SourceUnavailableError(Exception):
    """A source does not say what it has: that is not known then, which is no silence. `cause`: in words."""

    def __init__(self, cause: SlackwaterError) -> None:
        super().__init__(str(cause))
        self.cause = cause


@dataclass(frozen=True)
class Seekable(ABC):
    """A source that can go on from the offsets in the state store: a lost checkpoint costs nothing. It is planned by a run itself
    (`Planned`), by a stream of Spark's (`SparkPlannedSource`), or by either. One without this resumes by Spark's checkpoint only.
    """

    spec: Source

    if TYPE_CHECKING:  # some have a field of this name, some a property

        @property
        @abstractmethod
        def schema(self) -> StructType:
            """The columns of its rows."""

    @property
    def name(self) -> str:
        return self.spec.name

    def latest(self) -> Offsets | None:
        """Behind all that is there now; None for what has no order."""
        return None

    def configured_start(self) -> Offsets | None:
        """Where the config says that reading begins, unless that is "latest"; None for what has no order."""
        return None

    def advertise(self, offsets: Offsets) -> None:  # noqa: B027 — most tell nobody
        """Tell others how far it was read; nothing here reads that."""

    @abstractmethod
    def rows_of_letters(self, letters: DataFrame, letter: str, file: str) -> DataFrame:
        """Dead letters as its rows, with the column `letter`; where it brings files, `file` is called what tells which."""


class PlannedBatch(Protocol):
    """What one source has for an epoch."""

    def read(self, session: SparkSession, store: StateStore, epoch: int, record: SourceRecord) -> SourceBatch | None:
        """Its rows, not read yet, and the offsets behind them; None if there is nothing after all."""
        ...


class Planner(Protocol):
    """Where a run stands in one source. Asking may raise NoAnswerError, SlackwaterError, OSError."""

    @property
    def unplanned_files(self) -> int:
        """How many files are known to be there and are not planned yet."""
        ...

    def stop_at_current_end(self) -> None:
        """What is there now is the end of the input: nothing that comes later is planned."""
        ...

    def next(self) -> PlannedBatch | None:
        """What comes next, within the limits of the source; None if there is nothing new."""
        ...


class SelfPlannedSource(Seekable):
    """A source that can be asked without Spark what it has. `kind`: what it is, for people."""

    kind: ClassVar[str] = "source"

    @property
    def plans_itself(self) -> bool:
        """False where its own settings leave that to Spark."""
        return True

    def check_connect(self, pipeline: str) -> None:
        """Raise StartError if its rows are not read over Spark Connect."""

    @abstractmethod
    def planner(self, record: SourceRecord, files: Iterable[Any]) -> Planner:
        """One that goes on from `record`. `files`: of a source of files, those that are part of the state.

        Raises SlackwaterError if it cannot say where it goes on.
        """


class SparkPlannedSource(Seekable):
    """A source that a streaming query of Spark can plan."""

    @abstractmethod
    def signature(self) -> dict[str, Any]:
        """What a checkpoint of it is good for."""

    @abstractmethod
    def plan(self, session: SparkSession) -> DataFrame:
        """The streaming DataFrame that plans batches; its rows are never read through it."""

    @abstractmethod
    def seek(self, checkpoint: Path, index: int, store: StateStore, record: SourceRecord) -> str:
        """Prepare a fresh checkpoint to go on after `record`; returns the offset line of its batch 0 ("-": from the start)."""

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
        """What it has in a planned batch; None for nothing."""


def declared_schema(session: SparkSession, source: str, text: str) -> StructType:
    """The columns that the config of a source declares. Raises StartError where Spark cannot read them."""
    try:
        return spark_connect.schema_of_ddl(session, text)
    except Exception as error:
        raise StartError(
            f'source "{source}": schema is not valid DDL ({spark_error_reason(error)}); expected "name TYPE, name TYPE, …"'
        ) from None


def checkpoint_line(checkpoint: Path, source: int, batch: int) -> str | None:
    """A source's offset in Spark's checkpoint after a batch; None if it had none yet. Raises EpochError if it is not there."""
    path = checkpoint / "offsets" / str(batch)
    try:
        line = path.read_text().splitlines()[2 + source]
    except (OSError, IndexError) as error:
        raise EpochError(
            f"checkpoint file {path} is missing or damaged; delete the directory {checkpoint} and start again"
        ) from error
    return None if line == "-" else line


# what a long Spark error is about, whatever else it says: the cause that it names last is a closed pipe
_OUT_OF_MEMORY = {
    "Python worker exited unexpectedly": "a Python worker of Spark was killed, as the system does when memory runs out; read less per "
    "epoch (max_files_per_trigger, max_offsets_per_trigger), or use fewer cores at once (spark.master)",
    "java.lang.OutOfMemoryError": 'Spark ran out of memory; give it more ("spark.driver.memory" in [spark], 2g unless set) or read '
    "less per epoch (max_files_per_trigger, max_offsets_per_trigger)",
}


_CLASSES = {"S3AFileSystem": "s3a", "SecureAzureBlobFileSystem": "abfss", "GoogleHadoopFileSystem": "gs"}
_NOT_PERMITTED = re.compile(r"FileNotFoundException: (?:file:/*(?=/))?(.+?) \(Permission denied\)")  # as Java says it
_NO_CONNECTOR = re.compile(
    r'(S3AFileSystem|SecureAzureBlobFileSystem|GoogleHadoopFileSystem) not found|No FileSystem for scheme "([\w.+-]+)"'
)


def spark_error_reason(error: BaseException) -> str:
    """The line of a Spark error that says the fact, without plans and stack traces."""
    for sign, fact in _OUT_OF_MEMORY.items():
        if sign in str(error):
            return fact
    if (absent := _NO_CONNECTOR.search(str(error))) is not None:
        scheme = _CLASSES.get(absent[1] or "", absent[2])
        return f"Spark has no connector for {scheme}:// {_connector(scheme)}"
    if (refused := _NOT_PERMITTED.search(str(error))) is not None:
        return f'"{refused[1]}" cannot be read (Permission denied); let this user read it'
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    if "Python worker" in text or "foreach batch" in text or "Python streaming data source" in text:
        raised = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b.*:", line)]
        text = raised[-1] if raised else text
    if text.startswith("An error occurred while calling"):
        causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
        text = causes[-1] if causes else lines[1].removeprefix(": ") if len(lines) > 1 else text
        text = re.sub(r"^(?:[\w$]+\.)+", "", text)
    return re.sub(r"\s*SQLSTATE: \w+\s*$", "", text)


def _connector(scheme: str) -> str:
    """What to do about one that is not there."""
    if scheme in ("s3", "s3n"):
        return "addresses; write s3a://"
    package = SPARK_CONNECTORS.get(scheme)
    return f'addresses; name {package or "one"} in "spark.jars.packages" ([spark])' + (
        ", of Spark's Hadoop version" if package and "hadoop:" in package else ""
    )
