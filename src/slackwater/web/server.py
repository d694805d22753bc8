"""An HTTP server for an ASGI application, in a separate thread.

The modules `connection_limits` and `request_guard` restrict which connections and requests it accepts.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Sequence

import uvicorn

from slackwater.errors import StartError, Topic
from slackwater.web.connection_limits import WAIT_S, create_bounded_protocol
from slackwater.web.request_guard import HEAD_BYTES, Application, RequestGuard

LOOPBACK = "127.0.0.1"


class HttpServer:
    """A server that listens on `address` and `port` until `stop` is called."""

    def __init__(self, server: uvicorn.Server, listening: socket.socket) -> None:
        self._server, self._socket = server, listening
        self.address: str = listening.getsockname()[0]
        self.port: int = listening.getsockname()[1]
        self._thread = threading.Thread(
            target=server.run, kwargs={"sockets": [listening]}, name=f"http-{self.port}", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Wait up to 2 seconds for open requests, then release the port."""
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()


def start_server(
    app: Application,
    port: int,
    host: str = LOOPBACK,
    *,
    service: str,
    option: str,
    names: Sequence[str] = (),
    max_connections: int = 128,
    wait_s: float = WAIT_S,
) -> HttpServer:
    """Serve an application until `stop` is called. Raises StartError if the port cannot be used.

    Args:
        app: The ASGI application.
        port: The port; 0 selects a free port.
        host: The address on which to listen.
        service: The name of what is served, for error messages.
        option: The command-line option that sets the port, for error messages.
        names: Additional names of this server, from `--allow-host`; see `request_guard`.
        max_connections: The maximum number of connections.
        wait_s: The time limit for an entire request, and for progress in reading a response (seconds).
    """
    listening = _open_socket(host, port, service, option)
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # it would log every invalid request
    config = uvicorn.Config(
        RequestGuard(app, (host, *names), "--allow-host"),
        http=create_bounded_protocol(max_connections, wait_s),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=HEAD_BYTES,
        timeout_graceful_shutdown=2,
        backlog=max_connections,  # asyncio accepts this many connections before it passes on the first
    )
    return HttpServer(uvicorn.Server(config), listening)


def _open_socket(host: str, port: int, service: str, option: str) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
    except (OSError, OverflowError, UnicodeError) as error:
        raise _port_error(host, port, service, option, error) from None
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise _port_error(host, port, service, option, error) from None
    return listening


def _port_error(host: str, port: int, service: str, option: str, error: Exception) -> StartError:
    reason = getattr(error, "strerror", None) or str(error)
    return StartError(
        f"{service} cannot be served on {host}:{port} ({reason}); choose another {option}", Topic.SERVER_START
    )


__all__ = ["LOOPBACK", "HttpServer", "start_server"]
