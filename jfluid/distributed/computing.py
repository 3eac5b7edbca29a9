"""Where a trainer's step computes: on one device, or on several that bring their gradients together first."""
from collections.abc import Mapping
from typing import Any, Protocol

from jfluid import errors
from jfluid.distributed.work import Work
from jfluid.parallel.program import DataParallel
from jfluid.scope import Scope

Feed = dict[str, Any]


class Computing(Protocol):
    """Devices that a program runs on, without what servers do.

    Attributes:
        devices: how many.
    """

    devices: int

    def read(self, feed: Any) -> list[Feed]:
        """What is fed: one feed for all devices, or one for each. A program's own reader gives its next batch."""
        ...

    def run(self, feeds: list[Feed], names: list[str], scope: Scope) -> list[list[Any]]:
        """Run the program once; returns of each name what each device has. What is sent and not rows is the same on all."""
        ...


class OneDevice:
    """The device of an executor.

    Args:
        owned: nobody writes to the feeds any more.
    """

    devices = 1

    def __init__(self, work: Work, executor: Any, owned: bool):
        self._program, self._executor = work.local, executor
        # Gradients are waited for: by then nothing reads the feeds any more.
        self._owned = owned or bool(work.sent)

    def read(self, feed: Any) -> list[Feed]:
        if isinstance(feed, (list, tuple)) and len(feed) == 1:
            feed = feed[0]
        self._program, feed = self._executor._readings.feed(self._program, feed, self._executor._device)
        if not isinstance(feed or {}, Mapping):
            raise errors.FeedError(f"feed: expected a dict from names to arrays, found {type(feed).__name__}; a list of "
                                   "feeds, one per device, needs with_data_parallel")
        return [_named(feed)]

    def run(self, feeds: list[Feed], names: list[str], scope: Scope) -> list[list[Any]]:
        return [[v] for v in self._executor._run(self._program, feeds[0], names, scope, numpy=False, owned=self._owned)]


class Replicas:
    """The devices of a program with data parallelism: each computes on its part of the batch, then they bring together what
    is sent."""

    def __init__(self, work: Work, executor: Any, parallel: DataParallel):
        self._program, self._sums = work.local, work.summed
        self._executor, self._parallel = executor, parallel
        self._divides = True
        self.devices = parallel.replicas

    def read(self, feed: Any) -> list[Feed]:
        self._program, feed = self._parallel.read(self._executor, self._program, feed)
        self._divides = not isinstance(feed, (list, tuple))
        return [_named(f) for f in ([feed] if self._divides else feed)]

    def run(self, feeds: list[Feed], names: list[str], scope: Scope) -> list[list[Any]]:
        local = self._parallel.other(self._program, self._sums)
        return local.values(self._executor, feeds[0] if self._divides else feeds, names, scope, self._executor._checked)


def _named(feed: Any) -> Feed:
    return {getattr(name, "name", name): value for name, value in (feed or {}).items()}
