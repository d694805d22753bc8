"""The page in a real browser, Chromium without a screen, driven by its DevTools protocol."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import websocket
from tests.support.needs import needed
from tests.support.ui_states import config, drawn, joined_and_counted, ran, watched

from slackwater.cli.ui import watched_at
from slackwater.testing.kit import Rows
from slackwater.ui.server import UiServer, serve

WAIT_S = 120.0  # for a state that comes by itself; only what never comes takes so long
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One tab. `said`: what the protocol told by itself, as console messages and requests."""

    def __init__(self, home: Path) -> None:
        assert CHROMIUM is not None
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        quiet = ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
        self._process = subprocess.Popen(
            [
                CHROMIUM,
                *flags,
                *quiet,
                "--remote-debugging-port=0",
                "--remote-allow-origins=*",
                f"--user-data-dir={home}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.said: list[dict[str, Any]] = []
        self._number = 0
        port = home / "DevToolsActivePort"
        until(lambda: port.exists() and len(port.read_text().splitlines()) == 2)
        number, path = port.read_text().splitlines()
        self._socket = websocket.create_connection(f"ws://127.0.0.1:{number}{path}", timeout=WAIT_S)
        self._session: str | None = None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **given: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": given}
        self._socket.send(json.dumps(message | ({"sessionId": self._session} if self._session else {})))
        while True:
            found = json.loads(self._socket.recv())
            if found.get("id") == self._number:
                assert "error" not in found, found
                return dict(found["result"])
            self.said.append(found)

    def value(self, code: str) -> Any:
        found = self.ask("Runtime.evaluate", expression=code, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def open(self, url: str) -> None:
        self.ask("Page.navigate", url=url)
        self.arrives(url)

    def arrives(self, url: str) -> None:
        until(lambda: self.value("document.readyState") == "complete" and url in self.value("location.href"))

    def dark(self, wanted: bool) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if wanted else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])

    def press(self, key: str, code: int, text: str = "") -> None:
        for kind in ("keyDown", "keyUp"):
            self.ask(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                text=text if kind == "keyDown" else "",
            )

    def click(self, selector: str) -> None:
        """A click of the pointer in the middle of the first element, as a person's."""
        at = self.value(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}});"
            " const r = e.getBoundingClientRect(); return {x: r.x + r.width / 2, y: r.y + r.height / 2}; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=at["x"], y=at["y"], button="left", clickCount=1)

    def complaints(self) -> list[Any]:
        """Errors and warnings of the console, and exceptions."""
        self.value("1")
        found = []
        for m in self.said:
            entry = m.get("params", {})
            if m["method"] == "Runtime.exceptionThrown":
                found.append(entry["exceptionDetails"])
            if m["method"] == "Log.entryAdded" and entry["entry"]["level"] in ("error", "warning"):
                found.append(entry["entry"])
            if m["method"] == "Runtime.consoleAPICalled" and entry["type"] in ("error", "warning", "assert"):
                found.append(entry["args"])
        return found

    def requests(self) -> list[str]:
        return [m["params"]["request"]["url"] for m in self.said if m["method"] == "Network.requestWillBeSent"]

    def close(self) -> None:
        self._socket.close()
        self._process.terminate()
        self._process.wait(timeout=60)


def until(there: Callable[[], Any]) -> None:
    ends = time.monotonic() + WAIT_S
    while not there():
        assert time.monotonic() < ends, "it never came"
        time.sleep(0.05)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    needed("Chromium", CHROMIUM is not None, "apt-get install chromium")
    found = Browser(tmp_path / "browser")
    yield found
    found.close()


@pytest.fixture
def page(tmp_path: Path) -> Iterator[tuple[UiServer, Path]]:
    home = tmp_path / "pipeline"
    home.mkdir()
    file = config("session", home)
    ran(file, drawn(4, rows=120))
    running = serve([watched(file)], 0)
    yield running, file
    running.stop()


