"""The page over HTTP, on the one server of `web/`.

    GET /                       the page; with several pipelines an overview, and the pages under /p/NAME/
    GET /epoch/41               the page of a kept commit; it stays as it is
    GET /closing?from=US&to=US  the first keys of a bin
    GET /key?user_id=u7         one key; a name alone stands for NULL
    GET /letters?reason=late    the newest dead letters
    GET /hot                    the keys with the most rows
    GET /stage/NAME/            the page of one stage of several, with all of this below it
    GET /ui/BLOCK               a block as HTML: top, stages, watermark, rows, closing, size, pace, joins, runs
    GET /ui/BLOCK.json          the same as JSON; also /ui/keys.json and /ui/key.json with the queries above
    GET /ui/events?seen=TAG     server-sent events: one per commit; with &blocks, before it one for each block that changed
    GET /state/                 the questions of `slackwater serve`

What does not depend on the query has the commit as its ETag, and is made once for all who ask; so is what is sent to those who
follow (`updates.py`), which a page does.
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

from slackwater.errors import SlackwaterError, StartError, StateError
from slackwater.maintenance.hot_keys import hot_keys
from slackwater.query import server as questions
from slackwater.query.view import StateView
from slackwater.runner.dead_letter_reader import LetterFilter, newest_letters, with_attempts
from slackwater.secrets import remember_secret
from slackwater.ui import pages
from slackwater.ui.access import Access, check_host
from slackwater.ui.answers import answer_request, error_line, fail_request, html_response, refuse_request, with_tag
from slackwater.ui.blocks.upcoming_closes import closing_windows
from slackwater.ui.page_cache import CommitWatcher, PageCache
from slackwater.ui.page_model import PageModel, PageSource, key_at, latest_snapshot, look_at, windows_of
from slackwater.ui.pages import PageLocation
from slackwater.web.guard import Application
from slackwater.web.server import LOOPBACK, HttpServer, start_server
from slackwater.web.streams import EventStream, StreamSlots

log = logging.getLogger("slackwater")

VIEWERS = 96  # that follow the commits; the rest of the server's 128 connections is for requests
AT_ONCE = 4
WAITING = 64
LETTERS = 100  # that are listed
HOT = 10  # keys by rows, and as many by events
BEAT_S = 15.0  # between two signs of life on a stream
Find = Callable[[Request], tuple[PageCache, PageLocation]]
STATIC = {"ui.css": "text/css", "ui.js": "text/javascript", "htmx.min.js": "text/javascript"}
STATIC |= {"htmx-sse.min.js": "text/javascript", "icon.svg": "image/svg+xml"}


class UiServer:
    """A server that runs until `stop`."""

    def __init__(self, http: HttpServer, ui: Ui) -> None:
        self._http, self._ui = http, ui
        self.port = http.port

    def stop(self) -> None:
        self._http.stop()
        self._ui.stop()


def serve_pages(
    watched: Sequence[PageSource], port: int, host: str = LOOPBACK, names: Sequence[str] = (), token: str | None = None
) -> UiServer:
    """Serve the pages of these pipelines until `stop`. Raises StartError, also for another host without a token."""
    check_host(host, token)
    if token is not None:
        remember_secret(token)
    ui = Ui(watched)
    try:
        http = start_server(Access(ui.app, token), port, host, what="the page", option="--port", names=names)
    except BaseException:
        ui.stop()
        raise
    return UiServer(http, ui)


class Ui:
    """The application (`app`), which `stop` lets go of."""

    def __init__(self, watched: Sequence[PageSource], viewers: int = VIEWERS) -> None:
        names = [w.pipeline.name for w in watched]
        if len(set(names)) < len(names):
            raise StartError("two of the files describe pipelines of one name; name each pipeline once")
        self._threads = ThreadPoolExecutor(AT_ONCE, "page")
        self._open = 0
        self._streams = StreamSlots(viewers)
        self._closing = False
        self._views = [StateView(w.store) for w in watched]
        several = len(names) > 1
        others = tuple((name, f"/p/{name}") for name in names) if several else ()
        self._lives: list[PageCache] = []
        routes: list[Any] = [Route("/static/{name}", _static)]
        self._of_stages: dict[tuple[str, str], PageCache] = {}
        for one_watched, view in zip(watched, self._views, strict=True):
            base = f"/p/{one_watched.pipeline.name}" if several else ""
            place = PageLocation(base, others=others)
            live = PageCache(one_watched, _drawn(pages.BLOCKS, place))
            self._lives.append(live)

            def whole(
                request: Request, live: PageCache = live, place: PageLocation = place
            ) -> tuple[PageCache, PageLocation]:
                return live, place

            def one(
                request: Request, live: PageCache = live, place: PageLocation = place
            ) -> tuple[PageCache, PageLocation]:
                return self._stage(live, place, request.path_params["stage"])

            of_stage = Mount("/stage/{stage}", routes=self._routes(one, pages.OF_STAGE))
            every = [*self._routes(whole, pages.BLOCKS), of_stage, Mount("/state", routes=questions.build_routes(view))]
            routes.append(Mount(base, routes=every))
        if several:
            routes.append(self._route("/", self._overview))
        self.app: Application = Starlette(
            routes=routes, exception_handlers={HTTPException: refuse_request, Exception: fail_request}
        )
        self._watcher = CommitWatcher(lambda: [*self._lives, *list(self._of_stages.values())])

    def stop(self) -> None:
        self._closing = True
        self._watcher.stop()
        for live in (*self._lives, *self._of_stages.values()):
            live.bell.ring()
        self._threads.shutdown(wait=False, cancel_futures=True)
        for view in self._views:
            view.close()

    def _stage(self, live: PageCache, place: PageLocation, at: str) -> tuple[PageCache, PageLocation]:
        """One stage of a pipeline, by its part of an address. Raises HTTPException where there is none."""
        there = dataclasses.replace(place, base=f"{place.base}/stage/{at}", home=place.base)
        found = self._of_stages.get((live.name, at))
        if found is None:
            seen = live.now()
            if seen is None:
                raise StateError(live.problem or "")
            name = next((s.name for s in seen.stages if s.at == at), None)
            if name is None or not seen.stages[1:]:
                raise HTTPException(404)
            made = PageCache(live.watched, _drawn(pages.OF_STAGE, there), name)
            found = self._of_stages.setdefault((live.name, at), made)
        return found, there

    def _routes(self, find: Find, blocks: Sequence[str]) -> list[Any]:
        """What there is of a pipeline, or of a stage."""

        def by(answer: Callable[..., Response], *given: Any) -> Callable[[Request], Response]:
            return lambda request: answer(*find(request), *given, request)

        async def events(request: Request) -> Response:
            try:
                live, _ = await asyncio.get_running_loop().run_in_executor(self._threads, find, request)
            except SlackwaterError as error:
                return error_line(request, 503, str(error))
            return self._events(live, request)

        found = [
            self._route("/", by(_page)),
            self._route("/epoch/{epoch}", by(_past)),
            self._route("/closing", by(_bin)),
            self._route("/key", by(_key)),
            self._route("/letters", by(_letters)),
            self._route("/hot", by(_hot)),
            Route("/ui/events", events, methods=["GET"]),
            self._route("/ui/keys.json", by(_keys_json)),
            self._route("/ui/key.json", by(_key_json)),
        ]
        for name in blocks:
            found.append(self._route(f"/ui/{name}", by(_fragment, name)))
            found.append(self._route(f"/ui/{name}.json", by(_block_json, name)))
        return found

    def _route(self, path: str, answer: Callable[[Request], Response]) -> Route:
        """A question that is answered by one of a few threads."""

        async def asked(request: Request) -> Response:
            if self._open >= AT_ONCE + WAITING:
                return error_line(request, 503, f"{self._open} questions are open; ask again later")
            self._open += 1
            try:
                return await asyncio.get_running_loop().run_in_executor(self._threads, answer_request, answer, request)
            finally:
                self._open -= 1

        return Route(path, asked, methods=["GET"])

    def _overview(self, request: Request) -> Response:
        known = []
        for live in self._lives:
            seen = live.now()
            known.append((live.name, f"/p/{live.name}/", seen, None if seen else live.problem, live.waits))
        digest = hashlib.sha256("\0".join(live.tag for live in self._lives).encode()).hexdigest()[:16]
        return with_tag(request, digest, pages.render_overview(known), "text/html")

    def _events(self, live: PageCache, request: Request) -> Response:
        known = request.headers.get("last-event-id") or request.query_params.get("seen", "")
        blocks = "blocks" in request.query_params
        refusal = error_line(
            request, 503, f"{self._streams.most} viewers follow the commits already; reload the page later"
        )
        return EventStream(lambda: self._stream(live, known, blocks), self._streams, refusal)

    async def _stream(self, live: PageCache, known: str, blocks: bool) -> AsyncIterator[bytes]:
        """One update per look that this viewer has not seen. All viewers are sent the same bytes, and wait without asking."""
        live.viewers += 1
        rung = live.bell.listen()
        try:
            yield b"retry: 2000\n\n"
            while not self._closing:
                rung.clear()
                if live.tag != known and (live.seen is not None or live.problem is not None):
                    update = live.ready
                    if update is None:  # of the first look nobody had followed yet
                        update = await asyncio.get_running_loop().run_in_executor(self._threads, live.update)
                    yield update.for_one_who_has(known) if blocks else update.short
                    known = update.tag
                    continue
                try:
                    await asyncio.wait_for(rung.wait(), BEAT_S)
                except TimeoutError:
                    yield b": here\n\n"
        finally:
            live.bell.leave(rung)
            live.viewers -= 1


# -- answers ---------------------------------------------------------------------------------------------------------


def _problem(live: PageCache, place: PageLocation) -> Response:
    """A page in the place of one that cannot be shown, or not yet."""
    return html_response(
        pages.render_problem(live.name, place, live.problem or "", live.waits), 200 if live.waits else 503
    )


def _page(live: PageCache, place: PageLocation, request: Request) -> Response:
    made = live.made("page", lambda seen: pages.render_page(seen, place))
    if made is None:
        return _problem(live, place)
    return with_tag(request, *made, "text/html")


def _past(live: PageCache, place: PageLocation, request: Request) -> Response:
    """A kept commit: looked at once as long as no later one is there."""
    epoch = _epoch(request.path_params["epoch"])
    there = dataclasses.replace(place, epoch=epoch)

    def make(now: PageModel) -> bytes:
        return pages.render_page(look_at(live.watched, now.looked_us, epoch, live.stage), there, now.kept)

    made = live.made(f"epoch {epoch}", make)
    if made is None:
        return _problem(live, place)
    return with_tag(request, *made, "text/html")


def _drawn(blocks: Sequence[str], place: PageLocation) -> Callable[[PageCache], Mapping[str, bytes]]:
    """Draws the blocks of a look; of a problem the top says it, in the place of what was so before."""

    def drawn(live: PageCache) -> Mapping[str, bytes]:
        seen = live.seen
        if seen is None:
            return dict.fromkeys(blocks, b"") | {"top": pages.problem_fragment(live.problem or "", live.waits)}
        return {name: pages.render_fragment(name, seen, place) for name in blocks}

    return drawn


def _fragment(live: PageCache, place: PageLocation, name: str, request: Request) -> Response:
    made = live.made(name, lambda seen: pages.render_fragment(name, seen, place))
    if made is None:  # 200, so that it takes the place of what was so before
        return html_response(pages.problem_fragment(live.problem or "", live.waits) if name == "top" else b"", 200)
    return with_tag(request, *made, "text/html")


def _block_json(live: PageCache, place: PageLocation, name: str, request: Request) -> Response:
    made = live.made(f"{name}.json", lambda seen: pages.as_json(pages.block_data(name, seen)))
    if made is None:
        raise StateError(live.problem or "")
    return with_tag(request, *made, "application/json")


def _epoch(text: str) -> int:
    if not re.fullmatch("[0-9]{1,18}", text):
        raise StartError(f"epoch: found {text[:40]!a}, expected a whole number of at most 18 digits")
    return int(text)


def _range(request: Request) -> tuple[int, int]:
    found = []
    for name in ("from", "to"):
        text = request.query_params.get(name, "")
        if not re.fullmatch("-?[0-9]{1,18}", text):
            raise StartError(f"{name}: found {text[:40]!a}, expected a time in whole microseconds since 1970")
        found.append(int(text))
    return found[0], found[1]


def _windows(live: PageCache, request: Request) -> tuple[int, int, list[Any]]:
    low, high = _range(request)
    with latest_snapshot(live.watched) as snapshot:
        return low, high, closing_windows(windows_of(snapshot, live.stage)[0], low, high)


def _bin(live: PageCache, place: PageLocation, request: Request) -> Response:
    low, high, windows = _windows(live, request)
    seen = live.now()
    if seen is None:
        return _problem(live, place)
    return html_response(pages.bin_page(seen, place, low, high, windows))


def _letters(live: PageCache, place: PageLocation, request: Request) -> Response:
    pipeline, reason = live.watched.pipeline, request.query_params.get("reason")
    if live.watched.is_described:
        raise StartError("dead letters: only a config says where they are; start the page with it: slackwater ui FILE")
    letters = with_attempts(pipeline, newest_letters(pipeline, LetterFilter(reason=reason, limit=LETTERS))).to_dicts()
    return html_response(pages.letters_page(live.name, place, reason, letters, LETTERS))


def _hot(live: PageCache, place: PageLocation, request: Request) -> Response:
    def make(seen: PageModel) -> bytes:
        with latest_snapshot(live.watched) as snapshot:
            return pages.hot_page(seen, place, hot_keys(live.watched.store, snapshot, HOT))

    made = live.made("hot", make)
    return _problem(live, place) if made is None else with_tag(request, *made, "text/html")


def _keys_json(live: PageCache, place: PageLocation, request: Request) -> Response:
    _, _, windows = _windows(live, request)
    found = [{"key": w.key, "start_us": w.start_us, "closes_us": w.closes_us, "reason": w.reason} for w in windows]
    return Response(pages.as_json(found), media_type="application/json")


def _given(request: Request) -> dict[str, str | None]:
    """The key in a query string: `name=value`, or a name alone for NULL. Starlette would take both for a text."""
    found: dict[str, str | None] = {}
    for part in request.url.query.split("&")[:50]:
        name, is_value, value = part.partition("=")
        if name:
            found[unquote_plus(name)] = unquote_plus(value) if is_value else None
    return found


def _key(live: PageCache, place: PageLocation, request: Request) -> Response:
    found = key_at(live.watched, _given(request), time.time_ns() // 1000, live.stage)
    return html_response(pages.key_page(live.name, place, found, live.stage))


def _key_json(live: PageCache, place: PageLocation, request: Request) -> Response:
    found = key_at(live.watched, _given(request), time.time_ns() // 1000, live.stage)
    return Response(pages.as_json(dataclasses.asdict(found)), media_type="application/json")


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in STATIC:
        raise HTTPException(404)
    content = pages.static_file(name)
    return with_tag(request, hashlib.sha256(content).hexdigest()[:16], content, STATIC[name])


__all__ = ["Ui", "UiServer", "serve_pages"]
