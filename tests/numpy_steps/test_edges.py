"""Interpreted operations at the edges of their numbers, indices and windows, beside XLA's."""

import types
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jfluid.compile.numpy_steps import beside, interpreter, sums
from jfluid.compile.numpy_steps.interpreter import Listing, NotInterpretable
from tests.slow_tests import nightly_but

FLOATS, INTEGERS = ("float32", "float64"), ("int8", "int32", "int64", "uint8", "uint32", "uint64")
MODES = ("clip", "fill", "promise_in_bounds", None)


def edges(kind):
    """Numbers around zero, the ends of a type, and numbers that the type only just holds."""
    if np.dtype(kind).kind == "f":
        ends = np.finfo(kind)
        plain = [0.0, 1.0, 0.5, 1.5, 2.5, 3.0, 7.0, 100.0, 2.0**31, 2.0**32, 1.8e19, ends.tiny, ends.max, np.inf]
        return np.array([np.nan, *plain, *(-v for v in plain)], kind)
    whole = np.iinfo(kind)
    near = {0, 1, 2, 3, 7, 31, 32, 63, 64, whole.max, whole.max - 1, whole.min, whole.min + 1, -1, -2, -7}
    return np.array(sorted(v for v in near if whole.min <= v <= whole.max), kind)


def compare(function, *arrays):
    """Run a function by NumPy and by XLA: the same numbers, to rounding."""
    with jax.enable_x64(True):
        with np.errstate(all="ignore"):
            found = Listing(jax.make_jaxpr(function)(*arrays)).run(list(arrays))
        for own, exact in zip(found, jax.tree.leaves(jax.jit(function)(*arrays)), strict=True):
            assert own.dtype == exact.dtype and own.shape == exact.shape
            np.testing.assert_allclose(own, exact, rtol=1e-5 if own.dtype.kind == "f" else 0, atol=1e-6)


UNARY = ["sign"]
OF_FLOATS = "abs neg ceil floor is_finite log1p log sqrt rsqrt tanh logistic round erf erfc lgamma digamma".split()
BINARY = "add sub mul div rem max min eq lt le".split()
OF_INTEGERS = "shift_left shift_right_logical shift_right_arithmetic".split()


@pytest.mark.parametrize("kind", nightly_but(("float32", "int8", "int32", "uint64"), [*FLOATS, *INTEGERS]))
def test_numbers(kind):
    floats = kind in FLOATS
    x, y = (v.reshape(-1).copy() for v in np.meshgrid(edges(kind), edges(kind)))
    unary = [getattr(lax, name) for name in (UNARY + OF_FLOATS if floats else UNARY)]
    binary = [getattr(lax, name) for name in (BINARY if floats else BINARY + OF_INTEGERS)]
    for some in (slice(None), y != 0):  # NumPy divides by numbers among which is no 0 in a different way
        compare(lambda x, y: ([f(x) for f in unary], [f(x, y) for f in binary]), x[some], y[some])


@pytest.mark.parametrize("kind", [*FLOATS, *INTEGERS])
def test_conversions(kind):
    compare(lambda x: [lax.convert_element_type(x, goal) for goal in (*FLOATS, *INTEGERS, "bool")], edges(kind))


@pytest.mark.parametrize(
    "mode, kind",
    [
        *[("clip", "int64"), ("fill", "uint8"), ("promise_in_bounds", "int32"), (None, "int64")],
        *[pytest.param(mode, "int32", marks=pytest.mark.nightly) for mode in MODES if mode != "promise_in_bounds"],
        *[pytest.param(mode, "int64", marks=pytest.mark.nightly) for mode in ("fill", "promise_in_bounds")],
        *[pytest.param(mode, "uint8", marks=pytest.mark.nightly) for mode in MODES if mode != "fill"],
    ],
)
def test_indices_outside_of_an_array(mode, kind):
    """Indices behind an array, before it, and at the ends of their type: clamped, filled or dropped, as XLA does."""
    rng, whole = np.random.RandomState(1), np.iinfo(kind)
    x = rng.rand(6, 5, 4).astype("float32")
    given = [0, 1, 5, 6, 7, 100, -1, -5, -6, -7, whole.max, whole.min]
    at = np.array([v for v in given if whole.min <= v <= whole.max], kind)
    rows, inner = rng.rand(len(at), 5, 4).astype("float32"), rng.rand(6, len(at), 4).astype("float32")
    compare(lambda x, i: (x.at[i].get(mode=mode), x.at[i, i].get(mode=mode), x.at[:, i, 1:3].get(mode=mode)), x, at)
    compare(lambda x, i, u: (x.at[i].add(u, mode=mode), x.at[i].max(u, mode=mode)), x, at, rows)
    compare(lambda x, i, u: x.at[:, i].mul(u, mode=mode), x, at, inner)


