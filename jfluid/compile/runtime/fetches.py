"""Fetches: their names, and their values in the form that users get."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jfluid import errors
from jfluid.compile.runtime.fetched_array import fetched as fetched_array
from jfluid.compile.runtime.padding import trimmed
from jfluid.ir.operator import Operator
from jfluid.ir.variable import Variable
from jfluid.lod_tensor import LoDTensor, LoDTensorArray, SelectedRows


def names_of(fetch_list: Any) -> tuple[list[str], list[Any]]:
    """Names to fetch, and everything to keep when pruning (names, and operators that `minimize` returned).

    Raises FetchError.
    """
    if fetch_list is None:
        return [], []
    if isinstance(fetch_list, (Variable, str)):
        fetch_list = [fetch_list]
    if not isinstance(fetch_list, (list, tuple)):
        raise errors.FetchError(f"fetch_list: expected a list of Variables or names, found {type(fetch_list).__name__}")
    names: list[str] = []
    targets: list[Any] = []
    for item in fetch_list:
        if isinstance(item, (Variable, str)):
            names.append(item if isinstance(item, str) else item.name)
            targets.append(names[-1])
        elif isinstance(item, (list, tuple)):
            targets += [t for t in _flatten(item) if isinstance(t, Operator)]
        else:
            raise errors.FetchError(f"fetch_list: expected Variables or names, found {type(item).__name__}: {item!r}")
    return names, targets


def _flatten(items: Any) -> list[Any]:
    return [x for i in items for x in (_flatten(i) if isinstance(i, (list, tuple)) else [i])]


@dataclass(slots=True)
class Fetched:
    """Value of one fetch.

    Attributes:
        parts: the value of each device; a single value if the program ran once.
        divided: True if the devices had parts of the batch.
        overwritten: True if the next step overwrites the value.
    """

    name: str
    parts: Sequence[Any]
    divided: bool = False
    overwritten: bool = False

    def numpy(self, merged: bool = True) -> Any:
        """Return a NumPy array, a list for an array of tensors; with `merged=False` a list by device.

        Raises FetchError for a value that no NumPy array can represent.
        """
        if not self.divided:
            return to_numpy(self.name, self.parts[0])
        found = [to_numpy(self.name, t) for t in self._tensors(merged)]
        return found[0] if merged else found

    def tensor(self, merged: bool = True) -> Any:
        """Return a LoDTensor, SelectedRows or LoDTensorArray; with `merged=False` a list by device."""
        if not self.divided:
            return to_tensor(self.parts[0], self.overwritten)
        found = self._tensors(merged)
        return found[0] if merged else found

    def _tensors(self, merged: bool) -> list[Any]:
        tensors = [p if isinstance(p, (LoDTensor, SelectedRows, LoDTensorArray)) else LoDTensor(p) for p in self.parts]
        return [_merged(tensors, self.name)] if merged else tensors


def to_numpy(name: str, value: Any) -> Any:
    """Return a value of a step as NumPy."""
    if isinstance(value, (jax.Array, np.ndarray)):
        return fetched_array(value)
    value = trimmed(value)
    if isinstance(value, SelectedRows):
        return fetched_array(value)
    if isinstance(value, LoDTensorArray):
        return [to_numpy(name, v) for v in value]
    if not isinstance(value, LoDTensor) or value.lod():
        what = f"rows in sequences, lod {value.lod()}" if isinstance(value, LoDTensor) else f"a {type(value).__name__}"
        raise errors.FetchError(
            f"fetch {name}: it holds {what}, which a NumPy array cannot tell: "
            "fetch with return_numpy=False, and read .lod() and np.array() of the result"
        )
    return fetched_array(value)


def to_tensor(value: Any, overwritten: bool) -> Any:
    """Return a LoDTensor, or an array of LoDTensors, for users; a copy if the next step overwrites the value."""
    value = trimmed(value)
    if isinstance(value, LoDTensorArray):
        return LoDTensorArray(to_tensor(v, overwritten) for v in value)
    if isinstance(value, (LoDTensor, SelectedRows)):
        return value
    return LoDTensor(np.array(value) if overwritten else value)


def _merged(parts: list[Any], name: str) -> Any:
    """Concatenate the rows of all values in order."""
    if not all(isinstance(p, LoDTensor) for p in parts):
        raise errors.FetchError(
            f"fetch {name}: the replicas have a {type(parts[0]).__name__} each: fetch with "
            "return_merged=False, which gives a list of the values"
        )
    values = [np.atleast_1d(np.asarray(p.value)) for p in parts]
    if len({v.shape[1:] for v in values}) > 1:
        raise errors.FetchError(
            f"fetch {name}: replicas give shapes {[v.shape for v in values]}, which cannot be joined: "
            "fetch with return_merged=False, which gives a list of the values"
        )
    lod = []
    for levels in zip(*(p._lod for p in parts)):
        ends = np.cumsum([0] + [level[-1] for level in levels])
        lod.append(np.concatenate([[0], *(level[1:] + end for level, end in zip(levels, ends))]))
    return LoDTensor(np.concatenate(values), lod)
