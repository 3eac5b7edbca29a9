"""The door before machine code: arrays and numbers beside which a function would read or write are refused."""

import inspect
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfluid
from jfluid import errors
from jfluid.machine_code import (
    calls,
    convolution_dispatch,
    gru_dispatch,
    kernel_registry,
    lstm_dispatch,
    product_dispatch,
    row_dispatch,
    sequence_dispatch,
)
from jfluid.machine_code.processor import LANES
from jfluid.ops.ragged import Level
from jfluid.ops.sequence_loops import GruForm, LstmForm

pytestmark = pytest.mark.skipif(
    not kernel_registry.supports("product"), reason="machine code is made for CPUs with AVX-512"
)


def zeros(*shape, kind=np.float32):
    return np.zeros(shape, kind)


@pytest.fixture(scope="module")
def known():
    """One call of each function: its arrays, numbers and results."""
    found = {}

    def ffi_call(name, results, **_):
        def call(*arrays):
            found[name] = arrays[:-1], arrays[-1], results
            return [np.ones(r.shape, r.dtype) for r in results]

        return call

    with pytest.MonkeyPatch.context() as patch, jax.enable_x64(True), jax.disable_jit():
        patch.setattr(jax.ffi, "ffi_call", ffi_call)
        width, places = LANES, np.asarray(sequence_dispatch.places(Level(np.int32([0, 2, 5]), 3), 6))
        state = zeros(2, width)
        form = LstmForm(("sigmoid", "tanh", "tanh"))
        weight, bias, rows = zeros(width, 4 * width), zeros(7 * width), zeros(6, width)
        lstm_dispatch._forward(form, weight, bias, zeros(6, 4 * width), state, state, places)
        arrays = (zeros(6, 4 * width), rows, rows, state, state, rows, rows, places)
        lstm_dispatch._backward(form, weight, bias, *arrays)
        weights, gru = (zeros(width, 2 * width), zeros(width, width)), GruForm(("sigmoid", "tanh"))
        gates = zeros(6, 3 * width)
        gru_dispatch._forward(gru, *weights, zeros(3 * width), gates, state, places)
        gru_dispatch._backward(gru, *weights, gates, rows, state, rows, places)
        table, ids, values = zeros(9, 5), np.arange(4), zeros(4, 5)
        row_dispatch._read.fun(table, ids)
        row_dispatch.put(table, ids, values)
        row_dispatch.add(table, ids, values, np.ones(1, np.float32))
        row_dispatch.merge(ids, values, 9, 3)
        x, y = zeros(20, 30), zeros(20, 40)
        product_dispatch.product(x, y, (0, 0))
        images, filters, grad = zeros(2, 9, 11, 3), zeros(3, 3, 3, LANES), zeros(2, 9, 11, LANES)
        convolution_dispatch.forward(images, filters, (1, 1), (1, 1), (9, 11))
        convolution_dispatch.gradient(images, grad, (3, 3), (1, 1), (1, 1))
        convolution_dispatch.of_images(grad, zeros(3, 3, LANES, LANES), (1, 1), (9, 11))
        high = zeros(2, 12, 11, LANES)
        convolution_dispatch.of_images(high, zeros(3, 3, LANES, 20), (1, 1), (12, 11))
    return found


def again(name, arrays, numbers, results):
    """Call a function so, while a step is traced."""
    by_name = dict(zip(kernel_registry.group_of(name).geometry, map(int, numbers)))
    made = [(r.shape, r.dtype) for r in results]
    with jax.enable_x64(True):
        jax.eval_shape(lambda *given: calls.call(name, given, by_name, made), *arrays)


