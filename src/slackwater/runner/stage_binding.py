"""Bind each stage of a pipeline to its input columns: event time, SQL, and the window or join over the SQL's result.

columns of sources ──▶ bind ──▶ stage ──▶ columns of its results ──▶ bind ──▶ the stages that read them ──▶ …
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from slackwater.config.connector_description import CONNECTORS
from slackwater.config.lineage import InputPath
from slackwater.config.message_format import format_value
from slackwater.config.pipeline import Pipeline, resolve_connection
from slackwater.config.source import Source
from slackwater.connectors.batch_planning import AnySource
from slackwater.core.column_names import find_reserved_collisions, quote_identifier
from slackwater.core.schema import Field
from slackwater.engine.engine_interface import Engine
from slackwater.engine.kill_points import FaultInjector
from slackwater.engine.row_policies import ClockSkewWarnings
from slackwater.engine.stage_runner import StageRunner
from slackwater.errors import StartError, Topic
from slackwater.operators.base import Operator
from slackwater.operators.registry import compile_step
from slackwater.spark import operator_rows
from slackwater.spark.analysis import sql_analysis
from slackwater.spark.engine import SparkEngine
from slackwater.spark.row_query_builder import RowQueryBuilder
from slackwater.state.protocol import StateStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Frames = Mapping[str, "DataFrame"]  # empty DataFrames, by the name of a source or stage


class BoundStage(NamedTuple):
    """A stage that is ready to run.

    Args:
        pipeline: The pipeline reduced to this stage; see `Pipeline.stage_pipelines`.
        times: The SQL of the event time, by source or stage that is read.
        frames: The columns of each source or stage that is read, as DataFrames without rows.
    """

    pipeline: Pipeline
    operator: Operator
    times: Mapping[str, str]
    frames: Frames

    def engine(self, session: SparkSession, refresh: Callable[[], None] = lambda: None) -> SparkEngine:
        """Create the engine that runs the stage on Spark. `refresh`: reloads lookups. Raises StartError."""
        carried = _origin_sql(self, session) if self.pipeline.tracks_origin else {}
        rows = RowQueryBuilder(session, self.pipeline, self.operator, self.times, carried, self.end_sql(session))
        return SparkEngine(rows, refresh)

    def end_sql(self, session: SparkSession) -> str | None:
        """Return the SQL for the end of a row's gap if the gap is an expression, else None. Raises StartError.

        The expression is evaluated over the result of the stage's SQL.
        """
        window = self.pipeline.transform.window
        if window is None or not isinstance(window.gap_ms, str):
            return None
        expressions = [
            sql_analysis.gap_end_expression(self.pipeline, session, w, self.frames[w.origin])
            for w in self.pipeline.input_paths
        ]
        return expressions[0]


def create_empty_frames(session: SparkSession, sources: Sequence[AnySource]) -> dict[str, DataFrame]:
    """Return an empty DataFrame with the columns of each source."""
    return {s.name: session.createDataFrame([], s.schema) for s in sources}


def bind_stage(stage_pipeline: Pipeline, session: SparkSession, frames: Frames) -> BoundStage:
    """Bind a stage to its input columns. Raises StartError naming any column that is missing or unsuitable."""
    for source in stage_pipeline.sources:
        _check_names(stage_pipeline, source.name, frames[source.name].columns)
    times = {s.name: _time_sql(stage_pipeline, session, s, frames[s.name]) for s in stage_pipeline.sources}
    outputs = {
        path.key: sql_analysis.check_sql(session, stage_pipeline, path, frames[path.origin])
        for path in stage_pipeline.input_paths
    }
    inputs: dict[str, dict[str, Field]] = {}
    for path in stage_pipeline.input_paths:
        inputs.setdefault(path.name, outputs[path.key])
    operator = compile_step(stage_pipeline, inputs)
    for together in _paths_to_one_input(stage_pipeline):
        which = operator.input_index(together[0].name)
        sql_analysis.check_same_columns(
            stage_pipeline, {w.key: outputs[w.key] for w in together}, operator_rows.required_columns(operator, which)
        )
    return BoundStage(stage_pipeline, operator, times, {s.name: frames[s.name] for s in stage_pipeline.sources})


def _check_names(stage_pipeline: Pipeline, source: str, columns: Sequence[str]) -> None:
    """Raise StartError if a source has a column with a reserved name."""
    if taken := find_reserved_collisions(columns):
        raise StartError(
            f'{stage_pipeline.name}: source "{source}": found a column named {format_value(taken[0])}, a name that Slackwater '
            "reserves; rename the column in the source",
            Topic.VALUE,
        )


def bind_stages(pipeline: Pipeline, session: SparkSession, sources: Sequence[AnySource]) -> dict[str, BoundStage]:
    """Bind all stages and return them by name, in dataflow order. Raises StartError."""
    frames, stages = create_empty_frames(session, sources), dict[str, BoundStage]()
    for name, stage_pipeline in pipeline.stage_pipelines.items():
        stages[name] = bind_stage(stage_pipeline, session, frames)
        fields = stages[name].operator.row_columns
        frames[name] = session.createDataFrame([], ", ".join(f"{quote_identifier(f.name)} {f.type}" for f in fields))
    return stages


def create_stage_runners(
    steps: Mapping[str, BoundStage], engines: Mapping[str, Engine], store: StateStore, faults: FaultInjector
) -> list[StageRunner]:
    """Create a stage runner for each bound stage."""
    return [
        StageRunner(
            name,
            stage.pipeline,
            stage.operator,
            store,
            engines[name],
            faults.in_worker,
            number,
            skew_warnings=ClockSkewWarnings(stage.pipeline),
        )
        for number, (name, stage) in enumerate(steps.items())
    ]


def _paths_to_one_input(stage_pipeline: Pipeline) -> list[list[InputPath]]:
    """Group the input paths that must have the same columns: all paths to a window, or to one side of a join."""
    if stage_pipeline.transform.join is None:
        return [list(stage_pipeline.input_paths)]
    return [[w for w in stage_pipeline.input_paths if w.name == side] for side in stage_pipeline.transform.join.sources]


def _time_sql(stage_pipeline: Pipeline, session: SparkSession, source: Source, frame: DataFrame) -> str:
    """Return the SQL expression for the event time of a source's rows."""
    if source.is_stage_output and not all(s.is_stage_output for s in stage_pipeline.sources):
        return quote_identifier("_event_ts")
    connection = resolve_connection(source.connection, stage_pipeline.connections)
    has_clock = connection is not None and CONNECTORS[connection.kind].uses_ingest_time
    return sql_analysis.event_time_expression(stage_pipeline, session, source.name, frame, has_clock)


def _origin_sql(stage: BoundStage, session: SparkSession) -> dict[str, tuple[str, ...]]:
    """Return, by input path, the SQL that `late_data = "dlq"` needs: it preserves the column `_origin`."""
    sql_texts = {
        w.key: sql_analysis.add_origin_to_sql(session, stage.pipeline, w, stage.frames[w.origin])
        for w in stage.pipeline.input_paths
    }
    return {key: texts for key, texts in sql_texts.items() if texts is not None}


__all__ = ["BoundStage", "Frames", "bind_stage", "bind_stages", "create_empty_frames", "create_stage_runners"]
