"""`fluid.io.DataLoader`: batches from a reader or a dataset, prepared ahead of the steps."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.compile.runtime import device_feeds
from jfluid.compile.runtime.device_feeds import FeedPlacer
from jfluid.feeding.batch_source import BatchSource
from jfluid.feeding.data_feeder import Feed, FeedSpec
from jfluid.feeding.indexed import BatchSampler, Dataset, batches_in_order, default_collate_fn
from jfluid.feeding.prefetch import ClosableQueue, Prefetch
from jfluid.feeding.reader import batch
from jfluid.feeding.reader_ops import ReaderSession, append_read, create_reader, double_buffered
from jfluid.host import aligned_memory
from jfluid.ir.program import default_main_program
from jfluid.ir.variable import Variable
from jfluid.lod_tensor import LoDTensor
from jfluid.places import Place

__all__ = ["DataLoader", "DatasetLoader", "EagerLoader", "GeneratorLoader"]

Reader = Callable[[], Iterable[Any]]
Batch = list[Feed] | list[list[LoDTensor]]


class DataLoader:
    """Loader of batches from a dataset with samples by index.

    `from_generator` and `from_dataset` make loaders of further sources.

        for data in fluid.io.DataLoader(dataset, [image, label], fluid.cpu_places(), batch_size=32):
            exe.run(feed=data)

    Each iteration is an epoch; `len(loader)` is its number of batches.

    Args:
        dataset: a subclass of `fluid.io.Dataset`.
        feed_list: the variables to feed, in the order of a sample's fields. Not needed with
            `return_list`.
        places: a place or a list of places, a batch for each.
        return_list: give lists of LoDTensors in the order of the fields, in place of dicts.
        batch_sampler: which samples make each batch: a `fluid.io.BatchSampler`, or an iterable of
            lists of indices with a length. It stands for `batch_size`, `shuffle` and `drop_last`.
        batch_size: how many samples make a batch.
        shuffle: take the samples in a different order each epoch.
        drop_last: leave out samples at the end that do not fill a batch.
        collate_fn: makes the arrays of a batch from a list of samples; by default each field is
            stacked.
        num_workers: how many forked processes load samples; 0 for a thread of this process. They
            must not use JAX.
        use_buffer_reader: bring the next batch to the device while a step runs.
        use_shared_memory: without effect: arrays come through pipes, without a copy by Python.
        timeout: seconds to wait for a worker's next batch; 0 for any time.
        worker_init_fn: is called with its number in each worker.

    Raises TypeError and ValueError where an argument does not fit; while it loads, ReaderError (with
    the position and the dataset's own error as its cause) and FeedError for a batch that does not
    fit the variables.
    """

    def __init__(
        self,
        dataset: Dataset,
        feed_list: Sequence[Variable] | None = None,
        places: Any = None,
        return_list: bool = False,
        batch_sampler: Any = None,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        use_buffer_reader: bool = True,
        use_shared_memory: bool = True,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
    ):
        if not isinstance(dataset, Dataset):
            raise TypeError(
                "DataLoader, dataset: expected a subclass of fluid.io.Dataset, found "
                f"{type(dataset).__name__}; of a generator make a loader with from_generator"
            )
        variables = _variables(feed_list)
        if not variables and not return_list and not default_main_program().eager:
            raise ValueError("DataLoader: feed_list is needed unless return_list=True")
        if isinstance(num_workers, bool) or not isinstance(num_workers, int) or num_workers < 0:
            raise ValueError(f"DataLoader, num_workers: expected a number from 0 on, found {num_workers!r}")
        if timeout < 0:
            raise ValueError(f"DataLoader, timeout: expected seconds from 0 on, found {timeout}")
        if batch_sampler is not None and (batch_size, shuffle, drop_last) != (1, False, False):
            raise ValueError("DataLoader: batch_size, shuffle and drop_last belong to the batch_sampler")
        self.dataset, self.feed_list, self.return_list = dataset, feed_list, return_list
        self.batch_sampler = batch_sampler or BatchSampler(dataset, None, shuffle, batch_size, drop_last)
        self.places = _list_of_places(places)
        self.collate_fn, self.num_workers = collate_fn, num_workers
        self.use_buffer_reader, self.use_shared_memory = use_buffer_reader, use_shared_memory
        self.timeout, self.worker_init_fn = timeout, worker_init_fn
        self._slots = [FeedSpec.of(v) for v in variables]
        self._placer = FeedPlacer()

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[Batch]:
        """Begin an epoch."""
        batches = batches_in_order(
            self.dataset,
            self.batch_sampler,
            self.collate_fn or default_collate_fn,
            self.num_workers,
            self.timeout,
            self.worker_init_fn,
        )
        source = BatchSource(self._slots, 2 * len(self.places))
        if self._slots:
            source.set_batches(lambda: batches)
        else:
            source.set_lists(lambda: batches)
        if default_main_program().eager:
            return _as_variables(source.read())
        placer = self._placer if self.use_buffer_reader else None
        return _epoch(source, self.places, False, self.return_list, placer)[1]

    __call__ = __iter__

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
        """Return a loader of a Python generator's items; see GeneratorLoader for the arguments.

        In dygraph mode it yields lists of variables; see EagerLoader.
        """
        return generator_loader(
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
        """Return a loader of the batches of a `QueueDataset` or `InMemoryDataset`; DatasetLoader has the arguments."""
        return DatasetLoader(dataset, places, drop_last)


class GeneratorLoader:
    """Loader of a generator's items.

    Iterable: `for data in loader():` gives feeds for `Executor.run(feed=data)`: a list with a dict
    from names to LoDTensors for each place. Each `loader()` runs the generator anew, in a separate thread
    (or process), which ends with the iteration: at its end, after an error, and when the
    loop is left.

    Not iterable: operators that read are appended to the main program. `start()`, run the program
    without these feeds until it raises `fluid.core.EOFException`, then `reset()`.

    Args:
        feed_list: the variables to feed, in the order of a sample's fields.
        capacity: how many batches are read ahead.
        use_double_buffer: batches are copied to the device, ragged rows padded, while steps run:
            on CPUs by the reading thread, otherwise by a second thread.
        iterable: whether to iterate over batches, or to have the program read them.
        return_list: give lists of LoDTensors in the order of `feed_list`, in place of dicts.
            Iterable loaders only.
        use_multiprocess: run the generator in a forked process. It must not use JAX. Its random
            numbers (`random`, `numpy.random`) differ from epoch to epoch, and repeat when this
            process's `random` is seeded.
        drop_last: with several places, drop batches at the end that do not suffice for all.

    Raises TypeError if `feed_list` holds values other than Variables, FeedError if it or `capacity` is
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
        variables = _variables(feed_list)
        if not variables:
            raise errors.FeedError("feed_list: expected the variables to feed, found none")
        self._source = BatchSource([FeedSpec.of(v) for v in variables], capacity, use_multiprocess)
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
        reader = create_reader(session, [v.need_check_feed for v in variables], default_main_program().current_block())
        if self._double_buffer:
            reader = double_buffered(reader)
        append_read(reader, variables, self._drop_last)
        return session

    @property
    def iterable(self) -> bool:
        """True to iterate over batches, False to let the program read batches."""
        return self._iterable

    @property
    def queue(self) -> ClosableQueue[Any] | None:
        """The batches of the latest epoch that were read ahead (`size()`, `capacity()`); None before the first."""
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
        """Read batches: a list or tuple with an array or LoDTensor for each variable.

        For `places` see `set_sample_generator`.
        """
        self._set_places(places)
        self._source.set_batches(reader)
        return self

    def _set_places(self, places: Any) -> None:
        if self._iterable:
            self._places = _list_of_places(places)

    def __iter__(self) -> Iterator[Batch]:
        """Begin an epoch.

        Raises ReaderError when the loader is not iterable, or no reader was set.
        """
        if not self._iterable:
            raise errors.ReaderError("this loader is not iterable: call start(), and run the program")
        self._queue, batches = _epoch(
            self._source,
            self._places,
            self._drop_last,
            self._return_list,
            self._placer if self._double_buffer else None,
        )
        return batches

    __call__ = __iter__

    def __next__(self) -> Batch:
        """Return the next batch of the loader's epoch; the first call, and a call after the end, begins an epoch."""
        if self._latest is None:
            self._latest = iter(self)
        try:
            return next(self._latest)
        except BaseException:
            self._latest = None
            raise

    next = __next__

    def start(self) -> None:
        """Begin an epoch.

        Raises ReaderError when the loader is iterable, while one runs, or when no reader was set.
        """
        self._not_iterable("start").start()

    def reset(self) -> None:
        """End the epoch, and wait for the generator to end.

        Raises ReaderError when the loader is iterable.
        """
        self._not_iterable("reset").reset()

    def _reset(self) -> None:
        """End the epoch that is going on, if one is, of either kind of loader."""
        if self._running is not None:
            self._running.reset()
        elif self._queue is not None:
            self._queue.close()
            self._queue = self._latest = None

    def _not_iterable(self, method: str) -> ReaderSession:
        if self._running is None:
            raise errors.ReaderError(f"{method}() is for loaders made with iterable=False: iterate over this one")
        return self._running


class EagerLoader(GeneratorLoader):
    """Yields, in dygraph mode, a list of variables for each batch, to which no gradient flows.

    Args:
        feed_list: has no effect: the fields of samples are told by their places.
        capacity: how many batches are read ahead.
        use_multiprocess: run the reader in a separate process.

    The other arguments of GeneratorLoader have no effect: each epoch is iterated over, and
    variables lie where the `guard` says, not at `places`.
    """

    def __init__(self, capacity: int | None, use_multiprocess: bool = False):
        self._source = BatchSource([], capacity, use_multiprocess)
        self._iterable, self._latest, self._running = True, None, None
        self._queue: ClosableQueue[Any] | None = None

    def set_sample_generator(
        self, reader: Reader, batch_size: int, drop_last: bool = True, places: Any = None
    ) -> "EagerLoader":
        """Read samples, one at a time: lists or tuples of fields.

        `batch_size` samples make a batch; `drop_last` leaves out samples at the end that do not fill a batch.
        """
        self._source.set_lists(partial(_stacked, batch(reader, batch_size, drop_last)))
        return self

    def set_sample_list_generator(self, reader: Reader, places: Any = None) -> "EagerLoader":
        """Read lists of samples, each list a batch."""
        self._source.set_lists(partial(_stacked, reader))
        return self

    def set_batch_generator(self, reader: Reader, places: Any = None) -> "EagerLoader":
        """Read batches: a list or tuple of arrays."""
        self._source.set_lists(reader)
        return self

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch. Raises ReaderError when no reader was set."""
        batches = self._source.read()
        self._queue = batches.queue
        return _as_variables(batches)

    __call__ = __iter__


def generator_loader(
    feed_list: Sequence[Variable] | None,
    capacity: int | None,
    use_double_buffer: bool,
    iterable: bool,
    return_list: bool,
    use_multiprocess: bool = False,
    drop_last: bool = True,
) -> GeneratorLoader:
    """Return the loader of a generator for programs, or in dygraph mode that for variables."""
    if default_main_program().eager:
        return EagerLoader(capacity, use_multiprocess)
    return GeneratorLoader(feed_list, capacity, use_double_buffer, iterable, return_list, use_multiprocess, drop_last)


def _stacked(reader: Reader) -> Iterator[list[Any]]:
    """Batches as one array for each field, from lists of samples."""
    for samples in reader():
        yield [aligned_memory.stacked(field) for field in zip(*samples, strict=True)]


def _as_variables(batches: Iterable[Feed]) -> Iterator[Any]:
    """Batches as lists of eager variables."""
    program: Any = default_main_program()
    for feed in batches:
        yield [program.variable_of(np.asarray(value)) for value in feed.values()]


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
                f"dataset: expected a dataset of fluid.DatasetFactory().create_dataset, found {type(dataset).__name__}"
            )
        self._places, self._drop_last = _list_of_places(places), drop_last
        self._source = BatchSource([], _AHEAD)
        self._source.set_feeds(partial(_batches_of, dataset, drop_last))
        self._placer = FeedPlacer()

    def __iter__(self) -> Iterator[Batch]:
        """Begin an epoch."""
        return _epoch(self._source, self._places, self._drop_last, False, self._placer)[1]

    __call__ = __iter__


_AHEAD = 8  # batches of a dataset: it reads ahead itself


def _batches_of(dataset: Any, drop_last: bool) -> Iterator[Feed]:
    """Return the feeds of a dataset."""
    with dataset._batches() as batches:
        for batch in batches:
            feed = {name: value if isinstance(value, LoDTensor) else LoDTensor(value) for name, value in batch.items()}
            # the values of a sample may fill several rows of a dense slot, or none
            counted = next((t for t in feed.values() if t._lod), None)
            samples = len(next(iter(feed.values()))) if counted is None else len(counted._lod[0]) - 1
            if samples == dataset._batch_size or not drop_last:
                yield feed


def _variables(feed_list: Sequence[Variable] | None) -> list[Variable]:
    variables = list(feed_list or ())
    for variable in variables:
        if not isinstance(variable, Variable):
            raise TypeError(f"feed_list must hold Variables, found {variable!r}")
    return variables


def _list_of_places(places: Any) -> list[Place]:
    found = list(places) if isinstance(places, list | tuple) else [places]
    if not found or not all(hasattr(place, "device") for place in found):
        raise errors.PlaceError(
            f"places: expected a place or a list of places, such as fluid.cpu_places(), found {places!r}"
        )
    return found


def _epoch(
    source: BatchSource,
    places: list[Place],
    drop_last: bool,
    return_list: bool,
    placer: FeedPlacer | None,
) -> tuple[ClosableQueue[Any], Iterator[Batch]]:
    """Return (the queue of batches that are read ahead, groups of batches, one for each place).

    With a placer they are brought to the places' devices ahead of time: by the thread that reads,
    where devices read the host's memory, as a second thread would only take the processor from the
    steps; else by a second one, as a device has room for few batches.
    """
    devices = [] if placer is None else [place.device() for place in places]
    placed = None if placer is None else partial(_placed, placer, devices)
    here = all(map(device_feeds.reads_host_memory, devices))
    batches = source.read(placed if here else None)
    ready: Iterator[Feed] = batches
    if placed is not None and not here:
        ready = Prefetch(partial(placed, batches), len(devices), upstream=batches)
    groups = _groups(ready, len(places), drop_last)
    if return_list:
        return batches.queue, ([list(feed.values()) for feed in group] for group in groups)
    return batches.queue, groups


def _groups(batches: Iterable[Feed], size: int, drop_last: bool) -> Iterator[list[Feed]]:
    batches = iter(batches)
    while group := list(itertools.islice(batches, size)):
        if len(group) == size or not drop_last:
            yield group


def _placed(placer: FeedPlacer, devices: Sequence[Any], feeds: Iterable[Feed]) -> Iterator[Feed]:
    for feed, device in zip(feeds, itertools.cycle(devices)):
        yield placer.place(feed, device)
