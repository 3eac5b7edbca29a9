"""Strategies: how a trainer's gradients go out and its parameters come in."""
import logging
import queue
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from jfluid import errors
from jfluid.distributed.work import Work
from jfluid.scope import Scope

if TYPE_CHECKING:
    from jfluid.distributed.links import Link
    from jfluid.ps_server.client import Rows

Array = np.ndarray[Any, Any]
_LOG = logging.getLogger(__name__)


@dataclass
class Gradients:
    """What a step sends.

    Attributes:
        dense: by the names that pieces of parameters have at their servers.
        rows: by table: int64 [n], each id once, and float32 [n, width].
        counts: by the names of counters.
        touched: with GEO: by table the ids that the step looked up, int64 [n].
    """

    dense: dict[str, Array] = field(default_factory=dict)
    rows: dict[str, tuple[Array, Array]] = field(default_factory=dict)
    counts: dict[str, Array] = field(default_factory=dict)
    touched: dict[str, Array] = field(default_factory=dict)


class Strategy(Protocol):
    """How a trainer works together with servers."""

    def pull(self, link: "Link", ids: Mapping[str, Array]) -> "dict[str, Rows]":
        """Rows of tables for a step. May be called for steps ahead, by other threads."""
        ...

    def begin(self, link: "Link", work: Work, scope: Scope) -> None:
        """A step begins."""
        ...

    def push(self, link: "Link", work: Work, gradients: Gradients, scope: Scope) -> dict[str, Array]:
        """Take a step's gradients; the pieces of parameters that are new since the last one."""
        ...

    def stop(self) -> None:
        """Send what waits. Raises ServerError where that failed."""
        ...


def send(link: "Link", work: Work, gradients: Gradients, receive: bool, round: int = 0) -> dict[str, Array]:
    """Push gradients and, if asked, pull all parameters, in one call to each server."""
    from jfluid.ps_server.store import Change
    wanted = [p.name for d in work.received for p in d.pieces] if receive else []
    if gradients.counts:
        counts = {f"{name}@{i}": value for name, value in gradients.counts.items() for i in range(len(link.endpoints))}
        link.client.push(blocks=counts, change=Change.ADD)
    if not wanted:
        link.client.push(gradients.rows, gradients.dense, round=round)
        return {}
    return link.client.exchange(gradients.rows, gradients.dense, {}, wanted, round=round).blocks


class Direct:
    """One call a step.

    Args:
        synchronous: it waits for all trainers, whose gradients are averaged; None for what the program's operators say.
    """

    def __init__(self, synchronous: bool | None = None):
        self._synchronous = synchronous

    def pull(self, link: "Link", ids: Mapping[str, Array]) -> "dict[str, Rows]":
        return link.client.pull(ids).rows if ids else {}

    def begin(self, link: "Link", work: Work, scope: Scope) -> None:
        pass

    def push(self, link: "Link", work: Work, gradients: Gradients, scope: Scope) -> dict[str, Array]:
        if not (work.synchronous if self._synchronous is None else self._synchronous):
            return send(link, work, gradients, receive=True)
        blocks = send(link, work, gradients, receive=True, round=link.rounds + 1)
        link.rounds += 1
        return blocks

    def stop(self) -> None:
        pass


@dataclass(frozen=True)
class AsyncSettings:
    """How an asynchronous trainer sends.

    Attributes:
        queue_size: steps whose gradients may wait; then the trainer waits too.
        max_merge: steps whose gradients are sent together, at most.
        sums: gradients that are sent together are added up, else averaged.
        before_receive: gradients that are sent before parameters are received again.
    """

    queue_size: int = 20
    max_merge: int = 20
    sums: bool = True
    before_receive: int = 20


class Async:
    """A thread sends what steps leave in a queue, and receives parameters; no step waits for it, unless the queue is full."""

    def __init__(self, settings: AsyncSettings):
        self._settings = settings
        self._queue: queue.Queue[tuple[Link, Work, Gradients] | None] = queue.Queue(settings.queue_size)
        self._fresh: dict[str, Array] = {}
        self._lock = threading.Lock()
        self._failed: BaseException | None = None
        self._sent = 0  # gradients, since parameters were received
        self._thread = threading.Thread(target=self._send_all, name="jfluid-communicator", daemon=True)
        self._thread.start()

    def pull(self, link: "Link", ids: Mapping[str, Array]) -> "dict[str, Rows]":
        return link.client.pull(ids).rows if ids else {}

    def begin(self, link: "Link", work: Work, scope: Scope) -> None:
        pass

    def push(self, link: "Link", work: Work, gradients: Gradients, scope: Scope) -> dict[str, Array]:
        self._check()
        # The thread reads them when this step's buffers may have been used again.
        own = Gradients({n: np.array(v) for n, v in gradients.dense.items()}, gradients.rows, gradients.counts)
        while True:
            try:
                self._queue.put((link, work, own), timeout=0.5)
                break
            except queue.Full:
                self._check()
        with self._lock:
            fresh, self._fresh = self._fresh, {}
        return fresh

    def stop(self) -> None:
        if self._failed is None:
            self._queue.put(None)
        self._thread.join()
        self._check()

    def _check(self) -> None:
        if self._failed is not None:
            raise errors.ServerError(f"gradients could not be sent: {self._failed}") from self._failed

    def _send_all(self) -> None:
        try:
            while True:
                waiting = [self._queue.get()]
                while len(waiting) < self._settings.max_merge and waiting[-1] is not None:
                    try:
                        waiting.append(self._queue.get_nowait())
                    except queue.Empty:
                        break
                if steps := [w for w in waiting if w is not None]:
                    self._send(*steps[0][:2], [gradients for _, _, gradients in steps])
                if waiting[-1] is None:
                    return
        except BaseException as error:  # the next step, or stop, raises it
            self._failed = error

    def _send(self, link: "Link", work: Work, steps: Sequence[Gradients]) -> None:
        merged = merge(steps, self._settings.sums)
        self._sent += len(steps) * (len(work.dense) + len(work.rows))
        receive = self._sent >= self._settings.before_receive
        fresh = send(link, work, merged, receive)
        if receive:
            self._sent = 0
            with self._lock:
                self._fresh = fresh


def merge(steps: Sequence[Gradients], sums: bool) -> Gradients:
    """The gradients of several steps as those of one: added up, or averaged. Counts are added up."""
    if len(steps) == 1:
        return steps[0]
    from jfluid.ps_server import table
    share = np.float32(1.0 if sums else 1.0 / len(steps))
    out = Gradients()
    for name in steps[0].dense:
        total = steps[0].dense[name]
        for step in steps[1:]:
            total += step.dense[name]
        out.dense[name] = total if sums else total * share
    for name in steps[0].rows:
        ids, values = table.merge(np.concatenate([s.rows[name][0] for s in steps]),
                                  np.concatenate([s.rows[name][1] for s in steps]))
        out.rows[name] = ids, values if sums else values * share
    for name in steps[0].counts:
        out.counts[name] = np.sum([s.counts[name] for s in steps], axis=0, dtype=np.float32)
    return out


DIRECT = Direct()
