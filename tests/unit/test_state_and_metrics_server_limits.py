"""Isolation of the clients of the HTTP server by limits on requests, connections, hosts and answers."""

from __future__ import annotations

import http.client
import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import polars as pl
import pytest
from tests.support.local_pipeline_script import MicroBatch, run_local_script
from tests.support.markdown_pages import ROOT

import slackwater as sw
from slackwater import metrics
from slackwater.errors import StartError
from slackwater.query import server, where_condition
from slackwater.query.state_view import StateView
from slackwater.state.files.store import FilesStore
from slackwater.web.server import HttpServer, start_server

WINDOW = sw.Window(
    kind="session",
    gap_ms=1000,
    max_session_duration_ms=100_000,
    group_by=["k"],
    aggregations=[sw.Aggregation(agg="count", as_="n")],
)


@pytest.fixture(scope="module")
def window_state_view(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StateView]:
    home = tmp_path_factory.mktemp("state")
    rows = MicroBatch({"a": [{"ts": i * 5_000_000, "k": f"u{i}"} for i in range(50)]})
    run_local_script(WINDOW, [rows], {"k": "string"}, lateness_ms={"a": 86_400_000}, state_dir=str(home), flush=False)
    with StateView(FilesStore(home, "law")) as opened:
        yield opened


@pytest.fixture
def state_server(window_state_view: StateView) -> Iterator[HttpServer]:
    running = server.serve_state(window_state_view, 0, names=["state.example"])
    yield running
    running.stop()


def get_json(http_server: HttpServer, path: str, **headers: str) -> tuple[int, Any]:
    client = http.client.HTTPConnection("127.0.0.1", http_server.port, timeout=30)
    client.request("GET", path, headers=headers)
    answer = client.getresponse()
    content = answer.read()
    client.close()
    return answer.status, json.loads(content)


def scan_with_where_condition(http_server: HttpServer, where: str) -> tuple[int, Any]:
    return get_json(http_server, f"/scan?where={quote(where)}")


def send_raw_request(http_server: HttpServer, sent: bytes, whole: bool = False) -> bytes:
    """Return the first part of the answer, or the answer up to the end of the connection with `whole`."""
    with socket.create_connection(("127.0.0.1", http_server.port), timeout=30) as client:
        client.sendall(sent)
        received = b""
        while part := client.recv(65536):
            received += part
            if not whole:
                break
    return received


# -- limits on `where` -------------------------------------------------------------------------------------------------

