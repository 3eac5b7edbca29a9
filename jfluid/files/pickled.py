"""Pickled dicts of arrays (`.pdparams`, `.pdopt`), written as Fluid writes them and read without trust.

A pickle may name any function of the process; here it may name only the handful that arrays need, and these are
stand-ins of ours which hold lengths against shapes before they make an array.
"""
import io
import math
import os
import pickle
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from jfluid import errors
from jfluid.files.storage import atomic_write, bounded_reader

_PROTOCOL = 2  # Fluid's own choice
_DTYPE = re.compile(r"[<>=|]?(b1|[iu][1248]|f[248])")
_CONTAINERS: dict[tuple[str, str], Callable] = {("collections", "OrderedDict"): OrderedDict}
_ARRAY_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray")


class _Global:
    """A function that the pickle names, whatever this NumPy calls it."""

    def __init__(self, module: str, name: str):
        self.module, self.name = module, name

    def __call__(self, *args: Any) -> Any:  # a pickle's callable must look like one
        raise TypeError(f"{self.module}.{self.name} is only a name")


# NumPy 2 moved this function. Its old name is the one that every release can read.
_RECONSTRUCT = _Global("numpy.core.multiarray", "_reconstruct")


class _Pickler(pickle._Pickler):  # type: ignore[name-defined]  # the C pickler cannot be told another name
    dispatch: ClassVar = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, np.ndarray):
            _, args, state = obj.__reduce__()
            return _RECONSTRUCT, args, state
        return NotImplemented

    def save_name(self, obj: _Global) -> None:
        self.write(pickle.GLOBAL + f"{obj.module}\n{obj.name}\n".encode())
        self.memoize(obj)

    dispatch[_Global] = save_name


def save_arrays(path: str | os.PathLike, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays by name to a pickle that Fluid reads. Raises FileFormatError for one of 4 GiB and more."""
    with atomic_write(path) as file:
        try:
            _Pickler(file, _PROTOCOL).dump({n: np.ascontiguousarray(a).reshape(np.shape(a)) for n, a in arrays.items()})
        except OverflowError as e:
            raise errors.FileFormatError(f"{os.fspath(path)}: Fluid's pickles cannot hold an array of 4 GiB; use "
                                         "fluid.io.save_persistables") from e


class _PendingDtype:
    """What a pickle says of a dtype, before it is believed."""

    def __init__(self, text: Any, align: Any = False, copy: Any = False):
        if isinstance(text, bytes):
            text = text.decode("latin1")
        if not isinstance(text, str) or not _DTYPE.fullmatch(text):
            raise pickle.UnpicklingError(f"dtype {str(text)[:40]!r} holds more than numbers")
        self.dtype = np.dtype(text)

    def __setstate__(self, state: Any) -> None:
        order = state[1].decode() if isinstance(state[1], bytes) else state[1]
        if order not in ("<", ">", "=", "|") or any(part is not None for part in state[2:5]):
            raise pickle.UnpicklingError("a dtype with fields")
        if order != "|":
            self.dtype = self.dtype.newbyteorder(order)


class _PendingArray:
    """What a pickle says of an array; `value` once its state is known and consistent."""

    value: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, pending, fortran, data = state
        if isinstance(data, str):
            data = data.encode("latin1")
        dtype = pending.dtype
        if not all(isinstance(d, int) and d >= 0 for d in shape) or math.prod(shape) * dtype.itemsize != len(data):
            raise pickle.UnpicklingError(f"an array of {dtype}{list(shape)} does not have {len(data)} bytes")
        flat = np.frombuffer(bytearray(data), dtype)
        self.value = flat.reshape(shape, order="F" if fortran else "C").astype(dtype.newbyteorder("="), copy=False)


def _reconstruct(kind: Any, shape: Any, code: Any) -> _PendingArray:
    return _PendingArray()


def _scalar(dtype: _PendingDtype, data: Any = b"") -> Any:
    data = data.encode("latin1") if isinstance(data, str) else data
    if len(data) != dtype.dtype.itemsize:
        raise pickle.UnpicklingError(f"a number of {dtype.dtype} does not have {len(data)} bytes")
    return np.frombuffer(data, dtype.dtype)[0]


def _encode(text: str, encoding: str = "latin1") -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"encoding {encoding!r}")
    return text.encode("latin1")


class _Unpickler(pickle.Unpickler):
    """Makes numbers, texts, containers and arrays, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if module in _ARRAY_MODULES and name in ("_reconstruct", "scalar"):
            return _reconstruct if name == "_reconstruct" else _scalar
        if module == "numpy" and name in ("ndarray", "dtype"):
            return _PendingArray if name == "ndarray" else _PendingDtype
        if (module, name) == ("_codecs", "encode"):
            return _encode
        if (module, name) in _CONTAINERS:
            return _CONTAINERS[module, name]
        raise pickle.UnpicklingError(f"it names {module}.{name}, which a file of arrays has no use for; not loaded")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("persistent ids")


def _settle(value: Any, path: str) -> Any:
    """Put arrays in the place of what stands for them."""
    if isinstance(value, _PendingArray):
        if value.value is None:
            raise errors.FileFormatError(f"{path}: an array without contents")
        return value.value
    if isinstance(value, dict):
        return type(value)((k, _settle(v, path)) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return type(value)(_settle(v, path) for v in value)
    if isinstance(value, (_PendingDtype, _Global)):
        raise errors.FileFormatError(f"{path}: expected arrays, found a {type(value).__name__}")
    return value


def load_arrays(path: str | os.PathLike) -> dict[str, Any]:
    """The dict that a pickle of arrays holds.

    Raises FileFormatError when the file is missing, damaged, no dict, or would make anything but numbers, texts,
    containers and arrays.
    """
    name = os.fspath(path)
    with bounded_reader(path) as reader:
        data = reader.take(reader.remaining, "the pickle")
    buffer = io.BytesIO(data)
    try:
        found = _Unpickler(buffer, encoding="latin1").load()
    except Exception as e:  # a hostile pickle can raise anything
        raise errors.FileFormatError(f"{name}: no pickle of arrays: {e}") from e
    if buffer.read(1):
        raise errors.FileFormatError(f"{name}: oversized: bytes follow the pickle")
    if not isinstance(found, dict) or not all(isinstance(k, str) for k in found):
        raise errors.FileFormatError(f"{name}: expected a dict of arrays by name, found {type(found).__name__}")
    try:
        return _settle(found, name)
    except RecursionError as e:
        raise errors.FileFormatError(f"{name}: containers within containers without end") from e
