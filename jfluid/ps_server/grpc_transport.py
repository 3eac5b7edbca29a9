"""gRPC as a transport: every call can go through it. Exchanges beyond the limit of a message go in chunks."""

from typing import Any

import grpc

from jfluid import errors
from jfluid.ps_server import ps_pb2 as pb
from jfluid.ps_server import wire
from jfluid.ps_server.auth import Session, Unary
from jfluid.ps_server.transport import STREAM, Sender, ServerCall, Transport, read_reply

# gRPC uses the second also as the limit of an attempt to connect, for which a busy server needs
# more than the first.
_OPTIONS = [
    *wire.OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.keepalive_time_ms", 20_000),
]
ASIDE_S = 5.0  # how long to wait for an answer that nothing depends on


class GrpcTransport(Transport):
    """The gRPC channel of a client to one server, with a session that proves the job's secret.

    Args:
        endpoint: "host:port" of the server.
        token: the job's secret.
        credentials: for TLS; None for none.
        timeout_s: how long the beginning of a session may take.
    """

    def __init__(self, endpoint: str, token: str, credentials: grpc.ChannelCredentials | None, timeout_s: float):
        self._timeout_s = timeout_s
        self._channel = (
            grpc.secure_channel(endpoint, credentials, _OPTIONS)
            if credentials
            else grpc.insecure_channel(endpoint, _OPTIONS)
        )
        self._session = Session(self._channel, endpoint, token, timeout_s)
        # Requests are passed as bytes: their size is needed first, and computing it costs as much
        # as serializing the message.
        self._methods: dict[str, Unary] = {name: self._unary(name) for name in wire.METHODS}
        self._stream = self._session.stream(f"/{wire.SERVICE}/{STREAM}")

    def _unary(self, name: str) -> Unary:
        return self._session.unary(f"/{wire.SERVICE}/{name}", lambda data: read_reply(name, data))

    def sender(self, size: int) -> Sender:
        return self.send

    def send(self, call: ServerCall, timeout_s: float | None) -> Any:
        """Send a call and return the parsed reply. Raises RpcError, and ValueError after `close`."""
        data = b"".join(call.parts)
        if call.method == STREAM:
            return read_reply(STREAM, wire.joined(self._stream(wire.chunked(data), timeout_s)))
        return self._methods[call.method](data, timeout_s, call.sent)

    def attach(self) -> pb.AttachReply | None:
        """Ask the server for the port of its streams; None without an answer."""
        call = ServerCall("Attach", [pb.AttachRequest().SerializeToString()], 0)
        try:
            reply: pb.AttachReply = self.send(call, min(self._timeout_s, ASIDE_S))
            return reply
        # the call that wants a channel then goes through gRPC, and raises the error
        except (grpc.RpcError, errors.ServerError, ValueError):
            return None

    def renew(self) -> None:
        """Begin a new session with the next call."""
        self._session.renew()

    def forget(self) -> None:
        """Keep the session: gRPC connects to the restarted server, which refuses the session if it does not know it."""

    def close(self) -> None:
        self._channel.close()
