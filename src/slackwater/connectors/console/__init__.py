"""Description of the connector for the console as a target."""

from __future__ import annotations

from slackwater.config.connection import ConsoleConnection
from slackwater.config.connector_description import ConnectorDescription

CONSOLE = ConnectorDescription(
    kind="console",
    connection=ConsoleConnection,
    connector="slackwater.connectors.console.connector:ConsoleConnector",
    at_least_once_reason=lambda t: "at least once: a console cannot take back what it printed",
)
