"""Description of the connector for Iceberg tables as sources and targets, based on the library PyIceberg."""

from __future__ import annotations

from slackwater.config.connection import IcebergConnection
from slackwater.config.connector_description import ConnectorDescription, Dataset
from slackwater.connectors.lake_tables import describe_table_source


def _dataset(connection: IcebergConnection, name: str) -> Dataset:
    """Return a table of a catalog as an OpenLineage dataset.

    The namespace is the catalog's address, as in OpenLineage's Spark listener. For a catalog without an address, it is
    the catalog's kind.
    """
    address = connection.options.get("uri") or connection.options.get("warehouse") or connection.catalog
    scheme, _, rest = address.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}" if rest else address, name


ICEBERG = ConnectorDescription(
    kind="iceberg",
    connection=IcebergConnection,
    connector="slackwater.connectors.iceberg.connector:IcebergConnector",
    **describe_table_source("Iceberg", "snapshots"),
    source_datasets=lambda connection, query: [_dataset(connection, query)],
    target_keys=("table", "mode"),
    required_target_key=("table", 'an iceberg target needs a table in a namespace, as in "shop.sessions"'),
    location_text=lambda t: f"Iceberg table {t.table}",
    write_text=lambda t, adds, within: f"Iceberg table {t.table}, {'append' if adds else t.mode or 'merge'}",
    append_only_text='an iceberg target with mode = "append"',
    target_dataset=lambda connection, t: _dataset(connection, t.table or ""),
)
