"""Layers that create variables, parameters and counters, join tensors, and return shapes and extrema."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jfluid.initializer import Constant
from jfluid.ir import unique_name
from jfluid.ir.program import default_main_program
from jfluid.ir.variable import Variable
from jfluid.layers.arrays import is_array, tensor_array_to_tensor
from jfluid.layers.creation import assign, integer, into
from jfluid.layers.helper import LayerHelper, check_variable, emit
from jfluid.param_attr import ParamAttr

__all__ = [
    "argmax",
    "argmin",
    "autoincreased_step_counter",
    "concat",
    "create_global_var",
    "create_parameter",
    "create_tensor",
    "increment",
    "rank",
    "shape",
    "size",
]


def create_tensor(dtype: Any, name: str | None = None, persistable: bool = False) -> Variable:
    """Create a variable without a value, to be written by a layer (`assign(..., output=...)`).

    Args:
        dtype: dtype of the variable.
        name: see `jfluid.layers`.
        persistable: True if the value outlives a run.
    """
    block = default_main_program().current_block()
    name = unique_name.generate("create_tensor") if name is None else name
    return block.create_var(name=name, dtype=dtype, persistable=persistable)


def create_parameter(
    shape: Sequence[int],
    dtype: Any,
    name: str | None = None,
    attr: Any = None,
    is_bias: bool = False,
    default_initializer: Any = None,
) -> Variable:
    """Create a trainable parameter, initialized by the startup program.

    Args:
        shape: all dimensions, known and positive.
        dtype: the element type.
        name: see `jfluid.layers`.
        attr: a ParamAttr; by default with the given name.
        is_bias: True if the default initializer is zero instead of Xavier's.
        default_initializer: used where `attr` names none.

    Raises:
        ValueError: a dimension is unknown or not positive.
        TypeError: `attr` is False.
    """
    helper = LayerHelper("create_parameter", name=name)
    param = helper.create_parameter(
        ParamAttr(name=name) if attr is None else attr, list(shape), dtype, is_bias, default_initializer
    )
    if param is None:
        raise TypeError("layers.create_parameter, attr: expected a ParamAttr, found False, which makes no parameter")
    return param


def create_global_var(
    shape: Sequence[int],
    value: float,
    dtype: Any,
    persistable: bool = False,
    force_cpu: bool = False,
    name: str | None = None,
) -> Variable:
    """Create a variable of the global block, filled with `value` by the startup program.

    It gets no gradient.

    Args:
        shape: all dimensions, known and positive.
        value: value of all elements.
        dtype: dtype of the variable.
        persistable: True if the value outlives a run.
        force_cpu: stays in the program without effect: XLA places values itself.
        name: see `jfluid.layers`.
    """
    helper = LayerHelper("global_var", name=name)
    name = unique_name.generate("_generated_var") if name is None else name
    var = helper.create_global_variable(persistable=persistable, shape=list(shape), dtype=dtype, name=name)
    var.stop_gradient = True
    helper.set_variable_initializer(var, Constant(value=float(value), force_cpu=force_cpu))
    return var


def concat(input: Sequence[Variable] | Variable, axis: int | Variable = 0, name: str | None = None) -> Variable:
    """Join tensors along a dimension.

    Args:
        input: tensors of the same rank, equal in all dimensions but `axis`; or one array (`create_array`), whose
            elements are joined.
        axis: the dimension to join along; negative numbers count from the last. A Variable must be known before
            the run.
        name: see `jfluid.layers`.

    Raises ShapeError if the shapes differ in another dimension.
    """
    given, attrs = _axis(axis)
    inputs: list[Any] = list(input) if isinstance(input, (list, tuple)) else [input]
    if is_array(inputs, "concat"):
        return tensor_array_to_tensor(inputs[0], integer(axis, "axis"), name)[0]
    return emit("concat", {"X": inputs, **given}, attrs, name=name)


def _axis(axis: int | Variable, attr: str = "axis") -> tuple[dict[str, Any], dict[str, Any]]:
    if isinstance(axis, Variable):
        return {"AxisTensor": axis}, {}
    return {}, {attr: integer(axis, attr)}


def shape(input: Variable) -> Variable:
    """Return the shape that `input` has when the program runs: int32 [number of dimensions]."""
    return emit("shape", {"Input": input})


def size(input: Variable) -> Variable:
    """Return the number of elements that `input` has when the program runs: int64 [1]."""
    return emit("size", {"Input": input})


def rank(input: Variable) -> Variable:
    """Return the number of dimensions of `input`: int32 []."""
    check_variable(input, "rank", "input")
    return assign(np.array(len(input.shape), np.int32))


def increment(x: Variable, value: float = 1.0, in_place: bool = True) -> Variable:
    """Add `value` to `x`, a Variable of one element.

    Args:
        x: Variable of one element.
        value: the number to add.
        in_place: True if the sum is written into `x`; otherwise it is a new variable.
    """
    return into(x if in_place else None, "increment", {"X": x}, {"step": float(value)})


def argmax(x: Variable, axis: int = 0) -> Variable:
    """Return the indices (int64) of the largest elements along `axis`, which is removed.

    The first of equal elements is taken.
    """
    return emit("arg_max", {"X": x}, {"axis": axis}, stop_gradient=True)


def argmin(x: Variable, axis: int = 0) -> Variable:
    """Return the indices (int64) of the smallest elements along `axis`, which is removed.

    The first of equal elements is taken.
    """
    return emit("arg_min", {"X": x}, {"axis": axis}, stop_gradient=True)


def autoincreased_step_counter(counter_name: str | None = None, begin: int = 1, step: int = 1) -> Variable:
    """Create a counter, int64 [1], that grows by `step` at the beginning of each run.

    Args:
        counter_name: calls with one name share one counter, which grows once a run;
            "@STEP_COUNTER@" when None.
        begin: its value in the first run.
        step: a whole number.
    """
    name = "@STEP_COUNTER@" if counter_name is None else counter_name
    helper = LayerHelper("global_step_counter")
    block = helper.main_program.global_block()
    if block.has_var(name):
        return block.var(name)
    counter = helper.create_global_variable(persistable=True, shape=[1], dtype="int64", name=name)
    helper.set_variable_initializer(counter, Constant(value=begin - 1, force_cpu=True))
    block.prepend_op(type="increment", inputs={"X": counter}, outputs={"Out": counter}, attrs={"step": float(step)})
    counter.stop_gradient = True
    return counter
