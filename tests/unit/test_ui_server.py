"""Status page over HTTP from a real server: responses, access, caching and concurrent requests."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.support.browser import wait_until
from tests.support.local_pipeline_script import MicroBatch
from tests.support.ui_page_client import HtmlTagChecker, fetch_page
from tests.support.ui_pipeline_states import (
    DAY,
    M,
    draw_two_source_script,
    open_page_source,
    run_two_source_pipeline,
    write_two_source_config,
)

from slackwater.cli.main import main
from slackwater.errors import StartError
from slackwater.ui import page_cache, page_server
from slackwater.ui.page_server import UiServer, serve_pages

PATHS = (
    "/",
    *(
        f"/ui/{b}{kind}"
        for b in ("top", "stages", "watermark", "rows", "closing", "size", "pace", "joins", "runs")
        for kind in ("", ".json")
    ),
)


@pytest.fixture(scope="module")
def ui_config_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = write_two_source_config("session", tmp_path_factory.mktemp("ui"))
    run_two_source_pipeline(file, draw_two_source_script(4))
    return file


@pytest.fixture
def ui_page_server(ui_config_file: Path) -> Iterator[UiServer]:
    running = serve_pages([open_page_source(ui_config_file)], 0, names=["ui.example"])
    yield running
    running.stop()


def read_event_stream(ui_server: UiServer, path: str, is_complete: Callable[[str], bool]) -> str:
    """Read a stream until `is_complete` accepts its text."""
    client = http.client.HTTPConnection("127.0.0.1", ui_server.port, timeout=30)
    client.request("GET", path)
    response, received = client.getresponse(), ""
    assert response.headers["content-type"].startswith("text/event-stream")
    while not is_complete(received):
        received += response.read1(65536).decode()  # type: ignore[attr-defined]
    client.close()
    return received


def test_every_response_has_security_headers(ui_page_server: UiServer) -> None:
    for path in (*PATHS, "/key?user=u1", "/key?nix=1", "/nix", "/static/ui.css", "/static/nix", "/closing", "/state/"):
        answer = fetch_page(ui_page_server, path)
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'self';"), path
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.status in (200, 400, 404), path


def test_pages_do_not_contain_markup_that_security_policy_forbids(ui_page_server: UiServer) -> None:
    for path in ("/", "/key?user=u1", "/closing?from=0&to=9", "/key?nix=<script>"):
        tags = HtmlTagChecker(fetch_page(ui_page_server, path).text).found
        for tag, attributes in tags:
            assert "style" not in attributes
            assert not [a for a in attributes if a.startswith("on")]
            assert tag != "style"
            for name in ("src", "href", "hx-get", "sse-connect"):
                assert (attributes.get(name) or "/").startswith(("/", "#main")), attributes
                assert not (attributes.get(name) or "").startswith("//")
        assert all("src" in attributes for tag, attributes in tags if tag == "script")


def test_a_page_is_readable_without_scripts(ui_page_server: UiServer) -> None:
    text = fetch_page(ui_page_server, "/").text
    assert "Every row is accounted for" in text
    tags = HtmlTagChecker(text).found
    drawings = [a for tag, a in tags if tag == "svg"]
    assert len(drawings) >= 5
    assert all(a["role"] == "img" and a["aria-label"] for a in drawings)
    assert len([t for t, _ in tags if t == "table"]) >= 5
    assert re.search(r"<summary>Output of <code>slackwater why</code>", text)


def test_etag_names_commit_and_matching_etag_gets_304(ui_page_server: UiServer) -> None:
    epoch = json.loads(fetch_page(ui_page_server, "/ui/top.json").body)["epoch"]
    for path in PATHS:
        first = fetch_page(ui_page_server, path)
        assert first.status == 200
        tag = first.headers["etag"]
        assert tag.startswith(f'"{epoch}-')
        again = fetch_page(ui_page_server, path, If_None_Match=tag)
        assert (again.status, again.body, again.headers["etag"]) == (304, b"", tag)
        assert fetch_page(ui_page_server, path, If_None_Match=f'"x", W/{tag}').status == 304
        assert fetch_page(ui_page_server, path, If_None_Match='"other"').body == first.body


def test_a_commit_is_loaded_once_for_all_viewers(ui_config_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, look = [], page_cache.load_model

    def counted(*arguments: Any, **more: Any) -> Any:
        looks.append(1)
        return look(*arguments, **more)

    monkeypatch.setattr(page_cache, "load_model", counted)
    running = serve_pages([open_page_source(ui_config_file)], 0)
    try:
        statuses: list[list[int]] = []
        threads = [
            threading.Thread(target=lambda: statuses.append([fetch_page(running, p).status for p in PATHS]))
            for _ in range(12)
        ]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert statuses == [[200] * len(PATHS)] * 12
        assert looks == [1]
    finally:
        running.stop()


def test_a_new_commit_is_announced_and_shown(tmp_path: Path) -> None:
    file = write_two_source_config("session", tmp_path)
    run_two_source_pipeline(file, [MicroBatch({"web": [{"ts": DAY, "user": "u1"}], "app": []})])
    running = serve_pages([open_page_source(file)], 0)
    try:
        before = fetch_page(running, "/ui/top.json")
        tag = before.headers["etag"].strip('"')
        lines: list[str] = []
        listener = threading.Thread(
            target=lambda: lines.append(
                read_event_stream(running, f"/ui/events?seen={tag}", lambda s: "event: commit\n" in s)
            )
        )
        listener.start()
        run_two_source_pipeline(file, [MicroBatch({"web": [{"ts": DAY + M, "user": "u2"}], "app": []})])
        listener.join(timeout=60)
        assert not listener.is_alive()
        (_, new) = re.findall(r"(id|data): (\S+)", lines[0])[0]
        after = fetch_page(running, "/ui/top.json", If_None_Match=f'"{tag}"')
        assert after.status == 200
        assert json.loads(after.body)["epoch"] == json.loads(before.body)["epoch"] + 1
        assert after.headers["etag"] == f'"{new}"'
        assert json.loads(fetch_page(running, "/ui/rows.json").body)["total"]["rows_in"] == 2
        # a viewer that connects later immediately gets the new commit
        read_event_stream(running, "/ui/events?seen=other", lambda s: f"data: {new}\n" in s)
    finally:
        running.stop()


def test_requests_for_other_hosts_and_methods_are_refused(ui_page_server: UiServer) -> None:
    assert fetch_page(ui_page_server, "/", Host="ui.example").status == 200
    assert fetch_page(ui_page_server, "/", Host="localhost:1").status == 200
    assert fetch_page(ui_page_server, "/", Host="evil.example").status == 421
    client = http.client.HTTPConnection("127.0.0.1", ui_page_server.port, timeout=30)
    client.request("POST", "/")
    assert client.getresponse().status == 405
    client.close()


def test_listening_on_public_address_requires_token(ui_config_file: Path) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org"):
        with pytest.raises(StartError, match="other machines can reach this address"):
            serve_pages([open_page_source(ui_config_file)], 0, host)
    with pytest.raises(StartError, match="at least 8"):
        serve_pages([open_page_source(ui_config_file)], 0, token="short")
    running = serve_pages([open_page_source(ui_config_file)], 0, "0.0.0.0", token="an open secret")
    try:
        for path in (*PATHS, "/key?user=u1", "/static/ui.css", "/ui/events", "/state/", "/?token=wrong", "/?token="):
            refused = fetch_page(running, path)
            assert (refused.status, b"token" in refused.body) == (401, True), path
        welcome = fetch_page(running, "/key?user=u1&token=an+open+secret")
        assert (welcome.status, welcome.headers["location"]) == (303, "/key?user=u1")
        assert fetch_page(running, "//evil.example/?token=an+open+secret").headers["location"] == "/evil.example/"
        cookie = welcome.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "an open secret" not in cookie
        assert fetch_page(running, "/", Cookie=cookie.partition(";")[0]).status == 200
        assert fetch_page(running, "/", Cookie=cookie.partition(";")[0] + "0").status == 401
        assert fetch_page(running, "/", Cookie="\x80=;;=").status in (400, 401)
        assert fetch_page(running, "/", Authorization="Bearer an open secret").status == 200
    finally:
        running.stop()


def test_key_links_open_pages_with_windows_of_key(ui_page_server: UiServer) -> None:
    bins = json.loads(fetch_page(ui_page_server, "/ui/closing.json").body)["bins"]
    links = []
    for b in bins:
        text = fetch_page(ui_page_server, f"/closing?from={b['from_us']}&to={b['to_us']}").text
        links += re.findall(r'href="(/key\?[^"]*)"', text)
    assert len(links) == sum(b["count"] for b in bins)
    assert "/key?user" in links  # NULL
    for link in sorted(set(links)):
        key_page = fetch_page(ui_page_server, link)
        assert key_page.status == 200, link
        assert "not contain a window of this key" not in key_page.text, link
        record = json.loads(fetch_page(ui_page_server, link.replace("/key?", "/ui/key.json?")).body)
        assert record["bars"]


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/key", 400, "is missing"),
        ("/key?usr=1", 400, "did you mean"),
        ("/key?user=1&user2=2", 400, "is not a key"),
        ("/closing", 400, "expected a time in whole microseconds"),
        ("/closing?from=0&to=<b>", 400, "expected a time in whole microseconds"),
        ("/ui/keys.json?from=1", 400, "expected a time in whole microseconds"),
        ("/nix", 404, "/nix does not exist"),
        ("/static/../page_server.py", 404, "does not exist"),
        ("/static/htmx.LICENSE", 404, "does not exist"),
        ("/state/scan?where=nix", 400, "nix"),
    ],
)
def test_invalid_request_gets_error_status_and_message(
    ui_page_server: UiServer, path: str, status: int, message: str
) -> None:
    answer = fetch_page(ui_page_server, path)
    assert (answer.status, message in answer.text) == (status, True), answer.text
    assert "Traceback" not in answer.text
    assert "<b>" not in answer.text


def test_unreadable_state_is_reported_until_state_is_readable(tmp_path: Path) -> None:
    file = write_two_source_config("session", tmp_path)
    running = serve_pages([open_page_source(file)], 0)
    try:
        first = fetch_page(running, "/")
        assert first.status == 200
        assert "there is no state yet" in first.text
        assert 'class="sentence still"' in first.text
        assert 'http-equiv="refresh"' in first.text
        assert "there is no state yet" in fetch_page(running, "/ui/top").text
        assert "there is no state yet" in json.loads(fetch_page(running, "/ui/top.json").body)["error"]
        run_two_source_pipeline(file, [MicroBatch({"web": [{"ts": DAY, "user": "u1"}], "app": []})])
        read_event_stream(running, "/ui/events?seen=none", lambda s: "data: 0-" in s)
        assert fetch_page(running, "/").status == 200
        manifests = tmp_path / "state" / "law" / "manifests"
        (latest,) = manifests.glob("*.json")
        whole = latest.read_text()
        (manifests / "000000001.json").write_text(whole.replace('"epoch":0', '"epoch":1'))
        read_event_stream(running, "/ui/events?seen=none", lambda s: "data: problem-" in s)
        assert "is damaged" in fetch_page(running, "/").text
        (manifests / "000000001.json").unlink()
        read_event_stream(running, "/ui/events?seen=none", lambda s: "data: 0-" in s)
        assert fetch_page(running, "/").status == 200
    finally:
        running.stop()


def test_several_pipelines_have_an_overview(tmp_path: Path) -> None:
    files = []
    for name in ("one", "two"):
        home = tmp_path / name
        home.mkdir()
        file = write_two_source_config("tumbling", home)
        run_two_source_pipeline(file, draw_two_source_script(2))
        state = home / "state"
        file.write_text(file.read_text().replace('name = "law"', f'name = "{name}"', 1))
        if name == "one":
            shutil.rmtree(state)
        else:
            file.write_text(file.read_text().replace('name = "two"', 'name = "law"', 1))
        files.append(file)
    running = serve_pages([open_page_source(f) for f in files], 0)
    try:
        text = fetch_page(running, "/").text
        assert "there is no state yet" in text
        assert "Every row is accounted for" in text
        assert 'href="/p/law/"' in text
        assert fetch_page(running, "/p/one/").status == 200
        pipeline_page = fetch_page(running, "/p/law/").text
        assert 'sse-swap="rows"' in pipeline_page
        assert 'sse-connect="/p/law/ui/events' in pipeline_page
        assert fetch_page(running, "/p/law/ui/rows.json").status == 200
        assert fetch_page(running, "/p/law").status in (200, 307)
    finally:
        running.stop()
    with pytest.raises(StartError, match="with the same name"):
        serve_pages([open_page_source(files[1]), open_page_source(files[1])], 0)


def test_limit_of_event_streams_leaves_room_for_page_requests(ui_page_server: UiServer) -> None:
    """Open all connections before the first request, so that the server decides all requests at the same time."""
    clients = [socket.create_connection(("127.0.0.1", ui_page_server.port), timeout=30) for _ in range(128)]
    try:
        for client in clients:
            client.sendall(b"GET /ui/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answers = [client.recv(12) for client in clients]
        assert answers.count(b"HTTP/1.1 200") == page_server.VIEWERS
        assert answers.count(b"HTTP/1.1 503") == 128 - page_server.VIEWERS
        for _ in range(3):
            assert fetch_page(ui_page_server, "/").status == 200
        assert fetch_page(ui_page_server, "/ui/events").status == 503
    finally:
        for client in clients:
            client.close()

    def is_followed() -> bool:
        with socket.create_connection(("127.0.0.1", ui_page_server.port), timeout=30) as client:
            client.sendall(b"GET /ui/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return client.recv(12) == b"HTTP/1.1 200"

    wait_until(is_followed)  # the slots are free once the server has noticed that the clients left


@pytest.mark.parametrize("path", ["/ui/events", "/ui/events?blocks", "/", "/key?user=u1", "/ui/top.json"])
def test_head_response_ends_without_body(ui_page_server: UiServer, path: str) -> None:
    with socket.create_connection(("127.0.0.1", ui_page_server.port), timeout=30) as client:
        client.sendall(f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while part := client.recv(65536):
            answer += part
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("epoch", ["9" * 5000, "-1", "1e3", "٣", "%00", "1" * 19])
def test_invalid_epoch_is_refused_with_a_one_line_error(ui_page_server: UiServer, epoch: str) -> None:
    answer = fetch_page(ui_page_server, f"/epoch/{quote(epoch, safe='%')}")
    assert answer.status == 400
    assert answer.text.startswith("epoch: found ")
    assert answer.text.count("\n") == 1


# -- the command -------------------------------------------------------------------------------------------------------


def run_ui_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[Any, str, str]:
    monkeypatch.setattr(sys, "argv", ["slackwater", "ui", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    output = capsys.readouterr()
    return ended.value.code, output.out, output.err


def test_a_page_is_saved_as_one_file(
    ui_config_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    to = tmp_path / "incident.html"
    code, out, _ = run_ui_command(monkeypatch, capsys, str(ui_config_file), "--save", str(to))
    assert (code or 0, out.startswith(f"saved {to}, ")) == (0, True)
    text = to.read_text()
    tags = HtmlTagChecker(text).found
    assert not [a for t, a in tags if t in ("script", "link", "img", "a") and a.get("href") != "#main"]
    assert "Every row is accounted for" in text
    assert "url(http" not in text
    assert '"rows_in"' in text or "&#34;rows_in&#34;" in text
    code, _, err = run_ui_command(monkeypatch, capsys, str(ui_config_file), "--save", str(tmp_path / "no" / "x.html"))
    assert (code, err) == (
        1,
        f"error: --save {tmp_path}/no/x.html: cannot be written (No such file or directory); choose another path\n",
    )


def test_ui_command_reports_invalid_arguments(
    ui_config_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run_ui_command(monkeypatch, capsys, str(ui_config_file), "--host", "0.0.0.0")
    assert code == 1
    assert err.startswith("error: --host 0.0.0.0: other machines can reach this address")
    code, _, err = run_ui_command(
        monkeypatch, capsys, str(ui_config_file), str(ui_config_file), "--save", str(tmp_path / "x.html")
    )
    assert (code, "pass one FILE" in err) == (1, True)
    in_memory = ui_config_file.read_text().partition("[state_store]")[0] + '[state_store]\nkind = "in_memory"\n'
    ui_config_file.with_name("memory.toml").write_text(in_memory)
    code, _, err = run_ui_command(monkeypatch, capsys, str(ui_config_file.with_name("memory.toml")))
    assert (code, "its state is in memory" in err) == (1, True)


def test_ui_modules_are_imported_lazily() -> None:
    code = (
        "import sys, slackwater, slackwater.cli.main;"
        "print([m for m in ('jinja2', 'starlette', 'uvicorn', 'slackwater.ui', 'slackwater.ui.page_server') if m in sys.modules])"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert process.stdout.strip() == "[]"


def test_vendored_files_match_their_checksums() -> None:
    home = resources.files("slackwater.ui") / "static"
    record = json.loads((home / "vendored.json").read_text())
    for entry in record["files"]:
        content = (home / entry["file"]).read_bytes()
        assert sha256(content).hexdigest() == entry["sha256"], entry["file"]
        assert (home / entry["licence_file"]).is_file()
        assert entry["version"].encode() in content or entry["file"] == "htmx-sse.min.js"
    scripts = [p for p in home.iterdir() if p.name.endswith(".js") and p.name != "ui.js"]
    assert {p.name for p in scripts} == {e["file"] for e in record["files"]}
    assert sum(len(p.read_bytes()) for p in home.iterdir()) < 150_000
