"""Drive headless Chromium, a real browser, through its DevTools protocol."""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.external_dependencies import skip_or_fail_without_dependency

WAIT_S = 120.0  # timeout for an asynchronous change; only a failure takes this long
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class NavigatedAwayError(Exception):
    """A command was sent to a page that the browser left before it responded."""


class Browser:
    """One browser tab. `said` has the events of the protocol, such as console messages and requests."""

    def __init__(self, home: Path) -> None:
        import websocket

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
        wait_until(lambda: port.exists() and len(port.read_text().splitlines()) == 2)
        number, path = port.read_text().splitlines()
        self._socket = websocket.create_connection(f"ws://127.0.0.1:{number}{path}", timeout=WAIT_S)
        self._session: str | None = None
        target = self.send_command("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send_command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send_command(f"{domain}.enable")
        self.send_command(
            "Emulation.setScrollbarsHidden", hidden=True
        )  # a screenshot of the whole page has no scrollbars

    def send_command(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        self._socket.send(json.dumps(message | ({"sessionId": self._session} if self._session else {})))
        while True:
            response = json.loads(self._socket.recv())
            if response.get("id") == self._number:
                if "navigated" in response.get("error", {}).get("message", ""):
                    raise NavigatedAwayError(method)
                assert "error" not in response, response
                return dict(response["result"])
            self.said.append(response)

    def evaluate_script(self, code: str) -> Any:
        response = self.send_command("Runtime.evaluate", expression=code, returnByValue=True)
        assert "exceptionDetails" not in response, response
        return response["result"].get("value")

    def open_page(self, url: str) -> None:
        self.send_command("Page.navigate", url=url)
        self.wait_for_page(url)

    def wait_for_page(self, url: str) -> None:
        wait_until(lambda: self.is_page_loaded(url))

    def is_page_loaded(self, url: str) -> bool:
        """Return whether the page at `url` is loaded. False if the browser leaves the page that should respond."""
        try:
            return self.evaluate_script("document.readyState") == "complete" and url in self.evaluate_script(
                "location.href"
            )
        except NavigatedAwayError:
            return False

    def follow_link(self, selector: str, url: str) -> None:
        """Click on the first element until the page at `url` is loaded. A live page may move it under the pointer."""

        def is_followed() -> bool:
            with contextlib.suppress(AssertionError, NavigatedAwayError):  # the opened page does not have the element
                self.click(selector)
            ends = time.monotonic() + 3
            while not (arrived := self.is_page_loaded(url)) and time.monotonic() < ends:
                time.sleep(0.05)
            return arrived

        wait_until(is_followed)

    def set_dark_mode(self, enabled: bool) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if enabled else "light"}
        self.send_command("Emulation.setEmulatedMedia", features=[scheme])

    def save_screenshot(self, to: Path) -> None:
        """Save the whole page as a PNG."""
        size = self.send_command("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        screenshot = self.send_command("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        to.write_bytes(base64.b64decode(screenshot["data"]))

    def save_light_and_dark_screenshots(self, home: Path, name: str) -> None:
        """Save the page in light and dark mode. Check that the background differs and the content fits."""
        colours = []
        for mode in ("light", "dark"):
            self.set_dark_mode(mode == "dark")
            colours.append(self.evaluate_script("getComputedStyle(document.body).backgroundColor"))
            self.save_screenshot(home / f"{name}-{mode}.png")
        assert colours[0] != colours[1]
        assert self.evaluate_script("document.documentElement.scrollWidth <= innerWidth")
        self.set_dark_mode(False)

    def check_console_and_requests(self, *homes: str) -> None:
        """Check that the console has no errors or warnings, and that only `homes` received requests."""
        assert self.read_console_problems() == []
        assert [u for u in self.list_requested_urls() if not u.startswith((*homes, "about:", "data:"))] == []

    def press_key(self, key: str, code: int, text: str = "") -> None:
        for kind in ("keyDown", "keyUp"):
            self.send_command(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                text=text if kind == "keyDown" else "",
            )

    def click(self, selector: str) -> None:
        """Click in the middle of the first element, as a person would."""
        position = self.evaluate_script(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}});"
            " const r = e.getBoundingClientRect(); return {x: r.x + r.width / 2, y: r.y + r.height / 2}; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.send_command(
                "Input.dispatchMouseEvent", type=kind, x=position["x"], y=position["y"], button="left", clickCount=1
            )

    def read_console_problems(self) -> list[Any]:
        """Return the errors and warnings of the console, and the exceptions."""
        self.evaluate_script("1")
        messages = []
        for m in self.said:
            entry = m.get("params", {})
            if m["method"] == "Runtime.exceptionThrown":
                messages.append(entry["exceptionDetails"])
            if m["method"] == "Log.entryAdded" and entry["entry"]["level"] in ("error", "warning"):
                messages.append(entry["entry"])
            if m["method"] == "Runtime.consoleAPICalled" and entry["type"] in ("error", "warning", "assert"):
                messages.append(entry["args"])
        return messages

    def list_requested_urls(self) -> list[str]:
        return [m["params"]["request"]["url"] for m in self.said if m["method"] == "Network.requestWillBeSent"]

    def close(self) -> None:
        self._socket.close()
        self._process.terminate()
        self._process.wait(timeout=60)


def wait_until(condition: Callable[[], Any]) -> None:
    ends = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < ends, "it never came"
        time.sleep(0.05)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    skip_or_fail_without_dependency("Chromium", CHROMIUM is not None, "apt-get install chromium")
    client = Browser(tmp_path / "browser")
    yield client
    client.close()
