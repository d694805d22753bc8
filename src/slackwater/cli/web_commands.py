"""`ui` and `serve`: serve a web page about pipelines, or the state of one pipeline, until a signal arrives."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from slackwater.cli.state_location import StateLocation
from slackwater.cli.why import format_report
from slackwater.config import toml
from slackwater.core.humanize import mismatch, plural
from slackwater.errors import StartError, Topic
from slackwater.evolution.pipeline_from_state import rebuild_pipeline
from slackwater.query.server import serve_state
from slackwater.query.state_locator import list_pipelines, locate_store
from slackwater.query.state_view import StateView
from slackwater.secret_masking import mask_secrets
from slackwater.ui.page_model import PageSource, load_models

# -- ui ----------------------------------------------------------------------------------------------------------------


def serve_or_save_page(
    places: Sequence[str],
    host: str,
    port: int,
    names: Sequence[str],
    token: str | None,
    save: Path | None,
    schema: str = "public",
) -> None:
    """Serve a web page about pipelines until SIGINT or SIGTERM, or save the page to a file.

    Args:
        places: Configs, state directories or database URLs.
        host: The address to bind to.
        port: The port; 0 selects a free one.
        names: Additional host names that clients may use.
        token: The token that clients must send; None if none is required.
        save: The file to which the page is saved; None to serve the page.
        schema: The schema of the tables in a database.

    Raises SlackwaterError if there is no pipeline, or if the page cannot be served or saved.
    """
    from slackwater.ui.page_server import serve_pages

    with ExitStack() as stack:
        watched = []
        for place in places:
            for one in load_page_sources(place, schema):
                stack.callback(one.store.close)
                watched.append(one)
        if save is not None:
            save_page(watched, save)
            return
        stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        server = serve_pages(watched, port, host, names, token)
        once = "; open it once with ?token=… appended" if token else ""
        print(f"{page_address(host, server.port)} (Ctrl-C to stop{once})", flush=True)
        stop.wait()
        server.stop()


def page_address(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def load_page_sources(place: str, schema: str = "public") -> list[PageSource]:
    """Return the page source of a config, or of each pipeline with a state in a directory or database.

    Raises SlackwaterError if there is no pipeline, or if its config or state cannot be read.
    """
    if Path(place).suffix == ".toml" and not Path(place).is_dir():
        pipeline = toml.load(place)
        return [PageSource(pipeline, place, locate_store(pipeline), format_report)]
    names = list_pipelines(place, schema)
    if not names:
        raise StartError(f"{mask_secrets(place)}: no pipeline has a state here; check the location", Topic.NO_STATE)
    return [_page_source_from_state(place, name, schema) for name in names]


def _page_source_from_state(place: str, name: str, schema: str) -> PageSource:
    """Build the page source of a pipeline from its state alone, without a config.

    Raises StartError if there is no commit yet, and StateError if the state does not describe the pipeline.
    """
    store = locate_store(place, name, schema)
    with store.peek() as snapshot:
        if snapshot is None:
            raise StartError(
                f'{mask_secrets(place)}: pipeline "{name}" has not committed an epoch yet; start it with: slackwater '
                "run",
                Topic.NO_STATE,
            )
        return PageSource(rebuild_pipeline(snapshot.commit), "FILE", store, format_report, is_described=True)


def save_page(watched: Sequence[PageSource], to: Path) -> None:
    """Write the page of a pipeline to the file `to`, and print the size of the file.

    Raises StartError if `watched` does not have exactly one element, or if the file cannot be written.
    """
    from slackwater.ui.pages import PageLocation, render_page

    if len(watched) != 1:
        raise StartError(
            "--save: " + mismatch(plural(len(watched), "pipeline"), "one; pass one FILE"), Topic.SERVER_START
        )
    page_data, of_stages = load_models(watched[0], time.time_ns() // 1000)
    content = render_page(page_data, PageLocation(None), of_stages=of_stages)
    try:
        to.write_bytes(content)
    except OSError as error:
        raise StartError(
            f"--save {to}: cannot be written ({error.strerror}); choose another path", Topic.FILE_NOT_WRITABLE
        ) from None
    print(f"saved {to}, {len(content):,} bytes")


# -- serve -------------------------------------------------------------------------------------------------------------


def serve_state_until_stopped(location: StateLocation, host: str, port: int, names: Sequence[str]) -> None:
    """Serve the windows of a state as JSON or Arrow until SIGINT or SIGTERM.

    Args:
        location: The location of the state.
        host: The address to listen on.
        port: The port; 0 selects a free one.
        names: Additional host names that clients may use.

    Raises SlackwaterError if the state cannot be read or served.
    """
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with StateView(location.open_store()) as view:
        server = serve_state(view, port, host, names)
        print(f"serving on http://{host}:{server.port}/ (Ctrl-C to stop)", flush=True)
        stop.wait()
        server.stop()
