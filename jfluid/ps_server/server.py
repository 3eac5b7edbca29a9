"""A server: settings, the port, the watch over silent trainers."""

import logging
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Literal

import grpc
from pydantic import ConfigDict, Field

from jfluid import errors
from jfluid.environment.field_types import Port, Seconds
from jfluid.environment.process import ServerVariables
from jfluid.ps_server import specs, validation, wire
from jfluid.ps_server.auth import SecretInterceptor
from jfluid.ps_server.metrics_server import MetricsServer
from jfluid.ps_server.recording import ServerRecord
from jfluid.ps_server.service import Service
from jfluid.ps_server.store import Store
from jfluid.ps_server.sync_rounds import TrainerGroup
from jfluid.security import secret

logger = logging.getLogger(__name__)
# Connections without HTTP/2 or without a call for long are closed: a client connects again. Connections are also
# closed if the client answers no ping: it is gone, and its calls must not wait for ever. A client has a limit of
# concurrent calls; further calls wait at the client.
MOST_CALLS = 256
_OPTIONS = [
    *wire.OPTIONS,
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 300_000),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.max_concurrent_streams", MOST_CALLS),
]
_CANCELLED_S = 5.0  # after the time of grace, for gRPC to end the calls that it cancels
_BY_DEFAULT = ServerVariables()


class Settings(validation.Spec):
    """Settings of a server.

    Attributes:
        token: the job's secret, which every call must prove to know; 16 to 1024 characters.
        host, port: where it listens; port 0 takes a free one.
        server, servers: this is server number `server` (from 0) of `servers`.
        trainers: how many there are in the job.
        silence_s: a trainer not heard for longer than this many seconds is silent.
        on_silence: then the job fails, or goes on without it.
        start_s: a trainer not heard for longer than this many seconds since the server was restored
            is silent, too. (In a new job a trainer may come as late as it likes.)
        end_with_trainers: whether `Server.wait` returns when all trainers have left.
        save_root: snapshots are written and read below this folder only, whatever a call asks for;
            None for anywhere.
        max_rows, max_bytes: bounds on all tables of this server together; None for no bound.
            specs.TableSpec has the bounds of a single table. Blocks that clients create
            count, too.
        metrics_port: answers Prometheus on http://host:metrics_port/metrics (https with TLS), if it brings the token
            that follows from the secret; None for no such port.
        tls_certificate, tls_key: PEM files; both or none. With these files only TLS connections are accepted.
        tls_clients: a PEM file of authorities; clients must show a certificate of such an authority.
    """

    model_config = ConfigDict(hide_input_in_errors=True)  # it may be the secret

    token: Annotated[str, Field(min_length=16, max_length=1024, pattern=r"^[\x21-\x7e]+$", repr=False)]
    host: str = "127.0.0.1"
    port: Port = 0
    server: Annotated[int, Field(ge=0)] = 0
    servers: Annotated[int, Field(ge=1, le=99_999)] = 1
    trainers: Annotated[int, Field(ge=1, le=65536)] = 1
    silence_s: Seconds = _BY_DEFAULT.silence_s
    on_silence: Literal["fail", "leave out"] = _BY_DEFAULT.on_silence
    start_s: Seconds = _BY_DEFAULT.start_s
    end_with_trainers: bool = False
    save_root: Path | None = None
    max_rows: specs.Bound = None
    max_bytes: specs.Bound = None
    metrics_port: Port | None = None
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_clients: Path | None = None


