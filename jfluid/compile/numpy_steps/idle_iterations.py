"""Iterations without effect: a loop with gradients runs up to a bound, past the end of the longest sequence.

The values that such a loop carries are selected by a flag, and so are their gradients. `flag_of` proves from the
loop's body that an iteration returns the carried values as they are if a flag is False. The interpreter skips these
iterations, so it runs the exact length of each batch.
"""

import functools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend import core

from jfluid.compile.rewrites.primitives import CALLS

ZERO_ROW = -1
_ZERO = 0  # the number of a value of zeros, or of False
_CLAMPED = (jax.lax.GatherScatterMode.CLIP, jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS)
# Primitives that keep elements and their order, and primitives with a result of zeros for a first operand of zeros.
_KEEP = frozenset("copy copy_p expand_dims reshape squeeze stop_gradient".split())
_LINEAR = _KEEP | frozenset(
    "broadcast_in_dim convert_element_type cumsum div dynamic_slice neg reduce_sum rev slice transpose".split()
)
_PRODUCTS = frozenset("and dot_general mul".split())


class Flag(NamedTuple):
    """Flag of a loop, and the results of an iteration in which no element of the flag is True.

    Attributes:
        is_carried: True for a carried value, False for an array with a part for each iteration.
        number: of the carried value or the array.
        rows: for each stacked result the number of the carried value that it equals, or `ZERO_ROW` for zeros; None if
            a result differs by iteration.
    """

    is_carried: bool
    number: int
    rows: list[int] | None


@functools.lru_cache(maxsize=512)
def flag_of(closed: Any, consts: int, carried: int) -> Flag | None:
    """Return the flag without which an iteration of a scan has no effect on the carried values; None without a flag.

    Args:
        closed: the body.
        consts: number of the body's constant operands.
        carried: number of carried values.
    """
    before, after = slice(consts, consts + carried), consts + carried
    for at, var in enumerate(closed.jaxpr.invars):
        if at < consts or var.aval.dtype != bool:
            continue
        values = _Values()
        given = [_ZERO if i == at else values.numbered(("operand", i)) for i in range(len(closed.jaxpr.invars))]
        state, found = given[before], values.results(closed, given)
        if found[:carried] == state:
            known = {_ZERO: ZERO_ROW} | {value: i for i, value in enumerate(state) if value != _ZERO}
            rows = [known[value] for value in found[carried:] if value in known]
            are_known = len(rows) == len(found) - carried
            return Flag(at < after, at - (consts if at < after else after), rows if are_known else None)
    return None


