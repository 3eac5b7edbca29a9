"""Requests that come at the same time, run as one batch; large ones run in pieces."""

import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.exports.sequences import Sequences, Value, filled, joined
from jfluid.serving.blocks import empty
from jfluid.serving.requests import BadRequest, TooManyRequests

Arrays = Mapping[str, Value]


@dataclass
class _Request:
    feed: Arrays
    rows: int
    answer: "Future[list[Value]]" = field(default_factory=Future)
    done: int = 0  # rows of a large request that have run
    found: list[list[Value]] = field(default_factory=list)  # what they gave

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of a row; only requests of the same ones run together."""
        return [value.shape[1:] for value in self.feed.values()]


class Batcher:
    """Dynamic batcher: a thread that runs waiting requests together.

    Batches are padded to the next power of two, so that few batch sizes are compiled; results of the padding are cut
    off. A request of more rows than a batch runs in pieces, and smaller requests run between two pieces.
    """

    def __init__(
        self,
        run: Callable[[Arrays], list[Value]],
        largest: int,
        delay: float,
        waiting: int = 256,
        observe: Callable[[int], None] = lambda rows: None,
        most_bytes: int = 1 << 62,
        rest: Callable[[float], float] = lambda worked: 0.0,
    ):
        """Start the thread.

        Args:
            run: what a batch is given to; arrays have the rows first.
            largest: rows of a batch; 0 where rows depend on each other, so that each request runs
                alone and as it is.
            delay: seconds that the first request of a batch waits for others.
            waiting: requests that may wait; more are refused.
            observe: is told the rows of each batch.
            most_bytes: of what a request gives.
            rest: seconds without large requests after a piece of a large request took the given seconds.
        """
        self._run, self._largest, self._delay, self._observe = run, largest, delay, observe
        self._most_bytes, self._rest = most_bytes, rest
        self._resting = 0.0  # until then no piece of a large request runs
        self._requests: queue.Queue[_Request | None] = queue.Queue(waiting)
        self._large: deque[_Request] = deque()
        self._following: _Request | None = None
        self._ended = False
        self._thread = threading.Thread(target=self._serve, name="batcher", daemon=True)
        self._thread.start()

    def submit(self, feed: Arrays, rows: int) -> "Future[list[Value]]":
        """Queue a feed and return the future of the outputs.

        Raises TooManyRequests where the queue is full.
        """
        request = _Request(feed, rows)
        try:
            self._requests.put_nowait(request)
        except queue.Full:
            raise TooManyRequests(f"{self._requests.maxsize} requests wait already") from None
        return request.answer

    def close(self) -> None:
        """Run the queued requests, and end the thread."""
        self._requests.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while True:
            rest = max(0.0, self._resting - time.monotonic())
            first = self._following or self._next(rest if self._large else None)
            self._following = None
            if first is None and not self._large:
                return
            if first is not None and 0 < self._largest < first.rows:
                self._large.append(first)
            elif first is not None:
                self._answer(self._gather(first))
            if self._large and (self._ended or time.monotonic() >= self._resting):
                began = time.monotonic()
                self._run_piece()
                now = time.monotonic()
                self._resting = now + self._rest(now - began)
            first = None  # its memory is free while this waits for another

    def _next(self, timeout: float | None) -> _Request | None:
        """Return the next request that is not cancelled; None after the timeout or the end."""
        while not self._ended:
            try:
                request = self._requests.get(timeout=timeout)
            except queue.Empty:
                return None
            self._ended = request is None
            if request is not None and request.answer.set_running_or_notify_cancel():
                return request
        return None

    def _gather(self, first: _Request) -> list[_Request]:
        """Return the requests of a batch; a request that does not fit begins the next batch."""
        batch, rows = [first], first.rows
        until = time.monotonic() + (0.0 if self._large else self._delay)
        while rows < self._largest:
            request = self._next(max(0.0, until - time.monotonic()))
            if request is None:
                break
            if rows + request.rows > self._largest or request.shapes != first.shapes:
                self._following = request
                break
            batch.append(request)
            rows += request.rows
        return batch

    def _answer(self, batch: Sequence[_Request]) -> None:
        """Run requests as one batch; if the values of a batch fail, run each request alone."""
        rows = sum(request.rows for request in batch)
        try:
            found = self._found(
                batch[0].feed
                if len(batch) == 1
                else {name: joined([r.feed[name] for r in batch]) for name in batch[0].feed},
                rows,
            )
        except Exception as error:
            if len(batch) == 1 or isinstance(error, errors.ServerError):  # all of a batch ask the same servers
                for request in batch:
                    request.answer.set_exception(error)
            else:
                for request in batch:
                    self._answer([request])
            return
        start = 0
        for request in batch:
            end = start + request.rows
            self._finish(request, [value[start:end] for value in found] if self._largest else found)
            start = end

    def _found(self, feed: Arrays, rows: int) -> list[Value]:
        """Run the model on rows, padded to a power of two."""
        self._observe(rows)
        if not self._largest:
            return self._run(feed)
        wanted = 1 << (rows - 1).bit_length()
        return self._run({name: filled(value, wanted) for name, value in feed.items()})

    def _finish(self, request: _Request, found: list[Value]) -> None:
        if sum(value.nbytes for value in found) > self._most_bytes:
            request.answer.set_exception(self._too_large())
        else:
            request.answer.set_result(found)

    def _too_large(self) -> BadRequest:
        return BadRequest(f"an answer may have {self._most_bytes} bytes: ask for fewer rows", 413)

    def _run_piece(self) -> None:
        """Run the next piece of the first large request in the queue."""
        request = self._large.popleft()
        rows = min(self._largest, request.rows - request.done)
        piece = {name: value[request.done : request.done + rows] for name, value in request.feed.items()}
        try:
            found = self._found(piece, rows)
            if sum(v.nbytes / len(v) for v in found) * request.rows > self._most_bytes:
                raise self._too_large()
            request.found.append([value[:rows] for value in found])
            request.done += rows
            if request.done < request.rows:
                self._large.append(request)
                return
            whole = [_joined(values) for values in zip(*request.found, strict=True)]
        except Exception as error:
            request.answer.set_exception(error)
            return
        self._finish(request, whole)


def _joined(values: Sequence[Value]) -> Value:
    """Concatenate pieces of an answer; arrays lie in a block that the system has back."""
    arrays = [value for value in values if isinstance(value, np.ndarray)]
    if len(arrays) < len(values):
        return joined(values)
    shape = (sum(map(len, arrays)), *arrays[0].shape[1:])
    return np.concatenate(arrays, out=empty(math.prod(shape), arrays[0].dtype).reshape(shape))


def rows_are_independent(
    run: Callable[[Arrays], list[Value]], sample: Arrays, rows: int, fetches: Sequence[Any]
) -> bool:
    """Return True if each row of a batch has the outputs that it has alone, as dynamic batching needs.

    A model that refuses the sample counts as dependent.
    """
    if not all(var.shape and var.shape[0] == -1 for var in fetches):
        return False
    try:
        whole = run(sample)
        alone = [run({name: value[i : i + 1] for name, value in sample.items()}) for i in range(rows)]
    except errors.OperandError:
        return False
    return all(
        len(value.shape) > 0
        and len(value) == rows
        and all(len(one[k].shape) > 0 and len(one[k]) == 1 for one in alone)
        and _close(value, joined([one[k] for one in alone]))
        for k, value in enumerate(whole)
    )


def _close(one: Value, other: Value) -> bool:
    """Return True if two batches have the same sequences, and rows that are equal to rounding."""
    if isinstance(one, Sequences) and isinstance(other, Sequences):
        same = all(np.array_equal(a, b) for a, b in zip(one.lod, other.lod, strict=True))
        return same and _close(one.rows, other.rows)
    if isinstance(one, Sequences) or isinstance(other, Sequences):
        return False
    return one.shape == other.shape and np.allclose(one, other, rtol=1e-3, atol=1e-5, equal_nan=True)
