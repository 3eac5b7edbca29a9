"""NumPy arrays at 64-byte alignment, which XLA's CPU backend reads without a copy.

XLA copies an argument that does not begin at a multiple of 64 bytes, in a thread for which the step waits.
NumPy's own arrays begin at a multiple of 16.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

ALIGNMENT = 64  # bytes
_FEWEST_BYTES = 4096  # of an array that is worth it

Array = np.ndarray[Any, Any]


def empty(shape: Sequence[int], dtype: DTypeLike) -> Array:
    """Return an array of any numbers."""
    dtype = np.dtype(dtype)
    size = dtype.itemsize * math.prod(shape)
    if size < _FEWEST_BYTES or dtype.hasobject:
        return np.empty(shape, dtype)
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.__array_interface__["data"][0] % ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def copied(array: Array) -> Array:
    """Return a copy of an array."""
    made = empty(array.shape, array.dtype)
    made[...] = array
    return made


def stacked(values: Sequence[Any], dtype: DTypeLike | None = None) -> Array:
    """Stack arrays of one shape, or values that NumPy converts to arrays, along a new first dimension.

    Args:
        dtype: that numbers are converted to, as `astype` does; by default a dtype that holds all.

    Raises ValueError as `numpy.stack` does: for no arrays, and for arrays of different shapes.
    """
    arrays = [np.asarray(value) for value in values]
    if not arrays:
        raise ValueError("expected at least one array, found none")
    if dtype is None:
        dtype = np.result_type(*{array.dtype for array in arrays})
    made = empty((len(arrays), *arrays[0].shape), dtype)
    return np.stack(arrays, out=made, casting="unsafe")
