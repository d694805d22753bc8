"""Journals as sources: each line is a JSON row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from journal_connector.description import JournalSourceKeys
from journal_connector.offsets import JournalOffsets
from slackwater.connectors import dead_letter_restoration
from slackwater.connectors.source import SelfPlannedSource, SourceBatch
from slackwater.errors import StartError
from slackwater.state.commit import SourceRecord

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def read_lines(path: Path, encoding: str) -> list[str]:
    """Return the complete lines of a journal. A line without an end is still being written."""
    try:
        return [line for line in path.read_text(encoding).splitlines(keepends=True) if line.endswith("\n")]
    except OSError as error:
        raise StartError(f"journal {path} cannot be read ({error.strerror}); check the path") from None


@dataclass(frozen=True)
class JournalSource(SelfPlannedSource):
    """Source that reads a journal. `schema` has the columns of the rows."""

    path: Path
    encoding: str
    schema: StructType
    kind = "journal"

    @property
    def keys(self) -> JournalSourceKeys:
        return JournalSourceKeys.from_spec(self.spec)

    def latest(self) -> JournalOffsets:
        return JournalOffsets(len(read_lines(self.path, self.encoding)))

    def configured_start(self) -> JournalOffsets:
        return JournalOffsets(self.keys.skip_lines)

    def planner(self, record: SourceRecord, files: Iterable[Any]) -> JournalPlanner:
        start = self.configured_start() if record.offsets is None else JournalOffsets.coerce(record.offsets)
        return JournalPlanner(self, start.line)

    def decode_dead_letter_rows(self, letters: DataFrame, letter: str, file: str) -> DataFrame:
        return dead_letter_restoration.restore_decoded_rows(letters, self.schema, [letter])


class JournalPlanner:
    """Plans the next lines of a journal."""

    unplanned_files = 0

    def __init__(self, source: JournalSource, line: int) -> None:
        self._source, self._line = source, line
        self._end: int | None = None

    def stop_at_current_end(self) -> None:
        self._end = self._source.latest().line

    def next(self) -> JournalBatch | None:
        first, end = self._line, self._source.latest().line if self._end is None else self._end
        limit = self._source.spec.max_messages_per_trigger
        self._line = end if limit is None else min(end, first + limit)
        return JournalBatch(self._source, first, self._line) if first < self._line else None


@dataclass(frozen=True)
class JournalBatch:
    """The lines from `first` to `end`, without `end`."""

    source: JournalSource
    first: int
    end: int

    def read(self, session: SparkSession, store: Any, epoch: int, record: SourceRecord) -> SourceBatch:
        from pyspark.sql import functions as F  # noqa: N812

        lines = read_lines(self.source.path, self.source.encoding)[self.first : self.end]
        text = session.createDataFrame([(line,) for line in lines], "value STRING")
        topic = F.get_json_object("value", "$.topic")
        entries = text.where(F.coalesce(topic, F.lit("")).startswith(self.source.keys.topic_prefix))
        frame = entries.select(F.from_json("value", self.source.schema).alias("row")).select("row.*")
        return SourceBatch(frame, JournalOffsets(self.end))
