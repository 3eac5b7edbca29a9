"""All machine code between guards (`guarded.py`), on arrays of any shapes and any values; NumPy says what is right.

`test_guarded.py` runs this in a process of its own, which what reaches beside an array ends.
"""

import contextlib
import os
from pathlib import Path
from unittest import mock

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jfluid as fluid
from jfluid.machine_code import (
    convolution_dispatch,
    convolution_kernels,
    gru_dispatch,
    kernel_registry,
    lstm_dispatch,
    lstm_kernels,
    product_dispatch,
    product_kernels,
    row_dispatch,
    row_kernels,
    sequence_dispatch,
    vector_functions,
)
from jfluid.machine_code.processor import LANES
from jfluid.ops.ragged import Level
from jfluid.ops.sequence_loops import GruForm, LstmForm
from tests.fuzz.harness import fuzzed
from tests.machine_code import guarded

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of what is no number
FOLDER = os.environ.get("JFLUID_GUARDED_FOLDER")
KINDS = vector_functions.KINDS
HOSTILE = st.sampled_from([-(2**63), -(2**31), -1, 0, 1, 2**31 - 1, 2**31, 2**32 + 3, 2**62])
VALUES = st.sampled_from(["plain", "plain", "nan", "inf", "huge"])
SEEDS = st.integers(0, 2**32 - 1)


def made(group):
    return pytest.mark.skipif(not kernel_registry.supports(group), reason="the processor has no vectors for them")


@pytest.fixture(scope="module", autouse=True)
def guards():
    with (
        guarded.calls(Path(FOLDER) if FOLDER else None) as found,
        jax.enable_x64(True),
        jax.disable_jit(),
    ):
        yield found


class Numbers:
    """Arrays of a kind of values, from a seed."""

    def __init__(self, seed, kind="plain"):
        self.rng, self.kind = np.random.RandomState(seed), kind

    def __call__(self, *shape):
        found = self.rng.standard_normal(shape).astype("float32")
        flat = found.reshape(-1)
        if flat.size and self.kind != "plain":
            some = self.rng.randint(0, flat.size, 1 + flat.size // 7)
            flat[some] = {"nan": np.nan, "inf": np.inf, "huge": 3e38}[self.kind]
        return found


def close(found, expected, kind="plain"):
    """Hold results against NumPy's, in double precision, where all values are plain."""
    if kind == "plain":
        scale = max(1.0, np.abs(expected).max(initial=0))
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-4 * scale)


# ---- sequences ----


@st.composite
def levels(draw):
    """(offsets int32 [number + 1], rows, whether they are as they should be)."""
    lengths = draw(st.lists(st.integers(0, 6), min_size=1, max_size=9))
    offsets = np.cumsum([0, *lengths])
    rows = int(offsets[-1]) + draw(st.integers(0, 4))
    sound = draw(st.booleans())
    if not sound:
        at = draw(st.integers(0, len(lengths)))
        offsets[at] = draw(st.one_of(st.integers(-20, 60), HOSTILE)) % 2**32
        offsets = offsets.astype(np.uint32).view(np.int32)
    offsets = offsets.astype(np.int32)
    sound = offsets[0] == 0 and (offsets[1:] >= offsets[:-1]).all() and offsets[-1] <= rows
    return offsets, rows, bool(sound)


def places(offsets, rows, batches):
    found = np.asarray(sequence_dispatch.places(Level(offsets, 6), rows))
    return np.broadcast_to(found, (*batches, len(found))).copy()


def sequences(offsets, rows, sound, backwards):
    """For each step of each sequence (row, sequence, whether it is the first), in order."""
    for i in range(len(offsets) - 1 if sound else 0):
        own = range(int(offsets[i]), int(offsets[i + 1]))
        own = reversed(own) if backwards else own
        for n, row in enumerate(own):
            yield row, i, n == 0


WIDTHS = st.sampled_from([LANES, 3 * LANES, 4 * LANES, 17 * LANES])
BATCHES = st.sampled_from([(), (1,), (3,), (0,)])
ACTS = {
    "identity": lambda x: x,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
}


