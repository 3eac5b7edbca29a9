"""Pickled dicts of arrays (`.pdparams`, `.pdopt`), in Fluid's format, read without running code (`unpickling`)."""

import os
import pickle
from collections.abc import Mapping
from typing import Any, BinaryIO, ClassVar, cast

import numpy as np

from jfluid import errors
from jfluid.files import unpickling
from jfluid.files.storage import atomic_write, bounded_reader

_PROTOCOL = 2  # Fluid's own choice


class _Global:
    """A function that the pickle names, whatever this NumPy calls it."""

    def __init__(self, module: str, name: str):
        self.module, self.name = module, name

    def __call__(self, *args: Any) -> Any:  # a pickle's callable must look like one
        raise TypeError(f"{self.module}.{self.name} is only a name")


# NumPy 2 moved this function. Its old name is the one that every release can read.
_RECONSTRUCT = _Global("numpy.core.multiarray", "_reconstruct")


class _Pickler(pickle._Pickler):  # the C pickler cannot be told another name
    dispatch: ClassVar[dict[type, Any]] = dict(pickle._Pickler.dispatch)

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, np.ndarray):
            _, args, state = cast(tuple[Any, ...], obj.__reduce__())
            return _RECONSTRUCT, args, state
        return NotImplemented

    def save_name(self: Any, obj: _Global) -> None:
        self.write(pickle.GLOBAL + f"{obj.module}\n{obj.name}\n".encode())
        self.memoize(obj)

    dispatch[_Global] = save_name


def save_arrays(path: str | os.PathLike[str], arrays: Mapping[str, Any]) -> None:
    """Write arrays by name, and numbers, texts and dicts of these, to a pickle that Fluid reads.

    Raises FileFormatError for an array of 4 GiB or more.
    """
    with atomic_write(path) as file:
        write_arrays(file, os.fspath(path), arrays)


def write_arrays(file: BinaryIO, name: str, arrays: Mapping[str, Any]) -> None:
    """Write the pickle of `save_arrays` to a file; an error names the file."""
    try:
        _Pickler(file, _PROTOCOL).dump({n: _whole(a) for n, a in arrays.items()})
    except OverflowError as e:
        raise errors.FileFormatError(
            f"{name}: Fluid's pickles cannot hold an array of 4 GiB; use fluid.io.save_persistables"
        ) from e


def _whole(value: Any) -> Any:
    """Return an array with its elements in one piece; any other value as it is."""
    if value is None or isinstance(value, (bool, int, float, str, dict)):
        return value
    return np.ascontiguousarray(value).reshape(np.shape(value))


def load_arrays(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the dict that a pickle of arrays holds.

    Raises FileFormatError when the file is missing, damaged, no dict with texts as keys, holds
    anything but numbers, texts, containers and arrays, or would take more than ten times its size
    in memory.
    """
    name = os.fspath(path)
    with bounded_reader(path) as reader:
        data = reader.take(reader.remaining, "the pickle")
    try:
        found = unpickling.load(data)
    except unpickling.RefusedPickle as e:
        raise errors.FileFormatError(f"{name}: no pickle of arrays: {e}") from e
    if not isinstance(found, dict) or not all(isinstance(k, str) for k in found):
        raise errors.FileFormatError(f"{name}: expected a dict of arrays by name, found {type(found).__name__}")
    return found
