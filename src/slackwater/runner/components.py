"""Create the components of a run from its config: sources, targets and the target of dead letters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slackwater.config.connection import ConsoleConnection
from slackwater.config.connector_description import CONNECTORS
from slackwater.config.pipeline import Pipeline, resolve_connection
from slackwater.config.target import Target as TargetSpec
from slackwater.connectors.batch_planning import AnySource, DataFrameSource
from slackwater.connectors.connector import Connector, connector_for
from slackwater.connectors.target import TargetTable, TargetWriter
from slackwater.core.dead_letter_schema import ADDED, LETTER
from slackwater.evolution import added_columns
from slackwater.operators.base import Operator
from slackwater.spark.sessions import spark_jars, spark_session
from slackwater.state.commit import Commit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def create_source(session: SparkSession, pipeline: Pipeline, index: int, schema_json: str | None) -> AnySource:
    """Create the source with this index in the config.

    `schema_json` is the schema with which the source was first read, as Spark's JSON; None before the first start.
    Raises StartError if the file, topic or table does not exist.
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


def create_target_writers(
    pipeline: Pipeline, operators: Mapping[str, Operator], state_id: str = "", latest: Commit | None = None
) -> dict[str, TargetWriter]:
    """Create the writers for the config's targets, by name.

    Args:
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
        targets[name] = _target(target_pipeline.target, target_pipeline, table)
    return targets


def create_targets(pipeline: Pipeline) -> None:
    """Create those targets that can be created before Spark starts, which are Kafka topics. Raises StartError."""
    for target_pipeline in pipeline.per_target.values():
        _connector(target_pipeline.target, target_pipeline).create_target(target_pipeline.target, target_pipeline)
    if pipeline.dead_letter is not None:
        _connector(pipeline.dead_letter, pipeline).create_target(pipeline.dead_letter, pipeline)


def create_letter_writer(pipeline: Pipeline, state_id: str = "") -> TargetWriter | None:
    """Create the writer for dead letters; None if the config has no target for them."""
    if pipeline.dead_letter is None:
        return None
    return _target(
        pipeline.dead_letter, pipeline, TargetTable(f"{pipeline.name}-letters", LETTER, None, state_id, ADDED)
    )


def create_skipped_rows_target(pipeline: Pipeline, state_id: str = "") -> TargetWriter | None:
    """Create the target for the rows that `outbox skip` moves to the dead letters. It has a separate marker."""
    if pipeline.dead_letter is None:
        return None
    return _target(
        pipeline.dead_letter, pipeline, TargetTable(f"{pipeline.name}-letters-aside", LETTER, None, state_id, ADDED)
    )


def _target(spec: TargetSpec, pipeline: Pipeline, table: TargetTable) -> TargetWriter:
    return _connector(spec, pipeline).target(spec, pipeline, table)


def _connector(spec: TargetSpec, pipeline: Pipeline) -> Connector[Any]:
    return connector_for(resolve_connection(spec.connection, pipeline.connections) or ConsoleConnection())
