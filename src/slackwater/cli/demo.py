"""`demo`: a day of clicks, sessions and five-minute counts, and what to try next."""

from __future__ import annotations

import datetime as dt
import json
import logging
import math
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from slackwater.cli import view as views
from slackwater.cli.runner import run_pipeline
from slackwater.config import toml
from slackwater.engine.status import Status
from slackwater.errors import StartError

MORNING = dt.datetime(2024, 3, 1, 6)
HOURS = 12
FILES = 6
PAGES = ("/", "/search", "/cart", "/checkout", "/help", "/offers", "/item/17", "/item/23", "/item/42")

SOURCES = """
[connections.lake]
kind = "files"

[[sources]]
name = "web"
connection = "lake"
query = "{home}/web/*.jsonl"
format = "json"
schema = "user_id STRING, page STRING, ts TIMESTAMP"
max_files_per_trigger = 1

[[sources]]
name = "app"                       # falls silent after a third of the day
connection = "lake"
query = "{home}/app/*.jsonl"
format = "json"
schema = "user_id STRING, page STRING, ts TIMESTAMP"
max_files_per_trigger = 1
"""

SESSIONS = """name = "demo-sessions"
{sources}
[transform.window]
kind = "session"
gap_ms = "10m"
max_session_duration_ms = "4h"
event_time_column = "ts"
lateness_ms = "30s"
group_by = ["user_id"]

[[transform.window.aggregations]]
agg = "count"
as = "clicks"

[[transform.window.aggregations]]
agg = "count_distinct"
column = "page"
as = "pages"

[[transform.window.aggregations]]
agg = "last"
column = "page"
as = "left_at"

[target]
connection = "lake"
path = "{home}/out/sessions"

[state_store]
kind = "files"
path = "{home}/state"
"""

COUNTS = """name = "demo-counts"
{sources}
[transform.window]
kind = "tumbling"
duration_ms = "5m"
event_time_column = "ts"
lateness_ms = "30s"
max_groups_per_window = 10

[[transform.window.aggregations]]
agg = "count"
as = "clicks"

[[transform.window.aggregations]]
agg = "count_distinct"
column = "user_id"
as = "users"

[target]
connection = "lake"
path = "{home}/out/counts"

[state_store]
kind = "files"
path = "{home}/state"
"""


def run_demo(keep: Path | None, rows: int) -> None:
    """Generate, run, show."""
    console = Console()
    began = time.monotonic()
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise StartError(f"{keep} is not empty; name a new directory for --keep")
    home = keep.resolve() if keep is not None else Path(tempfile.mkdtemp(prefix="slackwater-demo-"))
    home.mkdir(parents=True, exist_ok=True)
    total = generate(home, rows)
    console.print(f"{total:,} clicks of two sources, out of order by up to 20 seconds, in {home}")
    logging.getLogger("slackwater").setLevel(logging.ERROR)  # late rows are part of the show: counted below
    sources = SOURCES.format(home=home)
    results: dict[str, Status | None] = {}
    for name, text in (("sessions", SESSIONS), ("counts", COUNTS)):
        file = home / f"{name}.toml"
        file.write_text(text.format(home=home, sources=sources))
        view = views.LiveView() if console.is_terminal else _Quiet()
        try:
            results[name] = run_pipeline(toml.load(file), view, available_now=True, flush=True)
        finally:
            view.close()
        console.print(views.summary(results[name], f"demo-{name}", str(home / "out" / name)), highlight=False)
    _show_sessions(console, home)
    _show_activity(console, home)
    console.print(
        f"\nDone in {time.monotonic() - began:.0f} s. Try next:\n"
        f"  slackwater explain {home}/sessions.toml\n"
        f"  slackwater run {home}/sessions.toml        (runs on; add files to {home}/web, stop with Ctrl-C)\n"
        f"  less {home}/sessions.toml",
        highlight=False,
        soft_wrap=True,
    )


