"""A read-only HTTP server that returns the contents of a state as JSON or Arrow.

    GET /                                                a description: pipeline, epoch, columns
    GET /fetch?key=user_id=u7                            windows of a key; several columns: key=user_id=u7&key=region=eu
    GET /find-sessions?key=user_id=u7&earliest_end=TIME&latest_start=TIME
    GET /scan?where=events>100&limit=1000                windows of all keys

Every path accepts `at=EPOCH` to read an earlier commit. `Accept: application/vnd.apache.arrow.stream` or `format=arrow`
selects Arrow.

Requests run on a few threads, and each request reads one commit. The duration of a scan, the rows and bytes of a
response, and the content of `where` (`query/where_condition.py`) are limited. `build_routes` returns routes for any ASGI
application.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

import polars as pl
import pyarrow as pa
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from slackwater.config.error_text import describe_value_mismatch, format_value
from slackwater.core.humanize import plural
from slackwater.core.row_format import json_lines
from slackwater.core.schema import polars_to_spark_type
from slackwater.errors import ResourceExhaustedError, SlackwaterError, StartError, StateError, Topic
from slackwater.query.state_view import StateView, to_arrow
from slackwater.watermark import NO_WATERMARK
from slackwater.web.server import LOOPBACK, HttpServer, start_server

log = logging.getLogger("slackwater")

ARROW = "application/vnd.apache.arrow.stream"
LIMIT = 1000  # default number of windows in a scan
MOST_ROWS = 100_000  # maximum per response
MOST_BYTES = 64 * 1024 * 1024  # maximum per response
SCAN_SECONDS = 10.0  # maximum duration of a scan
MOST_RUNNING = 4  # maximum number of concurrent requests
MOST_WAITING = 64  # maximum number of requests that wait for a thread
Query = Mapping[str, str]


def serve_state(view: StateView, port: int, host: str = LOOPBACK, names: Sequence[str] = ()) -> HttpServer:
    """Serve a state in threads until `stop` is called.

    Args:
        view: The view to serve.
        port: The port; 0 selects a free one.
        host: The address to listen on.
        names: The host names that clients may use; see `web.request_guard`.

    Raises StartError if the port cannot be used.
    """
    return start_server(_build_application(view), port, host, service="the state", option="--port", names=names)


def _build_application(view: StateView) -> Starlette:
    """Return an ASGI application with the routes of the server."""
    app = Starlette(routes=build_routes(view), exception_handlers={HTTPException: _handle_http_error})
    app.router.redirect_slashes = False
    return app


def build_routes(view: StateView) -> list[Route]:
    """Return the routes of the server, which can be mounted in another ASGI application."""
    pool = _RequestPool(view)
    return [Route(path, pool.endpoint(answer), methods=["GET"]) for path, answer in _HANDLERS.items()]


class _TooLargeError(StartError):
    """Raised if a response would exceed the limits."""


class _RequestPool:
    """Runs a few requests on one view at the same time. A limited number of others wait, and the rest are rejected."""

    def __init__(self, view: StateView) -> None:
        self.view = view
        self._threads = ThreadPoolExecutor(MOST_RUNNING, "question")
        self._open = 0

    def endpoint(self, answer: Callable[[StateView, Query], Any]) -> Callable[[Request], Any]:
        async def handle(request: Request) -> Response:
            if self._open >= MOST_RUNNING + MOST_WAITING:
                problem = f"{self._open} requests are open; try again later"
                return _error_response(HTTPStatus.SERVICE_UNAVAILABLE, problem)
            self._open += 1
            try:
                wants_arrow = ARROW in request.headers.get("accept", "")
                query = request.url.query
                return await asyncio.get_running_loop().run_in_executor(
                    self._threads, _answer_request, answer, self.view, query, wants_arrow
                )
            finally:
                self._open -= 1

        return handle


def _answer_request(
    answer: Callable[[StateView, Query], Any], view: StateView, query: str, wants_arrow: bool
) -> Response:
    """Return the response to a request, or an error response. Never raises."""
    try:
        parameters = _parse_query(query)
        answer_body = answer(view, parameters)
        if isinstance(answer_body, dict):
            return _json_response(HTTPStatus.OK, json.dumps(answer_body, ensure_ascii=False).encode(errors="replace"))
        return _rows_response(answer_body, wants_arrow or parameters.get("format") == "arrow")
    except _TooLargeError as error:
        return _error_response(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, str(error))
    except (StateError, ResourceExhaustedError) as error:
        return _error_response(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
    except SlackwaterError as error:
        return _error_response(HTTPStatus.BAD_REQUEST, str(error))
    except BaseException as error:  # a panic of Polars is not an Exception
        log.exception("a request failed")
        problem = f"internal error: {type(error).__name__}; see the log for details"
        return _error_response(HTTPStatus.INTERNAL_SERVER_ERROR, problem)


def _parse_query(query: str) -> dict[str, str]:
    try:
        values_by_name = parse_qs(query, keep_blank_values=True, max_num_fields=50, errors="strict")
    except ValueError:
        raise StartError(
            "found a query string with more than 50 parameters or invalid UTF-8, expected at most 50 parameters in "
            "UTF-8",
            Topic.VALUE,
        ) from None
    return {name: ",".join(values) if name == "key" else values[-1] for name, values in values_by_name.items()}


def _rows_response(windows: pl.DataFrame, as_arrow: bool) -> Response:
    if windows.height > MOST_ROWS:
        raise _TooLargeError(
            f"the response has {plural(windows.height, 'window')}, but at most {MOST_ROWS} are allowed; request fewer windows"
        )
    if windows.estimated_size() > MOST_BYTES:
        raise _too_large_error()
    if as_arrow:
        sink = pa.BufferOutputStream()
        table = to_arrow(windows)
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return Response(sink.getvalue().to_pybytes(), media_type=ARROW)
    lines, size = [], 0
    for line in json_lines(windows):
        lines.append(line.encode(errors="replace"))
        size += len(lines[-1]) + 1
        if size > MOST_BYTES:
            raise _too_large_error()
    return _json_response(HTTPStatus.OK, b"[" + b",".join(lines) + b"]")


def _too_large_error() -> StartError:
    return _TooLargeError(f"the response is larger than {MOST_BYTES >> 20} MiB; request fewer windows")


def _json_response(status: HTTPStatus, body: bytes) -> Response:
    return Response(body, status, media_type="application/json")


def _error_response(status: HTTPStatus, line: str) -> Response:
    return _json_response(status, json.dumps({"error": line}, ensure_ascii=False).encode(errors="replace"))


async def _handle_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == HTTPStatus.NOT_FOUND:
        problem = f"there is no {request.url.path[:200]}; available: {', '.join(_HANDLERS)}"
        return _error_response(HTTPStatus.NOT_FOUND, problem)
    return _error_response(HTTPStatus(error.status_code), error.detail)


def _check_parameters(parameters: Query, *names: str) -> None:
    unknown = [n for n in parameters if n not in (*names, "at", "format")]
    if unknown:
        available = ", ".join((*names, "at", "format"))
        raise StartError(f"{format_value(unknown[0])} is not a known parameter; available: {available}", Topic.VALUE)


def _view_at_epoch(view: StateView, parameters: Query) -> StateView:
    return view.as_of(_parse_number(parameters, "at")) if "at" in parameters else view


def _parse_number(parameters: Query, name: str, most: int = 10**18) -> int:
    if not re.fullmatch("[0-9]{1,19}", parameters[name]) or int(parameters[name]) > most:
        problem = describe_value_mismatch(parameters[name], f"a whole number from 0 to {most}")
        raise StartError(f"{name}: {problem}", Topic.VALUE)
    return int(parameters[name])


def _describe(view: StateView, parameters: Query) -> dict[str, Any]:
    _check_parameters(parameters)
    view = _view_at_epoch(view, parameters)
    commit = view.manifest()
    watermark = commit.stages[-1].watermark_us
    return {
        "pipeline": commit.pipeline,
        "epoch": commit.epoch,
        "epochs": view.epochs(),
        "watermark_us": None if watermark <= NO_WATERMARK else watermark,
        "columns": {name: polars_to_spark_type(kind) for name, kind in view.columns.items()},
        "paths": list(_HANDLERS),
    }


def _parse_key(view: StateView, parameters: Query) -> dict[str, Any]:
    return view.key_of([parameters["key"]] if "key" in parameters else [])


def _fetch(view: StateView, parameters: Query) -> pl.DataFrame:
    _check_parameters(parameters, "key")
    return _view_at_epoch(view, parameters).fetch(_parse_key(view, parameters))


def _find_sessions(view: StateView, parameters: Query) -> pl.DataFrame:
    _check_parameters(parameters, "key", "earliest_end", "latest_start")
    times = [parameters.get("earliest_end"), parameters.get("latest_start")]
    return _view_at_epoch(view, parameters).find_sessions(_parse_key(view, parameters), *times)


def _scan(view: StateView, parameters: Query) -> pl.DataFrame:
    _check_parameters(parameters, "where", "limit")
    limit = _parse_number(parameters, "limit", MOST_ROWS) if "limit" in parameters else LIMIT
    return _view_at_epoch(view, parameters).scan(parameters.get("where"), limit, timeout_s=SCAN_SECONDS)


_HANDLERS: Mapping[str, Callable[[StateView, Query], Any]] = {
    "/": _describe,
    "/fetch": _fetch,
    "/find-sessions": _find_sessions,
    "/scan": _scan,
}
__all__ = ["ARROW", "LIMIT", "build_routes", "serve_state"]
