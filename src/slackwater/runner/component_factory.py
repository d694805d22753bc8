"""Create the components of a run from its config: sources, bound stages, targets, and the target of dead letters.

Binding a stage to its input columns resolves its event time, its SQL, and the window or join over the SQL's result.

columns of sources ──▶ bind ──▶ stage ──▶ columns of its results ──▶ bind ──▶ the stages that read them ──▶ …
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from slackwater.config.connection import ConsoleConnection
from slackwater.config.connector_description import CONNECTORS
from slackwater.config.error_text import format_value
from slackwater.config.pipeline import Pipeline, resolve_connection
from slackwater.config.source import Source
from slackwater.config.stage import InputPath
from slackwater.config.target import Target as TargetSpec
from slackwater.connectors.connector import Connector, connector_for
from slackwater.connectors.pipeline_sources import AnySource, DataFrameSource
from slackwater.connectors.target import TargetTable, TargetWriter
from slackwater.core.column_names import find_reserved_collisions, quote_identifier
from slackwater.core.dead_letter_columns import ADDED, LETTER
from slackwater.core.schema import Field
from slackwater.engine.engine_interface import Engine
from slackwater.engine.kill_points import FaultInjector
from slackwater.engine.row_policies import ClockSkewWarnings
from slackwater.engine.stage_runner import StageRunner
from slackwater.errors import StartError, Topic
from slackwater.evolution import added_columns
from slackwater.operators.base import Operator
from slackwater.operators.registry import compile_step
from slackwater.spark import operator_input
from slackwater.spark.analysis import sql_analysis
from slackwater.spark.engine import SparkEngine
from slackwater.spark.row_query_builder import RowQueryBuilder
from slackwater.spark.sessions import spark_jars, spark_session
from slackwater.state.commit import Commit
from slackwater.state.protocol import StateStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Frames = Mapping[str, "DataFrame"]  # empty DataFrames, by the name of a source or stage


# -- sources -----------------------------------------------------------------------------------------------------------


def create_source(session: SparkSession, pipeline: Pipeline, index: int, schema_json: str | None) -> AnySource:
    """Create a source. Raises StartError if its file, topic or table does not exist.

    Args:
        session: The Spark session.
        pipeline: The pipeline.
        index: The index of the source in the config.
        schema_json: The schema with which the source was first read, as Spark's JSON; None before the first start.
    """
    spec = pipeline.sources[index]
    connection = resolve_connection(spec.connection, pipeline.connections)
    if spec.dataframe is not None or connection is None:
        return DataFrameSource(spec.name, spec.dataframe)
    return connector_for(connection).source(session, pipeline, spec, schema_json)


def spark_settings(pipeline: Pipeline, notice: Callable[[str, str], None]) -> dict[str, str]:
    """Return the settings of a Spark session that Slackwater starts, with the jars that the sources need."""
    settings = {k: str(v) for k, v in pipeline.spark.items()}
    connections = [resolve_connection(s.connection, pipeline.connections) for s in pipeline.sources]
    kinds = dict.fromkeys(connection.kind for connection in connections if connection is not None)
    packages = dict.fromkeys(package for kind in kinds for package in CONNECTORS[kind].spark_packages)
    if not packages or {"spark.jars", "spark.jars.packages"} & set(settings) or spark_session.server_address(settings):
        return settings
    jars: list[Path] = []
    for package in packages:
        jars += _kafka_jars(pipeline, notice) if package == spark_jars.KAFKA else spark_jars.package_jars(package)
    return {**settings, "spark.jars": ",".join(map(str, jars))}


def _kafka_jars(pipeline: Pipeline, notice: Callable[[str, str], None]) -> list[Path]:
    import pyspark

    installed = str(pyspark.__version__)
    jars, version = spark_jars.kafka_connector(installed)
    if version != installed:
        notice("info", f"Spark {installed} reads Kafka with the connector of Spark {version}")
    if any(s.payload_format == "avro" for s in pipeline.sources):
        jars = [*jars, *spark_jars.avro_connector(installed)]
    return jars


# -- stages ------------------------------------------------------------------------------------------------------------


class BoundStage(NamedTuple):
    """A stage that is ready to run.

    Args:
        pipeline: The pipeline reduced to this stage; see `Pipeline.stage_pipelines`.
        times: The SQL for the event time, by source or stage that is read.
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
        """Return the SQL for the end of a row's gap; None if the gap is constant. Raises StartError.

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
            stage_pipeline, {w.key: outputs[w.key] for w in together}, operator_input.required_columns(operator, which)
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
    """Return the SQL expression for the event time of the rows of a source."""
    if source.is_stage_output and not all(s.is_stage_output for s in stage_pipeline.sources):
        return quote_identifier("_event_ts")
    connection = resolve_connection(source.connection, stage_pipeline.connections)
    has_clock = connection is not None and CONNECTORS[connection.kind].uses_ingest_time
    return sql_analysis.event_time_expression(stage_pipeline, session, source.name, frame, has_clock)


def _origin_sql(stage: BoundStage, session: SparkSession) -> dict[str, tuple[str, ...]]:
    """Return the SQL, keyed by input path and extended to preserve the column `_origin`, which `late_data = "dlq"` needs."""
    sql_texts = {
        w.key: sql_analysis.add_origin_to_sql(session, stage.pipeline, w, stage.frames[w.origin])
        for w in stage.pipeline.input_paths
    }
    return {key: texts for key, texts in sql_texts.items() if texts is not None}


# -- targets -----------------------------------------------------------------------------------------------------------


def create_target_writers(
    pipeline: Pipeline, operators: Mapping[str, Operator], state_id: str = "", latest: Commit | None = None
) -> dict[str, TargetWriter]:
    """Create the writers for the targets of the config. Return the writers by target name.

    Args:
        pipeline: The pipeline.
        operators: The operators of the stages, by stage name.
        state_id: The lineage of the state, which is part of the markers.
        latest: The commit from which the run continues; it shows which output columns are new.
    """
    targets = {}
    new_columns = added_columns.added_target_columns(
        pipeline, latest, {n: {f.name: f.type for f in o.output} for n, o in operators.items()}
    )
    for name, target_pipeline in pipeline.per_target.items():
        logic = operators[str(target_pipeline.target.from_)]
        table = TargetTable(
            target_pipeline.writer, tuple(logic.output), logic.identity, state_id, tuple(new_columns.get(name, ()))
        )
        spec = target_pipeline.target
        targets[name] = _connector(spec, target_pipeline).target(spec, target_pipeline, table)
    return targets


def create_targets(pipeline: Pipeline) -> None:
    """Create the targets that must exist before Spark starts, which are Kafka topics. Raises StartError."""
    for target_pipeline in pipeline.per_target.values():
        _connector(target_pipeline.target, target_pipeline).create_target(target_pipeline.target, target_pipeline)
    if pipeline.dead_letter is not None:
        _connector(pipeline.dead_letter, pipeline).create_target(pipeline.dead_letter, pipeline)


def create_dead_letter_writer(pipeline: Pipeline, state_id: str = "", marker: str = "letters") -> TargetWriter | None:
    """Create the writer for dead letters; None if the config has no target for them. `marker`: suffix of its marker."""
    if pipeline.dead_letter is None:
        return None
    table = TargetTable(f"{pipeline.name}-{marker}", LETTER, None, state_id, ADDED)
    return _connector(pipeline.dead_letter, pipeline).target(pipeline.dead_letter, pipeline, table)


def _connector(spec: TargetSpec, pipeline: Pipeline) -> Connector[Any]:
    return connector_for(resolve_connection(spec.connection, pipeline.connections) or ConsoleConnection())
