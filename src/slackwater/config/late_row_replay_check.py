"""Checks whether `dlq replay` can correct windows in the target, using the dead letters of late rows."""

from __future__ import annotations

from collections.abc import Iterator

from slackwater.config.connector_description import CONNECTORS
from slackwater.config.pipeline import Pipeline, resolve_connection
from slackwater.config.step_base import KeyedStep
from slackwater.config.window import Window

EXPECTED = 'expected a Postgres table, or a Delta or Iceberg table with mode = "merge"'


def find_replay_obstacle(pipeline: Pipeline) -> str | None:
    """Return why `dlq replay` cannot apply the late rows of a pipeline, and what would allow it; None if it can."""
    if len(pipeline.stage_pipelines) > 1:
        return "the pipeline has several stages, and results that a stage has read cannot be corrected; expected a pipeline of one stage"
    step = pipeline.transform.step
    if pipeline.transform.join is not None:
        return "the rows of a join are final; expected a window"
    if isinstance(step, KeyedStep):
        return f"the state that late rows of a {step.kind} stage belong to is gone; expected a window"
    if not isinstance(step, Window):
        return None
    targets = [(stage_pipeline.target, _kind(stage_pipeline)) for stage_pipeline in pipeline.per_target.values()]
    adds = [one for one in targets if not one[0].upserts(one[1], step)]
    readable = [one for one in targets if one not in adds and CONNECTORS[one[1]].returns_windows]
    is_marked = step.emit_metadata and len(targets) > 1  # an append-only target marks rows that are written again
    if readable and (is_marked or not adds):
        return None
    target, kind = next(iter(adds or targets))
    restriction = "is append-only" if adds else "cannot be read back"
    return f"they correct windows in the target, but the target ({CONNECTORS[kind].location_text(target)}) {restriction}; {EXPECTED}"


def describe_replay_limits(pipeline: Pipeline) -> Iterator[str]:
    """Yield notes about `late_data = "dlq"` that are useful before the first late row."""
    if any(stage_pipeline.transform.step.late_data == "dlq" for stage_pipeline in pipeline.stage_pipelines.values()):
        why = find_replay_obstacle(pipeline)
        if why is not None:
            yield f'late_data = "dlq" keeps late rows for inspection only, and dlq replay cannot apply them: {why}'


def _kind(pipeline: Pipeline) -> str:
    connection = resolve_connection(pipeline.target.connection, pipeline.connections)
    return "console" if connection is None else connection.kind
