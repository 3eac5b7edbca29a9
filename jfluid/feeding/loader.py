"""`fluid.io.DataLoader`: batches from a reader or a dataset, made ahead of the steps that take
them.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from jfluid import errors
from jfluid.compile.device_feeds import FeedPlacer
from jfluid.feeding.batch_source import BatchSource
from jfluid.feeding.data_feeder import Feed, Slot
from jfluid.feeding.prefetch import ClosableQueue, Prefetch
from jfluid.feeding.reader_ops import ReaderSession, append_read, create_reader, double_buffered
from jfluid.ir.program import default_main_program
from jfluid.ir.variable import Variable
from jfluid.lod_tensor import LoDTensor
from jfluid.places import Place

__all__ = ["DataLoader", "DatasetLoader", "GeneratorLoader"]

Reader = Callable[[], Iterable[Any]]
Batch = list[Feed] | list[list[LoDTensor]]


class DataLoader:
    """Loads batches in the background. Made by `from_generator` or `from_dataset`."""

    def __init__(self, *args: Any, **kwargs: Any):
        """Raises UnsupportedError: loading from a dataset of indexed samples is not in this
        release.
        """
        raise errors.UnsupportedError(
            "fluid.io.DataLoader(dataset, ...) is not in this release: use "
            "fluid.io.DataLoader.from_generator with a generator that yields the dataset's samples"
        )

    @staticmethod
    def from_generator(
        feed_list: Sequence[Variable] | None = None,
        capacity: int | None = None,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
        use_multiprocess: bool = False,
        drop_last: bool = True,
    ) -> "GeneratorLoader":
        """A loader of what a Python generator yields; see GeneratorLoader for the arguments."""
        return GeneratorLoader(
            feed_list,
            capacity,
            use_double_buffer,
            iterable,
            return_list,
            use_multiprocess,
            drop_last,
        )

    @staticmethod
    def from_dataset(dataset: Any, places: Any, drop_last: bool = True) -> "DatasetLoader":
        """A loader of the batches of a `QueueDataset` or `InMemoryDataset`; see DatasetLoader for
        the arguments.
        """
        return DatasetLoader(dataset, places, drop_last)


class GeneratorLoader:
    """Loads what a generator yields.

    Iterable: `for data in loader():` gives what `Executor.run(feed=data)` takes: a list with a dict
    from names to LoDTensors for each place. Each `loader()` runs the generator anew, in a thread
    (or process) of its own, which ends with the iteration: at its end, after an error, and when the
    loop is left.

    Not iterable: operators that read are appended to the main program. `start()`, run the program
    without these feeds until it raises `fluid.core.EOFException`, then `reset()`.

    Args:
        feed_list: the variables to feed, in the order of a sample's fields.
        capacity: how many batches are read ahead.
        use_double_buffer: a second thread brings the next batch to the device, ragged rows padded,
            while a step runs.
        iterable: whether to iterate over batches, or to have the program read them.
        return_list: give lists of LoDTensors in the order of `feed_list`, in place of dicts.
            Iterable loaders only.
        use_multiprocess: run the generator in a forked process. It must not use JAX. Its random
            numbers (`random`, `numpy.random`) differ from epoch to epoch, and repeat when this
            process's `random` is seeded.
        drop_last: with several places, drop batches at the end that do not suffice for all.

    Raises TypeError when `feed_list` holds something else, FeedError when it or `capacity` is
    missing or not positive.

    While it loads, these are raised where the next batch is asked for: ReaderError, with the
    position and the generator's own error as its cause; FeedError for a batch that does not fit the
    variables.
    """

    def __init__(
        self,
        feed_list: Sequence[Variable] | None = None,
        capacity: int | None = None,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
        use_multiprocess: bool = False,
        drop_last: bool = True,
    ):
        variables = list(feed_list or ())
        for variable in variables:
            if not isinstance(variable, Variable):
                raise TypeError(f"feed_list must hold Variables, found {variable!r}")
        if not variables:
            raise errors.FeedError("feed_list: expected the variables to feed, found none")
        self._source = BatchSource([Slot.of(v) for v in variables], capacity, use_multiprocess)
        self._iterable, self._return_list, self._drop_last = iterable, return_list, drop_last
        self._double_buffer = use_double_buffer
        self._places: list[Place] = []
        self._placer = FeedPlacer()
        self._queue: ClosableQueue[Any] | None = None
        self._latest: Iterator[Batch] | None = None
        self._running: ReaderSession | None = None
        if not iterable:
            self._running = self._bind(variables)

    def _bind(self, variables: list[Variable]) -> ReaderSession:
        session = ReaderSession(self._source, False)
        reader = create_reader(
            session, [v.need_check_feed for v in variables], default_main_program().current_block()
        )
        if self._double_buffer:
            reader = double_buffered(reader)
        append_read(reader, variables, self._drop_last)
        return session

    @property
    def iterable(self) -> bool:
        """Whether to iterate over batches, or to have the program read them."""
        return self._iterable

    @property
    def queue(self) -> ClosableQueue[Any] | None:
        """The batches of the latest epoch that were read ahead (`size()`, `capacity()`); None
        before the first.
        """
        return self._queue if self._running is None else self._running.queue

    def set_sample_generator(
        self, reader: Reader, batch_size: int, drop_last: bool = True, places: Any = None
    ) -> "GeneratorLoader":
        """Read samples, one at a time: lists or tuples with a field for each variable.

        Args:
            reader: a function that returns an iterable of samples, called once an epoch.
            batch_size: how many make a batch.
            drop_last: leave out samples at the end that do not fill a batch.
            places: a place or a list of places, a batch for each; needed (and used) by iterable
                loaders only. Otherwise the place is the Executor's.
        """
        self._set_places(places)
        self._source.set_samples(reader, batch_size, drop_last)
        return self

    def set_sample_list_generator(self, reader: Reader, places: Any = None) -> "GeneratorLoader":
        """Read lists of samples, each list a batch. For `places` see `set_sample_generator`."""
        self._set_places(places)
        self._source.set_sample_lists(reader)
        return self

    def set_batch_generator(self, reader: Reader, places: Any = None) -> "GeneratorLoader":
        """Read batches: a list or tuple with an array or LoDTensor for each variable. For `places`
        see `set_sample_generator`."""
        self._set_places(places)
        self._source.set_batches(reader)
        return self

    def _set_places(self, places: Any) -> None:
        if self._iterable:
            self._places = _list_of_places(places)

    def __iter__(self) -> Iterator[Batch]:
        """Begin an epoch. Raises ReaderError when the loader is not iterable, or no reader was
        set.
        """
        if not self._iterable:
            raise errors.ReaderError(
                "this loader is not iterable: call start(), and run the program"
            )
        batches = self._source.read()
        self._queue = batches.queue
        return _epoch(
            batches,
            self._places,
            self._drop_last,
            self._return_list,
            self._placer if self._double_buffer else None,
        )

    __call__ = __iter__

    def __next__(self) -> Batch:
        """The next batch of an epoch that the loader itself keeps; the first call, and that after
        its end, begins one.
        """
        if self._latest is None:
            self._latest = iter(self)
        try:
            return next(self._latest)
        except BaseException:
            self._latest = None
            raise

    next = __next__

    def start(self) -> None:
        """Begin an epoch. Raises ReaderError when the loader is iterable, while one runs, or when
        no reader was set.
        """
        self._not_iterable("start").start()

    def reset(self) -> None:
        """End the epoch, and wait for the generator to end. Raises ReaderError when the loader is
        iterable.
        """
        self._not_iterable("reset").reset()

    def _not_iterable(self, method: str) -> ReaderSession:
        if self._running is None:
            raise errors.ReaderError(
                f"{method}() is for loaders made with iterable=False: iterate over this one"
            )
        return self._running


class DatasetLoader:
    """Loads the batches of a dataset; iterate over it as over a GeneratorLoader.

    Args:
        dataset: a `QueueDataset` or `InMemoryDataset`.
        places: a place or a list of places, a batch for each.
        drop_last: leave out a batch that has fewer samples than the dataset's batch size, and, with
            several places, batches at the end that do not suffice for all.

    Raises TypeError when `dataset` is none. The dataset's own errors are raised where the next
    batch is asked for.
    """

    def __init__(self, dataset: Any, places: Any, drop_last: bool = True):
        if not callable(getattr(dataset, "_batches", None)):
            raise TypeError(
                f"dataset: expected what fluid.DatasetFactory().create_dataset returns, found "
                f"{type(dataset).__name__}"
            )
        self._places, self._drop_last = _list_of_places(places), drop_last
        self._source = BatchSource([], _AHEAD)
        self._source.set_feeds(partial(_batches_of, dataset, drop_last))
        self._placer = FeedPlacer()

    def __iter__(self) -> Iterator[Batch]:
        """Begin an epoch."""
        return _epoch(self._source.read(), self._places, self._drop_last, False, self._placer)

    __call__ = __iter__


_AHEAD = 8  # batches of a dataset: it reads ahead itself


def _batches_of(dataset: Any, drop_last: bool) -> Iterator[Feed]:
    """The feeds of a dataset: the one place that knows how to get them."""
    with dataset._batches() as batches:
        for batch in batches:
            feed = {
                name: value if isinstance(value, LoDTensor) else LoDTensor(value)
                for name, value in batch.items()
            }
            first = next(iter(feed.values()))
            samples = len(first._lod[0]) - 1 if first._lod else len(first)
            if samples == dataset._batch_size or not drop_last:
                yield feed


def _list_of_places(places: Any) -> list[Place]:
    found = list(places) if isinstance(places, list | tuple) else [places]
    if not found or not all(hasattr(place, "device") for place in found):
        raise errors.PlaceError(
            f"places: expected a place or a list of them, such as fluid.cpu_places(), found {places!r}"
        )
    return found


def _epoch(
    batches: Prefetch[Feed],
    places: list[Place],
    drop_last: bool,
    return_list: bool,
    placer: FeedPlacer | None,
) -> Iterator[Batch]:
    """Groups of batches, one for each place; with a placer they are copied to the places' devices
    ahead of time.
    """
    groups: Iterator[list[Feed]] = _groups(batches, len(places), drop_last)
    if placer is not None:
        groups = Prefetch(
            partial(_placed, placer, groups, [place.device() for place in places]),
            1,
            upstream=batches,
        )
    return ([list(feed.values()) for feed in group] if return_list else group for group in groups)


def _groups(batches: Iterable[Feed], size: int, drop_last: bool) -> Iterator[list[Feed]]:
    batches = iter(batches)
    while group := list(itertools.islice(batches, size)):
        if len(group) == size or not drop_last:
            yield group


def _placed(
    placer: FeedPlacer, groups: Iterable[list[Feed]], devices: list[Any]
) -> Iterator[list[Feed]]:
    for group in groups:
        yield [placer.place(feed, device) for feed, device in zip(group, devices)]