@made("lstm")
@fuzzed(15)
@given(levels(), WIDTHS, BATCHES, SEEDS, VALUES, st.booleans(), *[st.sampled_from(KINDS)] * 3)
def test_lstm(level, width, batches, seed, kind, backwards, gate, cell, candidate):
    (offsets, rows, sound), make = level, Numbers(seed, kind)
    number = len(offsets) - 1
    form = LstmForm((gate, cell, candidate), backwards)
    weight, bias = make(width, 4 * width) / 16, make(7 * width)
    x, h0, c0 = make(*batches, rows, 4 * width), *(make(*batches, number, width) for _ in range(2))
    known = places(offsets, rows, batches)
    hidden, cells, gates = lstm_dispatch._forward(form, weight, bias, x, h0, c0, known)
    grads = make(*batches, rows, width), make(*batches, rows, width)
    lstm_dispatch._backward(form, weight, bias, gates, cells, hidden, h0, c0, *grads, known)
    if not sound and hidden.size:
        assert not hidden.any() and not cells.any()
    if not batches and kind == "plain":
        acts, wide = [ACTS[a] for a in form.acts], weight.astype(float)
        state, expected = {}, np.zeros((rows, width))
        peep = bias[4 * width :].reshape(3, width)
        for row, i, first in sequences(offsets, rows, sound, backwards):
            h, c = (h0[i], c0[i]) if first else state[i]
            pre = np.split(x[row] + h @ wide + bias[: 4 * width], 4)
            a, gi, f = acts[2](pre[0]), acts[0](pre[1] + peep[0] * c), acts[0](pre[2] + peep[1] * c)
            c = f * c + gi * a
            h = acts[0](pre[3] + peep[2] * c) * acts[1](c)
            state[i], expected[row] = (h, c), h
        last = int(offsets[-1]) if sound else 0
        if np.abs(expected).max(initial=0) < 1e3:  # others grow from step to step
            close(hidden[:last], expected[:last])


@made("gru")
@fuzzed(15)
@given(levels(), WIDTHS, BATCHES, SEEDS, VALUES, *[st.booleans()] * 2, *[st.sampled_from(KINDS)] * 2)
def test_gru(level, width, batches, seed, kind, backwards, origin, gate, candidate):
    (offsets, rows, sound), make = level, Numbers(seed, kind)
    number = len(offsets) - 1
    form = GruForm((gate, candidate), backwards, origin)
    to_gates, to_candidate = make(width, 2 * width) / 16, make(width, width) / 16
    x, h0, bias = make(*batches, rows, 3 * width), make(*batches, number, width), make(3 * width)
    known = places(offsets, rows, batches)
    hidden, gates = gru_dispatch._forward(form, to_gates, to_candidate, bias, x, h0, known)
    grad = make(*batches, rows, width)
    gru_dispatch._backward(form, to_gates, to_candidate, gates, hidden, h0, grad, known)
    if not sound and hidden.size:
        assert not hidden.any()
    if not batches and kind == "plain":
        acts, state, expected = [ACTS[a] for a in form.acts], {}, np.zeros((rows, width))
        for row, i, first in sequences(offsets, rows, sound, backwards):
            h = h0[i].astype(float) if first else state[i]
            now = x[row] + bias
            u, r = np.split(acts[0](now[: 2 * width] + h @ to_gates), 2)
            c = acts[1](now[2 * width :] + (r * h) @ to_candidate)
            state[i] = expected[row] = u * h + (1 - u) * c if origin else (1 - u) * h + u * c
        last = int(offsets[-1]) if sound else 0
        if np.abs(expected).max(initial=0) < 1e3:
            close(hidden[:last], expected[:last])


