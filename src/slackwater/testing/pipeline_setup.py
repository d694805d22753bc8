"""Build the pipeline of a test around a single step, and bind a pipeline's steps to the columns of their inputs."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import polars as pl

from slackwater.config.connection import DeltaConnection, FilesConnection, KafkaConnection
from slackwater.config.pipeline import Pipeline
from slackwater.config.source import Source
from slackwater.config.stage import Stage, Transform
from slackwater.config.step_base import StepBase
from slackwater.config.target import StateStore, Target
from slackwater.config.window import Window
from slackwater.core.schema import ANYTHING, YEARS, Field, ValueLimits, find_value_limits
from slackwater.engine.engine_interface import Engine
from slackwater.errors import StartError, Topic
from slackwater.operators import registry as operators
from slackwater.operators.base import Operator
from slackwater.testing import rows_without_spark
from slackwater.testing.local_engine import LocalEngine
from slackwater.testing.stub_sources import Row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from slackwater.testing.rows_with_spark import SparkRowPreparer

_TOPIC = KafkaConnection(bootstrap_servers="none")

RENAMED = {"listen": "capture_losses", "watch": "extra_stages"}  # old names of options, and their current names


def map_old_options(renamed: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    """Return the options of a `LocalPipeline`, including those in `renamed`, which were passed under old names.

    Raises TypeError if `renamed` contains an unknown name.
    """
    for name, value in renamed.items():
        if name not in RENAMED:
            raise TypeError(f"LocalPipeline: there is no option {name!r}")
        warnings.warn(f"LocalPipeline: {name} is now called {RENAMED[name]}", DeprecationWarning, stacklevel=3)
        options[RENAMED[name]] = value
    return options


def _default_target(step: StepBase, upserts: bool) -> Target:
    """Return the config of a Delta table, or of a Kafka topic if Delta does not support the column names of the step.

    `upserts`: whether the target replaces rows instead of appending them.
    """
    names = [*step.group_by, *(a.as_ or "" for a in step.aggregations)] if isinstance(step, Window) else []
    if upserts and any(set(" ,;{}()\n\t=") & set(name) for name in names):
        return Target(connection="topic", topic="out")
    return Target(connection="table", path="out", mode="merge" if upserts else "append")


def build_pipeline(
    step: StepBase,
    sources: Sequence[str],
    lateness_ms: Mapping[str, int] | None = None,
    name: str = "law",
    on_error: str = "drop",
    upserts: bool = True,
    downstream: Window | None = None,
    transform_type: type[Transform] = Transform,
) -> Pipeline:
    """Build a pipeline around a step.

    Args:
        step: The window, join or other step.
        sources: The names of the sources.
        lateness_ms: The lateness of individual sources (ms), by name. By default, a source has the lateness of the
            step.
        name: The name of the pipeline.
        on_error: The config key `on_error`: what happens to bad rows.
        upserts: Whether the target replaces the results of windows.
        downstream: A window that reads the results of the step.
        transform_type: The class of the config table that contains the step.
    """
    keeps_letters = on_error == "dlq" or step.late_data in ("dlq", "reopen")
    described: dict[str, Any] = {step.table: step}
    upserts = upserts and (downstream is not None or isinstance(step, Window))
    if downstream is not None:
        stages = (Stage(name="first", on_error=on_error, **described), Stage(name="second", window=downstream))
    letters = Target(connection="lake", path="letters") if keeps_letters else None
    return Pipeline(
        name=name,
        sources=tuple(Source(name=s, dataframe=object(), lateness_ms=(lateness_ms or {}).get(s)) for s in sources),
        transform=transform_type(**described, on_error=on_error) if downstream is None else None,
        stages=None if downstream is None else stages,
        target=_default_target(step if downstream is None else downstream, upserts),
        connections={"table": DeltaConnection(), "lake": FilesConnection(), "topic": _TOPIC},
        dead_letter=letters,
        state_store=StateStore(kind="files", path="state"),
    )


# -- changes to a pipeline -----------------------------------------------------------------------------------------------


WATCHED = "~"  # prefix for the names of targets that `add_stage_targets` adds


def find_target_limits(pipeline: Pipeline, stage_operators: Mapping[str, Operator]) -> dict[str, ValueLimits]:
    """Return, by target, the combined limits that the target and the state store place on values.

    `stage_operators`: the operators by stage.
    """
    from slackwater.runner.component_factory import create_target_writers

    store = pipeline.state_store
    store_limits = (
        ValueLimits(False, YEARS, covers_state=True) if store is not None and store.kind == "postgres" else ANYTHING
    )
    writers = create_target_writers(pipeline, stage_operators)
    return {n: store_limits & find_value_limits(t) for n, t in writers.items() if not n.startswith(WATCHED)}


_T = TypeVar("_T", Transform, Stage)


def _keep_losses(stage: _T) -> _T:
    """Return a copy of a stage that turns late and bad rows into dead letters instead of dropping them."""
    update: dict[str, Any] = {"on_error": "dlq"} if stage.on_error == "drop" else {}
    if not stage.is_stateless and stage.step.late_data == "drop":
        step = stage.step.model_copy(update={"late_data": "dlq"})
        update[step.table] = step
    return stage.model_copy(update=update)


def capture_dropped_rows(pipeline: Pipeline) -> Pipeline:
    """Return a pipeline in which late and bad rows become dead letters where the config drops them."""
    first = [n for n, p in pipeline.stage_pipelines.items() if not any(s.is_stage_output for s in p.sources)]
    stages = tuple(_keep_losses(s) if s.name in first else s for s in pipeline.stages)
    reader = next((s for s in stages if s.name == getattr(pipeline.transform, "name", None)), None)
    transform = reader or _keep_losses(pipeline.transform)
    changed = transform != pipeline.transform or stages != pipeline.stages
    if pipeline.dead_letter is not None and not changed:
        return pipeline
    dead_letter = {"dead_letter": pipeline.dead_letter or Target(connection=FilesConnection(), path="letters")}
    return pipeline.model_copy(update={"transform": transform, "stages": stages, **dead_letter})


def add_stage_targets(pipeline: Pipeline, stages: Iterable[str]) -> Pipeline:
    """Return a pipeline in which each of these stages has a target, from which a test can read its results."""
    running = {s.name for s in pipeline.running_stages}
    unwatched = [n for n in dict.fromkeys(stages) if n not in pipeline.published_stages and n in running]
    if not unwatched:
        return pipeline
    more = [
        Target(connection=FilesConnection(), path=n).model_copy(update={"name": WATCHED + n, "from_": n})
        for n in unwatched
    ]
    return pipeline.model_copy(update={"targets": (*(p.target for p in pipeline.per_target.values()), *more)})


# -- binding of the steps ------------------------------------------------------------------------------------------------


class CompiledSteps:
    """The operators of all steps of a pipeline, bound to the columns of their inputs with or without Spark.

    Args:
        pipeline: The pipeline.
        given_columns: The columns of sources that do not declare a schema, by source.
        session: The Spark session; None for a pipeline without SQL.

    Raises StartError if the pipeline has SQL but `session` is None.
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
        sql = step.event_time_column != "_event_ts" or any(map(stage_pipeline.sql_chain, stage_pipeline.input_paths))
        if self._session is not None and (sql or len(results) < len(stage_pipeline.sources)):
            from slackwater.testing.rows_with_spark import get_spark_row_preparer

            self.spark_preparers[name] = get_spark_row_preparer(
                self._session, stage_pipeline, {**given_columns, **results}
            )
            return self.spark_preparers[name].logic
        columns = {**self._columns, **{n: {f.name: f for f in fields} for n, fields in results.items()}}
        return operators.compile_step(stage_pipeline, {w.name: columns[w.origin] for w in stage_pipeline.input_paths})

    @property
    def first_row_preparer(self) -> SparkRowPreparer | None:
        """Return the row preparer of the first step; None if the step does not use Spark."""
        return self.spark_preparers.get(next(iter(self.operators)))

    def create_engine(self, name: str, stage_pipeline: Pipeline) -> Engine:
        """Return the engine that runs a step."""
        if name in self.spark_preparers:
            return LocalEngine(self.spark_preparers[name])
        inputs = {
            s.name: list(dict.fromkeys(w.name for w in stage_pipeline.input_paths_from(s.name)))
            for s in stage_pipeline.sources
        }
        future_ms = stage_pipeline.transform.step.max_future_ms
        plain = rows_without_spark.PolarsRowPreparer(self.operators[name], list(inputs), future_ms, inputs)
        return LocalEngine(plain)

    def source_frame(self, source: str, rows: Sequence[Row], now_us: int) -> pl.DataFrame:
        """Convert the rows of a source to a frame without Spark. Raises StartError if a row is a string.

        Args:
            source: The name of the source.
            rows: The rows.
            now_us: The processing time (µs).
        """
        if broken := [r for r in rows if isinstance(r, str)]:
            raise StartError(
                f'source "{source}": {broken[0][:80]!r} is a raw record, which only Spark can read; pass a Spark '
                "session as session=",
                Topic.TEST_UNUSABLE,
            )
        reader = next(p for p in self._pipeline.stage_pipelines.values() if p.input_paths_from(source))
        return rows_without_spark.build_frame(reader, source, rows, self._columns[source], now_us)  # type: ignore[arg-type]

    def replay_rows(self, letters: pl.DataFrame, now_us: int) -> Mapping[str, Any]:
        """Return the rows of dead letters by source, in the form that `Engine.replay_rows` expects.

        `now_us`: the processing time (µs).
        """
        if self.first_row_preparer is not None:
            from slackwater.connectors import dead_letter_restoration

            sources = [s.real for s in self.first_row_preparer.sources]
            return dead_letter_restoration.restore_source_frames(self.first_row_preparer.session, sources, letters)
        rows = [rows_without_spark.decode_dead_letter(value) for value in letters["value"]]
        name = self._pipeline.sources[0].name
        return {name: self.source_frame(name, rows, now_us).with_columns(letters["__letter"])}
