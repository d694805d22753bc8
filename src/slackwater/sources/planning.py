"""What the next epoch reads, planned without Spark: files are listed, brokers are asked for their offsets, tables for versions.

    the state's offsets ─▶ planner ─▶ next: what came meanwhile, within the limits ─▶ part ─▶ rows, and the offsets behind them
                             position', in memory: only a commit makes it last

A source has a planner if it can be asked like that; where one of a pipeline has none, a streaming query of Spark's plans them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

from slackwater.errors import StartError
from slackwater.sources.base import Batch, PlannedBatch, Planner, SelfPlannedSource, SparkPlannedSource, batch_of
from slackwater.sources.files import FileEntry
from slackwater.sources.streaming_plan import AnySource, SourceSet
from slackwater.state.commit import BatchId, Commit


@dataclass(frozen=True)
class Planners:
    """Those of all sources of a pipeline, by name."""

    streams: SourceSet
    by_source: Mapping[str, Planner]
    _planned: dict[str, PlannedBatch] = field(
        default_factory=dict
    )  # by the ask that goes on: another source may not answer

    def stop_at_current_end(self) -> None:
        for planner in self.by_source.values():
            planner.stop_at_current_end()

    def next(self) -> Mapping[str, PlannedBatch]:
        """What each source has for the next epoch; empty if none has anything. Where one does not answer, the next ask has what others said."""
        for name, planner in self.by_source.items():
            if name not in self._planned and (part := planner.next()) is not None:
                self._planned[name] = part
        planned = {name: self._planned[name] for name in self.by_source if name in self._planned}
        self._planned.clear()
        return planned

    def batch(self, id_: BatchId, parts: Mapping[str, PlannedBatch], state: Commit) -> Batch:
        """The batch of these parts, which goes on from `state`."""
        session, store = self.streams.session, self.streams.store
        batches = {n: part.read(session, store, state.epoch + 1, state.sources[n]) for n, part in parts.items()}
        return batch_of(id_, {name: one for name, one in batches.items() if one is not None})

    @property
    def unplanned_files(self) -> int:
        """How many files are known to be there and are not planned yet."""
        return sum(planner.unplanned_files for planner in self.by_source.values())


def planners_of(streams: SourceSet, state: Commit, read: Mapping[str, Iterable[FileEntry]]) -> Planners | None:
    """None where one of the sources can be planned by Spark only. `read`: by source, the files that are part of the state.

    Raises SlackwaterError if a source cannot say where it goes on.
    """
    ours = [source for source in streams.sources if can_plan(source)]
    if len(ours) < len(streams.sources):
        _check_spark_can(streams.sources)
        return None
    return Planners(streams, {s.name: s.planner(state.sources[s.name], read.get(s.name, ())) for s in ours})


def check_connect(pipeline: str, sources: Iterable[AnySource]) -> None:
    """Raise StartError for a source that only a streaming query of Spark can plan, which is not run over Connect, and for what is not
    read there."""
    for source in sources:
        if not can_plan(source):
            raise not_over_connect(pipeline, source.name)
        source.check_connect(pipeline)


def not_over_connect(pipeline: str, source: str) -> StartError:
    return StartError(
        f'{pipeline}: source "{source}" is planned by a streaming query of Spark, which Slackwater does not run over Spark Connect; '
        "expected files on a disk of this machine or Kafka, without options of Spark's own streams: or run it with a classic session "
        "(SPARK_MASTER)"
    )


def _check_spark_can(sources: Sequence[AnySource]) -> None:
    """Raise StartError for a source that Spark cannot plan beside one that only Spark can."""
    other = next(s for s in sources if not can_plan(s))
    for source in sources:
        if isinstance(source, SelfPlannedSource) and not isinstance(source, SparkPlannedSource):
            raise StartError(
                f'source "{source.name}" is a {source.kind}, whose epochs are planned without a streaming query of Spark, which source '
                f'"{other.name}" needs; expected tables, files on a disk of this machine or Kafka beside it, without options of '
                "Spark's own streams"
            )


def can_plan(source: AnySource) -> TypeGuard[SelfPlannedSource]:
    """Whether a source can be asked without Spark what it has."""
    return isinstance(source, SelfPlannedSource) and source.plans_itself
