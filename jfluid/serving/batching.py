"""Requests that come at the same time, run as one batch."""

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from jfluid import errors

Arrays = Mapping[str, np.ndarray]


@dataclass
class _Request:
    feed: Arrays
    rows: int
    answer: "Future[list[np.ndarray]]"

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of a row; only requests of the same ones run together."""
        return [value.shape[1:] for value in self.feed.values()]


class Batcher:
    """Runs requests on a thread of its own, as many together as have come.

    Rows are filled up to the next power of two with copies of the last one, so that few sizes of a
    batch are compiled; what comes of them is cut off.
    """

    def __init__(
        self,
        run: Callable[[Arrays], list[np.ndarray]],
        largest: int,
        delay: float,
        waiting: int = 256,
        observe: Callable[[int], None] = lambda rows: None,
    ):
        """Start the thread.

        Args:
            run: what a batch is given to; arrays have the rows first.
            largest: rows of a batch; a request of more runs alone.
            delay: seconds that the first request of a batch waits for others.
            waiting: requests that may wait; more are refused.
            observe: is told the rows of each batch.
        """
        self._run, self._largest, self._delay, self._observe = run, largest, delay, observe
        self._requests: queue.Queue[_Request | None] = queue.Queue(waiting)
        self._thread = threading.Thread(target=self._serve, name="batcher", daemon=True)
        self._thread.start()

    def submit(self, feed: Arrays, rows: int) -> "Future[list[np.ndarray]]":
        """Have a feed run; the result is what `run` gives for its rows.

        Raises TooManyRequests where too many wait.
        """
        request = _Request(feed, rows, Future())
        try:
            self._requests.put_nowait(request)
        except queue.Full:
            raise TooManyRequests(f"{self._requests.maxsize} requests wait already") from None
        return request.answer

    def close(self) -> None:
        """Run what waits, and end the thread."""
        self._requests.put(None)
        self._thread.join()

    def _serve(self) -> None:
        following: _Request | None = None
        while (first := following or self._requests.get()) is not None:
            batch, following, ended = self._gather(first)
            self._answer(batch)
            if ended:
                return

    def _gather(self, first: _Request) -> tuple[list[_Request], _Request | None, bool]:
        """The requests of a batch, one that did not fit any more, and whether the end has come."""
        batch, rows, until = [first], first.rows, time.monotonic() + self._delay
        while rows < self._largest:
            try:
                request = self._requests.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            if request is None:
                return batch, None, True
            if rows + request.rows > self._largest or request.shapes != first.shapes:
                return batch, request, False
            batch.append(request)
            rows += request.rows
        return batch, None, False

    def _answer(self, batch: Sequence[_Request]) -> None:
        rows = sum(request.rows for request in batch)
        self._observe(rows)
        try:
            found = self._run(
                {
                    name: _filled(np.concatenate([r.feed[name] for r in batch]), rows)
                    for name in batch[0].feed
                }
            )
            start = 0
            for request in batch:
                end = start + request.rows
                request.answer.set_result([value[start:end] for value in found])
                start = end
        except Exception as error:
            for request in batch:
                if not request.answer.done():
                    request.answer.set_exception(error)


class TooManyRequests(errors.JFluidError):
    """More requests wait than a server keeps."""


def _filled(values: np.ndarray, rows: int) -> np.ndarray:
    """The rows, and copies of the last one up to a power of two."""
    wanted = 1 << (rows - 1).bit_length()
    return np.concatenate([values, np.repeat(values[-1:], wanted - rows, axis=0)])


def rows_are_independent(
    run: Callable[[Arrays], list[np.ndarray]], sample: Arrays, rows: int, fetches: Sequence[Any]
) -> bool:
    """Return whether each row of a batch gives what it gives alone, as batches of several requests
    need. Of a model that refuses the sample this is not known: no.
    """
    if not all(var.shape and var.shape[0] == -1 for var in fetches):
        return False
    try:
        whole = run(sample)
        alone = [
            run({name: value[i : i + 1] for name, value in sample.items()}) for i in range(rows)
        ]
    except errors.OperandError:
        return False
    return all(
        value.shape[:1] == (rows,)
        and np.allclose(
            value, np.concatenate([one[k] for one in alone]), rtol=1e-3, atol=1e-5, equal_nan=True
        )
        for k, value in enumerate(whole)
    )
