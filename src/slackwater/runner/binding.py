"""Each step of a pipeline bound to the columns that are there: event time, SQL, and the window or join over what comes out.

columns of sources ──▶ bind ──▶ step ──▶ columns of its results ──▶ bind ──▶ the steps that read them ──▶ …
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from slackwater.config.connectors import CONNECTORS
from slackwater.config.pipeline import Pipeline, resolve
from slackwater.config.source import Source
from slackwater.config.spelling import show
from slackwater.config.ways import Way
from slackwater.core.reserved import collisions
from slackwater.core.schema import Field
from slackwater.engine.far_dates import FarDates
from slackwater.engine.kill_points import Faults
from slackwater.engine.protocol import Engine
from slackwater.engine.stage import Stage
from slackwater.errors import StartError
from slackwater.operators.base import Operator
from slackwater.operators.known import compile_step
from slackwater.sources.streams import AnySource
from slackwater.spark import analysis, columns
from slackwater.spark.engine import SparkEngine
from slackwater.spark.rows import StepRows
from slackwater.state.protocol import StateStore
from slackwater.windows.aggregations import quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Frames = Mapping[str, "DataFrame"]  # by the name of a source or a stage: a DataFrame of its columns


class Bound(NamedTuple):
    """A step that can run. `own`: the step alone, see `Pipeline.alone`; `times`: per origin the SQL of its event time."""

    own: Pipeline
    operator: Operator
    times: Mapping[str, str]
    frames: Frames

    def engine(self, session: SparkSession, refresh: Callable[[], None] = lambda: None) -> SparkEngine:
        """What runs it on Spark. Raises StartError. `refresh`: re-reads lookups."""
        carried = _carrying(self, session) if self.own.carries_origin else {}
        rows = StepRows(session, self.own, self.operator, self.times, carried, self.end(session))
        return SparkEngine(rows, refresh)

    def end(self, session: SparkSession) -> str | None:
        """SQL over what comes out of the SQL for how far a row reaches, where each brings its own gap. Raises StartError."""
        window = self.own.transform.window
        if window is None or not isinstance(window.gap_ms, str):
            return None
        every = [analysis.end_expression(self.own, session, w, self.frames[w.origin]) for w in self.own.ways]
        return every[0]


def frames_of(session: SparkSession, sources: Sequence[AnySource]) -> dict[str, DataFrame]:
    """The columns of sources, as DataFrames without rows."""
    return {s.name: session.createDataFrame([], s.schema) for s in sources}


def bind(own: Pipeline, session: SparkSession, frames: Frames) -> Bound:
    """A step alone, bound to the columns of its origins. Raises StartError for what is not there or does not fit, by name."""
    for source in own.sources:
        _check_names(own, source.name, frames[source.name].columns)
    times = {s.name: _time(own, session, s, frames[s.name]) for s in own.sources}
    outputs = {way.key: analysis.check_sql(session, own, way, frames[way.origin]) for way in own.ways}
    inputs: dict[str, dict[str, Field]] = {}
    for way in own.ways:
        inputs.setdefault(way.name, outputs[way.key])
    operator = compile_step(own, inputs)
    for together in _read_alike(own):
        which = operator.input_of(together[0].name)
        analysis.check_same_columns(own, {w.key: outputs[w.key] for w in together}, columns.needed(operator, which))
    return Bound(own, operator, times, {s.name: frames[s.name] for s in own.sources})


def _check_names(own: Pipeline, source: str, columns: Sequence[str]) -> None:
    """Raise StartError if a source has a column whose name is taken."""
    if taken := collisions(columns):
        raise StartError(
            f'{own.name}: source "{source}": found a column named {show(taken[0])}, a name that Slackwater uses for a column of its '
            "own; rename the column where it is written"
        )


def bind_all(pipeline: Pipeline, session: SparkSession, sources: Sequence[AnySource]) -> dict[str, Bound]:
    """All steps by name, in the order in which rows pass them. Raises StartError."""
    frames, found = frames_of(session, sources), dict[str, Bound]()
    for name, own in pipeline.alone.items():
        found[name] = bind(own, session, frames)
        fields = found[name].operator.row_columns
        frames[name] = session.createDataFrame([], ", ".join(f"{quote(f.name)} {f.type}" for f in fields))
    return found


def stages_of(
    steps: Mapping[str, Bound], engines: Mapping[str, Engine], store: StateStore, faults: Faults
) -> list[Stage]:
    """All steps, on what runs them."""
    return [
        Stage(
            name,
            one.own,
            one.operator,
            store,
            engines[name],
            faults.in_worker,
            number,
            far_dates=FarDates(one.own),
        )
        for number, (name, one) in enumerate(steps.items())
    ]


def _read_alike(own: Pipeline) -> list[list[Way]]:
    """The ways that have to bring the same columns: all to a window, those to one side of a join."""
    if own.transform.join is None:
        return [list(own.ways)]
    return [[w for w in own.ways if w.name == side] for side in own.transform.join.sources]


def _time(own: Pipeline, session: SparkSession, source: Source, frame: DataFrame) -> str:
    """The event time of a source's rows, as SQL; results of a stage bring their own."""
    if source.of_stage and not all(s.of_stage for s in own.sources):
        return quote("_event_ts")
    connection = resolve(source.connection, own.connections)
    has_clock = connection is not None and CONNECTORS[connection.kind].own_clock
    return analysis.time_expression(own, session, source.name, frame, has_clock)


def _carrying(one: Bound, session: SparkSession) -> dict[str, tuple[str, ...]]:
    """Per way the SQL that `late_data = "dlq"` runs: with `_origin` carried through."""
    found = {w.key: analysis.check_origin(session, one.own, w, one.frames[w.origin]) for w in one.own.ways}
    return {key: texts for key, texts in found.items() if texts is not None}


__all__ = ["Bound", "Frames", "bind", "bind_all", "frames_of", "stages_of"]
