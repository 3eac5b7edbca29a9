"""Epilogues of matrix products: bias and activation of a layer, the derivative of an activation, a parameter's update.

XLA reads and writes the result of a product again for each of these, in loops that its threads wait for. Here the
machine code that computes the product applies the epilogue, if no other equation reads the product.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from jax import Array, lax

from jfluid.compile.rewrites import matmul_dispatch
from jfluid.compile.rewrites.primitives import AWAITED
from jfluid.compile.rewrites.rewrite import Rewrite
from jfluid.compile.rewrites.traced_value import TURNED, Broadcast, TracedValue

# Whether the step that is traced writes over the parameters that it updates.
_overwriting = contextvars.ContextVar("overwriting", default=True)


@contextlib.contextmanager
def overwriting(parameters: bool) -> Iterator[None]:
    """Set whether the step traced inside the context overwrites its parameters."""
    token = _overwriting.set(parameters)
    try:
        yield
    finally:
        _overwriting.reset(token)


@dataclass
class Product:
    """Product of two matrices, possibly reshaped to other rows.

    Attributes:
        over: the contracted dimension of each factor.
        scope: name scope of the product's operator, for profiles.
        bias: the bias of a layer, which is added to each row; None without a bias.
        done: holds the result with its epilogue once it is computed; shared by all reshaped products.
    """

    x: Array
    y: Array
    over: tuple[int, int]
    scope: str
    bias: Array | None = None
    done: list[TracedValue] = field(default_factory=list)

    @property
    def finished(self) -> TracedValue | None:
        """The result with its epilogue, or None."""
        return self.done[0] if self.done else None


@dataclass
class Positive:
    """`of > 0`."""

    of: TracedValue


@dataclass
class Complement:
    """`1 - of`."""

    of: TracedValue


@dataclass
class SlopeOfTanh:
    """`1 - of ** 2`: the derivative of tanh from JAX 0.11 on."""

    of: TracedValue


@dataclass
class Sloped:
    """`product * (1 - out)`: half of the gradient of tanh's input, for an output `out`."""

    product: Product
    out: TracedValue


@dataclass
class OtherHalf:
    """`of * out` for a `Sloped` value `of`: the other half of the gradient."""

    of: TracedValue


@dataclass
class Change:
    """`rate * product`: the change of a parameter."""

    rate: Array
    product: Product


Origin = Product | Positive | Complement | SlopeOfTanh | Sloped | OtherHalf | Change


class MatmulEpilogues(Rewrite):
    """Rewrite of equations on products that `MatmulDispatch` leaves lazy, with the origins of values."""

    def __init__(self) -> None:
        self.origins: dict[TracedValue, Origin] = {}

    def apply(self, equation: Any, values: Sequence[TracedValue]) -> Sequence[TracedValue] | None:
        """Return the result of an equation that is part of an epilogue, or None."""
        if equation.params.get("name") == AWAITED:
            return self._awaited(equation, values)
        rule = _RULES.get(equation.primitive.name)
        found = None if rule is None else rule(self, equation, values)
        return None if found is None else [found]

    def follow(self, equation: Any, values: Sequence[TracedValue], results: Sequence[TracedValue]) -> None:
        """Record a product that machine code computes."""
        over = matmul_dispatch.contracted(equation)
        if over is not None and not results[0].is_computed():
            x, y = values[0].given(), values[1].given()
            if matmul_dispatch.is_machine_code(x, y, over):
                self.origins[results[0]] = Product(x, y, over, str(equation.source_info.name_stack))

    def scope(self, values: Sequence[TracedValue]) -> str | None:
        """Return the name scope of a product that the equation will compute, or None without a product."""
        for value in values:
            origin = self.origins.get(value)
            while isinstance(origin, OtherHalf):
                origin = self.origins.get(origin.of)
            found = origin.product if isinstance(origin, Sloped | Change) else origin
            if isinstance(found, Product) and found.finished is None and not value.is_computed():
                return found.scope
        return None

    def finished(self, value: TracedValue, shape: tuple[int, ...]) -> TracedValue:
        """Return the result with its epilogue in a shape if it is computed instead of a value, or the value."""
        origin = self.origins.get(value)
        if not isinstance(origin, Product) or origin.finished is None:
            return value
        found = origin.finished.given()
        return origin.finished if found.shape == shape else TracedValue(lax.reshape(found, shape))

    def lazy(self, make: Callable[[], Array], origin: Origin) -> TracedValue:
        """Return a lazy value with an origin."""
        found = TracedValue(make=make)
        self.origins[found] = origin
        return found

    def unread(self, value: TracedValue) -> Product | None:
        """Return the product that a value is, if it has one reader and is not computed; None otherwise."""
        origin = self.origins.get(value)
        if not isinstance(origin, Product) or origin.finished is not None or value.is_computed():
            return None
        return origin if len(value.readers) == 1 else None

    def plain(self, value: TracedValue) -> Product | None:
        """Return the product without a bias that a value is, under the conditions of `unread`; None otherwise."""
        found = self.unread(value)
        return found if found is not None and found.bias is None else None

    def _awaited(self, equation: Any, values: Sequence[TracedValue]) -> Sequence[TracedValue] | None:
        """Wait for the result with its epilogue instead of a product that nothing else computes."""
        found = [self.finished(value, a.aval.shape) for value, a in zip(values, equation.invars)]
        if all(new is old for new, old in zip(found, values)):
            return None
        inner = equation.params["jaxpr"]
        arrays = [value.given() for value in found]
        return list(map(TracedValue, jax.core.eval_jaxpr(inner.jaxpr, inner.consts, *arrays)))


