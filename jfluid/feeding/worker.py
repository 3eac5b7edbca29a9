"""Reader in a separate process, which sends batches through a pipe, and arrays without a copy by Python."""

import contextlib
import io
import multiprocessing
import os
import pickle
import random
import select
import signal
import struct
import threading
import traceback
import warnings
from collections.abc import Callable, Generator, Iterable
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.host import aligned_memory

_ORPHAN_CHECK = 0.5  # seconds between two checks that the parent is alive
_HEADER = struct.Struct("=QQ")  # number of buffers, length of the pickle
_LENGTH = struct.Struct("=Q")


class Worker:
    """Iterates over the items of `items()`, which runs in a forked process that ends with this one.

    The items may be anything that can be pickled. The process must not use JAX. It draws other
    random numbers each time: its generators (`random`, `numpy.random`) are seeded by a number drawn
    from this process's `random`.

    Args:
        items: a function that returns an iterable.
        timeout: seconds to wait for the next item; 0 for any time.

    Raises ReaderError when the items raise (with the traceback), when the process dies, or when it
    is silent for longer than `timeout`. Raises OSError when the operating system cannot fork.
    """

    def __init__(self, items: Callable[[], Iterable[Any]], timeout: float = 0):
        if "fork" not in multiprocessing.get_all_start_methods():
            raise OSError("use_multiprocess needs an operating system that can fork processes; leave it off")
        receiver, sender = os.pipe()
        context = multiprocessing.get_context("fork")
        self._owner, self._timeout = os.getpid(), timeout
        self._receiver = io.FileIO(receiver, "rb")
        self._process: BaseProcess = context.Process(
            target=_work,
            args=(items, self._receiver, sender, self._owner, random.getrandbits(64)),
            daemon=True,
        )
        try:
            with warnings.catch_warnings():
                # Python and JAX warn of forking while other threads run. The child only runs the
                # reader.
                warnings.filterwarnings("ignore", message=".*fork", category=RuntimeWarning)
                warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
                self._process.start()
        finally:
            os.close(sender)

    def __iter__(self) -> Generator[Any, None, None]:
        count = 0
        with self._receiver:
            try:
                while (message := self._message()) is not None:
                    kind, content = message
                    if kind == "end":
                        return
                    if kind == "error":
                        raise _rebuilt(*content)
                    count += 1
                    yield content
                self._process.join()
                raise errors.ReaderError(
                    f"the reader's process died ({_death(self._process.exitcode)}) before it gave batch "
                    f"{count} (counted from 0)"
                )
            finally:
                self.close()
                self._process.join()

    def _message(self) -> Any:
        if self._timeout:
            waiting = select.poll()
            waiting.register(self._receiver, select.POLLIN)
            if not waiting.poll(self._timeout * 1000):
                raise errors.ReaderError(f"the reader's process gave no batch for {self._timeout} s (timeout)")
        return _receive(self._receiver)

    def close(self) -> None:
        """End the process."""
        if os.getpid() == self._owner:
            self._process.terminate()


def _death(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        return f"killed by {signal.Signals(-exitcode).name}"
    return f"exit status {exitcode}"


def _rebuilt(text: str, trace: str, is_feed_error: bool) -> errors.JFluidError:
    """Return the error of the process: the error's message first, then the traceback."""
    kind = errors.FeedError if is_feed_error else errors.ReaderError
    return kind(f"{text}\n\nIn the reader's process:\n{trace}")


# ---- in the process ------------------------------------------------------------------------------


def _work(items: Callable[[], Iterable[Any]], receiver: io.FileIO, sender: int, parent: int, seed: int) -> None:
    receiver.close()
    # The parent handles Ctrl-C. A handler, not SIG_IGN, because commands that the reader starts
    # would inherit that.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002 (readers use the global generator)
    with contextlib.suppress(BrokenPipeError), io.FileIO(sender, "wb") as pipe:
        try:
            for item in items():
                _send(pipe, ("item", item))
            _send(pipe, ("end", None))
        except BrokenPipeError:
            raise
        except BaseException as error:
            _send(
                pipe,
                (
                    "error",
                    (str(error), traceback.format_exc(), isinstance(error, errors.FeedError)),
                ),
            )


def _end_with(parent: int) -> None:
    """End the process when the parent has ended, for whatever reason."""
    waiting = threading.Event()
    while os.getppid() == parent:
        waiting.wait(_ORPHAN_CHECK)
    os._exit(1)


# ---- the pipe ------------------------------------------------------------------------------------


def _send(pipe: io.FileIO, message: Any) -> None:
    """Send a pickle, then the pickle's arrays as raw memory."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    head = _HEADER.pack(len(views), len(data)) + b"".join(_LENGTH.pack(view.nbytes) for view in views)
    for part in (memoryview(head + data), *views):
        while part.nbytes:
            part = part[pipe.write(part) :]


def _receive(pipe: io.FileIO) -> Any:
    """Return the next message; None when the other end is closed."""
    head = _read(pipe, _HEADER.size)
    if head is None:
        return None
    number, length = _HEADER.unpack(head)
    sizes = _read(pipe, number * _LENGTH.size)
    data = None if sizes is None else _read(pipe, length)
    if sizes is None or data is None:
        return None
    buffers = []
    for (size,) in _LENGTH.iter_unpack(sizes):
        buffer = _read(pipe, size)
        if buffer is None:
            return None
        buffers.append(buffer)
    return pickle.loads(data, buffers=buffers)  # from our own child


def _read(pipe: io.FileIO, size: int) -> memoryview | None:
    found = aligned_memory.empty((size,), np.uint8).data  # bytearray would write zeros first
    rest = found
    while rest.nbytes:
        count = pipe.readinto(rest)
        if not count:
            return None
        rest = rest[count:]
    return found
