"""Access to the page: tokens, and response headers that restrict what a browser may load.

All scripts, styles and images are separate files of this server, and browsers are not allowed to run inline scripts. A
key or a source name that looks like a script therefore does nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from urllib.parse import urlencode

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from slackwater.core.humanize import mismatch
from slackwater.errors import StartError, Topic
from slackwater.web.request_guard import Application, Receive, Scope, Send

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
            f"--host {host}: other machines can reach this address, and a state may hold private data; set --token, "
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

    A client sends the token as a bearer token, or once as `?token=…` and then as the cookie that the response sets.
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
        # "//name" would be another host
        path = "/" + request.scope["path"].lstrip("/")
        answer = RedirectResponse(path + (f"?{rest}" if rest else ""), 303)
        answer.set_cookie(self._cookie, self._digest or "", httponly=True, samesite="lax", path="/")
        return answer

    def _is_right(self, digest: str) -> bool:
        return self._digest is not None and hmac.compare_digest(digest.encode(), self._digest.encode())


def _digest(token: str) -> str:
    return hashlib.sha256(f"slackwater ui\0{token}".encode()).hexdigest()
