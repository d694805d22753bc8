"""`serve`: serves the state of a pipeline over HTTP, read-only, until it is stopped."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence

from slackwater.query.locate_state import locate_store
from slackwater.query.server import serve_state
from slackwater.query.state_view import StateView


def serve_state_until_stopped(
    where: str, pipeline: str | None, schema: str, host: str, port: int, names: Sequence[str]
) -> None:
    """Serve a state until SIGINT or SIGTERM. `names`: the host names that clients may use. Raises SlackwaterError."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with StateView(locate_store(where, pipeline, schema)) as view:
        server = serve_state(view, port, host, names)
        print(f"serving on http://{host}:{server.port}/ (Ctrl-C to stop)", flush=True)
        stop.wait()
        server.stop()
