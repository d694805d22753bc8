"""Loopback HTTP server that records POST requests. Tests use it as the receiver of reports about a run."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class HttpPostRecorder(ThreadingHTTPServer):
    """Server that records POST requests. `status` is the response status. `tries` counts all requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status, self.tries = 200, 0
        self.came = threading.Condition()

    def record_request(self, path: str, headers: Mapping[str, str], body: bytes) -> None:
        """Record a request. The response may still refuse the request."""
        raise NotImplementedError

    def wait_for_requests(self, count: int) -> None:
        """Wait until `count` more requests have arrived."""
        with self.came:
            goal = self.tries + count
            assert self.came.wait_for(lambda: self.tries >= goal, 60)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @contextmanager
    def serve_in_background(self) -> Iterator[None]:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        yield
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: HttpPostRecorder

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.came:
            self.server.tries += 1
            self.server.record_request(self.path, dict(self.headers), body)
            self.server.came.notify_all()
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: Any) -> None: ...
