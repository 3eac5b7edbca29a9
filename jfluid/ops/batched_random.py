"""Random numbers of many operators at once.

A startup program draws for each of its parameters. XLA compiles the generator anew for each of
them, which takes longer than everything else; for all numbers together it compiles it once. The
numbers are those that `jax.random` gives for each key.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry2x32_p

from jfluid.ir.types import VarType

MOST = 1 << 25  # numbers per batch
# Fewer numbers than _LARGE are drawn at once, by all threads: in half the time, and several times the memory.
_PART, _LARGE, _LARGE_PART = 1 << 18, 1 << 25, 1 << 20
_ROOT = np.float32(math.sqrt(2))
_EDGE = np.float32(math.erf(np.float32(2) / _ROOT))


@dataclass
class Drawn:
    """Random numbers drawn in advance, which an operator takes in place of the key."""

    values: jax.Array


def possible(key: Any) -> bool:
    """Return True if random numbers of keys derived from this key can be drawn together: for threefry keys."""
    return (
        key is not None
        and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        and jax.random.key_impl(key) == "threefry2x32"
    )


def size(attrs: dict[str, Any]) -> int:
    """Return the count of random numbers that an operator with these attributes draws.

    The count is 0 if the numbers are not float32 or the shape is unknown.
    """
    shape = attrs.get("shape", ())
    known = shape and min(shape) > 0 and attrs.get("dtype", VarType.FP32) == VarType.FP32
    return math.prod(shape) if known and math.prod(shape) <= MOST else 0


def folded(key: Any, numbers: np.ndarray) -> jax.Array:
    """Return uint32 [n, 2]: the data of a threefry key folded with each of uint32 `numbers`."""
    data = jnp.broadcast_to(jax.random.key_data(key), (len(numbers), 2))
    return jnp.stack(_words(data, jnp.asarray(numbers)), 1)


def standard(kinds: Sequence[str], keys: jax.Array, sizes: Sequence[int]) -> list[Drawn]:
    """Return, for each key, numbers of a standard distribution.

    Args:
        kinds: "uniform", "normal" or "truncated_normal" for each key; equal ones follow one another.
        keys: uint32 [n, 2], the data of threefry keys.
        sizes: how many numbers for each key.
    """
    groups = [(kind, list(of)) for kind, of in groupby(zip(kinds, sizes), itemgetter(0))]
    total, shaped = sum(sizes), _SHAPED[groups[0][0]]
    ends = np.cumsum(sizes)

    # Which key is whose is looked up: XLA would compile a piece of the program for each operator.
    def draw(places: jax.Array) -> jax.Array:
        of = jnp.searchsorted(jnp.asarray(ends, np.uint32), places, side="right")
        of = jnp.minimum(of, len(sizes) - 1)  # padding of the last part
        drawn = bits(keys[of], places - jnp.asarray(ends - sizes, np.uint32)[of])
        return shaped(drawn) if len(groups) == 1 else drawn

    # Parts are of one size: XLA would pad each one separately. Indices of all parts would take memory.
    parts = _parts(total)
    part = -(-total // parts)
    starts = jax.lax.iota(np.uint32, parts) * np.uint32(part)
    numbers, at = jax.lax.map(lambda start: draw(start + jax.lax.iota(np.uint32, part)), starts).ravel(), 0
    found = []
    for kind, of in groups:
        values, start = numbers, at
        if len(groups) > 1:
            own, start = jax.lax.slice_in_dim(numbers, at, at + sum(n for _, n in of)), 0
            values = uniform(own) if kind == "uniform" else _in_parts(_SHAPED[kind], own)
        for _, size in of:
            found.append(Drawn(jax.lax.slice_in_dim(values, start, start + size)))
            start, at = start + size, at + size
    return found


def is_large(key: Any, shape: Sequence[int], dtype: Any) -> bool:
    """Return True if numbers of this key are to be drawn by `large`."""
    return dtype == np.float32 and _LARGE <= math.prod(shape) < 1 << 31 and possible(key)


def large(kind: str, key: Any, shape: Sequence[int], scaled: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """Return `scaled(numbers)` for numbers drawn from a standard distribution with a threefry key.

    `scaled` is an elementwise function. The numbers are drawn in parts, each written into the result: a single
    draw would take several times the memory of the result.
    """
    count, data = math.prod(shape), jnp.broadcast_to(jax.random.key_data(key), (_LARGE_PART, 2))

    def draw(number: jax.Array, drawn: jax.Array) -> jax.Array:
        # the last part begins earlier, and draws some numbers once more
        start = jnp.minimum(number * _LARGE_PART, count - _LARGE_PART)
        places = start.astype(np.uint32) + jax.lax.iota(np.uint32, _LARGE_PART)
        values = scaled(_SHAPED[kind](bits(data, places)))
        return jax.lax.dynamic_update_slice(drawn, values, (start,))

    parts = -(-count // _LARGE_PART)
    empty = jnp.zeros(count, np.float32)
    found: jax.Array = jax.lax.fori_loop(0, parts, draw, empty)
    return found.reshape(shape)


def _in_parts(function: Callable[[jax.Array], jax.Array], values: jax.Array) -> jax.Array:
    """Apply an elementwise function to values [n], padded to whole parts, and return the padded result.

    It loops over parts, so that each program that takes a slice contains the function once.
    """
    parts = _parts(len(values))
    missing = -len(values) % parts
    filled = jnp.pad(values, (0, missing)) if missing else values
    return jax.lax.map(function, filled.reshape(parts, -1)).ravel()


def _parts(count: int) -> int:
    """Return the number of parts in which `count` numbers are drawn."""
    return max(2, -(-count // _PART))


def bits(keys: jax.Array, numbers: jax.Array) -> jax.Array:
    """Return the random bits, uint32 [n], at index `numbers[i]` of the threefry stream of `keys[i]`.

    Element i equals element `numbers[i]` of `jax.random.bits` for the key with data `keys[i]`. It is the
    exclusive or of both words that the generator makes of the number (Salmon et al., "Parallel random numbers:
    as easy as 1, 2, 3", 2011). Both words are also the data of the key folded with the number.
    """
    one, other = _words(keys, numbers)
    return one ^ other


def _words(keys: jax.Array, numbers: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return both threefry words, uint32 [n], of each number with its key, uint32 [n, 2]."""
    one, other = threefry2x32_p.bind(keys[:, 0], keys[:, 1], jnp.zeros_like(numbers), numbers)
    return one, other


def uniform(bits: jax.Array) -> jax.Array:
    """Convert random bits to float32 numbers in [0, 1), as `jax.random.uniform` does."""
    return jax.lax.bitcast_convert_type((bits >> 9) | np.float32(1).view(np.uint32), np.float32) - np.float32(1)


def between(fractions: jax.Array, low: float | np.floating, high: float | np.floating) -> jax.Array:
    """Scale float32 numbers in [0, 1) to [low, high)."""
    bottom, top = np.float32(low), np.float32(high)
    return jnp.maximum(fractions * (top - bottom) + bottom, bottom)


def normal(bits: jax.Array) -> jax.Array:
    """Convert random bits to standard normal float32 numbers, as `jax.random.normal` does."""
    return _ROOT * jax.lax.erf_inv(between(uniform(bits), np.nextafter(np.float32(-1), np.float32(0)), 1.0))


def truncated_normal(bits: jax.Array) -> jax.Array:
    """Convert random bits to standard normal float32 numbers in (-2, 2), as `jax.random.truncated_normal` does."""
    most = np.nextafter(np.float32(2), np.float32(0))
    return jnp.clip(_ROOT * jax.lax.erf_inv(between(uniform(bits), -_EDGE, _EDGE)), -most, most)


_SHAPED = {"uniform": uniform, "normal": normal, "truncated_normal": truncated_normal}
