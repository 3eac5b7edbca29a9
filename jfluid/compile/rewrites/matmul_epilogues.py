"""What is done to each number of a product of two matrices, by the machine code that computes the product: a
layer's bias and activation, the slope of an activation, the update of a parameter.

XLA reads and writes such results once more, in loops of their own, for which threads wait. Here a product is computed
when somebody asks for it, and those who would do something to each number of it take its factors
instead, if nobody else reads it. Each rule is of one primitive.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax import Array, lax

from jfluid.compile.rewrites import concat_of_slices, matmul_dispatch
from jfluid.compile.rewrites.primitives import AWAITED
from jfluid.compile.rewrites.traced_value import (
    MADE,
    TURNED,
    Change,
    Complement,
    Origin,
    OtherHalf,
    Positive,
    Product,
    Sloped,
    SlopeOfTanh,
    Value,
)

# Whether the step that is traced writes over the parameters that it updates.
_overwriting = contextvars.ContextVar("overwriting", default=True)


@contextlib.contextmanager
def overwriting(parameters: bool) -> Iterator[None]:
    """A context in which a step is traced that writes over its parameters, or gives new ones."""
    token = _overwriting.set(parameters)
    try:
        yield
    finally:
        _overwriting.reset(token)


def product(x: Array, y: Array, over: tuple[int, int], scope: str) -> Value:
    """Return a product that is computed when it is asked for, either way round.

    Args:
        scope: the operator that it is of.
    """

    def make(turned: bool) -> Array:
        return matmul_dispatch.product(y, x, over[::-1]) if turned else matmul_dispatch.product(x, y, over)

    found = Value(make=make)
    if matmul_dispatch.is_machine_code(x, y, over):
        found.origin = Product(x, y, over, scope=scope)
    return found


def scope(equation: Any, values: list[Value]) -> str:
    """Return the operator that an equation's work is of: that of a product which is computed for it, if there is one."""
    for value in values:
        origin = value.origin
        while isinstance(origin, OtherHalf):
            origin = origin.of.origin
        found = origin.product if isinstance(origin, Sloped | Change) else origin
        if isinstance(found, Product) and found.finished is None and not value.is_computed():
            return found.scope
    return str(equation.source_info.name_stack)


def readers(jaxpr: Any, results_read: Sequence[bool] | None) -> dict[Any, list[Any]]:
    """Return the equations that read each variable, but those that only wait for it; None stands for somebody outside.

    Args:
        results_read: which results are read outside; None for all.
    """
    found: dict[Any, list[Any]] = {}
    for equation in jaxpr.eqns:
        if not waits(equation):
            for atom in equation.invars:
                if not hasattr(atom, "val"):  # no literal
                    found.setdefault(atom, []).append(equation)
    for i, atom in enumerate(jaxpr.outvars):
        if not hasattr(atom, "val") and (results_read is None or results_read[i]):
            found.setdefault(atom, []).append(None)
    return found


def waits(equation: Any) -> bool:
    """Whether an equation is there only so that something is computed after what it reads."""
    return bool(equation.params.get("name") == AWAITED)


def awaited(value: Value, shape: tuple[int, ...]) -> Value:
    """Return what is computed in the place of a value of a shape, in that shape."""
    origin = value.origin
    if not isinstance(origin, Product) or origin.finished is None:
        return value
    found = origin.finished.given()
    return origin.finished if found.shape == shape else Value(lax.reshape(found, shape))


def apply(equation: Any, values: list[Value]) -> Value | None:
    """Return the result of an equation that does something to a product; None where it is none of these."""
    rule = _RULES.get(equation.primitive.name)
    return None if rule is None else rule(equation, values)


def _lazy(make: Callable[[], Array], origin: Origin) -> Value:
    def made(other_order: bool) -> Array:
        array = make()
        return lax.transpose(array, MADE[array.ndim]) if other_order else array

    found = Value(make=made)
    found.origin = origin
    return found


def _unread(value: Value) -> Product | None:
    """The product that a value is, if one equation alone reads it and nobody has asked for it."""
    origin = value.origin
    if not isinstance(origin, Product) or origin.finished is not None or value.is_computed():
        return None
    return origin if len(value.readers) == 1 else None


