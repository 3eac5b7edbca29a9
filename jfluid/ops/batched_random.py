"""Random numbers of many operators at once.

A startup program draws for each of its parameters. XLA would compile the generator for each parameter, which takes
longer than everything else. So one loop draws and scales the numbers of all parameters of a distribution. The
numbers are those that `jax.random` gives for each key.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry2x32_p

from jfluid.ir.types import VarType

_BLOCK, _ROWS = 256, 1 << 10  # numbers of a block; blocks of an iteration, which stay in a processor's cache
MOST, MOST_ON_CPUS = 1 << 22, 1 << 25  # numbers of a loop, which are in memory together
# Fewer numbers than _LARGE are drawn at once, by all threads: in half the time, and several times the memory.
_LARGE, _LARGE_PART = 1 << 25, 1 << 20
_ROOT = np.float32(math.sqrt(2))
_EDGE = np.float32(math.erf(np.float32(2) / _ROOT))


@dataclass
class Drawn:
    """Random numbers of an operator's distribution, drawn in advance, which the operator takes in place of the key."""

    values: jax.Array


class Draw(NamedTuple):
    """Numbers that an operator draws: `x * scale + shift`, with numbers x of a distribution without parameters.

    Attributes:
        kind: distribution of x: "uniform" for [0, 1), "normal" for a standard deviation of the square root of 1/2,
            "truncated_normal" for a standard deviation of 1 and numbers within (-2, 2).
        size: the count of numbers.
    """

    kind: str
    size: int
    scale: np.float32
    shift: np.float32


def uniform(shape: Sequence[int], low: float, high: float) -> Draw:
    """Return the request of numbers in [low, high)."""
    bottom, top = np.float32(low), np.float32(high)
    return Draw("uniform", math.prod(shape), top - bottom, bottom)


def normal(shape: Sequence[int], mean: float, deviation: float) -> Draw:
    """Return the request of normally distributed numbers."""
    return Draw("normal", math.prod(shape), _ROOT * np.float32(deviation), np.float32(mean))


def truncated_normal(shape: Sequence[int], mean: float, deviation: float) -> Draw:
    """Return the request of normally distributed numbers within two standard deviations."""
    return Draw("truncated_normal", math.prod(shape), np.float32(deviation), np.float32(mean))


def possible(key: Any) -> bool:
    """Return True if random numbers of keys derived from this key can be drawn together: for threefry keys."""
    return (
        key is not None
        and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        and jax.random.key_impl(key) == "threefry2x32"
    )


def request(kind: str, attrs: Mapping[str, Any]) -> Draw | None:
    """Return the numbers that an operator draws; None for an unknown shape and for dtypes other than float32.

    Args:
        kind: as of `Draw`.
        attrs: attributes of the operator, defaults included.
    """
    shape = attrs["shape"]
    if not shape or min(shape) <= 0 or attrs["dtype"] != VarType.FP32:
        return None
    if kind == "uniform":
        return uniform(shape, attrs["min"], attrs["max"])
    make = normal if kind == "normal" else truncated_normal
    return make(shape, attrs["mean"], attrs["std"])


def batches(requests: Mapping[int, Draw], most: int) -> list[list[int]]:
    """Divide requests into batches of one kind, each of at most `most` numbers; return the keys of the requests."""
    found, kind, total = list[list[int]](), "", 0
    for at, own in sorted(requests.items(), key=lambda item: (item[1].kind, item[0])):
        if own.kind != kind or total + own.size > most:
            found.append([])
            kind, total = own.kind, 0
        found[-1].append(at)
        total += own.size
    return found


def folded(key: Any, numbers: np.ndarray) -> jax.Array:
    """Return uint32 [n, 2]: the data of a threefry key folded with each of uint32 `numbers`."""
    return jnp.stack(_words(jax.random.key_data(key), jnp.asarray(numbers)), 1)


