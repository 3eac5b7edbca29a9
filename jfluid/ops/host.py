"""Operators that run in Python between compiled segments: print and py_func."""

import os
import time
import weakref
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from jfluid import errors
from jfluid.ir import callables
from jfluid.ir.reach import Reach
from jfluid.ir.types import VarType
from jfluid.ops.registry import Bool, Int, String, Strings, op
from jfluid.printable import printable

_TERMINAL = Reach("terminal")
_FUNCTIONS = Reach("python", ("forward_callable_id", "backward_callable_id"))
# How often each print operator has printed; first_n bounds it.
_printed: "weakref.WeakKeyDictionary[object, int]" = weakref.WeakKeyDictionary()


def _show(
    value: np.ndarray, name: str, op: Any, first_n: int, message: str, summarize: int, shows: tuple[bool, bool, bool]
) -> None:
    """Print one tensor in Fluid's layout; `shows` is whether to print (name, type, shape)."""
    count = _printed.get(op, 0)
    if 0 < first_n <= count:
        return
    _printed[op] = count + 1
    with_name, with_type, with_shape = shows
    lines = [f"{int(time.time())}\t{message}"]
    lines += [f"Tensor[{name}]"] if with_name else []
    lines += [f"\tshape: [{','.join(map(str, value.shape))}]"] if with_shape else []
    lines += [f"\tdtype: {value.dtype}"] if with_type else []
    flat = value.ravel() if summarize < 0 else value.ravel()[:summarize]
    lines.append(f"\tdata: {','.join(f'{v:g}' if np.issubdtype(value.dtype, np.floating) else str(v) for v in flat)}")
    print(printable("\n".join(lines)), flush=True)


@op("print", ins=("In",), outs=("Out",), host=True, reaches=_TERMINAL)
def print_(
    value: np.ndarray,
    *,
    ctx: SimpleNamespace,
    first_n: Int,
    message: String,
    summarize: Int,
    print_tensor_name: Bool,
    print_tensor_type: Bool,
    print_tensor_shape: Bool,
    print_tensor_lod: Bool,
    print_phase: String,
    is_forward: Bool,
) -> np.ndarray:
    """Print the tensor and return it."""
    if print_phase.upper() in ("BOTH", "FORWARD" if is_forward else "BACKWARD"):
        _show(
            value,
            ctx.op.input("In")[0],
            ctx.op,
            first_n,
            message,
            summarize,
            (print_tensor_name, print_tensor_type, print_tensor_shape),
        )
    return value


@op("print_grad", ins=("Out@GRAD",), outs=("In@GRAD",), host=True, grad=False, reaches=_TERMINAL)
def print_grad(
    grad: np.ndarray,
    *,
    ctx: SimpleNamespace,
    first_n: Int,
    message: String,
    summarize: Int,
    print_tensor_name: Bool,
    print_tensor_type: Bool,
    print_tensor_shape: Bool,
    print_tensor_lod: Bool,
    print_phase: String,
    is_forward: Bool,
) -> np.ndarray:
    """Print the gradient and return it."""
    if print_phase.upper() in ("BOTH", "BACKWARD"):
        _show(
            grad,
            ctx.op.input("Out@GRAD")[0],
            ctx.op,
            first_n,
            message,
            summarize,
            (print_tensor_name, print_tensor_type, print_tensor_shape),
        )
    return grad


@op("get_places", outs=("Out",), grad=False, host=True, reaches=None, types=lambda op: {"Out": VarType.PLACE_LIST})
def get_places(*, device_count: int = 0, device_type: str = "AUTO") -> np.ndarray:
    """Return the numbers of the devices of a kind: of `device_count`, or of all there are."""
    if device_type not in ("CPU", "CUDA", "AUTO"):
        raise errors.AttributeTypeError(f"get_places: device_type: expected CPU, CUDA or AUTO, found {device_type!r}")
    gpus = 0 if device_type == "CPU" else _number_of_gpus()
    there = gpus or (0 if device_type == "CUDA" else os.cpu_count() or 1)
    if gpus and device_count > gpus:
        raise errors.PlaceError(f"get_places: {device_count} of {gpus} GPUs")
    return np.arange(device_count or there)


def _number_of_gpus() -> int:
    return sum(d.platform == "gpu" for d in jax.local_devices())


def _call(number: int, arguments: list[Any], names: list[str], what: str) -> list[Any]:
    """Call function `number`; returns one array (or None) for each of `names`."""
    result = callables.find(number)(*arguments)
    result = [] if result is None and not names else result
    result = list(result) if isinstance(result, (list, tuple)) else [result]
    if len(result) != len(names):
        raise errors.OpError(
            f"py_func: {what} returned {len(result)} values, expected {len(names)} ({', '.join(names)})"
        )
    return [None if r is None else np.asarray(r) for r in result]


@op("py_func", ins=("X*",), outs=("Out*",), host=True, reaches=_FUNCTIONS)
def py_func(
    inputs: list[np.ndarray],
    *,
    ctx: SimpleNamespace,
    forward_callable_id: int = 0,
    backward_callable_id: int = -1,
    backward_skip_vars: Strings = (),
) -> list[np.ndarray]:
    """Call a Python function on NumPy arrays."""
    return _call(forward_callable_id, inputs, ctx.op.output("Out"), "the function")


@op("py_func_grad", ins=("X*", "Out*", "Out@GRAD*?"), outs=("X@GRAD*",), host=True, grad=False, reaches=_FUNCTIONS)
def py_func_grad(
    inputs: list[np.ndarray],
    outputs: list[np.ndarray],
    grads: list[np.ndarray] | None,
    *,
    ctx: SimpleNamespace,
    forward_callable_id: int = 0,
    backward_callable_id: int = -1,
    backward_skip_vars: Strings = (),
) -> list[np.ndarray]:
    """Call the backward function on the inputs and outputs that it does not skip, and on the output gradients."""
    names = ctx.op.input("X") + ctx.op.input("Out")
    kept = [v for n, v in zip(names, [*inputs, *outputs], strict=True) if n not in backward_skip_vars]
    found: list[Any] = list(grads or ()) or [None] * len(outputs)
    filled = [np.zeros_like(o) if g is None else g for o, g in zip(outputs, found, strict=True)]
    return _call(backward_callable_id, kept + filled, ctx.op.output("X@GRAD"), "backward_func")
