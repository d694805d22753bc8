"""Measure what the page costs a running pipeline, and how long it takes to open a large state.

    python -m benchmarks.ui_page_viewers [--sessions 5000000] [--viewers 50] [--seconds 600] [--every 0]

One process runs a session pipeline (in-process engine, state in files), as fast as it can or every `--every` seconds. A second process
serves its page with `slackwater ui`. This process simulates the viewers. Like the script of the page, they follow the commits and, if
an event does not contain the blocks, fetch each block.

Costs are CPU seconds, which other work on the machine hardly changes: those of the page, per second and relative to the pipeline, and
those of the pipeline per row, with and without viewers. Memory is sampled ten times: the resident size of the page, and its private
part without the mapped files of the state.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
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
from slackwater.connectors.source import Batch
from slackwater.core.schema import Field
from slackwater.engine.epoch_driver import EpochDriver
from slackwater.engine.observer import DriverCallbacks
from slackwater.engine.row_policies import ClockSkewWarnings
from slackwater.engine.stage_runner import StageRunner
from slackwater.operators import registry as compiling
from slackwater.state.commit import BatchId
from slackwater.state.files.store import FilesStore
from slackwater.testing.local_engine import LocalEngine
from slackwater.testing.memory_target import MemoryTarget
from slackwater.testing.pipeline_setup import build_pipeline
from slackwater.testing.rows_without_spark import PolarsRowPreparer

TENTHS = 10
ROWS = 20_000  # per epoch
CHUNK = 500_000  # rows per epoch while the state is filled
BEGIN = 1_709_280_000_000_000


class SessionPipeline:
    """Pipeline of sessions by user that runs in this process."""

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
        pipeline = build_pipeline(window, ["a"], name="watched")
        logic = compiling.compile_window(pipeline, {"user": Field("user", "string")})
        target = MemoryTarget(logic.output, logic.identity)
        store = FilesStore(home, "watched")
        engine = LocalEngine(PolarsRowPreparer(logic, ["a"], window.max_future_ms))
        ((name, stage_pipeline),) = pipeline.stage_pipelines.items()
        stage = StageRunner(
            name,
            stage_pipeline,
            logic,
            store,
            engine,
            lambda epoch: None,
            skew_warnings=ClockSkewWarnings(stage_pipeline),
        )
        self.driver = EpochDriver(
            pipeline,
            [stage],
            store,
            dict.fromkeys(pipeline.per_target, target),
            DriverCallbacks(lambda: time.time_ns() // 1000),
        )
        self.driver.start(store.open(), 2, {}, uuid.uuid4().hex)
        self._dice, self._id, self._number, self._at = np.random.default_rng(1), uuid.uuid4().hex, 0, BEGIN

    def run_epoch(self, users: np.ndarray[Any, Any]) -> None:
        self._at += 1_000_000
        ts = self._at - self._dice.integers(0, 900_000, len(users))
        frame = pl.DataFrame({"ts": ts, "user": pl.Series(users).cast(pl.String)})
        self.driver.run_batch(Batch(BatchId(checkpoint=self._id, batch=self._number), {}, {"a": frame}), 0)
        self._number += 1

    def fill_state(self, sessions: int) -> None:
        for low in range(0, sessions, CHUNK):
            self.run_epoch(np.arange(low, min(low + CHUNK, sessions)))

    def run_epochs(self, seconds: float, sessions: int, every: float) -> dict[str, float]:
        """Run epochs as fast as possible, or every `every` seconds. Return the rows, epochs and CPU seconds."""
        began, spent, epochs = time.monotonic(), time.process_time(), 0
        while time.monotonic() - began < seconds:
            self.run_epoch(self._dice.integers(0, sessions, ROWS))
            epochs += 1
            time.sleep(max(began + epochs * every - time.monotonic(), 0) if every else 0)
        return {"rows": epochs * ROWS, "epochs": epochs, "processor_s": time.process_time() - spent}


def run_child_pipeline(home: Path, sessions: int, every: float) -> None:
    """Fill the state in a child process, then run the pipeline for each number of seconds on standard input."""
    pipeline = SessionPipeline(home)
    pipeline.fill_state(sessions)
    print("filled", flush=True)
    for seconds in map(float, sys.stdin):
        print(json.dumps(pipeline.run_epochs(seconds, sessions, every)), flush=True)


class HttpConnection:
    """HTTP connection that is kept open, as in a browser."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def get(self, path: str) -> bytes:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n\r\n".encode())
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
        except asyncio.IncompleteReadError:  # the server closed the idle connection
            self._streams = None
            return await self.get(path)
        length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
        return await reader.readexactly(length)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


