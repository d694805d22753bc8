"""Limits of the HTTP server: allowed hosts, streams and connections per client, and slow readers."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.case_selection import select_cases

from slackwater.web.request_guard import client_network, is_host_allowed
from slackwater.web.server import StreamSlot, StreamSlots, start_server

NAMES = {"localhost", "state.example"}
SPELLINGS = ("localhost", "LocalHost", "localhost.", "state.example", "127.0.0.1", "10.0.0.7", "[::1]", "[2001:db8::1]")
PIECES = (
    "localhost",
    "[::1]",
    ":",
    "::",
    ":80",
    ":65535",
    ":65536",
    "evil.com",
    ".evil.com",
    "..",
    "[",
    "]",
    "@",
    "/",
    " ",
    "%",
    "\0",
    "é",
)
ALLOWED = {host.lower() for host in SPELLINGS}


def _matches_allowed_host(host: str) -> bool:
    """Compare a host with each allowed host, alone or with a port."""
    for allowed in ALLOWED:
        if host.lower() == allowed:
            return True
        if host.lower().startswith(f"{allowed}:"):
            port = host[len(allowed) + 1 :]
            return len(port) <= 5 and all(c in "0123456789" for c in port) and (not port or int(port) <= 65535)
    return False


@settings(max_examples=1000, deadline=None)
@given(st.sampled_from(SPELLINGS), st.lists(st.sampled_from(PIECES), max_size=3).map("".join), st.booleans())
def test_only_a_port_may_follow_an_allowed_host(host: str, more: str, before: bool) -> None:
    text = more + host if before else host + more
    assert is_host_allowed(text, NAMES) == _matches_allowed_host(text)


@pytest.mark.parametrize(
    "host",
    [
        "[::1].evil.com",
        "[localhost]",
        "localhost:evil.com",
        "localhost:80:80",
        "localhost:65536",
        "localhost:-1",
        "localhost:８０",
        "localhost..",
        "localhost@evil.com",
        "user@localhost",
        "[::1%25eth0]",
        "[::1%.evil.com]",
        "::1",
        "[::1",
        "::1]",
        "[v1.x]",
        "127.1",
        "127.0.0.01",
        "127.0.0.1.",
        "127.0.0.1.evil.com",
        "2130706433",
        "0x7f000001",
        " localhost",
        "localhost ",
        "localhost/",
        "",
        ":80",
    ],
)
def test_a_host_that_only_resembles_an_allowed_one_is_refused(host: str) -> None:
    assert not is_host_allowed(host, NAMES)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST.:0", "localhost:", "[::1]:65535", "[::ffff:127.0.0.1]", "10.0.0.7:80"]
)
def test_an_allowed_host_with_any_port_is_accepted(host: str) -> None:
    assert is_host_allowed(host, NAMES)


def test_ipv6_addresses_of_one_network_are_one_client() -> None:
    assert client_network("2001:db8::1") == client_network("2001:db8::ffff") != client_network("2001:db8:0:1::1")
    assert client_network("::ffff:10.0.0.7") == client_network("10.0.0.7")
    assert client_network("fe80::1%eth0") == "fe80::/64"


# -- streams -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", select_cases(range(200), 20))
def test_streams_are_bounded_and_shared_fairly(seed: int) -> None:
    """At most `most` streams are open, and a client with two fewer streams than another one is not refused."""
    rng = random.Random(seed)
    slots, open_slots = StreamSlots(rng.randrange(1, 12)), list[StreamSlot]()
    for _ in range(200):
        if open_slots and rng.random() < 0.3:
            slots.release(open_slots.pop(rng.randrange(len(open_slots))))
            continue
        client, before = rng.choice("aaaaabc"), Counter(s.client for s in open_slots)
        slot = slots.take(client, lambda: None)
        full, most = len(open_slots) == slots.most, max(before.values(), default=0)
        assert (slot is None) == (full and most - before[client] < 2)
        if slot is not None:
            if full:
                gone = next(s for s in open_slots if before[s.client] == most and s not in slots)
                open_slots.remove(gone)
            open_slots.append(slot)
        assert len(slots) == len(open_slots) <= slots.most


def test_slow_reader_is_disconnected_but_steady_reader_is_not() -> None:
    """Both receive a large response. One reads a byte at a time, and the other reads all of it."""
    ended = threading.Event()
    size = 64 * 1024 * 1024

    async def large(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(size // 65536):
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        if scope["path"] == "/slow":
            ended.set()

    running = start_server(large, 0, service="a test", option="--port", wait_s=0.5)
    try:
        with socket.create_connection(("127.0.0.1", running.port), timeout=30) as slow:
            slow.sendall(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
            ends = time.monotonic() + 60
            while not ended.is_set():
                assert time.monotonic() < ends, "a reader of one byte at a time keeps its connection"
                slow.recv(1)
                time.sleep(0.02)
        with socket.create_connection(("127.0.0.1", running.port), timeout=30) as steady:
            steady.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            taken = 0
            while part := steady.recv(1 << 20):
                taken += len(part)
        assert taken > size
    finally:
        running.stop()


def test_busy_client_loses_a_connection_to_another_client() -> None:
    """Loopback has many addresses, so two clients can be on one machine."""

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        if scope["path"] == "/wait":
            await asyncio.sleep(3600)
        await send({"type": "http.response.body", "body": b"{}"})

    running = start_server(endless, 0, service="a test", option="--port", max_connections=4)
    held = []
    try:
        for _ in range(4):
            client = socket.create_connection(("127.0.0.1", running.port), timeout=30)
            client.sendall(b"GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.recv(12) == b"HTTP/1.1 200"
            held.append(client)
        with socket.create_connection(("127.0.0.1", running.port), timeout=30) as same:
            same.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert same.recv(12) == b"HTTP/1.1 503"
        with socket.create_connection(("127.0.0.1", running.port), 30, ("127.0.0.2", 0)) as other:
            other.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert other.recv(12) == b"HTTP/1.1 200"
    finally:
        for client in held:
            client.close()
        running.stop()