class _Values:
    """Values of a body, as numbers: equal numbers are equal elements in the same order, in any shape."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._made: dict[int, Any] = {}

    def numbered(self, made: Hashable) -> int:
        """Return the number of a value, by the way in which it is made."""
        number = self._numbers.setdefault(made, len(self._numbers) + 1)
        self._made[number] = made
        return number

    def results(self, closed: Any, given: Sequence[int]) -> list[int]:
        """Return the results of a jaxpr for operands."""
        jaxpr = getattr(closed, "jaxpr", closed)
        known: dict[Any, int] = dict(zip(jaxpr.invars, given, strict=True))
        for var in jaxpr.constvars:
            known[var] = self.numbered(("constant", var))

        def of(var: Any) -> int:
            return self._literal(var) if isinstance(var, core.Literal) else known[var]

        for equation in jaxpr.eqns:
            known.update(zip(equation.outvars, self._of(equation, [of(v) for v in equation.invars])))
        return [of(v) for v in jaxpr.outvars]

    def _literal(self, literal: Any) -> int:
        value = np.asarray(literal.val, literal.aval.dtype)
        return self.numbered(("literal", value.dtype, value.shape, value.tobytes())) if value.any() else _ZERO

    def _of(self, equation: Any, operands: list[int]) -> list[int]:
        name, params = equation.primitive.name, equation.params
        if name in CALLS:
            return self.results(params[CALLS[name]], operands)
        rule = _RULES.get(name)
        found = rule(self, equation, operands) if rule else None
        if found is None and operands and operands[0] == _ZERO and name in _LINEAR:
            found = _ZERO
        if found is not None:
            return [found]
        made = (name, _hashable(params, equation), tuple(operands))
        return [self.numbered((*made, at)) for at in range(len(equation.outvars))]

    def made(self, number: int) -> Any:
        """Return the way in which a value is made."""
        return self._made.get(number, ())


def _hashable(params: Mapping[str, Any], equation: Any) -> Hashable:
    """Return parameters as a key; for parameters without a hash the equation, which equals no other."""
    key = tuple(sorted(params.items()))
    try:
        hash(key)
    except TypeError:
        return id(equation)
    return key


Rule = Callable[[_Values, Any, list[int]], int | None]
_RULES: dict[str, Rule] = {}


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        _RULES.update(dict.fromkeys(names, function))
        return function

    return register


@_rule(*_KEEP)
def _kept(values: _Values, equation: Any, operands: list[int]) -> int | None:
    return operands[0] if equation.params.get("dimensions") is None or equation.primitive.name != "reshape" else None


@_rule("broadcast_in_dim", "reduce_sum", "reduce_max", "reduce_min")
def _of_one_size(values: _Values, equation: Any, operands: list[int]) -> int | None:
    """Return the operand of a primitive that adds or drops dimensions of one element."""
    before, after = (math.prod(v.aval.shape) for v in (equation.invars[0], equation.outvars[0]))
    return operands[0] if before == after and before else None


@_rule("reduce_and", "reduce_or")
def _truth(values: _Values, equation: Any, operands: list[int]) -> int | None:
    return _ZERO if operands[0] == _ZERO and math.prod(equation.invars[0].aval.shape) else None


@_rule("select_n")
def _selected(values: _Values, equation: Any, operands: list[int]) -> int | None:
    which, *cases = operands
    if which == _ZERO:
        return cases[0]
    return cases[0] if len(set(cases)) == 1 else None


@_rule(*_PRODUCTS)
def _product(values: _Values, equation: Any, operands: list[int]) -> int | None:
    return _ZERO if _ZERO in operands else None


@_rule("pad", "concatenate")
def _joined(values: _Values, equation: Any, operands: list[int]) -> int | None:
    return _ZERO if set(operands) == {_ZERO} else None


@_rule("gather")
def _gathered(values: _Values, equation: Any, operands: list[int]) -> int | None:
    return _ZERO if operands[0] == _ZERO and equation.params["mode"] in _CLAMPED else None


@_rule("scatter-add", "scatter_add")
def _scattered(values: _Values, equation: Any, operands: list[int]) -> int | None:
    return operands[0] if operands[2] == _ZERO else None


@_rule("add", "add_any", "sub")
def _sum(values: _Values, equation: Any, operands: list[int]) -> int | None:
    x, y = operands
    if y == _ZERO and equation.invars[0].aval.shape == equation.outvars[0].aval.shape:
        return x
    if equation.primitive.name == "sub":
        return None
    if x == _ZERO and equation.invars[1].aval.shape == equation.outvars[0].aval.shape:
        return y
    # The gradient of a slice that is written back: zero there, and the slice of the same array elsewhere zero.
    cleared, placed = values.made(x), values.made(y)
    if cleared[:1] == ("placed",):
        cleared, placed = placed, cleared
    return cleared[1] if cleared[:1] == ("cleared",) and placed == ("placed", *cleared[1:]) else None


@_rule("dynamic_slice")
def _slice(values: _Values, equation: Any, operands: list[int]) -> int | None:
    array, *starts = operands
    return None if array == _ZERO else values.numbered(("slice", array, tuple(starts), equation.params["slice_sizes"]))


@_rule("dynamic_update_slice")
def _updated(values: _Values, equation: Any, operands: list[int]) -> int | None:
    array, update, *starts = operands
    place = tuple(starts), equation.invars[1].aval.shape
    made = values.made(update)
    if made == ("slice", array, *place):
        return array
    if update == _ZERO:
        return _ZERO if array == _ZERO else values.numbered(("cleared", array, *place))
    if array == _ZERO and made[:1] == ("slice",) and made[2:] == place:
        return values.numbered(("placed", made[1], *place))
    return None
