"""Arithmetic, comparison and indexing methods of Variables (`x + 1`, `x < y`, `x[0, :]`)."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.ir import unique_name
from jfluid.ir.program import default_main_program
from jfluid.ir.types import VarType, is_float, var_type
from jfluid.ir.variable import Variable

_OPEN_END = 10_000_000  # Fluid writes this number where a slice has no end
Scaling = Callable[[float], tuple[float, float]]
# Arithmetic with a number that one `scale` operator does: operator -> (scale, bias) for x (op) n,
# for n (op) x.
_SCALES: dict[str, tuple[Scaling | None, Scaling | None]] = {
    "elementwise_add": (lambda n: (1.0, n), lambda n: (1.0, n)),
    "elementwise_sub": (lambda n: (1.0, -n), lambda n: (-1.0, n)),
    "elementwise_mul": (lambda n: (n, 0.0), lambda n: (n, 0.0)),
    "elementwise_div": (lambda n: (1.0 / n, 0.0), None),
}


def _result(op_type: str, inputs: dict[str, Any], attrs: dict[str, Any], name: str = "tmp") -> Variable:
    block = default_main_program().current_block()
    out = block.create_var(name=unique_name.generate(name))
    block.append_op(type=op_type, inputs=inputs, outputs={"Out": out}, attrs=attrs)
    return out


def _constant(like: Variable, value: float, shape: tuple[int, ...] | list[int]) -> Variable:
    """Return a number as a tensor of the dtype of `like`; a -1 in the shape is the batch size of `like`."""
    attrs = {"shape": list(shape), "dtype": int(like.dtype), "value": float(value)}
    if -1 in shape:
        at = list(shape).index(-1)
        out = _result(
            "fill_constant_batch_size_like", {"Input": like}, attrs | {"input_dim_idx": at, "output_dim_idx": at}
        )
    else:
        out = _result("fill_constant", {}, attrs)
    out.stop_gradient = True
    return out


def _of_python(value: Any) -> Any:
    """Convert a NumPy scalar or an array of one element to a Python number; return other values unchanged."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.size == 1):
        return value.item()
    return value


def _number(value: Any, like: Variable) -> float | None:
    """Return the value as a number in the range of the dtype of `like`; None if it is no number."""
    value = _of_python(value)
    if not isinstance(value, (int, float)):
        return None
    if isinstance(value, float) and not is_float(like.dtype) and not value.is_integer():
        raise errors.AttributeTypeError(
            f"{like.name} holds {like.dtype.name}: the number {value} has to be an integer; cast the Variable first"
        )
    return value


def _operand(y: Any, x: Variable, what: str) -> Variable:
    if not isinstance(y, Variable):
        raise errors.AttributeTypeError(
            f"{what}: expected a Variable or a number beside {x.name}, found {type(y).__name__}"
        )
    return y if y.dtype == x.dtype else astype(y, x.dtype)


def _axis(y: Variable) -> int:
    return 0 if y.shape and y.shape[0] == -1 else -1


def binary(op_type: str, x: Variable, y: Any, reverse: bool = False) -> Variable:
    """Append `x (op) y`, or with `reverse` `y (op) x`, of a Variable and a Variable or number.

    A number becomes a `scale` operator where one suffices, else a constant tensor. A Variable of
    another dtype is converted to that of `x`.

    Raises AttributeTypeError if `y` is neither, or a fraction beside integers.
    """
    number = _number(y, x)
    if number is not None:
        as_scale = _SCALES.get(op_type, (None, None))[reverse]
        if as_scale and (op_type != "elementwise_div" or (is_float(x.dtype) and number != 0)):
            scale, bias = as_scale(number)
            return _result("scale", {"X": x}, {"scale": float(scale), "bias": float(bias)})
        y = _constant(x, number, x.shape if reverse else [1])
    y = _operand(y, x, op_type)
    if reverse:
        x, y = y, x
    return _result(op_type, {"X": x, "Y": y}, {"axis": _axis(y)})


