"""Object stores for tests, on loopback: an S3 server (moto), an Azure server (azurite, from npm), and a faulty proxy.

with S3Server.started() as s3, FaultyProxy.start_proxy(s3.port) as proxy:
    FilesStore(s3.create_bucket("state"), "p", s3.connection_options(proxy.port))
"""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import http.client
import importlib.util
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar, Literal

from slackwater.errors import StartError
from slackwater.spark.sessions import spark_jars
from slackwater.testing.services import SECONDS, Process, free_port

Fault = Literal[
    "", "400", "403", "404", "409", "412", "429", "500", "501", "503",
    "done-403", "done-404", "done-412", "done-500", "lost", "dropped", "slow", "hangs", "twice", "half", "cut",
]  # fmt: skip
CODES = {
    400: "RequestTimeout",
    403: "AccessDenied",
    404: "NoSuchUpload",
    409: "ConditionalRequestConflict",
    412: "PreconditionFailed",
    429: "TooManyRequests",
    500: "InternalError",
    501: "NotImplemented",
    503: "SlowDown",
}


@dataclass
class S3Server:
    """An S3 server. Its contents are removed when it stops."""

    directory: Path
    port: int
    process: Process

    @classmethod
    @contextmanager
    def started(cls) -> Iterator[S3Server]:
        """Yield a running server and stop it afterwards. Raises StartError if moto is not installed."""
        if importlib.util.find_spec("moto") is None:
            raise StartError("an S3 server for tests comes with moto: pip install 'moto[server,s3]'")
        directory = Path(tempfile.mkdtemp(prefix="slackwater-s3-"))
        port = free_port()
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        server = cls(directory, port, Process(command, directory / "log"))
        try:
            server.start()
            yield server
        finally:
            server.process.stop(signal.SIGTERM)
            shutil.rmtree(directory, ignore_errors=True)

    def start(self) -> None:
        self.process.start()
        self.process.wait_for_http("the S3 server", f"http://127.0.0.1:{self.port}/moto-api/")

    def create_bucket(self, name: str) -> str:
        """Create a bucket, and return a URL in it."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/{name}", method="PUT")
        urllib.request.urlopen(request, timeout=60).close()
        return f"s3://{name}/state"

    def connection_options(self, port: int | None = None) -> dict[str, str]:
        """Return the connection options. `port`: the port of a proxy, or by default the server's own."""
        return {
            "endpoint": f"http://127.0.0.1:{port or self.port}",
            "access_key_id": "AKIASLACKWATERTEST",
            "secret_access_key": "not-so-secret-of-a-test",
            "region": "us-east-1",
        }


@dataclass
class Azurite:
    """An Azure Blob server. Its contents are removed when it stops. Its packages are downloaded once into a cache."""

    directory: Path
    port: int
    process: Process
    VERSION: ClassVar[str] = "3.37.0"
    ACCOUNT: ClassVar[str] = "devstoreaccount1"  # every Azurite has this account with this public key
    KEY: ClassVar[str] = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

    @classmethod
    @contextmanager
    def started(cls) -> Iterator[Azurite]:
        """Yield a running server and stop it afterwards. Raises StartError if npm cannot install it."""
        directory = Path(tempfile.mkdtemp(prefix="slackwater-azure-"))
        port = free_port()
        where = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "-l", str(directory)]
        command = [str(cls._install()), *where, "--skipApiVersionCheck", "--silent", "--disableTelemetry"]
        server = cls(directory, port, Process(command, directory / "log"))
        try:
            server.process.start()
            server.process.wait_for_http("the Azure server", f"http://127.0.0.1:{port}/")
            yield server
        finally:
            server.process.stop(signal.SIGTERM)
            shutil.rmtree(directory, ignore_errors=True)

    @classmethod
    def _install(cls) -> Path:
        home = spark_jars.cache_directory() / "npm" / f"azurite-{cls.VERSION}"
        command = home / "node_modules" / ".bin" / "azurite-blob"
        if not command.exists():
            home.mkdir(parents=True, exist_ok=True)
            npm = ["npm", "install", "--prefix", str(home), "--no-audit", "--no-fund", f"azurite@{cls.VERSION}"]
            done = subprocess.run(npm, capture_output=True, text=True)
            if done.returncode:
                npm_error = " | ".join(done.stderr.strip().splitlines()[-3:])
                raise StartError(f"npm cannot be reached for azurite, the Azure server for tests: {npm_error}")
        return command

    def create_bucket(self, name: str) -> str:
        """Create a container, and return a URL in it. Raises StartError."""
        date, version = email.utils.formatdate(usegmt=True), "2021-08-06"
        signed = f"PUT{chr(10) * 12}x-ms-date:{date}\nx-ms-version:{version}\n/{self.ACCOUNT}/{self.ACCOUNT}/{name}\nrestype:container"
        digest = hmac.new(base64.b64decode(self.KEY), signed.encode(), hashlib.sha256).digest()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        key = f"SharedKey {self.ACCOUNT}:{base64.b64encode(digest).decode()}"
        headers = {"x-ms-date": date, "x-ms-version": version, "Authorization": key, "Content-Length": "0"}
        connection.request("PUT", f"/{self.ACCOUNT}/{name}?restype=container", headers=headers)
        answer = connection.getresponse()
        connection.close()
        if answer.status != 201:
            raise StartError(f"the Azure server refused the container: {answer.status} {answer.reason}")
        return f"abfss://{name}@{self.ACCOUNT}.dfs.core.windows.net/state"

    def connection_options(self, port: int | None = None) -> dict[str, str]:
        """Return the connection options. `port`: the port of a proxy, or by default the server's own."""
        endpoint = f"http://127.0.0.1:{port or self.port}/{self.ACCOUNT}"
        return {"endpoint": endpoint, "account_name": self.ACCOUNT, "account_key": self.KEY}


