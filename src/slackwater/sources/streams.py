"""The streaming query that plans batches: one query for all sources, whatever they are."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slackwater.errors import StartError
from slackwater.sources import files
from slackwater.sources.base import Batch
from slackwater.sources.files import FilesSource
from slackwater.state.protocol import BatchId, Manifest, StateStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class FrameSource:
    """Any streaming DataFrame of the caller. It has no `seek`: it resumes by Spark's checkpoint only."""

    name: str
    frame: DataFrame


AnySource = FilesSource | FrameSource


@dataclass(frozen=True)
class Streams:
    """All sources of a pipeline, in the order of the config."""

    session: SparkSession
    sources: Sequence[AnySource]
    store: StateStore

    def plan(self) -> DataFrame:
        """One streaming DataFrame. Files are only planned by it; rows of DataFrames come through it, one struct per source."""
        if len(self.sources) == 1 and isinstance(self.sources[0], FrameSource):
            return self.sources[0].frame
        parts = [self._tagged(i, s) for i, s in enumerate(self.sources)]
        return reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), parts)

    def _tagged(self, index: int, source: AnySource) -> DataFrame:
        if isinstance(source, FilesSource):
            return source.plan(self.session).selectExpr(f"{index} AS __src")
        return source.frame.selectExpr(f"{index} AS __src", f"struct(*) AS __s{index}")

    def signature(self) -> list[dict[str, Any]]:
        """What a checkpoint is good for: another list of sources needs a fresh one."""
        return [
            {"name": s.name, "query": s.spec.query, "format": s.spec.format}
            if isinstance(s, FilesSource)
            else {"name": s.name}
            for s in self.sources
        ]

    def checkpoint(self, state: Manifest) -> Path:
        """The checkpoint that continues the state: the one of its latest batch, or a fresh one behind the stored offsets.

        All others are removed. Raises StartError if a source without `seek` lost its place.
        """
        chosen = self._checkpoint(state)
        for other in chosen.parent.iterdir():
            if other != chosen:
                shutil.rmtree(other, ignore_errors=True)
        return chosen

    def _checkpoint(self, state: Manifest) -> Path:
        home = self.store.checkpoint
        if state.batch is not None:
            last = home / state.batch.checkpoint
            signature = last / "sources.json"
            if (
                (last / "offsets").exists()
                and signature.exists()
                and json.loads(signature.read_text()) == self.signature()
            ):
                return last
            lost = [s.name for s in self.sources if isinstance(s, FrameSource) and state.sources[s.name].rows]
            if lost:
                raise StartError(
                    f'source "{lost[0]}" is a DataFrame and resumes by Spark\'s checkpoint only, but {last} is lost or was made '
                    "for other sources; restore it, or give the pipeline a new name or state path to start over"
                )
        fresh = home / uuid.uuid4().hex
        fresh.mkdir(parents=True)
        if state.batch is not None and all(isinstance(s, FilesSource) for s in self.sources):
            files.seek(fresh, [files.recall(self.store, state.sources[s.name].offsets) for s in self.sources])
        elif any(state.sources[s.name].rows for s in self.sources):
            raise StartError(
                "sources were added or removed and one of them is a DataFrame, which cannot seek; keep the sources as they were"
            )
        (fresh / "sources.json").write_text(json.dumps(self.signature()))
        return fresh

    def batch(self, checkpoint: Path, number: int, planned: DataFrame, state: Manifest) -> Batch:
        """A planned Spark batch: DataFrames per source that has rows, and the offsets after it."""
        payload: dict[str, DataFrame] = {}
        offsets: dict[str, Mapping[str, Any] | None] = {}
        count, position = 0, 0
        for index, source in enumerate(self.sources):
            if isinstance(source, FrameSource):
                payload[source.name] = (
                    planned
                    if len(self.sources) == 1
                    else (planned.where(f"__src = {index}").selectExpr(f"__s{index}.*"))
                )
                payload[source.name] = _in_session(self.session, payload[source.name])
                position += _streaming_leaves(source.frame)
                continue
            entries = files.batch_files(checkpoint, position, number)
            position += 1
            if entries:
                count += len(entries)
                payload[source.name] = source.read(self.session, entries)
                offsets[source.name] = files.remember(
                    self.store, state.epoch + 1, state.sources[source.name].offsets, entries
                )
        return Batch(BatchId(checkpoint=checkpoint.name, batch=number), offsets, payload, count)


def _streaming_leaves(frame: DataFrame) -> int:
    """How many of Spark's own sources a DataFrame reads."""
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves()
    return sum(bool(leaves.apply(i).isStreaming()) for i in range(leaves.size()))


def _in_session(session: SparkSession, frame: DataFrame) -> DataFrame:
    """The same rows as a DataFrame of our own session, where the views of the SQL live."""
    from pyspark.sql import DataFrame

    plan = frame._jdf.queryExecution().analyzed()
    spark: Any = session._jvm
    dataset = spark.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan)
    return DataFrame(dataset, session)
