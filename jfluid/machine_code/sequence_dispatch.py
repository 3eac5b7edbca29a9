"""Dispatch of loops over the steps of sequences to LLVM kernels (`sequence_kernels.py`).

XLA runs a loop over time as a program of small GEMMs and elementwise operations, with a barrier of all
threads after each operation. A kernel's thread takes a group of sequences through all steps, without barriers.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfluid import errors
from jfluid.machine_code import calls, kernel_registry, sequence_kernels, vector_functions
from jfluid.machine_code.processor import LANES
from jfluid.machine_code.vector_functions import MOST_ROWS, PANEL
from jfluid.ops.ragged import Level

# The weights of each step come from far caches, once for each group of sequences, beyond the first;
# XLA multiplies all sequences with them at once, which is as fast at the second.
_WIDE, _WIDEST = 256, 512
# Sequences are divided into so many groups where that leaves some to each: on any machine, since
# sums over the sequences of a group are added up.
_GROUPS, _FEWEST = 8, 2


@dataclass(frozen=True)
class Panels:
    """A matrix packed for the GEMM: panels of `PANEL` vectors of columns, unless the columns are no multiple.

    Attributes:
        pitch: numbers from a row of a panel to the next.
        panel: numbers from a panel to the next.
    """

    array: Array
    pitch: int
    panel: int

    @classmethod
    def of(cls, matrix: Array) -> "Panels":
        (rows, columns), wide = matrix.shape, PANEL * LANES
        if columns % wide:
            return cls(matrix, columns, wide)
        return cls(matrix.reshape(rows, -1, wide).swapaxes(0, 1), wide, rows * wide)


@dataclass(frozen=True)
class LoopSizes:
    """The sizes of a call's arrays.

    Attributes:
        batches: dimensions before the rows of arrays that share weights.
        rows: in each batch.
        number: of sequences in each batch.
        width: numbers of a state.
    """

    batches: tuple[int, ...]
    rows: int
    number: int
    width: int

    @classmethod
    def of(cls, rows: Array, h0: Array) -> "LoopSizes":
        """Return the sizes for arrays of shapes [..., rows, n width] and [..., number, width]."""
        return cls(rows.shape[:-2], rows.shape[-2], *h0.shape[-2:])

    @property
    def group(self) -> int:
        """Number of sequences in a chunk."""
        wanted = MOST_ROWS if self.width > _WIDE else -(-self.number // _GROUPS)
        return min(self.number, MOST_ROWS, max(_FEWEST, wanted))

    @property
    def groups(self) -> int:
        return -(-self.number // self.group)

    def of_rows(self, numbers: int) -> tuple[int, ...]:
        """Return the shape of an array of rows, `numbers` times as wide as a state."""
        return (*self.batches, self.rows, numbers * self.width)

    def of_sequences(self) -> tuple[int, ...]:
        """Return the shape of a state of each sequence."""
        return (*self.batches, self.number, self.width)

    def of_sums(self, numbers: int) -> tuple[int, ...]:
        """Return the shape of sums over each chunk."""
        return (self.groups, *self.batches, numbers * self.width)

    def numbers(self, memory: int, backwards: bool, others: Mapping[str, int]) -> dict[str, int]:
        """Return the geometry of a call: numbers by name.

        Args:
            memory: float32 of scratch memory for each number of a group's state.
            backwards: True for the reversed direction.
            others: numbers that only this kernel has.
        """
        batches = math.prod(self.batches)
        return {
            "chunks": batches * self.groups,
            "memory": sequence_kernels.memory(self, memory),
            "batches": batches,
            "rows": self.rows,
            "number": self.number,
            "width": self.width,
            "group": self.group,
            "stride": 1,
            "backwards": backwards,
            **others,
        }


def suits(group: str, width: int, x: Array, *others: Array) -> bool:
    """Return True if a group of kernels should loop over rows x [rows, ...]: by state width, dtypes and sizes."""
    return (
        all(a.dtype == np.float32 for a in (x, *others))
        and width % LANES == 0
        and 0 < width <= _WIDEST
        and min(a.shape[0] for a in (x, *others)) > 0
        and kernel_registry.is_on(group)
    )


def offsets(level: Level, rows: int) -> Array:
    """Return offsets that a kernel may follow safely, int32 [number + 1]: from 0, not decreasing, at most `rows`.

    Offsets that break these bounds, which may come from data, become 0: all sequences are empty. Raises ShapeError
    for sequences of one length that do not fit.
    """
    if level.uniform:
        if level.uniform * level.longest > rows:
            raise errors.ShapeError(f"expected {level.uniform} sequences of {level.longest} rows, found {rows} rows")
        return jnp.asarray(level.offsets)
    given = level.offsets
    fit = (given[0] == 0) & jnp.all(given[1:] >= given[:-1]) & (given[-1] <= rows)
    return jnp.where(fit, given, 0).astype(jnp.int32)


def places(level: Level, rows: int, time_major: bool = False) -> Array:
    """Return the table of sequences that `sequence_kernels` reads: order, first rows, lengths and the total of rows.

    Args:
        level: the sequences.
        rows: number of rows of the array.
        time_major: see `LstmForm`.
    """
    known = offsets(level, rows)
    lengths = level.lengths if level.uniform else known[1:] - known[:-1]
    order = jnp.argsort(-lengths)
    starts = jnp.arange(level.number) if time_major else known[:-1]
    parts = [order, starts[order], lengths[order], known[-1:]]
    return jnp.concatenate([p.astype(jnp.int32) for p in parts])


def kind(activation: str) -> int:
    """Return the number of an activation."""
    return vector_functions.KINDS.index(activation or "identity")


def over_rows(x: Array, grad: Array) -> Array:
    """Return x.T @ grad, the gradient of a weight that all steps share."""
    return lax.dot_general(x, grad, (((0,), (0,)), ((), ())))


def call(
    name: str, given: Sequence[Array], numbers: Mapping[str, int], shapes: Sequence[Sequence[int]]
) -> Sequence[Array]:
    """Call a kernel with float32 results of these shapes."""
    return calls.call(name, given, numbers, [(shape, np.float32) for shape in shapes])


def mapped(function: Callable[..., Sequence[Array]], settings: Any, shared: int) -> Any:
    """Wrap a function of one batch so that `jax.vmap` makes a single call for all batches.

    Args:
        settings: the function's first argument, no array.
        shared: how many of the arguments, the first, batches share.
    """

    @jax.custom_batching.custom_vmap
    def one(*arrays: Array) -> list[Array]:
        return list(function(settings, *arrays))

    @one.def_vmap
    def all_(size: int, batched: Sequence[bool], *arrays: Array) -> tuple[Any, Any]:
        full = [a if own else jnp.broadcast_to(a, (size, *a.shape)) for a, own in zip(arrays, batched)]
        if any(batched[:shared]):
            found = lax.map(lambda own: one(*own), full)
        else:
            found = list(function(settings, *arrays[:shared], *full[shared:]))
        return found, [True] * len(found)

    return one
