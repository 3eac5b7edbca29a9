"""Layers that draw random numbers."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import layers
from tests.layers.run import build, run

X = np.zeros((5, 3), "float32")
UNKNOWN = ([-1, 3], X)
N = 5000


def test_uniform_random():
    out = run(lambda: layers.uniform_random([N], "float64", 1, 3))
    assert out.dtype == np.float64 and out.min() >= 1 and out.max() < 3 and abs(out.mean() - 2) < 0.05
    by_list = run(lambda: layers.uniform_random([2, layers.fill_constant([1], "int64", 3)]))
    assert by_list.shape == (2, 3)
    assert run(lambda x: layers.uniform_random(layers.shape(x)), x=UNKNOWN).shape == (5, 3)
    assert run(lambda x: layers.uniform_random_batch_size_like(x, [-1, 7]), x=UNKNOWN).shape == (
        5,
        7,
    )
    with pytest.raises(TypeError, match="expected dtype float32 or float64, found int32"):
        build(lambda: layers.uniform_random([2], "int32"))


def test_gaussian_random():
    out = run(lambda: layers.gaussian_random([N], 3, 2))
    assert abs(out.mean() - 3) < 0.12 and abs(out.std() - 2) < 0.12
    assert run(lambda x: layers.gaussian_random_batch_size_like(x, [4, -1], 0, 1), x=UNKNOWN).shape == (4, 5)
    out = run(lambda: layers.randn([N]))
    assert abs(out.mean()) < 0.06 and abs(out.std() - 1) < 0.06


def test_randint():
    assert set(run(lambda: layers.randint(2, 5, [200]))) == {2, 3, 4}
    out = run(lambda x: layers.randint(4, shape=layers.shape(x), dtype="int32"), x=UNKNOWN)
    assert out.shape == (5, 3) and out.dtype == np.int32 and out.max() < 4
    with pytest.raises(ValueError, match="randint: expected"):
        build(lambda: layers.randint(5, 5))
    with pytest.raises(TypeError, match="randint, dtype: expected dtype int32 or int64"):
        build(lambda: layers.randint(5, dtype="float32"))


def test_randperm_and_sampling_id():
    np.testing.assert_array_equal(np.sort(run(lambda: layers.randperm(9, dtype="int32"))), np.arange(9))
    with pytest.raises(ValueError, match="at least 1"):
        build(lambda: layers.randperm(0))
    out = run(lambda x: layers.sampling_id(x), x=np.array([[0, 1], [1, 0]], "float32"))
    np.testing.assert_array_equal(out, [1, 0])


def test_steps_differ_unless_seeded():
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        fetches = [
            layers.uniform_random([4]),
            layers.uniform_random([4]),
            layers.uniform_random([4], seed=3),
        ]
    exe, scope = fluid.Executor(fluid.CPUPlace()), fluid.Scope()
    (a, b, c), (d, _, e) = (exe.run(main, fetch_list=fetches, scope=scope) for _ in range(2))
    assert not np.array_equal(a, b) and not np.array_equal(a, d)
    np.testing.assert_array_equal(c, e)


def test_random_crop():
    x = np.arange(40, dtype="float32").reshape(4, 10)
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        data = main.global_block().create_var(name="x", shape=[-1, 10], dtype="float32", is_data=True)
        cropped = layers.random_crop(data, [3], seed=7)
    exe, scope = fluid.Executor(fluid.CPUPlace()), fluid.Scope()
    exe.run(startup, scope=scope)
    first, second = (exe.run(main, feed={"x": x}, fetch_list=[cropped], scope=scope)[0] for _ in range(2))
    np.testing.assert_array_equal(first - first[:, :1], np.tile(np.arange(3.0), (4, 1)))
    assert not np.array_equal(first, second)
    assert run(lambda x, s: layers.random_crop(x, [2], s), x=x, s=np.array([3])).shape == (4, 2)