BOMBS = {
    "a long sum": "n > " + "+".join(["1"] * 10_000),
    "many alternatives": " OR ".join(["n>1"] * 8000),
    "brackets": "(" * 1900 + "n" + ")" * 1900,
    "short brackets": "(" * 150 + "n" + ")" * 150,
    "NOT NOT": "NOT " * 350 + "n>1",
    "minus minus": "n > " + "- " * 350 + "1",
    "casts": "n" + "::int" * 180 + " > 1",
    "CASE": "CASE WHEN n>1 THEN " * 60 + "true" + " ELSE false END" * 60,
    "functions": "ABS(" * 180 + "n" + ")" * 180 + " > 1",
    "LPAD": "LENGTH(LPAD(k, 2000000000, 'y')) > 1",
    "REPEAT": "LENGTH(REPEAT('a', 2000000000)) > 1",
    "regex": "k ~ '(a{1000}){1000}'",
    "subquery": "n IN (SELECT 1)",
    "rows of one": "UNNEST(ARRAY[1,2,3]) > 1",
    "aggregate": "COUNT(*) > 1",
    "order": "ROW_NUMBER() OVER (ORDER BY n) = 1",
    "interval": "window_start > INTERVAL 'x'",
    "format": "STRPTIME(k, '%Q') > 1",
    "two": "k, n",
    "statement": "n>1; DROP TABLE x",
    "command": "DROP TABLE x",
    "star": "*",
    "nothing": "",
    "NUL": "\0",
    "half": "n > 1 AND",
    "a quote": "k = 'x",
    "digits": "n > " + "9" * 3000,
    "text": "'x'",
    "cast of text": "CAST(k AS INT) > 1",
    "another table": "x.k = 'u1'",
    "no column": "nn > 1",
    "no function": "foo(n)",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_invalid_where_condition_is_refused_with_a_one_line_error(state_server: HttpServer, bomb: str) -> None:
    status, answer = scan_with_where_condition(state_server, BOMBS[bomb])
    assert status in ((400, 414) if len(quote(BOMBS[bomb])) > 8000 else (400,))
    pattern = r"(where: |the path with its query is longer|the request is not valid HTTP, or its headers)[^\n]+"
    assert re.fullmatch(pattern, answer["error"]), answer
    assert scan_with_where_condition(state_server, "n = 1") == (200, get_json(state_server, "/scan")[1]), (
        "and the next question is answered"
    )


@pytest.mark.parametrize("bomb", ["a long sum", "casts", "LPAD", "subquery"])
def test_python_state_view_refuses_the_where_conditions_that_http_refuses(
    window_state_view: StateView, bomb: str
) -> None:
    with pytest.raises(StartError, match=r"^where: "):
        window_state_view.scan(BOMBS[bomb])


CONDITIONS = {
    "n > 1 AND k = 'b'": 1,
    "NOT (n > 1 OR k IS NULL)": 1,
    "n IN (1, 3)": 2,
    "n NOT IN (1, 3)": 1,
    "k LIKE 'a%'": 1,
    "k ILIKE 'B%'": 1,
    "k IS NOT NULL": 2,
    "n BETWEEN 2 AND 3": 2,
    "n + 1 = 3 OR n * 2 = 2 OR n - 1 = 9 OR n / 2 = 9 OR n % 7 = 6": 2,
    "-n < -2": 1,
    "CASE WHEN n > 2 THEN true ELSE false END": 1,
    "COALESCE(k, 'z') = 'z'": 1,
    "ABS(-n) = 1": 1,
    "LENGTH(k) = 1": 2,
    "UPPER(k) = 'A' OR LOWER(k) = 'b'": 2,
    "STARTS_WITH(k, 'a') OR ENDS_WITH(k, 'b')": 2,
    "CEIL(x) = 2 AND FLOOR(x) = 1": 1,
    "ROUND(x) = 2 OR ROUND(x, 1) = 1.5": 1,
    "NULLIF(n, 1) IS NULL": 1,
    "CAST(n AS DOUBLE) > 1.5 AND n::text = '2'": 1,
    "w::date = DATE '2024-01-02'": 3,
    '"Upper case" AND "Upper case" IS TRUE': 3,
    " OR ".join(["n = 1"] * 90): 1,
}


@pytest.mark.parametrize("where", CONDITIONS)
def test_where_condition_selects_the_rows_that_polars_selects(where: str) -> None:
    data = {
        "k": ["a", "b", None],
        "n": [1, 2, 3],
        "x": [1.5, -2.25, None],
        "Upper case": [True] * 3,
        "w": ["2024-01-02"] * 3,
    }
    frame = pl.DataFrame(data).with_columns(pl.col("w").str.to_datetime("%Y-%m-%d"))
    filtered = pl.concat(where_condition.filter_frame(frame, where_condition.parse_condition(where, frame.columns)))
    assert filtered.height == CONDITIONS[where]
    assert filtered.equals(frame.filter(pl.sql_expr(where)))


# -- limits on answers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", ["9" * 23, "-1", "many", "1_0", "１", "", "1e3", "9" * 5000, "100001"])
def test_invalid_scan_limit_is_refused_with_the_valid_range(state_server: HttpServer, limit: str) -> None:
    status, answer = get_json(state_server, f"/scan?limit={quote(limit)}")
    assert status == 400
    assert re.fullmatch(r'limit: found "[^\n]{0,80}", expected a whole number from 0 to 100000', answer["error"])


@pytest.mark.parametrize("path", ["/scan?at=" + "9" * 20, "/?" + "&".join("at=0" for _ in range(60)), "/?at=%ff"])
def test_malformed_query_string_is_refused(state_server: HttpServer, path: str) -> None:
    assert get_json(state_server, path)[0] == 400


@pytest.mark.parametrize(
    ("bound", "value", "status", "message"),
    [
        ("MOST_ROWS", 10, 413, "the response has 50 windows, but at most 10 are allowed; request fewer windows"),
        ("MOST_BYTES", 500, 413, "the response is larger than 0 MiB; request fewer windows"),
        ("SCAN_SECONDS", 0.0, 400, "where: the query took longer than 0 seconds; request the windows of one key"),
    ],
)
def test_answer_is_limited_in_rows_bytes_and_time(
    state_server: HttpServer, monkeypatch: pytest.MonkeyPatch, bound: str, value: float, status: int, message: str
) -> None:
    monkeypatch.setattr(server, bound, value)
    assert get_json(state_server, "/scan") == (status, {"error": message})


def test_slow_request_does_not_delay_other_requests(
    window_state_view: StateView, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, free = threading.Event(), threading.Event()

    def slow(view: StateView, parameters: Any) -> dict[str, Any]:
        begun.set()
        assert free.wait(30)
        return {"was": "slow"}

    monkeypatch.setattr(server, "_HANDLERS", {**server._HANDLERS, "/slow": slow})
    running = server.serve_state(window_state_view, 0)
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(get_json(running, "/slow")))
    thread.start()
    try:
        assert begun.wait(30)
        assert get_json(running, "/scan?limit=1")[0] == 200
        assert not answers
    finally:
        free.set()
        thread.join()
        running.stop()
    assert answers == [(200, {"was": "slow"})]


def test_hundred_concurrent_requests_are_all_answered(state_server: HttpServer) -> None:
    statuses: list[int] = []
    threads = [
        threading.Thread(target=lambda: statuses.append(get_json(state_server, "/scan?limit=1")[0])) for _ in range(100)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(statuses) == 100
    assert set(statuses) <= {200, 503}
    assert statuses.count(200) >= server.MOST_RUNNING


def test_server_continues_after_an_internal_error_of_a_request(
    window_state_view: StateView, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(view: StateView, parameters: Any) -> dict[str, Any]:
        raise pl.exceptions.PanicException("out of luck\nand more")

    monkeypatch.setattr(server, "_HANDLERS", {**server._HANDLERS, "/bug": wrong})
    running = server.serve_state(window_state_view, 0)
    try:
        assert get_json(running, "/bug") == (500, {"error": "internal error: PanicException; see the log for details"})
        assert get_json(running, "/")[0] == 200
    finally:
        running.stop()


# -- hosts and requests ------------------------------------------------------------------------------------------------


@pytest.fixture
def metrics_server() -> Iterator[HttpServer]:
    running = metrics.serve_metrics(metrics.Metrics(), 0)
    yield running
    running.stop()


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "evil.example:80", "", "localhost.evil", "[x]"]
)
@pytest.mark.parametrize("which", ["state_server", "metrics_server"])
def test_unknown_host_header_is_refused(request: pytest.FixtureRequest, which: str, host: str) -> None:
    """A web page whose host name resolves to loopback cannot read data."""
    status, answer = get_json(request.getfixturevalue(which), "/metrics", Host=host)
    assert status == 421
    assert "use its IP address, or allow the name with --allow-host" in answer["error"]


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost:8085", "[::1]:80", "10.0.0.7", "LOCALHOST", "state.example:80"]
)
def test_ip_address_and_allowed_host_are_answered(state_server: HttpServer, host: str) -> None:
    assert get_json(state_server, "/", Host=host)[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "get", "X" * 100])
