"""Random numbers of many operators at once.

A startup program draws for each of its parameters. XLA compiles the generator anew for each of
them, which takes longer than everything else; for all numbers together it compiles it once. The
numbers are those that `jax.random` gives for each key.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfluid.ir.types import VarType

MOST = 1 << 22  # numbers at once: they take some twenty bytes each meanwhile
_PART = 1 << 18
_ROOT = np.float32(math.sqrt(2))
_EDGE = np.float32(math.erf(np.float32(2) / _ROOT))


@dataclass
class Drawn:
    """Numbers that were drawn for an operator, which gets them in place of its key."""

    values: jax.Array


def possible(key: Any) -> bool:
    """Return whether numbers for keys that are derived from this one can be drawn together: it must
    be a threefry key.
    """
    return (
        key is not None
        and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        and jax.random.key_impl(key) == "threefry2x32"
    )


def size(attrs: dict[str, Any]) -> int:
    """Return how many numbers an operator with these attributes draws, if they are float32 and
    their shape is known; else 0.
    """
    shape = attrs.get("shape", ())
    known = shape and min(shape) > 0 and attrs.get("dtype", VarType.FP32) == VarType.FP32
    return math.prod(shape) if known and math.prod(shape) <= MOST else 0


def standard(kind: str, keys: Sequence[jax.Array], sizes: Sequence[int]) -> list[Drawn]:
    """Return, for each key, numbers of the standard distribution `kind`: "uniform", "normal" or
    "truncated_normal".
    """
    shaped = {"uniform": uniform, "normal": normal, "truncated_normal": truncated_normal}[kind]
    values, ends = _in_parts(shaped, keys, sizes), np.cumsum(sizes).tolist()
    return [Drawn(values[end - size : end]) for size, end in zip(sizes, ends, strict=True)]


def _in_parts(
    shaped: Callable[[jax.Array], jax.Array], keys: Sequence[jax.Array], sizes: Sequence[int]
) -> jax.Array:
    """Return [sum of sizes]: for each key in turn what `shaped` makes of its bits.

    It loops over parts: XLA would otherwise put the generator into every one of the many programs
    that take a piece.
    """
    total = sum(sizes)
    parts = max(2, -(-total // _PART))
    ends = np.cumsum(sizes)
    # Which key is whose is looked up: XLA would compile a piece of the program for each operator.
    data = jnp.stack([jax.random.key_data(key) for key in keys])
    places = jax.lax.iota(np.uint32, -(-total // parts) * parts)
    impl = jax.random.key_impl(keys[0])

    def each(part: jax.Array) -> tuple[jax.Array, jax.Array]:
        of = jnp.searchsorted(jnp.asarray(ends, np.uint32), part, side="right")
        of = jnp.minimum(of, len(sizes) - 1)  # what fills the last part
        return data[of], part - jnp.asarray(ends - sizes, np.uint32)[of]

    def draw(part: jax.Array) -> jax.Array:
        of, number = each(part)
        return shaped(bits(jax.random.wrap_key_data(of, impl=impl), number))

    return jax.lax.map(draw, places.reshape(parts, -1)).ravel()


def bits(keys: jax.Array, numbers: jax.Array) -> jax.Array:
    """Return uint32 [n]: element `numbers[i]` of what `jax.random.bits` gives for threefry key i of
    `keys`.

    It is the exclusive or of the two words that the generator makes of the number (Salmon et al.,
    "Parallel random numbers: as easy as 1, 2, 3", 2011), which are also those of the key folded
    with it.
    """
    words = jax.random.key_data(jax.vmap(jax.random.fold_in)(keys, numbers))
    return words[:, 0] ^ words[:, 1]


def uniform(bits: jax.Array) -> jax.Array:
    """Return float32 numbers in [0, 1), as `jax.random.uniform` makes them of these bits."""
    return jax.lax.bitcast_convert_type(
        (bits >> 9) | np.float32(1).view(np.uint32), np.float32
    ) - np.float32(1)


def between(fractions: jax.Array, low: float | np.floating, high: float | np.floating) -> jax.Array:
    """Return float32 numbers in [low, high), from those in [0, 1)."""
    bottom, top = np.float32(low), np.float32(high)
    return jnp.maximum(fractions * (top - bottom) + bottom, bottom)


def normal(bits: jax.Array) -> jax.Array:
    """Return standard normal float32 numbers, as `jax.random.normal` makes them of these bits."""
    return _ROOT * jax.lax.erf_inv(
        between(uniform(bits), np.nextafter(np.float32(-1), np.float32(0)), 1.0)
    )


def truncated_normal(bits: jax.Array) -> jax.Array:
    """Return standard normal float32 numbers in (-2, 2), as `jax.random.truncated_normal` makes
    them of these bits.
    """
    most = np.nextafter(np.float32(2), np.float32(0))
    return jnp.clip(_ROOT * jax.lax.erf_inv(between(uniform(bits), -_EDGE, _EDGE)), -most, most)
