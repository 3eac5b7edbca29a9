"""Functions that rewritten code calls as `_jf`."""

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

from jfluid import errors
from jfluid.dygraph.base import enabled, in_program, to_variable
from jfluid.dygraph.dygraph_to_static import source
from jfluid.dygraph.dygraph_to_static.control_flow import (
    Indexed,
    branch,
    choose,
    for_loop,
    indexed,
    length,
    logical_and,
    logical_not,
    logical_or,
    position,
    python_bool,
    while_loop,
)
from jfluid.dygraph.dygraph_to_static.merging import as_variable
from jfluid.dygraph.dygraph_to_static.numbers import number
from jfluid.dygraph.dygraph_to_static.state import State, condition, is_tensor
from jfluid.dygraph.dygraph_to_static.structures import Undefined, is_array
from jfluid.dygraph.varbase import VarBase
from jfluid.ir.types import is_float
from jfluid.layers.arrays import array_length, array_read, array_write
from jfluid.layers.helper import emit
from jfluid.layers.host import Print, py_func
from jfluid.layers.math_op_patch import astype

__all__ = [
    "State",
    "Undefined",
    "append",
    "branch",
    "call",
    "check",
    "choose",
    "for_loop",
    "item",
    "logical_and",
    "logical_not",
    "logical_or",
    "put",
    "python_bool",
    "shape",
    "while_loop",
]

# Packages with functions that accept tensors.
_OURS = ("jfluid", "numpy", "jax", "jaxlib", *sys.stdlib_module_names)
_REWRITTEN = ("jfluid.dygraph.container",)  # modules that call layers of users
ORIGINAL = "__dygraph_function__"  # attribute of a declared function: the user's function


# Calls
def call(function: Any) -> Any:
    """Return the function to call in place of `function`: a user's function is rewritten."""
    try:
        replaced = _BUILTINS.get(function)
    except TypeError:  # it cannot be hashed
        replaced = None
    if replaced is not None:
        return replaced
    if _reads_value(function):
        return lambda: function.__self__
    original = getattr(function, ORIGINAL, None)
    if isinstance(function, types.MethodType):
        inner = getattr(function.__func__, ORIGINAL, function.__func__)
        return types.MethodType(rewritten(inner), function.__self__)
    if original is not None:
        return rewritten(original)
    if isinstance(function, functools.partial):
        return functools.partial(call(function.func), *function.args, **function.keywords)
    if isinstance(function, types.FunctionType):
        return rewritten(function)
    if _is_layer(function):
        return functools.partial(_call_layer, function)
    if not isinstance(function, (type, types.BuiltinFunctionType)) and _is_users(type(function)):
        return call(getattr(function, "__call__", function))  # noqa: B004
    return function


def _reads_value(function: Any) -> bool:
    """Return True if a function is `numpy` of a tensor; the tensor then is the value."""
    return (
        isinstance(function, types.MethodType)
        and function.__name__ == "numpy"
        and is_tensor(function.__self__)
        and not isinstance(function.__self__, VarBase)
    )


def rewritten(function: Any) -> Any:
    """Return a rewritten function; a function without source, or of a library, stays as it is."""
    if not source.is_convertible(function) or not _is_users(function):
        return function
    try:
        return source.converted(function, sys.modules[__name__])
    except source.NoSource:
        return function


def _is_users(function: Any) -> bool:
    module = getattr(function, "__module__", None) or ""
    return module.split(".")[0] not in _OURS or module in _REWRITTEN


def _is_layer(value: Any) -> bool:
    kinds = type(value).__mro__
    return any(k.__module__ == "jfluid.dygraph.layers" and k.__name__ == "Layer" for k in kinds)