@pytest.mark.parametrize("kind", nightly_but(["int64"], ["int32", "int64"]))
def test_starts_of_slices_outside_of_an_array(kind):
    x, ends = np.random.RandomState(1).rand(6, 5, 4).astype("float32"), np.iinfo(kind)
    starts = [np.asarray(v, kind) for v in (0, 4, 5, 6, 100, -1, -6, -7, ends.max, ends.min)]

    def slices(x, *starts):
        return [(x[i], lax.dynamic_index_in_dim(x, i, 1), x.at[i].set(0), x.at[1, i].set(0)) for i in starts]

    compare(slices, x, *starts)


def test_signed_zeros_and_numbers_without_a_case():
    zeros = np.array([0.0, -0.0, 1.0, -0.0, 0.0, np.nan, -np.inf, np.inf], "float32")
    compare(lambda x: lax.top_k(x, 8), zeros)
    which = np.array([-5, -1, 0, 1, 2, 3, 100], "int32")
    compare(lax.select_n, which, *(np.full(7, n, "float32") for n in range(3)))


def pooled(function, start, window, stride, padding):
    return lambda x: lax.reduce_window(x, start, function, (1, window, window), (1, stride, stride), padding)


@pytest.mark.parametrize("window", [2, 5, 6, 9])
@pytest.mark.parametrize("padding", ["VALID", "SAME"])
def test_windows_of_few_and_of_many_elements(window, padding):
    x = np.random.RandomState(0).rand(2, 13, 11).astype("float32")
    for function, start in ((lax.add, 0.0), (lax.max, -jnp.inf), (lax.min, jnp.inf)):
        compare(pooled(function, start, window, 2, padding), x)


def convolution(padding, *strides):
    return lambda x, w: lax.conv_general_dilated(x, w, strides or (1, 1), [(padding, padding)] * 2)


