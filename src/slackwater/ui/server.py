"""HTTP server of the pages, built on `web.server`.

    GET /                       the page; for several pipelines an overview, and the pages under /p/NAME/
    GET /epoch/41               the page of an earlier commit, which does not change
    GET /closing?from=US&to=US  the first keys of a bin
    GET /key?user_id=u7         one key; a name without a value means NULL
    GET /letters?reason=late    the newest dead letters
    GET /hot                    the keys with the most rows
    GET /stage/NAME/            the page of one of several stages, with all of these paths below it
    GET /ui/BLOCK               a block as HTML: top, stages, watermark, rows, closing, size, pace, joins, runs
    GET /ui/BLOCK.json          the block as JSON; also /ui/keys.json and /ui/key.json with the queries above
    GET /ui/events?seen=TAG     server-sent events: one per commit; with &blocks, preceded by one per changed block
    GET /state/                 the requests of `slackwater serve`

Responses that do not depend on the query are rendered once per commit and have an ETag. Events are also built once for
all viewers (`server_sent_events.py`). They keep an open page up to date.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import unquote_plus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from slackwater.core.dead_letter_filter import LetterFilter
from slackwater.core.humanize import mismatch
from slackwater.dead_letters.letter_reader import add_attempts, read_newest
from slackwater.errors import SlackwaterError, StartError, StateError
from slackwater.maintenance.hot_keys import find_hot_keys
from slackwater.query import server as questions
from slackwater.query.state_view import StateView
from slackwater.secrets import remember_secret
from slackwater.ui import pages
from slackwater.ui.access_control import TokenMiddleware, check_bind_address
from slackwater.ui.blocks.upcoming_closes import closing_windows
from slackwater.ui.page_cache import CommitWatcher, PageCache
from slackwater.ui.page_model import PageModel, PageSource, latest_snapshot, load_key, load_model, select_window_stage
from slackwater.ui.pages import PageLocation
from slackwater.ui.responses import answer_request, fail_request, html_response, refuse_request, send_error, tag_content
from slackwater.web.event_streams import EventStream, StreamSlots
from slackwater.web.request_guard import Application
from slackwater.web.server import LOOPBACK, HttpServer, start_server

log = logging.getLogger("slackwater")

VIEWERS = 96  # viewers that follow the commits; the rest of the server's 128 connections is for requests
AT_ONCE = 4
WAITING = 64
LETTERS = 100  # how many dead letters are listed
HOT = 10  # how many keys by rows, and as many by events
BEAT_S = 15.0  # between keep-alive comments on a stream
Find = Callable[[Request], tuple[PageCache, PageLocation]]
STATIC = {"ui.css": "text/css", "ui.js": "text/javascript", "htmx.min.js": "text/javascript"}
STATIC |= {"htmx-sse.min.js": "text/javascript", "icon.svg": "image/svg+xml"}


class UiServer:
    """A server that runs until `stop`."""

    def __init__(self, http: HttpServer, ui: UiApplication) -> None:
        self._http, self._ui = http, ui
        self.port = http.port

    def stop(self) -> None:
        self._http.stop()
        self._ui.stop()


def serve_pages(
    watched: Sequence[PageSource], port: int, host: str = LOOPBACK, names: Sequence[str] = (), token: str | None = None
) -> UiServer:
    """Serve the pages of these pipelines until `stop`. Raises StartError, also if `token` is missing for a public host."""
    check_bind_address(host, token)
    if token is not None:
        remember_secret(token)
    ui = UiApplication(watched)
    try:
        http = start_server(
            TokenMiddleware(ui.app, token), port, host, service="the page", option="--port", names=names
        )
    except BaseException:
        ui.stop()
        raise
    return UiServer(http, ui)


class UiApplication:
    """The ASGI application (`app`) of the pages, with its threads and caches, which `stop` releases."""

    def __init__(self, watched: Sequence[PageSource], viewers: int = VIEWERS) -> None:
        names = [w.pipeline.name for w in watched]
        if len(set(names)) < len(names):
            raise StartError(
                "two of the files describe pipelines with the same name; pass each pipeline once, or rename one"
            )
        self._threads = ThreadPoolExecutor(AT_ONCE, "page")
        self._open = 0
        self._streams = StreamSlots(viewers)
        self._closing = False
        self._views = [StateView(w.store) for w in watched]
        several = len(names) > 1
        links = tuple((name, f"/p/{name}") for name in names) if several else ()
        self._caches: list[PageCache] = []
        routes: list[Any] = [Route("/static/{name}", _static)]
        self._of_stages: dict[tuple[str, str], PageCache] = {}
        for one_watched, view in zip(watched, self._views, strict=True):
            base = f"/p/{one_watched.pipeline.name}" if several else ""
            location = PageLocation(base, others=links)
            cache = PageCache(one_watched, _block_renderer(pages.BLOCKS, location))
            self._caches.append(cache)

            def whole(
                request: Request, cache: PageCache = cache, location: PageLocation = location
            ) -> tuple[PageCache, PageLocation]:
                return cache, location

            def one(
                request: Request, cache: PageCache = cache, location: PageLocation = location
            ) -> tuple[PageCache, PageLocation]:
                return self._stage(cache, location, request.path_params["stage"])

            of_stage = Mount("/stage/{stage}", routes=self._routes(one, pages.STAGE_BLOCKS))
            pipeline_routes = [
                *self._routes(whole, pages.BLOCKS),
                of_stage,
                Mount("/state", routes=questions.build_routes(view)),
            ]
            routes.append(Mount(base, routes=pipeline_routes))
        if several:
            routes.append(self._route("/", self._overview))
        self.app: Application = Starlette(
            routes=routes, exception_handlers={HTTPException: refuse_request, Exception: fail_request}
        )
        self._watcher = CommitWatcher(lambda: [*self._caches, *list(self._of_stages.values())])

    def stop(self) -> None:
        self._closing = True
        self._watcher.stop()
        for cache in (*self._caches, *self._of_stages.values()):
            cache.notifier.notify()
        self._threads.shutdown(wait=False, cancel_futures=True)
        for view in self._views:
            view.close()

    def _stage(self, pipeline_cache: PageCache, location: PageLocation, address: str) -> tuple[PageCache, PageLocation]:
        """Return the cache of one stage, by its URL component. Raises HTTPException for an unknown stage."""
        stage_location = dataclasses.replace(location, base=f"{location.base}/stage/{address}", home=location.base)
        cache = self._of_stages.get((pipeline_cache.name, address))
        if cache is None:
            model = pipeline_cache.now()
            if model is None:
                raise StateError(pipeline_cache.problem or "")
            name = next((s.name for s in model.stages if s.at == address), None)
            if name is None or not model.stages[1:]:
                raise HTTPException(404)
            new_cache = PageCache(pipeline_cache.watched, _block_renderer(pages.STAGE_BLOCKS, stage_location), name)
            cache = self._of_stages.setdefault((pipeline_cache.name, address), new_cache)
        return cache, stage_location

    def _routes(self, find: Find, blocks: Sequence[str]) -> list[Any]:
        """Return the routes of a pipeline or a stage. `find` returns the cache and location for a request."""

        def by(answer: Callable[..., Response], *more: Any) -> Callable[[Request], Response]:
            return lambda request: answer(*find(request), *more, request)

        async def events(request: Request) -> Response:
            try:
                cache, _ = await asyncio.get_running_loop().run_in_executor(self._threads, find, request)
            except SlackwaterError as error:
                return send_error(request, 503, str(error))
            return self._events(cache, request)

        routes = [
            self._route("/", by(_page)),
            self._route("/epoch/{epoch}", by(_past_page)),
            self._route("/closing", by(_bin)),
            self._route("/key", by(_key)),
            self._route("/letters", by(_letters)),
            self._route("/hot", by(_hot)),
            Route("/ui/events", events, methods=["GET"]),
            self._route("/ui/keys.json", by(_keys_json)),
            self._route("/ui/key.json", by(_key_json)),
        ]
        for name in blocks:
            routes.append(self._route(f"/ui/{name}", by(_fragment, name)))
            routes.append(self._route(f"/ui/{name}.json", by(_block_json, name)))
        return routes

    def _route(self, path: str, answer: Callable[[Request], Response]) -> Route:
        """Return a route whose requests are answered by one of a few threads."""

        async def answer_in_thread(request: Request) -> Response:
            if self._open >= AT_ONCE + WAITING:
                return send_error(request, 503, f"{self._open} queries are running; try again later")
            self._open += 1
            try:
                return await asyncio.get_running_loop().run_in_executor(self._threads, answer_request, answer, request)
            finally:
                self._open -= 1

        return Route(path, answer_in_thread, methods=["GET"])

    def _overview(self, request: Request) -> Response:
        pipelines = []
        for cache in self._caches:
            model = cache.now()
            pipelines.append((cache.name, f"/p/{cache.name}/", model, None if model else cache.problem, cache.waits))
        digest = hashlib.sha256("\0".join(cache.tag for cache in self._caches).encode()).hexdigest()[:16]
        return tag_content(request, digest, pages.render_overview(pipelines), "text/html")

    def _events(self, cache: PageCache, request: Request) -> Response:
        tag = request.headers.get("last-event-id") or request.query_params.get("seen", "")
        blocks = "blocks" in request.query_params
        refusal = send_error(
            request, 503, f"{self._streams.most} viewers already follow the commits; reload the page later"
        )
        return EventStream(lambda: self._stream(cache, tag, blocks), self._streams, refusal)

    async def _stream(self, cache: PageCache, tag: str, blocks: bool) -> AsyncIterator[bytes]:
        """Yield one update for each model that this viewer does not have. `tag`: the tag of the model that it has.

        All viewers receive the same bytes, and wait for a notification instead of polling.
        """
        cache.viewers += 1
        changed = cache.notifier.listen()
        try:
            yield b"retry: 2000\n\n"
            while not self._closing:
                changed.clear()
                if cache.tag != tag and (cache.model is not None or cache.problem is not None):
                    update = cache.ready_update
                    if update is None:  # the first model was built before there were any viewers
                        update = await asyncio.get_running_loop().run_in_executor(self._threads, cache.update)
                    yield update.bytes_for_viewer(tag) if blocks else update.short
                    tag = update.tag
                    continue
                try:
                    await asyncio.wait_for(changed.wait(), BEAT_S)
                except TimeoutError:
                    yield b": here\n\n"
        finally:
            cache.notifier.leave(changed)
            cache.viewers -= 1


# -- answers ---------------------------------------------------------------------------------------------------------


def _problem(cache: PageCache, location: PageLocation) -> Response:
    """Return a page that says why the requested page cannot be shown."""
    return html_response(
        pages.render_problem(cache.name, location, cache.problem or "", cache.waits), 200 if cache.waits else 503
    )


def _page(cache: PageCache, location: PageLocation, request: Request) -> Response:
    page = cache.get_content("page", lambda model: pages.render_page(model, location))
    if page is None:
        return _problem(cache, location)
    return tag_content(request, *page, "text/html")


def _past_page(cache: PageCache, location: PageLocation, request: Request) -> Response:
    """Return the page of an earlier commit. The rendered page is reused until the next commit."""
    epoch = _epoch(request.path_params["epoch"])
    epoch_location = dataclasses.replace(location, epoch=epoch)

    def make(now: PageModel) -> bytes:
        return pages.render_page(
            load_model(cache.watched, now.looked_us, epoch, cache.stage), epoch_location, now.kept_epochs
        )

    page = cache.get_content(f"epoch {epoch}", make)
    if page is None:
        return _problem(cache, location)
    return tag_content(request, *page, "text/html")


def _block_renderer(blocks: Sequence[str], location: PageLocation) -> Callable[[PageCache], Mapping[str, bytes]]:
    """Return a function that renders a model's blocks. The top block shows a problem; the other blocks are empty then."""

    def render_blocks(cache: PageCache) -> Mapping[str, bytes]:
        model = cache.model
        if model is None:
            return dict.fromkeys(blocks, b"") | {"top": pages.problem_fragment(cache.problem or "", cache.waits)}
        return {name: pages.render_fragment(name, model, location) for name in blocks}

    return render_blocks


