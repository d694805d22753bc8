"""The description of journals for Slackwater. `slackwater check` imports this module, so the import must be fast."""

from __future__ import annotations

from typing import Literal

from journal_connector.offsets import JournalOffsets
from slackwater.config.config_key import declare_key
from slackwater.config.connection import Connection
from slackwater.config.connector_description import ConnectorDescription, ConnectorKeys, StartPosition, absolute_path
from slackwater.config.value_parsers import choice_parser, integer_parser, parse_flag, parse_text
from slackwater.core.paths import build_openlineage_dataset


class JournalConnection(Connection):
    """Journals."""

    kind: Literal["journal"] = "journal"
    encoding: str = declare_key(
        choice_parser("utf-8", "latin-1"), "How the text of a journal is encoded.", required='as in "utf-8"'
    )


class JournalSourceKeys(ConnectorKeys):
    """The keys that only a source in a journal has."""

    topic_prefix: str = declare_key(
        parse_text, "Reads only the entries whose `topic` begins with this text.", default=""
    )
    skip_lines: int = declare_key(integer_parser(0), "The number of lines at the start that are not read.", default=0)


class JournalTargetKeys(ConnectorKeys):
    """The keys that only a target in a journal has."""

    sync: bool = declare_key(parse_flag, "Waits until the disk has stored each epoch; true by default.", default=True)


JOURNAL = ConnectorDescription(
    kind="journal",
    connection=JournalConnection,
    connector="journal_connector.connector:JournalConnector",
    keeps_history=True,
    query_is_path=True,
    keys=("schema_", "starting_offsets", "max_messages_per_trigger"),
    source_keys=JournalSourceKeys,
    offsets=JournalOffsets,
    start=StartPosition("earliest", no_offsets_reason="a journal begins at its first line"),
    short_name=lambda s: f"journal {s.query}",
    plan_text=lambda s: f"journal {s.query}",
    source_datasets=lambda connection, query: [build_openlineage_dataset(query)],
    target_keys=("path",),
    required_target_key=("path", 'a journal target needs a file, as in "out/totals.journal"'),
    own_target_keys=JournalTargetKeys,
    location_text=lambda t: f'journal "{absolute_path(t.path)}"',
    write_text=lambda t, adds, within: f'journal "{absolute_path(t.path)}", one entry per epoch',
    target_dataset=lambda connection, t: build_openlineage_dataset(t.path or ""),
)