def _finished(origin: Product, array: Array, shape: Any) -> TracedValue:
    found = TracedValue(lax.reshape(array, shape))
    origin.done.append(found)
    return found


def _is_number(value: TracedValue, number: float) -> bool:
    """Return True if a value is a known number or the broadcast of one."""
    given = value.operand if isinstance(value, Broadcast) else value.known()
    return given is not None and np.ndim(given) == 0 and not isinstance(given, jax.core.Tracer) and given == number


def _reshape(epilogues: MatmulEpilogues, equation: Any, values: Sequence[TracedValue]) -> TracedValue | None:
    """Keep a product lazy through a reshape that divides rows."""
    origin, shape = epilogues.unread(values[0]), equation.params["new_sizes"]
    before = equation.invars[0].aval.shape
    if origin is None or equation.params["dimensions"] or shape[-1:] != before[-1:]:
        return None
    return epilogues.lazy(lambda: lax.reshape(values[0].given(), shape), replace(origin))


def _transpose(epilogues: MatmulEpilogues, equation: Any, values: Sequence[TracedValue]) -> TracedValue | None:
    """Exchange the factors of a product: `jax.vjp` transposes the gradient of a weight."""
    origin, value = epilogues.plain(values[0]), values[0]
    if origin is None or equation.params["permutation"] != TURNED:
        return None
    x, y, over = origin.y, origin.x, origin.over[::-1]
    if not matmul_dispatch.is_machine_code(x, y, over):
        return None
    found = TracedValue(make=lambda: value.laid(TURNED), make_laid=(TURNED, value.given))
    epilogues.origins[found] = replace(origin, x=x, y=y, over=over)
    return found


def _add(epilogues: MatmulEpilogues, equation: Any, values: Sequence[TracedValue]) -> TracedValue | None:
    """Add the bias of a layer to each row of a product."""
    which = next((i for i, value in enumerate(values) if epilogues.plain(value)), None)
    if which is None:
        return None
    origin, other, out = epilogues.plain(values[which]), values[1 - which], equation.outvars[0].aval
    bias = other.operand if isinstance(other, Broadcast) else other.given()
    if isinstance(other, Broadcast) and other.dimensions[-1:] != (out.ndim - 1,):
        return None
    width = out.shape[-1]
    if other.order is not None or bias.dtype != np.float32:
        return None
    if np.shape(bias)[-1:] != (width,) or np.size(bias) != width:
        return None
    assert origin is not None  # `which` says so
    found = replace(origin, bias=lax.reshape(bias, (width,)))
    return epilogues.lazy(lambda: _layer(found, "identity", out.shape), found)


def _layer(origin: Product, activation: str, shape: Any) -> Array:
    from jfluid.machine_code import direct_product  # LLVM, which few programs need

    assert origin.bias is not None  # it is a layer's
    found = direct_product.layer(origin.x, origin.y, origin.bias, activation, origin.over)
    return lax.reshape(found, shape)


def _activated(epilogues: MatmulEpilogues, equation: Any, value: TracedValue, activation: str) -> TracedValue | None:
    origin = epilogues.origins.get(value)
    if not isinstance(origin, Product) or origin.bias is None or origin.finished is not None:
        return None
    array = _layer(origin, activation, equation.outvars[0].aval.shape)
    return _finished(origin, array, array.shape)


def _tanh(epilogues: MatmulEpilogues, equation: Any, values: Sequence[TracedValue]) -> TracedValue | None:
    return _activated(epilogues, equation, values[0], "tanh") if len(values[0].readers) == 1 else None


def _maximum(epilogues: MatmulEpilogues, equation: Any, values: Sequence[TracedValue]) -> TracedValue | None:
    """Apply relu. Its gradient tests `input > 0`, for which `output > 0` stands in."""
    value = values[0]
    others = [r for r in value.readers if r is None or r.primitive.name != "gt"]
    tests = [r for r in value.readers if r is not None and r.primitive.name == "gt"]
    if len(others) != 1 or not _is_number(values[1], 0.0) or not all(map(_is_sign, tests)):
        return None
    return _activated(epilogues, equation, value, "relu")


