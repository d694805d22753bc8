"""What a page costs a pipeline that it is beside, and how long a large state takes to open.

    python -m benchmarks.viewers [--sessions 5000000] [--viewers 50] [--seconds 600]

A process steps a session pipeline (in-process engine, state in files) as fast as it can; another serves its page as `slackwater ui`
does; this one is its viewers, who follow the commits and fetch every block after each. Costs are processor seconds, which other
work on the machine does not change: of the page for each of the pipeline's, and of the pipeline per row, alone and watched.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import polars as pl
import psutil

from slackwater.config.window import Aggregation, Window
from slackwater.core.schema import Field
from slackwater.engine.driver import Driver
from slackwater.engine.far_dates import FarDates
from slackwater.engine.hooks import Hooks
from slackwater.engine.stage import Stage
from slackwater.operators import compile as compiling
from slackwater.sources.base import Batch
from slackwater.state.commit import BatchId
from slackwater.state.files.store import FilesStore
from slackwater.testing.described import pipeline_for
from slackwater.testing.local import LocalEngine
from slackwater.testing.target import MemoryTarget

BLOCKS = ("top", "watermark", "rows", "closing", "size", "pace")
ROWS = 20_000  # of an epoch
CHUNK = 500_000  # of the first ones, that make the sessions
BEGIN = 1_709_280_000_000_000


class Pipeline:
    """Sessions by user, stepped in this process."""

    def __init__(self, home: Path) -> None:
        window = Window(
            kind="session",
            gap_ms="30m",
            max_session_duration_ms="12h",
            lateness_ms="1m",
            group_by=["user"],
            max_groups_per_window=1_000_000_000,
            aggregations=[Aggregation(agg="count", as_="n")],
        )
        pipeline = pipeline_for(window, ["a"], name="watched")
        logic = compiling.compile_window(pipeline, {"user": Field("user", "string")})
        target = MemoryTarget(logic.output, logic.identity)
        store = FilesStore(home, "watched")
        engine = LocalEngine(logic, ["a"], False, window.max_future_ms)
        ((name, own),) = pipeline.alone.items()
        stage = Stage(name, own, logic, store, engine, lambda epoch: None, far_dates=FarDates(own))
        self.driver = Driver(
            pipeline, [stage], store, dict.fromkeys(pipeline.by_target, target), Hooks(lambda: time.time_ns() // 1000)
        )
        self.driver.start(store.open(), 2, {}, uuid.uuid4().hex)
        self._dice, self._id, self._number, self._at = np.random.default_rng(1), uuid.uuid4().hex, 0, BEGIN

    def step(self, users: np.ndarray[Any, Any]) -> None:
        self._at += 1_000_000
        ts = self._at - self._dice.integers(0, 900_000, len(users))
        frame = pl.DataFrame({"ts": ts, "user": pl.Series(users).cast(pl.String)})
        self.driver.run_batch(Batch(BatchId(checkpoint=self._id, batch=self._number), {}, {"a": frame}), 0)
        self._number += 1

    def fill(self, sessions: int) -> None:
        for low in range(0, sessions, CHUNK):
            self.step(np.arange(low, min(low + CHUNK, sessions)))

    def run(self, seconds: float, sessions: int) -> dict[str, float]:
        """As fast as it can; rows, and processor seconds."""
        began, spent, epochs = time.monotonic(), time.process_time(), 0
        while time.monotonic() - began < seconds:
            self.step(self._dice.integers(0, sessions, ROWS))
            epochs += 1
        return {"rows": epochs * ROWS, "epochs": epochs, "processor_s": time.process_time() - spent}


def feed(home: Path, sessions: int, seconds: float) -> None:
    """A child: fills, says so, and then runs for so long each time that it is told to."""
    pipeline = Pipeline(home)
    pipeline.fill(sessions)
    print("filled", flush=True)
    for _ in sys.stdin:
        print(json.dumps(pipeline.run(seconds, sessions)), flush=True)


async def view(port: int, until: float, tally: dict[str, int]) -> None:
    """A viewer as a browser is one: it hears of a commit, and fetches the blocks."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /ui/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    while time.monotonic() < until:
        try:
            line = await asyncio.wait_for(reader.readline(), 1)
        except TimeoutError:
            continue
        if not line.startswith(b"event: commit"):
            continue
        tally["commits"] += 1
        for block in BLOCKS:
            once, out = await asyncio.open_connection("127.0.0.1", port)
            out.write(f"GET /ui/{block} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            tally["bytes"] += len(await once.read())
            out.close()
    writer.close()


async def watch(port: int, viewers: int, until: float) -> dict[str, int]:
    tally = {"commits": 0, "bytes": 0}
    await asyncio.gather(*(view(port, until, tally) for _ in range(viewers)))
    return tally


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--sessions", type=int, default=5_000_000)
    arguments.add_argument("--viewers", type=int, default=50)
    arguments.add_argument("--seconds", type=float, default=600)
    arguments.add_argument("--feed", type=Path, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.feed is not None:
        feed(given.feed, given.sessions, given.seconds)
        return
    with tempfile.TemporaryDirectory(prefix="slackwater-viewers-") as home:
        own = [sys.executable, "-m", "benchmarks.viewers", "--feed", home]
        sizes = ["--sessions", str(given.sessions), "--seconds", str(given.seconds)]
        child = subprocess.Popen([*own, *sizes], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        ui = None
        try:
            assert child.stdin is not None and child.stdout is not None
            assert child.stdout.readline().strip() == "filled"

            def tell() -> None:
                child.stdin.write("\n")  # type: ignore[union-attr]
                child.stdin.flush()  # type: ignore[union-attr]

            tell()
            alone = json.loads(child.stdout.readline())
            command = [sys.executable, "-c", "from slackwater.cli.main import main; main()", "ui", home, "--port", "0"]
            ui = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert ui.stdout is not None
            port = int(ui.stdout.readline().split("127.0.0.1:")[1].split("/")[0])
            opened = []
            for _ in range(2):  # the first loads templates and reads the state, the second has it as it is kept
                began = time.monotonic()
                with urlopen(f"http://127.0.0.1:{port}/") as answer:
                    answer.read()
                opened.append(time.monotonic() - began)
            page = psutil.Process(ui.pid)
            memory, before = [page.memory_info().rss], sum(page.cpu_times()[:2])
            tell()
            tally = asyncio.run(watch(port, given.viewers, time.monotonic() + given.seconds))
            memory.append(page.memory_info().rss)
            served = sum(page.cpu_times()[:2]) - before
            watched = json.loads(child.stdout.readline())
            per_row = [1e6 * run["processor_s"] / run["rows"] for run in (alone, watched)]
            print(
                json.dumps(
                    {
                        "sessions": given.sessions,
                        "viewers": given.viewers,
                        "seconds": given.seconds,
                        "load": os.getloadavg(),
                        "open_s": [round(s, 2) for s in opened],
                        "memory_mib": [round(m / 2**20) for m in memory],
                        "page_processor_s": round(served, 1),
                        "pipeline_processor_s": round(watched["processor_s"], 1),
                        "pipeline_us_per_row": [round(us, 3) for us in per_row],
                        "pipeline_rows_per_s": [round(r["rows"] / given.seconds) for r in (alone, watched)],
                        "commits_fetched": tally["commits"],
                        "mib_sent": round(tally["bytes"] / 2**20, 1),
                    },
                    indent=1,
                )
            )
        finally:
            for process in (ui, child):
                if process is not None:
                    process.kill()
                    process.wait()


if __name__ == "__main__":
    main()
