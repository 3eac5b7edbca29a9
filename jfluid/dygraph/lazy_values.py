"""Values of eager variables: arrays, or what a pending operator will give."""

import itertools
import weakref
from typing import Any

import jax
import numpy as np

from jfluid.compile import filter_orders
from jfluid.compile.traced_value import Order, inverse
from jfluid.ir.types import VarType


class Aval:
    """The structure, shapes and dtypes of a value, without its numbers.

    There is one object for each kind, so that comparing two is comparing their `number`.

    Attributes:
        number: of the object.
        type: Fluid's number of its dtype, once it was asked for.
        shape, dtype: of the array; of a sparse gradient those of the whole table.
        plain: whether it is one array.
        bytes: of the array; 0 where it is not one.
        large: whether it is one array of so many elements that to write over it is worth while.
    """

    __slots__ = (
        "__weakref__",
        "bytes",
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
        self.bytes = struct.size * self.dtype.itemsize if self.plain else 0
        self.large = self.plain and struct.size > 64


# those that somebody holds
_avals: weakref.WeakValueDictionary[Any, Aval] = weakref.WeakValueDictionary()
_numbers = itertools.count()


def aval_of(value: Any) -> Aval:
    """Return the Aval of an array, of a pytree of arrays with `shape` and `dtype`, or of what
    `jax.eval_shape` gives for them.
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
    """What a variable holds.

    Attributes:
        aval: its shape and dtype.
        array: the array (or pytree of arrays); None while the operator that gives it is pending.
        order: the order that the dimensions of `array` are in, where it is another than the variable's.
        known: whether it follows from shapes and attributes alone.
        owner: the inputs of what is pending, which reads it or gives it.
        source: how what is pending names it: as an output by its number, from 0, as an input by -1 and
            less; of meaning to `owner` alone.
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
    """Return an array whose dimensions are held in an order with them in the variable's."""
    return array if order is None else filter_orders.turned(array, inverse(order))


def constant(array: Any, known: bool = False) -> LazyValue:
    """Return the value that an array is."""
    made = LazyValue(aval_of(array), array)
    made.known = known
    return made
