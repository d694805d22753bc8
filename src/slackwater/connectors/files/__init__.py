"""Description of the connector for files as sources and targets, on a local disk or in an object store."""

from __future__ import annotations

from slackwater.config.connection import FilesConnection
from slackwater.config.connector_description import ConnectorDescription, StartPosition, absolute_path
from slackwater.core.offsets import FileOffsets
from slackwater.core.paths import build_openlineage_dataset

FILES = ConnectorDescription(
    kind="files",
    connection=FilesConnection,
    connector="slackwater.connectors.files.connector:FilesConnector",
    keeps_history=True,
    exposes_files=True,
    query_is_path=True,
    keys=("format", "max_files_per_trigger", "schema_"),
    offsets=FileOffsets,
    start=StartPosition(
        from_first=True, position_text="at its first file", default_text="begins with the first of its files"
    ),
    short_name=lambda s: f"files {s.query}",
    plan_text=lambda s: f"{s.format} files {s.query}",
    batch_limit=lambda s: s.max_files_per_trigger,
    source_datasets=lambda connection, query: [build_openlineage_dataset(query)],
    target_keys=("path", "format"),
    required_target_key=("path", 'a files target needs a directory, as in "out/sessions"'),
    location_text=lambda t: f'"{absolute_path(t.path)}"',
    write_text=lambda t, adds, within: f'{t.format or "parquet"} files in "{absolute_path(t.path)}", one per epoch',
    target_dataset=lambda connection, t: build_openlineage_dataset(t.path or ""),
)
