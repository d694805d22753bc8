"""HTTP responses of the page: pages, blocks and JSON with an ETag, or a one-line error.

Each function that answers a request takes the page cache of a pipeline or stage, and the location of its page.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import unquote_plus

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from slackwater.core.dead_letter_columns import DeadLetterFilter
from slackwater.core.humanize import mismatch
from slackwater.dead_letters.dead_letter_reader import add_attempts, read_newest
from slackwater.errors import ResourceExhaustedError, SlackwaterError, StartError, StateError, Topic
from slackwater.maintenance.state_sizes import find_hot_keys
from slackwater.secret_masking import mask_secrets
from slackwater.ui import pages
from slackwater.ui.blocks.key import KeyView
from slackwater.ui.blocks.upcoming_closes import ClosingWindow, closing_windows
from slackwater.ui.page_cache import PageCache
from slackwater.ui.page_model import PageModel, load_key, load_model, open_snapshot, select_window_stage
from slackwater.ui.pages import PageLocation

log = logging.getLogger("slackwater")

LETTERS = 100  # maximum number of dead letters on a page
HOT = 10  # maximum number of keys by rows, and of keys by events
STATIC = {"ui.css": "text/css", "ui.js": "text/javascript", "htmx.min.js": "text/javascript"}
STATIC |= {"htmx-sse.min.js": "text/javascript", "icon.svg": "image/svg+xml"}


def html_response(content: bytes, status: int = 200) -> Response:
    return Response(content, status, media_type="text/html")


def tag_content(request: Request, tag: str, content: bytes, kind: str = "text/html") -> Response:
    """Return content with an ETag, or an empty response with status 304 if the client already has the content.

    Args:
        request: The request, with the tags that the client has.
        tag: A tag that changes whenever the content changes.
        content: The body of the response.
        kind: The media type.
    """
    quoted = f'"{tag}"'
    client_tags = [t.strip().removeprefix("W/") for t in request.headers.get("if-none-match", "").split(",")]
    if quoted in client_tags or "*" in client_tags:
        return Response(status_code=304, headers={"ETag": quoted})
    return Response(content, media_type=kind, headers={"ETag": quoted})


# -- errors ------------------------------------------------------------------------------------------------------------


def answer_request(answer: Callable[[Request], Response], request: Request) -> Response:
    """Return the response of `answer`, or a response that describes its error. Never raises."""
    try:
        return answer(request)
    except BaseException as error:  # a panic of Polars is not an Exception
        return _error_response(request, error)


async def handle_error(request: Request, error: Exception) -> Response:
    return _error_response(request, error)


def _error_response(request: Request, error: BaseException) -> Response:
    match error:
        case HTTPException(status_code=404):
            return send_error(request, 404, f"{request.url.path[:200]} does not exist; the page is at /")
        case HTTPException():
            return send_error(request, error.status_code, error.detail)
        case StateError() | ResourceExhaustedError():
            return send_error(request, 503, str(error))
        case SlackwaterError():
            return send_error(request, 400, str(error))
    log.error("a page failed", exc_info=error)
    return send_error(request, 500, f"internal error: {type(error).__name__}; see the log for details")


def send_error(request: Request, status: int, line: str) -> Response:
    line = mask_secrets(line)
    if request.url.path.endswith(".json"):
        content = json.dumps({"error": line}, ensure_ascii=False).encode(errors="replace")
        return Response(content, status, media_type="application/json")
    if request.url.path.endswith(("/key", "/closing", "/letters", "/hot")):
        location = PageLocation(request.url.path.rpartition("/")[0])
        return html_response(pages.render("problem.html", location, pipeline="", line=line, waits=False), status)
    return PlainTextResponse((line + "\n").encode(errors="replace"), status)


def _problem_fragment(cache: PageCache) -> bytes:
    return pages.render("_problem.html", line=cache.problem or "", waits=cache.waits)


# -- pages -------------------------------------------------------------------------------------------------------------


def overview(caches: Sequence[PageCache], request: Request) -> Response:
    """Return the overview page of several pipelines."""
    pipelines = []
    for cache in caches:
        model = cache.now()
        pipelines.append((cache.name, f"/p/{cache.name}/", model, None if model else cache.problem, cache.waits))
    digest = hashlib.sha256("\0".join(cache.tag for cache in caches).encode()).hexdigest()[:16]
    return tag_content(request, digest, pages.render("overview.html", pipelines=pipelines))


def _problem_page(cache: PageCache, location: PageLocation) -> Response:
    """Return a page that says why a pipeline's page cannot be shown. The status is 200 before the first commit."""
    line = cache.problem or ""
    content = pages.render("problem.html", location, pipeline=cache.name, line=line, waits=cache.waits)
    return html_response(content, 200 if cache.waits else 503)


def _cached_page(
    cache: PageCache, location: PageLocation, request: Request, name: str, make: Callable[[PageModel], bytes]
) -> Response:
    """Return a page that `make` renders once per commit or, if the pipeline has a problem, a page that describes it.

    `name`: the name of the page in the cache.
    """
    page = cache.get_page_model(name, make)
    return _problem_page(cache, location) if page is None else tag_content(request, *page)


def _page(cache: PageCache, location: PageLocation, request: Request) -> Response:
    return _cached_page(cache, location, request, "page", lambda model: pages.render_page(model, location))