def test_a_person_looks_clicks_and_follows(browser: Browser, page: tuple[UiServer, Path]) -> None:
    running, file = page
    home = f"http://127.0.0.1:{running.port}"
    browser.open(home + "/")
    assert "law" in browser.value("document.title")
    assert browser.value("document.querySelector('#top .sentence').classList.contains('good')")
    assert browser.value("document.querySelectorAll('svg.plot').length") >= 8
    # what it takes, what waits, and what more lateness would have kept
    assert browser.value("document.querySelectorAll('#pace svg .phase').length") >= 4
    assert "more of lateness_ms on each source you would have kept at least" in browser.value(
        "document.querySelector('#rows .advice').textContent"
    )
    # nothing is empty, overlong or beside the page
    assert browser.value("[...document.querySelectorAll('svg.plot')].every(s => s.getBoundingClientRect().height > 8)")
    assert browser.value("document.documentElement.scrollWidth <= innerWidth")
    # the stylesheet is there, in both colours
    colours = []
    for dark in (False, True):
        browser.dark(dark)
        colours.append(browser.value("getComputedStyle(document.body).backgroundColor"))
    assert colours[0] != colours[1]
    # it follows commits, and tables that are open stay open
    until(lambda: browser.value("document.getElementById('link').textContent") == "live")
    browser.value("document.querySelector('#rows details').open = true; window.same = 1; 1")
    before = browser.value("document.querySelector('#top dd').textContent")
    ran(file, [Rows({"web": [], "app": []}), Rows({"web": [{"ts": 1, "user": "u1"}], "app": []})])
    until(lambda: browser.value("document.querySelector('#top dd').textContent") not in ("", before))
    rows = "[...document.querySelectorAll('#rows details.table')].at(-1).querySelector('tbody tr:last-child th').textContent"
    until(lambda: browser.value(rows) == browser.value("document.querySelector('#top dd').textContent"))
    until(lambda: browser.value("document.querySelector('#rows details').open"))
    assert browser.value("window.same") == 1  # it is the same page still
    assert browser.value("document.getElementById('link').textContent") == "live"
    # from a bin to a key with the pointer
    browser.click("#closing svg a .reach")
    browser.arrives("/closing?from=")
    browser.click(".keys tbody a")
    browser.arrives("/key?user")
    assert browser.value("document.querySelectorAll('svg .session').length") >= 1
    assert "open session" in browser.value("document.querySelector('pre').textContent")
    # and with the keyboard
    browser.open(home + "/")
    browser.value("document.querySelector('#closing svg a').focus(); 1")
    assert browser.value("document.activeElement.getAttribute('aria-label')")
    browser.press("Enter", 13, "\r")
    browser.arrives("/closing?from=")
    assert browser.complaints() == []
    foreign = [url for url in browser.requests() if not url.startswith((home, "about:", "data:"))]
    assert foreign == []
    assert any(url.endswith("/static/htmx.min.js") for url in browser.requests())


def test_the_slider_goes_to_a_kept_commit_and_back(browser: Browser, page: tuple[UiServer, Path]) -> None:
    running, _ = page
    home = f"http://127.0.0.1:{running.port}"
    browser.open(home + "/")
    latest = browser.value("document.querySelector('#top dd').textContent")
    browser.value("document.getElementById('epochs').focus(); 1")
    browser.press("ArrowLeft", 37)
    browser.arrives("/epoch/")
    until(lambda: browser.value("document.querySelector('#top dd')?.textContent") not in (None, latest))
    assert "stays at this commit" in browser.value("document.querySelector('.link dd').textContent")
    browser.click(".epochs a:last-child")
    until(lambda: browser.value("document.querySelector('#top dd')?.textContent") == latest)
    assert browser.complaints() == []


def test_a_join_shows_what_waits_and_its_stages_lead_there(browser: Browser, tmp_path: Path) -> None:
    home = tmp_path / "join"
    joined_and_counted(home)
    running = serve(watched_at(str(home)), 0)
    try:
        browser.open(f"http://127.0.0.1:{running.port}/")
        assert browser.value("document.querySelectorAll('#joins svg .bar').length") >= 2
        assert browser.value("document.querySelectorAll('#joins svg .cap').length") == 2
        browser.click('a[href="#joins-title"]')
        browser.arrives("#joins-title")
        assert browser.value("document.getElementById('joins-title').getBoundingClientRect().top") < 800
        assert browser.value("document.documentElement.scrollWidth <= innerWidth")
        assert browser.complaints() == []
    finally:
        running.stop()


def test_a_hostile_key_runs_nothing(browser: Browser, page: tuple[UiServer, Path], tmp_path: Path) -> None:
    running, _ = page
    home = f"http://127.0.0.1:{running.port}"
    for key in ("%3Cscript%3Ewindow.bad%3D1%3C%2Fscript%3E", "%22%3E%3Cimg%20src%3Dx%20onerror%3Dwindow.bad%3D1%3E"):
        browser.open(f"{home}/key?user={key}")
        assert browser.value("window.bad === undefined")
        assert browser.value("document.querySelectorAll('img').length") == 0
    assert browser.complaints() == []


def test_a_saved_page_opens_without_a_server(browser: Browser, page: tuple[UiServer, Path], tmp_path: Path) -> None:
    from slackwater.cli.ui import save_page

    _, file = page
    save_page([watched(file)], tmp_path / "incident.html")
    browser.open(f"file://{tmp_path}/incident.html")
    assert browser.value("document.querySelector('#top .sentence').classList.contains('good')")
    assert browser.value("getComputedStyle(document.querySelector('.card')).borderRadius") == "12px"
    assert browser.complaints() == []
    assert [url for url in browser.requests() if not url.startswith(("file:", "about:"))] == []
