"""Nested lists, tuples and dicts of tensors, and names that are not bound yet."""

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from jfluid.ir.types import VarType
from jfluid.ir.variable import Variable


class Undefined:
    """The value of a local name before it is bound: every use raises UnboundLocalError."""

    def __init__(self, name: str):
        self._name = name

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise UnboundLocalError(f"local variable {self._name!r} is read before it has a value")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()

    def __repr__(self) -> str:
        return f"<no value for {self._name}>"


for _name in (
    *(
        "bool",
        "call",
        "iter",
        "len",
        "getitem",
        "setitem",
        "contains",
        "neg",
        "float",
        "int",
        "index",
    ),
    *(
        "add",
        "radd",
        "sub",
        "rsub",
        "mul",
        "rmul",
        "truediv",
        "rtruediv",
        "pow",
        "rpow",
        "mod",
        "rmod",
    ),
    *("floordiv", "rfloordiv", "matmul", "lt", "le", "gt", "ge"),
):
    setattr(Undefined, f"__{_name}__", Undefined._refuse)


def is_array(value: Any) -> bool:
    """Return whether it is an array of tensors (`layers.create_array`)."""
    return isinstance(value, Variable) and value.type == VarType.LOD_TENSOR_ARRAY


def is_container(value: Any) -> bool:
    """Return whether `mapped` looks inside."""
    return type(value) in (list, tuple, dict) or (
        isinstance(value, (list, tuple, Mapping)) and not isinstance(value, Variable)
    )


def same_structure(a: Any, b: Any) -> bool:
    """Return whether two values differ in their leaves alone."""
    if not is_container(a) or not is_container(b):
        return not is_container(a) and not is_container(b)
    if type(a) is not type(b) or len(a) != len(b):
        return False
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(same_structure(a[k], b[k]) for k in a)
    return all(map(same_structure, a, b))


def mapped(function: Callable[..., Any], *values: Any) -> Any:
    """Apply a function to the leaves of equal structures, and return the new structure."""
    first = values[0]
    if not is_container(first):
        return function(*values)
    if isinstance(first, Mapping):
        kind: Any = type(first)
        return kind((k, mapped(function, *(v[k] for v in values))) for k in first)
    parts = [mapped(function, *p) for p in zip(*values)]
    kind = type(first)
    return kind(*parts) if hasattr(first, "_fields") else kind(parts)


def leaves(value: Any) -> list[Any]:
    """Return the leaves of a structure, in the order of `mapped`."""
    found: list[Any] = []
    mapped(found.append, value)
    return found
