"""Plan the next epoch without Spark: list files, and request offsets from brokers and versions from tables.

    offsets of the state ─▶ planner ─▶ next(): new input, within the limits ─▶ planned batch ─▶ rows, new offsets
                              tracks its position in memory; only a commit makes it durable

A source has a planner if it can report its input without Spark. If any source of a pipeline cannot, a Spark streaming
query plans all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

from slackwater.connectors.files.source import FileEntry
from slackwater.connectors.source import (
    Batch,
    PlannedBatch,
    Planner,
    SelfPlannedSource,
    SparkPlannedSource,
    combine_batches,
)
from slackwater.connectors.streaming_sources import AnySource, SourceSet
from slackwater.errors import StartError, Topic
from slackwater.state.commit import BatchId, Commit


@dataclass(frozen=True)
class Planners:
    """The planners of all sources of a pipeline, by source name."""

    streams: SourceSet
    by_source: Mapping[str, Planner]
    _planned: dict[str, PlannedBatch] = field(default_factory=dict)  # kept if a later source does not respond

    def stop_at_current_end(self) -> None:
        for planner in self.by_source.values():
            planner.stop_at_current_end()

    def next(self) -> Mapping[str, PlannedBatch]:
        """Return the next input of each source; empty if there is no new input.

        If a source does not respond, the call fails. The input that it has already planned for other sources is then
        returned by the next call.
        """
        for name, planner in self.by_source.items():
            if name not in self._planned and (part := planner.next()) is not None:
                self._planned[name] = part
        planned = {name: self._planned[name] for name in self.by_source if name in self._planned}
        self._planned.clear()
        return planned

    def batch(self, id_: BatchId, parts: Mapping[str, PlannedBatch], state: Commit) -> Batch:
        """Read the planned parts and combine them into one batch, which continues from `state`."""
        session, store = self.streams.session, self.streams.store
        batches = {n: part.read(session, store, state.epoch + 1, state.sources[n]) for n, part in parts.items()}
        return combine_batches(id_, {name: batch for name, batch in batches.items() if batch is not None})

    @property
    def unplanned_files(self) -> int:
        """The number of files that were listed but not planned yet."""
        return sum(planner.unplanned_files for planner in self.by_source.values())


def create_planners(streams: SourceSet, state: Commit, read: Mapping[str, Iterable[FileEntry]]) -> Planners | None:
    """Return the planners of all sources. None if any of the sources can be planned only by Spark.

    `read`: the files in the state, by source. Raises SlackwaterError if a source cannot determine where to continue.
    """
    ours = [source for source in streams.sources if _can_plan(source)]
    if len(ours) < len(streams.sources):
        _check_spark_can(streams.sources)
        return None
    return Planners(streams, {s.name: s.planner(state.sources[s.name], read.get(s.name, ())) for s in ours})


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
        "Connect; use local files or Kafka without Spark's streaming options, or run it with a classic session "
        "(SPARK_MASTER)",
        Topic.SPARK_CONNECT,
    )


def _check_spark_can(sources: Sequence[AnySource]) -> None:
    """Raise StartError if one of the sources cannot be planned by Spark. Called if another one needs Spark."""
    other = next(s for s in sources if not _can_plan(s))
    for source in sources:
        if isinstance(source, SelfPlannedSource) and not isinstance(source, SparkPlannedSource):
            raise StartError(
                f'source "{source.name}" is a {source.kind}, which is read without a Spark streaming query, but '
                f'source "{other.name}" needs one; expected only tables, local files or Kafka, without Spark\'s streaming '
                "options",
                Topic.VALUE,
            )


def _can_plan(source: AnySource) -> TypeGuard[SelfPlannedSource]:
    """Return whether a source can report its new input without Spark."""
    return isinstance(source, SelfPlannedSource) and source.plans_itself