def compare(op_type: str, x: Variable, y: Any) -> Variable:
    """Append the comparison `x (op) y` of a Variable with a Variable or number; the result is boolean.

    Raises AttributeTypeError if `y` is neither.
    """
    y = _of_python(y)
    if isinstance(y, (int, float)):
        y = _constant(x, float(y), [1])
    out = _result(op_type, {"X": x, "Y": _operand(y, x, op_type)}, {"axis": _axis(y)})
    out.stop_gradient = True
    return out


def negate(x: Variable) -> Variable:
    """Append `-x`."""
    return _result("scale", {"X": x}, {"scale": -1.0, "bias": 0.0})


def astype(x: Variable, dtype: Any) -> Variable:
    """Convert `x` to `dtype`."""
    return _result("cast", {"X": x}, {"in_dtype": int(x.dtype), "out_dtype": int(var_type(dtype))})


def getitem(x: Variable, index: Any) -> Variable:
    """Append `x[index]`, for integers, slices, `...` and integer Variables of one element (as positions or bounds).

    An integer drops its dimension, except the last one that is left: the result never has rank 0. A
    step may be any number but 0, and no Variable.

    Raises:
        AttributeTypeError: the index is of a different type.
        ShapeError: there are more indices than dimensions.
        PositionError: a position is outside, which is an IndexError.
    """
    entries = _entries(x, index)
    cuts: dict[int, tuple[Any, Any, int]] = {}
    dropped, reversed_axes = [], []
    for axis, entry in enumerate(entries):
        if not isinstance(entry, slice):
            dropped.append(axis)
            cuts[axis] = (entry, _next(entry), 1)
            continue
        step = 1 if entry.step is None else entry.step
        if not isinstance(step, (int, np.integer)) or step == 0:
            raise errors.AttributeTypeError(f"the step of an index has to be an integer other than 0, found {step!r}")
        if step < 0 and entry.start is None and entry.stop is None:
            reversed_axes.append(axis)
            step = -step
        if entry.start is None and entry.stop is None and step == 1:
            continue
        start = (-1 if step < 0 else 0) if entry.start is None else entry.start
        stop = (-_OPEN_END if step < 0 else _OPEN_END) if entry.stop is None else entry.stop
        cuts[axis] = (start, stop, int(step))
    if reversed_axes:
        x = _result("reverse", {"X": x}, {"axis": reversed_axes}, x.name + "_slice_reverse")
    return _cut(x, cuts, dropped) if cuts else x


def _entries(x: Variable, index: Any) -> list[Any]:
    """Return one position or slice for each leading dimension."""
    entries = list(index) if isinstance(index, tuple) else [index]
    dots = [i for i, e in enumerate(entries) if e is Ellipsis]
    if len(entries) - len(dots) > len(x.shape) or len(dots) > 1:
        raise errors.ShapeError(f"index {index!r} has too many entries for {x.name} of shape {list(x.shape)}")
    if dots:
        missing = len(x.shape) - len(entries) + 1
        entries[dots[0] : dots[0] + 1] = [slice(None)] * missing
    for entry in entries:
        bounds = (entry.start, entry.stop) if isinstance(entry, slice) else (entry,)
        if not all(b is None or isinstance(b, (int, np.integer, Variable)) for b in bounds) or bounds == (None,):
            raise errors.AttributeTypeError(
                f"{x.name} is indexed by integers, slices, `...` and integer Variables, found {entry!r}"
            )
        for bound in bounds:
            if isinstance(bound, Variable):
                _check_position(bound)
    for axis, (entry, size) in enumerate(zip(entries, x.shape, strict=False)):
        if isinstance(entry, (int, np.integer)) and not (size < 0 or -size <= entry < size):
            raise errors.PositionError(f"{x.name} of shape {list(x.shape)} has no position {entry} in dimension {axis}")
    return entries


