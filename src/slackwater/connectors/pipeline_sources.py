"""Plan the next batch of all sources of a pipeline, either without Spark or with one streaming query.

    offsets of the state ─▶ planner ─▶ next(): new input, within the limits ─▶ planned batch ─▶ rows, new offsets
                              tracks its position in memory, which only a commit makes durable

A source has a planner if its files, offsets or versions can be requested without Spark. If any source of a pipeline has
no planner, a Spark streaming query plans all sources (`SourceSet`).
"""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from slackwater.connectors import spark_connect_support
from slackwater.connectors.source import (
    Batch,
    PlannedBatch,
    Planner,
    SeekableSource,
    SelfPlannedSource,
    SourceBatch,
    SparkPlannedSource,
    combine_batches,
)
from slackwater.errors import StartError, Topic
from slackwater.state.commit import BatchId, Commit
from slackwater.state.protocol import StateStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class DataFrameSource:
    """A streaming DataFrame as a source. It cannot seek: it can resume only from Spark's checkpoint.

    Args:
        name: The name of the source.
        frame: The streaming DataFrame, from the caller or a connector.
        decode: A function that converts the rows of `frame` to the columns of the source.
    """

    name: str
    frame: DataFrame
    decode: Callable[[DataFrame], DataFrame] = field(default=lambda frame: frame)

    @property
    def schema(self) -> StructType:
        return self.decode(self.frame).schema


AnySource = SeekableSource | DataFrameSource


@dataclass(frozen=True)
class SourceSet:
    """All sources of a pipeline, in the order of the config."""

    session: SparkSession
    sources: Sequence[AnySource]
    store: StateStore

    def plan(self) -> DataFrame:
        """Return one streaming DataFrame that plans the batches of all sources.

        It also contains the rows of each `DataFrameSource`, as structs. The rows of all other sources are read
        separately.
        """
        if len(self.sources) == 1 and isinstance(self.sources[0], DataFrameSource):
            return self.sources[0].frame
        parts = [self._tagged(i, s) for i, s in enumerate(self.sources)]
        return reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), parts)

    def _tagged(self, index: int, source: AnySource) -> DataFrame:
        if isinstance(source, DataFrameSource):
            return source.frame.selectExpr(f"{index} AS __src", f"struct(*) AS __s{index}")
        return _spark_planned(source).plan(self.session).selectExpr(f"{index} AS __src")

    def signature(self) -> list[dict[str, Any]]:
        """Return the values that identify each source in a checkpoint. If they change, a new checkpoint is needed."""
        return [
            {"name": s.name} if isinstance(s, DataFrameSource) else _spark_planned(s).signature() for s in self.sources
        ]

    def checkpoint(self, state: Commit) -> Path:
        """Return the checkpoint from which the state continues, and remove all others.

        If all sources can seek, this is a new checkpoint that begins after the stored offsets. Otherwise, it is the
        checkpoint of the latest batch. Raises StartError if that checkpoint is lost.
        """
        chosen = self._checkpoint(state)
        for other in chosen.parent.iterdir():
            if other != chosen:
                shutil.rmtree(other, ignore_errors=True)
        return chosen

    def _checkpoint(self, state: Commit) -> Path:
        home = self.store.checkpoint
        seekable = [_spark_planned(s) for s in self.sources if not isinstance(s, DataFrameSource)]
        if len(seekable) < len(self.sources) and state.batch is not None:
            last = home / state.batch.checkpoint
            signature = last / "sources.json"
            if (
                (last / "offsets").exists()
                and signature.exists()
                and json.loads(signature.read_text()) == self.signature()
            ):
                return last
            lost = [s.name for s in self.sources if isinstance(s, DataFrameSource) and state.clocks[s.name].rows]
            if lost:
                raise StartError(
                    f'source "{lost[0]}" can resume only from Spark\'s checkpoint, but the checkpoint {last} is lost '
                    "or was made for other sources; restore it, or give the pipeline a new name or state path to start "
                    "over",
                    Topic.CHECKPOINT_ONLY,
                )
            if any(c.rows for c in state.clocks.values()):
                raise StartError(
                    "sources were added or removed, but one of the sources can resume only from Spark's checkpoint, "
                    "which fits only the previous sources; restore the previous sources",
                    Topic.CHECKPOINT_ONLY,
                )
        fresh = home / uuid.uuid4().hex
        fresh.mkdir(parents=True)
        if len(seekable) == len(self.sources) and any(state.sources[s.name].offsets is not None for s in seekable):
            self._seek(fresh, seekable, state)
        (fresh / "sources.json").write_text(json.dumps(self.signature()))
        return fresh

    def _seek(self, checkpoint: Path, sources: Sequence[SparkPlannedSource], state: Commit) -> None:
        """Create a checkpoint with a finished batch 0, which ends at the offsets in the state."""
        lines = [s.seek(checkpoint, i, self.store, state.sources[s.name]) for i, s in enumerate(sources)]
        meta = {"batchWatermarkMs": 0, "batchTimestampMs": int(time.time() * 1000), "conf": {}}
        for name, content in (
            ("metadata", json.dumps({"id": str(uuid.uuid4())})),
            ("offsets/0", "\n".join(["v1", json.dumps(meta), *lines])),
            ("commits/0", 'v1\n{"nextBatchWatermarkMs":0}'),
        ):
            (checkpoint / name).parent.mkdir(exist_ok=True)
            (checkpoint / name).write_text(content)

    def batch(self, checkpoint: Path, number: int, planned: DataFrame, state: Commit) -> Batch:
        """Return a batch that Spark planned, with the offsets after it, and a DataFrame for each source that has rows.

        Args:
            checkpoint: The directory of Spark's checkpoint.
            number: The number of the batch in the checkpoint.
            planned: The batch's rows in the DataFrame that `plan` returned.
            state: The latest commit.
        """
        began = time.monotonic()
        batches: dict[str, SourceBatch] = {}
        position = 0
        for index, source in enumerate(self.sources):
            if isinstance(source, DataFrameSource):
                frame = (
                    planned if len(self.sources) == 1 else planned.where(f"__src = {index}").selectExpr(f"__s{index}.*")
                )
                batches[source.name] = SourceBatch(source.decode(rebind_to_spark_session(self.session, frame)), None)
                position += _streaming_leaves(source.frame)
                continue
            record = state.sources[source.name]
            part = _spark_planned(source).batch(
                self.session, checkpoint, position, number, self.store, state.epoch + 1, record
            )
            position += 1
            if part is not None:
                batches[source.name] = part
        return combine_batches(BatchId(checkpoint=checkpoint.name, batch=number), batches, began)


