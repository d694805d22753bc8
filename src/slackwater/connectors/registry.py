"""Creates the connector of a connection. Each kind of system is described once, see `config.connector_description`."""

from __future__ import annotations

from typing import Any

from slackwater.config.connection import Connection
from slackwater.config.connector_description import CONNECTORS
from slackwater.connectors.connector import Connector
from slackwater.core.connector_table import load_object


def connector_class(kind: str) -> type[Connector[Any]]:
    """Return the class of a connector, and import the modules of its system."""
    connector: type[Connector[Any]] = load_object(CONNECTORS[kind].connector)
    return connector


def connector_for(connection: Connection) -> Connector[Any]:
    return connector_class(connection.kind)(connection)
