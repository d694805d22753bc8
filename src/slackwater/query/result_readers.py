"""Reads the published results of a pipeline from its target, and later the new ones, without Spark or a lock.

target     read at first                               new rows
files      the files that this pipeline wrote          files that did not exist before
Delta      the table's latest version                  rows of added files that no removed file had
Iceberg    the table's current snapshot                likewise
Postgres   the table                                   rows whose transaction the last read did not see
Kafka      the end of the topic, latest per key        the records after that
"""

from __future__ import annotations

import polars as pl

from slackwater.config.pipeline import Pipeline, resolve_connection
from slackwater.connectors.connector import connector_for
from slackwater.connectors.result_reader import ResultReader

TIMES = ("window_start", "window_end")


def result_reader(pipeline: Pipeline) -> ResultReader:
    """Return a reader for the target of a pipeline, or for the first of several (see `Pipeline.per_target`).

    Raises StartError for a target that does not store anything.
    """
    connection = resolve_connection(pipeline.target.connection, pipeline.connections)
    assert connection is not None, "the config was checked"
    return connector_for(connection).result_reader(pipeline.target, pipeline, pipeline.writers)


def read_all_results(pipeline: Pipeline, target: str | None = None) -> pl.DataFrame:
    """Return all rows of a target in the order of their windows. Before the first publish, the frame has no columns.

    Raises StartError for a target that does not store anything.
    """
    window = pipeline.target_stage.transform.window
    results = result_reader(pipeline.one_target(target))
    try:
        rows = results.read()
    finally:
        results.close()
    return (
        pl.DataFrame() if rows is None else sort_by_start(rows, None if window is None else window.window_start_column)
    )


def sort_by_start(frame: pl.DataFrame, start: str | None) -> pl.DataFrame:
    """Sort rows by their window start, if they have one. Times stored as text are parsed."""
    texts = [c for c in {start, *TIMES} if c in frame.columns and frame.schema[c] == pl.String]
    frame = frame.with_columns(
        pl.col(c).str.to_datetime("%Y-%m-%dT%H:%M:%S%.fZ", time_unit="us", time_zone="UTC", strict=False) for c in texts
    )
    by = [c for c in (start, *frame.columns) if c is not None and c in frame.columns]
    sortable = [c for c in dict.fromkeys(by) if not frame.schema[c].is_nested()]
    if start is None or start not in frame.columns:
        return frame
    return frame.sort(sortable, nulls_last=False, maintain_order=True)
