"""Bind the steps of a test's pipeline to the columns of their inputs, with or without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

from slackwater.config.pipeline import Pipeline
from slackwater.core.schema import Field
from slackwater.engine.engine_interface import Engine
from slackwater.errors import StartError, Topic
from slackwater.operators import registry as operators
from slackwater.operators.base import Operator
from slackwater.testing import rows_without_spark
from slackwater.testing.local_engine import LocalEngine
from slackwater.testing.stub_sources import Row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from slackwater.testing.spark_row_preparation import SparkRowPreparer


class BoundSteps:
    """The operators of all steps, and the row preparers of the steps whose rows Spark prepares.

    Args:
        pipeline: The pipeline.
        given_columns: The columns of sources that do not declare a schema, by source.
        session: The Spark session; None for a pipeline without SQL.

    Raises StartError if the pipeline has SQL but there is no session.
    """

    def __init__(
        self, pipeline: Pipeline, given_columns: Mapping[str, Mapping[str, Field]], session: SparkSession | None
    ) -> None:
        self.operators: dict[str, Operator] = {}
        self.spark_preparers: dict[str, SparkRowPreparer] = {}
        self._pipeline, self._session = pipeline, session
        self._columns = {} if session is not None else rows_without_spark.source_columns(pipeline, given_columns)
        if session is None:
            rows_without_spark.reject_sql(pipeline, self._columns)
        timed = {n: [*f.values(), Field("_event_ts", "timestamp")] for n, f in given_columns.items()}
        for name, stage_pipeline in pipeline.stage_pipelines.items():
            self.operators[name] = self._bind(name, stage_pipeline, timed)

    def _bind(self, name: str, stage_pipeline: Pipeline, given_columns: Mapping[str, Sequence[Field]]) -> Operator:
        results = {s.name: self.operators[s.name].row_columns for s in stage_pipeline.sources if s.is_stage_output}
        step = stage_pipeline.transform.step
        sql = (
            any(stage_pipeline.sql_chain(w) for w in stage_pipeline.input_paths)
            or step.event_time_column != "_event_ts"
        )
        if self._session is not None and (sql or len(results) < len(stage_pipeline.sources)):
            from slackwater.testing.spark_row_preparation import get_row_preparer

            self.spark_preparers[name] = get_row_preparer(self._session, stage_pipeline, {**given_columns, **results})
            return self.spark_preparers[name].logic
        columns = {**self._columns, **{n: {f.name: f for f in fields} for n, fields in results.items()}}
        return operators.compile_step(stage_pipeline, {w.name: columns[w.origin] for w in stage_pipeline.input_paths})

    @property
    def front(self) -> SparkRowPreparer | None:
        """Return the row preparer of the first step; None if Spark does not prepare its rows."""
        return self.spark_preparers.get(next(iter(self.operators)))

    def engine(self, name: str, stage_pipeline: Pipeline) -> Engine:
        """Return the engine that runs a step."""
        if name in self.spark_preparers:
            return LocalEngine(self.spark_preparers[name])
        inputs = {
            s.name: list(dict.fromkeys(w.name for w in stage_pipeline.input_paths_from(s.name)))
            for s in stage_pipeline.sources
        }
        future_ms = stage_pipeline.transform.step.max_future_ms
        plain = rows_without_spark.PlainRowPreparer(self.operators[name], list(inputs), future_ms, inputs)
        return LocalEngine(plain)

    def frame(self, source: str, rows: Sequence[Row], now_us: int) -> pl.DataFrame:
        """Convert rows of a source to a frame without Spark. Raises StartError if a row is a string.

        `now_us`: the processing time (µs).
        """
        if broken := [r for r in rows if isinstance(r, str)]:
            raise StartError(
                f'source "{source}": {broken[0][:80]!r} is a raw record, which only Spark can read; pass a Spark '
                "session as session=",
                Topic.TEST_UNUSABLE,
            )
        readers = (
            stage_pipeline
            for stage_pipeline in self._pipeline.stage_pipelines.values()
            if stage_pipeline.input_paths_from(source)
        )
        return rows_without_spark.build_frame(next(readers), source, rows, self._columns[source], now_us)  # type: ignore[arg-type]

    def replay_rows(self, letters: pl.DataFrame, now_us: int) -> Mapping[str, Any]:
        """Return the rows of dead letters by source, as `Engine.replay_rows` expects them."""
        if self.front is not None:
            from slackwater.connectors import dead_letter_source_rows

            return dead_letter_source_rows.letters_to_source_frames(
                self.front.session, [s.real for s in self.front.sources], letters
            )
        rows = [rows_without_spark.decode_letter(value) for value in letters["value"]]
        name = self._pipeline.sources[0].name
        return {name: self.frame(name, rows, now_us).with_columns(letters["__letter"])}
