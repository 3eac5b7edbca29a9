"""Operators that draw random numbers: distributions, seeds, keys."""

import jax
import numpy as np
import pytest

from jfluid import errors
from jfluid.ir.types import VarType
from jfluid.ops import registry
from jfluid.ops.random import key_of
from tests.op_case import check

FP64, INT32 = int(VarType.FP64), int(VarType.INT32)
N = 20000


def draw(op_type, *inputs, key=0, **attrs):
    with jax.enable_x64(True):
        return np.asarray(registry.get(op_type).fn(*inputs, key=jax.random.key(key), **attrs))


def test_key_of_keeps_the_kind_of_key():
    new, old = jax.random.key(3, impl="rbg"), jax.random.PRNGKey(3)
    assert key_of(new, 0) is new
    assert jax.random.key_impl(key_of(new, 5)) == "rbg"
    np.testing.assert_array_equal(key_of(old, 7), jax.random.PRNGKey(7))


CASES = [
    ("uniform_random", (None, []), {"shape": (3, 4)}),
    ("gaussian_random", (None, []), {"shape": (3, 4)}),
    ("truncated_gaussian_random", (), {"shape": (3, 4)}),
    ("randint", (None, []), {"shape": (3, 4), "low": 0, "high": 1000}),
    ("randperm", (), {"n": 50}),
    ("uniform_random_batch_size_like", (np.zeros((3, 1)),), {"shape": (-1, 4)}),
    ("gaussian_random_batch_size_like", (np.zeros((3, 1)),), {"shape": (-1, 4)}),
]


@pytest.mark.parametrize("op_type, inputs, attrs", CASES, ids=[c[0] for c in CASES])
def test_keys_and_seeds(op_type, inputs, attrs):
    first = draw(op_type, *inputs, **attrs)
    assert not np.array_equal(first, draw(op_type, *inputs, key=1, **attrs))
    np.testing.assert_array_equal(first, draw(op_type, *inputs, **attrs))
    seeded = draw(op_type, *inputs, seed=5, **attrs)
    np.testing.assert_array_equal(seeded, draw(op_type, *inputs, seed=5, key=1, **attrs))
    assert not np.array_equal(seeded, draw(op_type, *inputs, seed=6, **attrs))


@pytest.mark.parametrize(
    "op_type, inputs, attrs",
    [
        ("uniform_random", {}, {"shape": [2, 3]}),
        ("uniform_random", {}, {"shape": [2, 3], "dtype": FP64}),
        ("gaussian_random", {}, {"shape": [2, 3]}),
        ("truncated_gaussian_random", {}, {"shape": [2], "dtype": FP64}),
        ("randint", {}, {"shape": [2, 3], "low": 0, "high": 9}),
        ("randint", {}, {"shape": [2], "low": 0, "high": 9, "dtype": INT32}),
        ("randperm", {}, {"n": 4}),
        ("seed", {}, {"seed": 0}),
        ("uniform_random_batch_size_like", {"Input": np.zeros((3, 2))}, {"shape": [-1, 4]}),
        ("gaussian_random_batch_size_like", {"Input": np.zeros((3, 2))}, {"shape": [-1, 4]}),
        ("sampling_id", {"X": np.full((3, 2), 0.5, "float32")}, {}),
    ],
)
def test_inferred_shapes(op_type, inputs, attrs):
    check(op_type, inputs, attrs, expect={"Out": None})


def test_uniform_random():
    out = draw("uniform_random", None, [], shape=(N,), min=-2.0, max=4.0)
    assert out.dtype == np.float32 and out.min() >= -2 and out.max() < 4
    assert abs(out.mean() - 1) < 0.05 and abs(out.std() - 6 / 12**0.5) < 0.05
    assert draw("uniform_random", np.array([2, 3]), []).shape == (2, 3)
    assert draw("uniform_random", None, [np.array([2]), np.array([5])], shape=(2, -1)).shape == (
        2,
        5,
    )
    with pytest.raises(errors.OpError, match="min <= max"):
        draw("uniform_random", None, [], shape=(2,), min=1.0, max=0.0)


def test_uniform_random_with_a_diagonal():
    out = draw("uniform_random", None, [], shape=(3, 4), diag_num=3, diag_step=4, diag_val=7.0)
    np.testing.assert_array_equal(out == 7, np.eye(3, 4, dtype=bool))
    with pytest.raises(errors.OpError, match="outside shape"):
        draw("uniform_random", None, [], shape=(3, 4), diag_num=4, diag_step=4)


@pytest.mark.parametrize(
    "op_type, inputs, shape",
    [
        ("gaussian_random", (None, []), (N,)),
        ("gaussian_random_batch_size_like", (np.zeros(N),), (-1,)),
    ],
)
def test_gaussian_random(op_type, inputs, shape):
    out = draw(op_type, *inputs, shape=shape, mean=3.0, std=2.0)
    assert out.shape == (N,) and abs(out.mean() - 3) < 0.06 and abs(out.std() - 2) < 0.06
    assert np.abs(out - 3).max() > 5


def test_truncated_gaussian_random():
    out = draw("truncated_gaussian_random", shape=(N,), mean=3.0, std=2.0)
    assert np.abs(out - 3).max() <= 4 and abs(out.mean() - 3) < 0.06
    # the deviation of a normal variable cut at two deviations
    assert abs(out.std() - 2 * 0.8796) < 0.05


def test_uniform_random_batch_size_like():
    out = draw(
        "uniform_random_batch_size_like",
        np.zeros((4, 7)),
        shape=(5, -1),
        input_dim_idx=1,
        output_dim_idx=1,
    )
    assert out.shape == (5, 7) and np.abs(out).max() <= 1


def test_randint():
    out = draw("randint", None, [], shape=(N,), low=2, high=5)
    assert out.dtype == np.int64
    np.testing.assert_allclose(np.bincount(out)[2:] / N, [1 / 3] * 3, atol=0.02)
    with pytest.raises(errors.OpError, match="low < high"):
        draw("randint", None, [], shape=(2,), low=2, high=2)


def test_randperm():
    out = draw("randperm", n=20, dtype=INT32)
    assert out.dtype == np.int32
    np.testing.assert_array_equal(np.sort(out), np.arange(20))


def test_sampling_id():
    x = np.tile(np.array([[0.2, 0.0, 0.8]], "float32"), (N, 1))
    np.testing.assert_allclose(np.bincount(draw("sampling_id", x)) / N, [0.2, 0, 0.8], atol=0.02)
    assert (draw("sampling_id", x[:9], min=0.5, max=0.9) == 2).all()


def test_seed():
    np.testing.assert_array_equal(draw("seed", seed=3), [3])
    assert draw("seed", seed=0) != draw("seed", seed=0, key=1)


def test_random_crop():
    x = np.arange(200.0).reshape(20, 10)
    check(
        "random_crop",
        {"X": x, "Seed": np.array([7])},
        {"shape": [4]},
        expect={"Out": None, "SeedOut": None},
    )
    with jax.enable_x64(True):
        out, following = registry.get("random_crop").fn(x, np.array([7]), shape=(4,))
        again, _ = registry.get("random_crop").fn(x, following, shape=(4,))
    first = np.asarray(out)[:, 0] - x[:, 0]
    np.testing.assert_array_equal(out, x[:, :1] + first[:, None] + np.arange(4))
    assert first.min() >= 0 and first.max() <= 6 and len(set(first)) > 2
    assert not np.array_equal(out, again)
    with pytest.raises(errors.ShapeError, match="is larger than shape"):
        registry.get("random_crop").fn(x, np.array([7]), shape=(11,))