@made("lstm")
@fuzzed(5)
@given(st.integers(1, 9), st.integers(0, 5), SEEDS)
def test_lstm_of_steps_side_by_side(number, steps, seed):
    make, width = Numbers(seed), LANES
    form = LstmForm(("sigmoid", "tanh", "tanh"), False, time_major=True)
    known = np.asarray(sequence_dispatch.places(Level(None, steps, number), number * steps, True))
    weight, bias, h0 = make(width, 4 * width), make(7 * width), make(number, width)
    x = make(number * steps, 4 * width)
    hidden, cells, gates = lstm_dispatch._forward(form, weight, bias, x, h0, h0, known)
    arrays = (gates, cells, hidden, h0, h0, make(*hidden.shape), make(*hidden.shape), known)
    lstm_dispatch._backward(form, weight, bias, *arrays)


# ---- rows of tables ----


@st.composite
def tables(draw):
    """(table, ids of which some are of no row)."""
    height, width = draw(st.integers(1, 60)), draw(st.sampled_from([1, 2, 15, 16, 17, 33, 100]))
    count = draw(st.integers(1, 400))
    make = Numbers(draw(SEEDS), draw(VALUES))
    ids = make.rng.randint(0, height, count)
    if draw(st.booleans()):
        near = make.rng.randint(-3, height + 4, count)
        wild = np.array(draw(st.lists(HOSTILE, min_size=1, max_size=6)), np.int64)
        ids = np.where(make.rng.rand(count) < 0.5, near, make.rng.choice(wild, count))
    return make, make(height, width), ids.astype(np.int64)


def there(table, ids):
    return (ids >= 0) & (ids < len(table))


@made("row")
@fuzzed(25)
@given(tables())
def test_rows_are_taken(drawn):
    _, table, ids = drawn
    found, known = row_dispatch._read.fun(table, ids), there(table, ids)
    np.testing.assert_array_equal(found[known], table[ids[known]])
    assert np.isnan(found[~known]).all()


@made("row")
@fuzzed(25)
@given(tables(), st.integers(1, 70))
def test_rows_are_replaced_added_to_and_merged(drawn, multiple):
    make, table, ids = drawn
    values, known = make(len(ids), table.shape[1]), there(table, ids)
    replaced = row_dispatch.put(table, ids, values)
    untouched = np.setdiff1d(np.arange(len(table)), ids[known])
    np.testing.assert_array_equal(replaced[untouched], table[untouched])
    sums = np.zeros(table.shape)
    np.add.at(sums, ids[known], values[known].astype(float))
    close(row_dispatch.add(table, ids, values, np.float32([0.5])), table + 0.5 * sums, make.kind)
    once, merged, count = row_dispatch.merge(ids, values, len(table), multiple)
    count = int(count[0])
    assert sorted(once[:count]) == np.unique(ids[known]).tolist()
    assert (once[count:] == len(table)).all()
    close(merged[:count], sums[once[:count]], make.kind)


# ---- products ----


