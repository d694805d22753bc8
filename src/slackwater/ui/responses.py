"""HTTP responses of the page: content with an ETag, or one line about an error."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from slackwater.errors import ExhaustedError, SlackwaterError, StateError
from slackwater.secrets import mask_secrets
from slackwater.ui import pages
from slackwater.ui.pages import PageLocation

log = logging.getLogger("slackwater")


def answer_request(answer: Callable[[Request], Response], request: Request) -> Response:
    """Return the response of `answer`, or a response with its error. Never raises."""
    try:
        return answer(request)
    except HTTPException as error:
        return send_error(request, error.status_code, f"there is no {request.url.path[:200]}; the page is at /")
    except (StateError, ExhaustedError) as error:
        return send_error(request, 503, str(error))
    except SlackwaterError as error:
        return send_error(request, 400, str(error))
    except BaseException as error:  # a panic of Polars is not an Exception
        log.exception("a page failed")
        return send_error(request, 500, f"internal error: {type(error).__name__}; the log has more")


def send_error(request: Request, status: int, line: str) -> Response:
    line = mask_secrets(line)
    if request.url.path.endswith(".json"):
        return Response(
            json.dumps({"error": line}, ensure_ascii=False).encode(errors="replace"),
            status,
            media_type="application/json",
        )
    if request.url.path.endswith(("/key", "/closing", "/letters", "/hot")):
        return html_response(pages.render_problem("", PageLocation(request.url.path.rpartition("/")[0]), line), status)
    return PlainTextResponse((line + "\n").encode(errors="replace"), status)


async def refuse_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return send_error(request, 404, f"there is no {request.url.path[:200]}; the page is at /")
    return send_error(request, error.status_code, error.detail)


async def fail_request(request: Request, error: Exception) -> Response:
    """Return the response to an error outside `answer_request`, such as in routing."""
    log.error("a page failed", exc_info=error)
    return send_error(request, 500, f"internal error: {type(error).__name__}; the log has more")


def html_response(content: bytes, status: int = 200) -> Response:
    return Response(content, status, media_type="text/html")


def tag_content(request: Request, tag: str, content: bytes, kind: str) -> Response:
    """Return a response with the tag as ETag, or an empty one with status 304 if the client already has this tag.

    `kind`: the media type.
    """
    quoted = f'"{tag}"'
    client_tags = [t.strip().removeprefix("W/") for t in request.headers.get("if-none-match", "").split(",")]
    if quoted in client_tags or "*" in client_tags:
        return Response(status_code=304, headers={"ETag": quoted})
    return Response(content, media_type=kind, headers={"ETag": quoted})