async def simulate_viewer(port: int, until: float, tally: dict[str, int]) -> None:
    """Act as a browser: open the page, follow the commits, and fetch the blocks."""
    connection = HttpConnection(port)
    page = (await connection.get("/")).decode()
    events = re.findall(r'sse-connect="([^"]*)"', page)[0].replace("&amp;", "&")
    block_paths = re.findall(r'hx-get="([^"]*)" hx-trigger="sse:commit"', page)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    writer.write(f"GET {events} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    while time.monotonic() < until:
        try:
            part = await asyncio.wait_for(reader.readuntil(b"\n"), 1)
        except TimeoutError:
            continue
        tally["bytes"] += len(part)
        if not part.startswith(b"event: commit"):
            continue
        tally["updates"] += 1
        for path in block_paths:
            content = await connection.get(path)
            tally["bytes"] += len(content)
    writer.close()
    connection.close()


async def run_viewers(port: int, viewers: int, seconds: float, page: psutil.Process) -> dict[str, Any]:
    """Run the viewers for some seconds. Return their counts, and samples of the page's memory in MiB: resident and private."""
    tally: dict[str, Any] = {"updates": 0, "bytes": 0, "memory": []}

    async def sample_memory() -> None:
        for _ in range(TENTHS):
            await asyncio.sleep(seconds / TENTHS)
            memory = page.memory_full_info()
            tally["memory"].append([round(m / 2**20) for m in (memory.rss, memory.uss)])

    until = time.monotonic() + seconds
    await asyncio.gather(sample_memory(), *(simulate_viewer(port, until, tally) for _ in range(viewers)))
    return tally


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--sessions", type=int, default=5_000_000)
    arguments.add_argument("--viewers", type=int, default=50)
    arguments.add_argument("--seconds", type=float, default=600)
    arguments.add_argument("--every", type=float, default=0, help="seconds between two commits; 0: as fast as possible")
    arguments.add_argument("--feed", type=Path, help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.feed is not None:
        run_child_pipeline(options.feed, options.sessions, options.every)
        return
    with tempfile.TemporaryDirectory(prefix="slackwater-viewers-") as home:
        feed_command = [sys.executable, "-m", "benchmarks.ui_page_viewers", "--feed", home]
        sizes = ["--sessions", str(options.sessions), "--every", str(options.every)]
        child = subprocess.Popen([*feed_command, *sizes], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        ui = None
        try:
            assert child.stdin is not None and child.stdout is not None
            assert child.stdout.readline().strip() == "filled"

            def run_child(seconds: float) -> None:
                child.stdin.write(f"{seconds}\n")  # type: ignore[union-attr]
                child.stdin.flush()  # type: ignore[union-attr]

            run_child(before := min(options.seconds, 60))
            alone = json.loads(child.stdout.readline())
            command = [sys.executable, "-c", "from slackwater.cli.main import main; main()", "ui", home, "--port", "0"]
            ui = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert ui.stdout is not None
            port = int(ui.stdout.readline().split("127.0.0.1:")[1].split("/")[0])
            opened = []
            for _ in range(2):  # the first request loads templates and reads the state, and the second uses both
                began = time.monotonic()
                with urlopen(f"http://127.0.0.1:{port}/") as answer:
                    answer.read()
                opened.append(time.monotonic() - began)
            page = psutil.Process(ui.pid)
            spent = sum(page.cpu_times()[:2])
            run_child(options.seconds)
            tally = asyncio.run(run_viewers(port, options.viewers, options.seconds, page))
            served = sum(page.cpu_times()[:2]) - spent
            watched = json.loads(child.stdout.readline())
            per_row = [1e6 * run["processor_s"] / run["rows"] for run in (alone, watched)]
            print(
                json.dumps(
                    {
                        "sessions": options.sessions,
                        "viewers": options.viewers,
                        "seconds": options.seconds,
                        "load": os.getloadavg(),
                        "open_s": [round(s, 2) for s in opened],
                        "every_s": options.every,
                        "memory_mib": tally["memory"],
                        "page_processor_s": round(served, 2),
                        "page_processor_ms_per_s": round(1000 * served / options.seconds, 1),
                        "share_of_two_cores": round(served / options.seconds / 2, 4),
                        "pipeline_processor_s": round(watched["processor_s"], 1),
                        "pipeline_us_per_row": [round(us, 3) for us in per_row],
                        "pipeline_rows_per_s": [
                            round(r["rows"] / s) for r, s in ((alone, before), (watched, options.seconds))
                        ],
                        "commits": watched["epochs"],
                        "updates_per_viewer": round(tally["updates"] / options.viewers, 1),
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