def _fragment(cache: PageCache, location: PageLocation, name: str, request: Request) -> Response:
    fragment = cache.get_content(name, lambda model: pages.render_fragment(name, model, location))
    if fragment is None:  # status 200, so that the browser replaces the old block
        return html_response(pages.problem_fragment(cache.problem or "", cache.waits) if name == "top" else b"", 200)
    return tag_content(request, *fragment, "text/html")


def _block_json(cache: PageCache, location: PageLocation, name: str, request: Request) -> Response:
    content = cache.get_content(f"{name}.json", lambda model: pages.to_json(pages.block_as_data(name, model)))
    if content is None:
        raise StateError(cache.problem or "")
    return tag_content(request, *content, "application/json")


def _epoch(text: str) -> int:
    if not re.fullmatch("[0-9]{1,18}", text):
        raise StartError("epoch: " + mismatch(f"{text[:40]!a}", "a whole number of at most 18 digits"))
    return int(text)


def _range(request: Request) -> tuple[int, int]:
    bounds = []
    for name in ("from", "to"):
        text = request.query_params.get(name, "")
        if not re.fullmatch("-?[0-9]{1,18}", text):
            raise StartError(f"{name}: " + mismatch(f"{text[:40]!a}", "a time in whole microseconds since 1970"))
        bounds.append(int(text))
    return bounds[0], bounds[1]


