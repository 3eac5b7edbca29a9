"""Hashes of integers: xxHash and the 128-bit MurmurHash3 for x64.

Sources: Collet, https://github.com/Cyan4973/xxHash, specification 0.1.1; Appleby,
https://github.com/aappleby/smhasher. All rows are hashed at once; the length of a row in bytes is known
while tracing.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfluid import errors
from jfluid.ops import unrolled
from jfluid.ops.registry import Int, Long, op

_PRIMES_64 = tuple(
    np.uint64(p)
    for p in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
)
_PRIMES_32 = tuple(np.uint32(p) for p in (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1))


def _rotated(x: Array, by: int) -> Array:
    bits = x.dtype.itemsize * 8
    return (x << x.dtype.type(by)) | (x >> x.dtype.type(bits - by))


def _words(rows: Array) -> Array:
    """Return the bytes of each row [..., n] as 32-bit words, lowest first."""
    if rows.dtype.itemsize == 4:
        return lax.bitcast_convert_type(rows, jnp.uint32)
    halves = lax.bitcast_convert_type(rows, jnp.uint32)
    return halves.reshape(*rows.shape[:-1], -1)


def _doubles(words: Array) -> Array:
    """Return pairs of 32-bit words [..., n] as 64-bit ones [..., n / 2]; an odd last word is left out."""
    even = words.shape[-1] // 2 * 2
    wide = words[..., :even].astype(jnp.uint64)
    return wide[..., ::2] | wide[..., 1::2] << np.uint64(32)


def _lanes(words: Array, start: Array, primes: Sequence[Any], mixed: Callable[[Array, Array], Array]) -> list[Array]:
    """Return the four lanes of an xxHash after whole groups of four words [..., n]."""
    p1, p2 = primes[:2]

    def step(group: Any, lanes: list[Array]) -> list[Array]:
        four = unrolled.part(words, 4 * group, 4, axis=-1)
        return [mixed(s, four[..., i]) for i, s in enumerate(lanes)]

    return unrolled.repeat(words.shape[-1] // 4, step, [start + p1 + p2, start + p2, start, start - p1])


def xxh64(rows: Array, seed: Array) -> Array:
    """Return the 64-bit xxHash, uint64 [...], of the bytes of each row of 32- or 64-bit numbers [..., n].

    The seed is uint64 and broadcasts against [...].
    """
    words = _words(rows)
    p1, p2, p3, p4, p5 = _PRIMES_64
    pairs = _doubles(words)
    count = pairs.shape[-1]

    def mixed(state: Any, word: Array) -> Array:
        return _rotated(state + word * p2, 31) * p1

    none = np.uint64(0)
    start = jnp.zeros(words.shape[:-1], jnp.uint64) + seed
    if count >= 4:
        lanes = _lanes(pairs, start, _PRIMES_64, mixed)
        out = sum((_rotated(s, r) for s, r in zip(lanes, (1, 7, 12, 18))), jnp.zeros_like(start))
        for s in lanes:
            out = (out ^ mixed(none, s)) * p1 + p4
    else:
        out = start + p5
    out = out + np.uint64(words.shape[-1] * 4)
    for i in range(count % 4):
        out = _rotated(out ^ mixed(none, pairs[..., count - count % 4 + i]), 27) * p1 + p4
    if words.shape[-1] % 2:
        last = words[..., -1].astype(jnp.uint64)
        out = _rotated(out ^ last * p1, 23) * p2 + p3
    out = (out ^ out >> np.uint64(33)) * p2
    out = (out ^ out >> np.uint64(29)) * p3
    return out ^ out >> np.uint64(32)


def xxh32(rows: Array, seed: Array) -> Array:
    """Return the 32-bit xxHash, uint32 [...], of the bytes of each row of 32-bit numbers [..., n].

    The seed is uint32 and broadcasts against [...].
    """
    words = _words(rows)
    p1, p2, p3, p4, p5 = _PRIMES_32
    count = words.shape[-1]
    start = jnp.zeros(words.shape[:-1], jnp.uint32) + seed
    if count >= 4:
        lanes = _lanes(words, start, _PRIMES_32, lambda state, word: _rotated(state + word * p2, 13) * p1)
        out = sum((_rotated(s, r) for s, r in zip(lanes, (1, 7, 12, 18))), jnp.zeros_like(start))
    else:
        out = start + p5
    out = out + np.uint32(count * 4)
    for i in range(count % 4):
        out = _rotated(out + words[..., count - count % 4 + i] * p3, 17) * p4
    out = (out ^ out >> np.uint32(15)) * p2
    out = (out ^ out >> np.uint32(13)) * p3
    return out ^ out >> np.uint32(16)


_MURMUR = np.uint64(0x87C37B91114253D5), np.uint64(0x4CF5AD432745937F)


def murmur3(rows: Array, seed: Array) -> tuple[Array, Array]:
    """Return both 64-bit halves of the 128-bit MurmurHash3 of each row of 32-bit numbers [..., n].

    The halves are uint64 [...]; the seed is uint64 and broadcasts against [...].
    """
    words = _words(rows)
    c1, c2 = _MURMUR
    pairs, whole = _doubles(words), words.shape[-1] // 4
    if words.shape[-1] % 2:
        pairs = jnp.concatenate([pairs, words[..., -1:].astype(jnp.uint64)], axis=-1)

    def first(k: Array) -> Array:
        return _rotated(k * c1, 31) * c2

    def second(k: Array) -> Array:
        return _rotated(k * c2, 33) * c1

    def step(block: Any, halves: tuple[Array, Array]) -> tuple[Array, Array]:
        a, b = halves
        two = unrolled.part(pairs, 2 * block, 2, axis=-1)
        a = _rotated(a ^ first(two[..., 0]), 27) + b
        a = a * np.uint64(5) + np.uint64(0x52DCE729)
        b = _rotated(b ^ second(two[..., 1]), 31) + a
        return a, b * np.uint64(5) + np.uint64(0x38495AB5)

    start = jnp.zeros(words.shape[:-1], jnp.uint64) + seed
    a, b = unrolled.repeat(whole, step, (start, start))
    tail = pairs.shape[-1] - 2 * whole
    if tail > 1:
        b = b ^ second(pairs[..., 2 * whole + 1])
    if tail:
        a = a ^ first(pairs[..., 2 * whole])
    size = np.uint64(words.shape[-1] * 4)
    a, b = a ^ size, b ^ size
    a = a + b
    b = b + a
    a, b = _avalanche(a), _avalanche(b)
    a = a + b
    return a, b + a


def _avalanche(k: Array) -> Array:
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        k = (k ^ k >> np.uint64(33)) * np.uint64(factor)
    return k ^ k >> np.uint64(33)


@op("hash", ins=("X",), outs=("Out",), grad=False, rows="map")
def hash_(x: Array, *, mod_by: Long = 100000, num_hash: Int = 1) -> Array:
    """Return `num_hash` xxHashes of each row of integers, modulo `mod_by`: [rows, num_hash, 1]."""
    if num_hash < 1 or mod_by < 1 or not jnp.issubdtype(x.dtype, jnp.integer):
        raise errors.DtypeError(
            "hash: X holds integers, num_hash and mod_by (hash_size) are at least 1, found "
            f"{x.dtype}, {num_hash} and {mod_by}"
        )
    out = xxh64(x[..., None, :], jnp.arange(num_hash, dtype=jnp.uint64)) % np.uint64(mod_by)
    return out[..., None].astype(x.dtype)