@dataclass
class FaultyProxy:
    """An HTTP proxy that injects faults.

    Faults:
        "403", "503", …: The proxy rejects the request with this status.
        "done-403", …: The server handles the request, and the client gets this status.
        "half": Half of the uploaded body arrives.
        "cut": Half of the response arrives.
        "dropped": The connection closes before the server receives the request.
        "lost": The server handles the request, and the response is lost.
        "slow": The response arrives `pause_s` seconds later.
        "hangs": The server handles the request, and the response never arrives while the proxy is open.
        "twice": The server receives the request twice, as after a retry, and the client gets the second response.

    Args:
        target: The port of the server.
        judge: Returns the fault for a request, given its method and path; "" for none.
        revise: Returns the body to forward, given the method, path and body of the response.
        pause_s: The delay of slow responses.
        seen: All requests so far.
        faults: All injected faults so far.
        port: The port of the proxy.
        closed: Set when the proxy closes.
    """

    target: int
    judge: Callable[[str, str], Fault] = field(default=lambda method, path: "")
    revise: Callable[[str, str, bytes], bytes] = field(default=lambda method, path, content: content)
    pause_s: float = 0.3
    seen: list[tuple[str, str]] = field(default_factory=list)
    faults: list[tuple[str, str, Fault]] = field(default_factory=list)
    port: int = 0
    closed: threading.Event = field(default_factory=threading.Event)

    @classmethod
    @contextmanager
    def start_proxy(cls, target: int) -> Iterator[FaultyProxy]:
        """Yield a running proxy for the server at port `target`, and stop it afterwards."""
        running = cls(target)

        class Handler(_ProxyHandler):
            proxy = running

        server = _ProxyServer(("127.0.0.1", 0), Handler)
        running.port = int(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield running
        finally:
            running.closed.set()
            server.shutdown()
            server.server_close()
            thread.join()


class _ProxyServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore closed connections: the client was killed, or gave up."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _ProxyHandler(BaseHTTPRequestHandler):
    proxy: FaultyProxy
    protocol_version = "HTTP/1.1"

    def _forward_request(self) -> None:
        proxy, method = self.proxy, self.command
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = proxy.judge(method, self.path)
        proxy.seen.append((method, self.path))
        if fault:
            proxy.faults.append((method, self.path, fault))
        if fault == "dropped":
            self.close_connection = True
            return
        if fault.isdigit():
            self._send_error_status(int(fault))
            return
        if fault == "half":
            self._send_half_request(body)
            return
        for _ in range(2 if fault == "twice" else 1):
            connection = http.client.HTTPConnection("127.0.0.1", proxy.target, timeout=SECONDS)
            try:
                # the server does not check signatures, but returns its own address in responses
                connection.request(method, self.path, body or None, dict(self.headers))
                answer = connection.getresponse()
                content = answer.read()
            finally:
                connection.close()
        if fault == "slow":
            proxy.closed.wait(proxy.pause_s)
        if fault == "hangs":
            proxy.closed.wait()
        if fault in ("lost", "hangs"):
            self.close_connection = True
            return
        if fault.startswith("done-"):
            self._send_error_status(int(fault.removeprefix("done-")))
            return
        self._send_answer(answer.status, answer.getheaders(), proxy.revise(method, self.path, content), fault == "cut")

    def _send_error_status(self, status: int) -> None:
        self._send_answer(
            status, [], f"<Error><Code>{CODES[status]}</Code><Message>of the test</Message></Error>".encode()
        )

    def _send_half_request(self, body: bytes) -> None:
        """Announce the whole request to the server, send half of it, and close both connections."""
        self.close_connection = True
        head = "".join(f"{n}: {v}\r\n" for n, v in self.headers.items())
        with socket.create_connection(("127.0.0.1", self.proxy.target), SECONDS) as upstream:
            upstream.sendall(f"{self.command} {self.path} HTTP/1.1\r\n{head}\r\n".encode() + body[: len(body) // 2])

    def _send_answer(self, status: int, headers: list[tuple[str, str]], content: bytes, cut: bool = False) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):
            self.send_response(status)
            for name, value in headers:
                if name.lower() not in ("connection", "transfer-encoding", "content-length", "server", "date"):
                    self.send_header(name, value)
            length = next((v for n, v in headers if n.lower() == "content-length"), None)
            self.send_header("Content-Length", length if self.command == "HEAD" and length else str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content[: len(content) // 2] if cut else content)
            self.close_connection |= cut

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _forward_request  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        return
