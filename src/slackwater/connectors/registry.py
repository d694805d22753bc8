"""Create the connector for a connection. Each kind of system has one description (`config.connector_description`)."""

from __future__ import annotations

from typing import Any

from slackwater.config.connection import Connection
from slackwater.config.connector_description import CONNECTORS
from slackwater.connectors.connector import Connector
from slackwater.core.connector_table import load_object


def connector_class(kind: str) -> type[Connector[Any]]:
    """Import the modules for a kind of system, and return its connector class."""
    connector: type[Connector[Any]] = load_object(CONNECTORS[kind].connector)
    return connector


def connector_for(connection: Connection) -> Connector[Any]:
    return connector_class(connection.kind)(connection)