class _Quiet:
    """Where there is no terminal: nothing until the end, but warnings."""

    def status(self, status: Status) -> None:
        return

    def notice(self, level: str, line: str) -> None:
        return

    def close(self) -> None:
        return


def generate(home: Path, rows: int) -> int:
    """Write the click stream: daily rhythm, visits of a few minutes, disorder within 20 s, a few rows that come far too late."""
    rng = random.Random(17)
    clicks = sorted(_clicks(rng, rows), key=lambda c: c[0] + rng.uniform(0, 20))
    written = 0
    for source, part in (("web", 0), ("app", 1)):
        mine = [c for c in clicks if c[1] % 4 == 0] if part else [c for c in clicks if c[1] % 4]
        if part:
            mine = [c for c in mine if c[0] < HOURS * 3600 / 3]
        (home / source).mkdir()
        size = math.ceil(len(mine) / FILES)
        for n in range(FILES):
            chunk = mine[n * size : (n + 1) * size]
            if n and source == "web":
                chunk += rng.sample(mine[: n * size // 2], 8)  # phones that were offline
            lines = [json.dumps({"user_id": f"u{u:04}", "page": p, "ts": _iso(t)}) + "\n" for t, u, p in chunk]
            (home / source / f"{n}.jsonl").write_text("".join(lines))
            written += len(lines)
            time.sleep(0.01)  # files are read in the order of their modification times
    return written


def _clicks(rng: random.Random, rows: int) -> Iterator[tuple[float, int, str]]:
    """(second of the day, user, page): visits at random, more around noon and in the evening."""
    made = 0
    while made < rows:
        start = rng.uniform(0, HOURS * 3600)
        hour = start / 3600
        if rng.random() > 0.25 + 0.5 * math.exp(-((hour - 6) ** 2) / 4) + 0.25 * math.exp(-((hour - 11) ** 2) / 2):
            continue
        user, at = int(rng.paretovariate(0.6)) % 2000, start
        for _ in range(1 + int(rng.expovariate(0.15))):
            yield at, user, rng.choice(PAGES)
            made += 1
            at += rng.expovariate(1 / 45)


def _iso(second: float) -> str:
    return (MORNING + dt.timedelta(seconds=second)).isoformat(timespec="milliseconds") + "Z"


def _read(home: Path, name: str) -> Any:
    import polars as pl

    return pl.concat([pl.read_parquet(p) for p in sorted((home / "out" / name).glob("*.parquet"))])


def _show_sessions(console: Console, home: Path) -> None:
    frame = _read(home, "sessions").sort("clicks", "user_id", descending=[True, False]).head(5)
    table = Table(
        "user", "from", "to", "clicks", "pages", "left at", title="The busiest sessions", title_justify="left"
    )
    for r in frame.iter_rows(named=True):
        table.add_row(
            r["user_id"],
            f"{r['window_start']:%H:%M:%S}",
            f"{r['window_end']:%H:%M:%S}",
            str(r["clicks"]),
            str(r["pages"]),
            r["left_at"],
        )
    console.print(table)


def _show_activity(console: Console, home: Path) -> None:
    frame = _read(home, "counts").sort("window_start").filter(_in_the_day())
    counts = frame["clicks"].to_list()
    top = max(counts, default=1)
    blocks = " ▁▂▃▄▅▆▇█"
    console.print(
        f"Clicks per five minutes, {MORNING:%H:%M} to {MORNING + dt.timedelta(hours=HOURS):%H:%M}, at most {top}:"
    )
    rows = 4
    for level in range(rows, 0, -1):
        cells = [min(max(c / top * rows - (level - 1), 0), 1) for c in counts]
        console.print("".join(blocks[round(c * 8)] for c in cells), highlight=False, soft_wrap=True)


def _in_the_day() -> Any:
    import polars as pl

    return pl.col("window_start").dt.replace_time_zone(None) < MORNING + dt.timedelta(hours=HOURS)
