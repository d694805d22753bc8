"""HTTP server of the pages, built on `web.server`.

    GET /                       the page; for several pipelines an overview, and the pages under /p/NAME/
    GET /epoch/41               the page of an earlier commit, which does not change
    GET /closing?from=US&to=US  the first windows that close between two watermarks (µs)
    GET /key?user_id=u7         one key; a name without a value means NULL
    GET /letters?reason=late    the newest dead letters, optionally with one reason
    GET /hot                    the keys with the most rows
    GET /stage/NAME/            the page of one of several stages; the paths above and /ui/… also exist below it
    GET /ui/BLOCK               a block as HTML: top, stages, watermark, rows, closing, size, pace, joins, runs
    GET /ui/BLOCK.json          the block as JSON; also /ui/keys.json and /ui/key.json, queried like /closing and /key
    GET /ui/events?seen=TAG     server-sent events: one per commit; with &blocks, preceded by one per changed block
    GET /state/                 the endpoints of `slackwater serve`

Responses that do not depend on the query string are rendered once per commit and have an ETag. Events, which keep open
pages up to date, are built once for all viewers (`page_cache.py`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import hmac
import ipaddress
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route

from slackwater.core.humanize import mismatch
from slackwater.errors import SlackwaterError, StartError, StateError, Topic
from slackwater.query import server as query_server
from slackwater.query.state_view import StateView
from slackwater.secret_masking import remember_secret
from slackwater.ui import handlers, pages
from slackwater.ui.page_cache import CommitWatcher, PageCache
from slackwater.ui.page_model import PageSource
from slackwater.ui.pages import PageLocation
from slackwater.web.request_guard import Application, Receive, Scope, Send
from slackwater.web.server import LOOPBACK, EventStream, HttpServer, StreamSlots, start_server

VIEWERS = 96  # maximum number of event streams; requests use the rest of the server's 128 connections
AT_ONCE = 4  # number of requests that are processed at the same time
WAITING = 64  # maximum number of requests that wait
BEAT_S = 15.0  # seconds between keep-alive comments on a stream
Find = Callable[[Request], tuple[PageCache, PageLocation]]


def serve_pages(
    watched: Sequence[PageSource], port: int, host: str = LOOPBACK, names: Sequence[str] = (), token: str | None = None
) -> UiServer:
    """Serve the pages of pipelines in background threads, until `stop` of the returned server is called.

    Args:
        watched: The pipelines.
        port: The port; 0 selects a free one.
        host: The address to listen on.
        names: Additional host names of the server.
        token: The token that clients must send; None if none is required.

    Raises StartError if the port is in use, if two pipelines have the same name, or if a public host has no token.
    """
    check_bind_address(host, token)
    if token is not None:
        remember_secret(token)
    ui = UiServer(watched)
    try:
        ui.listen(port, host, names, token)
    except BaseException:
        ui.stop()
        raise
    return ui


class UiServer:
    """The HTTP server of the pages of one or more pipelines. `stop` releases its threads, states and port."""

    port: int
    _http: HttpServer | None = None

    def __init__(self, watched: Sequence[PageSource]) -> None:
        names = [w.pipeline.name for w in watched]
        if len(set(names)) < len(names):
            raise StartError(
                "two of the files describe pipelines with the same name; pass each pipeline once, or rename one",
                Topic.SERVER_START,
            )
        self._threads = ThreadPoolExecutor(AT_ONCE, "page")
        self._open = 0
        self._streams = StreamSlots(VIEWERS)
        self._closing = False
        self._views = [StateView(w.store) for w in watched]
        several = len(names) > 1
        links = tuple((name, f"/p/{name}") for name in names) if several else ()
        self._caches: list[PageCache] = []
        self._of_stages: dict[tuple[str, str], PageCache] = {}
        routes: list[Any] = [Route("/static/{name}", handlers.send_static_file)]
        for one_watched, view in zip(watched, self._views, strict=True):
            base = f"/p/{one_watched.pipeline.name}" if several else ""
            location = PageLocation(base, others=links)
            cache = PageCache(one_watched, handlers.block_renderer(pages.BLOCKS, location))
            self._caches.append(cache)
            pipeline_routes = [
                *self._routes(partial(_find_pipeline, cache, location), pages.BLOCKS),
                Mount("/stage/{stage}", routes=self._routes(partial(self._stage, cache, location), pages.STAGE_BLOCKS)),
                Mount("/state", routes=query_server.build_routes(view)),
            ]
            routes.append(Mount(base, routes=pipeline_routes))
        if several:
            routes.append(self._route("/", partial(handlers.overview, self._caches)))
        by_error = dict.fromkeys((HTTPException, SlackwaterError, Exception), handlers.handle_error)
        self._app: Application = Starlette(routes=routes, exception_handlers=by_error)
        self._watcher = CommitWatcher(lambda: [*self._caches, *list(self._of_stages.values())])

    def listen(self, port: int, host: str, names: Sequence[str], token: str | None) -> None:
        app = TokenMiddleware(self._app, token)
        self._http = start_server(app, port, host, service="the page", option="--port", names=names)
        self.port = self._http.port

    def stop(self) -> None:
        if self._http is not None:
            self._http.stop()
        self._closing = True
        self._watcher.stop()
        for cache in (*self._caches, *self._of_stages.values()):
            cache.notifier.notify()
        self._threads.shutdown(wait=False, cancel_futures=True)
        for view in self._views:
            view.close()

    def _stage(
        self, pipeline_cache: PageCache, location: PageLocation, request: Request
    ) -> tuple[PageCache, PageLocation]:
        """Return the page cache and the location of the stage in a URL. Raises HTTPException for an unknown stage."""
        address = request.path_params["stage"]
        stage_location = dataclasses.replace(location, base=f"{location.base}/stage/{address}", home=location.base)
        cache = self._of_stages.get((pipeline_cache.name, address))
        if cache is None:
            model = pipeline_cache.now()
            if model is None:
                raise StateError(pipeline_cache.problem or "")
            name = next((s.name for s in model.stages if s.at == address), None)
            if name is None or not model.stages[1:]:
                raise HTTPException(404)
            new_cache = PageCache(
                pipeline_cache.watched, handlers.block_renderer(pages.STAGE_BLOCKS, stage_location), name
            )
            cache = self._of_stages.setdefault((pipeline_cache.name, address), new_cache)
        return cache, stage_location

    def _routes(self, find: Find, blocks: Sequence[str]) -> list[Any]:
        """Return the routes of a pipeline or a stage. `find` returns the page cache and the location for a request."""

        def by(answer: Callable[..., Response], *more: Any) -> Callable[[Request], Response]:
            return lambda request: answer(*find(request), *more, request)

        async def events(request: Request) -> Response:
            cache, _ = await asyncio.get_running_loop().run_in_executor(self._threads, find, request)
            return self._events(cache, request)

        routes = [Route("/ui/events", events, methods=["GET"])]
        routes += [self._route(path, by(answer)) for path, answer in handlers.PATHS.items()]
        for name in blocks:
            routes.append(self._route(f"/ui/{name}", by(handlers.fragment, name)))
            routes.append(self._route(f"/ui/{name}.json", by(handlers.block_json, name)))
        return routes

    def _route(self, path: str, answer: Callable[[Request], Response]) -> Route:
        """Return a route whose requests are answered in a thread pool."""

        async def answer_in_thread(request: Request) -> Response:
            if self._open >= AT_ONCE + WAITING:
                return handlers.send_error(request, 503, f"{self._open} queries are running; try again later")
            self._open += 1
            try:
                return await asyncio.get_running_loop().run_in_executor(
                    self._threads, handlers.answer_request, answer, request
                )
            finally:
                self._open -= 1

        return Route(path, answer_in_thread, methods=["GET"])

    def _events(self, cache: PageCache, request: Request) -> Response:
        tag = request.headers.get("last-event-id") or request.query_params.get("seen", "")
        blocks = "blocks" in request.query_params
        refusal = handlers.send_error(
            request, 503, f"{self._streams.most} viewers already follow the commits; reload the page later"
        )
        return EventStream(lambda: self._stream(cache, tag, blocks), self._streams, refusal)

    async def _stream(self, cache: PageCache, tag: str, blocks: bool) -> AsyncIterator[bytes]:
        """Yield the server-sent events for one viewer: an update for each new model, and keep-alive comments.

        `tag`: the tag of the model that the viewer already has. `blocks`: whether updates include the changed blocks.
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


