"""`ui`: a page beside pipelines, running or not, until it is stopped; or as one file."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from slackwater.cli.why import lines
from slackwater.config import toml
from slackwater.errors import StartError
from slackwater.query.where import store_at
from slackwater.ui.seen import Watched, look_at


def show_ui(
    files: Sequence[Path], host: str, port: int, names: Sequence[str], token: str | None, save: Path | None
) -> None:
    """Serve until SIGINT or SIGTERM, or save a file. Raises SlackwaterError."""
    from slackwater.ui.server import serve

    with ExitStack() as stack:
        watched = []
        for file in files:
            pipeline = toml.load(file)
            store = store_at(pipeline)
            stack.callback(store.close)
            watched.append(Watched(pipeline, str(file), store, lines))
        if save is not None:
            save_page(watched, save)
            return
        stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        server = serve(watched, port, host, names, token)
        shown = f"[{host}]" if ":" in host else host
        once = "; open it once with ?token=… behind it" if token else ""
        print(f"http://{shown}:{server.port}/ (Ctrl-C to stop{once})", flush=True)
        stop.wait()
        server.stop()


def save_page(watched: Sequence[Watched], to: Path) -> None:
    """Write the page of one pipeline as a file. Raises StartError."""
    from slackwater.ui.pages import Place, page

    if len(watched) != 1:
        raise StartError("--save writes the page of one pipeline; name one FILE")
    content = page(look_at(watched[0], time.time_ns() // 1000), Place(None))
    try:
        to.write_bytes(content)
    except OSError as error:
        raise StartError(f"--save {to}: it cannot be written ({error.strerror}); choose another path") from None
    print(f"saved {to}, {len(content):,} bytes")
