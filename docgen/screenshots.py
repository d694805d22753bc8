"""Take the screenshots of the page in docs/images with Chromium: `python -m docgen.screenshots`.

ui.png        light theme   sessions of two sources, one with partitions, in this process: watermark, and where every row went
ui-dark.png   dark theme    a join over files, run with the command line and Spark, so that phases are real: pace, joins

This takes about a minute. The pictures contain times of the run, so they differ each time, and no test compares them.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import logging
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tests.support.browser import CHROMIUM, Browser, wait_until
from tests.support.ui_pipeline_states import (
    draw_two_source_script,
    open_page_source,
    run_two_source_pipeline,
    write_two_source_config,
)

from docgen.error_and_warning_sources import ROOT
from slackwater.cli.web_commands import load_page_sources
from slackwater.ui.page_model import PageSource
from slackwater.ui.page_server import serve_pages

IMAGES = ROOT / "docs" / "images"
WIDTH, MARGIN = 1180, 16
EPOCHS = 12
START = dt.datetime(2024, 3, 1, 9, tzinfo=dt.UTC)
JOIN = """name = "paid-orders"
[connections.lake]
kind = "files"
[[sources]]
name = "orders"
connection = "lake"
query = "orders/*.jsonl"
format = "json"
schema = "user STRING, ts TIMESTAMP"
max_files_per_trigger = 1
[[sources]]
name = "payments"
connection = "lake"
query = "payments/*.jsonl"
format = "json"
schema = "user STRING, ts TIMESTAMP"
max_files_per_trigger = 1
[transform.join]
kind = "left"
left_source = "orders"
right_source = "payments"
left_keys = ["user"]
right_keys = ["user"]
time_window_ms = "2m"
event_time_column = "ts"
lateness_ms = "30s"
[target]
connection = "lake"
path = "out"
format = "parquet"
[state_store]
kind = "files"
path = "state"
"""


def run_clicks_pipeline(home: Path) -> PageSource:
    file = write_two_source_config("session", home)
    logging.disable(logging.WARNING)
    run_two_source_pipeline(file, draw_two_source_script(4, epochs=14, rows=300))
    source = open_page_source(file)
    return replace(source, pipeline=source.pipeline.model_copy(update={"name": "clicks"}), file="clicks.toml")


def run_paid_orders_pipeline(home: Path) -> PageSource:
    dice, now = random.Random(1), START
    for n in range(EPOCHS):
        now += dt.timedelta(seconds=dice.choice([10, 20, 30]))
        for side in ("orders", "payments"):
            rows = (
                {
                    "user": f"u{dice.randrange(1200) if side == 'orders' else dice.randrange(900)}",
                    "ts": (
                        now - dt.timedelta(seconds=dice.choice([0, 5, 20, 50]), milliseconds=dice.randrange(1000))
                    ).isoformat(),
                }
                for _ in range(dice.randrange(800, 4000))
            )
            (home / side).mkdir(exist_ok=True)
            (home / side / f"{n:02}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    file = home / "paid-orders.toml"
    file.write_text(JOIN)
    command = [sys.executable, "-m", "slackwater.cli.main", "run", file.name, "--available-now"]
    subprocess.run(command, cwd=home, check=True, timeout=600)
    (source,) = load_page_sources(str(file))
    return source


@contextmanager
def open_page(browser: Browser, shown: PageSource, dark: bool) -> Iterator[None]:
    running = serve_pages([shown], 0)
    try:
        browser.set_dark_mode(dark)
        browser.send_command(
            "Emulation.setDeviceMetricsOverride", width=WIDTH, height=900, deviceScaleFactor=1, mobile=False
        )
        browser.open_page(f"http://127.0.0.1:{running.port}/")
        wait_until(lambda: browser.evaluate_script("document.getElementById('link').textContent") == "live")
        yield
        browser.check_console_and_requests(f"http://127.0.0.1:{running.port}")
        browser.open_page("about:blank")  # no open page misses the server
        browser.said.clear()
    finally:
        running.stop()


def take_screenshot(browser: Browser, to: Path, *blocks: str) -> None:
    """Write a PNG of the page that shows only these blocks."""
    block_titles = [f"{name}-title" for name in blocks]
    browser.evaluate_script(
        f"for (const e of document.querySelectorAll('.card'))"
        f" if (!{json.dumps(block_titles)}.includes(e.getAttribute('aria-labelledby'))) e.style.display = 'none'; 1"
    )
    cut = "[...document.querySelectorAll('table')].filter(t => t.checkVisibility({contentVisibilityAuto: true}) && !t.closest('details:not([open])') && t.scrollWidth > t.clientWidth).length"
    assert browser.evaluate_script(cut) == 0, "a table does not fit"
    edges = [
        browser.evaluate_script(
            f"(() => {{ const e = document.getElementById('{name}'); const r = (e.closest('.card') || e).getBoundingClientRect();"
            " return [r.top + scrollY, r.bottom + scrollY]; })()"
        )
        for name in (blocks[0], blocks[-1])
    ]
    top, bottom = edges[0][0], edges[1][1]
    low = 0 if blocks[0] == "top" else max(top - MARGIN, 0)
    clip = {"x": 0, "y": low, "width": WIDTH, "height": bottom + MARGIN - low, "scale": 1}
    screenshot = browser.send_command("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
    to.write_bytes(base64.b64decode(screenshot["data"]))


def main() -> None:
    if CHROMIUM is None:
        raise SystemExit("Chromium was not found; install it: apt-get install chromium")
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        for folder in ("clicks", "orders"):
            (home / folder).mkdir()
        browser = Browser(home / "browser")
        try:
            with open_page(browser, run_clicks_pipeline(home / "clicks"), dark=False):
                take_screenshot(browser, IMAGES / "ui.png", "top", "watermark", "rows")
            with open_page(browser, run_paid_orders_pipeline(home / "orders"), dark=True):
                take_screenshot(browser, IMAGES / "ui-dark.png", "pace", "joins")
        finally:
            browser.close()


if __name__ == "__main__":
    main()
