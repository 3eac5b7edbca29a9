"""Converts a user's reader to the batches of an epoch: values checked against the slots, read ahead by a thread."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.feeding.data_feeder import Feed, FeedSpec, feed_of_samples
from jfluid.feeding.prefetch import Prefetch
from jfluid.feeding.reader import Reader, batch
from jfluid.feeding.worker import Worker
from jfluid.host import aligned_memory
from jfluid.lod_tensor import LoDTensor

Convert = Callable[[Any], Feed]


class BatchSource:
    """The batches that a reader yields for some slots.

    Args:
        slots: in the order of a sample's fields.
        capacity: how many batches are read ahead.
        use_multiprocess: run the reader in a separate process.

    Raises FeedError when `capacity` is not a positive whole number.
    """

    def __init__(self, slots: Sequence[FeedSpec], capacity: int | None, use_multiprocess: bool = False):
        if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
            raise errors.FeedError(
                f"capacity: expected how many batches to read ahead, a positive whole number, found {capacity!r}"
            )
        self.slots, self.capacity, self.use_multiprocess = list(slots), capacity, use_multiprocess
        self._items: Callable[[], Iterator[Feed]] | None = None

    def set_samples(self, reader: Reader, batch_size: int, drop_last: bool) -> None:
        """Read from a reader of samples, `batch_size` at a time."""
        _check_reader(reader)
        self._items = partial(
            _batches,
            batch(reader, batch_size, drop_last),
            partial(feed_of_samples, tuple(self.slots)),
        )

    def set_sample_lists(self, reader: Reader) -> None:
        """Read from a reader of lists of samples."""
        _check_reader(reader)
        self._items = partial(_batches, reader, partial(feed_of_samples, tuple(self.slots)))

    def set_batches(self, reader: Reader) -> None:
        """Read from a reader of batches: an array (or LoDTensor) for each slot."""
        _check_reader(reader)
        self._items = partial(_batches, reader, partial(_feed_of_arrays, tuple(self.slots)))

    def set_lists(self, reader: Reader) -> None:
        """Read from a reader of lists of arrays (or LoDTensors) that no slots are known for."""
        self._items = partial(_batches, reader, _feed_by_position)

    def set_feeds(self, feeds: Callable[[], Iterator[Feed]]) -> None:
        """Read from a reader of finished feeds; the reader's errors name the position."""
        self._items = feeds

    def read(self, place: Callable[[Iterable[Feed]], Iterator[Feed]] | None = None) -> Prefetch[Feed]:
        """Begin an epoch. Raises ReaderError when no reader was set.

        Args:
            place: function that copies batches to devices, in the reading thread.
        """
        if self._items is None:
            raise errors.ReaderError(
                "no reader was set: call set_sample_generator, set_sample_list_generator or "
                "set_batch_generator (decorate_... of a PyReader) first"
            )
        if not self.use_multiprocess:
            return Prefetch(_then(place, self._items), self.capacity)
        worker = Worker(self._items)
        return Prefetch(_then(place, lambda: worker), self.capacity, upstream=worker)


def _then(
    place: Callable[[Iterable[Feed]], Iterator[Feed]] | None, items: Callable[[], Iterable[Feed]]
) -> Callable[[], Iterable[Feed]]:
    """Return a function that applies `place` to each item."""
    if place is None:
        return items

    def placed() -> Iterator[Feed]:
        given = items()
        try:
            yield from place(given)
        finally:
            close = getattr(given, "close", None)
            if close is not None:
                close()  # in this thread

    return placed


def _check_reader(reader: Any) -> None:
    if not callable(reader):
        raise TypeError(
            f"reader: expected a function that returns an iterable, found {type(reader).__name__}; of a "
            "generator, give the function that makes it"
        )


def _batches(reader: Reader, convert: Convert) -> Iterator[Feed]:
    """Return the feeds of one epoch. Errors name the batch."""
    items: Iterator[Any] | None = None
    try:
        for number in itertools.count():
            try:
                if items is None:
                    items = iter(reader())
                item = next(items)
            except StopIteration:
                return
            except BaseException as error:
                raise errors.ReaderError(
                    f"the reader failed at batch {number} (counted from 0) of the epoch: "
                    f"{type(error).__name__}: {error}"
                ) from error
            try:
                feed = convert(item)
            except errors.FeedError as error:
                raise errors.FeedError(f"batch {number} (counted from 0) of the epoch: {error}") from error
            yield feed
    finally:
        close = getattr(items, "close", None)
        if close is not None:
            close()


def _feed_by_position(arrays: Any) -> Feed:
    """Return the values under the numbers of their places."""
    if not isinstance(arrays, list | tuple):
        raise errors.FeedError(f"expected a list of arrays, found a {type(arrays).__name__}")
    return {
        str(i): value if isinstance(value, LoDTensor) else LoDTensor(_owned(value)) for i, value in enumerate(arrays)
    }


def _feed_of_arrays(slots: Sequence[FeedSpec], arrays: Any) -> Feed:
    if not isinstance(arrays, list | tuple) or len(arrays) != len(slots):
        found = f"{len(arrays)} values" if isinstance(arrays, list | tuple) else f"a {type(arrays).__name__}"
        raise errors.FeedError(
            f"expected a list or tuple of {len(slots)} arrays ({', '.join(s.name for s in slots)}), found "
            f"{found}; lists of samples go to set_sample_list_generator"
        )
    return {slot.name: _tensor(slot, value) for slot, value in zip(slots, arrays)}


def _owned(value: Any, dtype: Any = None) -> np.ndarray:
    """Return a new array of a value."""
    array = np.asarray(value, dtype)
    return array if isinstance(value, list | tuple) else aligned_memory.copied(array)


def _tensor(slot: FeedSpec, value: Any) -> LoDTensor:
    """Return a copy of the value: the reader may reuse its array."""
    lod: list[np.ndarray] = []
    if isinstance(value, LoDTensor):
        lod = value._lod
        if isinstance(value.value, np.ndarray):  # else it is copied to be one
            value = value.value
    try:
        has_dtype = hasattr(value, "dtype") or isinstance(value, LoDTensor)
        array = _owned(value, None if has_dtype else slot.np_dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise errors.FeedError(
            f"feed {slot.name}: expected an array of {slot.np_dtype}, found {type(value).__name__}: {error}"
        ) from None
    if array.dtype != slot.np_dtype:
        raise errors.FeedError(
            f"feed {slot.name}: expected dtype {slot.np_dtype}, found {array.dtype}; convert it with "
            f'.astype("{slot.np_dtype}")'
        )
    if array.ndim != len(slot.shape):
        raise errors.FeedError(
            f"feed {slot.name}: expected rank {len(slot.shape)} (shape {list(slot.shape)}), found shape "
            f"{list(array.shape)}"
        )
    tensor = LoDTensor(array, lod)
    if not tensor.has_valid_recursive_sequence_lengths():
        raise errors.FeedError(f"feed {slot.name}: the lod {tensor.lod()} does not describe its {len(tensor)} rows")
    return tensor
