"""From a config to its parts: sources, the state store, the target, the place of dead letters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from slackwater.config.connection import ConsoleConnection
from slackwater.config.pipeline import Pipeline, resolve
from slackwater.config.target import Target as TargetSpec
from slackwater.core.dead_letter import LETTER
from slackwater.engine.far_dates import FarDates
from slackwater.engine.kill_points import Faults
from slackwater.engine.stage import Stage
from slackwater.operators.base import Operator
from slackwater.operators.compile import compile_join, compile_window
from slackwater.operators.windowed import Windowed
from slackwater.runner.systems import system_of
from slackwater.sources.streams import AnySource, FrameSource
from slackwater.spark import analysis, packages
from slackwater.spark.engine import SparkEngine
from slackwater.state.files.store import FilesStore, InMemoryStore
from slackwater.state.protocol import StateStore
from slackwater.targets.base import Table, Target
from slackwater.windows.aggregations import quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def source_of(session: SparkSession, pipeline: Pipeline, index: int, known: str | None) -> AnySource:
    """A source a config names. `known`: the schema it was first read with, as Spark writes schemas in JSON.

    Raises StartError if what it reads is not there.
    """
    spec = pipeline.sources[index]
    connection = resolve(spec.connection, pipeline.connections)
    if spec.dataframe is not None or connection is None:
        return FrameSource(spec.name, spec.dataframe)
    return system_of(connection).source(session, pipeline, spec, known)


def bind(pipeline: Pipeline, session: SparkSession, sources: Sequence[AnySource]) -> tuple[dict[str, str], Operator]:
    """Event time and SQL of each source against the columns that are there, and the window or join over what comes out."""
    times, outputs = {}, {}
    for spec, source in zip(pipeline.sources, sources, strict=True):
        frame = session.createDataFrame([], source.schema)
        connection = resolve(spec.connection, pipeline.connections)
        has_clock = connection is not None and connection.kind == "rabbitmq"
        times[source.name] = analysis.time_expression(pipeline, session, source.name, frame, has_clock)
        outputs[source.name] = analysis.check_sql(session, pipeline, source.name, frame)
    join = pipeline.transform.join
    if join is not None:
        return times, compile_join(pipeline, (outputs[join.left_source], outputs[join.right_source]))
    logic = compile_window(pipeline, next(iter(outputs.values())))
    needed = [*logic.key_names, *{i.source.name: None for i in logic.inputs}]
    analysis.check_same_columns(pipeline, outputs, needed)
    return times, logic


def results_of(pipeline: Pipeline, session: SparkSession, logic: Operator) -> Operator:
    """The step whose results the target gets, after the first one's. Raises StartError."""
    for own in list(pipeline.alone.values())[1:]:
        logic = _behind(own, session, logic)[1]
    return logic


def _behind(own: Pipeline, session: SparkSession, before: Operator) -> tuple[DataFrame, Windowed]:
    """The columns that a stage reads of the one before it, and its window over them."""
    frame = session.createDataFrame([], ", ".join(f"{quote(f.name)} {f.type}" for f in before.row_columns))
    return frame, compile_window(own, analysis.check_sql(session, own, own.sources[0].name, frame))


def stages_of(
    pipeline: Pipeline, session: SparkSession, first: SparkEngine, store: StateStore, faults: Faults
) -> list[Stage]:
    """All stages, bound to their columns; `first`: what the stage that reads the sources runs on. Raises StartError."""
    (name, own), *more = pipeline.alone.items()
    found = [Stage(name, own, first.logic, store, first, faults.in_worker, far_dates=FarDates(own))]
    for number, (name, own) in enumerate(more, 1):
        before, read = found[-1], own.sources[0].name
        frame, bound = _behind(own, session, before.operator)
        times = {read: analysis.time_expression(own, session, read, frame, False)}
        end = analysis.end_expression(own, session, read, frame) if isinstance(bound.window.gap_ms, str) else None
        engine = SparkEngine(session, own, bound, times, end=end)
        behind = {read: 1000 * before.pipeline.watermark_delay_ms}
        found.append(Stage(name, own, bound, store, engine, faults.in_worker, number, behind))
    return found


def ends(pipeline: Pipeline, session: SparkSession, sources: Sequence[AnySource]) -> str | None:
    """SQL over the output of the pre-stage for how far a row reaches, where each brings its own gap. After `bind`."""
    window = pipeline.transform.window
    if window is None or not isinstance(window.gap_ms, str):
        return None
    found = [analysis.end_expression(pipeline, session, s.name, session.createDataFrame([], s.schema)) for s in sources]
    return found[0]


def carrying(pipeline: Pipeline, session: SparkSession, sources: Sequence[AnySource]) -> dict[str, str]:
    """Per source the SQL that `late_data = "dlq"` runs: with `_origin` carried through. After `bind`; raises StartError."""
    if not pipeline.carries_origin:
        return {}
    found = {
        s.name: analysis.check_origin(session, pipeline, s.name, session.createDataFrame([], s.schema)) for s in sources
    }
    return {name: sql for name, sql in found.items() if sql is not None}


def spark_settings(pipeline: Pipeline, notice: Callable[[str, str], None]) -> dict[str, str]:
    """Settings of a Spark session of our own, with the jars that the sources need."""
    import pyspark

    given = {k: str(v) for k, v in pipeline.spark.items()}
    kinds = {c.kind for s in pipeline.sources if (c := resolve(s.connection, pipeline.connections))}
    if "kafka" not in kinds or {"spark.jars", "spark.jars.packages"} & set(given):
        return given
    installed = str(pyspark.__version__)
    jars, version = packages.kafka_connector(installed)
    if version != installed:
        notice("info", f"Spark {installed} reads Kafka with the connector of Spark {version}")
    if any(s.payload_format == "avro" for s in pipeline.sources):
        jars = [*jars, *packages.avro(installed)]
    return {**given, "spark.jars": ",".join(map(str, jars))}


def store_of(pipeline: Pipeline) -> StateStore:
    """The state store a config names; in memory where it names none."""
    store = pipeline.state_store
    if store is None or store.kind == "in_memory":
        return InMemoryStore(pipeline.name)
    if store.kind == "postgres":
        from slackwater.state.postgres.store import PostgresStore

        return PostgresStore(store.url or "", store.schema_, pipeline.name, store.path)
    return FilesStore(store.path or "", pipeline.name)


def target_of(pipeline: Pipeline, logic: Operator, state_id: str = "") -> Target:
    """The target a config names, for the epochs of a state."""
    return _target(pipeline.target, pipeline, Table(pipeline.name, tuple(logic.output), logic.identity, state_id))


def letters_of(pipeline: Pipeline, state_id: str = "") -> Target | None:
    """Where a config sends dead letters; None where it does not."""
    if pipeline.dead_letter is None:
        return None
    return _target(pipeline.dead_letter, pipeline, Table(f"{pipeline.name}-letters", LETTER, None, state_id))


def aside_of(pipeline: Pipeline, state_id: str = "") -> Target | None:
    """Where rows go that are set aside: to the dead letters, with a marker of their own."""
    if pipeline.dead_letter is None:
        return None
    return _target(pipeline.dead_letter, pipeline, Table(f"{pipeline.name}-letters-aside", LETTER, None, state_id))


def _target(spec: TargetSpec, pipeline: Pipeline, table: Table) -> Target:
    connection = resolve(spec.connection, pipeline.connections)
    return system_of(connection or ConsoleConnection()).target(spec, pipeline, table)
