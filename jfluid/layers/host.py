"""Layers that run Python between compiled parts of the program.

Each one divides the compiled step in two and copies its values to the host and back.
"""

from collections.abc import Callable, Sequence
from typing import Any

from jfluid import errors
from jfluid.ir import callables
from jfluid.ir.variable import Variable
from jfluid.layers.helper import LayerHelper, check_variable, emit

__all__ = ["Print", "py_func"]

Variables = Variable | Sequence[Variable] | None


def Print(
    input: Variable,
    first_n: int = -1,
    message: str | None = None,
    summarize: int = 20,
    print_tensor_name: bool = True,
    print_tensor_type: bool = True,
    print_tensor_shape: bool = True,
    print_tensor_lod: bool = True,
    print_phase: str = "both",
) -> Variable:
    """Print a tensor to standard output at each computation, and return it.

    Args:
        input: the tensor.
        first_n: print only the first `first_n` times; -1 for always.
        message: is printed before the tensor.
        summarize: how many elements are printed; -1 for all.
        print_tensor_name: True to print the variable's name.
        print_tensor_type: True to print the dtype.
        print_tensor_shape: True to print the shape.
        print_tensor_lod: True to print the LoD.
        print_phase: "forward" (the value), "backward" (its gradient) or "both".

    Raises ProgramError for another `print_phase`.
    """
    check_variable(input, "Print", "input")
    if print_phase.lower() not in ("forward", "backward", "both"):
        raise errors.ProgramError(f"Print, print_phase: expected forward, backward or both, found {print_phase!r}")
    attrs = {
        "first_n": first_n,
        "message": message or "",
        "summarize": summarize,
        "print_tensor_name": print_tensor_name,
        "print_tensor_type": print_tensor_type,
        "print_tensor_shape": print_tensor_shape,
        "print_tensor_lod": print_tensor_lod,
        "print_phase": print_phase.upper(),
        "is_forward": True,
    }
    out = emit("print", {"In": input}, attrs, layer=f"print_{input.name}")
    out.set_shape_dtype(input.shape, input.dtype)
    out.lod_level = input.lod_level
    return out


def py_func(
    func: Callable[..., Any],
    x: Variables,
    out: Variables,
    backward_func: Callable[..., Any] | None = None,
    skip_vars_in_backward_input: Variables = None,
) -> Variables:
    """Call `func` on the values of `x` when the program runs, and store its results in `out`.

    Args:
        func: takes one NumPy array for each variable of `x`, and returns an array (or a tuple of
            arrays) for `out`.
        x: the inputs.
        out: variables made by `create_var`, with shape and dtype; None if `func` returns nothing.
        backward_func: takes the values of `x` and `out` and the gradients of `out`, and returns the
            gradients of `x` (None for no gradient). Without it no gradient flows to `x`.
        skip_vars_in_backward_input: variables of `x` and `out` that `backward_func` does not take.

    Returns:
        `out`.

    Raises:
        TypeError: a function cannot be called.
        ProgramError: a variable to skip is neither in `x` nor in `out`.
    """
    if not callable(func) or not (backward_func is None or callable(backward_func)):
        raise errors.AttributeTypeError("py_func: func (and backward_func, if given) must be functions")
    inputs, outputs, skipped = map(_variables, (x, out, skip_vars_in_backward_input))
    names = [v.name for v in skipped]
    strange = set(names) - {v.name for v in inputs + outputs}
    if strange:
        raise errors.ProgramError(
            f"py_func, skip_vars_in_backward_input: {', '.join(sorted(strange))} are neither in x nor in out"
        )
    attrs = {
        "forward_callable_id": callables.register(func),
        "backward_skip_vars": names,
        "backward_callable_id": -1 if backward_func is None else callables.register(backward_func),
    }
    LayerHelper("py_func").append_op(type="py_func", inputs={"X": inputs}, outputs={"Out": outputs}, attrs=attrs)
    if backward_func is None:
        for variable in outputs:
            variable.stop_gradient = True
    return out


def _variables(value: Variables) -> list[Variable]:
    found: list[Any] = [] if value is None else list(value) if isinstance(value, (list, tuple)) else [value]
    check_variable(found, "py_func", "x, out or skip_vars_in_backward_input")
    return found
