"""A read-only HTTP endpoint over a state, in JSON and Arrow.

    GET /                                                    what there is: pipeline, epoch, columns
    GET /fetch?key=user_id=u7                                windows of a key; several columns: key=user_id=u7&key=region=eu
    GET /find-sessions?key=user_id=u7&earliest_end=TIME&latest_start=TIME
    GET /scan?where=events>100&limit=1000                    windows of all keys

With each: `at=EPOCH` for an earlier commit. Arrow comes for `Accept: application/vnd.apache.arrow.stream` or `format=arrow`.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import polars as pl
import pyarrow as pa

from slackwater.core.schema import sql_type
from slackwater.errors import SlackwaterError, StartError, StateError
from slackwater.query.text import json_lines
from slackwater.query.view import StateView, arrow
from slackwater.watermark import NO_WATERMARK

log = logging.getLogger("slackwater")

ARROW = "application/vnd.apache.arrow.stream"
LIMIT = 1000  # windows that a scan answers with, unless it is told
Query = Mapping[str, str]


def serve(view: StateView, port: int, host: str = "127.0.0.1") -> ThreadingHTTPServer:
    """Answer questions in threads until `shutdown` is called; port 0 takes a free one. Raises StartError."""
    handler = type("Handler", (_Handler,), {"view": view, "lock": threading.Lock()})
    try:
        server = ThreadingHTTPServer((host, port), handler)
    except OSError as error:
        raise StartError(
            f"the state cannot be served on {host}:{port} ({error.strerror}); choose another --port"
        ) from None
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


class _Handler(BaseHTTPRequestHandler):
    view: StateView
    lock: threading.Lock  # one question at a time: each is short, and the view keeps its files open between them
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        every = parse_qs(url.query, keep_blank_values=True)
        given = {name: ",".join(values) if name == "key" else values[-1] for name, values in every.items()}
        answer = _ANSWERS.get(url.path)
        if answer is None:
            self._refuse(HTTPStatus.NOT_FOUND, f"there is no {url.path}; there are: {', '.join(_ANSWERS)}")
            return
        try:
            with self.lock:
                found = answer(self.view, given)
        except StateError as error:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        except SlackwaterError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))
        else:
            self._answer(found, given)

    def _answer(self, found: pl.DataFrame | dict[str, Any], given: Query) -> None:
        if isinstance(found, dict):
            self._send(HTTPStatus.OK, "application/json", json.dumps(found, ensure_ascii=False).encode())
        elif given.get("format") == "arrow" or ARROW in self.headers.get("Accept", ""):
            sink = pa.BufferOutputStream()
            table = arrow(found)
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
            self._send(HTTPStatus.OK, ARROW, sink.getvalue().to_pybytes())
        else:
            rows = ",".join(json_lines(found))
            self._send(HTTPStatus.OK, "application/json", f"[{rows}]".encode())

    def _refuse(self, status: HTTPStatus, line: str) -> None:
        self._send(status, "application/json", json.dumps({"error": line}, ensure_ascii=False).encode())

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("%s " + format, self.address_string(), *args)


def _known(given: Query, *names: str) -> None:
    unknown = [n for n in given if n not in (*names, "at", "format")]
    if unknown:
        raise StartError(f'"{unknown[0]}" is not known here; there are: {", ".join((*names, "at", "format"))}')


def _at(view: StateView, given: Query) -> StateView:
    return view.as_of(_number(given, "at")) if "at" in given else view


def _number(given: Query, name: str) -> int:
    try:
        return int(given[name])
    except ValueError:
        raise StartError(f'{name}: found "{given[name]}", expected a whole number') from None


def _about(view: StateView, given: Query) -> dict[str, Any]:
    _known(given)
    view = _at(view, given)
    manifest = view.manifest()
    watermark = manifest.stages[-1].watermark_us
    return {
        "pipeline": manifest.pipeline,
        "epoch": manifest.epoch,
        "epochs": view.epochs(),
        "watermark_us": None if watermark <= NO_WATERMARK else watermark,
        "columns": {name: sql_type(kind) for name, kind in view.columns.items()},
        "paths": list(_ANSWERS),
    }


def _key(view: StateView, given: Query) -> dict[str, Any]:
    return view.key_of([given["key"]] if "key" in given else [])


def _fetch(view: StateView, given: Query) -> pl.DataFrame:
    _known(given, "key")
    return _at(view, given).fetch(_key(view, given))


def _find(view: StateView, given: Query) -> pl.DataFrame:
    _known(given, "key", "earliest_end", "latest_start")
    times = [given.get("earliest_end"), given.get("latest_start")]
    return _at(view, given).find_sessions(_key(view, given), *times)


def _scan(view: StateView, given: Query) -> pl.DataFrame:
    _known(given, "where", "limit")
    limit = _number(given, "limit") if "limit" in given else LIMIT
    if limit < 0:
        raise StartError(f'limit: found "{limit}", expected 0 or more')
    return _at(view, given).scan(given.get("where"), limit)


_ANSWERS: Mapping[str, Callable[[StateView, Query], Any]] = {
    "/": _about,
    "/fetch": _fetch,
    "/find-sessions": _find,
    "/scan": _scan,
}
__all__ = ["ARROW", "LIMIT", "serve"]
