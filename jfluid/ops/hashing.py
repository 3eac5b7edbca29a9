"""Hashes of integers: xxHash and the 128-bit MurmurHash3 for x64.

Sources: Collet, https://github.com/Cyan4973/xxHash, specification 0.1.1; Appleby,
https://github.com/aappleby/smhasher. All rows are hashed at once; the length of a row in bytes is known
while tracing.
"""

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


def _doubles(words: Array) -> list[Array]:
    """Return pairs of 32-bit words as 64-bit ones; an odd last word is left out."""
    wide = words.astype(jnp.uint64)
    return [wide[..., i] | wide[..., i + 1] << np.uint64(32) for i in range(0, words.shape[-1] - 1, 2)]


def xxh64(rows: Array, seed: int) -> Array:
    """Return the 64-bit xxHash, uint64 [...], of the bytes of each row of 32- or 64-bit numbers [..., n]."""
    words = _words(rows)
    p1, p2, p3, p4, p5 = _PRIMES_64
    start, pairs = np.uint64(seed), _doubles(words)

    def mixed(state: Array, word: Array) -> Array:
        return _rotated(state + word * p2, 31) * p1

    zero, at = jnp.zeros(words.shape[:-1], jnp.uint64), 0
    with np.errstate(over="ignore"):
        lanes = [zero + start + p1 + p2, zero + start + p2, zero + start, zero + start - p1]
    if len(pairs) >= 4:
        while at + 4 <= len(pairs):
            lanes = [mixed(s, w) for s, w in zip(lanes, pairs[at : at + 4])]
            at += 4
        out = sum((_rotated(s, r) for s, r in zip(lanes, (1, 7, 12, 18))), zero)
        for s in lanes:
            out = (out ^ mixed(zero, s)) * p1 + p4
    else:
        out = zero + start + p5
    out = out + np.uint64(words.shape[-1] * 4)
    for word in pairs[at:]:
        out = _rotated(out ^ mixed(zero, word), 27) * p1 + p4
    if words.shape[-1] % 2:
        last = words[..., -1].astype(jnp.uint64)
        out = _rotated(out ^ last * p1, 23) * p2 + p3
    out = (out ^ out >> np.uint64(33)) * p2
    out = (out ^ out >> np.uint64(29)) * p3
    return out ^ out >> np.uint64(32)


def xxh32(rows: Array, seed: int) -> Array:
    """Return the 32-bit xxHash, uint32 [...], of the bytes of each row of 32-bit numbers [..., n]."""
    words = _words(rows)
    p1, p2, p3, p4, p5 = _PRIMES_32
    zero, start, count, at = (jnp.zeros(words.shape[:-1], jnp.uint32), np.uint32(seed), words.shape[-1], 0)
    if count >= 4:
        lanes = [zero + start + p1 + p2, zero + start + p2, zero + start, zero + start - p1]
        while at + 4 <= count:
            lanes = [_rotated(s + words[..., at + i] * p2, 13) * p1 for i, s in enumerate(lanes)]
            at += 4
        out = sum((_rotated(s, r) for s, r in zip(lanes, (1, 7, 12, 18))), zero)
    else:
        out = zero + start + p5
    out = out + np.uint32(count * 4)
    for i in range(at, count):
        out = _rotated(out + words[..., i] * p3, 17) * p4
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
    zero, pairs = jnp.zeros(words.shape[:-1], jnp.uint64), _doubles(words)
    if words.shape[-1] % 2:
        pairs.append(words[..., -1].astype(jnp.uint64))
    whole = words.shape[-1] // 4

    def first(k: Array) -> Array:
        return _rotated(k * c1, 31) * c2

    def second(k: Array) -> Array:
        return _rotated(k * c2, 33) * c1

    a, b = zero + seed, zero + seed
    for i in range(whole):
        a = _rotated(a ^ first(pairs[2 * i]), 27) + b
        a = a * np.uint64(5) + np.uint64(0x52DCE729)
        b = _rotated(b ^ second(pairs[2 * i + 1]), 31) + a
        b = b * np.uint64(5) + np.uint64(0x38495AB5)
    tail = pairs[2 * whole :]
    if len(tail) > 1:
        b = b ^ second(tail[1])
    if tail:
        a = a ^ first(tail[0])
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
    found = [xxh64(x, seed) for seed in range(unrolled.times("hash", "num_hash", num_hash))]
    out = jnp.stack(found, axis=-1) % np.uint64(mod_by)
    return out[..., None].astype(x.dtype)
