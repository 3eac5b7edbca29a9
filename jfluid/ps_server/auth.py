"""The job's secret on gRPC: every call proves that its caller has it, and every answer that its server does.

A client begins a session with a call named Begin. It sends a nonce; the server answers with a
challenge, random in each of its lives, and a proof that it has the secret. From nonce and challenge
follows the session's key. Each call then brings a number and half of a MAC of it and of the
method's name, in its metadata; a number is good once, so a recorded header opens nothing. The
answer brings the MAC's other half. Messages themselves are neither hidden nor sealed: that takes
TLS.

Who proves nothing is refused when the headers of his call have come, by the thread that takes calls
from the network: no message of his is awaited, and none of the threads that work for trainers is
taken.
"""

import hashlib
import hmac
import itertools
import secrets
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import grpc

from jfluid import errors
from jfluid.ps_server import wire
from jfluid.security.secret import VARIABLE, key_for

BEGIN = f"/{wire.SERVICE}/Begin"
NONCE = "jfluid-nonce-bin"
PROOF = "jfluid-proof-bin"
_PURPOSE = "parameter server"
_NONCE_SIZE, _CHALLENGE_SIZE, _MAC_SIZE = 16, 32, 32
_PROOF = struct.Struct(f"<{_NONCE_SIZE}sQ{_MAC_SIZE}s")
_BEGUN = struct.Struct(f"<{_CHALLENGE_SIZE}s{_MAC_SIZE}s")
# How far the calls of one session may overtake each other.
_WINDOW = 4096
_SESSIONS = 4096
# Statuses that only the service gives, and on which clients act.
_OF_THE_SERVICE = {
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.DATA_LOSS,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.OUT_OF_RANGE,
}
Metadata = tuple[tuple[str, bytes], ...]


def decode_proof(data: bytes) -> tuple[bytes, int, bytes]:
    """Return (nonce of the session, number of the call, MAC) from the proof of a call.

    Raises MessageError.
    """
    if len(data) != _PROOF.size:
        raise errors.MessageError(f"{PROOF}: expected {_PROOF.size} bytes, found {len(data)}")
    nonce, number, mac = _PROOF.unpack(data)
    return nonce, number, mac


def decode_begun(data: bytes) -> tuple[bytes, bytes]:
    """Return (the server's challenge, its MAC) in an answer to Begin. Raises MessageError."""
    if len(data) != _BEGUN.size:
        raise errors.MessageError(f"Begin: expected an answer of {_BEGUN.size} bytes, found {len(data)}")
    challenge, mac = _BEGUN.unpack(data)
    return challenge, mac


def _mac(key: bytes, what: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"".join([what, b"\0", *parts]), "sha256")


class _Keys:
    """Keys that both sides of a session compute."""

    def __init__(self, key: bytes, nonce: bytes, challenge: bytes):
        self.nonce = nonce
        self._key = _mac(key, b"session", nonce, challenge)

    def macs(self, number: int, path: str) -> tuple[bytes, bytes]:
        """Return the proof of a call and the proof of the answer: the halves of one MAC.

        Neither half reveals the other. BLAKE2b with a key takes 2 microseconds; HMAC takes 10 to 15.
        """
        message = number.to_bytes(8, "little") + path.encode()
        both = hashlib.blake2b(message, key=self._key, digest_size=2 * _MAC_SIZE).digest()
        return both[:_MAC_SIZE], both[_MAC_SIZE:]


# ---- of a server ----


