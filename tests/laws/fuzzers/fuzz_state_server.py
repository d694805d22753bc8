"""Send requests with hostile parts, and bytes that are not HTTP, to a real server.

The server must respond or close the connection, and must respond correctly to the next request.
"""

from __future__ import annotations

import atexit
import functools
import http.client
import json
import random
import re
import shutil
import socket
import tempfile
from collections.abc import Callable
from urllib.parse import quote

from tests.laws.fuzzers import fuzz_where_conditions
from tests.laws.fuzzers import hostile_texts as words
from tests.support.local_pipeline_script import MicroBatch, run_local_script

from slackwater.config.window import Aggregation, Window
from slackwater.query.server import serve_state
from slackwater.query.state_view import StateView
from slackwater.state.files.store import FilesStore

STATUSES = {200, 400, 404, 405, 413, 414, 421, 431, 503}
METHODS = ("GET", "GET", "GET", "GET", "HEAD", "POST", "get", "TRACE", "CONNECT", "\0", "")
HOSTS = (
    "localhost",
    "127.0.0.1:80",
    "[::1]",
    "evil.example",
    "",
    "localhost, evil",
    "a" * 300,
    "127.0.0.1.nip.io",
    "[",
    "]",
    "\xff",
)
EXTRA = (
    *(
        "Content-Length: 5",
        "Content-Length: -1",
        "Content-Length: 9999999999999999999999",
        "Transfer-Encoding: chunked",
        "Expect: 100-continue",
    ),
    *(
        "Transfer-Encoding: gzip, chunked",
        "Upgrade: websocket\r\nConnection: Upgrade",
        "X: " + "y" * 20_000,
        "Accept: " + "a/b," * 500,
    ),
    *(
        "Connection: close",
        "Host: localhost",
        "Range: bytes=0-1",
        "X",
        ": y",
        " x: y",
        "X: a\r\n folded",
        "Accept: application/vnd.apache.arrow.stream",
    ),
)


@functools.cache
def start_state_server() -> int:
    """Return the port of a server over a state of fifty sessions. The server runs until this process exits."""
    home = tempfile.mkdtemp(prefix="slackwater-hostile-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    window = Window(
        kind="session",
        gap_ms=1000,
        max_session_duration_ms=100_000,
        group_by=["k"],
        aggregations=[Aggregation(agg="count", as_="n")],
    )
    rows = MicroBatch({"a": [{"ts": i * 5_000_000, "k": f"u{i}"} for i in range(50)]})
    run_local_script(window, [rows], {"k": "string"}, lateness_ms={"a": 86_400_000}, state_dir=home, flush=False)
    return serve_state(StateView(FilesStore(home, "law")), 0).port


def fetch_response(path: str, port: int) -> tuple[int, bytes]:
    """Return the status and the body of a response of the server on a port."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        client.request("GET", path)
        answer = client.getresponse()
        return answer.status, answer.read()
    finally:
        client.close()


def draw_state_server_path(rng: random.Random) -> str:
    """Draw a path with a query."""
    if rng.random() < 0.4:
        return rng.choice(
            [
                f"/scan?where={quote(fuzz_where_conditions.draw_typed_condition(rng).replace('x', 'n').replace('yes', 'n > 1'))}",
                f"/fetch?key=k={quote(words.draw_text(rng)[:300])}",
                f"/find-sessions?key=k=u1&earliest_end={rng.randrange(-(10**6), 10**6)}",
                f"/scan?limit={rng.randrange(60)}&format=arrow",
            ]
        )
    names = ("where", "limit", "at", "key", "format", "earliest_end", "latest_start", "nosuch", "")
    parts = []
    for _ in range(rng.choice([0, 1, 1, 2, 3, 70])):
        name = rng.choice(names)
        if name == "where":
            value = fuzz_where_conditions.draw_untyped_condition(rng, 3)
        elif name == "key":
            value = rng.choice(["k=u1", "k", "", "k=u1,k=u2", "nosuch=1", f"k={words.draw_text(rng)[:300]}"])
        else:
            value = rng.choice(
                [str(rng.choice(words.NUMBERS))[:500], words.draw_text(rng)[:300], "0", "5", "2024-01-01T00:00:00Z"]
            )
        parts.append(f"{name}={quote(value) if rng.random() < 0.9 else value}")
    path = rng.choice(
        ["/", "/scan", "/scan", "/fetch", "/find-sessions", "/scan/", "//", "/../..", "/%00", "*", "http://evil/scan"]
    )
    return f"{path}?{'&'.join(parts)}" if parts else path


def draw_request(rng: random.Random, draw: Callable[[random.Random], str] = draw_state_server_path) -> bytes:
    """Return bytes that resemble a request, with a path from `draw`."""
    lines = [f"{rng.choice(METHODS)} {draw(rng)} HTTP/{rng.choice([*['1.1'] * 20, '1.0', '2.0', '9', ''])}"]
    lines += [f"Host: {rng.choice(HOSTS) if rng.random() < 0.15 else 'localhost'}"] * rng.choice([*[1] * 20, 0, 2])
    lines += rng.sample(EXTRA, rng.choice([0, 0, 0, 0, 1, 2]))
    lines += ["Connection: close", "", rng.choice([*[""] * 8, "hello", "0\r\n\r\n", "GET / HTTP/1.1\r\n\r\n"])]
    whole = "\r\n".join(lines)
    return (words.damage_text(rng, whole) if rng.random() < 0.15 else whole).encode("utf-8", "replace")


def check_random_request(rng: random.Random) -> str:
    sent, response = draw_request(rng), b""
    with socket.create_connection(("127.0.0.1", start_state_server()), timeout=30) as client:
        try:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
            while part := client.recv(65536):
                response += part
        except (ConnectionResetError, BrokenPipeError):
            pass
    status, body = fetch_response("/fetch?key=k=u49", start_state_server())
    assert status == 200, "the next question is not answered"
    assert [r["k"] for r in json.loads(body)] == ["u49"], f"the next answer is wrong: {body[:200]!r}"
    if not response:
        return "closed"
    head, _, body = response.partition(b"\r\n\r\n")
    match = re.match(rb"HTTP/1\.1 (\d{3}) ", head)
    assert match, f"no HTTP: {head[:100]!r}"
    code = int(match[1])
    assert code in STATUSES or code == 100, f"status {code}: {body[:300]!r} to {sent[:300]!r}"
    if code >= 400 and body and not sent.startswith(b"HEAD"):
        error = json.loads(body.split(b"HTTP/1.1")[0])["error"]
        assert error and "\n" not in error.strip(), error
    return "answered" if code == 200 else f"refused {code}"
