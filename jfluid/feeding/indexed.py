"""Samples by index for `fluid.io.DataLoader(dataset)`, and the order of samples."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from jfluid.feeding.worker import Worker
from jfluid.host import aligned_memory

__all__ = ["BatchSampler", "Dataset", "batches_in_order", "default_collate_fn"]

Indices = Sequence[int]
Collate = Callable[[list[Any]], Any]


class Dataset:
    """Samples by index.

    A subclass defines `__getitem__(index)`, which returns the fields of a sample (arrays or numbers, or one
    array), and `__len__()`.

    Both raise NotImplementedError where a subclass does not define them.
    """

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has to define __getitem__(index)")

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} has to define __len__()")


class BatchSampler:
    """Sampler of the indices of each batch: iterating gives lists of indices, `len` the number of batches.

    Args:
        dataset: the dataset; all its indices are taken, from 0 on.
        indices: the indices, in place of a dataset.
        shuffle: take them in a different order each time, drawn from NumPy's global generator.
        batch_size: how many make a batch.
        drop_last: leave out indices at the end that do not fill a batch.

    Raises TypeError and ValueError where an argument does not fit.
    """

    def __init__(
        self,
        dataset: Dataset | None = None,
        indices: Sequence[int] | None = None,
        shuffle: bool = False,
        batch_size: int = 1,
        drop_last: bool = False,
    ):
        if (dataset is None) == (indices is None):
            raise ValueError("BatchSampler: give either dataset or indices")
        if dataset is not None and not isinstance(dataset, Dataset):
            raise TypeError(
                f"BatchSampler, dataset: expected a subclass of fluid.io.Dataset, found {type(dataset).__name__}"
            )
        if indices is not None and not isinstance(indices, list | tuple):
            raise TypeError(f"BatchSampler, indices: expected a list or tuple, found {type(indices).__name__}")
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(f"BatchSampler, batch_size: expected a positive integer, found {batch_size!r}")
        for name, value in (("shuffle", shuffle), ("drop_last", drop_last)):
            if not isinstance(value, bool):
                raise TypeError(f"BatchSampler, {name}: expected True or False, found {value!r}")
        self.indices = list(range(len(dataset))) if dataset is not None else list(indices or ())
        self.shuffle, self.batch_size, self.drop_last = shuffle, batch_size, drop_last

    def __iter__(self) -> Iterator[list[int]]:
        if self.shuffle:
            np.random.shuffle(self.indices)  # noqa: NPY002 (scripts seed the global generator)
        for start in range(0, len(self) * self.batch_size, self.batch_size):
            yield self.indices[start : start + self.batch_size]

    def __len__(self) -> int:
        whole, rest = divmod(len(self.indices), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)


def default_collate_fn(batch: Sequence[Any]) -> list[np.ndarray]:
    """Stack each field of the samples: a list of arrays with the batch as first dimension.

    Args:
        batch: samples: each one array, or a list or tuple of fields of equal shapes.
    """
    if isinstance(batch[0], np.ndarray):
        return [aligned_memory.stacked(batch)]
    return [aligned_memory.stacked(field) for field in zip(*batch, strict=True)]


def batches_in_order(
    dataset: Any,
    batches: Iterable[Indices],
    collate: Collate,
    workers: int = 0,
    timeout: float = 0,
    start: Callable[[int], None] | None = None,
) -> Iterator[Any]:
    """Give `collate` of the samples of each of `batches`, in their order.

    Args:
        workers: number of processes that load batches in turn; 0 for this process.
        timeout: seconds to wait for a worker's next batch; 0 for any time.
        start: called in each worker with the worker's number.

    Raises ReaderError where a worker dies, or is silent for longer.
    """
    if workers == 0:
        return (collate([dataset[i] for i in indices]) for indices in batches)
    every = list(batches)

    def load(worker: int) -> Iterator[Any]:
        if start is not None:
            start(worker)
        for indices in every[worker::workers]:
            yield collate([dataset[i] for i in indices])

    running = [Worker(partial(load, w), timeout) for w in range(min(workers, len(every)))]
    return _in_turn(running, len(every))


def _in_turn(workers: list[Worker], count: int) -> Iterator[Any]:
    """Yield `count` batches from the workers in turn, and end the workers."""
    loading = [iter(w) for w in workers]
    try:
        for number in range(count):
            yield next(loading[number % len(loading)])
    finally:
        for worker, batches in zip(workers, loading):
            worker.close()
            batches.close()
