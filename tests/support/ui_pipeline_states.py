"""States for tests of the UI page: in-process runs of pipelines over two sources, one of them with partitions."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.local_pipeline_script import LocalResult, MicroBatch, QuietInterval, run_local_script

from slackwater.cli.why import format_report
from slackwater.config import toml
from slackwater.config.join import Join
from slackwater.config.window import Aggregation, Window
from slackwater.state.files.store import FilesStore
from slackwater.ui.page_model import PageSource

S = 1_000_000
M = 60 * S
DAY = 19_783 * 86_400 * S  # 2024-03-01
CLOCK = DAY + 12 * 3600 * S

BASE = """name = "law"
[connections.lake]
kind = "files"
[[sources]]
name = "web"
connection = "lake"
query = "web/*.jsonl"
format = "json"
lateness_ms = "30s"
[[sources]]
name = "app"
connection = "lake"
query = "app/*.jsonl"
format = "json"
[transform.window]
SHAPE
event_time_column = "ts"
lateness_ms = "1m"
source_idleness_ms = "2m"
group_by = ["user"]
[[transform.window.aggregations]]
agg = "count"
as = "clicks"
[target]
connection = "lake"
path = "out"
[state_store]
kind = "files"
path = "STATE"
"""
SHAPES = {
    "session": 'kind = "session"\ngap_ms = "10m"\nmax_session_duration_ms = "1h"',
    "short cap": 'kind = "session"\ngap_ms = "10m"\nmax_session_duration_ms = "12m"',
    "tumbling": 'kind = "tumbling"\nduration_ms = "5m"\nmax_groups_per_window = 12\non_state_cap = "drop_new_groups"',
    "hopping": 'kind = "hopping"\nduration_ms = "10m"\nhop_ms = "5m"\nmax_groups_per_window = 1000',
}
TYPES = {"user": "string"}
PARTITIONS = ("clicks-0", "clicks-1", "clicks-2")


def write_two_source_config(shape: str, home: Path, name: str = "p.toml") -> Path:
    file = home / name
    file.write_text(BASE.replace("SHAPE", SHAPES.get(shape, shape)).replace("STATE", str(home / "state")))
    return file


def open_page_source(file: Path) -> PageSource:
    pipeline = toml.load(file)
    assert pipeline.state_store is not None
    return PageSource(pipeline, str(file), FilesStore(pipeline.state_store.path or "", pipeline.name), format_report)


def run_two_source_pipeline(file: Path, script: Sequence[Any], **more: Any) -> LocalResult:
    pipeline = toml.load(file)
    assert pipeline.state_store is not None
    run_options: dict[str, Any] = {"lateness_ms": {"web": 30_000}, "flush": False, "clock_us": CLOCK}
    run_options["state_dir"] = pipeline.state_store.path
    window = pipeline.transform.window
    assert window is not None
    return run_local_script(window, script, TYPES, ("web", "app"), **{**run_options, **more})


def draw_two_source_script(seed: int, epochs: int = 11, rows: int = 40, users: int = 30) -> list[Any]:
    """Draw a script with out-of-order, late and bad rows, a partition that becomes silent, and quiet times."""
    dice = random.Random(seed)
    now_us, script = DAY + 9 * 3600 * S, list[Any]()
    names = [f"u{n}" for n in range(users)] + [None, "<script>alert(1)</script>", "a,user=b", 'q"&\u202e#?=%41', ""]
    silent = dice.randrange(epochs)
    for epoch in range(epochs):
        now_us += dice.choice([20 * S, 2 * M, 7 * M])
        rows_by_source: dict[str, list[dict[str, Any]]] = {"web": [], "app": []}
        for _ in range(dice.randrange(rows + 1)):
            ts: int | None = (
                now_us - dice.choice([0, 5 * S, 20 * S, 45 * S, M, 20 * M, 3 * 3600 * S]) - dice.randrange(S)
            )
            if dice.random() < 0.03:
                ts = None
            partitions = PARTITIONS[:-1] if epoch > silent else PARTITIONS
            if dice.random() < 0.5:
                rows_by_source["web"].append({"ts": ts, "user": dice.choice(names)})
            else:
                rows_by_source["app"].append(
                    {"ts": ts, "user": dice.choice(names), "partition": dice.choice(partitions)}
                )
        script.append(MicroBatch(rows_by_source, partitions={"app": PARTITIONS}, took_ms=dice.randrange(3000)))
        if dice.random() < 0.3:
            script.append(QuietInterval(dice.choice([1000, 50_000, 130_000])))
    return script


def run_order_payment_join(home: Path, seed: int = 1, epochs: int = 12, kind: str = "inner") -> None:
    """Run a join of orders and payments by user, and a count per minute after an inner join. The state is in `home`."""
    dice, now_us, script = random.Random(seed), DAY + 9 * 3600 * S, list[Any]()
    for _ in range(epochs):
        now_us += dice.choice([10 * S, 30 * S])
        rows = {
            side: [
                {
                    "ts": now_us - dice.choice([0, 5 * S, 20 * S, 50 * S]) - dice.randrange(S),
                    "user": f"u{dice.randrange(9) ** 2 // 9}",
                }
                for _ in range(dice.randrange(10, 60))
            ]
            for side in ("orders", "payments")
        }
        script.append(MicroBatch(rows, took_ms=dice.randrange(20_000)))
    join = Join(
        kind=kind,
        left_source="orders",
        right_source="payments",
        left_keys=["user"],
        right_keys=["user"],
        time_window_ms="2m",
        event_time_column="ts",
        lateness_ms="30s",
    )
    after = Window(
        kind="tumbling",
        duration_ms=60_000,
        max_groups_per_window=999,
        group_by=["left_user"],
        aggregations=[Aggregation(agg="count", as_="n")],
    )
    more: dict[str, Any] = {"downstream": after} if kind == "inner" else {}
    run_local_script(
        join, script, TYPES, ("orders", "payments"), flush=False, state_dir=str(home), clock_us=CLOCK, **more
    )