def _windows(cache: PageCache, request: Request) -> tuple[int, int, list[Any]]:
    low, high = _range(request)
    with latest_snapshot(cache.watched) as snapshot:
        return low, high, closing_windows(select_window_stage(snapshot, cache.stage)[0], low, high)


def _bin(cache: PageCache, location: PageLocation, request: Request) -> Response:
    low, high, windows = _windows(cache, request)
    model = cache.now()
    if model is None:
        return _problem(cache, location)
    return html_response(pages.render_bin_page(model, location, low, high, windows))


def _letters(cache: PageCache, location: PageLocation, request: Request) -> Response:
    pipeline, reason = cache.watched.pipeline, request.query_params.get("reason")
    if cache.watched.is_described:
        raise StartError("dead letters: only the config names their location; start the page with: slackwater ui FILE")
    letters = add_attempts(pipeline, read_newest(pipeline, LetterFilter(reason=reason, limit=LETTERS))).to_dicts()
    return html_response(pages.render_letters_page(cache.name, location, reason, letters, LETTERS))


def _hot(cache: PageCache, location: PageLocation, request: Request) -> Response:
    def make(model: PageModel) -> bytes:
        with latest_snapshot(cache.watched) as snapshot:
            return pages.render_hot_keys_page(model, location, find_hot_keys(cache.watched.store, snapshot, HOT))

    page = cache.get_content("hot", make)
    return _problem(cache, location) if page is None else tag_content(request, *page, "text/html")


