"""`fluid.io.PyReader`: the older name of a DataLoader from a generator."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from jfluid.feeding.loader import Batch, generator_loader
from jfluid.feeding.prefetch import ClosableQueue
from jfluid.ir.variable import Variable

__all__ = ["PyReader"]

Reader = Callable[[], Iterable[Any]]


class PyReader:
    """Loader of a generator's items; see `fluid.io.DataLoader.from_generator` for the arguments and the errors."""

    def __init__(
        self,
        feed_list: Sequence[Variable] | None = None,
        capacity: int | None = None,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
    ):
        self._loader = generator_loader(feed_list, capacity, use_double_buffer, iterable, return_list)

    @property
    def iterable(self) -> bool:
        """True to iterate over batches, False to let the program read batches."""
        return self._loader.iterable

    @property
    def queue(self) -> ClosableQueue[Any] | None:
        """The batches that were read ahead (`size()`, `capacity()`); None before the first epoch."""
        return self._loader.queue

    def decorate_sample_generator(
        self, sample_generator: Reader, batch_size: int, drop_last: bool = True, places: Any = None
    ) -> None:
        """Read samples; see `GeneratorLoader.set_sample_generator`."""
        self._loader.set_sample_generator(sample_generator, batch_size, drop_last, places)

    def decorate_sample_list_generator(self, reader: Reader, places: Any = None) -> None:
        """Read lists of samples; see `GeneratorLoader.set_sample_list_generator`."""
        self._loader.set_sample_list_generator(reader, places)

    def decorate_batch_generator(self, reader: Reader, places: Any = None) -> None:
        """Read batches; see `GeneratorLoader.set_batch_generator`."""
        self._loader.set_batch_generator(reader, places)

    def __iter__(self) -> Iterator[Batch]:
        """Begin an epoch."""
        return iter(self._loader)

    __call__ = __iter__

    def __next__(self) -> Batch:
        """Return the next batch of an epoch that the reader itself keeps."""
        return next(self._loader)

    next = __next__

    def start(self) -> None:
        """Begin an epoch of a reader that is not iterable."""
        self._loader.start()

    def reset(self) -> None:
        """End the epoch of a reader that is not iterable."""
        self._loader.reset()
