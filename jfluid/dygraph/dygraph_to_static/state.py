"""The variables that branches and loops change, and the tensors that decide."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jfluid import errors
from jfluid.dygraph.dygraph_to_static.structures import is_array
from jfluid.ir.types import VarType
from jfluid.ir.variable import Variable
from jfluid.layers.math_op_patch import astype


@dataclass(frozen=True)
class State:
    """The local variables that a branch or a loop may change.

    Attributes:
        names: names of the variables.
        get, set: read and write all variables, as a tuple.
        read: variables that the function reads elsewhere.
        lists: variables that are lists with an `append`.
    """

    names: tuple[str, ...]
    get: Callable[[], tuple[Any, ...]]
    set: Callable[[tuple[Any, ...]], None]
    read: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()


NO_STATE = State((), tuple, lambda values: None)


def is_tensor(value: Any) -> bool:
    """Return whether a value is known only when the program runs."""
    return isinstance(value, Variable)


def condition(value: Variable) -> Variable:
    """Return a tensor as one that decides. Raises ShapeError where it has several elements."""
    if is_array(value):
        raise TypeError(f"{value.name}: an array of tensors decides nothing; compare its len()")
    if any(d not in (1, -1) for d in value.shape):
        raise errors.ShapeError(
            f"a condition needs one element, found {value.name} of shape {list(value.shape)}: "
            "say fluid.layers.reduce_all or reduce_any"
        )
    return value if value.dtype == VarType.BOOL else astype(value, "bool")