def _keys_json(cache: PageCache, location: PageLocation, request: Request) -> Response:
    _, _, windows = _windows(cache, request)
    rows = [{"key": w.key, "start_us": w.start_us, "closes_us": w.closes_us, "reason": w.reason} for w in windows]
    return Response(pages.to_json(rows), media_type="application/json")


def _key_texts(request: Request) -> dict[str, str | None]:
    """Parse the key in a query string: `name=value`, or only the name for NULL. Starlette would return a string for NULL."""
    key: dict[str, str | None] = {}
    for part in request.url.query.split("&")[:50]:
        name, is_value, value = part.partition("=")
        if name:
            key[unquote_plus(name)] = unquote_plus(value) if is_value else None
    return key


def _key(cache: PageCache, location: PageLocation, request: Request) -> Response:
    view = load_key(cache.watched, _key_texts(request), time.time_ns() // 1000, cache.stage)
    return html_response(pages.render_key_page(cache.name, location, view, cache.stage))


def _key_json(cache: PageCache, location: PageLocation, request: Request) -> Response:
    view = load_key(cache.watched, _key_texts(request), time.time_ns() // 1000, cache.stage)
    return Response(pages.to_json(dataclasses.asdict(view)), media_type="application/json")


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in STATIC:
        raise HTTPException(404)
    content = pages.read_static_file(name)
    return tag_content(request, hashlib.sha256(content).hexdigest()[:16], content, STATIC[name])


__all__ = ["UiServer", "serve_pages"]
