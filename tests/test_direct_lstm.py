"""LSTMs over sequences by machine code of our own: the numbers of XLA's loop for sequences of any
lengths, and NumPy's activations.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfluid as fluid
from jfluid.compile import direct_lstm, lstm_kernels, machine_code
from jfluid.compile.own_loops import OwnLoops
from jfluid.ops import recurrent, time_loops
from jfluid.ops.ragged import Level, Ragged

pytestmark = pytest.mark.skipif(
    not lstm_kernels.names(), reason="machine code is made for CPUs with AVX-512"
)

USUAL = ("sigmoid", "tanh", "tanh")
# width, lengths, rows with those of padding, whether it runs from the end, activations
CASES = {
    "one sequence": (16, [5], 5, False, USUAL),
    "ragged": (32, [5, 3, 0, 9, 1], 24, False, USUAL),
    "ragged, from the end": (32, [5, 3, 0, 9, 1, 4, 4], 27, True, USUAL),
    "groups of all sizes": (16, [7, 1, 2, 6, 3, 5, 4] * 6, 200, False, USUAL),
    "columns of all sizes": (112, [2, 3, 1], 8, False, USUAL),
    "panels": (128, [2, 3, 1, 3, 3, 2, 1], 16, True, USUAL),
    "other activations": (48, [4, 2, 6] * 5, 64, True, ("sigmoid", "relu", "identity")),
    "no step at all": (16, [0, 0], 8, False, USUAL),
}


@pytest.fixture(scope="module", autouse=True)
def registered():
    assert machine_code.registered()


def _level(lengths):
    return Level(jnp.asarray(np.cumsum([0, *lengths]), jnp.int32), max(*lengths, 1))


def _draw(width, lengths, rows):
    """x, weight, bias with peepholes, h0, c0, and gradients of hidden states and cells."""
    rng, number = np.random.RandomState(0), len(lengths)
    shapes = [(rows, 4 * width), (width, 4 * width), (7 * width,)]
    shapes += [(number, width)] * 2 + [(rows, width)] * 2
    arrays = [rng.randn(*shape).astype("float32") for shape in shapes]
    arrays[1] /= np.sqrt(width)
    for grad in arrays[5:]:
        grad[sum(lengths) :] = 0
    return arrays[:5], arrays[5:]


def _results(loops, level, backwards, acts, arrays, grads):
    """Hidden states, cells, and gradients."""

    def run(x, weight, bias, h0, c0):
        with time_loops.using(loops):
            return recurrent._lstm_of_rows(
                Ragged(x, (level,)), weight, bias, h0, c0, backwards, acts
            )

    def both(*arrays):
        outs, pull = jax.vjp(run, *arrays)
        return outs, pull(tuple(grads))

    (hidden, cells), gradients = jax.jit(both)(*arrays)
    real = int(level.offsets[-1])
    return [hidden[:real], cells[:real], *gradients], (hidden[real:], cells[real:])


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_numbers_and_gradients_are_those_of_the_loop_of_xla(case):
    width, lengths, rows, backwards, acts = case
    level, (arrays, grads) = _level(lengths), _draw(width, lengths, rows)
    assert direct_lstm.suits(*(arrays[i] for i in (0, 1, 2, 3, 4)))
    given = (level, backwards, acts, arrays, grads)
    found, padding = _results(OwnLoops(), *given)
    expected, _ = _results(time_loops.XlaLoops(), *given)
    for ours, theirs in zip(found, expected, strict=True):
        scale = max(1.0, float(jnp.max(jnp.abs(theirs), initial=0)))
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-5 * scale)
    assert not np.any(found[2][sum(lengths) :])  # gradients of rows of padding
    for rows_of_padding, real in zip(padding, found):
        assert all(any((row == r).all() for r in real) for row in rows_of_padding) or not len(real)


def _activation(name, x):
    """An activation of numbers [n, 16], as the candidate of steps that nothing else has a part in."""
    rows, acts = len(x), ("identity", "identity", name)
    gates = np.concatenate([x, np.ones_like(x), np.zeros_like(x), np.ones_like(x)], axis=1)
    zero = np.zeros((rows, 16), np.float32)
    arrays = (gates, np.zeros((16, 64), np.float32), np.zeros(112, np.float32), zero, zero)
    return np.asarray(
        direct_lstm.over_sequences(*arrays[:1], _level([1] * rows), *arrays[1:], False, acts)[0]
    )


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


def test_batches_that_share_weights_are_one_call():
    lengths = [[3, 1, 4], [2, 2, 2], [4, 0, 0]]
    offsets = jnp.asarray([np.cumsum([0, *n]) for n in lengths], jnp.int32)
    drawn = [_draw(16, n, 8) for n in lengths]
    weight, bias = drawn[0][0][1:3]
    x, h0, c0 = (jnp.stack([arrays[i] for arrays, _ in drawn]) for i in (0, 3, 4))
    grads = [jnp.stack([g[i] for _, g in drawn]) for i in (0, 1)]

    def one(offsets, x, h0, c0, hidden, cells):
        def run(*arrays):
            level = Level(offsets, 4)
            return direct_lstm.over_sequences(arrays[0], level, *arrays[1:], False, USUAL)

        outs, pull = jax.vjp(run, x, weight, bias, h0, c0)
        return outs, pull((hidden, cells))

    batches = (offsets, x, h0, c0, *grads)
    mapped = jax.vmap(one)
    assert str(jax.make_jaxpr(mapped)(*batches)).count("ffi_call[") == 2
    found = jax.tree.leaves(jax.jit(mapped)(*batches))
    for i in range(len(lengths)):
        alone = jax.tree.leaves(jax.jit(one)(*(b[i] for b in batches)))
        for ours, theirs in zip(found, alone, strict=True):
            np.testing.assert_allclose(ours[i], theirs, rtol=1e-5, atol=1e-5)


def test_weights_of_their_own_are_mapped_too():
    (x, weight, bias, h0, c0), _ = _draw(16, [3, 1], 4)
    weights = jnp.stack([weight, 2 * weight])

    def one(weight):
        return direct_lstm.over_sequences(x, _level([3, 1]), weight, bias, h0, c0, True, USUAL)[0]

    found = jax.jit(jax.vmap(one))(weights)
    for ours, own in zip(found, weights):
        np.testing.assert_array_equal(ours, one(own))


@pytest.mark.parametrize(
    "width, dtype",
    [(8, "float32"), (24, "float32"), (272, "float32"), (16, "float64"), (16, "bfloat16")],
)
def test_other_lstms_are_left_to_xla(width, dtype):
    with jax.enable_x64(True):
        arrays = [jnp.asarray(a, dtype) for a in _draw(width, [2], 2)[0]]
        assert not direct_lstm.suits(*arrays)
        assert OwnLoops().lstm(arrays[0], _level([2]), *arrays[1:], False, USUAL) is None


def test_a_machine_without_such_vectors_leaves_all_to_xla(monkeypatch):
    monkeypatch.setattr(machine_code, "registered", lambda: False)
    assert not direct_lstm.suits(*_draw(16, [2], 2)[0])


def _program():
    words = fluid.data("x", [None, 64], lod_level=1)
    hidden, _ = fluid.layers.dynamic_lstm(words, 64)
    rows = np.random.RandomState(0).randn(9, 64).astype("float32")
    return hidden, {"x": fluid.create_lod_tensor(rows, [[4, 2, 3]], fluid.CPUPlace())}


@pytest.mark.parametrize("trains", [True, False])
def test_programs_call_it_whether_they_train_or_not(monkeypatch, trains):
    before = fluid.get_flags("FLAGS_compilation_cache_dir")
    fluid.set_flags({"FLAGS_compilation_cache_dir": ""})
    called, over_sequences = [], direct_lstm.over_sequences

    def noted(*arguments):
        called.append(arguments)
        return over_sequences(*arguments)

    monkeypatch.setattr(direct_lstm, "over_sequences", noted)
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        out, feed = _program()
        fetched = fluid.layers.reduce_mean(out)
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
