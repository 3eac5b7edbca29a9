"""Operators that draw random numbers.

The distributions are Fluid's; the numbers come from JAX's generator, so they differ from
Fluid's.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfluid import errors
from jfluid.ir.types import np_dtype
from jfluid.ops import batched_random
from jfluid.ops.creation import like_batch
from jfluid.ops.ragged import Value
from jfluid.ops.registry import Int, Ints, Longs, op
from jfluid.ops.shape import given_shape

_SHAPE = ("ShapeTensor?", "ShapeTensorList*?")


def key_of(key: Any, seed: int) -> Any:
    """Return `key` for seed 0, else a key of the same kind derived from the seed alone."""
    if seed == 0 or isinstance(key, batched_random.Drawn):
        return key
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return jax.random.key(seed, impl=jax.random.key_impl(key))
    return jax.random.PRNGKey(seed)


def _uniform(key: Array, shape: Sequence[int], dtype: Any, low: float, high: float) -> Array:
    if low > high:
        raise errors.OpError(f"uniform_random: expected min <= max, found {low} and {high}")
    if isinstance(key, batched_random.Drawn):
        return key.values.reshape(shape)
    if batched_random.is_large(key, shape, np_dtype(dtype)):
        return batched_random.large(batched_random.uniform(shape, low, high), key).reshape(shape)
    return jax.random.uniform(key, shape, np_dtype(dtype), low, high)


def _with_diagonal(out: Array, number: int, step: int, value: float) -> Array:
    """Write `value` to every (step + 1)-th element, `number` times: a diagonal if step is the row length."""
    if number <= 0:
        return out
    at = np.arange(number) * (step + 1)
    if at[-1] >= out.size:
        raise errors.OpError(f"uniform_random: diag_num {number} and diag_step {step} reach outside shape {out.shape}")
    return out.reshape(-1).at[at].set(value).reshape(out.shape)


@op("uniform_random", ins=_SHAPE, outs=("Out",), grad=False, rng=True, draws="uniform")
def uniform_random(
    shape_tensor: Array | None,
    shape_tensors: list[Array] | None,
    *,
    shape: Longs = (),
    min: float = -1.0,
    max: float = 1.0,
    seed: int = 0,
    diag_num: int = 0,
    diag_step: int = 0,
    diag_val: float = 1.0,
    dtype: int = 5,
    key: Array,
) -> Array:
    """Draw numbers evenly from [min, max); diag_* put a constant on a diagonal."""
    dims = given_shape(shape_tensors, shape_tensor, shape, "the shape of uniform_random")
    return _with_diagonal(_uniform(key_of(key, seed), dims, dtype, min, max), diag_num, diag_step, diag_val)


@op("uniform_random_batch_size_like", ins=("Input",), outs=("Out",), grad=False, rng=True, rows="sequence", counts=True)
def uniform_random_batch_size_like(
    like: Value,
    *,
    shape: Ints,
    input_dim_idx: int = 0,
    output_dim_idx: int = 0,
    min: float = -1.0,
    max: float = 1.0,
    seed: int = 0,
    diag_num: int = 0,
    diag_step: int = 0,
    diag_val: float = 1.0,
    dtype: int = 5,
    key: Array,
) -> Value:
    """Draw as uniform_random does, with one dimension of the shape taken from Input."""
    dims, wrap = like_batch(like, shape, input_dim_idx, output_dim_idx)
    return wrap(_with_diagonal(_uniform(key_of(key, seed), dims, dtype, min, max), diag_num, diag_step, diag_val))


def _gaussian(key: Array, shape: Sequence[int], dtype: Any, mean: float, std: float) -> Array:
    dtype = np_dtype(dtype)
    if isinstance(key, batched_random.Drawn):
        return key.values.reshape(shape)
    if batched_random.is_large(key, shape, dtype):
        return batched_random.large(batched_random.normal(shape, mean, std), key).reshape(shape)
    return jax.random.normal(key, shape, dtype) * np.asarray(std, dtype) + np.asarray(mean, dtype)


@op("gaussian_random", ins=_SHAPE, outs=("Out",), grad=False, rng=True, draws="normal")
def gaussian_random(
    shape_tensor: Array | None,
    shape_tensors: list[Array] | None,
    *,
    shape: Longs = (),
    mean: float = 0.0,
    std: float = 1.0,
    seed: int = 0,
    dtype: int = 5,
    key: Array,
) -> Array:
    """Draw normally distributed numbers."""
    dims = given_shape(shape_tensors, shape_tensor, shape, "the shape of gaussian_random")
    return _gaussian(key_of(key, seed), dims, dtype, mean, std)


@op(
    "gaussian_random_batch_size_like", ins=("Input",), outs=("Out",), grad=False, rng=True, rows="sequence", counts=True
)
def gaussian_random_batch_size_like(
    like: Value,
    *,
    shape: Ints,
    input_dim_idx: int = 0,
    output_dim_idx: int = 0,
    mean: float = 0.0,
    std: float = 1.0,
    seed: int = 0,
    dtype: int = 5,
    key: Array,
) -> Value:
    """Draw as gaussian_random does, with one dimension of the shape taken from Input."""
    dims, wrap = like_batch(like, shape, input_dim_idx, output_dim_idx)
    return wrap(_gaussian(key_of(key, seed), dims, dtype, mean, std))


@op("truncated_gaussian_random", outs=("Out",), grad=False, rng=True, draws="truncated_normal")
def truncated_gaussian_random(
    *, shape: Ints, mean: float = 0.0, std: float = 1.0, seed: int = 0, dtype: int = 5, key: Array
) -> Array:
    """Draw normally distributed numbers within two standard deviations."""
    elements = np_dtype(dtype)
    if isinstance(key, batched_random.Drawn):
        return key.values.reshape(shape)
    own = key_of(key, seed)
    if batched_random.is_large(own, shape, elements):
        return batched_random.large(batched_random.truncated_normal(shape, mean, std), own).reshape(shape)
    drawn = jax.random.truncated_normal(own, -2.0, 2.0, shape, elements)
    return drawn * np.asarray(std, elements) + np.asarray(mean, elements)


@op("randint", ins=_SHAPE, outs=("Out",), grad=False, rng=True)
def randint(
    shape_tensor: Array | None,
    shape_tensors: list[Array] | None,
    *,
    low: Int,
    high: Int,
    shape: Longs = (),
    seed: int = 0,
    dtype: int = 3,
    key: Array,
) -> Array:
    """Draw integers evenly from [low, high)."""
    if low >= high:
        raise errors.OpError(f"randint: expected low < high, found {low} and {high}")
    dims = given_shape(shape_tensors, shape_tensor, shape, "the shape of randint")
    return jax.random.randint(key_of(key, seed), dims, low, high, np_dtype(dtype))


@op("randperm", outs=("Out",), grad=False, rng=True)
def randperm(*, n: Int, seed: int = 0, dtype: int = 3, key: Array) -> Array:
    """Return the numbers from 0 to n - 1 in random order."""
    return jax.random.permutation(key_of(key, seed), n).astype(np_dtype(dtype))


@op("sampling_id", ins=("X",), outs=("Out",), grad=False, rng=True, rows="map")
def sampling_id(x: Array, *, min: float = 0.0, max: float = 1.0, seed: int = 0, key: Array) -> Array:
    """Sample a column from each row of probabilities, by inversion of a uniform number from [min, max)."""
    drawn = jax.random.uniform(key_of(key, seed), (x.shape[0], 1), x.dtype, min, max)
    return jnp.minimum((jnp.cumsum(x, 1) <= drawn).sum(1), x.shape[1] - 1).astype(np.int64)


@op("seed", outs=("Out",), grad=False, rng=True)
def seed(*, seed: int = 0, key: Array) -> Array:
    """Return the seed, or a random one when it is 0."""
    if seed:
        return jnp.array([seed], np.int32)
    return jax.random.randint(key, (1,), 1, 2**31 - 1, np.int32)


@op("random_crop", ins=("X", "Seed"), outs=("Out", "SeedOut~"), grad=False)
def random_crop(x: Array, seed: Array, *, shape: Ints, startup_seed: int = 0) -> tuple[Array, Array]:
    """Crop a random window from the last dimensions of x, for each instance; also return the next seed."""
    kept = x.ndim - len(shape)
    if kept < 0 or any(s > d for s, d in zip(shape, x.shape[kept:], strict=True)):
        raise errors.ShapeError(f"random_crop: shape {tuple(shape)} is larger than shape {x.shape}")
    key = jax.random.key(seed.reshape(-1)[0])
    count = prod(x.shape[:kept])
    rooms = [d - s + 1 for s, d in zip(shape, x.shape[kept:], strict=True)]
    at = [jax.random.randint(jax.random.fold_in(key, i), (count,), 0, room) for i, room in enumerate(rooms)]
    cut: Callable[..., Array] = jax.vmap(lambda one, *start: jax.lax.dynamic_slice(one, start, shape))
    out = cut(x.reshape(count, *x.shape[kept:]), *at).reshape(*x.shape[:kept], *shape)
    return out, jax.random.randint(jax.random.fold_in(key, len(rooms)), seed.shape, 1, 2**31 - 1, seed.dtype)
