"""Reads the results or the state of a pipeline as one frame, from any system, without Spark.

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

from slackwater.config import toml
from slackwater.config.pipeline import Pipeline, resolve_connection
from slackwater.connectors.files.reader import read_path
from slackwater.connectors.result_reader import LabeledRows
from slackwater.errors import StartError, Topic
from slackwater.evolution.operator_from_state import restore_window
from slackwater.query.locate_state import locate_store
from slackwater.query.result_readers import result_reader
from slackwater.query.state_view import StateView

_URL = re.compile(r"postgres(ql)?://")


def read_rows_at_location(where: str) -> LabeledRows:
    """Read the rows at a location (see the module docstring). Raises StartError, StateError or ConfigError."""
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
            f"{pipeline.name}: its target is {connection.kind}, which cannot be read completely; name files, a table or state:FILE",
            Topic.OUTPUT_UNREADABLE,
        )
    label = f"{pipeline.name}, target {target.name}" if pipeline.targets else pipeline.name
    return LabeledRows(f"{label}: {output.label}", output.rows, identity)


def _read_path(where: str) -> LabeledRows:
    if "://" in where or (Path(where) / "_delta_log").is_dir():
        from slackwater.connectors.delta.reader import DeltaResultReader

        return DeltaResultReader(where, {}).read_all()
    return read_path(where)