def _is_sign(equation: Any) -> bool:
    """Return True if an equation compares its first operand with zero."""
    number = getattr(equation.invars[1], "val", None)
    return number is not None and np.ndim(number) == 0 and number == 0.0


def _greater(epilogues: MatmulEpilogues, equation: Any, values: Sequence[TracedValue]) -> TracedValue | None:
    if not _is_number(values[1], 0.0):
        return None
    shape = equation.outvars[0].aval.shape
    value = epilogues.finished(values[0], shape)
    if value.order is not None or equation.invars[0].aval.dtype != np.float32:
        return None
    return epilogues.lazy(lambda: lax.gt(value.given(), lax.full(shape, 0.0, np.float32)), Positive(value))


def _select(epilogues: MatmulEpilogues, equation: Any, values: Sequence[TracedValue]) -> TracedValue | None:
    """Apply the gradient of relu: the output's gradient where the output is positive, zero elsewhere."""
    test = epilogues.origins.get(values[0])
    if len(values) != 3 or not isinstance(test, Positive) or not _is_number(values[1], 0.0):
        return None
    origin = epilogues.plain(values[2])
    return None if origin is None else _slope(equation, origin, test.of, "relu")


def _slope(equation: Any, origin: Product, out: TracedValue, activation: str) -> TracedValue | None:
    from jfluid.machine_code import direct_product  # as above

    aval = equation.outvars[0].aval
    if np.shape(out.given()) != aval.shape:
        return None
    array = direct_product.sloped(origin.x, origin.y, out.given(), activation, origin.over)
    return _finished(origin, array, aval.shape)


def _subtract(epilogues: MatmulEpilogues, equation: Any, values: Sequence[TracedValue]) -> TracedValue | None:
    """Record `1 - output` of tanh, or apply the update of a parameter."""
    value, other = values
    if _is_number(value, 1.0) and other.order is None:
        if equation.outvars[0].aval.dtype != np.float32:
            return None
        return epilogues.lazy(lambda: lax.sub(np.float32(1.0), other.given()), Complement(other))
    change = epilogues.origins.get(other)
    if not isinstance(change, Change) or len(other.readers) != 1 or value.order is not None:
        return None
    from jfluid.machine_code import direct_product  # as above

    origin, rate = change.product, lax.reshape(change.rate, (1,))
    given, in_place = (origin.x, origin.y, value.given(), rate), _overwriting.get()
    array = direct_product.updated(*given, origin.over, in_place)
    return _finished(origin, array, array.shape)


def _one_minus_square(epilogues: MatmulEpilogues, equation: Any, values: Sequence[TracedValue]) -> TracedValue | None:
    (of,), params = values, equation.params
    if of.order is not None or equation.outvars[0].aval.dtype != np.float32:
        return None
    return epilogues.lazy(lambda: equation.primitive.bind(of.given(), **params), SlopeOfTanh(of))


def _multiply(epilogues: MatmulEpilogues, equation: Any, values: Sequence[TracedValue]) -> TracedValue | None:
    """Apply or record a part of the gradient of tanh, or record the change of a parameter."""
    value, other = values
    left, right = map(epilogues.origins.get, values)

    def make() -> Array:
        return lax.mul(value.given(), other.given())

    if isinstance(right, SlopeOfTanh) and (origin := epilogues.plain(value)):
        return _slope(equation, origin, right.of, "tanh")
    if isinstance(right, Complement) and (origin := epilogues.plain(value)):
        return epilogues.lazy(make, Sloped(origin, right.of))
    if isinstance(left, Sloped) and left.out is other:
        return epilogues.lazy(make, OtherHalf(value))
    origin, rate = epilogues.plain(other), equation.invars[0].aval
    if origin is not None and rate.shape == () and rate.dtype == np.float32:
        if origin.over == (0, 0) and equation.outvars[0].aval.ndim == len(TURNED):
            return epilogues.lazy(make, Change(value.given(), origin))
    return None


def _add_any(epilogues: MatmulEpilogues, equation: Any, values: Sequence[TracedValue]) -> TracedValue | None:
    """Apply the gradient of tanh, the sum of two halves."""
    one, other = values
    half, rest = map(epilogues.origins.get, values)
    if not isinstance(half, Sloped) or not isinstance(rest, OtherHalf):
        return None
    if rest.of is not one or len(one.readers) != 2 or len(other.readers) != 1:
        return None
    return _slope(equation, half.product, half.out, "tanh")


_RULES: dict[str, Callable[[MatmulEpilogues, Any, Sequence[TracedValue]], TracedValue | None]] = {
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
