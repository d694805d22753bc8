"""A partly processed pipeline of three stages over two sources.

orders ─▶ sessions ─▶ minutes ─┐
       clicks ─────────────────┴▶ seen (join) ─▶ target
"""

from __future__ import annotations

from pathlib import Path

from tests.support.why_command_fixtures import NOON, build_user_event_rows

from slackwater.config import toml
from slackwater.testing.local_pipeline import LocalPipeline

TEXT = """name = "law"
[connections.lake]
kind = "files"
[[sources]]
name = "orders"
connection = "lake"
query = "orders/*.jsonl"
format = "json"
[[sources]]
name = "clicks"
connection = "lake"
query = "clicks/*.jsonl"
format = "json"
[[stages]]
name = "sessions"
from = "orders"
[stages.window]
kind = "session"
gap_ms = "10m"
max_session_duration_ms = "1h"
event_time_column = "ts"
lateness_ms = "1m"
group_by = ["user"]
[[stages.window.aggregations]]
agg = "count"
as = "n"
[[stages]]
name = "minutes"
from = "sessions"
[stages.window]
kind = "tumbling"
duration_ms = "1m"
max_groups_per_window = 10
group_by = ["user"]
[[stages.window.aggregations]]
agg = "count"
as = "sessions"
[[stages]]
name = "seen"
[stages.join]
kind = "left"
left_source = "minutes"
right_source = "clicks"
left_keys = ["user"]
right_keys = ["user"]
lower_ms = "0s"
upper_ms = "5m"
event_time_column = "ts"
lateness_ms = "30s"
[target]
connection = "lake"
path = "out"
[state_store]
kind = "files"
path = "state"
"""
SCHEMA = {"user": "string", "price": "decimal(10,2)"}
PARTS = {"orders": ("o-0", "o-1")}


def run_three_stage_pipeline(home: Path, text: str = TEXT) -> Path:
    """Run the pipeline and return the config file. Partition o-1 of the orders holds all watermarks."""
    file = home / "p.toml"
    file.write_text(text.replace('path = "state"', f'path = "{home / "state"}"'))
    with LocalPipeline(
        toml.load(file), SCHEMA, state_dir=str(home / "state"), capture_losses=False, clock_us=NOON
    ) as test:
        orders = [
            *build_user_event_rows("u1", "9:00", "9:05", "10:30", partition="o-0"),
            *build_user_event_rows("u2", "9:50", partition="o-1"),
        ]
        test.pipe({"orders": orders, "clicks": build_user_event_rows("u1", "9:00", "10:20")}, partitions=PARTS)
        test.quiet("45s")
        test.pipe({"clicks": build_user_event_rows("u1", "10:21")})
    return file


def run_one_more_epoch(file: Path) -> None:
    """Add a commit to the state."""
    state = str(file.parent / "state")
    with LocalPipeline(
        toml.load(file), SCHEMA, state_dir=state, capture_losses=False, clock_us=NOON + 60_000_000
    ) as test:
        test.pipe({"clicks": build_user_event_rows("u1", "10:22")})
