"""Sources of a backfill: the existing history, cut into batches by lists of files and by offsets."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from slackwater.connectors.files import source as files_source
from slackwater.connectors.files.source import FilesSource
from slackwater.connectors.kafka.source import KafkaSource
from slackwater.connectors.source import SelfPlannedSource, SourceBatch
from slackwater.core.offsets import FileOffsets, KafkaOffsets, group_by_topic
from slackwater.runner.backfill_plan import BackfillRange
from slackwater.state.commit import SourceRecord
from slackwater.state.protocol import StateStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS = 1_000_000  # Kafka records per epoch if the source does not set max_offsets_per_trigger


class FilesRangeReader:
    """Reads all files that exist at the start, in the order in which a run would read them."""

    def __init__(self, session: SparkSession, store: StateStore, source: FilesSource) -> None:
        self.source, self._session, self._store = source, session, store
        self._every = source.list_files(session)

    def next(self, record: SourceRecord, epoch: int) -> SourceBatch | None:
        """Return the files of the next epoch; None if all files have been read. `record`: the progress so far."""
        read_paths = {e.path for e in files_source.load_file_list(self._store, FileOffsets.coerce(record.offsets))}
        remaining = [e for e in self._every if e.path not in read_paths]
        batch_files = remaining[: self.source.spec.max_files_per_trigger or len(remaining)]
        if not batch_files:
            return None
        offsets = files_source.store_file_list(self._store, epoch, FileOffsets.coerce(record.offsets), batch_files)
        return SourceBatch(self.source.read(self._session, batch_files), offsets, files=len(batch_files))


class PlannedRangeReader:
    """Reads everything that a table contains at the start, from its first row, in the batches of a normal run."""

    def __init__(
        self, session: SparkSession, store: StateStore, source: SelfPlannedSource, record: SourceRecord
    ) -> None:
        spec = source.spec.model_copy(update={"starting_offsets": None, "starting_version": None})
        from_start = replace(source, spec=spec)
        self.source, self._session, self._store = source, session, store
        self._planner = from_start.planner(record, ())
        self._planner.stop_at_current_end()

    def next(self, record: SourceRecord, epoch: int) -> SourceBatch | None:
        planned = self._planner.next()
        return None if planned is None else planned.read(self._session, self._store, epoch, record)


class KafkaRangeReader:
    """Reads the Kafka records whose record time is in the range, extended by the slack.

    `missing`: the partitions whose oldest records have been removed, so that records of the range may be missing.
    """

    def __init__(self, session: SparkSession, source: KafkaSource, span: BackfillRange) -> None:
        self.source, self._session = source, session
        topics = source.broker.partitions(source.spec.query or "", f'source "{source.name}"')
        partitions = [(t, p) for t, listed in topics.items() for p in listed]
        low, high = span.records_ms
        self._start, self._end = (
            source.broker.offsets_at_ms(partitions, low),
            source.broker.offsets_at_ms(partitions, high),
        )
        self.missing = [
            f"{t}-{p}"
            for (t, p), (first, _) in source.broker.offset_ranges(partitions).items()
            if 0 < first == self._start[t, p] < self._end[t, p]
        ]

    def next(self, record: SourceRecord, epoch: int) -> SourceBatch | None:
        """Return the records of the next epoch; None at the end of the range. `record`: the progress so far."""
        committed = KafkaOffsets.coerce(record.offsets)
        start = {
            key: offset if (next_offset := committed.next_offset(*key)) is None else next_offset
            for key, offset in self._start.items()
        }
        remaining = {key: max(self._end[key] - offset, 0) for key, offset in start.items()}
        total = sum(remaining.values())
        if not total:
            return None
        limit = min(self.source.spec.max_offsets_per_trigger or RECORDS, total)
        # every partition advances in proportion, so that their event times stay close together
        end = {key: start[key] + -(-limit * n // total) for key, n in remaining.items()}
        batch = self.source.read_between(self._session, group_by_topic(start), group_by_topic(end), record)
        if batch is None:  # the topic was recreated and holds fewer records
            batch = SourceBatch(
                self._session.createDataFrame([], self.source.schema), KafkaOffsets(group_by_topic(end))
            )
        # a partition without records in the range would hold the watermark back
        active = {f"{t}-{p}" for (t, p), offset in self._start.items() if offset < self._end[t, p]}
        return replace(batch, partitions={p: n for p, n in batch.partitions.items() if p in active})