def test_only_get_requests_are_answered(state_server: HttpServer, method: str) -> None:
    answer = send_raw_request(state_server, f"{method} / HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(), whole=True)
    assert answer.startswith(b"HTTP/1.1 405 ")
    assert b"accepts only GET" in answer


SECOND = b"GET /fetch?key=k=u49 HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize(
    "more",
    [
        b"Content-Length: %d\r\n\r\n" % len(SECOND) + SECOND,
        b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(SECOND) + SECOND + b"\r\n0\r\n\r\n",
        b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SECOND,
        b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd" + SECOND,
        b"Content-Length: -1\r\n\r\n" + SECOND,
    ],
)
def test_request_body_is_not_parsed_as_a_second_request(state_server: HttpServer, more: bytes) -> None:
    answer = send_raw_request(state_server, b"GET / HTTP/1.1\r\nHost: localhost\r\n" + more, whole=True)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize(
    "junk",
    [
        b"\x00\xff\x00\xff\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET /?" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 10_000 + b"\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
    ],
)
def test_invalid_http_is_refused_and_the_server_continues(state_server: HttpServer, junk: bytes) -> None:
    try:
        answer = send_raw_request(state_server, junk)
    except (ConnectionResetError, BrokenPipeError):  # the server closed before it had read everything
        answer = b"HTTP/1.1 4"
    assert answer.startswith(b"HTTP/1.1 4")
    assert get_json(state_server, "/")[0] == 200