class Server:
    """A running parameter server; `store` holds its tables and blocks.

    Args:
        store: None for an empty store. A subclass may have further kinds of blocks and updates.

    Attributes:
        port: where it listens.
        metrics_port: where it answers Prometheus, or None.
    """

    def __init__(self, settings: Settings, store: Store | None = None):
        if settings.server >= settings.servers:
            raise errors.ServerError(f"server: expected a number below {settings.servers}, found {settings.server}")
        self.settings, self.store = settings, store if store is not None else Store()
        self.store.cap.most_rows, self.store.cap.most_bytes = settings.max_rows, settings.max_bytes
        self.trainer_group = TrainerGroup(
            self.store, settings.trainers, settings.silence_s, settings.on_silence, start_s=settings.start_s
        )
        self.service = Service(
            self.store, self.trainer_group, settings.server, settings.servers, save_root=settings.save_root
        )
        # A call that waits for other trainers keeps its thread, as long as its caller is there.
        self._threads = ThreadPoolExecutor(16 + 4 * settings.trainers, thread_name_prefix="jfluid-ps")
        self._grpc = grpc.server(self._threads, interceptors=[SecretInterceptor(settings.token)], options=_OPTIONS)
        self._grpc.add_generic_rpc_handlers((self.service.handlers(),))
        self.port = self._listen()
        self._ended = threading.Event()
        if settings.end_with_trainers:
            self.trainer_group.on_finished = self._end
        self._watch = threading.Thread(target=self._watch_trainers, name="jfluid-ps-watch", daemon=True)
        self._record = ServerRecord(self.service.metrics.registry)
        self._metrics_server: MetricsServer | None = None
        self.metrics_port: int | None = None

    @property
    def _has_tls(self) -> bool:
        settings = self.settings
        return bool(settings.tls_certificate or settings.tls_key or settings.tls_clients)

    def _listen(self) -> int:
        settings = self.settings
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        port: int
        try:
            if self._has_tls:
                port = self._grpc.add_secure_port(f"{host}:{settings.port}", _credentials(settings))
            else:
                port = self._grpc.add_insecure_port(f"{host}:{settings.port}")
        except RuntimeError as error:
            raise errors.ServerError(f"cannot listen on {host}:{settings.port}; is the port taken? ({error})") from None
        return port

    def start(self) -> "Server":
        """Begin to answer calls."""
        if self.settings.metrics_port is not None:
            self._metrics_server = MetricsServer(
                self.settings.host,
                self.settings.metrics_port,
                self.service.metrics.registry,
                _metrics_tokens(self.settings),
                _tls_context(self.settings),
            )
            self.metrics_port = self._metrics_server.server_port
        if not self._has_tls:  # a socket stream would have no TLS
            self.service.streams.listen(self.settings.host, self.settings.token, self.port)
        self._grpc.start()
        self._watch.start()
        return self

    def _watch_trainers(self) -> None:
        while not self._ended.wait(min(self.settings.silence_s / 4, 1.0)):
            self.trainer_group.look_for_silence()
            self._record.look()
            if self.settings.end_with_trainers and self.trainer_group.finished:  # a trainer's last answer was lost
                self._end()
            if self.settings.end_with_trainers and self.trainer_group.failed:
                logger.error("the job has failed: %s", self.trainer_group.failed)
                self._ended.set()

    def _end(self) -> None:
        logger.info("all trainers have left")
        self._ended.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the job (with `end_with_trainers`) or for `stop`; False when the time is up.

        The job ends when all trainers have left, or when it has failed.
        """
        return self._ended.wait(timeout_s)

    def stop(self, grace_s: float = 5.0) -> None:
        """Take no more calls; give pending calls `grace_s` seconds."""
        self._ended.set()
        stopped = self._grpc.stop(grace_s)
        self.service.streams.stop()
        self.service.streams.end(grace_s)
        if not stopped.wait(grace_s + _CANCELLED_S):
            logger.warning("gRPC still waits for calls that were cancelled; going on without the calls")
        self._threads.shutdown(wait=False)
        if self._watch.is_alive():
            self._watch.join(_CANCELLED_S)
        if self._metrics_server is not None:
            self._metrics_server.stop()

    def __enter__(self) -> "Server":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop(grace_s=0.5)


def _metrics_tokens(settings: Settings) -> list[str]:
    """Return the tokens that the metrics endpoint accepts: the job's, and on this host also this user's.

    A user need not know the secrets that launchers make.
    """
    tokens = [secret.metrics_token(settings.token)]
    if secret.is_loopback(settings.host):
        try:
            tokens.append(secret.metrics_token(secret.of_this_user()))
        except errors.SecretError as error:
            logger.warning("metrics: only a token from the job's secret is taken: %s", error)
    return tokens


def _tls_context(settings: Settings) -> ssl.SSLContext | None:
    """Metrics take TLS connections only where calls do, of the same clients."""
    if settings.tls_certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.tls_certificate, settings.tls_key)
        if settings.tls_clients is not None:
            context.load_verify_locations(settings.tls_clients)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:  # as ssl's own errors are
        raise errors.ServerError(f"TLS: {error}") from None
    return context


def _credentials(settings: Settings) -> grpc.ServerCredentials:
    if not (settings.tls_certificate and settings.tls_key):
        raise errors.ServerError("TLS: expected both tls_certificate and tls_key")
    try:
        pair = settings.tls_key.read_bytes(), settings.tls_certificate.read_bytes()
        clients = settings.tls_clients.read_bytes() if settings.tls_clients else None
    except OSError as error:
        raise errors.ServerError(f"TLS: {error}") from None
    return grpc.ssl_server_credentials([pair], clients, require_client_auth=clients is not None)
