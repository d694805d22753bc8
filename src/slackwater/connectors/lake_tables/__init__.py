"""Code shared by the connectors for versioned tables (Delta and Iceberg). This module describes their sources."""

from __future__ import annotations

from typing import Any

from slackwater.config.connector_description import SourceKeys, StartPosition
from slackwater.core.offsets import LakeTableOffsets


def describe_table_source(name: str, version: str) -> dict[str, Any]:
    """Return the fields of a `ConnectorDescription` for sources that are tables.

    `name`: the name of the table format. `version`: the format's word for versions, in the plural, such as "snapshots".
    """

    def text(s: SourceKeys) -> str:
        return f"{name} table {s.query}"

    return {
        "keeps_history": True,
        "exposes_files": True,
        "is_table": True,
        "keys": ("max_files_per_trigger", "starting_offsets", "starting_version", "on_rewrite", "schema_changes"),
        "offsets": LakeTableOffsets,
        "start": StartPosition(
            "earliest",
            default_text="begins with its current content, or with the next change",
            no_offsets_reason=f"{name} tables start at one of their {version}; use starting_version",
        ),
        "short_name": text,
        "plan_text": text,
        "batch_limit": lambda s: s.max_files_per_trigger,
        "upserts": lambda t, window: t.mode != "append",
        "returns_windows": True,
    }