def _plain(value: Value) -> Product | None:
    """The same of a product without a bias."""
    found = _unread(value)
    return found if found is not None and found.bias is None else None


def _finished(origin: Product, array: Array, shape: Any) -> Value:
    found = Value(lax.reshape(array, shape))
    origin.done.append(found)
    return found


def _is_number(value: Value, number: float) -> bool:
    """Whether a value is a number, of any shape, that is known."""
    given = value.broadcast[1] if value.broadcast else value.known()
    return given is not None and np.ndim(given) == 0 and not _is_traced(given) and given == number


def _is_traced(value: Any) -> bool:
    return isinstance(value, jax.core.Tracer)


def _reshape(equation: Any, values: list[Value]) -> Value | None:
    """A product keeps its columns: its rows are divided."""
    origin, shape = _unread(values[0]), equation.params["new_sizes"]
    before = equation.invars[0].aval.shape
    if origin is None or equation.params["dimensions"] or shape[-1:] != before[-1:]:
        return None
    return _lazy(lambda: lax.reshape(values[0].given(), shape), replace(origin))


def _transpose(equation: Any, values: list[Value]) -> Value | None:
    """`jax.vjp` gives the gradient of a weight as that of its transpose."""
    origin, value = _plain(values[0]), values[0]
    if origin is None or equation.params["permutation"] != TURNED:
        return None
    x, y, over = origin.y, origin.x, origin.over[::-1]
    if not matmul_dispatch.is_machine_code(x, y, over):
        return None
    found = Value(make=lambda turned: value.given() if turned else value.laid(TURNED))
    found.origin = replace(origin, x=x, y=y, over=over)
    return found


def _add(equation: Any, values: list[Value]) -> Value | None:
    """A layer adds its bias to each row of a product."""
    which = next((i for i, value in enumerate(values) if _plain(value)), None)
    if which is None:
        return None
    origin, other, out = _plain(values[which]), values[1 - which], equation.outvars[0].aval
    bias = other.broadcast[1] if other.broadcast else other.given()
    if other.broadcast and other.broadcast[0]["broadcast_dimensions"][-1:] != (out.ndim - 1,):
        return None
    width = out.shape[-1]
    if other.order is not None or bias.dtype != np.float32:
        return None
    if np.shape(bias)[-1:] != (width,) or np.size(bias) != width:
        return None
    assert origin is not None  # `which` says so
    found = replace(origin, bias=lax.reshape(bias, (width,)))
    return _lazy(lambda: _layer(found, "identity", out.shape), found)


def _layer(origin: Product, activation: str, shape: Any) -> Array:
    from jfluid.machine_code import direct_product  # LLVM, which not all programs need

    assert origin.bias is not None  # it is a layer's
    found = direct_product.layer(origin.x, origin.y, origin.bias, activation, origin.over)
    return lax.reshape(found, shape)


def _activated(equation: Any, value: Value, activation: str) -> Value | None:
    origin = value.origin
    if not isinstance(origin, Product) or origin.bias is None or origin.finished is not None:
        return None
    array = _layer(origin, activation, equation.outvars[0].aval.shape)
    return _finished(origin, array, array.shape)


def _tanh(equation: Any, values: list[Value]) -> Value | None:
    return _activated(equation, values[0], "tanh") if len(values[0].readers) == 1 else None


def _maximum(equation: Any, values: list[Value]) -> Value | None:
    """Apply relu. Its gradient looks where its input is above zero, which is where its output is."""
    value = values[0]
    others = [r for r in value.readers if r is None or r.primitive.name != "gt"]
    tests = [r for r in value.readers if r is not None and r.primitive.name == "gt"]
    if len(others) != 1 or not _is_number(values[1], 0.0) or not all(map(_is_sign, tests)):
        return None
    return _activated(equation, value, "relu")


def _is_sign(equation: Any) -> bool:
    """Whether it says where its first operand is above zero."""
    number = getattr(equation.invars[1], "val", None)
    return number is not None and np.ndim(number) == 0 and number == 0.0