def _call_layer(layer: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a layer with its `forward` rewritten."""
    found = vars(layer).get("forward")
    forward = call(layer.forward)
    if forward == layer.forward:
        return layer(*args, **kwargs)
    vars(layer)["forward"] = forward
    try:
        return layer(*args, **kwargs)
    finally:
        if found is None:
            del vars(layer)["forward"]
        else:
            vars(layer)["forward"] = found


# Lists, items, shapes
def append(items: Any, value: Any) -> Any:
    """Do `items.append(value)`, and return `items`."""
    if is_array(items):
        end = array_length(items)
        return array_write(as_variable(value), end, items)
    items.append(value)
    return items


def item(items: Any, index: Any) -> Any:
    """Return `items[index]`."""
    if is_array(items):
        return array_read(items, _position(items, index))
    if isinstance(items, (list, tuple)) and is_tensor(index):
        raise TypeError(
            f"a Python {type(items).__name__} is indexed by a tensor ({index.name}), which has no value "
            "yet: stack its tensors (fluid.layers.stack), or append to the list in the loop"
        )
    return items[position(index)] if is_tensor(items) else items[index]


def put(items: Any, index: Any, value: Any) -> Any:
    """Do `items[index] = value`, and return `items`."""
    if is_array(items):
        return array_write(as_variable(value), _position(items, index), items)
    if isinstance(items, list) and is_tensor(index):
        raise TypeError(
            f"an item of a Python list is set where a tensor ({index.name}) says, which has no value "
            "yet: use fluid.layers.create_array and array_write, or append"
        )
    items[index] = value
    return items


def _position(items: Any, index: Any) -> Any:
    if is_tensor(index):
        return index
    return number(index) if index >= 0 else array_length(items) + index


def shape(value: Any) -> Any:
    """Return `value.shape`, with a tensor for each dimension of a tensor that is not known yet."""
    found = value.shape
    if not is_tensor(value) or is_array(value) or -1 not in found:
        return found
    every = emit("shape", {"Input": value})
    return tuple(every[i] if d < 0 else d for i, d in enumerate(found))


# Python's functions
def _range(*args: Any) -> Any:
    if not any(map(is_tensor, args)):
        return range(*args)
    start, stop, step = (0, *args, 1) if len(args) == 1 else (*args, 1)[:3]
    return Indexed(start, stop, step, lambda i: i)


def _enumerate(items: Any, start: Any = 0) -> Any:
    over = indexed(items)
    if over is None:
        return enumerate(items, start)
    if (over.start, over.step) != (0, 1) and isinstance(items, Indexed):
        raise errors.UnsupportedError("enumerate of a range of tensors: begin the range at 0")
    return Indexed(0, over.stop, 1, lambda i: (i + start, over.item(i)))


def _zip(*items: Any, **kwargs: Any) -> Any:
    every = [indexed(x) for x in items]
    if all(over is None for over in every):
        return zip(*items, **kwargs)
    over = [o for o in every if o is not None]
    if len(over) < len(every) or len({o.stop for o in over if not is_tensor(o.stop)}) != 1:
        raise errors.UnsupportedError("zip: needs tensors of one known length, or none")
    return Indexed(0, over[0].stop, 1, lambda i: tuple(o.item(i) for o in over))


def _len(value: Any) -> Any:
    return length(value) if is_tensor(value) else len(value)


def _print(*values: Any, **kwargs: Any) -> None:
    if not any(map(is_tensor, values)):
        print(*values, **kwargs)
        return
    before: list[str] = []
    for value in values:
        if is_tensor(value):
            Print(value, message=" ".join(before) or None)
            before = []
        else:
            before.append(str(value))
    if before:
        raise errors.UnsupportedError(
            f"print: {before[0]!r} comes after a tensor; texts are printed before tensors alone"
        )


def _to_variable(value: Any, name: str | None = None, zero_copy: bool | None = None) -> Any:
    """Do `to_variable(value)`: an array becomes an `assign` of the program that is built."""
    return to_variable(value, name, zero_copy) if enabled() else in_program(value)


def _number(kind: Callable[[Any], Any], dtype: str) -> Callable[..., Any]:
    def convert(*args: Any, **kwargs: Any) -> Any:
        if len(args) != 1 or not is_tensor(args[0]):
            return kind(*args, **kwargs)
        value = args[0]
        return value if dtype == "float32" and is_float(value.dtype) else astype(value, dtype)

    return convert


_BUILTINS: dict[Any, Any] = {
    range: _range,
    enumerate: _enumerate,
    zip: _zip,
    len: _len,
    print: _print,
    int: _number(int, "int64"),
    float: _number(float, "float32"),
    bool: _number(bool, "bool"),
    to_variable: _to_variable,
}


def check(test: Any, message: Callable[[], Any]) -> None:
    """Do `assert test, message()`; of a tensor when the program runs."""
    if not is_tensor(test):
        if not test:
            found = message()
            raise AssertionError(*() if found is None else (found,))
        return
    text = message()

    def verify(holds: Any) -> None:
        if not holds.all():
            raise AssertionError(test.name if text is None else text)

    py_func(verify, condition(test), None)