@made("product")
@fuzzed(100)
@given(
    st.integers(product_kernels.TILE, 70),
    st.one_of(st.integers(1, 16), st.integers(32, 150)),
    st.one_of(st.integers(1, 90), st.sampled_from([407, 408, 409, 817, 1000])),
    st.tuples(st.integers(0, 1), st.integers(0, 1)),
    st.booleans(),
    SEEDS,
    VALUES,
    st.data(),
)
def test_products(rows, columns, depth, over, copied, seed, kind, data):
    make = Numbers(seed, kind)
    x, y = make(depth, rows), make(depth, columns)
    product = x.T.astype(float) @ y.astype(float) if kind == "plain" else np.zeros((rows, columns))
    given_ = [a.T.copy() if turned else a for a, turned in zip((x, y), over)]
    panels = -(-columns // product_kernels.WIDTH)
    held = [min(depth, product_kernels.BLOCK), depth, data.draw(st.integers(1, depth))]
    divided = (
        data.draw(st.integers(1, 9)),
        data.draw(st.integers(1, panels)),
        data.draw(st.sampled_from(held)),
    )
    with (
        mock.patch.object(product_dispatch, "_divided", lambda *_: divided),
        mock.patch.object(product_dispatch, "_is_copied", lambda _: copied),
    ):
        close(product_dispatch.product(*given_, over), product, kind)


# ---- images ----


def windows(x, kernel, strides, low, out):
    """[batch, rows, columns, height, width, channels]: each window of images, zeros outside of them."""
    images, height, width, channels = x.shape
    reach = [(n - 1) * s + k for n, s, k in zip(out, strides, kernel)]
    padded = np.zeros((images, *(max(r, p + n) for r, p, n in zip(reach, low, (height, width))), channels))
    padded[:, low[0] : low[0] + height, low[1] : low[1] + width] = x
    found = np.lib.stride_tricks.sliding_window_view(padded, kernel, (1, 2))
    found = found[:, :: strides[0], :: strides[1]][:, : out[0], : out[1]]
    return found.transpose(0, 1, 2, 4, 5, 3)


def overlapped(parts, low, sizes):
    """The sums of windows where they overlap."""
    images, rows, columns, height, width, channels = parts.shape
    found = np.zeros((images, *sizes, channels))
    for row in range(rows):
        for down in range(height):
            for across in range(width):
                to = row + down - low[0]
                at = np.arange(columns) + across - low[1]
                inside = (at >= 0) & (at < sizes[1])
                if 0 <= to < sizes[0]:
                    found[:, to, at[inside]] += parts[:, row, inside, down, across]
    return found


@st.composite
def convolutions(draw):
    """(x, kernel, strides, low, out, filters) of a convolution that machine code is made for."""
    kernel, strides = ((draw(st.integers(1, 4)), draw(st.integers(1, 4))) for _ in range(2))
    low = draw(st.integers(0, 5)), draw(st.integers(0, 5))
    out = draw(st.integers(1, 5)), draw(st.integers(convolution_kernels.TILE, 21))
    make = Numbers(draw(SEEDS), draw(VALUES))
    images, channels = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 3, 5]))
    less = draw(st.integers(-2, 4)), draw(st.integers(-2, 4))
    reach = [(n - 1) * s + k for n, s, k in zip(out, strides, kernel)]
    low = tuple(min(p, r) for p, r in zip(low, reach))
    x = make(images, *(max(1, r - p - n) for r, p, n in zip(reach, low, less)), channels)
    filters = draw(st.sampled_from([LANES, LANES + 1, LANES + 8, 2 * LANES, 3 * LANES + 5]))
    return make, x, kernel, strides, low, out, filters


@made("convolution")
@fuzzed(70)
@given(convolutions())
def test_convolutions(drawn):
    make, x, kernel, strides, low, out, filters = drawn
    w = make(*kernel, x.shape[3], filters)
    seen = windows(x, kernel, strides, low, out)
    found = convolution_dispatch.forward(x, w, strides, low, out)
    close(found, np.tensordot(seen, w, 3), make.kind)
    grad = make(x.shape[0], *out, filters)
    found = convolution_dispatch.gradient(x, grad, kernel, strides, low)
    close(found, np.tensordot(seen, grad, [(0, 1, 2)] * 2), make.kind)


WINDOWS = [(3, 3, 20), (2, 4, 17), (5, 5, 16), (3, 3, 32), (2, 1, 17)]  # height, width, filters


@made("convolution")
@fuzzed(20)
@given(
    st.integers(1, 2),
    st.integers(1, 14),
    st.integers(convolution_kernels.TILE, 17),
    st.sampled_from([1, 3]),
    st.sampled_from(WINDOWS),
    SEEDS,
    VALUES,
    st.data(),
)
def test_gradients_of_images(images, rows, columns, channels, window, seed, kind, data):
    make, (height, width, filters) = Numbers(seed, kind), window
    low = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    high = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    sizes = rows + height - 1 - low[0] - high[0], columns + width - 1 - low[1] - high[1]
    if min(sizes) < 1:
        return
    grad, w = make(images, rows, columns, channels), make(height, width, channels, filters)
    parts = np.tensordot(grad, w, ((3,), (2,)))
    expected = overlapped(parts, low, sizes)
    close(convolution_dispatch.of_images(grad, w, low, sizes), expected, make.kind)


