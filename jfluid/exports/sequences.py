"""Batches of sequences: rows and offsets (LoD) that are sliced and joined by whole sequences."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.lod_tensor import LoDTensor


class Sequences:
    """A batch of sequences of different lengths.

    Args:
        rows: array whose first dimension counts the rows of all sequences.
        lod: offsets of each level, the outermost first.

    Raises DataError for offsets that do not describe the rows.
    """

    def __init__(self, rows: np.ndarray, lod: Sequence[np.ndarray]):
        self.rows = rows
        self.lod = tuple(np.asarray(level, np.int64) for level in lod)
        ends = [len(level) - 1 for level in self.lod[1:]] + [len(rows)]
        for number, (level, end) in enumerate(zip(self.lod, ends, strict=True)):
            if len(level) == 0 or level[0] != 0 or level[-1] != end or (np.diff(level) < 0).any():
                raise errors.DataError(
                    f"level {number} of the offsets: expected numbers that begin with 0, never fall and end with {end}"
                )

    @classmethod
    def of_lengths(cls, rows: np.ndarray, lengths: Sequence[np.ndarray]) -> "Sequences":
        """Return a batch of sequences with the given lengths of each level."""
        return cls(rows, [np.concatenate([[0], np.cumsum(level, dtype=np.int64)]) for level in lengths])

    def __len__(self) -> int:
        """Return the number of sequences of the outermost level."""
        return len(self.lod[0]) - 1

    def __getitem__(self, part: slice) -> "Sequences":
        """Return the sequences of a range without a step."""
        start, stop, _ = part.indices(len(self))
        found = []
        for level in self.lod:
            cut = level[start : max(start, stop) + 1]
            start, stop = int(cut[0]), int(cut[-1])
            found.append(cut - start)
        return Sequences(self.rows[start:stop], found)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows and offsets."""
        return self.rows.nbytes + sum(level.nbytes for level in self.lod)

    @property
    def size(self) -> int:
        """Number of elements of the rows."""
        return self.rows.size

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of sequences, number of levels, shape of a row."""
        return (len(self), len(self.lod), *self.rows.shape[1:])

    def tensor(self) -> LoDTensor:
        """Return the batch as the Executor is fed."""
        return LoDTensor(self.rows, self.lod)

    def nested(self, lists: Callable[[np.ndarray], list[Any]] = np.ndarray.tolist) -> list[Any]:
        """Return the batch as nested lists; a row of one element is a number. `lists` converts the rows."""
        found = lists(self.rows.reshape(len(self.rows)) if self.rows.shape[1:] == (1,) else self.rows)
        for level in reversed(self.lod):
            found = [found[begin:end] for begin, end in zip(level[:-1].tolist(), level[1:].tolist(), strict=True)]
        return found


# A value of a feed or a fetch.
Value = np.ndarray | Sequences


def joined(values: Sequence[Value]) -> Value:
    """Concatenate batches along the first dimension."""
    if all(isinstance(value, np.ndarray) for value in values):
        together: np.ndarray = np.concatenate([value for value in values if isinstance(value, np.ndarray)])
        return together
    batches = [value for value in values if isinstance(value, Sequences)]
    lengths = [np.concatenate([np.diff(b.lod[i]) for b in batches]) for i in range(len(batches[0].lod))]
    return Sequences.of_lengths(np.concatenate([b.rows for b in batches]), lengths)


def filled(value: Value, rows: int) -> Value:
    """Extend a batch to `rows`: dense batches by copies of the last row, sequences by their shortest sequence."""
    missing = rows - len(value)
    if not missing:
        return value
    if isinstance(value, np.ndarray):
        return joined([value, np.repeat(value[-1:], missing, axis=0)])
    at = int(np.argmin(np.diff(value.lod[0])))
    return joined([value, *[value[at : at + 1]] * missing])
