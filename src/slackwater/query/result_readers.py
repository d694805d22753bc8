"""Read results without Spark or a lock, from the target of a pipeline or from any location.

`result_reader` first reads the published results of a pipeline, and then only new results:

target     first read                                  later reads
files      the files that this pipeline wrote          files that did not exist before
Delta      the latest version of the table             rows of added files that no removed file had
Iceberg    the current snapshot of the table           rows of added files that no removed file had
Postgres   the table                                   rows whose transaction the last read did not see
Kafka      the latest records, one per key             new records

`read_rows_at_location` reads everything at a location as one frame:

out/sessions, x.parquet, x.jsonl, x.csv      files, or a directory of them
lake/sessions                                a Delta table
postgresql://host/db#schema.table            a table
sessions.toml, sessions.toml#hours           the target of a pipeline, by name if there are several
state:sessions.toml, state:DIR, state:URL    the open and retained windows of a state
"""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import polars as pl

from slackwater.config import toml
from slackwater.config.pipeline import Pipeline, resolve_connection
from slackwater.connectors.connector import connector_for
from slackwater.connectors.files.reader import read_path
from slackwater.connectors.result_reader import LabeledRows, ResultReader
from slackwater.errors import StartError, Topic
from slackwater.evolution.operator_from_state import restore_window
from slackwater.query.locate_state import locate_store
from slackwater.query.state_view import StateView

TIMES = ("window_start", "window_end")
_URL = re.compile(r"postgres(ql)?://")


def result_reader(pipeline: Pipeline) -> ResultReader:
    """Return a reader for the first or only target of a pipeline.

    Raises StartError if the target stores nothing that can be read.
    """
    connection = resolve_connection(pipeline.target.connection, pipeline.connections)
    assert connection is not None, "the config was checked"
    return connector_for(connection).result_reader(pipeline.target, pipeline, pipeline.writers)


def read_all_results(pipeline: Pipeline, target: str | None = None) -> pl.DataFrame:
    """Return all rows of a target in the order of their windows. Before the first publish, the frame has no columns.

    `target`: the name of the target; None for the only one.
    Raises StartError if the target stores nothing that can be read.
    """
    window = pipeline.target_stage.transform.window
    with closing(result_reader(pipeline.one_target(target))) as reader:
        rows = reader.read()
    if rows is None:
        return pl.DataFrame()
    return sort_by_start(rows, None if window is None else window.window_start_column)


def sort_by_start(frame: pl.DataFrame, start: str | None) -> pl.DataFrame:
    """Parse times stored as text, and sort rows by the window start column `start`, if it exists."""
    texts = [c for c in {start, *TIMES} if c in frame.columns and frame.schema[c] == pl.String]
    frame = frame.with_columns(
        pl.col(c).str.to_datetime("%Y-%m-%dT%H:%M:%S%.fZ", time_unit="us", time_zone="UTC", strict=False) for c in texts
    )
    by = [c for c in (start, *frame.columns) if c is not None and c in frame.columns]
    sortable = [c for c in dict.fromkeys(by) if not frame.schema[c].is_nested()]
    if start is None or start not in frame.columns:
        return frame
    return frame.sort(sortable, nulls_last=False, maintain_order=True)


def read_rows_at_location(where: str) -> LabeledRows:
    """Read the rows at a location, in a form that the module docstring lists.

    Raises StartError, StateError or ConfigError if the rows cannot be read.
    """
    if where.startswith("state:"):
        return _read_state(where.removeprefix("state:"))
    if _URL.match(where):
        from slackwater.connectors.postgres.reader import PostgresResultReader
        from slackwater.state.postgres import client

        url, _, table = where.partition("#")
        if not table:
            raise StartError(
                f"{client.server_address(url)}: the URL does not name a table; append it, as in postgresql://…/database#schema.table",
                Topic.OUTPUT_UNREADABLE,
            )
        return PostgresResultReader(url, table).read_all()
    path = Path(where)
    if path.suffix == ".toml" and not path.is_dir():
        return _read_pipeline_target(toml.load(path).one_target())
    file, _, name = where.rpartition("#")
    if file.endswith(".toml") and not path.exists():
        return _read_pipeline_target(toml.load(Path(file)).one_target(name))
    return _read_path(where)


def _read_state(where: str) -> LabeledRows:
    place, _, name = where.partition("#")
    store = locate_store(place, name or None)
    with closing(store), StateView(store) as view:
        rows, commit = view.scan(), view.manifest()
    identity = restore_window(commit, -1).identity
    label = f"state of {commit.pipeline} in epoch {commit.epoch}"
    return LabeledRows(label, rows.select(c for c in rows.columns if not c.startswith("_")), identity)


def _read_pipeline_target(pipeline: Pipeline) -> LabeledRows:
    target, window = pipeline.target, pipeline.target_stage.transform.window
    connection = resolve_connection(target.connection, pipeline.connections)
    identity = None if window is None else (*window.group_by, window.window_start_column)
    assert connection is not None, "the config was checked"
    with closing(result_reader(pipeline)) as reader:
        output = reader.read_all()
    if output is None:
        raise StartError(
            f"{pipeline.name}: the target ({connection.kind}) cannot be read back; pass files, a table or state:FILE",
            Topic.OUTPUT_UNREADABLE,
        )
    label = f"{pipeline.name}, target {target.name}" if pipeline.targets else pipeline.name
    return LabeledRows(f"{label}: {output.label}", output.rows, identity)


def _read_path(where: str) -> LabeledRows:
    if "://" in where or (Path(where) / "_delta_log").is_dir():
        from slackwater.connectors.delta.reader import DeltaResultReader

        return DeltaResultReader(where, {}).read_all()
    return read_path(where)
