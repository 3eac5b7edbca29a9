"""States that recurrent operators begin with, their weights and biases: arrays of other shapes are refused with the
same named error, by machine code and without it. Fluid 1.8.5 reads memory that is not theirs.
"""

import contextlib
import itertools

import jax.numpy as jnp
import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.compile.lowering.rnn_kernels import RnnKernels
from jfluid.ops import recurrent, sequence_loops
from jfluid.ops.ragged import Level, Ragged
from tests.dynamic_shapes.interpreted import interpreting

L = fluid.layers
W, LENGTHS = 16, [3, 2, 4]


@pytest.fixture(params=[True, False], ids=["machine code", "NumPy"], autouse=True)
def way(request):
    """Steps are compiled and have kernels, or NumPy interprets the operators themselves."""
    fluid.set_flags({"FLAGS_cpu_kernels": request.param})
    with contextlib.nullcontext() if request.param else interpreting():
        yield
    fluid.set_flags({"FLAGS_cpu_kernels": True})


def rows(columns):
    values = np.full((sum(LENGTHS), columns), 0.1, "float32")
    return fluid.create_lod_tensor(values, [LENGTHS], fluid.CPUPlace())


def state(*shape):
    return np.full(shape, 0.1, "float32")


def run(feed, fetch):
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(fluid.default_startup_program())
    return [np.array(v) for v in executor.run(feed=feed, fetch_list=fetch, return_numpy=False)]


def lstm(h, c):
    y, _ = L.dynamic_lstm(fluid.data("x", [None, 4 * W], lod_level=1), 4 * W, h_0=h, c_0=c)
    return y, 4 * W


def lstmp(h, c):
    x = fluid.data("x", [None, 4 * W], lod_level=1)
    return L.dynamic_lstmp(x, 4 * W, W, h_0=h, c_0=c)[0], 4 * W


def gru(h, _):
    return L.dynamic_gru(fluid.data("x", [None, 3 * W], lod_level=1), W, h_0=h), 3 * W


@pytest.mark.parametrize(("make", "train"), [(lstm, False), (lstm, True), (lstmp, True), (gru, True)])
def test_a_row_for_each_sequence(make, train):
    h, c = (fluid.data(name, [None, W]) for name in "hc")
    y, columns = make(h, c)
    if train:
        fluid.optimizer.SGD(0.1).minimize(L.reduce_sum(y))
    feed = {"x": rows(columns), "h": state(3, W)}
    if make is not gru:
        feed["c"] = state(3, W)
    (found,) = run(feed, [y])
    assert found.shape == (9, W) and np.isfinite(found).all()
    name = make.__name__
    for number in (1, 300):
        wrong = {n: state(number, W) for n in feed if n != "x"}
        with pytest.raises(errors.ShapeError, match=rf"{name}: H0: .* 3 sequences, of 16 .*{number}, 16"):
            run(feed | wrong, [y])
        if "c" in feed:
            with pytest.raises(errors.ShapeError, match=f"{name}: C0: .*{number}, 16"):
                run(feed | {"c": state(number, W)}, [y])


def test_a_state_for_each_example_of_a_batch():
    x, h, c = (fluid.data(n, s) for n, s in zip("xhc", ([5, None, 8], [1, None, W], [1, None, W])))
    y, _, _ = L.lstm(x, h, c, 5, W, 1)
    fluid.optimizer.SGD(0.1).minimize(L.reduce_sum(y))
    feed = {"x": state(5, 3, 8), "h": state(1, 3, W), "c": state(1, 3, W)}
    (found,) = run(feed, [y])
    assert np.isfinite(found).all()
    for which, number in itertools.product("hc", (1, 300)):
        with pytest.raises(errors.ShapeError, match=rf"Init{which.upper()}: .*\[1, 3, 16\], found"):
            run(feed | {which: state(1, number, W)}, [y])


@pytest.mark.parametrize(
    ("op", "slot", "shape"),
    [
        ("lstm", "Weight", (W, 40 * W)),
        ("lstm", "Weight", (W, 4 * W - 1)),
        ("lstm", "Bias", (1, 4 * W - 1)),
        ("lstm", "Bias", (1, 0)),
        ("gru", "Weight", (W, 30 * W)),
        ("gru", "Bias", (1, W)),
        ("gru", "Bias", (1, 1)),
        ("gru", "Bias", (1, 0)),
    ],
)
def test_weights_and_biases_of_other_shapes(op, slot, shape):
    count = {"lstm": 4, "gru": 3}[op]
    shapes = {"Weight": (W, count * W), "Bias": (1, count * W)} | {slot: shape}
    weight, bias = (jnp.ones(s, jnp.float32) for s in shapes.values())
    level = Level(jnp.array(np.cumsum([0, *LENGTHS]), jnp.int32), max(LENGTHS))
    x = Ragged(jnp.ones((sum(LENGTHS), count * W), jnp.float32), (level,))
    with sequence_loops.using(RnnKernels()), pytest.raises(errors.ShapeError, match=f"{op}: {slot}"):
        if op == "lstm":
            recurrent.lstm(x, None, None, weight, bias, use_peepholes=False)
        else:
            recurrent.gru(x, None, weight, bias)


def test_single_steps_have_a_row_for_each_example():
    x, h = fluid.data("x", [None, 3 * W]), fluid.data("h", [None, W])
    y, _, _ = L.gru_unit(x, h, 3 * W)
    z = fluid.data("z", [None, 4 * W])
    block = fluid.default_main_program().global_block()
    made = {n: block.create_var(name=n, shape=[-1, W], dtype="float32") for n in "CH"}
    block.append_op("lstm_unit", {"X": z, "C_prev": h}, made, {})
    feed = {"x": state(3, 3 * W), "z": state(3, 4 * W), "h": state(3, W)}
    run(feed, [y, "C"])
    for fetch, match in ((y, "gru_unit: HiddenPrev"), ("C", "lstm_unit: C_prev")):
        with pytest.raises(errors.ShapeError, match=f"{match}: expected 3 rows, found 1"):
            executor = fluid.Executor(fluid.CPUPlace())
            program = fluid.default_main_program()._prune_with_input(["x", "z", "h"], [fetch])
            executor.run(program, feed=feed | {"h": state(1, W)}, fetch_list=[fetch])