def _find_pipeline(cache: PageCache, location: PageLocation, request: Request) -> tuple[PageCache, PageLocation]:
    """Return the arguments `cache` and `location`, which do not depend on the request."""
    return cache, location


# -- access --------------------------------------------------------------------------------------------------------------


HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def check_bind_address(host: str, token: str | None) -> None:
    """Raise StartError if other machines could open the page without a token, or if the token is too short."""
    if token is not None and len(token) < 8:
        raise StartError("--token: " + mismatch("fewer than 8 characters", "at least 8"), Topic.SERVER_START)
    if token is None and not _is_loopback(host):
        raise StartError(
            f"--host {host}: other machines can reach this address, and a state may contain private data; set --token, "
            "or remove --host to serve only this machine",
            Topic.SERVER_START,
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


class TokenMiddleware:
    """ASGI middleware that requires the token, if one is set.

    A client sends the token as a bearer token, or once as `?token=…`; this response sets a cookie for later requests.
    """

    def __init__(self, app: Application, token: str | None) -> None:
        self.app = app
        self._digest = None if token is None else _digest(token)
        self._cookie = f"slackwater_{(self._digest or '')[:8]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def with_headers(message: Scope) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message.setdefault("headers", []))
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(Request(scope))
        await (self.app if refusal is None else refusal)(scope, receive, with_headers)

    def _refusal(self, request: Request) -> Response | None:
        if self._digest is None:
            return None
        query_token = request.query_params.get("token")
        if query_token is not None and self._is_right(_digest(query_token)):
            return self._set_cookie(request)
        bearer_token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self._is_right(_digest(bearer_token)) or self._is_right(request.cookies.get(self._cookie, "")):
            return None
        return PlainTextResponse("this page needs a token: open it once with ?token=… after the address\n", 401)

    def _set_cookie(self, request: Request) -> Response:
        """Return a response that sets the cookie and redirects to the same address without the token.

        This keeps the token out of the browser's history.
        """
        rest = urlencode([(n, v) for n, v in request.query_params.multi_items() if n != "token"])
        # a path that begins with "//" would name another host
        path = "/" + request.scope["path"].lstrip("/")
        answer = RedirectResponse(path + (f"?{rest}" if rest else ""), 303)
        answer.set_cookie(self._cookie, self._digest or "", httponly=True, samesite="lax", path="/")
        return answer

    def _is_right(self, digest: str) -> bool:
        return self._digest is not None and hmac.compare_digest(digest.encode(), self._digest.encode())


def _digest(token: str) -> str:
    return hashlib.sha256(f"slackwater ui\0{token}".encode()).hexdigest()