def _greater(equation: Any, values: list[Value]) -> Value | None:
    if not _is_number(values[1], 0.0):
        return None
    shape = equation.outvars[0].aval.shape
    value = awaited(values[0], shape)
    if value.order is not None or equation.invars[0].aval.dtype != np.float32:
        return None
    return _lazy(lambda: lax.gt(value.given(), lax.full(shape, 0.0, np.float32)), Positive(value))


def _select(equation: Any, values: list[Value]) -> Value | None:
    """The gradient of relu is that of its output where it is above zero, and zero elsewhere."""
    if len(values) != 3 or not isinstance(values[0].origin, Positive):
        return None
    origin, out = _plain(values[2]), values[0].origin.of
    if origin is None or not _is_number(values[1], 0.0):
        return None
    return _slope(equation, origin, out, "relu")


def _slope(equation: Any, origin: Product, out: Value, activation: str) -> Value | None:
    from jfluid.machine_code import direct_product  # as above

    aval = equation.outvars[0].aval
    if np.shape(out.given()) != aval.shape:
        return None
    array = direct_product.sloped(origin.x, origin.y, concat_of_slices.matrix_of(out.given()), activation, origin.over)
    return _finished(origin, array, aval.shape)


def _subtract(equation: Any, values: list[Value]) -> Value | None:
    """One less the output of tanh; or a parameter less its change."""
    value, other = values
    if _is_number(value, 1.0) and other.order is None:
        if equation.outvars[0].aval.dtype != np.float32:
            return None
        return _lazy(lambda: lax.sub(np.float32(1.0), other.given()), Complement(other))
    change = other.origin
    if not isinstance(change, Change) or len(other.readers) != 1 or value.order is not None:
        return None
    from jfluid.machine_code import direct_product  # as above

    origin, rate = change.product, lax.reshape(change.rate, (1,))
    given, in_place = (origin.x, origin.y, value.given(), rate), _overwriting.get()
    array = direct_product.updated(*given, origin.over, in_place)
    return _finished(origin, array, array.shape)


def _one_minus_square(equation: Any, values: list[Value]) -> Value | None:
    (of,), params = values, equation.params
    if of.order is not None or equation.outvars[0].aval.dtype != np.float32:
        return None
    return _lazy(lambda: equation.primitive.bind(of.given(), **params), SlopeOfTanh(of))


def _multiply(equation: Any, values: list[Value]) -> Value | None:
    """A step on the way to the gradient of tanh, or to an update."""
    value, other = values

    def make() -> Array:
        return lax.mul(value.given(), other.given())

    if isinstance(other.origin, SlopeOfTanh) and (origin := _plain(value)):
        return _slope(equation, origin, other.origin.of, "tanh")
    if isinstance(other.origin, Complement) and (origin := _plain(value)):
        return _lazy(make, Sloped(origin, other.origin.of))
    if isinstance(value.origin, Sloped) and value.origin.out is other:
        return _lazy(make, OtherHalf(value))
    origin = _plain(other)
    rate = equation.invars[0].aval
    if origin is not None and rate.shape == () and rate.dtype == np.float32:
        if origin.over == (0, 0) and equation.outvars[0].aval.ndim == len(TURNED):
            return _lazy(make, Change(value.given(), origin))
    return None


def _add_any(equation: Any, values: list[Value]) -> Value | None:
    """The two halves of the gradient of tanh."""
    one, other = values
    if not isinstance(one.origin, Sloped) or not isinstance(other.origin, OtherHalf):
        return None
    if other.origin.of is not one or len(one.readers) != 2 or len(other.readers) != 1:
        return None
    return _slope(equation, one.origin.product, one.origin.out, "tanh")


_RULES: dict[str, Callable[[Any, list[Value]], Value | None]] = {
    "reshape": _reshape,
    "transpose": _transpose,
    "add": _add,
    "tanh": _tanh,
    "max": _maximum,
    "gt": _greater,
    "select_n": _select,
    "sub": _subtract,
    "one_minus_square": _one_minus_square,
    "mul": _multiply,
    "add_any": _add_any,
}
