"""Initializers: the operators they put into the startup program, and the numbers that come out."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.initializer import (
    MSRA,
    Bilinear,
    Constant,
    Normal,
    NumpyArrayInitializer,
    TruncatedNormal,
    Uniform,
    Xavier,
)


def make(initializer, shape=(4, 6), dtype="float32", name="p"):
    """The operators in front of the startup program."""
    fluid.layers.create_parameter(list(shape), dtype, name=name, default_initializer=initializer)
    return fluid.default_startup_program().global_block().ops


def value(name="p"):
    fluid.Executor(fluid.CPUPlace()).run(fluid.default_startup_program())
    return np.array(fluid.global_scope().find_var(name).get_tensor())


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_constant(dtype):
    (op,) = make(Constant(2, force_cpu=True), dtype=dtype)
    assert op.type == "fill_constant" and op.attr("force_cpu") and tuple(op.attr("shape")) == (4, 6)
    found = value()
    assert found.dtype == dtype and (found == 2).all()


def test_the_last_one_stands_first():
    ops = make(Constant(1.0), name="a"), make(Constant(2.0), name="b")
    assert [op.output("Out") for op in ops[1]] == [["b"], ["a"]]


@pytest.mark.parametrize(
    "initializer, mean, spread, bound",
    [
        (Uniform(-2.0, 4.0, seed=5), 1.0, np.sqrt(3.0), 3.0),
        (Normal(1.0, 2.0, seed=3), 1.0, 2.0, None),
        (TruncatedNormal(1.0, 2.0, seed=3), 1.0, 2.0 * 0.8796, 4.0),
    ],
)
def test_distributions(initializer, mean, spread, bound):
    (op,) = make(initializer, (100, 100))
    assert op.attr("seed") == initializer.seed
    found = value()
    assert abs(found.mean() - mean) < 0.1 and abs(found.std() / spread - 1) < 0.03
    if bound:
        assert abs(found - mean).max() <= bound


def test_uniform_diagonal():
    (op,) = make(Uniform(diag_num=2, diag_step=3, diag_val=4.0))
    assert (op.attr("diag_num"), op.attr("diag_step"), op.attr("diag_val")) == (2, 3, 4.0)
    assert (value() == 4.0).sum() == 2


@pytest.mark.parametrize(
    "initializer, shape, uniform, normal",
    [
        (Xavier, (4, 6), 0.7745967, 0.4472136),
        (MSRA, (4, 6), 1.2247449, 0.7071068),
        (Xavier, (8, 4, 3, 3), 0.23570226, 0.13608277),
        (MSRA, (8, 4, 3, 3), 0.4082483, 0.23570226),
        (Xavier, (5,), 0.7745967, 0.4472136),
        (MSRA, (5,), 1.0954452, 0.6324555),
        (Xavier, (2, 3, 4), 0.5477226, 0.31622776),
        (MSRA, (2, 3, 4), 0.7071068, 0.40824828),
    ],
)
def test_fans(initializer, shape, uniform, normal):
    (even,) = make(initializer(), shape, name="even")
    assert (even.type, even.attr("seed")) == ("uniform_random", 0)
    np.testing.assert_allclose([even.attr("min"), even.attr("max")], [-uniform, uniform], rtol=1e-6)
    bell = make(initializer(uniform=False), shape, name="bell")[0]
    assert bell.type == "gaussian_random" and bell.attr("mean") == 0.0
    np.testing.assert_allclose(bell.attr("std"), normal, rtol=1e-6)


def test_given_fans():
    op = make(Xavier(fan_in=3, fan_out=5, seed=9))[0]
    assert op.attr("seed") == 9
    np.testing.assert_allclose(op.attr("max"), np.sqrt(6 / 8))
    np.testing.assert_allclose(make(Xavier(fan_in=0), name="q")[0].attr("max"), 1.0)
    np.testing.assert_allclose(make(MSRA(fan_in=3), name="r")[0].attr("max"), np.sqrt(2))


@pytest.mark.parametrize(
    "shape, start",
    [
        (
            (2, 2, 4, 4),
            [0.0625, 0.28125, 0.375, 0.15625, 0.1875, 0.65625, 0.75, 0.21875, 0.1875, 0.46875],
        ),
        ((1, 1, 3, 3), [0.0625, 0.3125, 0.4375, 0.1875, 0.6875, 0.6875, 0.1875, 0.4375, 0.3125]),
    ],
)
def test_bilinear(shape, start):
    make(Bilinear(), shape)
    np.testing.assert_array_equal(value().ravel()[: len(start)], np.array(start, "float32"))


@pytest.mark.parametrize("dtype", ["float32", "int32", "int64", "float16"])
def test_numpy_array(dtype):
    array = np.arange(24).reshape(4, 6).astype(dtype)
    make(NumpyArrayInitializer(array), dtype=dtype)
    found = value()
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("given, dtype", [("float64", "float32"), ("int64", "float32"), ("float64", "int32")])
def test_a_numpy_array_becomes_what_the_variable_is(given, dtype):
    array = np.arange(24).reshape(4, 6).astype(given) / (1 if "int" in dtype + given else 3)
    make(NumpyArrayInitializer(array), dtype=dtype)
    found = value()
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, array.astype(dtype))


def test_halves_are_computed_in_32_bits():
    assert [op.type for op in make(Uniform(), dtype="float16")] == ["uniform_random", "cast"]
    assert value().dtype == np.float16


def test_programs_seed_decides_without_a_seed():
    def draw(seed):
        program, scope = fluid.Program(), fluid.Scope()
        program.random_seed = seed
        with fluid.program_guard(fluid.Program(), program), fluid.scope_guard(scope):
            (op,) = make(Normal())
            assert op.attr("seed") == 0
            return value()

    first, again, other = draw(1), draw(1), draw(2)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    "attempt, error, text",
    [
        (lambda: make(Bilinear()), errors.ShapeError, "Bilinear, p"),
        (lambda: make(Bilinear(), (2, 2, 4, 3)), errors.ShapeError, "size, size"),
        (lambda: NumpyArrayInitializer([1.0]), TypeError, "NumPy array"),
        (
            lambda: make(NumpyArrayInitializer(np.zeros((4, 5), "float32"))),
            errors.ShapeError,
            r"found \[4, 5\]",
        ),
        (
            lambda: make(NumpyArrayInitializer(np.zeros((4, 6))), dtype="float64"),
            ValueError,
            "a variable of FP64 cannot be set to an array of float64",
        ),
        (lambda: make(NumpyArrayInitializer(np.zeros((4, 6), "c8"))), ValueError, "complex64"),
        (lambda: Uniform(1.0, -1.0), ValueError, "low <= high"),
        (lambda: Uniform(diag_num=-1), ValueError, "diag_num"),
        (lambda: Normal(scale=-1.0), ValueError, "scale"),
        (lambda: Normal()(None, 3), TypeError, "block: expected a Block"),
    ],
)
def test_errors(attempt, error, text):
    with pytest.raises(error, match=text):
        attempt()
