"""Connections between processes of one job.

Each side proves that it has the job's secret before anything else is read.

    listener                                        connector
    greeting, nonce                            ->
                                               <-   greeting, nonce, MAC of both nonces
    second MAC of both nonces, or zeros        ->   (zeros: the connector has a different secret)

Messages of either side follow: the length, a MAC, the message. Both nonces determine the key of the
MACs, which also cover the sender and the message's number: nothing can be changed, dropped,
repeated or inserted. Messages are not encrypted: every host on the network can read the messages.

A stranger's connection costs a descriptor and some hundred bytes, for a few seconds.
"""

import contextlib
import errno
import hmac
import logging
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Iterator

from jfluid import errors
from jfluid.security.secret import VARIABLE, key_for

_GREETING = b"jfluid 1"
_NONCE_SIZE = _MAC_SIZE = 32
_CHALLENGE = struct.Struct(f"<{len(_GREETING)}s{_NONCE_SIZE}s")
_RESPONSE = struct.Struct(f"<{len(_GREETING)}s{_NONCE_SIZE}s{_MAC_SIZE}s")
_REFUSED = bytes(_MAC_SIZE)
_HEAD = struct.Struct(f"<Q{_MAC_SIZE}s")
_PIECE = 1 << 18
_SECONDS_TO_PROVE = 5.0
_MOST_NEWCOMERS = 128
_MOST_AT_A_TIME = 64
# This process, or the machine, has no descriptor or memory left for a new connection. Waiting connections
# stay in the listening socket's queue, so an accepting loop would spin: it pauses.
EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
PAUSE_S = 0.5
logger = logging.getLogger(__name__)


def decode_challenge(data: bytes) -> bytes:
    """Return the nonce in a listener's greeting. Raises MessageError."""
    if len(data) != _CHALLENGE.size or not data.startswith(_GREETING):
        raise errors.MessageError(f"expected the greeting of a listener of jfluid, found {data[:20]!r}")
    return data[len(_GREETING) :]


def decode_response(data: bytes) -> tuple[bytes, bytes]:
    """Return (nonce, MAC) in a connector's greeting. Raises MessageError."""
    if len(data) != _RESPONSE.size or not data.startswith(_GREETING):
        raise errors.MessageError(f"expected the greeting of a process of jfluid, found {data[:20]!r}")
    _, nonce, mac = _RESPONSE.unpack(data)
    return nonce, mac


class _Keys:
    """The keys and proofs that both sides compute from the secret's key and both nonces."""

    def __init__(self, key: bytes, listener: bytes, connector: bytes):
        self.of_connector, self.of_listener, self.of_messages = (
            hmac.digest(key, what + b"\0" + listener + connector, "sha256")
            for what in (b"connects", b"listens", b"messages")
        )


