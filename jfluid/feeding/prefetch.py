"""Prefetching: a thread that fills a bounded queue, and ends with its reader."""

import contextlib
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from queue import Empty, SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from jfluid.record.phases import PHASES

T = TypeVar("T")
_AT_EXIT = 1.0  # seconds that an exiting process waits for a thread


class Closable(Protocol):
    """An object that can be closed from any thread."""

    def close(self) -> None: ...


class ClosableQueue(Generic[T]):
    """Queue of at most `capacity` items, from one thread to further threads.

    Once closed it is empty and refuses items.

    A thread that waits for room in a full queue is woken when the queue is half empty: to wake a thread for each item
    takes longer than to take the item, and lets the taking thread wait for the interpreter.

    It consists of queues in C, which hand an item over in less time than a lock and a condition of
    Python. The garbage collector may close the queue within any method.
    """

    def __init__(self, capacity: int):
        self._capacity = capacity
        self._items: SimpleQueue[Any] = SimpleQueue()
        self._puts, self._gets = itertools.count(), itertools.count(1)
        self._half = max(capacity // 2, 1)
        self._room: SimpleQueue[None] = SimpleQueue()  # an entry for every `_half` items that were taken
        self._closed = False

    def put(self, item: T) -> bool:
        """Wait for room; False when the queue was closed instead."""
        above = next(self._puts) - self._capacity
        if above >= 0 and not above % self._half:
            self._room.get()
        if not self._closed:
            self._items.put(item)
        if self._closed:  # a different thread may have closed the queue before the item was there
            self.close()
        return not self._closed

    def get(self) -> T:
        """Wait for an item. Raises StopIteration when the queue is closed."""
        item: T = self._items.get()
        if self._closed:
            self.close()
            raise StopIteration
        if not next(self._gets) % self._half:
            self._room.put(None)
        return item

    def close(self) -> None:
        """Drop all items and wake all waiting threads."""
        self._closed = True
        with contextlib.suppress(Empty):
            while True:
                self._items.get_nowait()
        # one that is woken wakes the next
        self._items.put(None)
        self._room.put(None)

    def size(self) -> int:
        """Return how many items wait."""
        return 0 if self._closed else self._items.qsize()

    def capacity(self) -> int:
        """Return how many items may wait."""
        return self._capacity

    def is_closed(self) -> bool:
        return self._closed


class _End:
    """Last item of a thread: the exception of the iterable, or None."""

    def __init__(self, error: BaseException | None):
        self.error = error


class Prefetch(Iterator[T]):
    """Iterator over an iterable's items, with up to `capacity` items read ahead by a thread.

    An error of the iterable is raised here, after the items before it, and again at each further
    request. The thread ends with the iterable, and when this iterator is closed, interrupted or
    collected, or the process exits.

    Args:
        items: makes the iterable, in the thread. It must not refer to this iterator.
        upstream: closed with this iterator, since the thread may be waiting for it.
    """

    def __init__(self, items: Callable[[], Iterable[T]], capacity: int, upstream: Closable | None = None):
        self.queue: ClosableQueue[T | _End] = ClosableQueue(capacity)
        self._end: _End | None = None
        self._thread = threading.Thread(target=_fill, args=(items, self.queue), daemon=True, name="jfluid-prefetch")
        self._stop = weakref.finalize(self, _stop, os.getpid(), self._thread, self.queue, upstream)
        self._thread.start()

    def __next__(self) -> T:
        if self._end is None:
            try:
                with PHASES.phase("reader"):
                    item = self.queue.get()
            except BaseException:  # closed, or Ctrl-C
                self.close()
                raise
            if not isinstance(item, _End):
                return item
            self._end = item
            self.close()
        if self._end.error is not None:
            raise self._end.error
        raise StopIteration

    def close(self) -> None:
        """Tell the thread to end; it does when the iterable's next item is ready.

        Nothing more is read here.
        """
        self._stop()
        self._end = self._end or _End(None)

    def join(self) -> None:
        """Close, and wait for the thread to end."""
        self.close()
        self._thread.join()


def _fill(items: Callable[[], Iterable[Any]], queue: ClosableQueue[Any]) -> None:
    error: BaseException | None = None
    iterable: Iterable[Any] | None = None
    try:
        iterable = items()
        for item in iterable:
            if not queue.put(item):
                break
    except BaseException as raised:  # raised again in the reader
        error = raised
    try:
        close = getattr(iterable, "close", None)
        if close is not None:
            close()  # a generator's `finally` runs in the thread that ran the generator
    except BaseException as raised:
        error = error or raised
    queue.put(_End(error))


def _stop(owner: int, thread: threading.Thread, queue: ClosableQueue[Any], upstream: Closable | None) -> None:
    if os.getpid() != owner:
        # collected in a forked process, which does not have the thread, and where the lock may be
        # taken
        return
    queue.close()
    if upstream is not None:
        upstream.close()
    if not threading.main_thread().is_alive() and thread is not threading.current_thread():
        # The process exits. Python would end the thread wherever it is, which XLA does not survive.
        thread.join(_AT_EXIT)
