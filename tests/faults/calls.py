"""A relay of a parameter server's calls, which are lost, repeated and reordered on the way.

    with CallRelay("127.0.0.1:7164", seed=7, chances={Fault.LOSE_REPLY: 0.2}) as relay:
        ...                                  # let the trainer take relay.endpoint for the server's

It takes each call whole and makes it again at the server, with the same bytes and metadata. A
caller whose request or reply is lost learns what it would learn from a connection that broke:
UNAVAILABLE. Of two calls with one proof of the secret the server takes the one that comes first,
which may be the repeated one.
"""

import functools
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import grpc

from jfluid.ps_server import wire

_LIMIT_S = 60.0
_OF_GRPC = ("user-agent", "grpc-", ":")  # metadata that gRPC adds itself
_NEVER_S = 1e6  # what gRPC says is left of a call without a limit is more


class Fault(Enum):
    """What happens to one call."""

    LOSE_REQUEST = "the request is lost"
    LOSE_REPLY = "the reply is lost; the server has done what was asked"
    REPEAT = "the request comes twice, at the same time"
    REPEAT_LATER = "the request comes once more, after another call that came later"
    HOLD = "the request comes after another call that came later, or after a while"


@dataclass
class _Passing:
    """A call on its way: `begin(limit_s)` makes it at the server, and returns what goes through the
    answers.
    """

    number: int
    begin: Callable[[float | None], Any]
    # a call that came later was answered
    later: threading.Event = field(default_factory=threading.Event)

    def repeat(self) -> None:
        """Make it once more. Nobody waits for the answer."""
        try:
            list(self.begin(_LIMIT_S))
        except (grpc.RpcError, ValueError):  # refused, or the channel was closed
            pass

    def repeat_later(self, most_s: float) -> None:
        self.later.wait(most_s)
        self.repeat()


class CallRelay:
    """A gRPC server that makes the calls that come to it at another.

    Args:
        to: "host:port" of the server.
        chances: how likely each fault is for a call; together at most 1.
        hold_s: how long a call is held at most.

    Attributes:
        endpoint: "host:port" where it listens.
        happened: how often each fault has happened.
        log: (number of the call, method, fault) of each that happened.
    """

    def __init__(
        self,
        to: str,
        seed: int = 0,
        chances: Mapping[Fault, float] | None = None,
        hold_s: float = 0.3,
    ):
        self._random, self._chances, self._hold_s = random.Random(seed), dict(chances or {}), hold_s
        self._lock, self._calls = threading.Lock(), 0
        self._held: list[_Passing] = []  # those that wait for one that comes later
        self._next: list[Fault] = []
        self._coming: set[Future[None]] = set()  # repeated requests
        self.happened: Counter[Fault] = Counter()
        self.log: list[tuple[int, str, Fault]] = []
        self._channel = grpc.insecure_channel(to, wire.OPTIONS)
        self._repeats = ThreadPoolExecutor(64, thread_name_prefix="faults-repeat")
        self._server = grpc.server(ThreadPoolExecutor(64, thread_name_prefix="faults-calls"), options=wire.OPTIONS)
        self._server.add_generic_rpc_handlers((_Handler(self),))
        self.endpoint = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def next(self, *faults: Fault) -> None:
        """Let these happen to the next calls, one to each, whatever the chances."""
        with self._lock:
            self._next += faults

    def quiet(self) -> None:
        """Let nothing happen any more, and wait until what is on the way has come."""
        with self._lock:
            self._chances, coming = {}, list(self._coming)
        wait(coming, _LIMIT_S)

    def __enter__(self) -> "CallRelay":
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0).wait()
        self._channel.close()
        self._repeats.shutdown()

    # ---- calls ----

    def pass_on(self, method: str, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Make a call, with as many messages each way as it has."""
        messages, call = list(requests), self._channel.stream_stream(method)
        metadata = [(key, value) for key, value in context.invocation_metadata() if not key.startswith(_OF_GRPC)]
        yield from self._pass(method, lambda limit_s: call(iter(messages), limit_s, metadata), context)

    def _pass(self, method: str, begin: Callable[[float | None], Any], context: grpc.ServicerContext) -> list[bytes]:
        passing, fault = self._decided(method.rpartition("/")[2], begin)
        if fault == Fault.LOSE_REQUEST:
            context.abort(grpc.StatusCode.UNAVAILABLE, f"call {passing.number}: the request was lost")
        if fault == Fault.HOLD:
            passing.later.wait(self._hold_s)
        if fault == Fault.REPEAT:
            self._later(passing.repeat)
        left_s = context.time_remaining()
        call = begin(left_s if left_s is not None and left_s < _NEVER_S else None)
        try:
            if not context.add_callback(call.cancel):  # the caller has gone
                call.cancel()
            reply = list(call)
        except grpc.RpcError as error:
            context.set_trailing_metadata(error.trailing_metadata() or ())
            context.abort(error.code(), error.details())
        finally:
            self._answered(passing)
        if fault == Fault.LOSE_REPLY:
            context.abort(grpc.StatusCode.UNAVAILABLE, f"call {passing.number}: the reply was lost")
        if fault == Fault.REPEAT_LATER:
            self._later(passing.repeat_later, self._hold_s)
        context.set_trailing_metadata(call.trailing_metadata() or ())
        return reply

    def _later(self, function: Callable[..., None], *arguments: Any) -> None:
        with self._lock:
            future = self._repeats.submit(function, *arguments)
            self._coming = {coming for coming in self._coming if not coming.done()} | {future}

    def _decided(self, name: str, begin: Callable[[float | None], Any]) -> tuple[_Passing, Fault | None]:
        """A new call, and what happens to it."""
        with self._lock:
            passing = _Passing(self._calls, begin)
            self._calls += 1
            fault = self._drawn()
            if fault is not None:
                self.happened[fault] += 1
                self.log.append((passing.number, name, fault))
            if fault in (Fault.HOLD, Fault.REPEAT_LATER):
                self._held.append(passing)
            return passing, fault

    def _drawn(self) -> Fault | None:
        if self._next:
            return self._next.pop(0)
        drawn = self._random.random()
        for fault, chance in self._chances.items():
            drawn -= chance
            if drawn < 0:
                return fault
        return None

    def _answered(self, passing: _Passing) -> None:
        with self._lock:
            for held in [h for h in self._held if h.number < passing.number]:
                held.later.set()
                self._held.remove(held)


class _Handler(grpc.GenericRpcHandler):
    """Takes all calls as bytes."""

    def __init__(self, relay: CallRelay):
        self._relay = relay

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        return grpc.stream_stream_rpc_method_handler(functools.partial(self._relay.pass_on, details.method))
