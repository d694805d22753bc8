"""What a run may ask of a system, whatever its kind; a config has been checked before, so only what its kind can do is asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Generic, NoReturn, Protocol, TypeVar

from slackwater.config.connection import Connection
from slackwater.config.pipeline import Pipeline
from slackwater.config.source import Source
from slackwater.config.target import Target as TargetSpec
from slackwater.core.offsets import Offsets
from slackwater.evolution.difference import KeyChange
from slackwater.runner.dead_letter_filter import LetterFilter
from slackwater.sources.backlog import Question
from slackwater.sources.streaming_plan import AnySource
from slackwater.sources.timestamp_parsing import UTC
from slackwater.state.commit import SourceRecord
from slackwater.targets.base import MarkingTarget, TargetTable, TargetWriter

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import SparkSession

C = TypeVar("C", bound=Connection)


class HasPreviousOutput(Protocol):
    """A target that can tell what another state left in it."""

    def describe_previous_output(self) -> str | None:
        """In words: as in `12 files of another state of "orders" in "out", up to epoch 11`; None for nothing."""
        ...


@dataclass(frozen=True)
class Connector(Generic[C]):
    """One system, by how it is reached. Reaching it may raise StartError."""

    connection: C
    has_versions: ClassVar[bool] = False  # whether it can be asked, without Spark, what became of a table

    # -- rows from it ----------------------------------------------------------------------------------------------

    def source(self, session: SparkSession, pipeline: Pipeline, spec: Source, schema_json: str | None) -> AnySource:
        """A source; `schema_json`: the schema it was first read with, as Spark writes schemas in JSON."""
        self._cannot("be read")

    def check_source(self, spec: Source) -> None:
        """Raise StartError if what is read is not there; says nothing where nobody can be asked."""

    def resolve_position(self, spec: Source, position: str | int) -> Offsets:
        """The offsets that "earliest", "latest" or a time (µs) are, as far as its kind of offsets knows of them."""
        self._cannot("be asked where that is")

    def question(self, spec: Source) -> Question | None:
        """Asks what waits there, without Spark; None where nobody can be asked."""
        return None

    def changes(self, spec: Source, record: SourceRecord) -> tuple[Sequence[KeyChange], Mapping[str, str]]:
        """What of a table is another than a state knows it, as the next start takes it, and the columns that this takes of it.

        Raises StartError for what a start refuses, NoAnswerError if it cannot be asked.
        """
        self._cannot("be asked for its columns")

    # -- results to it ---------------------------------------------------------------------------------------------

    def target(self, spec: TargetSpec, pipeline: Pipeline, table: TargetTable) -> TargetWriter:
        """Where `table` is written."""
        self._cannot("be written to")

    def check_target(self, spec: TargetSpec, place: str) -> None:
        """Raise StartError if the place is not there; `place`: the key that names it."""

    def will_create(self, spec: TargetSpec, place: str) -> str | None:
        """What a start will create there, for people; None for nothing."""
        return None

    def create_target(self, spec: TargetSpec, pipeline: Pipeline) -> None:
        """Create the place where that needs no knowledge of the columns. Raises StartError."""

    def existing_target(self, spec: TargetSpec, table: TargetTable) -> HasPreviousOutput | None:
        """What to ask for the output of another state; None where nothing is kept that could be doubled."""
        return None

    def marking_target(self, spec: TargetSpec, table: TargetTable) -> MarkingTarget | None:
        """The target as one whose marker can be read; None where it stores none."""
        return None

    def letters(self, spec: TargetSpec, pipeline: str, letter_filter: LetterFilter) -> Iterator[pl.DataFrame]:
        """Dead letters, read back."""
        self._cannot("keep dead letters")

    def _cannot(self, operation: str) -> NoReturn:
        raise AssertionError(f"{self.connection.kind} cannot {operation}, which the check of the config knows")


def zone_of(pipeline: Pipeline, spec: Source) -> str:
    """Of clock readings without one, as the first step has it that reads the source."""
    readers = (stage_pipeline for stage_pipeline in pipeline.alone.values() if stage_pipeline.ways_from(spec.name))
    return next((stage_pipeline.transform.step.event_time_zone for stage_pipeline in readers), None) or UTC
