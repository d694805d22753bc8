"""`demo`: computes sessions and five-minute counts over one day of generated clicks, and suggests next steps."""

from __future__ import annotations

import datetime as dt
import json
import logging
import math
import os
import random
import shlex
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from slackwater.cli import output as views
from slackwater.cli.output import format_run_summary, program_command
from slackwater.cli.run import run_with_view
from slackwater.config import toml
from slackwater.engine.observer import Status
from slackwater.errors import StartError, Topic
from slackwater.runner.run_options import RunOptions

BIN = dt.timedelta(minutes=5)  # window of the counts
LEVELS = 4  # height of the plot in lines
BLOCKS = " ▁▂▃▄▅▆▇█"

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
name = "app"                         # falls silent after a third of the day
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
gap = "10m"
max_session_duration = "4h"
event_time_column = "ts"
lateness = "30s"
source_idleness = "1ms"              # a recorded day: do not wait for the silent app (default: 60s)
group_by = ["user_id"]
max_groups_per_window = 10000

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
duration = "5m"
event_time_column = "ts"
lateness = "30s"
source_idleness = "1ms"              # a recorded day: do not wait for the silent app (default: 60s)
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


def run_demo(keep: Path | None, rows: int, ui_port: int | None = None) -> None:
    """Generate clicks, run two pipelines, and show their results. A signal stops the demo after the current epoch.

    Args:
        keep: A new directory for the files of the demo; None for a temporary directory, which is not deleted.
        rows: The number of clicks.
        ui_port: The port on which to serve the web page at the end; None for no page.

    Raises StartError if `keep` is not empty, and typer.Exit with code 130 after a signal.
    """
    console = Console()
    began = time.monotonic()
    if keep is not None and keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise StartError(f"{keep} is not an empty directory; name a new directory for --keep", Topic.FILE_NOT_WRITABLE)
    home = keep.resolve() if keep is not None else Path(tempfile.mkdtemp(prefix="slackwater-demo-"))
    home.mkdir(parents=True, exist_ok=True)
    total = generate_clicks(home, rows)
    console.print(
        f"{total:,} clicks from two sources, out of order by up to {DISORDER:.0f} seconds, in {home}", soft_wrap=True
    )
    sources = SOURCES.format(home=home)
    stop = threading.Event()
    for name, text in (("sessions", SESSIONS), ("counts", COUNTS)):
        file = home / f"{name}.toml"
        file.write_text(text.format(home=home, sources=sources))
        status = _run(console, file, stop)
        if stop.is_set():
            raise typer.Exit(130)
        console.print(
            format_run_summary(status, f"demo-{name}", str(home / "out" / name)), highlight=False, soft_wrap=True
        )
    console.print(_session_table(_read_results(home, "sessions")))
    for line in plot_activity(_clicks_per_bin(_read_results(home, "counts")), console.width):
        console.print(line, highlight=False, soft_wrap=True)
    call = program_command()
    console.print(
        f"\nDone in {time.monotonic() - began:.0f} s. Try next:\n"
        f"  {call} show {home}/sessions.toml\n"
        f"  {call} ui {home}/sessions.toml {home}/counts.toml\n"
        f"  {call} explain {home}/sessions.toml\n"
        f"  {call} run {home}/sessions.toml --metrics-port 9187\n"
        f"      (keeps running: add files to {home}/web; stop it with Ctrl-C)\n"
        f"  less {home}/sessions.toml\n"
        f"All files of the demo are in {home}. To delete them: rm -r {shlex.quote(str(home))}",
        highlight=False,
        soft_wrap=True,
    )
    if ui_port is not None:
        from slackwater.cli.web_commands import serve_or_save_page
        from slackwater.web.server import LOOPBACK

        serve_or_save_page([f"{home}/sessions.toml", f"{home}/counts.toml"], LOOPBACK, ui_port, (), None, None)


def _run(console: Console, file: Path, stop: threading.Event) -> Status | None:
    view: views.ProgressView = views.LiveProgress() if console.is_terminal else _PlainProgress(console)
    log = logging.getLogger("slackwater")
    before = log.level
    log.setLevel(logging.ERROR)  # late rows are expected and counted in the summary
    try:
        return run_with_view(toml.load(file), view, RunOptions(available_now=True, flush=True, stop=stop))
    finally:
        view.close()
        log.setLevel(before)