class _AtOnce(ThreadPoolExecutor):
    """Executor that runs a function at once, in the thread that has taken the call, for calls that never wait."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments, **named))
        except BaseException as error:  # as a thread of a pool does
            future.set_exception(error)
        return future


def _at_once(answer: Callable[[Iterator[bytes], grpc.ServicerContext], bytes]) -> grpc.RpcMethodHandler:
    """Return a handler that answers when the headers are there.

    The handler is that of a stream: so gRPC delivers no message that the handler did not ask for.
    """
    answer.experimental_thread_pool = _AtOnce(1)  # type: ignore[attr-defined]
    return grpc.stream_unary_rpc_method_handler(answer)


class _Session(_Keys):
    """A client's session, and which numbers of calls were used."""

    def __init__(self, key: bytes, nonce: bytes, challenge: bytes):
        super().__init__(key, nonce, challenge)
        self._highest = self._used = 0  # bit i of `used`: the number i below the highest

    def take(self, number: int) -> bool:
        """Return whether this number is used for the first time."""
        if number > self._highest:
            self._used = (self._used << min(number - self._highest, _WINDOW) | 1) & ((1 << _WINDOW) - 1)
            self._highest = number
            return True
        below = self._highest - number
        if below >= _WINDOW or self._used >> below & 1:
            return False
        self._used |= 1 << below
        return True