def _spark_planned(source: SeekableSource) -> SparkPlannedSource:
    """Cast a source to `SparkPlannedSource`. `create_source_planners` has rejected all sources that Spark cannot plan."""
    assert isinstance(source, SparkPlannedSource)
    return source


def _streaming_leaves(frame: DataFrame) -> int:
    """Return the number of streaming sources in the plan of a DataFrame."""
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves()
    return sum(bool(leaves.apply(i).isStreaming()) for i in range(leaves.size()))


def rebind_to_spark_session(session: SparkSession, frame: DataFrame) -> DataFrame:
    """Rebind a DataFrame to the session that has the SQL views. A Connect DataFrame is returned unchanged."""
    if spark_connect_support.is_connect(frame):
        return frame
    from pyspark.sql import DataFrame

    plan = frame._jdf.queryExecution().analyzed()
    spark: Any = session._jvm
    dataset = spark.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan)
    return DataFrame(dataset, session)


@dataclass(frozen=True)
class SourcePlanners:
    """The planners of all sources of a pipeline, by source name."""

    streams: SourceSet
    by_source: Mapping[str, Planner]
    _planned: dict[str, PlannedBatch] = field(default_factory=dict)  # input that a failed call of `next` had planned

    def stop_at_current_end(self) -> None:
        for planner in self.by_source.values():
            planner.stop_at_current_end()

    def next(self) -> Mapping[str, PlannedBatch]:
        """Return the next input of each source that has new input, by name.

        If a source does not respond, the call fails. The next call then also returns the input that the failed call had
        already planned for other sources.
        """
        for name, planner in self.by_source.items():
            if name not in self._planned and (part := planner.next()) is not None:
                self._planned[name] = part
        planned = {name: self._planned[name] for name in self.by_source if name in self._planned}
        self._planned.clear()
        return planned

    def batch(self, id_: BatchId, parts: Mapping[str, PlannedBatch], state: Commit) -> Batch:
        """Read the planned input of each source, and combine it into one batch.

        Args:
            id_: The id of the new batch.
            parts: The planned input, by source.
            state: The commit from which the batch continues.
        """
        session, store = self.streams.session, self.streams.store
        batches = {n: part.read(session, store, state.epoch + 1, state.sources[n]) for n, part in parts.items()}
        return combine_batches(id_, {name: batch for name, batch in batches.items() if batch is not None})

    @property
    def unplanned_files(self) -> int:
        """The number of files that have been listed but not yet planned."""
        return sum(planner.unplanned_files for planner in self.by_source.values())


def create_source_planners(
    streams: SourceSet, state: Commit, read: Mapping[str, Iterable[Any]]
) -> SourcePlanners | None:
    """Return the planners of all sources, or None if one of the sources can be planned only by Spark.

    Args:
        streams: The sources.
        state: The commit from which to continue.
        read: The files that the state lists as read, by source.

    Raises:
        SlackwaterError: A source cannot determine where to continue.
    """
    ours = [source for source in streams.sources if _can_plan(source)]
    if len(ours) < len(streams.sources):
        _check_spark_can(streams.sources)
        return None
    return SourcePlanners(streams, {s.name: s.planner(state.sources[s.name], read.get(s.name, ())) for s in ours})


def check_spark_connect_support(pipeline: str, sources: Iterable[AnySource]) -> None:
    """Raise StartError for a source that cannot be read over Spark Connect.

    Streaming queries do not run over Connect, so every source must be planned without Spark.
    """
    for source in sources:
        if not _can_plan(source):
            raise connect_not_supported_error(pipeline, source.name)
        source.check_connect(pipeline)


def connect_not_supported_error(pipeline: str, source: str) -> StartError:
    """Return the error for a source that only a Spark streaming query can plan."""
    return StartError(
        f'{pipeline}: source "{source}" needs a Spark streaming query, which Slackwater does not run over Spark '
        "Connect; use local files or Kafka without Spark's streaming options, or run the pipeline in a classic Spark "
        "session (SPARK_MASTER instead of SPARK_REMOTE)",
        Topic.SPARK_CONNECT,
    )


def _check_spark_can(sources: Sequence[AnySource]) -> None:
    """Raise StartError if Spark cannot plan one of the sources, although only Spark can plan another source."""
    other = next(s for s in sources if not _can_plan(s))
    for source in sources:
        if isinstance(source, SelfPlannedSource) and not isinstance(source, SparkPlannedSource):
            raise StartError(
                f'source "{source.name}" is a {source.kind}, which is read without a Spark streaming query, but '
                f'source "{other.name}" needs such a query; combine a {source.kind} only with tables, local files or '
                "Kafka, without Spark's streaming options",
                Topic.VALUE,
            )


def _can_plan(source: AnySource) -> TypeGuard[SelfPlannedSource]:
    """Return whether the input of a source can be planned without Spark."""
    return isinstance(source, SelfPlannedSource) and source.plans_without_spark
