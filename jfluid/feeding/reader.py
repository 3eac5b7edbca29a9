"""Reader decorators: functions that make readers from readers.

A reader is a function without arguments that returns an iterable of samples, a new one each time it
is called. A mistake inside a reader that runs in a thread or a process is raised in the loop that
reads from it.
"""

import contextlib
import itertools
import multiprocessing
import queue
import random
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for_connections
from typing import TYPE_CHECKING, Any

__all__ = [
    "ComposeNotAligned",
    "batch",
    "buffered",
    "cache",
    "chain",
    "compose",
    "firstn",
    "map_readers",
    "multiprocess_reader",
    "shuffle",
    "xmap_readers",
]

if TYPE_CHECKING:
    from multiprocessing.context import ForkContext, ForkProcess  # absent where processes cannot be forked

Reader = Callable[[], Iterable[Any]]


class ComposeNotAligned(ValueError):
    """The readers given to `compose` do not have the same number of samples."""


def batch(reader: Reader, batch_size: int, drop_last: bool = False) -> Reader:
    """Return a reader of lists of `batch_size` samples.

    The last list is shorter when the samples do not divide, or is left out with `drop_last`. Raises
    ValueError when `batch_size` is not a positive whole number.
    """
    if batch_size != int(batch_size) or batch_size <= 0:
        raise ValueError(f"batch_size must be a positive whole number, found {batch_size!r}")
    size = int(batch_size)

    def batch_reader() -> Iterator[list[Any]]:
        samples = iter(reader())
        while samples_of_batch := list(itertools.islice(samples, size)):
            if len(samples_of_batch) == size or not drop_last:
                yield samples_of_batch

    return batch_reader


def shuffle(reader: Reader, buf_size: int) -> Reader:
    """Return a reader of the same samples, shuffled in runs of `buf_size` with Python's `random`."""

    def shuffled() -> Iterator[Any]:
        samples = iter(reader())
        while buffer := list(itertools.islice(samples, max(1, buf_size))):
            random.shuffle(buffer)
            yield from buffer

    return shuffled


def chain(*readers: Reader) -> Reader:
    """Return a reader of all samples of the first reader, then of the second, and so on."""

    def chained() -> Iterator[Any]:
        for reader in readers:
            yield from reader()

    return chained


def compose(*readers: Reader, check_alignment: bool = True) -> Reader:
    """Return a reader that joins one sample of each reader into a tuple: (1, 2) and 3 give (1, 2, 3).

    Readers of different lengths raise ComposeNotAligned, or, with `check_alignment=False`, end at
    the shortest.
    """

    def composed() -> Iterator[tuple[Any, ...]]:
        missing = object()
        for samples in itertools.zip_longest(*(reader() for reader in readers), fillvalue=missing):
            if any(sample is missing for sample in samples):
                if check_alignment:
                    ended = [number for number, sample in enumerate(samples) if sample is missing]
                    raise ComposeNotAligned(
                        f"outputs of readers are not aligned: readers {ended} (of "
                        f"{len(readers)}, from 0) ended before the remaining readers"
                    )
                return
            yield sum((sample if isinstance(sample, tuple) else (sample,) for sample in samples), ())

    return composed


def map_readers(func: Callable[..., Any], *readers: Reader) -> Reader:
    """Return a reader of `func(a, b, ...)` with one sample of each reader; it ends with the shortest."""
    return lambda: map(func, *(reader() for reader in readers))


def firstn(reader: Reader, n: int) -> Reader:
    """Return a reader of the first `n` samples."""
    return lambda: itertools.islice(reader(), n)


def cache(reader: Reader) -> Reader:
    """Return a reader of the same samples, kept in memory.

    The given reader is read at once, and only this once.
    """
    samples = tuple(reader())
    return lambda: iter(samples)


# ---- threads -------------------------------------------------------------------------------------


class _End:
    """Last item of a worker: the worker's error, or None."""

    def __init__(self, error: BaseException | None):
        self.error = error


class _Workers:
    """Threads that fill one bounded queue.

    Leaving the context stops threads that wait for space in it.
    """

    def __init__(self, size: int):
        self._queue: queue.Queue[Any] = queue.Queue(max(1, size))
        self._stopped = threading.Event()
        self._running = 0

    def start(self, work: Iterable[Any]) -> None:
        """Put all items of `work` into the queue, in a new thread."""
        self._running += 1
        threading.Thread(target=self._fill, args=(work,), daemon=True).start()

    def _fill(self, work: Iterable[Any]) -> None:
        error: BaseException | None = None
        try:
            for item in work:
                if not self._put(item):
                    return
        except BaseException as raised:  # handed over to the reading thread
            error = raised
        self._put(_End(error))

    def _put(self, item: Any) -> bool:
        while not self._stopped.is_set():
            with contextlib.suppress(queue.Full):
                self._queue.put(item, timeout=0.1)
                return True
        return False

    def items(self) -> Iterator[Any]:
        """Yield the threads' items until all threads have ended; raise the exception of any thread."""
        while self._running:
            item = self._queue.get()
            if not isinstance(item, _End):
                yield item
            elif item.error is not None:
                raise item.error
            else:
                self._running -= 1

    def __enter__(self) -> "_Workers":
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopped.set()


