"""The `Host` header as RFC 9110 defines it: `uri-host [":" port]`, with the `uri-host` of RFC 3986."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection

_HOST = re.compile(
    r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._~!$&'()*+,;=%-]+))(?::(?P<port>[0-9]{0,5}))?", re.ASCII
)
LAST_PORT = 65_535


def normalize_host(name: str) -> str:
    """Return a DNS name in lower case, without the trailing dot."""
    return name.lower().removesuffix(".")


def is_host_allowed(host: str, names: Collection[str]) -> bool:
    """Return whether a Host header is an IP address or one of the `names`, which are normalized.

    Everything else is rejected: text after a bracket, a name in brackets, an IPv6 zone, a port that is not a number.
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
    """Return what counts as one client: an IPv4 address, or the /64 network of an IPv6 address."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.IPv6Network((parsed, 64), strict=False))
    return str(parsed)
