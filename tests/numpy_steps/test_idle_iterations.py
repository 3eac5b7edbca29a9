"""Interpreted loops skip iterations without effect, and run all iterations that have one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jfluid as fluid
from jfluid import layers
from jfluid.compile.numpy_steps import beside, interpreter
from jfluid.compile.numpy_steps.idle_iterations import flag_of
from jfluid.compile.numpy_steps.interpreter import Listing

STATES, WEIGHT = np.ones((2, 3), np.float32), np.linspace(-1, 1, 9, dtype=np.float32).reshape(3, 3)


@pytest.fixture
def bodies(monkeypatch):
    """The iterations that run: a number for each run of a loop's body."""
    found, repeated = [], Listing.repeated

    def counted(self, values, state=None):
        run = repeated(self, values, state)

        def again(values):
            found.append(len(values))
            return run(values)

        return again

    monkeypatch.setattr(interpreter.Listing, "repeated", counted)
    return found


def guarded(states, weight, most, times):
    """States written into a buffer while a counter is below a number, as a loop of a program with gradients."""

    def step(carried, _):
        state, buffer, count, going = carried
        new = jnp.where(going, jnp.tanh(state @ weight), state)
        old = lax.dynamic_index_in_dim(buffer, count, 0, False, allow_negative_indices=False)
        buffer = lax.dynamic_update_index_in_dim(
            buffer, jnp.where(going, new, old), count, 0, allow_negative_indices=False
        )
        count = jnp.where(going, count + 1, count)
        return (new, buffer, count, going & (count < most)), None

    start = states, jnp.zeros((times, *states.shape), states.dtype), jnp.int32(0), jnp.bool_(True)
    return lax.scan(step, start, None, times)[0][1]


def masked(states, weight, most, times):
    """Rows that end at different times."""

    def step(state, at):
        here, given = at
        new = jnp.where(here[:, None], jnp.tanh(state @ weight) + given, state)
        return new, jnp.where(here[:, None], new, 0)

    inside = jnp.arange(times)[:, None] < jnp.stack([most, most // 2])
    return lax.scan(step, states, (inside, jnp.ones((times, *states.shape), states.dtype)))[1]


@pytest.mark.parametrize("most", [1, 4, 12])
def test_results_and_gradients_of_xla_in_the_iterations_that_count(most, bodies):
    def both(states, weight, most):
        found, back = jax.vjp(lambda s, w: guarded(s, w, most, 12), states, weight)
        return found, *back(jnp.cos(found))

    given = STATES, WEIGHT, np.int32(most)
    found = Listing(beside.needed(jax.make_jaxpr(both)(*given))).run(given)
    for ours, theirs in zip(found, both(*given), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-6)
    assert len(bodies) == most + (most < 12) + most  # an idle iteration gives the residuals of all later ones


@pytest.mark.parametrize("most", [1, 4, 12])
def test_rows_of_idle_iterations_are_known(most, bodies):
    given = STATES, WEIGHT, np.int32(most)
    found = Listing(jax.make_jaxpr(lambda *given: masked(*given, 12))(*given)).run(given)
    np.testing.assert_allclose(found[0], masked(*given, 12), rtol=2e-5, atol=1e-6)
    assert len(bodies) == most


def proof(step, *operands):
    closed = jax.make_jaxpr(step)(*operands)
    return flag_of(closed, 0, 1)


def test_an_iteration_with_an_effect_has_no_flag():
    flag, x, at = np.bool_(True), np.ones((4, 2), np.float32), np.int32(1)
    put = lax.dynamic_update_slice
    assert proof(lambda x, flag: jnp.where(flag, x * 2, x), x, flag) is not None
    assert proof(lambda x, flag: jnp.where(flag, x, x * 2), x, flag) is None
    assert proof(lambda x, flag: x + jnp.where(flag, 1.0, 0.5).astype(x.dtype), x, flag) is None
    assert proof(lambda x, flag: jnp.where(flag, x * 2, x).T.reshape(4, 2), x, flag) is None
    assert proof(lambda x, flag, at: put(x, jnp.where(flag, 1.0, x[:1] * 0), (at, 0)), x, flag, at) is None

    def moved(x, flag, at):  # writes one row to the place of another
        row = lax.dynamic_slice(x, (at, 0), (1, 2), allow_negative_indices=False)
        return put(x, jnp.where(flag, row * 2, row), (at + 1, 0), allow_negative_indices=False)

    assert proof(moved, x, flag, at) is None


def test_a_dynamic_rnn_runs_the_length_of_the_batch(bodies, monkeypatch):
    """One trace for sequences of up to 48 words runs as many iterations as a batch has words."""
    monkeypatch.setattr(beside, "_PAYS", 1e9)
    monkeypatch.setattr(beside, "_FIRST_CALL", 1e9)
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        words = fluid.data("words", [None, 4], "float32", lod_level=1)
        rnn = layers.DynamicRNN()
        with rnn.block():
            word = rnn.step_input(words)
            state = rnn.memory(shape=[4], value=0.0)
            new = layers.fc([word, state], 4, act="tanh", bias_attr=False)
            rnn.update_memory(state, new)
            rnn.output(new)
        loss = layers.mean(layers.sequence_pool(rnn(), "sum"))
        fluid.optimizer.SGD(0.1).minimize(loss)
    lengths = [[33, 20, 30], [33, 20, 31], [5, 3, 2]]
    old = fluid.get_flags("FLAGS_interpret_first_steps")
    fluid.set_flags({"FLAGS_interpret_first_steps": True})
    runs = []
    with fluid.scope_guard(fluid.Scope()):
        executor = fluid.Executor(fluid.CPUPlace())
        executor.run(startup)
        for own in lengths:
            bodies.clear()
            rows = np.ones((sum(own), 4), np.float32)
            executor.run(main, {"words": fluid.create_lod_tensor(rows, [own], fluid.CPUPlace())}, [loss])
            runs.append(len(bodies))
    fluid.set_flags(old)
    assert runs[0] == runs[1] and runs[0] - runs[2] == 2 * (33 - 5)
