"""Hostile requests to every address of the page, including streams. The server answers or closes, and continues."""

from __future__ import annotations

import atexit
import functools
import json
import random
import re
import shutil
import socket
import tempfile
from pathlib import Path
from urllib.parse import quote

from tests.laws.fuzzers import fuzz_state_server
from tests.laws.fuzzers import hostile_texts as words
from tests.support import three_stage_pipeline
from tests.support.ui_dead_letter_pipeline import run_pipeline_with_late_dead_letter
from tests.support.ui_pipeline_states import open_page_source

from slackwater.cli.web_commands import load_page_sources
from slackwater.state.run_history import Run
from slackwater.ui.page_server import serve_pages
from slackwater.ui.pages import BLOCKS

STATUSES = {*fuzz_state_server.STATUSES, 304, 307}  # 307 redirects to the same address with a trailing slash
STAGES = ("sessions", "minutes", "seen", "~0", "~2", "~99", "nosuch")
DIGITS = "9" * 5000


@functools.cache
def start_page_server() -> int:
    """Start a server for the rest of the process, and return its port.

    One pipeline has dead letters, one has several stages, and one has not started.
    """
    home = Path(tempfile.mkdtemp(prefix="slackwater-hostile-page-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    for name in ("letters", "stages", "new"):
        (home / name).mkdir()
    letters = open_page_source(run_pipeline_with_late_dead_letter(home / "letters"))
    letters.store.open()
    letters.store.save_run(Run(started_us=1, runner="<b>", epoch=-1, ended_us=2, outcome="failed", error="<script>"))
    letters.store.close()
    (stages,) = load_page_sources(
        str(
            three_stage_pipeline.run_three_stage_pipeline(
                home / "stages", three_stage_pipeline.TEXT.replace('"law"', '"stages"')
            )
        )
    )
    file = home / "new" / "p.toml"
    file.write_text((home / "letters" / "p.toml").read_text().replace('"law"', '"new"').replace("/letters/", "/new/"))
    return serve_pages([letters, stages, open_page_source(file)], 0).port


def draw_page_path(rng: random.Random) -> str:
    """Draw a path with a query."""
    base = rng.choice(["/p/law", "/p/law", "/p/stages", "/p/new", "/p/nosuch", "", "/p/law/stage/sessions"])
    if rng.random() < 0.3:
        base = f"/p/stages/stage/{rng.choice(STAGES) if rng.random() < 0.8 else quote(words.draw_text(rng)[:200], safe='')}"
    text = quote(words.draw_text(rng)[:300])
    number = str(rng.choice([*words.NUMBERS, 0, 5, -1]))[:5000]
    block = rng.choice(BLOCKS)
    path = rng.choice(
        [
            "/",
            "/",
            f"/epoch/{rng.choice(['0', '1', '2', '-1', DIGITS[: rng.randrange(5000)], quote(number), text])}",
            f"/closing?from={quote(number)}&to={rng.choice(['9' * 16, quote(number), DIGITS])}",
            f"/key?user={text}",
            rng.choice(["/key", "/key?user", "/key?=", "/key?" + "&" * 200, f"/key?{text}={text}", "/key?user=u1"]),
            f"/letters?reason={rng.choice(['late', 'bad', text])}",
            "/hot",
            f"/ui/{block}",
            f"/ui/{block}.json",
            f"/ui/{text}",
            f"/ui/keys.json?from={quote(number)}&to={quote(number)}",
            f"/ui/key.json?user={text}",
            f"/ui/events?seen={text}",
            "/ui/events?blocks",
            "/static/../ui.css",
            f"/static/{text}",
            "/state/scan?limit=3",
            "//",
            "/%00",
        ]
    )
    return base + path


def check_random_page_request(rng: random.Random) -> str:
    sent, response, is_stream = fuzz_state_server.draw_request(rng, draw_page_path), b"", False
    with socket.create_connection(("127.0.0.1", start_page_server()), timeout=30) as client:
        try:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
            while part := client.recv(65536):
                response += part
                is_stream = b"text/event-stream" in response and b"retry: " in response
                if is_stream:
                    break  # a stream does not end by itself
        except (ConnectionResetError, BrokenPipeError):
            pass
    status, body = fuzz_state_server.fetch_response("/p/law/ui/top.json", start_page_server())
    assert status == 200, "the next question is not answered"
    assert json.loads(body)["pipeline"] == "law", f"the next answer is wrong: {body[:200]!r}"
    if not response:
        return "closed"
    head, _, body = response.partition(b"\r\n\r\n")
    match = re.match(rb"HTTP/1\.1 (\d{3}) ", head)
    assert match, f"no HTTP: {head[:100]!r}"
    code = int(match[1])
    assert code in STATUSES or code == 100, f"status {code}: {body[:300]!r} to {sent[:300]!r}"
    if sent.startswith(b"HEAD "):
        assert not is_stream, "HEAD has no body"
    assert b"<script>alert" not in body, "a text of a user is a tag"
    assert b"Traceback" not in body
    return "answered" if code == 200 else f"refused {code}"
