"""A schema registry on loopback with fixed answers for readers."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def serve_registry_responses(find_answer: Callable[[str], Any]) -> Iterator[str]:
    """Run a server that answers each path with JSON, and yield its address."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(find_answer(self.path)).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def build_subject_response(path: str, versions: Sequence[dict[str, Any]]) -> Any:
    """Return the answer for a subject: its version numbers, or one version."""
    if path.endswith("/versions"):
        return list(range(1, len(versions) + 1))
    return versions[int(path.rsplit("/", 1)[1]) - 1]