class Frames:
    """Parses messages from a stream of bytes that arrives in pieces.

    Args:
        key: of the MACs.
        sender: b"L" for the listener, b"C" for the connector.
        longest: bytes that a message may have.
    """

    def __init__(self, key: bytes, sender: bytes, longest: int):
        self._key, self._sender, self._longest = key, sender, longest
        self._data, self._number = bytearray(), 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Return the messages that this piece completes.

        Raises MessageError for one that is too long, or altered.
        """
        self._data += data
        while len(self._data) >= _HEAD.size:
            length, mac = _HEAD.unpack_from(self._data)
            if length > self._longest:
                raise errors.MessageError(f"a message of {length} bytes; the limit is {self._longest}")
            end = _HEAD.size + length
            if len(self._data) < end:
                return
            message = bytes(memoryview(self._data)[_HEAD.size : end])
            del self._data[:end]
            if not hmac.compare_digest(mac, _mac(self._key, self._sender, self._number, message)):
                raise errors.MessageError(
                    "a received message has a wrong MAC: it was altered on its way, or its sender does not know the key"
                )
            self._number += 1
            yield message

    @property
    def begun(self) -> bool:
        """True if part of a message has arrived."""
        return bool(self._data)


def _mac(key: bytes, sender: bytes, number: int, message: bytes) -> bytes:
    mac = hmac.new(key, sender + number.to_bytes(8, "little"), "sha256")
    mac.update(message)
    return mac.digest()


class Connection:
    """Connection between two processes of the job. One thread may send while a second receives.

    Attributes:
        stream: the socket; code that sends messages of a different form on it does not call `send`.
        key: of MACs, which only both sides of this connection know, 32 bytes.

    Args:
        stream: closed by `close`; its timeout is that of sending and receiving.
        keys: from the proofs.
        listens: whether this is the listener's side.
        longest: bytes of a message.
    """

    def __init__(self, stream: socket.socket, keys: _Keys, listens: bool, longest: int):
        self.stream, self.key = stream, keys.of_messages
        self._own = b"L" if listens else b"C"
        self._sent = 0
        self._frames = Frames(self.key, b"C" if listens else b"L", longest)
        self._messages: list[bytes] = []
        self._fault: errors.MessageError | None = None  # after it nothing is read

    def fileno(self) -> int:
        return self.stream.fileno()

    def send(self, message: bytes) -> None:
        """Send a message.

        Raises OSError when the other side has disconnected, or accepts nothing until the timeout.
        """
        head = _HEAD.pack(len(message), _mac(self.key, self._own, self._sent, message))
        self._sent += 1
        self.stream.sendall(head)
        self.stream.sendall(message)

    def receive(self) -> bytes:
        """Return the next message.

        Raises OSError when the other side has disconnected or is silent, MessageError for invalid data.
        """
        while not self._messages:
            self._read()
        return self._messages.pop(0)

    def arrived(self) -> list[bytes]:
        """Return the messages that have arrived, after waiting for data.

        Raises the errors of `receive`.
        """
        if not self._messages:
            self._read()
        messages, self._messages = self._messages, []
        return messages

    def _read(self) -> None:
        if self._fault is not None:
            raise self._fault
        data = self.stream.recv(_PIECE)
        if not data:
            raise ConnectionError("the connection ended" + " in the middle of a message" * self._frames.begun)
        try:
            self._messages.extend(self._frames.feed(data))
        except errors.MessageError as error:
            self._fault = error
            if not self._messages:  # otherwise earlier messages come first
                raise

    def close(self) -> None:
        self.stream.close()

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(
    address: tuple[str, int],
    secret: str,
    purpose: str,
    longest: int,
    timeout_s: float = _SECONDS_TO_PROVE,
) -> Connection:
    """Return a connection to a listener of the job.

    Args:
        purpose: what it listens for; the same on both sides.
        longest: bytes that a message may have.
        timeout_s: for connecting, for the proofs, and then of the connection.

    Raises OSError when nobody listens or the proofs do not arrive, MessageError when a different
    program listens, and SecretError when the listener has a different secret.
    """
    stream = socket.create_connection(address, timeout=timeout_s)
    try:
        listener = decode_challenge(_exactly(stream, _CHALLENGE.size, timeout_s))
        nonce = secrets.token_bytes(_NONCE_SIZE)
        keys = _Keys(key_for(secret, purpose), listener, nonce)
        stream.sendall(_RESPONSE.pack(_GREETING, nonce, keys.of_connector))
        answer = _exactly(stream, _MAC_SIZE, timeout_s)
        if not hmac.compare_digest(answer, keys.of_listener):
            raise errors.SecretError(
                f"the process that listens at {address[0]}:{address[1]} does not have this process's secret, or does "
                f"not belong to the job: all processes of a job need the same {VARIABLE}"
            )
        stream.settimeout(timeout_s)
        return Connection(stream, keys, False, longest)
    except BaseException:
        stream.close()
        raise


def _exactly(stream: socket.socket, size: int, timeout_s: float) -> bytes:
    deadline, data = time.monotonic() + timeout_s, b""
    while len(data) < size:
        stream.settimeout(max(deadline - time.monotonic(), 1e-3))
        piece = stream.recv(size - len(data))
        if not piece:
            raise ConnectionError("the connection ended before the other side had proved itself")
        data += piece
    return data


class _Newcomer:
    """A connection without a proof yet."""

    def __init__(self, stream: socket.socket):
        self.stream, self.nonce, self.data = stream, secrets.token_bytes(_NONCE_SIZE), b""
        self.came = time.monotonic()
        self.deadline = self.came + _SECONDS_TO_PROVE


class Listener:
    """Accepts connections of processes of the job.

    Connections without a proof delay no member of the job: each has some seconds, concurrently, and if there are
    too many the oldest is closed. If descriptors run out, connections without a proof for half a second are
    closed, and no new connection is accepted for that time. Not safe for threads.

    Args:
        stream: a listening socket, closed by `close`.
        purpose: what it listens for; the same on both sides.
        longest: bytes that a message may have.
        timeout_s: of the accepted connections.
    """

    def __init__(self, stream: socket.socket, secret: str, purpose: str, longest: int, timeout_s: float):
        self._stream, self._key, self._longest, self._timeout_s = (
            stream,
            key_for(secret, purpose),
            longest,
            timeout_s,
        )
        stream.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(stream, selectors.EVENT_READ)
        self._newcomers: dict[_Newcomer, None] = {}  # the oldest first
        self._paused_until: float | None = None  # then the selector has no listening socket
        self._told = False

    @property
    def port(self) -> int:
        """The address at which it listens."""
        return int(self._stream.getsockname()[1])

    def accept(self, wait_s: float) -> list[Connection]:
        """Return the connections with complete proofs; wait at most `wait_s` seconds for events."""
        if self._paused_until is not None:
            wait_s = min(wait_s, max(self._paused_until - time.monotonic(), 0.0))
        ready = self._selector.select(wait_s)
        found = []
        for key, _ in ready:
            if key.data is None:
                self._welcome()
            elif key.data in self._newcomers and (connection := self._heard(key.data)) is not None:
                found.append(connection)
        now = time.monotonic()
        for newcomer in [n for n in self._newcomers if n.deadline < now]:
            self._drop(newcomer)
        if self._paused_until is not None and now >= self._paused_until:
            self._paused_until = None
            self._selector.register(self._stream, selectors.EVENT_READ)
        return found

    def return_when(self, file: int) -> None:
        """Let `accept` return at once when this file descriptor can be read, or hangs up."""
        self._selector.register(file, selectors.EVENT_READ, False)

    def _welcome(self) -> None:
        for _ in range(_MOST_AT_A_TIME):
            try:
                stream, _ = self._stream.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in EXHAUSTED:  # it has disconnected
                    continue
                self._pause(error)
                return
            self._told = False
            newcomer = _Newcomer(stream)
            try:
                stream.setblocking(False)
                stream.send(
                    _CHALLENGE.pack(_GREETING, newcomer.nonce)
                )  # the first bytes of a connection always fit into its buffer
            except OSError:
                stream.close()
                continue
            self._newcomers[newcomer] = None
            self._selector.register(stream, selectors.EVENT_READ, newcomer)
            if len(self._newcomers) > _MOST_NEWCOMERS:
                self._drop(next(iter(self._newcomers)))

    def _pause(self, error: OSError) -> None:
        """Stop accepting for a while, and drop newcomers that had time for their proofs."""
        if not self._told:
            self._told = True
            logger.warning(
                "port %d: cannot accept connections, next attempt in %g s: %s",
                self.port,
                PAUSE_S,
                error.strerror,
            )
        now = time.monotonic()
        for newcomer in [n for n in self._newcomers if n.came + PAUSE_S < now]:
            self._drop(newcomer)
        self._selector.unregister(self._stream)
        self._paused_until = now + PAUSE_S

    def _heard(self, newcomer: _Newcomer) -> Connection | None:
        """Return the connection of a newcomer if the data that has arrived completes its proof."""
        try:
            data = newcomer.stream.recv(_RESPONSE.size - len(newcomer.data))
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        newcomer.data += data
        if data and len(newcomer.data) < _RESPONSE.size:
            return None
        connection = None
        with contextlib.suppress(OSError, errors.MessageError):
            nonce, mac = decode_response(newcomer.data)
            keys = _Keys(self._key, newcomer.nonce, nonce)
            proven = hmac.compare_digest(mac, keys.of_connector)
            newcomer.stream.send(keys.of_listener if proven else _REFUSED)
            if proven:
                newcomer.stream.settimeout(self._timeout_s)
                connection = Connection(newcomer.stream, keys, True, self._longest)
        self._drop(newcomer, close=connection is None)
        return connection

    def _drop(self, newcomer: _Newcomer, close: bool = True) -> None:
        del self._newcomers[newcomer]
        self._selector.unregister(newcomer.stream)
        if close:
            newcomer.stream.close()

    def close(self) -> None:
        """Stop listening; accepted connections stay open."""
        for newcomer in list(self._newcomers):
            self._drop(newcomer)
        self._selector.close()
        self._stream.close()

    def __enter__(self) -> "Listener":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
