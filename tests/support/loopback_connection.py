"""TCP connections within this process, as between Spark and a Python worker."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from slackwater.connectors import spark_worker_socket


@contextmanager
def open_loopback_connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield both ends of a new connection on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
    spark_worker_socket._list_sockets.cache_clear()
    try:
        with client, accepted:
            yield client, accepted
    finally:
        spark_worker_socket._list_sockets.cache_clear()


def make_interactive(client: socket.socket, server: socket.socket) -> None:
    """Exchange messages until the server delays its acknowledgments, because Linux expects that an answer carries them."""
    for _ in range(10):
        client.sendall(b"question")
        server.recv(100)
        server.sendall(b"answer")
        client.recv(100)
    assert not acknowledges_at_once(server)


def acknowledges_at_once(connection: socket.socket) -> bool:
    return bool(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK))