def test_client_that_closes_its_write_side_gets_an_answer(
    window_state_view: StateView, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, free = threading.Event(), threading.Event()

    def slow(view: StateView, parameters: Any) -> dict[str, Any]:
        begun.set()
        assert free.wait(30)
        return {"was": "slow"}

    monkeypatch.setattr(server, "_HANDLERS", {"/slow": slow})
    running = server.serve_state(window_state_view, 0)
    try:
        with connect_and_send(running, ASKED.replace(b"/ ", b"/slow ", 1)) as client:
            assert begun.wait(30)
            client.shutdown(socket.SHUT_WR)
            free.set()
            answer = b"".join(iter(lambda: client.recv(4096), b""))
    finally:
        running.stop()
    assert answer.endswith(b'{"was": "slow"}')


def test_long_path_is_refused(state_server: HttpServer) -> None:
    assert get_json(state_server, "/?a=" + "x" * 9000)[0] == 414


def test_unknown_path_returns_404(state_server: HttpServer) -> None:
    for path in ("//../../../etc/passwd", "/%2e%2e/", "/fetch/", "/fetch/../"):
        assert get_json(state_server, path)[0] == 404
    assert send_raw_request(
        state_server, b"GET http://evil/fetch?key=k=u49 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    ).startswith(b"HTTP/1.1 404 ")


# -- connections -------------------------------------------------------------------------------------------------------


def connect_and_send(http_server: HttpServer, sent: bytes = b"GET / HTTP/1.1\r\n") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", http_server.port), timeout=30)
    client.sendall(sent)
    return client


async def _send_empty_json(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"{}"})


def start_limited_server(app: Any = _send_empty_json, **limits: Any) -> HttpServer:
    return start_server(app, 0, service="a test", option="--port", **limits)


def wait_until_connection_closed(client: socket.socket) -> bool:
    """Wait until the server closes a connection, and discard the remaining data."""
    with client:
        try:
            while client.recv(4096):
                pass
        except ConnectionResetError:
            pass
    return True


ASKED = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize("sent", [b"", b"GET / HTT", ASKED[:-2], ASKED, ASKED + ASKED[:10]])
def test_idle_client_is_disconnected_after_the_timeout(sent: bytes) -> None:
    running = start_limited_server(wait_s=0.2)
    try:
        assert wait_until_connection_closed(connect_and_send(running, sent))
    finally:
        running.stop()


def test_idle_connections_do_not_block_new_requests() -> None:
    running = start_limited_server(max_connections=4)
    held = []
    try:
        for _ in range(8):
            held.append(connect_and_send(running))
        assert get_json(running, "/") == (200, {})
    finally:
        for client in held:
            client.close()
        running.stop()


def test_answer_that_the_client_does_not_read_is_aborted() -> None:
    gone = threading.Event()

    async def large(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(1000):
            await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
        await receive()
        gone.set()

    running = start_limited_server(large, wait_s=0.2)
    try:
        with connect_and_send(running, ASKED):
            assert gone.wait(30)
    finally:
        running.stop()


IDLE = """
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from slackwater import metrics
from tests.support.local_pipeline_script import MicroBatch, run_local_script
import slackwater as sw
server = metrics.serve_metrics(metrics.Metrics(), 0)
print(server.port, flush=True)
sys.stdin.readline()
window = sw.Window(kind="session", gap_ms=10, max_session_duration_ms=1000, group_by=["k"],
    aggregations=[sw.Aggregation(agg="count", as_="n")])
print(len(run_local_script(window, [MicroBatch({"a": [{"ts": 0, "k": "u"}]})], {"k": "string"}, state_dir=sys.argv[1]).rows))
"""


def test_idle_metrics_connections_leave_file_descriptors_to_the_runner(tmp_path: Any) -> None:
    """Open 300 connections to a process with a limit of 256 open files, then run a pipeline in the process."""
    with subprocess.Popen(
        [sys.executable, "-c", IDLE, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as runner:
        assert runner.stdout is not None
        port = int(runner.stdout.readline())
        held = []
        for _ in range(300):
            held.append(socket.socket())
            held[-1].setblocking(False)
            held[-1].connect_ex(("127.0.0.1", port))
        output, _ = runner.communicate("go on\n", timeout=60)
        for client in held:
            client.close()
    assert (runner.returncode, output) == (0, "1\n")


EXHAUSTED = """
import resource, sys
import slackwater as sw
from tests.support.local_pipeline_script import MicroBatch, run_local_script
window = sw.Window(kind="session", gap_ms=10, max_session_duration_ms=1000, group_by=["k"],
    aggregations=[sw.Aggregation(agg="count", as_="n")])
def run():
    run_local_script(window, [MicroBatch({"a": [{"ts": 0, "k": "u"}]})], {"k": "string"}, state_dir=sys.argv[1], flush=False)
run()
with sw.open_state(sys.argv[1]) as view:
    view.scan()
resource.setrlimit(resource.RLIMIT_NOFILE, (60, 256))
held = []
try:
    while True:
        held.append(open("/dev/null"))
except OSError:
    pass
for what in (run, lambda: sw.open_state(sys.argv[1] + "/law").scan()):
    try:
        what()
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_exhausted_file_descriptors_are_not_reported_as_damaged_state(tmp_path: Any) -> None:
    process = subprocess.run(
        [sys.executable, "-c", EXHAUSTED, str(tmp_path)], capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    lines = process.stdout.splitlines()
    assert len(lines) == 2, process.stderr
    for line in lines:
        assert line.startswith(
            "ResourceExhaustedError this process has too many open files and connections (Too many open files)"
        )
        assert "no file is damaged" in line