class SecretInterceptor(grpc.ServerInterceptor):
    """Refuses calls that do not prove to know the secret. gRPC asks it in one thread, one call after the other.

    Args:
        sessions: how many are remembered. When there are more a new challenge begins, and every
            client a new session.
    """

    def __init__(self, secret: str, sessions: int = _SESSIONS):
        self._key, self._most = key_for(secret, _PURPOSE), sessions
        self._forget()

        def begin(messages: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
            nonce = _value(context.invocation_metadata(), NONCE)
            if len(nonce) != _NONCE_SIZE:
                context.abort(
                    grpc.StatusCode.INVALID_ARGUMENT, f"{NONCE}: expected {_NONCE_SIZE} bytes, found {len(nonce)}"
                )
            return _BEGUN.pack(self._challenge, _mac(self._key, b"server", nonce, self._challenge))

        def refuse(messages: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
            context.abort(
                grpc.StatusCode.UNAUTHENTICATED,
                f"the call does not prove that its caller has the job's secret ({VARIABLE})",
            )
            raise AssertionError("abort raises")

        self._begin, self._refuse = _at_once(begin), _at_once(refuse)

    def _forget(self) -> None:
        """Choose a new challenge, which makes all earlier proofs invalid."""
        self._challenge = secrets.token_bytes(_CHALLENGE_SIZE)
        self._sessions: dict[bytes, _Session] = {}

    def intercept_service(self, continuation: Callable[..., Any], details: grpc.HandlerCallDetails) -> Any:
        if details.method == BEGIN:
            return self._begin
        proven = self._proven(_value(details.invocation_metadata, PROOF), details.method)
        if proven is None:
            return self._refuse
        handler = continuation(details)
        return handler and _answering(handler, ((PROOF, proven),))

    def _proven(self, proof: bytes, path: str) -> bytes | None:
        """Return the proof that goes with the answer to a call, or None to refuse the call."""
        try:
            nonce, number, mac = decode_proof(proof)
        except errors.MessageError:
            return None
        session = self._sessions.get(nonce) or _Session(self._key, nonce, self._challenge)
        expected, answer = session.macs(number, path)
        if not hmac.compare_digest(mac, expected) or not session.take(number):
            return None
        if nonce not in self._sessions:
            if len(self._sessions) >= self._most:
                self._forget()
                return None
            self._sessions[nonce] = session
        return answer


def _value(metadata: Any, key: str) -> bytes:
    return next((value for name, value in metadata or () if name == key), b"")


def _answering(handler: grpc.RpcMethodHandler, metadata: Metadata) -> grpc.RpcMethodHandler:
    """Return a handler that adds metadata to the answers and refusals of `handler`."""
    function = handler.stream_stream or handler.unary_unary

    def answer(request: Any, context: grpc.ServicerContext) -> Any:
        context.set_trailing_metadata(metadata)
        return function(request, context)

    return (
        grpc.stream_stream_rpc_method_handler(answer)
        if handler.stream_stream
        else grpc.unary_unary_rpc_method_handler(answer)
    )


# ---- of a client ----


class _Numbered(_Keys):
    """Session of this client that numbers its calls."""

    def __init__(self, key: bytes, nonce: bytes, challenge: bytes):
        super().__init__(key, nonce, challenge)
        self._numbers = itertools.count(1)

    def next(self, path: str) -> tuple[Metadata, bytes]:
        """Return the metadata of the next call of a method, and the proof that its answer must have."""
        number = next(self._numbers)
        mac, answer = self.macs(number, path)
        return ((PROOF, _PROOF.pack(self.nonce, number, mac)),), answer


class Unary(Protocol):
    """A method with one message each way. `sent` is called when the request is on its way."""

    def __call__(self, request: bytes, timeout_s: float | None, sent: Callable[[], None] | None = None) -> Any: ...


class Session:
    """A client's proofs to one server, and the server's to it. Safe for threads.

    Args:
        timeout_s: for how long Begin waits for its answer.
    """

    def __init__(self, channel: grpc.Channel, endpoint: str, secret: str, timeout_s: float):
        self._channel, self._endpoint, self._timeout_s = channel, endpoint, timeout_s
        self._key = key_for(secret, _PURPOSE)
        self._send_begin = channel.stream_unary(BEGIN)
        self._current: _Numbered | None = None

    def unary(self, path: str, read: Callable[[bytes], Any]) -> "Unary":
        """Return a function that sends one serialized request and returns the reply within `timeout_s` seconds.

        The function raises RpcError, and ServerError when the server does not prove itself.
        """
        method = self._channel.unary_unary(path, None, read)

        def call(request: bytes, timeout_s: float | None, sent: Callable[[], None] | None = None) -> Any:
            metadata, expected = (self._current or self._begin()).next(path)
            try:
                if sent is None:  # fewer threads have to do with it
                    reply, answer = method.with_call(request, timeout_s, metadata)
                else:
                    answer = method.future(request, timeout_s, metadata)
                    try:
                        sent()
                        reply = answer.result()
                    except BaseException:
                        answer.cancel()  # as gRPC does with a call that is interrupted
                        raise
            except grpc.RpcError as error:
                self._check_refusal(error, expected)
                raise
            self._check(answer, expected)
            return reply

        return call

    def stream(self, path: str) -> Callable[[Iterator[bytes], float | None], Iterator[bytes]]:
        """Return a method with several messages each way; the server's proof comes after the last.

        See `unary`.
        """
        method = self._channel.stream_stream(path)

        def call(requests: Iterator[bytes], timeout_s: float | None) -> Iterator[bytes]:
            metadata, expected = (self._current or self._begin()).next(path)
            answer = method(requests, timeout_s, metadata)
            try:
                yield from answer
            except grpc.RpcError as error:
                self._check_refusal(error, expected)
                raise
            self._check(answer, expected)

        return call

    def _begin(self) -> _Numbered:
        nonce = secrets.token_bytes(_NONCE_SIZE)
        answer = self._send_begin(iter(()), self._timeout_s, ((NONCE, nonce),))
        try:
            challenge, mac = decode_begun(answer)
        except errors.MessageError as error:
            raise errors.ServerError(f"server {self._endpoint}: {error}") from None
        if not hmac.compare_digest(mac, _mac(self._key, b"server", nonce, challenge)):
            raise self._stranger()
        self._current = _Numbered(self._key, nonce, challenge)
        return self._current

    def renew(self) -> None:
        """Begin a new session with the next call: the server does not know the current one."""
        self._current = None

    def _check_refusal(self, error: Any, expected: bytes) -> None:
        """Check the proof of a refusal by the service; a failure that gRPC itself reports has none."""
        if error.code() in _OF_THE_SERVICE:
            self._check(error, expected)

    def _check(self, call: Any, expected: bytes) -> None:
        if not hmac.compare_digest(_value(call.trailing_metadata(), PROOF), expected):
            self.renew()
            raise self._stranger()

    def _stranger(self) -> errors.ServerError:
        return errors.ServerError(
            f"server {self._endpoint}: it does not prove that it has the job's secret: it belongs to a "
            f"different job, or was given a different {VARIABLE}"
        )