def buffered(reader: Reader, size: int) -> Reader:
    """Return a reader of the same samples, with up to `size` samples read ahead by a thread."""

    def read_ahead() -> Iterator[Any]:
        with _Workers(size) as workers:
            workers.start(reader())
            yield from workers.items()

    return read_ahead


def xmap_readers(
    mapper: Callable[[Any], Any],
    reader: Reader,
    process_num: int,
    buffer_size: int,
    order: bool = False,
) -> Reader:
    """Return a reader of `mapper(sample)`, computed by `process_num` threads, up to `buffer_size` samples ahead.

    With `order` the samples keep their order; without it they are yielded as they become ready.
    """
    if process_num < 1:
        raise ValueError(f"process_num must be at least 1, found {process_num!r}")

    def mapped() -> Iterator[Any]:
        lock = threading.Lock()
        numbered = enumerate(reader())
        # No thread starts a sample this far ahead of the oldest one that was not yielded yet.
        room = threading.Semaphore(max(1, buffer_size) + process_num)
        stopped = False

        def work() -> Iterator[tuple[int, Any]]:
            while True:
                while not room.acquire(timeout=0.1):
                    if stopped:
                        return
                with lock:
                    item = next(numbered, None)
                if item is None:
                    return
                yield item[0], mapper(item[1])

        waiting: dict[int, Any] = {}
        following = 0
        try:
            with _Workers(buffer_size) as workers:
                for _ in range(process_num):
                    workers.start(work())
                for number, sample in workers.items():
                    if not order:
                        room.release()
                        yield sample
                        continue
                    waiting[number] = sample
                    while following in waiting:
                        room.release()
                        yield waiting.pop(following)
                        following += 1
        finally:
            stopped = True

    return mapped


# ---- processes -----------------------------------------------------------------------------------


def multiprocess_reader(readers: Sequence[Reader], use_pipe: bool = True, queue_size: int = 1000) -> Reader:
    """Return a reader of the samples of all `readers`, in order of arrival.

    Each reader runs in a separate process.

    The processes are forked, so a reader may be any function; it must not use jfluid or JAX. With
    `use_pipe` each process has a pipe; without it all processes share a queue of `queue_size` samples.
    Samples must not be None. An error in a process raises ValueError with its traceback.
    """
    if not isinstance(readers, list | tuple) or not readers:
        raise ValueError(f"readers must be a list with at least one reader, found {readers!r}")
    if queue_size < 1:
        raise ValueError(f"queue_size must be at least 1, found {queue_size!r}")
    if "fork" not in multiprocessing.get_all_start_methods():
        raise OSError("multiprocess_reader needs an operating system that can fork processes; use xmap_readers")
    context = multiprocessing.get_context("fork")
    if use_pipe:
        return lambda: _samples_by_pipes(context, readers)
    return lambda: _samples_by_queue(context, readers, queue_size)


def _start(context: "ForkContext", target: Callable[..., None], *arguments: Any) -> "ForkProcess":
    process = context.Process(target=target, args=arguments, daemon=True)
    with warnings.catch_warnings():
        # Python and JAX warn of a fork beside threads. The child runs only the reader.
        warnings.filterwarnings("ignore", message=".*fork", category=RuntimeWarning)
        warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
        process.start()
    return process


def _samples_by_pipes(context: "ForkContext", readers: Sequence[Reader]) -> Iterator[Any]:
    with contextlib.ExitStack() as stack:
        connections: list[Connection] = []
        for reader in readers:
            receiver, sender = context.Pipe(duplex=False)
            stack.callback(_end, _start(context, _send_samples, reader, sender.send))
            sender.close()
            connections.append(stack.enter_context(receiver))
        while connections:
            ready = wait_for_connections(connections)
            for connection in [connection for connection in connections if connection in ready]:
                try:
                    item = connection.recv()
                except EOFError:
                    item = _Failure("the process ended without a word")
                if item is None:
                    connections.remove(connection)
                else:
                    yield _checked(item)


def _samples_by_queue(context: "ForkContext", readers: Sequence[Reader], queue_size: int) -> Iterator[Any]:
    samples = context.Queue(queue_size)
    with contextlib.ExitStack() as stack:
        processes = []
        for reader in readers:
            processes.append(_start(context, _send_samples, reader, samples.put))
            stack.callback(_end, processes[-1])
        running = len(readers)
        while running:
            try:
                item = samples.get(timeout=0.5)
            except queue.Empty:
                if any(process.exitcode for process in processes):
                    item = _Failure("a process ended without a word")
                else:
                    continue
            if item is None:
                running -= 1
            else:
                yield _checked(item)


class _Failure:
    """Error of a process with a failed reader."""

    def __init__(self, text: str):
        self.text = text


def _checked(item: Any) -> Any:
    if isinstance(item, _Failure):
        raise ValueError(f"multiprocess reader raises an exception: {item.text}")
    return item


def _send_samples(reader: Reader, send: Callable[[Any], None]) -> None:
    """Send all samples of the process, then None."""
    try:
        for sample in reader():
            if sample is None:
                raise ValueError("a sample is None")
            send(sample)
        send(None)
    except BrokenPipeError:
        pass  # the reading end is closed
    except BaseException:
        send(_Failure(traceback.format_exc()))


def _end(process: multiprocessing.process.BaseProcess) -> None:
    process.terminate()
    process.join()
    process.close()
