"""Description of the connector for Delta tables as sources and targets.

The library deltalake writes the tables; `snapshots.py` reads their log.
"""

from __future__ import annotations

from slackwater.config.connection import DeltaConnection
from slackwater.config.connector_description import ConnectorDescription, absolute_path
from slackwater.connectors.lake_tables import describe_table_source
from slackwater.core.paths import build_openlineage_dataset

DELTA = ConnectorDescription(
    kind="delta",
    connection=DeltaConnection,
    connector="slackwater.connectors.delta.connector:DeltaConnector",
    **describe_table_source("Delta", "versions"),
    query_is_path=True,
    source_datasets=lambda connection, query: [build_openlineage_dataset(query)],
    target_keys=("path", "mode"),
    required_target_key=("path", 'a delta target needs a directory, as in "lake/sessions"'),
    location_text=lambda t: f'Delta table "{absolute_path(t.path)}"',
    write_text=lambda t, adds, within: (
        f'Delta table "{absolute_path(t.path)}", {"append" if adds else t.mode or "merge"}'
    ),
    append_only_text='a delta target with mode = "append"',
    target_dataset=lambda connection, t: build_openlineage_dataset(t.path or ""),
)