class _PlainProgress:
    """A progress view for output that is not a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def status(self, status: Status) -> None:
        self._print(f"  {status.pipeline}: {status.files_done} of {status.files_total} files")

    def notice(self, level: str, line: str) -> None:
        self._print(f"  {level}: {line}")

    def close(self) -> None:
        return

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, soft_wrap=True)


def _read_results(home: Path, name: str) -> Any:
    import polars as pl

    return pl.concat([pl.read_parquet(p) for p in sorted((home / "out" / name).glob("*.parquet"))])


def _session_table(frame: Any) -> Table:
    """Return a table of the five sessions with the most clicks."""
    table = Table(
        "user", "from", "to", "clicks", "pages", "left at", title="The busiest sessions", title_justify="left"
    )
    for r in (
        frame.sort("clicks", "user_id", "window_start", descending=[True, False, False]).head(5).iter_rows(named=True)
    ):
        start, end = f"{r['window_start']:%H:%M:%S}", f"{r['window_end']:%H:%M:%S}"
        table.add_row(r["user_id"], start, end, str(r["clicks"]), str(r["pages"]), r["left_at"])
    return table


def _clicks_per_bin(frame: Any) -> list[int]:
    """Return the number of clicks in each five-minute window of the day; 0 for a window without clicks."""
    counts = [0] * (HOURS * 3600 // int(BIN.total_seconds()))
    for start, clicks in frame.select("window_start", "clicks").iter_rows():
        index = (start.replace(tzinfo=None) - MORNING) // BIN
        if 0 <= index < len(counts):
            counts[index] = clicks
    return counts


def plot_activity(counts: list[int], width: int) -> list[str]:
    """Plot counts per five minutes in block characters, and return the lines.

    The plot is at most `width` characters wide. A column shows the sum of one or more counts.
    """
    step = next(s for s in (1, 2, 3, 4, 6, 12, len(counts)) if s >= len(counts) / max(width, 1) or s == len(counts))
    columns = [sum(counts[i : i + step]) for i in range(0, len(counts), step)]
    top = max(*columns, 1)
    minutes = step * BIN // dt.timedelta(minutes=1)
    lines = [
        f"Clicks per {minutes} minutes, {MORNING:%H:%M} to {MORNING + dt.timedelta(hours=HOURS):%H:%M}, at most {top:,}:"
    ]
    for level in range(LEVELS - 1, -1, -1):
        cells = [min(max(c / top * LEVELS - level, 0), 1) for c in columns]
        lines.append("".join(BLOCKS[math.ceil(c * 8)] for c in cells).rstrip())
    axis = [" "] * (len(columns) + 5)
    for hour in range(0, HOURS, 3):
        column = hour * 60 // minutes
        axis[column : column + 5] = f"{MORNING + dt.timedelta(hours=hour):%H:%M}"
    return [*lines, "".join(axis).rstrip()]


# -- the clicks --------------------------------------------------------------------------------------------------------


MORNING = dt.datetime(2024, 3, 1, 6)
HOURS = 12
FILES = 4
USERS = 2000
DISORDER = 20.0  # maximum delay of a click's arrival, in seconds
OFFLINE = 8  # number of clicks per file that arrive two files later
PAGES = ("/", "/search", "/cart", "/checkout", "/help", "/offers", "/item/17", "/item/23", "/item/42")
Click = tuple[float, int, str]  # second of the day, user, page


def generate_clicks(home: Path, rows: int) -> int:
    """Write `rows` clicks to files in the subdirectories `web` and `app` of `home`. Return the number of clicks.

    Each file contains a part of the day, in order of arrival. Visits last a few minutes and follow a daily rhythm.
    Clicks are out of order by up to 20 s, and a few are hours late. After the first third of the day, the app does not
    send any clicks.
    """
    rng = random.Random(17)
    clicks = sorted(_clicks(rng, rows), key=lambda c: c[0] + rng.uniform(0, DISORDER))
    slices: dict[str, list[list[Click]]] = {s: [[] for _ in range(FILES)] for s in ("web", "app")}
    for click in clicks:
        slices[_source(click)][min(int(click[0] / _slice_seconds()), FILES - 1)].append(click)
    web = slices["web"]
    for n in range(FILES - 2):
        for _ in range(min(OFFLINE, len(web[n]))):
            web[n + 2].append(web[n].pop(rng.randrange(len(web[n]))))
    for source, parts in slices.items():
        (home / source).mkdir()
        for n, part in enumerate(p for p in parts if p):
            path = home / source / f"{n}.jsonl"
            path.write_text("".join(_json_line(c) for c in part))
            os.utime(path, (1_700_000_000 + n, 1_700_000_000 + n))  # the order in which the files are read
    return len(clicks)


def _slice_seconds() -> float:
    return HOURS * 3600 / FILES


def _source(click: Click) -> str:
    return "web" if click[1] % 4 else "app"


def _clicks(rng: random.Random, rows: int) -> Iterator[Click]:
    """Yield the clicks of random visits. Most visits are around noon, some in the evening; a few users visit often."""
    count, end = 0, HOURS * 3600
    while count < rows:
        second = rng.uniform(0, end)
        hour = second / 3600
        if rng.random() > 0.25 + 0.5 * math.exp(-((hour - 6) ** 2) / 4) + 0.25 * math.exp(-((hour - 11) ** 2) / 2):
            continue
        user = int(USERS * rng.random() ** 1.5)
        for _ in range(1 + int(rng.expovariate(0.15))):
            if second >= end or count == rows or (user % 4 == 0 and second >= end / 3):
                break
            yield second, user, rng.choice(PAGES)
            count += 1
            second += rng.expovariate(1 / 45)


def _json_line(click: Click) -> str:
    second, user, page = click
    time = (MORNING + dt.timedelta(seconds=second)).isoformat(timespec="milliseconds") + "Z"
    return json.dumps({"user_id": f"u{user:04}", "page": page, "ts": time}) + "\n"
