"""Dropout."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfluid import errors
from jfluid.ops.random import key_of
from jfluid.ops.registry import op


def _random_bits(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return 32 random bits for each element: its index, hashed with the key (the mixing steps of MurmurHash3).

    A mask needs no cryptographic generator. This one costs a fifth of `jax.random.bits` on CPUs.
    """
    words = jax.random.key_data(key).astype(jnp.uint32)
    size = int(np.prod(shape))
    x = lax.iota(jnp.uint32, size).reshape(shape) * np.uint32(0x9E3779B9) + words[0]
    for shift, factor, word in ((16, 0x85EBCA6B, words[1]), (13, 0xC2B2AE35, words[0]), (16, 0x85EBCA6B, words[1])):
        x = (x ^ (x >> np.uint32(shift)) ^ word) * np.uint32(factor)
    return x ^ (x >> np.uint32(16))


def _key(key: jax.Array, seed_tensor: jax.Array | None, seed: int) -> jax.Array:

    if seed_tensor is None:
        return key_of(key, seed)
    value = seed_tensor.reshape(-1)[0]
    fixed = jax.random.key_data(jax.random.key(value))
    return jnp.where(value == 0, jax.random.key_data(key), fixed)


def _factors(prob: float, is_test: bool, implementation: str) -> float:
    """Return the factor of elements that are kept."""
    if implementation not in ("downgrade_in_infer", "upscale_in_train"):
        raise errors.ProgramError(
            f"dropout: dropout_implementation {implementation!r}, expected downgrade_in_infer or upscale_in_train"
        )
    if not 0 <= prob <= 1:
        raise errors.ProgramError(f"dropout: dropout_prob {prob}, expected a number between 0 and 1")
    if implementation == "downgrade_in_infer":
        return 1 - prob if is_test else 1.0
    return 1.0 if is_test or prob == 1 else 1 / (1 - prob)


@op("dropout", ins=("X", "Seed?"), outs=("Out", "Mask~"), nograd=("Seed",), rng=True, rows="map")
def dropout(
    x: Array,
    seed_tensor: Array | None,
    *,
    key: Array,
    dropout_prob: float = 0.5,
    is_test: bool = False,
    fix_seed: bool = False,
    seed: int = 0,
    dropout_implementation: str = "downgrade_in_infer",
) -> tuple[Array, Array]:
    """Set each element of x to zero with probability dropout_prob; Mask is 1 for kept elements."""
    factor = _factors(dropout_prob, is_test, dropout_implementation)
    if is_test or dropout_prob == 0:
        return _times(x, factor), jnp.ones(x.shape, jnp.uint8)
    if dropout_prob == 1:
        return jnp.zeros_like(x), jnp.zeros(x.shape, jnp.uint8)
    bits = _random_bits(_key(key, seed_tensor, seed if fix_seed else 0), x.shape)
    kept = bits >= np.uint32(min(round(dropout_prob * 2**32), 2**32 - 1))
    return jnp.where(kept, _times(x, factor), 0), kept.astype(jnp.uint8)


def _times(x: jax.Array, factor: float) -> jax.Array:
    return x if factor == 1 else x * jnp.asarray(factor, x.dtype)


# The gradient is computed from the mask: a derived gradient would draw the same numbers again.
@op("dropout_grad", ins=("Mask", "Out@GRAD"), outs=("X@GRAD",), grad=False, rows="map")
def dropout_grad(
    mask: Array,
    grad: Array,
    *,
    dropout_prob: float = 0.5,
    is_test: bool = False,
    fix_seed: bool = False,
    seed: int = 0,
    dropout_implementation: str = "downgrade_in_infer",
) -> Array:
    """Return the gradient of dropout: the output gradient at kept elements."""
    return jnp.where(mask != 0, _times(grad, _factors(dropout_prob, is_test, dropout_implementation)), 0)