def _past_page(cache: PageCache, location: PageLocation, request: Request) -> Response:
    """Return the page of an earlier commit. The rendered page is reused until the next commit."""
    text = request.path_params["epoch"]
    if not re.fullmatch("[0-9]{1,18}", text):
        raise StartError("epoch: " + mismatch(f"{text[:40]!a}", "a whole number of at most 18 digits"), Topic.VALUE)
    epoch_location = dataclasses.replace(location, epoch=int(text))

    def make(now: PageModel) -> bytes:
        model = load_model(cache.watched, now.looked_us, int(text), cache.stage)
        return pages.render_page(model, epoch_location, now.kept_epochs)

    return _cached_page(cache, location, request, f"epoch {int(text)}", make)


def _hot(cache: PageCache, location: PageLocation, request: Request) -> Response:
    def make(model: PageModel) -> bytes:
        with open_snapshot(cache.watched) as snapshot:
            keys = find_hot_keys(cache.watched.store, snapshot, HOT)
        return pages.render("hot.html", location, model=model, keys=keys)

    return _cached_page(cache, location, request, "hot", make)


def _windows(cache: PageCache, request: Request) -> tuple[int, int, list[ClosingWindow]]:
    """Return the two watermarks in the query string (µs), and the first windows that close between them."""
    bounds = []
    for name in ("from", "to"):
        text = request.query_params.get(name, "")
        if not re.fullmatch("-?[0-9]{1,18}", text):
            raise StartError(
                f"{name}: " + mismatch(f"{text[:40]!a}", "a time in whole microseconds since 1970"), Topic.VALUE
            )
        bounds.append(int(text))
    low, high = bounds
    with open_snapshot(cache.watched) as snapshot:
        return low, high, closing_windows(select_window_stage(snapshot, cache.stage)[0], low, high)


def _bin(cache: PageCache, location: PageLocation, request: Request) -> Response:
    low, high, windows = _windows(cache, request)
    model = cache.now()
    if model is None:
        return _problem_page(cache, location)
    return html_response(pages.render("bin.html", location, model=model, low=low, high=high, windows=windows))


def _keys_json(cache: PageCache, location: PageLocation, request: Request) -> Response:
    _, _, windows = _windows(cache, request)
    return Response(pages.to_json([dataclasses.asdict(w) for w in windows]), media_type="application/json")


def _letters(cache: PageCache, location: PageLocation, request: Request) -> Response:
    pipeline, reason = cache.watched.pipeline, request.query_params.get("reason")
    if cache.watched.is_described:
        raise StartError(
            "dead letters cannot be shown, because only the config says where they are stored; start the page with: "
            "slackwater ui FILE",
            Topic.DEAD_LETTERS,
        )
    letters = add_attempts(pipeline, read_newest(pipeline, DeadLetterFilter(reason=reason, limit=LETTERS))).to_dicts()
    values = {"pipeline": cache.name, "reason": reason, "letters": letters, "most": LETTERS}
    return html_response(pages.render("letters.html", location, **values))


def _load_key(cache: PageCache, request: Request) -> KeyView:
    """Return the view of the key in the query string, which has `name=value` or, for NULL, `name` per key column."""
    key: dict[str, str | None] = {}
    for part in request.url.query.split("&")[:50]:  # Starlette's parser would return "" for a name without a value
        name, is_value, value = part.partition("=")
        if name:
            key[unquote_plus(name)] = unquote_plus(value) if is_value else None
    return load_key(cache.watched, key, time.time_ns() // 1000, cache.stage)


def _key(cache: PageCache, location: PageLocation, request: Request) -> Response:
    view = _load_key(cache, request)
    return html_response(pages.render("key.html", location, pipeline=cache.name, stage=cache.stage, key=view))


def _key_json(cache: PageCache, location: PageLocation, request: Request) -> Response:
    return Response(pages.to_json(dataclasses.asdict(_load_key(cache, request))), media_type="application/json")


PATHS: Mapping[str, Callable[[PageCache, PageLocation, Request], Response]] = {
    "/": _page,
    "/epoch/{epoch}": _past_page,
    "/closing": _bin,
    "/key": _key,
    "/letters": _letters,
    "/hot": _hot,
    "/ui/keys.json": _keys_json,
    "/ui/key.json": _key_json,
}


# -- blocks ------------------------------------------------------------------------------------------------------------


def block_renderer(blocks: Sequence[str], location: PageLocation) -> Callable[[PageCache], Mapping[str, bytes]]:
    """Return a function that renders the named blocks of a page cache as HTML.

    While the pipeline has a problem, the block "top" describes it and the other blocks are empty.
    """

    def render_blocks(cache: PageCache) -> Mapping[str, bytes]:
        model = cache.model
        if model is None:
            return dict.fromkeys(blocks, b"") | {"top": _problem_fragment(cache)}
        return {name: pages.render_fragment(name, model, location) for name in blocks}

    return render_blocks


def fragment(cache: PageCache, location: PageLocation, name: str, request: Request) -> Response:
    """Return a block as HTML. While the pipeline has a problem, the block "top" describes it and the rest are empty."""
    content = cache.get_page_model(name, lambda model: pages.render_fragment(name, model, location))
    if content is None:  # status 200, so that the browser replaces the old block
        return html_response(_problem_fragment(cache) if name == "top" else b"")
    return tag_content(request, *content)


def block_json(cache: PageCache, location: PageLocation, name: str, request: Request) -> Response:
    content = cache.get_page_model(f"{name}.json", lambda model: pages.to_json(pages.block_as_data(name, model)))
    if content is None:
        raise StateError(cache.problem or "")
    return tag_content(request, *content, "application/json")


async def send_static_file(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in STATIC:
        raise HTTPException(404)
    content = pages.read_static_file(name)
    return tag_content(request, hashlib.sha256(content).hexdigest()[:16], content, STATIC[name])