@pytest.mark.parametrize("copied", [1, 200, 1 << 17], ids=["a row", "some rows", "all rows"])
@pytest.mark.parametrize(
    ("groups", "strides", "holes"), [(1, (1, 1), (1, 1)), (2, (2, 1), (1, 2)), (1, (3, 2), (1, 1))]
)
def test_windows_of_images_are_copied_by_rows(copied, groups, strides, holes, monkeypatch):
    def function(x, w):
        kwargs = {"rhs_dilation": holes, "feature_group_count": groups}
        return lax.conv_general_dilated(x, w, strides, [(1, 2), (0, 1)], **kwargs)

    monkeypatch.setattr(sums, "_COPIED", copied)
    random = np.random.RandomState(0)
    given = [random.randn(*shape).astype("float32") for shape in ((3, 4, 11, 9), (6, 4 // groups, 3, 2))]
    (found,) = beside.interpreted(Listing(jax.make_jaxpr(function)(*given)), given, jax.devices("cpu")[0])
    np.testing.assert_allclose(found, jax.jit(function)(*given), rtol=1e-5, atol=1e-5)


def refused(function, *shapes, match="bytes of intermediate results"):
    """Run a function by NumPy, which refuses before it makes an array of the size."""
    arrays = [np.zeros(shape, "float32") for shape in shapes]
    with pytest.raises(NotInterpretable, match=match):
        beside.interpreted(Listing(jax.make_jaxpr(function)(*arrays)), arrays, jax.devices("cpu")[0])


@pytest.mark.parametrize("nested", [False, True], ids=["step", "inside of a call"])
@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (convolution(0), [(1, 1, 1100, 1100), (1, 1, 1000, 1000)]),
        (convolution(0), [(1, 300, 1100, 1100), (1, 300, 100, 100)]),
        (convolution(20_000, 20_000, 20_000), [(1, 1, 2, 2), (1, 1, 2, 2)]),
        (pooled(lax.add, 0.0, 20_000, 20_000, [(0, 0), *[(19_999, 19_999)] * 2]), [(1, 2, 2)]),
    ],
    ids=["windows of a convolution", "a row of its windows", "padding of a convolution", "padding of windows"],
)
def test_temporary_arrays_are_bounded(function, shapes, nested):
    """A small model cannot make the interpreter hold more than its bound: such a step waits for XLA."""
    refused(jax.jit(function) if nested else function, *shapes)


def test_bodies_of_loops_are_bounded(monkeypatch):
    def grown(x):
        return (x[:, None] * x[None]).sum(1)

    monkeypatch.setattr(interpreter, "MOST_BYTES", 1000 * 1000 * 4 - 1)
    for loop in (
        lambda x: lax.scan(lambda c, _: (grown(c), None), x, None, length=3)[0],
        lambda x: lax.while_loop(lambda c: c[0] < 1, grown, x),
        lambda x: lax.cond(x[0] < 1, grown, lambda x: x, x),
    ):
        refused(loop, (1000,))


def test_large_windows_of_a_gradient_wait_for_xla():
    function = pooled(lax.max, -jnp.inf, 65, 1, "VALID")
    refused(jax.grad(lambda y: function(y).sum()), (1, 80, 80), match="many elements")


def test_results_are_dropped_one_after_the_other_as_they_are_copied(monkeypatch):
    """NumPy's parameters and JAX's copies of all parameters would take twice the memory."""
    held, left, place = [], [], beside.xla_client.batched_device_put

    def copied(kind, sharding, arrays, devices):
        left.append(sum(own() is not None for own in held))
        held.append(weakref.ref(arrays[0]))
        return place(kind, sharding, [np.array(arrays[0])], devices)

    monkeypatch.setattr(beside, "xla_client", types.SimpleNamespace(batched_device_put=copied))
    x = np.ones(2000, "float32")
    listing = Listing(jax.make_jaxpr(lambda x: [x + n for n in range(1, 5)])(x))
    found = beside.interpreted(listing, [x], jax.devices("cpu")[0])
    assert [float(v[0]) for v in found] == [2, 3, 4, 5]
    assert left == [0, 0, 0, 0]


def test_results_share_no_memory():
    """Arguments, constants and repeated results are copied: XLA may overwrite results."""
    constant, argument = np.ones(2000), np.ones(2000)

    def function(x):
        doubled = x * 2
        return x, jnp.asarray(constant), doubled, doubled, doubled.reshape(2, 1000)

    with jax.enable_x64(True):
        listing = Listing(jax.make_jaxpr(function)(argument))
        found = beside.interpreted(listing, [argument], jax.devices("cpu")[0])
        kept = [v.unsafe_buffer_pointer() for v in found]
        again = beside.interpreted(listing, [argument], jax.devices("cpu")[0])
    starts = {*kept, *(v.unsafe_buffer_pointer() for v in again), argument.ctypes.data}
    assert len(starts) == 11
    for own in (found, again):
        assert [v.sharding for v in own] == [v.sharding for v in jax.device_put(own, jax.devices("cpu")[0])]
        assert [v.dtype for v in own] == ["float64"] * 5


def test_branches_for_platforms_are_chosen_beforehand():
    def function(x, y):
        return lax.platform_dependent(x, y, cpu=lambda x, y: x + y, default=lambda x, y: x - y)

    with jax.enable_x64(True):
        listing = Listing(jax.make_jaxpr(function)(1.0, 2.0))
    assert "cond" not in [own.name for own in listing._operations if not isinstance(own.run, Listing)]
    compare(function, np.ones(3), np.arange(3.0))
