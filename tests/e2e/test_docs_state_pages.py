"""Commands and examples of the state documentation, run in order, with the state in files and in Postgres."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.case_selection import exhaustive, select_cases
from tests.support.command import run_command_for_exit_code
from tests.support.markdown_pages import ROOT, read_fenced_block

pytestmark = pytest.mark.spark
PAGES = (
    "docs/state/query.md",
    "docs/state/serve.md",
    "docs/state/change.md",
    "docs/state/start-over.md",
    "docs/state/verify.md",
    "docs/state/size.md",
    "docs/state/format.md",
    "docs/state/rename.md",
    "docs/state/offsets.md",
    "docs/diff.md",
    "docs/backfill.md",
)
IN_FILES = '[state_store]\nkind = "files"\npath = "state"\n'
IN_POSTGRES = '[state_store]\nkind = "postgres"\nurl = "${STATE_URL}"\n'


@pytest.fixture(params=select_cases(["files", "postgres"]))
def state_location(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the location of the state. The working directory contains the README pipeline and an event folder."""
    monkeypatch.chdir(tmp_path)
    config, place = read_fenced_block("toml"), "state"
    if request.param == "postgres":
        place = request.getfixturevalue("postgres").database(f"page_{abs(hash(request.node.name)):x}")
        monkeypatch.setenv("STATE_URL", place)
        assert IN_FILES in config
        config = config.replace(IN_FILES, IN_POSTGRES)
    Path("sessions.toml").write_text(config)
    Path("data/events").mkdir(parents=True)
    yield place


def write_click_events(name: str, first: int, last: int) -> None:
    """Write clicks of user u1, one per minute."""
    rows = [
        {"user_id": "u1", "page_url": f"/{n % 2}", "event_type": "click", "ts": f"2024-03-01T09:{n:02}:00Z"}
        for n in range(first, last)
    ]
    Path("data/events", name).write_text("".join(json.dumps(r) + "\n" for r in rows))


def documented_commands() -> list[list[str]]:
    """Return the commands of the pages, in order."""
    pages = "".join((ROOT / page).read_text() for page in PAGES)
    blocks = re.findall(r"^```console\n(.*?)^```$", pages, re.DOTALL | re.MULTILINE)
    return [
        shlex.split(line[2:].split("  #")[0]) for text in blocks for line in text.splitlines() if line.startswith("$ ")
    ]


@pytest.mark.usefixtures("spark")
@exhaustive(beside="test_state_queries.py::test_state_commands_list_show_and_query_windows")
def test_documented_state_commands_succeed_in_order(
    state_location: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for n in range(3):
        write_click_events(f"{n}.jsonl", 3 * n, 3 * n + 3)
        assert run_command_for_exit_code(monkeypatch, "run", "sessions.toml", "--available-now") == 0
    served = None
    typed = documented_commands()
    assert [c[:3] for c in typed[:2]] == [["slackwater", "state", "ls"], ["slackwater", "state", "show"]]
    try:
        for program, *arguments in typed:
            said = [arguments[0], *(replace_state_location(a, state_location) for a in arguments[1:])]
            capsys.readouterr()
            if program == "curl":
                fetch_and_check_rows(arguments)
            elif arguments[0] == "serve":
                served = start_server(arguments)
            else:
                assert program == "slackwater"
                code = run_command_for_exit_code(monkeypatch, *said)
                captured = capsys.readouterr()
                assert code == 0, (said, captured.err)
                assert captured.out.strip(), said
    finally:
        if served is not None:
            os.killpg(served.pid, signal.SIGTERM)
            served.wait(30)
            assert served.stdout is not None
            served.stdout.close()


def replace_state_location(argument: str, where: str) -> str:
    """Replace `state`, the location on the pages, with the location of this test."""
    if argument == "state":
        return where
    return argument.replace("state:state#", f"state:{where}#")


def start_server(arguments: list[str]) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "slackwater.cli.main", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("serving on http://127.0.0.1:8085/")
    return process


def fetch_and_check_rows(arguments: list[str]) -> None:
    """Fetch the URL as curl would, and check the rows."""
    headers = {}
    if "-H" in arguments:
        name, _, value = arguments[arguments.index("-H") + 1].partition(": ")
        headers[name] = value
    (url,) = [a for a in arguments if a.startswith("http://")]
    for _ in range(100):
        try:
            with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
                body = answer.read()
            break
        except ConnectionError:
            time.sleep(0.1)
    rows = pa.ipc.open_stream(body).read_all().to_pylist() if headers else json.loads(body)
    assert [(row["user_id"], row["clicks"]) for row in rows] == [("u1", 9)]


@pytest.mark.usefixtures("spark")
def test_documented_python_state_queries_return_expected_rows(
    state_location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_click_events("0.jsonl", 0, 9)
    assert run_command_for_exit_code(monkeypatch, "run", "sessions.toml", "--available-now") == 0
    namespace: dict[str, Any] = {}
    exec(compile(read_fenced_block("python", page=PAGES[0]), PAGES[0], "exec"), namespace)
    for name in ("one", "some", "busy", "before"):
        assert namespace[name]["clicks"].to_list() == [9], name
