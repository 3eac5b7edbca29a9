"""LSTMs, GRUs and maxima over sequences by machine code of our own: the numbers of XLA's loops for sequences
of any lengths, and NumPy's activations.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfluid as fluid
from jfluid.compile.lowering.rnn_kernels import RnnKernels
from jfluid.machine_code import gru_dispatch, kernel_registry, lstm_dispatch
from jfluid.machine_code.processor import LANES
from jfluid.ops import recurrent, recurrent_loops, sequence_loops
from jfluid.ops.ragged import Level, Ragged
from jfluid.ops.sequence_loops import GruArrays, GruForm, LstmArrays, LstmForm

pytestmark = pytest.mark.skipif(not kernel_registry.supports("lstm"), reason="machine code is made for CPUs with AVX2")

USUAL = ("sigmoid", "tanh", "tanh")
OTHERS = ("sigmoid", "relu", "identity")
# width, lengths, rows with those of padding, whether it runs from the end, activations
CASES = {
    "one sequence": (16, [5], 5, False, USUAL),
    "ragged": (32, [5, 3, 0, 9, 1], 24, False, USUAL),
    "ragged, from the end": (32, [5, 3, 0, 9, 1, 4, 4], 27, True, USUAL),
    "groups of all sizes": (16, [7, 1, 2, 6, 3, 5, 4] * 6, 200, False, USUAL),
    "columns of all sizes": (112, [2, 3, 1], 8, False, USUAL),
    "panels": (128, [2, 3, 1, 3, 3, 2, 1], 16, True, USUAL),
    "wide": (272, [2, 1, 2, 3, 1, 2, 1], 13, False, USUAL),
    "other activations": (48, [4, 2, 6] * 5, 64, True, OTHERS),
    "no step at all": (16, [0, 0], 8, False, USUAL),
}


def cases_but(*nightly):
    """The cases; those of some names at night. `in_guards.py` draws cases of all sizes before each change."""
    return [pytest.param(c, marks=[pytest.mark.nightly] * (name in nightly), id=name) for name, c in CASES.items()]


@pytest.fixture(scope="module", autouse=True)
def registered():
    assert kernel_registry.is_on("lstm")


def _level(lengths):
    return Level(jnp.asarray(np.cumsum([0, *lengths]), jnp.int32), max(*lengths, 1))


def _arrays(rows, width, *shapes):
    """x [rows, ...] and others that are given to a loop, and gradients of each state [rows, width]."""
    rng = np.random.RandomState(0)
    arrays = [rng.randn(*shape).astype("float32") for shape in shapes]
    for array in arrays[1:]:
        array /= np.sqrt(width) if array.shape[0] == width else 1
    return arrays, [rng.randn(rows, width).astype("float32") for _ in range(2)]


def _lstm(width, lengths, rows):
    """x, weight, bias with peepholes, h0, c0; gradients."""
    start = (len(lengths), width)
    shapes = [(rows, 4 * width), (width, 4 * width), (7 * width,), start, start]
    return _arrays(rows, width, *shapes)


def _gru(width, lengths, rows):
    """x, weights of gates and candidate, bias, h0; gradients."""
    shapes = [(rows, 3 * width), (width, 2 * width), (width, width), (3 * width,)]
    return _arrays(rows, width, *shapes, (len(lengths), width))


def _results(loops, run, level, arrays, grads):
    """States and gradients, and what padding has of the states."""
    real = int(level.offsets[-1])
    grads = [np.where(np.arange(len(g))[:, None] < real, g, 0) for g in grads]

    def states(x, *others):
        with sequence_loops.using(loops):
            return run(Ragged(x, (level,)), *others)

    def both(*arrays):
        outs, pull = jax.vjp(states, *arrays)
        return outs, pull(tuple(grads[: len(outs)]))

    outs, gradients = jax.jit(both)(*arrays)
    return [out[:real] for out in outs], gradients, [out[real:] for out in outs]


def _compare(run, level, arrays, grads):
    states, gradients, padding = _results(RnnKernels(), run, level, arrays, grads)
    expected = _results(sequence_loops.XlaLoops(), run, level, arrays, grads)
    for ours, theirs in zip((*states, *gradients), (*expected[0], *expected[1]), strict=True):
        scale = max(1.0, float(jnp.max(jnp.abs(theirs), initial=0)))
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-5 * scale)
    assert not np.any(gradients[0][int(level.offsets[-1]) :])  # of rows of padding
    for rows, real in zip(padding, states):
        assert all(any((row == r).all() for r in real) for row in rows) or not len(real)


@pytest.mark.parametrize("case", cases_but("one sequence", "columns of all sizes", "ragged", "wide"))
def test_an_lstm_has_the_numbers_and_gradients_of_the_loop_of_xla(case):
    width, lengths, rows, backwards, acts = case
    arrays, grads = _lstm(width, lengths, rows)
    assert lstm_dispatch.suits(arrays[0], LstmArrays(*arrays[1:]))

    def run(x, *others):
        return recurrent_loops.lstm_of_rows(x, LstmArrays(*others), LstmForm(acts, backwards))

    _compare(run, _level(lengths), arrays, grads)


@pytest.mark.parametrize(
    "case, origin",
    [
        pytest.param(case, origin, marks=[pytest.mark.nightly] * (origin == bool(at % 2)), id=f"{name}-{origin}")
        for at, (name, case) in enumerate(CASES.items())
        for origin in (False, True)
    ],
)
def test_a_gru_has_the_numbers_and_gradients_of_the_loop_of_xla(case, origin):
    width, lengths, rows, backwards, acts = case
    arrays, grads = _gru(width, lengths, rows)
    assert gru_dispatch.suits(arrays[0], GruArrays(*arrays[1:]))

    def run(x, *others):
        form = GruForm(acts[::2], backwards, origin)
        return (recurrent_loops.gru_of_rows(x, GruArrays(*others), form),)

    _compare(run, _level(lengths), arrays, grads)


@pytest.mark.parametrize("backwards", [False, True])
def test_sequences_of_one_length_are_run_where_steps_follow_each_other(backwards):
    steps, number, width, rng = 5, 7, 16, np.random.RandomState(0)
    shapes = [(steps, number, 9), (number, width), (number, width)]
    shapes += [(4 * width, 9), (4 * width, width), (4 * width,)]
    arrays = [rng.randn(*shape).astype("float32") / 2 for shape in shapes]

    def both(loops):
        def run(x, h, c, to, recurrent_weight, bias):
            with sequence_loops.using(loops):
                matrices = [to, recurrent_weight]
                return recurrent._dense_lstm(x, h, c, matrices, bias, backwards)

        outs, pull = jax.vjp(run, *arrays)
        return jax.tree.leaves((outs, pull(jax.tree.map(jnp.cos, outs))))

    called = str(jax.make_jaxpr(lambda: both(RnnKernels()))())
    assert called.count("ffi_call[") == 2 and "scan[" not in called
    for ours, theirs in zip(both(RnnKernels()), both(sequence_loops.XlaLoops()), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def _activation(name, x):
    """An activation of numbers [n, 16], as the candidate of steps that nothing else has a part in."""
    rows, acts = len(x), ("identity", "identity", name)
    gates = np.concatenate([x, np.ones_like(x), np.zeros_like(x), np.ones_like(x)], axis=1)
    zero = np.zeros((rows, 16), np.float32)
    arrays = LstmArrays(np.zeros((16, 64), np.float32), np.zeros(112, np.float32), zero, zero)
    level = _level([1] * rows)
    return np.asarray(lstm_dispatch.over_sequences(gates, level, arrays, LstmForm(acts))[0])


@pytest.mark.parametrize("name", ["sigmoid", "tanh"])
def test_activations_are_those_of_numpy(name):
    sizes = np.concatenate([np.geomspace(1e-30, 86, 4000), np.linspace(0, 30, 4000)])
    x = np.concatenate([sizes, -sizes]).astype("float32").reshape(-1, 16)
    exact = x.astype("float64")
    expected = np.tanh(exact) if name == "tanh" else 1 / (1 + np.exp(-exact))
    np.testing.assert_allclose(_activation(name, x), expected, rtol=5e-7)


@pytest.mark.parametrize("name", ["sigmoid", "tanh"])
def test_what_is_no_number_and_what_is_infinite_stays_so(name):
    x = np.zeros((1, 16), np.float32)
    x[0, :3] = np.nan, np.inf, -np.inf
    expected = [np.nan, 1, 0 if name == "sigmoid" else -1]
    np.testing.assert_allclose(_activation(name, x)[0, :3], expected, atol=1e-37)


def _lstm_of(level, x, *others):
    return lstm_dispatch.over_sequences(x, level, LstmArrays(*others), LstmForm(USUAL))


def _gru_of(level, x, *others):
    form = GruForm(USUAL[:2], backwards=True)
    return (gru_dispatch.over_sequences(x, level, GruArrays(*others), form),)


@pytest.mark.parametrize(
    "draw, run, apart",
    [(_lstm, _lstm_of, (0, 3, 4)), (_gru, _gru_of, (0, 4))],
    ids=["lstm", "gru"],
)
def test_batches_that_share_weights_are_one_call(draw, run, apart):
    lengths = [[3, 1, 4], [2, 2, 2], [4, 0, 0]]
    offsets = jnp.asarray([np.cumsum([0, *n]) for n in lengths], jnp.int32)
    arrays, grads = draw(16, lengths[0], 8)
    stacked = [jnp.stack([arrays[i] * k for k in (1, 2, 3)]) for i in apart]

    def one(offsets, *own):
        given = [own[apart.index(i)] if i in apart else a for i, a in enumerate(arrays)]
        outs, pull = jax.vjp(functools.partial(run, Level(offsets, 4)), *given)
        return outs, pull(tuple(grads[: len(outs)]))

    mapped = jax.vmap(one)
    assert str(jax.make_jaxpr(mapped)(offsets, *stacked)).count("ffi_call[") == 2
    found = jax.tree.leaves(jax.jit(mapped)(offsets, *stacked))
    for i in range(len(lengths)):
        alone = jax.tree.leaves(jax.jit(one)(offsets[i], *(a[i] for a in stacked)))
        for ours, theirs in zip(found, alone, strict=True):
            np.testing.assert_allclose(ours[i], theirs, rtol=1e-5, atol=1e-5)


def test_weights_of_their_own_are_mapped_too():
    (x, weight, bias, h0, c0), _ = _lstm(16, [3, 1], 4)
    weights = jnp.stack([weight, 2 * weight])

    def one(weight):
        arrays, form = LstmArrays(weight, bias, h0, c0), LstmForm(USUAL, backwards=True)
        return lstm_dispatch.over_sequences(x, _level([3, 1]), arrays, form)[0]

    found = jax.jit(jax.vmap(one))(weights)
    for ours, own in zip(found, weights):
        np.testing.assert_array_equal(ours, one(own))


@pytest.mark.parametrize(
    "width, dtype",
    [
        (LANES // 2, "float32"),
        (LANES * 3 // 2, "float32"),
        (528, "float32"),
        (16, "float64"),
        (16, "bfloat16"),
    ],
)
def test_other_loops_are_left_to_xla(width, dtype):
    with jax.enable_x64(True):
        lstm, gru = ([jnp.asarray(a, dtype) for a in d(width, [2], 2)[0]] for d in (_lstm, _gru))
        level, loops = _level([2]), RnnKernels()
        assert loops.lstm(lstm[0], level, LstmArrays(*lstm[1:]), LstmForm(USUAL)) is None
        assert loops.gru(gru[0], level, GruArrays(*gru[1:]), GruForm(USUAL[:2])) is None


def test_a_machine_without_such_vectors_leaves_all_to_xla(monkeypatch):
    monkeypatch.setattr(kernel_registry, "is_on", lambda group: False)
    (x, *lstm), (gates, *gru) = _lstm(16, [2], 2)[0], _gru(16, [2], 2)[0]
    assert not lstm_dispatch.suits(x, LstmArrays(*lstm))
    assert not gru_dispatch.suits(gates, GruArrays(*gru))


@pytest.mark.parametrize(
    "module, columns, trains",
    [
        (lstm_dispatch, 4, True),
        (gru_dispatch, 3, False),
        pytest.param(lstm_dispatch, 4, False, marks=pytest.mark.nightly),
        pytest.param(gru_dispatch, 3, True, marks=pytest.mark.nightly),
    ],
)
def test_programs_call_it_whether_they_train_or_not(monkeypatch, module, columns, trains):
    before = fluid.get_flags("FLAGS_compilation_cache_dir")
    fluid.set_flags({"FLAGS_compilation_cache_dir": ""})
    called, over_sequences = [], module.over_sequences

    def noted(*arguments):
        called.append(arguments)
        return over_sequences(*arguments)

    monkeypatch.setattr(module, "over_sequences", noted)
    rows = np.random.RandomState(0).randn(9, 16 * columns).astype("float32")
    feed = {"x": fluid.create_lod_tensor(rows, [[4, 2, 3]], fluid.CPUPlace())}
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = fluid.data("x", [None, 16 * columns], lod_level=1)
        layers = fluid.layers
        lstm = module is lstm_dispatch
        out = layers.dynamic_lstm(x, 64)[0] if lstm else layers.dynamic_gru(x, 16)
        fetched = layers.reduce_mean(out)
        if trains:
            fluid.optimizer.SGD(0.1).minimize(fetched)
    try:
        with fluid.scope_guard(fluid.Scope()):
            exe = fluid.Executor(fluid.CPUPlace())
            exe.run(startup)
            found = exe.run(main, feed=feed, fetch_list=[fetched])[0]
    finally:
        fluid.set_flags(before)
    assert np.isfinite(found).all() and len(called) == 1
