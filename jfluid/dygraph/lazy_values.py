"""Values of eager variables: arrays, or outputs of recorded operators."""

import itertools
import weakref
from typing import Any

import jax
import numpy as np

from jfluid.compile.rewrites.traced_value import Order, inverse
from jfluid.compile.runtime import filter_layouts
from jfluid.ir.types import VarType


class Aval:
    """Structure, shapes and dtypes of a value, without its numbers.

    Equal kinds share one object, so that a comparison compares two numbers.

    Attributes:
        number: number of the object.
        type: Fluid's number of the dtype, set on first use.
        shape, dtype: of the array; for a sparse gradient of the whole table.
        plain: True if the value is one array.
        large: True if the value is one array with enough elements for donation.
    """

    __slots__ = (
        "__weakref__",
        "dtype",
        "large",
        "number",
        "plain",
        "shape",
        "struct",
        "type",
    )

    def __init__(self, struct: Any, number: int):
        self.struct, self.number = struct, number
        self.type: VarType | None = None
        self.shape, self.dtype = tuple(struct.shape), np.dtype(struct.dtype)
        self.plain = isinstance(struct, jax.ShapeDtypeStruct)
        self.large = self.plain and struct.size > 64


# Avals with a reference
_avals: weakref.WeakValueDictionary[Any, Aval] = weakref.WeakValueDictionary()
_numbers = itertools.count()


def aval_of(value: Any) -> Aval:
    """Return the Aval of an array, a pytree of arrays, or a result of `jax.eval_shape`.

    A pytree has `shape` and `dtype`.
    """
    if isinstance(value, (np.ndarray, jax.Array, jax.ShapeDtypeStruct)):
        key: Any = (value.shape, value.dtype)
        found = _avals.get(key)
        if found is None:
            struct = jax.ShapeDtypeStruct(value.shape, value.dtype)
            found = _avals[key] = Aval(struct, next(_numbers))
        return found
    leaves, tree = jax.tree.flatten(value)
    key = (tree, tuple((v.shape, v.dtype) for v in leaves))
    found = _avals.get(key)
    if found is None:
        struct = jax.tree.unflatten(tree, [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in leaves])
        found = _avals[key] = Aval(struct, next(_numbers))
    return found


class LazyValue:
    """Value of a variable.

    Attributes:
        aval: shape and dtype.
        array: array (or pytree of arrays); None until the operator of the value has run.
        order: layout of `array` if it differs from the variable's layout.
        known: True if the value follows from shapes and attributes alone.
        owner: inputs of the lazy graph that reads or computes the value.
        source: name of the value in that graph: number of an output from 0, of an input by -1 and less.
    """

    __slots__ = (
        "__weakref__",
        "array",
        "aval",
        "known",
        "order",
        "owner",
        "source",
    )

    def __init__(self, aval: Aval, array: Any = None, source: int = 0, owner: Any = None):
        self.aval, self.array, self.owner, self.source = aval, array, owner, source
        self.order: Order | None = None
        self.known = False


def in_order(array: Any, order: Order | None) -> Any:
    """Transpose an array from a layout to the variable's layout."""
    return array if order is None else filter_layouts.turned(array, inverse(order))


def constant(array: Any, known: bool = False) -> LazyValue:
    """Return the LazyValue of an array."""
    made = LazyValue(aval_of(array), array)
    made.known = known
    return made