# ---- whole steps ----


@made("lstm")
@pytest.mark.parametrize("offsets", [[0, 2, 6], [0, 100], [0, 5, 3, 6], [-4, 2, 6], [3, 6], [0, 2**31 - 1]])
def test_a_step_of_sequences_with_offsets_from_data(offsets, guards):
    main, start = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, start), fluid.unique_name.guard():
        x = fluid.data("x", [None, 4 * LANES], lod_level=1)
        at = fluid.data("at", [None], "int32")
        y = fluid.layers.dynamic_lstm(fluid.layers.lod_reset(x, at), 4 * LANES)[0]
        loss = fluid.layers.reduce_sum(fluid.layers.sequence_pool(y, "max"))
        fluid.optimizer.SGD(0.1).minimize(loss)
    rows = fluid.create_lod_tensor(Numbers(0)(6, 4 * LANES), [[6]], fluid.CPUPlace())
    feed = {"x": rows, "at": np.array(offsets, np.int32)}
    before = guards.ran.copy()
    guards.ran.clear()
    with jax.disable_jit(False), fluid.scope_guard(fluid.Scope()):
        executor = fluid.Executor(fluid.CPUPlace())
        executor.run(start)
        with contextlib.suppress(fluid.errors.JFluidError):  # the operator may refuse them
            executor.run(main, feed=feed, fetch_list=[y, loss], return_numpy=False)
            assert lstm_kernels.BACKWARD in guards.ran
    guards.ran |= before


def of_images():
    x = fluid.data("x", [None, 3, 16, 16])
    y = fluid.layers.conv2d(x, 2 * LANES, 3, padding=1, bias_attr=False)
    y = fluid.layers.pool2d(fluid.layers.batch_norm(y, act="relu"), 2, pool_stride=2)
    y = fluid.layers.conv2d(y, 20, 5, padding=2, act="relu")
    x = Numbers(0)(40, 3, 16, 16)
    return fluid.layers.fc(y, 64, act="tanh"), {"x": x}, product_kernels.NAME


def of_slots():
    ids = [fluid.data(name, [None, 1], "int64") for name in "ab"]
    own = fluid.ParamAttr("table")
    rows = [fluid.layers.embedding(i, [50, 9], is_sparse=True, param_attr=own) for i in ids]
    numbers = np.random.RandomState(0).randint(-9, 60, (2, 300, 1))
    numbers[:, 7] = 2**62
    return fluid.layers.concat(rows, axis=1), dict(zip("ab", numbers)), row_kernels.ADD


@made("product")
@pytest.mark.parametrize("net", [of_images, of_slots])
def test_whole_steps(net, guards):
    before = guards.ran.copy()
    guards.ran.clear()
    main, start = fluid.Program(), fluid.Program()
    main.random_seed = start.random_seed = 1
    with fluid.program_guard(main, start), fluid.unique_name.guard():
        y, feed, name = net()
        fluid.optimizer.SGD(0.1).minimize(fluid.layers.reduce_sum(fluid.layers.square(y)))
    found = []
    for on in (True, False):
        fluid.set_flags({"FLAGS_cpu_kernels": on})
        with jax.disable_jit(False), fluid.scope_guard(fluid.Scope()):
            executor = fluid.Executor(fluid.CPUPlace())
            executor.run(start)
            (value,) = executor.run(main, feed=feed, fetch_list=[y])
            parameters = [p.name for p in main.all_parameters()]
            arrays = [fluid.global_scope().find_var(n).get_tensor() for n in parameters]
            found.append([value, *map(np.array, arrays)])
    fluid.set_flags({"FLAGS_cpu_kernels": True})
    assert name in guards.ran
    guards.ran |= before
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3 * np.nanmax(np.abs(other)))


def test_no_function_is_left_out(guards):
    """The last test: it looks at what the others ran."""
    left_out = set(kernel_registry.kernels()) - guards.ran
    assert not left_out
