"""The plan of a backfill: the time range, how far beyond it rows are read, and the pipeline to run."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from slackwater import explain
from slackwater.config.connection import FilesConnection
from slackwater.config.connector_description import CONNECTORS
from slackwater.config.pipeline import Pipeline, resolve_connection
from slackwater.config.target import Target as TargetSpec
from slackwater.config.window import Window
from slackwater.core.humanize import format_iso, mismatch
from slackwater.errors import StartError, Topic


@dataclass(frozen=True)
class BackfillRange:
    """The range of a backfill: windows that start in [since_us, until_us), µs UTC.

    Args:
        reach_us: How far beyond each end of the range rows are read.
        slack_us: How far the timestamp of a Kafka record may be from the event time.
    """

    since_us: int
    until_us: int
    reach_us: int
    slack_us: int

    @property
    def rows_us(self) -> tuple[int, int]:
        """The range of event times (µs) to read, as (start, end). The end is not included."""
        return self.since_us - self.reach_us, self.until_us + self.reach_us

    @property
    def records_ms(self) -> tuple[int, int]:
        """The range of record times (ms) of the Kafka records to read, as (start, end). The end is not included."""
        low, high = self.rows_us
        return (low - self.slack_us) // 1000, -((-high - self.slack_us) // 1000)


def reach_us(window: Window) -> int:
    """Return how far (µs) beyond the range the rows of a window that starts in the range may lie.

    For sessions this is the cap plus the gap, so that a session that extends into the range is complete. If the gap is
    a column, it is assumed to be as long as the cap.
    """
    if window.kind != "session":
        return 1000 * (window.duration_ms or 0)
    cap = window.max_session_duration_ms or 0
    return 1000 * (cap + (window.gap_ms if isinstance(window.gap_ms, int) else cap))


def backfill_pipeline(pipeline: Pipeline, since_us: int, until_us: int, into: str | None) -> Pipeline:
    """Return the pipeline of a backfill, with a different name, without dead letters, and with the target `into`.

    The name determines the location of the state, so the state of the running pipeline is not affected.

    Raises:
        StartError: A source cannot be read again, or the target would contain windows twice.
    """
    pipeline = pipeline.one_target()
    name, window = pipeline.name, pipeline.transform.window
    if since_us >= until_us:
        raise StartError(
            f"{name}: --from {format_iso(since_us)} is not before --to {format_iso(until_us)}; pass an earlier "
            "--from or a later --to",
            Topic.BACKFILL,
        )
    if window is None or pipeline.stages:
        raise StartError(
            f"{name}: a backfill selects windows by their start; "
            + mismatch(
                "stages"
                if pipeline.stages
                else f"[{step.CONFIG_PATH}]"
                if (step := pipeline.transform.stateful)
                else "SQL alone",
                "only [transform.window]",
            ),
            Topic.BACKFILL,
        )
    if window.time_mode == "processing":
        raise StartError(
            f'{name}: a backfill needs event times, but time_mode = "processing" uses the time at which a row is read; '
            'expected time_mode = "event"',
            Topic.BACKFILL,
        )
    for source in pipeline.sources:
        connection = resolve_connection(source.connection, pipeline.connections)
        if connection is None or not CONNECTORS[connection.kind].keeps_history:
            kind = "a DataFrame" if connection is None else connection.kind
            raise StartError(
                f'{name}: source "{source.name}" reads {kind}, which keeps no history; expected kafka, files, delta or '
                "iceberg",
                Topic.BACKFILL,
            )
    target, connections = _target(pipeline, into), dict(pipeline.connections)
    kind = explain.connection_kind(pipeline.target, pipeline)
    same = (target.path, target.table, target.topic) == (
        pipeline.target.path,
        pipeline.target.table,
        pipeline.target.topic,
    )
    if not pipeline.target.upserts(kind, window) and same:
        raise StartError(
            f"{name}: its target, {explain.describe_result_location(pipeline)}, is append-only and may already contain the windows of "
            "the range; name another target with --into",
            Topic.BACKFILL,
        )
    if kind == "console":
        connections["backfill"] = FilesConnection()
    of_several = bool(pipeline.targets)  # then the backfill of each target has a separate state
    window_changes = {"late_data": "drop"} if window.late_data == "dlq" else {}
    on_error = "drop" if pipeline.transform.on_error == "dlq" else pipeline.transform.on_error
    transform = {"window": window.model_copy(update=window_changes), "on_error": on_error}
    return pipeline.model_copy(
        update={
            "name": f"{name}-backfill-{_stamp(since_us)}-{_stamp(until_us)}"
            + (f"-{target.name}" if of_several else ""),
            "connections": connections,
            "sources": tuple(s.model_copy(update={"commit_group": None}) for s in pipeline.sources),
            "transform": pipeline.transform.model_copy(update=transform),
            "target": target,
            "targets": (),
            "dead_letter": None,
        }
    )


def _target(pipeline: Pipeline, into: str | None) -> TargetSpec:
    """Return the target with `into` as its path, table or topic.

    A console target is replaced with a target that writes Parquet files.
    """
    target, kind = pipeline.target, explain.connection_kind(pipeline.target, pipeline)
    if into is None:
        return target
    if kind == "console":
        return TargetSpec(connection="backfill", path=into, format="parquet")
    required = CONNECTORS[kind].required_target_key
    return target if required is None else target.model_copy(update={required[0]: into})


def _stamp(us: int) -> str:
    moment = dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=us)
    return f"{moment:%Y%m%dT%H%M%S}{f'.{moment.microsecond:06}' if moment.microsecond else ''}Z"
