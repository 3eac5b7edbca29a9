"""Layers that create tensors."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, layers
from jfluid.ir.types import VarType
from tests.layers.run import build, run

X = np.arange(6, dtype="float32").reshape(2, 3)


def test_create_tensor_and_assign_into_it():
    def net():
        out = layers.create_tensor("float32", name="kept")
        assert layers.assign(layers.zeros([2], "float32") + 3, out) is out
        return out

    np.testing.assert_array_equal(run(net), [3, 3])
    assert build(lambda: layers.create_tensor("int64", persistable=True)).name == "create_tensor_0"


def test_create_parameter():
    def net():
        weight = layers.create_parameter([2, 3], "float32")
        bias = layers.create_parameter([3], "float32", name="my_bias", is_bias=True)
        assert (weight.name, bias.name) == ("create_parameter_0.w_0", "my_bias")
        return weight, bias

    weight, bias = run(net)
    assert 0 < np.abs(weight).max() <= (6 / 5) ** 0.5
    np.testing.assert_array_equal(bias, np.zeros(3))


def test_create_global_var():
    def net():
        var = layers.create_global_var([2], 1.5, "float32", persistable=True, name="global")
        assert var.stop_gradient and var.persistable
        return var

    np.testing.assert_array_equal(run(net), [1.5, 1.5])
    assert build(lambda: layers.create_global_var([1], 0, "int64")).name == "_generated_var_0"


@pytest.mark.parametrize("dtype", ["int64", "bool", VarType.FP64])
def test_cast(dtype):
    out = run(lambda x: layers.cast(x, dtype), x=X)
    assert out.dtype == ("float64" if dtype == VarType.FP64 else dtype)
    np.testing.assert_array_equal(out, X.astype(out.dtype))


def test_concat():
    np.testing.assert_array_equal(run(lambda x: layers.concat([x, x], -1), x=X), np.concatenate([X, X], 1))
    np.testing.assert_array_equal(run(lambda x: layers.concat(x), x=X), X)
    by_tensor = run(lambda x: layers.concat([x, x], layers.fill_constant([1], "int32", 1)), x=X)
    np.testing.assert_array_equal(by_tensor, np.concatenate([X, X], 1))


@pytest.mark.parametrize("array", [X, X.astype("int64"), X.astype("int32"), X > 2])
def test_assign_of_arrays(array):
    out = run(lambda: layers.assign(array))
    assert out.dtype == array.dtype
    np.testing.assert_array_equal(out, array)


def test_assign_refuses_other_things():
    with pytest.raises(TypeError, match="bool, float32, int32 or int64, found float64"):
        build(lambda: layers.assign(np.ones(2)))
    with pytest.raises(TypeError, match="found list"):
        build(lambda: layers.assign([1.0]))


def test_fill_constant():
    np.testing.assert_array_equal(run(lambda: layers.fill_constant([2, 3], "float32", 1.5)), np.full((2, 3), 1.5))
    big = run(lambda: layers.fill_constant([1], "int64", 2**60 + 1))
    assert big == 2**60 + 1
    assert run(lambda: layers.fill_constant([1], "int32", layers.ones([1], "int32"))) == 1
    assert build(lambda: layers.fill_constant([1], "int32", 1)).stop_gradient


def test_fill_constant_by_variables():
    def mixed(x):
        rows = layers.slice(layers.shape(x), [0], [0], [1])
        return layers.fill_constant([rows, 4], "float32", 2.0)

    def whole(x):
        return layers.fill_constant(layers.shape(x), "int64", 7)

    x = {"x": ([-1, 3], X)}
    np.testing.assert_array_equal(run(mixed, **x), np.full((2, 4), 2))
    np.testing.assert_array_equal(run(whole, **x), np.full((2, 3), 7))
    assert build(mixed, **x).shape == (-1, 4)
    assert build(whole, **x).shape == (-1, -1)
    with pytest.raises(TypeError, match=r"fill_constant, shape: expected an integer or a Variable, found 1.5"):
        build(lambda: layers.fill_constant([1.5], "float32", 0))


def test_fill_constant_into_a_variable():
    def net():
        counter = layers.create_global_var([1], 5, "int64", persistable=True)
        return layers.fill_constant([1], "int64", 9, out=counter)

    assert run(net) == 9


def test_fill_constant_batch_size_like():
    out = run(lambda x: layers.fill_constant_batch_size_like(x, [3, -1], "int64", 7, 0, 1), x=([-1, 3], X))
    np.testing.assert_array_equal(out, np.full((3, 2), 7))


def test_full_and_its_kin():
    np.testing.assert_array_equal(run(lambda: layers.full([2], 3)), np.full(2, 3, "float32"))
    assert run(lambda: layers.full([2], 3, dtype="int64", device="cpu")).dtype == np.int64
    assert not build(lambda: layers.full([2], 3, stop_gradient=False)).stop_gradient
    with pytest.raises(TypeError, match="device"):
        build(lambda: layers.full([2], 3, device="tpu"))
    np.testing.assert_array_equal(run(lambda x: layers.full_like(x, 3), x=X), np.full_like(X, 3))
    assert run(lambda x: layers.full_like(x, 3, dtype="int32"), x=X).dtype == np.int32
    np.testing.assert_array_equal(run(lambda: layers.zeros([2], "int32")), [0, 0])
    np.testing.assert_array_equal(run(lambda: layers.ones([2], "float32")), [1, 1])
    np.testing.assert_array_equal(run(lambda x: layers.zeros_like(x), x=X), np.zeros_like(X))
    np.testing.assert_array_equal(run(lambda x: layers.ones_like(x), x=X), np.ones_like(X))


def test_shape_size_rank():
    shape, size, rank = run(lambda x: (layers.shape(x), layers.size(x), layers.rank(x)), x=([-1, 3], X))
    np.testing.assert_array_equal(shape, [2, 3])
    assert shape.dtype == np.int32 and size == 6 and rank == 2


def test_ranges():
    np.testing.assert_array_equal(run(lambda: layers.range(0, 10, 3, "int64")), [0, 3, 6, 9])
    np.testing.assert_array_equal(run(lambda: layers.arange(0, 3)), np.arange(3, dtype="float32"))
    by_variable = run(lambda x: layers.range(0, layers.size(x), 2, "int32"), x=([-1, 3], X))
    np.testing.assert_array_equal(by_variable, [0, 2, 4])
    np.testing.assert_allclose(run(lambda: layers.linspace(0, 1, 5, "float32")), np.linspace(0, 1, 5))
    assert build(lambda: layers.range(0, 10, 3, "int64")).shape == (-1,)


def test_increment():
    def net():
        x = layers.fill_constant([1], "int64", 3)
        y = layers.increment(x, 2, in_place=False)
        assert layers.increment(x) is x
        return x, y

    assert [int(v[0]) for v in run(net)] == [4, 5]


def test_diagonals():
    np.testing.assert_array_equal(run(lambda: layers.eye(2)), np.eye(2))
    stacked = run(lambda: layers.eye(2, 3, [4, 2], "int32"))
    assert stacked.shape == (4, 2, 2, 3) and stacked.dtype == np.int32
    np.testing.assert_array_equal(stacked[3, 1], np.eye(2, 3))
    np.testing.assert_array_equal(run(lambda: layers.diag(np.array([1, 2], "int32"))), np.diag([1, 2]))
    embedded = run(lambda x: layers.diag_embed(x, 1), x=X)
    np.testing.assert_array_equal(embedded[1], np.diag(X[1], 1))
    for bad in (lambda: layers.eye(-1), lambda: layers.eye(2, batch_shape=[0])):
        with pytest.raises(ValueError, match="eye"):
            build(bad)
    with pytest.raises(errors.ShapeError, match="two different dimensions"):
        build(lambda x: layers.diag_embed(x, 0, 1, 1), x=X)


def test_argmax_and_argmin():
    x = np.array([[1, 3, 3], [5, 0, 0]], "float32")
    most, least = run(lambda x: (layers.argmax(x, 1), layers.argmin(x)), x=x)
    np.testing.assert_array_equal(most, [1, 0])
    np.testing.assert_array_equal(least, [0, 1, 1])
    assert most.dtype == np.int64


def test_autoincreased_step_counter():
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        first = layers.autoincreased_step_counter()
        assert layers.autoincreased_step_counter() is first
        other = layers.autoincreased_step_counter("mine", begin=0, step=2)
    assert first.name == "@STEP_COUNTER@" and first.dtype == VarType.INT64
    exe, scope = fluid.Executor(fluid.CPUPlace()), fluid.Scope()
    exe.run(startup, scope=scope)
    steps = [exe.run(main, fetch_list=[first, other], scope=scope) for _ in range(3)]
    assert [int(s[0][0]) for s in steps] == [1, 2, 3]
    assert [int(s[1][0]) for s in steps] == [1, 3, 5]
