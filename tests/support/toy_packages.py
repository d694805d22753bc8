"""User packages, installed into a directory without pip: their files, and the metadata with their entry points."""

from __future__ import annotations

import shutil
from pathlib import Path

CONFIG = """name = "totals"

[connections.log]
kind = "journal"
encoding = "utf-8"

[[sources]]
name = "orders"
connection = "log"
query = "orders.journal"
schema = "topic STRING, user STRING, amount BIGINT, ts TIMESTAMP"
topic_prefix = "order"
max_messages_per_trigger = 20

[transform]
on_error = "dlq"
sql = "SELECT user, amount, ts, _event_ts FROM source"

[transform.window]
kind = "tumbling"
duration = "10s"
lateness = "5s"
event_time_column = "ts"
group_by = ["user"]
max_groups_per_window = 100
aggregations = [{ agg = "sum", column = "amount", as = "amount" }, { agg = "count", as = "orders" }]

[target]
connection = "log"
path = "out/totals.journal"
sync = true

[dead_letter]
connection = "log"
path = "out/letters.journal"

[state_store]
kind = "files"
path = "state"
"""
SOURCES = Path(__file__).parent / "toy_package"


def install_journal_connector(site: Path) -> None:
    """Install the package `journal-connector`, which has the connector "journal"."""
    shutil.copytree(
        SOURCES / "journal_connector", site / "journal_connector", ignore=shutil.ignore_patterns("__pycache__")
    )
    write_package_metadata(site, "journal-connector", "journal = journal_connector.description:JOURNAL")


def write_package_metadata(site: Path, package: str, *entry_points: str) -> None:
    """Write the metadata of a package. `entry_points`: lines `kind = module:attribute`."""
    folder = site / f"{package.replace('-', '_')}-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("\n".join(["[slackwater.connectors]", *entry_points, ""]))
