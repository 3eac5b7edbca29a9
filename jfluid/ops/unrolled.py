"""Repetitions in operators: few are written out while an operator is traced, many become one compiled loop.

Each written repetition takes tracing time, whatever the size of the program that asks for it. `MOST` bounds
repetitions that cannot become a loop.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jfluid import errors

MOST = 1024
_WRITTEN_OUT = 64


def times(op_type: str, name: str, value: int, most: int = MOST) -> int:
    """Return `value`, the repetition count that attribute or input `name` gives.

    Raises ProgramError for more than `most`: each repetition takes tracing time, for any program size.
    """
    if value > most:
        raise errors.ProgramError(f"{op_type}: {name} is {value}, expected at most {most}")
    return value


def repeat(count: int, step: Callable[[Any, Any], Any], start: Any) -> Any:
    """Return `start` after `count` calls of `step(number, value)`, number from 0 on.

    The number is an int where calls are written out, else an int32 scalar of the loop.
    """
    if count <= _WRITTEN_OUT:
        for number in range(count):
            start = step(number, start)
        return start
    start = jax.tree.map(jnp.asarray, start)
    return lax.fori_loop(0, count, jax.checkpoint(step), start)


def part(x: Array, start: Any, size: int, axis: int) -> Array:
    """Return `size` elements of x along an axis; a start of a written repetition gives a slice with known bounds."""
    if isinstance(start, int):
        return lax.slice_in_dim(x, start, start + size, axis=axis)
    return lax.dynamic_slice_in_dim(x, start, size, axis=axis)


def total(count: int, term: Callable[[Any], Array]) -> Array:
    """Return the sum of `term(number)` for numbers below `count`, which is at least 1."""
    return repeat(count - 1, lambda number, so_far: so_far + term(number + 1), term(0))


def joined(count: int, piece: Callable[[Any], Array], axis: int) -> Array:
    """Return the arrays `piece(number)` for numbers below `count`, joined along `axis` of each."""
    if count <= _WRITTEN_OUT:
        return jnp.concatenate([piece(number) for number in range(count)], axis=axis)
    parts = jnp.moveaxis(lax.map(piece, jnp.arange(count, dtype=jnp.int32)), 0, axis)
    return parts.reshape(*parts.shape[:axis], -1, *parts.shape[axis + 2 :])
