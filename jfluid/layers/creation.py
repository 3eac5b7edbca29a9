"""Layers that create tensors: constants, copies, casts, ranges, diagonals.

A parameter `shape` is a list of integers, a list of integers and Variables of one element, or a
Variable that holds them all. Such Variables must follow from shapes and constants, since XLA
compiles for known shapes.
"""

from collections.abc import Sequence
from operator import index as as_integer
from typing import Any, Unpack

import numpy as np

from jfluid import errors
from jfluid.ir.types import VarType, is_float, var_type
from jfluid.ir.variable import Variable
from jfluid.layers.helper import EmitOptions, LayerHelper, check_variable, emit

__all__ = [
    "arange",
    "assign",
    "cast",
    "diag",
    "diag_embed",
    "eye",
    "fill_constant",
    "fill_constant_batch_size_like",
    "full",
    "full_like",
    "linspace",
    "ones",
    "ones_like",
    "range",
    "zeros",
    "zeros_like",
]

Integers = Sequence[int | Variable] | Variable


def integers(
    value: Integers, attr: str, tensor_slot: str, list_slot: str, what: str, dtype: str = "int32"
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the inputs and attributes of an operator for a list of integers and Variables.

    Args:
        value: a list of integers and Variables, or a Variable.
        attr: the attribute for a list of integers alone.
        tensor_slot: the input for a Variable with all integers.
        list_slot: the input for a list with Variables in it.
        what: the layer and its argument, for errors.
        dtype: dtype of the constants for integers in `list_slot`.

    Raises AttributeTypeError for an entry that is neither an integer nor a Variable.
    """
    if isinstance(value, Variable):
        return {tensor_slot: value}, {}
    if not isinstance(value, (list, tuple, np.ndarray)):
        raise errors.AttributeTypeError(f"{what}: expected a list of integers or a Variable, found {value!r}")
    if not any(isinstance(v, Variable) for v in value):
        return {}, {attr: [integer(v, what) for v in value]}
    tensors = [
        v if isinstance(v, Variable) else fill_constant([1], dtype, integer(v, what), force_cpu=True) for v in value
    ]
    return {list_slot: tensors}, {attr: [-1 if isinstance(v, Variable) else integer(v, what) for v in value]}


def integer(value: Any, what: str) -> int:
    """Return `value` as an integer, or raise AttributeTypeError.

    Args:
        what: the beginning of the message.
    """
    try:
        return as_integer(value)
    except TypeError:
        raise errors.AttributeTypeError(f"{what}: expected an integer or a Variable, found {value!r}") from None


def into(
    out: Variable | None,
    op_type: str,
    inputs: dict[str, Any],
    attrs: dict[str, Any] | None = None,
    **options: Unpack[EmitOptions],
) -> Variable:
    """Append an operator like `emit`, and write into `out` if given.

    Raises AttributeTypeError if `out` is no Variable.
    """
    if out is None:
        return emit(op_type, inputs, attrs, **options)
    if not isinstance(out, Variable):
        raise errors.AttributeTypeError(f"{op_type}: expected out to be a Variable, found {type(out).__name__}")
    LayerHelper(op_type).append_op(
        type=op_type, inputs={s: v for s, v in inputs.items() if v is not None}, outputs={"Out": out}, attrs=attrs or {}
    )
    if options.get("stop_gradient"):
        out.stop_gradient = True
    return out


def cast(x: Variable, dtype: Any) -> Variable:
    """Convert `x` to `dtype`; the gradient is converted back."""
    check_variable(x, "cast", "x")
    return emit("cast", {"X": x}, {"in_dtype": int(x.dtype), "out_dtype": int(var_type(dtype))})


_VALUES = {
    VarType.BOOL: "bool_values",
    VarType.FP32: "fp32_values",
    VarType.INT32: "int32_values",
    VarType.INT64: "int64_values",
}


def assign(input: Variable | np.ndarray, output: Variable | None = None) -> Variable:
    """Copy a Variable, or create a constant from a NumPy array, which is stored in the program.

    Args:
        input: a Variable, or an array of bool, float32, int32 or int64.
        output: the variable to write; a new variable when None.

    Raises AttributeTypeError for any other input.
    """
    if isinstance(input, Variable):
        return into(output, "assign", {"X": input})
    if not isinstance(input, np.ndarray):
        raise errors.AttributeTypeError(
            f"assign: expected input to be a Variable or a NumPy array, found {type(input).__name__}"
        )
    slot = _VALUES.get(var_type(input.dtype))
    if slot is None:
        raise errors.AttributeTypeError(
            f"assign: expected an array of bool, float32, int32 or int64, found {input.dtype}"
        )
    attrs = {
        "shape": list(input.shape),
        "dtype": int(var_type(input.dtype)),
        slot: [v.item() for v in (input.astype(np.int32) if slot == "bool_values" else input).ravel()],
    }
    return into(output, "assign_value", {}, attrs, layer="assign")


def fill_constant(
    shape: Integers, dtype: Any, value: float | Variable, force_cpu: bool = False, out: Variable | None = None
) -> Variable:
    """Return a constant tensor. It gets no gradient.

    Args:
        shape: integers, integers and Variables mixed, or a Variable that holds them all. Variables
            must follow from shapes and constants, since XLA compiles for known shapes.
        dtype: the element type.
        value: a number, or a Variable of one element.
        force_cpu: stays in the program without effect: XLA places values itself.
        out: the variable to write; a new variable when None.

    Raises AttributeTypeError if an entry of `shape` is neither an integer nor a Variable.
    """
    return _filled(shape, dtype, value, force_cpu, out, "fill_constant")


def _text(value: float, dtype: Any) -> str:
    return str(float(value)) if is_float(dtype) else str(int(value))


def _filled(
    shape: Integers, dtype: Any, value: Any, force_cpu: bool, out: Variable | None, layer: str, name: str | None = None
) -> Variable:
    inputs, attrs = integers(shape, "shape", "ShapeTensor", "ShapeTensorList", f"{layer}, shape")
    attrs |= {"dtype": int(var_type(dtype)), "force_cpu": force_cpu}
    if isinstance(value, Variable):
        inputs["ValueTensor"] = value
    else:
        attrs |= {"value": float(value), "str_value": _text(value, dtype)}
    return into(out, "fill_constant", inputs, attrs, layer=layer, name=name, stop_gradient=True)


def fill_constant_batch_size_like(
    input: Variable,
    shape: Sequence[int],
    dtype: Any,
    value: float,
    input_dim_idx: int = 0,
    output_dim_idx: int = 0,
    force_cpu: bool = False,
) -> Variable:
    """Return a constant tensor with one dimension taken from `input`.

    It gets no gradient.

    Args:
        input: the tensor that the dimension is taken from.
        shape: integers; the integer at `output_dim_idx` is replaced.
        dtype: dtype of the result.
        value: value of all elements.
        input_dim_idx: index of the dimension of `input`.
        output_dim_idx: index of the dimension of the result.
        force_cpu: stays in the program without effect: XLA places values itself.
    """
    check_variable(input, "fill_constant_batch_size_like", "input")
    attrs = {
        "shape": list(shape),
        "dtype": int(var_type(dtype)),
        "value": float(value),
        "str_value": _text(value, dtype),
        "input_dim_idx": input_dim_idx,
        "output_dim_idx": output_dim_idx,
        "force_cpu": force_cpu,
    }
    return emit("fill_constant_batch_size_like", {"Input": input}, attrs, stop_gradient=True)


def check_device(device: str | None, what: str) -> None:
    """Raise AttributeTypeError unless `device` is a name that Fluid takes: None, "cpu", "gpu"."""
    if device not in (None, "cpu", "gpu"):
        raise errors.AttributeTypeError(f"{what}: expected device to be None, 'cpu' or 'gpu', found {device!r}")


def full(
    shape: Integers,
    fill_value: float | Variable,
    out: Variable | None = None,
    dtype: Any = None,
    device: str | None = None,
    stop_gradient: bool = True,
    name: str | None = None,
) -> Variable:
    """Return a constant tensor.

    Args:
        shape: see `fill_constant`.
        fill_value: a number, or a Variable of one element.
        out: the variable to write; a new variable when None.
        dtype: the element type; float32 when None.
        device: None, "cpu" or "gpu". It is checked and has no effect: the whole program runs on the Executor's
            place.
        stop_gradient: True if no gradient flows to the result.
        name: see `jfluid.layers`.

    Raises AttributeTypeError for a different device, and for a shape that is none.
    """
    check_device(device, "full")
    result = _filled(shape, "float32" if dtype is None else dtype, fill_value, False, out, "full", name)
    result.stop_gradient = stop_gradient
    return result


def full_like(
    input: Variable,
    fill_value: float,
    out: Variable | None = None,
    dtype: Any = None,
    device: str | None = None,
    stop_gradient: bool = True,
    name: str | None = None,
) -> Variable:
    """Return a constant tensor of the shape of `input`.

    Args:
        input: the tensor that gives the shape.
        fill_value: a number.
        out: the variable to write; a new variable when None.
        dtype: the element type; that of `input` when None.
        device: None, "cpu" or "gpu". It is checked and has no effect: the whole program runs on the Executor's
            place.
        stop_gradient: True if no gradient flows to the result.
        name: see `jfluid.layers`.

    Raises AttributeTypeError for a different device.
    """
    check_variable(input, "full_like", "input")
    check_device(device, "full_like")
    attrs = {"value": float(fill_value), "dtype": int(input.dtype if dtype is None else var_type(dtype))}
    result = into(out, "fill_any_like", {"X": input}, attrs, layer="full_like", name=name)
    result.stop_gradient = stop_gradient
    return result


def zeros(shape: Integers, dtype: Any, force_cpu: bool = False) -> Variable:
    """Return a tensor of zeros; for the arguments see `fill_constant`."""
    return fill_constant(shape, dtype, 0.0, force_cpu)


def ones(shape: Integers, dtype: Any, force_cpu: bool = False) -> Variable:
    """Return a tensor of ones; for the arguments see `fill_constant`."""
    return fill_constant(shape, dtype, 1.0, force_cpu)


def zeros_like(x: Variable, out: Variable | None = None) -> Variable:
    """Return zeros of the shape and dtype of `x`, written into `out` if given."""
    return into(out, "fill_zeros_like", {"X": x}, layer="zeros_like", stop_gradient=True)


def ones_like(x: Variable, out: Variable | None = None) -> Variable:
    """Return ones of the shape and dtype of `x`; write the ones into `out` if given."""
    return into(out, "fill_any_like", {"X": x}, {"value": 1.0}, layer="ones_like")


def _as_tensor(value: float | Variable, dtype: Any) -> Variable:
    if not isinstance(value, Variable):
        return fill_constant([1], dtype, value)
    return value if value.dtype == var_type(dtype) else cast(value, dtype)


def range(start: float | Variable, end: float | Variable, step: float | Variable, dtype: Any) -> Variable:
    """Return the vector of numbers from `start` up to `end`, exclusive, by `step`.

    The size must be known before the run. It gets no gradient.

    Args:
        start: a number, or a Variable of one element that is computed from shapes and constants.
        end: see `start`.
        step: see `start`; it may be negative.
        dtype: dtype of the result.

    Raises OpError when the program runs, if `end` is not reached or a bound depends on fed data.
    """
    inputs = {"Start": _as_tensor(start, dtype), "End": _as_tensor(end, dtype), "Step": _as_tensor(step, dtype)}
    return emit("range", inputs, stop_gradient=True)


def arange(
    start: float | Variable,
    end: float | Variable,
    step: float | Variable = 1,
    dtype: Any = None,
    name: str | None = None,
) -> Variable:
    """Return the numbers from `start` up to `end`, without `end`, by `step`, as `range` does.

    Args:
        start: a number, or a Variable of one element.
        end: see `start`.
        step: see `start`.
        dtype: dtype of the result; float32 when None.
        name: no effect, as in Fluid.
    """
    return range(start, end, step, "float32" if dtype is None else dtype)


def linspace(start: float | Variable, stop: float | Variable, num: int | Variable, dtype: Any) -> Variable:
    """Return `num` evenly spaced numbers from `start` to `stop`, both included: [num].

    Args:
        start: a number, or a Variable of one element.
        stop: the last number, like `start`.
        num: a number, or a Variable of one element computed from shapes and constants.
        dtype: of the result.
    """
    inputs = {"Start": _as_tensor(start, dtype), "Stop": _as_tensor(stop, dtype), "Num": _as_tensor(num, "int32")}
    return emit("linspace", inputs)


def eye(
    num_rows: int, num_columns: int | None = None, batch_shape: Sequence[int] | None = None, dtype: Any = "float32"
) -> Variable:
    """Return an identity matrix [*batch_shape, num_rows, num_columns].

    It gets no gradient.

    Args:
        num_rows: the number of rows.
        num_columns: the number of columns; `num_rows` when None.
        batch_shape: dimensions over which the matrix is repeated.
        dtype: dtype of the result.

    Raises AttributeTypeError if a size is negative or no integer.
    """
    columns = num_rows if num_columns is None else num_columns
    if any(not isinstance(n, (int, np.integer)) or n < 0 for n in (num_rows, columns)):
        raise errors.AttributeTypeError(f"eye: expected sizes of at least 0, found {num_rows} and {columns}")
    out = emit(
        "eye", {}, {"num_rows": num_rows, "num_columns": columns, "dtype": int(var_type(dtype))}, stop_gradient=True
    )
    for count in reversed(batch_shape or ()):
        if not isinstance(count, (int, np.integer)) or count <= 0:
            raise errors.AttributeTypeError(f"eye: expected batch_shape of positive integers, found {batch_shape}")
        out = emit("stack", {"X": [out] * count}, {"axis": 0}, outs=("Y",))
    return out


def diag(diagonal: Variable | np.ndarray) -> Variable:
    """Return a square matrix [n, n] with the vector `diagonal` [n] on its diagonal.

    It gets no gradient.
    """
    return emit(
        "diag", {"Diagonal": diagonal if isinstance(diagonal, Variable) else assign(diagonal)}, stop_gradient=True
    )


def diag_embed(input: Variable | np.ndarray, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Variable:
    """Return matrices with the last dimension of `input` on the diagonal, zero elsewhere.

    The result gets no gradient.

    Args:
        input: vectors [..., n].
        offset: which diagonal: 0 is the main one, positive numbers lie above it, negative ones below.
        dim1: index of the first new dimension in the result, of rank one above `input`.
        dim2: index of the second new dimension.

    Raises ShapeError if these are not two different dimensions of the result.
    """
    rank_ = len(input.shape) + 1
    if not all(-rank_ <= d < rank_ for d in (dim1, dim2)) or dim1 % rank_ == dim2 % rank_:
        raise errors.ShapeError(f"diag_embed: expected two different dimensions of {rank_}, found {dim1} and {dim2}")
    return emit(
        "diag_embed",
        {"Input": input if isinstance(input, Variable) else assign(input)},
        {"offset": offset, "dim1": dim1, "dim2": dim2},
        stop_gradient=True,
    )
