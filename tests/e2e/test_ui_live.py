"""The page in a real browser next to real runs: sessions during a run and after the runner is killed, and a topic with
an idle partition and a backlog."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from tests.support.browser import Browser, wait_until
from tests.support.case_selection import exhaustive
from tests.support.kafka_topics import Topic
from tests.support.real_dataset_pipelines import split_into_input_files

from slackwater.cli.web_commands import load_page_sources
from slackwater.core.offsets import KafkaOffsets
from slackwater.state.files.store import FilesStore
from slackwater.ui.page_server import serve_pages

pytestmark = pytest.mark.spark

COLLEGE = """
name = "college"
[connections.lake]
kind = "files"
[[sources]]
name = "messages"
connection = "lake"
query = "in/*.txt"
format = "csv"
schema = "source INT, target INT, sent BIGINT"
options = { sep = " ", header = "true", enforceSchema = "true" }
max_files_per_trigger = 1
[transform.window]
kind = "session"
gap_ms = "30m"
max_session_duration_ms = "30d"
group_by = ["source"]
event_time_column = "sent"
event_time_unit = "s"
aggregations = [{ agg = "count", as = "n" }]
[target]
connection = "lake"
path = "out"
[state_store]
kind = "files"
path = "state"
checkpoint_interval_ms = "1s"
"""
TOPIC = """
name = "clicks"
[connections.broker]
kind = "kafka"
bootstrap_servers = "ADDRESS"
[connections.lake]
kind = "files"
[[sources]]
name = "events"
connection = "broker"
query = "TOPIC"
schema = "user STRING, amount BIGINT"
starting_offsets = "earliest"
[transform.window]
kind = "tumbling"
duration_ms = "1m"
max_groups_per_window = 1000
group_by = ["user"]
source_idleness_ms = "2s"
aggregations = [{ agg = "count", as = "n" }]
[target]
connection = "lake"
path = "out"
[state_store]
kind = "files"
path = "state"
checkpoint_interval_ms = "1s"
"""


class RunnerProcess:
    """Process of `slackwater run FILE --ui`. `home` is the address of the page."""

    def __init__(self, file: Path) -> None:
        command = [sys.executable, "-m", "slackwater.cli.main", "run", file.name, "--ui", "--ui-port", "0"]
        self.said = file.parent / "said.txt"
        with self.said.open("w") as said:
            self.process = subprocess.Popen(command, cwd=file.parent, stdout=said, stderr=subprocess.STDOUT)
        self.home = ""
        wait_until(self._read_page_address)

    def _read_page_address(self) -> bool:
        assert self.process.poll() is None, self.said.read_text()
        address = re.search(r"http://127\.0\.0\.1:\d+", self.said.read_text())
        self.home = address[0] if address else ""
        return bool(address)

    def kill_process(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=60)


@pytest.fixture
def start_runner() -> Iterator[Any]:
    runs: list[RunnerProcess] = []

    def start(file: Path) -> RunnerProcess:
        runs.append(RunnerProcess(file))
        return runs[-1]

    yield start
    for run in runs:
        if run.process.poll() is None:
            run.process.kill()
            run.process.wait(timeout=60)


def count_read_records(folder: Path) -> int:
    """Return how many records of the topic are in the state."""
    with FilesStore(folder / "state", "clicks").peek() as snapshot:
        offsets = snapshot.commit.sources["events"].offsets if snapshot is not None else None
    assert isinstance(offsets, KafkaOffsets)
    return sum(n for partitions in offsets.topics.values() for n in partitions.values())


def read_element_text(browser: Browser, selector: str) -> str:
    return str(browser.evaluate_script(f"document.querySelector({selector!r})?.textContent ?? ''"))


def is_page_available(run: RunnerProcess) -> bool:
    """Return whether the page shows a commit. A browser would report an error for a page that does not exist yet."""
    assert run.process.poll() is None, run.said.read_text()
    try:
        with urlopen(run.home + "/") as answer:
            return bool(answer.status == 200)
    except HTTPError:
        return False


def read_shown_epoch(browser: Browser) -> int:
    return int(read_element_text(browser, "#top dd").replace(",", "") or -1)


@exhaustive(beside="test_ui_browser.py::test_page_renders_plots_follows_commits_and_links_to_keys")
def test_live_page_updates_for_a_session_pipeline_and_shows_a_killed_runner(
    browser: Browser, start_runner: Any, real_events_folder: Path, tmp_path: Path
) -> None:
    split_into_input_files(real_events_folder / "CollegeMsg.txt", tmp_path / "all", 1)
    parts = sorted((tmp_path / "all").iterdir())
    (tmp_path / "in").mkdir()

    def comes(count: int) -> None:
        for _ in range(count):
            part = parts.pop(0)
            shutil.copy2(part, tmp_path / "in" / part.name)

    file = tmp_path / "college.toml"
    file.write_text(COLLEGE)
    comes(3)
    run = start_runner(file)
    wait_until(lambda: is_page_available(run))
    browser.open_page(run.home + "/")
    wait_until(lambda: read_element_text(browser, "#link") == "live")
    assert read_element_text(browser, ".chip") == "up"
    browser.evaluate_script("window.same = 1; 1")
    before = read_shown_epoch(browser)
    comes(3)
    wait_until(
        lambda: read_shown_epoch(browser) >= max(before + 3, 5)
    )  # all six files, so the closing times do not change
    assert browser.evaluate_script("window.same") == 1, "the page followed, it was not loaded again"
    assert "Every row is accounted for" in read_element_text(browser, "#top .sentence")
    assert browser.evaluate_script("document.querySelectorAll('#pace svg .phase.plan').length") > 0
    browser.save_light_and_dark_screenshots(tmp_path, "running")
    # follow the links from the histogram to a key
    wait_until(lambda: browser.evaluate_script("document.querySelectorAll('#closing svg a .reach').length") > 0)
    browser.follow_link("#closing svg a .reach", "/closing?from=")
    wait_until(lambda: browser.evaluate_script("document.querySelectorAll('.keys tbody a').length") > 0)
    browser.follow_link(".keys tbody a", "/key?source=")
    assert "open session" in read_element_text(browser, "pre")
    browser.save_light_and_dark_screenshots(tmp_path, "key")
    browser.check_console_and_requests(run.home)
    browser.open_page("about:blank")
    run.kill_process()
    dead = serve_pages(load_page_sources(str(file)), 0)
    try:
        home = f"http://127.0.0.1:{dead.port}"
        comes(2)
        browser.open_page(home + "/")
        assert read_element_text(browser, ".chip") == "none is running"
        assert "Every row is accounted for" in read_element_text(browser, "#top .sentence")
        assert "2 files" in read_element_text(browser, "#pace table")
        browser.save_light_and_dark_screenshots(tmp_path, "dead")
        browser.check_console_and_requests(run.home, home)
    finally:
        dead.stop()


@exhaustive(beside="test_ui_browser.py::test_page_renders_plots_follows_commits_and_links_to_keys")
def test_page_shows_an_idle_partition_and_the_backlog_of_a_topic(
    browser: Browser, start_runner: Any, topic_factory: Any, tmp_path: Path
) -> None:
    stream: Topic = topic_factory(3)
    for n in range(20):
        stream.send_rows({"user": f"u{n % 4}", "amount": n}, second=30 * n, partition=n % 2)
    file = tmp_path / "clicks.toml"
    file.write_text(TOPIC.replace("ADDRESS", stream.broker.address).replace("TOPIC", stream.name))
    run = start_runner(file)
    wait_until(lambda: is_page_available(run))
    browser.open_page(run.home + "/")
    lanes = "[...document.querySelectorAll('#watermark .lane.idle')].map(e => e.textContent).join(' ')"
    sent = 20

    def idle_is_shown() -> bool:
        nonlocal sent
        stream.send_rows({"user": "u1", "amount": 1}, second=700, partition=0)
        sent += 1
        return f"{stream.name}-2" in browser.evaluate_script(lanes)

    wait_until(idle_is_shown)
    browser.save_light_and_dark_screenshots(tmp_path, "topic")
    wait_until(lambda: count_read_records(tmp_path) == sent)
    browser.check_console_and_requests(run.home)
    browser.open_page("about:blank")
    run.kill_process()
    stream.send_rows(*({"user": "u9", "amount": n} for n in range(7)), second=800, partition=1)
    dead = serve_pages(load_page_sources(str(file)), 0)
    try:
        browser.open_page(f"http://127.0.0.1:{dead.port}/")
        assert "7 records" in read_element_text(browser, "#pace table")
        assert f"{stream.name}-2" in browser.evaluate_script("document.querySelector('#watermark').textContent")
        browser.check_console_and_requests(run.home, f"http://127.0.0.1:{dead.port}")
    finally:
        dead.stop()
