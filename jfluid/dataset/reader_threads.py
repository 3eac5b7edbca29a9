"""Threads that read and parse files while training computes."""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.dataset.multislot import BadLine, Parser, Records, joined
from jfluid.dataset.text_files import FileSource, ShellCommands

Work = Callable[[Iterator[Any], ShellCommands], Iterator[Any]]


class BadLines:
    """The treatment of invalid lines: the first one is an error, or all are counted and skipped."""

    def __init__(self, skip: bool = False):
        self.skip, self.count, self.first = skip, 0, ""
        self._lock = threading.Lock()

    def take(self, path: str, command: str, bad: BadLine) -> None:
        """Raise DataError unless wrong lines are skipped."""
        piped = f" (behind {command!r})" if command.strip() not in ("", "cat") else ""
        text = f"{path}{piped}, {bad}"
        if not self.skip:
            raise errors.DataError(text)
        with self._lock:
            self.count += 1
            self.first = self.first or text


def records_of(
    path: str, source: FileSource, parser: Parser, bad: BadLines, started: ShellCommands
) -> Iterator[Records]:
    """Return the records of a file, block by block."""
    lines = 0
    for text in source.blocks(path, started):
        records, count = parser.parse(text, lines, lambda line: bad.take(path, source.pipe_command, line))
        lines += count
        if len(records):
            yield records


def batches_of(blocks: Iterator[Records], parser: Parser, size: int) -> Iterator[dict[str, Any]]:
    """Yield feeds of `size` records in the order of the text; the last one has the rest."""
    rest: list[Records] = []
    waiting = 0
    for block in blocks:
        rest.append(block)
        waiting += len(block)
        if waiting < size:
            continue
        records = joined(rest)
        for begin in range(0, waiting - size + 1, size):
            yield parser.batch(records, np.arange(begin, begin + size))
        begin = waiting - waiting % size
        rest, waiting = [records.part(begin, waiting)], waiting % size
    if waiting:
        records = joined(rest)
        yield parser.batch(records, np.arange(waiting))


class ReaderThreads:
    """Threads that process a list of jobs and put the resulting items into a bounded queue.

    Iterate to get the items as they become ready; leave the `with` block to end the threads. An
    exception in a thread is raised in the iteration, and ends all threads.

    Args:
        jobs: each thread takes the next one when it is free.
        work: turns a thread's jobs into items; the processes that it starts are ended with the
            threads.
        threads: how many at most.
        depth: the capacity of the queue.
    """

    def __init__(self, jobs: Sequence[Any], work: Work, threads: int, depth: int = 8):
        self._jobs, self._work = iter(list(jobs)), work
        self._items: queue.Queue[Any] = queue.Queue(max(depth, 1))
        self._lock, self._stop, self._processes = threading.Lock(), threading.Event(), ShellCommands()
        self._running = max(1, min(threads, len(jobs)))
        self._threads = [
            threading.Thread(target=self._run, name=f"jfluid-producer-{i}", daemon=True) for i in range(self._running)
        ]

    def __enter__(self) -> "ReaderThreads":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    def stop(self) -> None:
        """End the threads, and the processes of the threads."""
        self._stop.set()
        for thread in self._threads:
            while thread.is_alive():
                self._processes.kill()
                thread.join(0.1)

    def __iter__(self) -> Iterator[Any]:
        running = self._running
        while running:
            item = self._items.get()
            if item is _END:
                running -= 1
            elif isinstance(item, _Failure):
                raise item.error
            else:
                yield item

    def _run(self) -> None:
        try:
            for item in self._work(self._next_jobs(), self._processes):
                if not self._put(item):
                    return
            self._put(_END)
        except BaseException as error:  # any error must reach the training thread
            self._put(_Failure(error))

    def _next_jobs(self) -> Iterator[Any]:
        while not self._stop.is_set():
            with self._lock:
                job = next(self._jobs, _END)
            if job is _END:
                return
            yield job

    def _put(self, item: Any) -> bool:
        while not self._stop.is_set():
            try:
                self._items.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False


class _Failure:
    def __init__(self, error: BaseException):
        self.error = error


_END = object()
