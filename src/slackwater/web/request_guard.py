"""Rejects requests that name another host, that are not read-only, or that have a body, before an application sees them.

A web page can make a browser send requests to a loopback port, using a name that resolves to loopback (DNS rebinding).
The browser then sends that name as `Host`. An IP address cannot be rebound, so IP addresses are always allowed.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, MutableMapping, Sequence
from typing import Any

from starlette.responses import Response

_HOST = re.compile(
    r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._~!$&'()*+,;=%-]+))(?::(?P<port>[0-9]{0,5}))?", re.ASCII
)
LAST_PORT = 65_535


def normalize_host(name: str) -> str:
    """Return a DNS name in lower case, without the trailing dot."""
    return name.lower().removesuffix(".")


def is_host_allowed(host: str, names: Collection[str]) -> bool:
    """Return whether the value of a Host header is an IP address or one of the normalized `names`, with or without a port.

    Everything else is rejected, such as text after a bracket, a name in brackets, an IPv6 zone, or a port that is not a
    number.
    """
    match = _HOST.fullmatch(host)
    if match is None or int(match["port"] or 0) > LAST_PORT:
        return False
    try:
        if match["ipv6"] is not None:
            ipaddress.IPv6Address(match["ipv6"])
        else:
            ipaddress.IPv4Address(match["name"])
    except ValueError:
        return match["ipv6"] is None and normalize_host(match["name"]) in names
    return True


def client_network(address: str) -> str:
    """Return the network that counts as one client: an IPv4 address, or the /64 network of an IPv6 address."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.IPv6Network((parsed, 64), strict=False))
    return str(parsed)


def find_busiest_client(clients: Iterable[str], client: str) -> str | None:
    """Return the client with the most entries in `clients`; None unless it has at least two more than `client`."""
    counts = Counter(clients)
    busiest, count = max(counts.items(), key=lambda item: item[1], default=(client, 0))
    return busiest if count - counts[client] >= 2 else None


Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

READS = ("GET", "HEAD")
HEAD_BYTES = 16 * 1024  # maximum size of all headers together
TARGET_BYTES = 8 * 1024  # maximum size of a path with its query


class RequestGuard:
    """ASGI middleware that rejects requests for another host, requests that could write, and requests with a body.

    Args:
        app: The application that answers the other requests.
        names: Names of this server, in addition to `localhost` and IP addresses.
        option: The command-line option that adds a name, for error messages.
    """

    def __init__(self, app: Application, names: Sequence[str], option: str) -> None:
        self.app, self.option = app, option
        self.names = {"localhost", *map(normalize_host, names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if wrong := self._check(scope):
            status, line = wrong
            body = json.dumps({"error": line})
            refusal = Response(body, status, {"connection": "close"}, media_type="application/json")
            await refusal(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _check(self, scope: Scope) -> tuple[int, str] | None:
        headers: Sequence[tuple[bytes, bytes]] = scope["headers"]
        if sum(len(name) + len(value) + 4 for name, value in headers) > HEAD_BYTES:
            return 431, f"the headers are longer than {HEAD_BYTES // 1024} KiB"
        hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
        if len(hosts) > 1 or any(not is_host_allowed(host, self.names) for host in hosts):
            host_text = ascii(", ".join(hosts)[:80])
            return 421, f"Host {host_text} is not this server; use its IP address, or allow the name with {self.option}"
        if scope["method"] not in READS:
            return 405, f"{scope['method'][:20]} is not supported: this server is read-only and accepts only GET"
        if any(
            name == b"transfer-encoding" or (name == b"content-length" and value != b"0") for name, value in headers
        ):
            return 400, "a GET with a body is not supported; use the query string only"
        if len(scope["raw_path"]) + len(scope["query_string"]) > TARGET_BYTES:
            return 414, f"the path with its query is longer than {TARGET_BYTES // 1024} KiB"
        return None