def _check_position(position: Variable) -> None:
    if is_float(position.dtype) or position.dtype == VarType.BOOL:
        raise errors.AttributeTypeError(
            f"an index has to be an integer, found {position.name} of {position.dtype.name} (layers.where and "
            "layers.gather_nd take elements by a condition)"
        )
    if math.prod(position.shape) > 1:
        raise errors.ShapeError(
            f"an index has to be one integer, found {position.name} of shape {list(position.shape)} "
            "(layers.gather takes several)"
        )


def _next(position: Any) -> Any:
    """Return the end of the slice that holds one position."""
    if isinstance(position, Variable):
        return _result(
            "elementwise_add", {"X": position, "Y": _one_number(1, position.dtype)}, {"axis": -1}, "_generated_var"
        )
    return _OPEN_END if position == -1 else position + 1


def _one_number(value: int, dtype: VarType = VarType.INT32) -> Variable:
    return _result(
        "fill_constant",
        {},
        {"shape": [1], "dtype": int(dtype), "value": float(value), "force_cpu": True},
        "_generated_var",
    )


def _cut(x: Variable, cuts: dict[int, tuple[Any, Any, int]], dropped: list[int]) -> Variable:
    strided = any(step != 1 for _, _, step in cuts.values())
    groups = {"starts": [c[0] for c in cuts.values()], "ends": [c[1] for c in cuts.values()]}
    inputs: dict[str, Any] = {"Input": x}
    attrs: dict[str, Any] = {
        "axes": list(cuts),
        "decrease_axis": dropped,
        "infer_flags": [-1 if any(isinstance(b, Variable) for b in c[:2]) else 1 for c in cuts.values()],
    }
    for attr, values in groups.items():
        if any(isinstance(v, Variable) for v in values):
            inputs[attr.capitalize() + "TensorList"] = [
                v if isinstance(v, Variable) else _one_number(int(v)) for v in values
            ]
        attrs[attr] = [-1 if isinstance(v, Variable) else int(v) for v in values]
    if not strided:
        return _result("slice", inputs, attrs, x.name + "_slice")
    attrs["strides"] = [c[2] for c in cuts.values()]
    return _result("strided_slice", inputs, attrs, x.name + "_strided_slice")


def iterate(x: Variable) -> Iterator[Variable]:
    """Yield `x[0]`, `x[1]`, and so on. Raises TypeError if the first dimension is unknown."""
    if not x.shape or x.shape[0] < 0:
        raise TypeError(f"{x.name} of shape {list(x.shape)} cannot be iterated: its first dimension is unknown")
    return (getitem(x, i) for i in range(x.shape[0]))


def _arithmetic(op_type: str, reverse: bool) -> Callable[[Variable, Any], Variable]:
    return lambda x, y: binary(op_type, x, y, reverse)


def _comparison(op_type: str) -> Callable[[Variable, Any], Any]:
    def method(x: Variable, y: Any) -> Any:
        # Anything else (None, a string) is not equal, as for every object.
        return (
            compare(op_type, x, y) if isinstance(y, (Variable, int, float, np.generic, np.ndarray)) else NotImplemented
        )

    return method


_ARITHMETIC = {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "truediv": "div",
    "pow": "pow",
    "floordiv": "floordiv",
    "mod": "mod",
}
_COMPARISONS = {
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less_than",
    "le": "less_equal",
    "gt": "greater_than",
    "ge": "greater_equal",
}


def install() -> None:
    """Give the class Variable its operators."""
    for method, op_type in _ARITHMETIC.items():
        setattr(Variable, f"__{method}__", _arithmetic(f"elementwise_{op_type}", False))
        setattr(Variable, f"__r{method}__", _arithmetic(f"elementwise_{op_type}", True))
    for method, op_type in _COMPARISONS.items():
        setattr(Variable, f"__{method}__", _comparison(op_type))
    for method, function in (("__neg__", negate), ("__getitem__", getitem), ("__iter__", iterate), ("astype", astype)):
        setattr(Variable, method, function)
    setattr(Variable, "__array_ufunc__", None)  # noqa: B010  `np.float32(2) * x` is Variable's business, not NumPy's
