"""Dispatch of matrix products (GEMM) on CPUs: XLA's library, machine code, or a loop that XLA fuses into its reader."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import Array, lax

from jfluid.compile.rewrites.rewrite import Rewrite
from jfluid.compile.rewrites.traced_value import TURNED, TracedValue

_FEWEST = 1 << 18  # multiplications
_MOST_JOINED = 2


class MatmulDispatch(Rewrite):
    """Rewrite of products of two float32 matrices: computed lazily, directly or transposed.

    `jax.vjp` computes the gradient of a weight from the gradient and the input, and transposes it.
    """

    def __init__(self) -> None:
        self._scopes: dict[TracedValue, str] = {}  # of products

    def scope(self, values: Sequence[TracedValue]) -> str | None:
        """Return the name scope of a product that the equation will compute, or None without a product."""
        return next((self._scopes[v] for v in values if v in self._scopes and not v.is_computed()), None)

    def apply(self, equation: Any, values: Sequence[TracedValue]) -> Sequence[TracedValue] | None:
        """Return a lazy product, or the transpose of a matrix; None for any other equation and for XLA's library."""
        name = equation.primitive.name
        if name == "transpose" and values[0].order is None and equation.params["permutation"] == TURNED:
            return [TracedValue(values[0].laid(TURNED))]
        over = contracted(equation)
        if over is None:
            return None
        x, y = values[0].given(), values[1].given()
        if over != (0, 0) and not is_own(x, y, over):
            return None
        make, make_turned = functools.partial(product, x, y, over), functools.partial(product, y, x, over[::-1])
        found = TracedValue(make=make, make_laid=(TURNED, make_turned))
        self._scopes[found] = str(equation.source_info.name_stack)
        return [found]


def contracted(equation: Any) -> tuple[int, int] | None:
    """Return the contracted dimension of each factor of a product of two float32 matrices, or None."""
    if equation.primitive.name != "dot_general":
        return None
    arrays = [a.aval for a in (*equation.invars, *equation.outvars)]
    if any(a.ndim != 2 or a.dtype != np.float32 for a in arrays):
        return None
    left, right = equation.params["dimension_numbers"][0]
    return (left[0], right[0]) if len(left) == len(right) == 1 else None


def is_own(x: Array, y: Array, over: tuple[int, int]) -> bool:
    """Return True if a float32 matrix product is not computed by XLA's library.

    Args:
        over: the contracted dimension of x and of y.
    """
    return _is_joined(x, over) or is_machine_code(x, y, over)


def product(x: Array, y: Array, over: tuple[int, int]) -> Array:
    """Return a product of two matrices in the fastest form."""
    if _is_joined(x, over):
        return _joined(x, y, over)
    if is_machine_code(x, y, over):
        from jfluid.machine_code import product_dispatch  # LLVM, which not all programs need

        return product_dispatch.product(x, y, over)
    return lax.dot_general(x, y, (((over[0],), (over[1],)), ((), ())))


def is_machine_code(x: Array, y: Array, over: tuple[int, int]) -> bool:
    """Return True if machine code computes a product."""
    if _is_joined(x, over):
        return False
    if x.size * y.shape[1 - over[1]] < _FEWEST:
        return False
    from jfluid.machine_code import product_dispatch  # as above

    return product_dispatch.suits(x, y, over)


def _is_joined(x: Array, over: tuple[int, int]) -> bool:
    """Return True if the contracted dimension is so small that XLA fuses the product into its reader."""
    return 0 < x.shape[over[0]] <= _MOST_JOINED


def _joined(x: Array, y: Array, over: tuple[int, int]) -> Array:
    rows, columns = (lax.transpose(a, (axis, 1 - axis)) for a, axis in zip((x, y), over))
    out: Array = rows[0][:, None] * columns[0]
    for row, column in zip(rows[1:], columns[1:]):
        out = out + row[:, None] * column
    return out