def drawn(requests: Sequence[Draw], keys: jax.Array) -> list[Drawn]:
    """Return the numbers of each request, all of one kind.

    A loop draws blocks of numbers. Each request begins at a block: numbers of a block share a key and a scale. XLA
    would compile a loop for each request.

    Args:
        keys: uint32 [n, 2], the data of a threefry key for each request.
    """
    blocks = np.array([-(-own.size // _BLOCK) for own in requests])
    ends = np.cumsum(blocks)
    parts = max(2, -(-int(ends[-1]) // _ROWS))  # XLA unrolls a loop of one part
    rows = -(-int(ends[-1]) // parts)
    of = np.repeat(np.arange(len(requests)), blocks)
    first = (np.arange(len(of)) - (ends - blocks)[of]) * _BLOCK
    tables = [np.pad(v.astype(np.uint32), (0, parts * rows - len(of))).reshape(parts, rows) for v in (of, first)]
    scales, shifts = (jnp.asarray([getattr(own, n) for own in requests]) for n in ("scale", "shift"))

    def draw(table: Sequence[jax.Array]) -> jax.Array:
        of, first = (column[:, None] for column in table)
        found = bits(keys[of], first + jax.lax.iota(np.uint32, _BLOCK))
        return _shaped(requests[0].kind, found, scales[of], shifts[of])

    numbers = jax.lax.map(draw, list(map(jnp.asarray, tables))).ravel()
    starts = ((ends - blocks) * _BLOCK).tolist()
    return [Drawn(jax.lax.slice_in_dim(numbers, at, at + own.size)) for at, own in zip(starts, requests)]


def is_large(key: Any, shape: Sequence[int], dtype: Any) -> bool:
    """Return True if numbers of this key are to be drawn by `large`."""
    return dtype == np.float32 and _LARGE <= math.prod(shape) < 1 << 31 and possible(key)


def large(own: Draw, key: Any) -> jax.Array:
    """Return the numbers of a request with a threefry key.

    The numbers are drawn in parts, each written into the result: a single draw would take several times the memory of
    the result.
    """
    data = jax.random.key_data(key)

    def draw(number: jax.Array, drawn: jax.Array) -> jax.Array:
        # the last part begins earlier, and draws some numbers once more
        start = jnp.minimum(number * _LARGE_PART, own.size - _LARGE_PART)
        found = bits(data, start.astype(np.uint32) + jax.lax.iota(np.uint32, _LARGE_PART))
        return jax.lax.dynamic_update_slice(drawn, _shaped(own.kind, found, own.scale, own.shift), (start,))

    parts = -(-own.size // _LARGE_PART)
    return jax.lax.fori_loop(0, parts, draw, jnp.zeros(own.size, np.float32))


def bits(keys: jax.Array, numbers: jax.Array) -> jax.Array:
    """Return the random bits, uint32 [...], at indices `numbers` of the threefry streams of `keys`.

    An element equals the element of this index of `jax.random.bits` for the key. It is the exclusive or of both words
    that the generator makes of the number (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011). Both
    words are also the data of the key folded with the number.

    Args:
        keys: uint32 [..., 2], of a shape that broadcasts to the shape of the numbers.
        numbers: uint32 [...].
    """
    one, other = _words(keys, numbers)
    return one ^ other


def _words(keys: jax.Array, numbers: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return both threefry words of each number with its key; see `bits`."""
    key = [jnp.broadcast_to(keys[..., i], numbers.shape) for i in (0, 1)]
    one, other = threefry2x32_p.bind(*key, jnp.zeros_like(numbers), numbers)
    return one, other


def _shaped(kind: str, bits: jax.Array, scale: Any, shift: Any) -> jax.Array:
    """Return float32 numbers from random bits; see `Draw`. `jax.random` gives the same numbers."""
    one = np.float32(1)
    fractions = jax.lax.bitcast_convert_type((bits >> 9) | one.view(np.uint32), np.float32) - one
    if kind == "uniform":
        return _between(fractions, scale, shift)
    low, high = (-_EDGE, _EDGE) if kind == "truncated_normal" else (np.nextafter(-one, np.float32(0)), one)
    values = jax.lax.erf_inv(_between(fractions, high - low, low))
    if kind == "truncated_normal":
        most = np.nextafter(np.float32(2), np.float32(0))
        values = jnp.clip(_ROOT * values, -most, most)
    return values * scale + shift


def _between(fractions: jax.Array, scale: Any, shift: Any) -> jax.Array:
    """Scale numbers in [0, 1). Rounding never gives less than `shift`."""
    return jnp.maximum(fractions * scale + shift, shift)