@pytest.mark.parametrize("name", kernel_registry.kernels())
def test_arrays_that_do_not_fit_are_refused(known, name):
    arrays, numbers, results = known[name]
    again(name, arrays, numbers, results)
    for i, given_ in enumerate(arrays):
        array = np.asarray(given_)
        flat = array.reshape(-1)
        for other in (flat[:-1], np.append(flat, flat[:1]), flat[:0], array.astype(np.float64)):
            given = [*arrays[:i], other, *arrays[i + 1 :]]
            with pytest.raises(errors.ShapeError, match=f"{name}: array {i} that is given"):
                again(name, given, numbers, results)
    with pytest.raises(errors.ShapeError, match="arrays given"):
        again(name, arrays[1:], numbers, results)
    for i, result in enumerate(results):
        other = SimpleNamespace(shape=(int(np.prod(result.shape)) + 1,), dtype=result.dtype)
        with pytest.raises(errors.ShapeError, match=f"{name}: array {i} that is made"):
            again(name, arrays, numbers, [*results[:i], other, *results[i + 1 :]])


# Numbers that say how work is done, where others do as well, or of what is done to numbers.
FREE = {"memory", "backwards", "gate", "cell", "candidate", "origin", "x_turned", "y_turned"}
FREE |= {"x_copied", "parts", "groups", "held", "top", "left", "stride", "group"}
FREE |= {"chunks", "band", "bands", "places", "room", "down", "across", "direct"}


@pytest.mark.parametrize("name", kernel_registry.kernels())
def test_numbers_that_do_not_fit_are_refused(known, name):
    arrays, numbers, results = known[name]
    names = kernel_registry.group_of(name).geometry
    used = {
        "jfluid_row": {"count", "height", "width"},
        "jfluid_convolution_images": {"band", "bands"},
    }
    for i, number in enumerate(names):
        for value in (-1, 2**31, -(2**31)):
            other = [*numbers[:i], value, *numbers[i + 1 :]]
            with pytest.raises(errors.ShapeError, match=name):
                again(name, arrays, other, results)
        if number not in FREE and not any(name.startswith(n) for n in used):
            for value in (int(numbers[i]) + 1, 2**31 - 1):
                with pytest.raises(errors.ShapeError, match=name):
                    again(name, arrays, [*numbers[:i], value, *numbers[i + 1 :]], results)


@pytest.mark.parametrize("name", kernel_registry.kernels())
def test_too_little_memory_is_refused(known, name):
    arrays, numbers, results = known[name]
    at = kernel_registry.group_of(name).geometry.index("memory")
    least = calls.checked(name, numbers).memory
    again(name, arrays, [*numbers[:at], least, *numbers[at + 1 :]], results)
    if least:
        with pytest.raises(errors.ShapeError, match="memory"):
            again(name, arrays, [*numbers[:at], least - 1, *numbers[at + 1 :]], results)


def test_there_is_one_door():
    package = Path(inspect.getfile(jfluid)).parent
    callers = [
        path.relative_to(package).as_posix() for path in package.rglob("*.py") if ".ffi_call(" in path.read_text()
    ]
    assert callers == ["machine_code/calls.py"]


@pytest.mark.parametrize(
    ("given", "rows", "expected"),
    [
        ([0, 2, 5], 5, [0, 2, 5]),
        ([0, 2, 5], 9, [0, 2, 5]),
        ([0, 0, 0], 0, [0, 0, 0]),
        ([0, 2, 5], 4, [0, 0, 0]),
        ([0, 5, 3], 9, [0, 0, 0]),
        ([1, 2, 5], 9, [0, 0, 0]),
        ([-1, 2, 5], 9, [0, 0, 0]),
        ([0, 2**31 - 1, 5], 9, [0, 0, 0]),
        ([0, -(2**31), 5], 9, [0, 0, 0]),
    ],
)
def test_offsets_from_data_are_bounded(given, rows, expected):
    found = sequence_dispatch.offsets(Level(jnp.array(given, jnp.int32), 5), rows)
    assert found.tolist() == expected
    places = sequence_dispatch.places(Level(jnp.array(given, jnp.int32), 5), rows)
    order, starts, lengths = np.split(np.asarray(places[:-1]), 3)
    assert sorted(order) == list(range(len(given) - 1))
    assert (starts >= 0).all() and (lengths >= 0).all() and (starts + lengths <= rows).all()


def test_sequences_of_one_length_that_do_not_fit_are_refused():
    with pytest.raises(errors.ShapeError, match="3 sequences of 4 rows, found 11 rows"):
        sequence_dispatch.offsets(Level(None, 4, 3), 11)
