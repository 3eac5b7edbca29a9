"""HTTP endpoint for Prometheus. A request needs the token that follows from the job's secret."""

import hmac
import logging
import socket
import ssl
import threading
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from jfluid import errors
from jfluid.security import sockets

logger = logging.getLogger(__name__)
_SECONDS_TO_ASK = 5.0
_MOST_CONNECTIONS = 32
_NO_TOKEN = (
    b"expected the header `Authorization: Bearer TOKEN`, with what `python -m jfluid.security metrics-token` prints "
    b"where the job's secret is\n"
)


class _Handler(BaseHTTPRequestHandler):
    """Handler of one request, with a limit on the time for its data."""

    server: "MetricsServer"
    timeout = _SECONDS_TO_ASK
    server_version, sys_version = "jfluid", ""

    def do_GET(self) -> None:
        if not self.server.admits(self.headers.get("Authorization", "")):
            return self._answer(HTTPStatus.UNAUTHORIZED, "text/plain", _NO_TOKEN, ("WWW-Authenticate", "Bearer"))
        encode, kind = choose_encoder(self.headers.get("Accept", ""))
        self._answer(HTTPStatus.OK, kind, encode(self.server.registry))

    def _answer(self, status: HTTPStatus, kind: str, body: bytes, *more: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in (("Content-Type", kind), ("Content-Length", str(len(body))), *more):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Strangers write nothing into the job's log."""


class MetricsServer(ThreadingHTTPServer):
    """HTTP server at http://host:port/metrics, or https with `tls`, in separate threads.

    Args:
        tokens: a request must bring any of these.

    Raises ServerError when the port is taken.
    """

    request_queue_size = 128
    daemon_threads = True
    block_on_close = False

    def __init__(
        self,
        host: str,
        port: int,
        registry: CollectorRegistry,
        tokens: Sequence[str],
        tls: ssl.SSLContext | None = None,
    ):
        self.registry = registry
        self._tokens = [f"Bearer {token}".encode() for token in tokens]
        self._connections: dict[socket.socket, None] = {}  # the oldest first
        self._lock, self._stopping = threading.Lock(), threading.Event()
        self._told = False  # that descriptors have run out
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise errors.ServerError(f"metrics: cannot listen on {host}:{port}: {error.strerror}") from None
        if tls is not None:  # the handshake belongs to a connection's thread
            self.socket = tls.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(
            target=self.serve_forever,
            args=(0.05,),  # seconds between looks at whether it is shut down
            name="jfluid-ps-metrics",
            daemon=True,
        )
        self._thread.start()

    def server_bind(self) -> None:
        """Bind, and ask no name server for the host's name, as HTTPServer does."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = (str(self.server_address[0]), int(self.server_address[1]))

    def admits(self, authorization: str) -> bool:
        """Return whether a request with this header is answered."""
        found = authorization.encode(errors="replace")
        return any(hmac.compare_digest(found, token) for token in self._tokens)

    def get_request(self) -> Any:
        """Accept a connection. Where descriptors have run out it is tried again after a pause."""
        try:
            found = super().get_request()
            self._told = False
            return found
        except OSError as error:
            if error.errno in sockets.EXHAUSTED:
                if not self._told:
                    self._told = True
                    logger.warning(
                        "metrics: cannot accept connections, next attempt in %g s: %s",
                        sockets.PAUSE_S,
                        error.strerror,
                    )
                self._stopping.wait(sockets.PAUSE_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give a connection a thread; when there are too many the oldest ends."""
        with self._lock:
            self._connections[request] = None
            if len(self._connections) > _MOST_CONNECTIONS:
                oldest = next(iter(self._connections))
                del self._connections[oldest]
                with suppress(OSError):  # its thread wakes up and closes it
                    oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Strangers write nothing into the job's log."""

    def stop(self) -> None:
        """Answer no more."""
        self._stopping.set()
        self.shutdown()
        self._thread.join()
        self.server_close()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            with suppress(OSError):  # its thread wakes up and closes it
                connection.shutdown(socket.SHUT_RDWR)
