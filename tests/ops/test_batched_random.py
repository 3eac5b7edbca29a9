"""Numbers that are drawn for many operators at once are those of `jax.random` for each of them."""

import jax
import numpy as np
import pytest

import jfluid as fluid
from jfluid.ops import batched_random, random

SIZES = [5, 1, 70_000, 300_000]


@pytest.mark.parametrize(
    ("make", "one"),
    [
        (batched_random.uniform, lambda key, shape, a, b: jax.random.uniform(key, shape, minval=a, maxval=b)),
        (batched_random.normal, lambda key, shape, a, b: jax.random.normal(key, shape) * b + a),
        (
            batched_random.truncated_normal,
            lambda key, shape, a, b: jax.random.truncated_normal(key, -2.0, 2.0, shape) * b + a,
        ),
    ],
)
def test_numbers_are_those_of_jax(make, one):
    keys = jax.random.split(jax.random.key(3), len(SIZES))
    requests = [make([size], -i, i + 0.5) for i, size in enumerate(SIZES)]
    found = batched_random.drawn(requests, jax.random.key_data(keys))
    for i, (drawn, key, size) in enumerate(zip(found, keys, SIZES, strict=True)):
        assert drawn.values.dtype == np.float32 and drawn.values.shape == (size,)
        np.testing.assert_allclose(drawn.values, one(key, (size,), -i, i + 0.5), rtol=2e-5, atol=1e-6 * (i + 1))


def test_requests_are_divided_by_kind_and_by_size():
    requests = {at: batched_random.normal([size], 0, 1) for at, size in enumerate([5, 3, 2, 9])}
    requests[4], requests[7] = (batched_random.uniform([size], 0, 1) for size in (4, 4))
    assert batched_random.batches(requests, 9) == [[0, 1], [2], [3], [4, 7]]
    assert batched_random.batches({}, 9) == []


@pytest.mark.parametrize(
    ("operator", "one"),
    [
        (
            lambda key, shape: random.uniform_random(None, None, shape=shape, min=-0.3, max=0.5, key=key),
            lambda key, shape: jax.random.uniform(key, shape, minval=-0.3, maxval=0.5),
        ),
        (
            lambda key, shape: random.gaussian_random(None, None, shape=shape, mean=2, std=3, key=key),
            lambda key, shape: jax.random.normal(key, shape) * 3 + 2,
        ),
        (
            lambda key, shape: random.truncated_gaussian_random(shape=shape, std=3, key=key),
            lambda key, shape: jax.random.truncated_normal(key, -2.0, 2.0, shape) * 3,
        ),
    ],
)
def test_many_numbers_are_drawn_in_parts_and_are_those_of_jax(operator, one, monkeypatch):
    monkeypatch.setattr(batched_random, "_LARGE", 64)
    monkeypatch.setattr(batched_random, "_LARGE_PART", 64)
    key, shape = jax.random.key(3), (7, 31)
    text = jax.jit(lambda key: operator(key, shape)).lower(key).as_text()
    assert "stablehlo.while" in text and "tensor<217xui32>" not in text
    np.testing.assert_allclose(operator(key, shape), one(key, shape), rtol=2e-5, atol=1e-6)


def test_bits_are_those_of_jax():
    key = jax.random.key(11)
    keys = jax.numpy.broadcast_to(jax.random.key_data(key), (9, 2))
    np.testing.assert_array_equal(batched_random.bits(keys, np.arange(9, dtype=np.uint32)), jax.random.bits(key, (9,)))


@pytest.mark.parametrize(
    ("attrs", "size"),
    [
        ({"shape": [3, 4], "dtype": 5}, 12),
        ({"shape": [3, 4], "dtype": 6}, None),
        ({"shape": [], "dtype": 5}, None),
        ({"shape": [-1, 4], "dtype": 5}, None),
    ],
)
def test_what_can_be_drawn_with_others(attrs, size):
    found = batched_random.request("normal", attrs | {"mean": 1.0, "std": 2.0})
    assert (found and found.size) == size


def _startup(monkeypatch, names, most=None):
    """The values of parameters with these initializers."""
    if most is not None:
        monkeypatch.setattr(batched_random, "MOST_ON_CPUS", most)
    new = fluid.initializer
    kinds = {
        "u": new.Uniform(-3, 5),
        "n": new.Normal(2, 7),
        "t": new.TruncatedNormal(2, 7),
        "s": new.Normal(seed=9),
        "z": new.Normal(seed=9),
    }
    main, startup = fluid.Program(), fluid.Program()
    startup.random_seed = 5
    with fluid.program_guard(main, startup):
        for i, name in enumerate(names):
            fluid.layers.create_parameter([40, 3 + i], "float32", name, default_initializer=kinds[name[0]])
    scope = fluid.Scope()
    fluid.Executor(fluid.CPUPlace()).run(startup, scope=scope)
    return {n: np.array(scope.find_var(n).get_tensor()) for n in names}


def test_parameters_do_not_depend_on_what_is_drawn_with_them(monkeypatch):
    names = ["u1", "n1", "t1", "u2", "n2", "s1", "z1", "t2"]
    together = _startup(monkeypatch, names)
    for most in (0, 250):
        for name, value in _startup(monkeypatch, names, most).items():
            np.testing.assert_allclose(value, together[name], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(together["s1"].ravel(), together["z1"].ravel()[: together["s1"].size])
    assert together["u1"].min() >= -3 and together["u1"].max() < 5 and np.ptp(together["u1"]) > 6
    assert 10 < abs(together["t1"] - 2).max() < 14
    assert len({together[n].ravel()[0] for n in ("u1", "u2", "n1", "n2", "t1", "t2", "s1")}) == 7


@pytest.mark.parametrize("key", [jax.random.key(3), jax.random.PRNGKey(3), jax.random.key(3, impl="rbg")])
def test_other_keys_draw_too(key):
    drawn = [fluid.layers.uniform_random([300], seed=0), fluid.layers.gaussian_random([300])]
    apply, params = fluid.to_jax(fluid.default_main_program(), [], drawn)
    even, normal = map(np.asarray, apply(params, key=key))
    assert even.min() >= -1 and even.max() < 1 and 0.4 < even.std() < 0.75 and 0.7 < normal.std() < 1.3
