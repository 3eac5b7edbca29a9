"""Python numbers as variables of a program, for numbers that change in loops and branches of tensors.

As in Fluid an int is int64, a float float64. Beside a tensor a number takes the tensor's type, as in NumPy.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from jfluid.ir import unique_name
from jfluid.ir.program import default_main_program
from jfluid.ir.types import VarType, is_float
from jfluid.ir.variable import Variable
from jfluid.layers.math_op_patch import astype

_EXACT = 2**53  # integers beyond are not all floats


class NumberVariable(Variable):
    """A variable that a Python number has become: int64, float64 or bool."""

    if True:  # `==` is given below, with the other comparisons
        __hash__ = object.__hash__


def is_number(value: Any) -> bool:
    """Return whether it is a Python or NumPy number."""
    return isinstance(value, (bool, int, float, np.number, np.bool_))


def dtype_of(value: Any) -> VarType:
    """Return the type that a Python number has as a variable."""
    if isinstance(value, (bool, np.bool_)):
        return VarType.BOOL
    return VarType.INT64 if isinstance(value, (int, np.integer)) else VarType.FP64


def number(value: Any, dtype: VarType | None = None, shape: tuple[int, ...] = (1,)) -> Variable:
    """Append a constant to the current block; a NumberVariable if no `dtype` is given."""
    block = default_main_program().current_block()
    kind = NumberVariable if dtype is None else Variable
    out = kind(block, name=unique_name.generate("python_number"))
    block.vars[out.name] = out
    dtype = dtype_of(value) if dtype is None else dtype
    attrs = {"shape": list(shape), "dtype": int(dtype), "value": float(value)}
    if abs(value) > _EXACT and dtype == VarType.INT64:
        attrs["str_value"] = str(int(value))
    block.append_op("fill_constant", {}, {"Out": out}, attrs)
    return out


def _fitted(x: "NumberVariable", other: Any, true_division: bool) -> tuple[Any, Any]:
    """Convert operands to the types that Python's arithmetic gives."""
    mine: Any = x
    if isinstance(other, Variable):
        if isinstance(other, NumberVariable):
            if is_float(other.dtype) and not is_float(x.dtype):
                mine = astype(x, other.dtype)
            elif is_float(x.dtype) and not is_float(other.dtype):
                other = astype(other, x.dtype)
        elif is_float(x.dtype) and not is_float(other.dtype):
            other = astype(other, x.dtype)
        elif other.dtype != x.dtype:
            mine = astype(x, other.dtype)
    elif is_float(dtype_of(other)) and not is_float(x.dtype):
        mine = astype(x, VarType.FP64)
    if true_division and not is_float(mine.dtype):
        mine = astype(mine, VarType.FP64)
        if isinstance(other, Variable):
            other = astype(other, VarType.FP64)
    return mine, other


def _operator(name: str, compares: bool) -> Callable[[Any, Any], Any]:
    plain = getattr(Variable, f"__{name}__")

    def method(x: NumberVariable, other: Any) -> Any:
        if not isinstance(other, Variable) and not is_number(other):
            return NotImplemented
        weak = not isinstance(other, Variable) or isinstance(other, NumberVariable)
        mine, theirs = _fitted(x, other, name.endswith("truediv"))
        if isinstance(theirs, Variable) and name in _REFLECTED:
            out = getattr(Variable, f"__{_REFLECTED[name]}__")(theirs, mine)
        else:
            out = plain(mine, theirs)
        if weak and not compares:
            out.__class__ = NumberVariable
        return out

    return method


_ARITHMETIC = ("add", "sub", "mul", "truediv", "pow", "floordiv", "mod")
_REFLECTED = {f"r{name}": name for name in _ARITHMETIC}
for _name in (*_ARITHMETIC, *_REFLECTED):
    setattr(NumberVariable, f"__{_name}__", _operator(_name, False))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(NumberVariable, f"__{_name}__", _operator(_name, True))
