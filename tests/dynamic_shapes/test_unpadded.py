"""Listings at the true sizes of a batch, from traces at samples, beside traces at these sizes."""

import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfluid as fluid
from jfluid import layers
from jfluid.compile.dynamic_shapes.dims import NoRule, Sizes, Symbol, Table
from jfluid.compile.dynamic_shapes.unpadded import Unpadded
from jfluid.compile.lowering import trace
from jfluid.compile.numpy_steps import beside
from jfluid.compile.runtime import executables
from tests.dynamic_shapes.interpreted import interpreted

SAMPLES = (5, 14, 53, 31)


def unpadded(function):
    """Return a function of arrays with a varying size n, at any sizes."""
    table = Table([Symbol(SAMPLES, operator.itemgetter("n"))], len(SAMPLES))
    return Unpadded([jax.make_jaxpr(function)(np.ones((n, 6), np.float32)) for n in SAMPLES], table)


def test_sizes_and_numbers_follow_from_the_batch():
    def function(x):
        both = jnp.concatenate([x, x])[1:]
        places = jnp.arange(x.shape[0]) / x.shape[0]
        return both.reshape(-1, 3).sum(0), jnp.mean(x), x.var(ddof=1), places, jnp.pad(x, ((0, 60 - len(x)), (0, 0)))

    for n in (6, 20, 52):
        x = np.random.RandomState(n).rand(n, 6).astype("float32")
        listing = unpadded(function).at(Sizes({"n": n}, {"n": n}))
        for found, expected in zip(listing.run([x]), function(x), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_random_numbers_are_the_ones_of_the_true_sizes():
    def function(x):
        return x * jax.random.uniform(jax.random.key(3), x.shape)

    listing = unpadded(function).at(Sizes({"n": 32}, {"n": 20}))
    (found,) = listing.run([np.ones((20, 6), np.float32)])
    np.testing.assert_array_equal(found, function(jnp.ones((20, 6), jnp.float32)))


def test_windows_with_strides_give_sizes_of_their_own():
    """Sizes that are no multiples of the strides, too."""
    filters = np.random.RandomState(0).rand(1, 1, 3, 3).astype("float32")

    def function(x):
        image = x[None, None]
        for _ in range(2):
            image = jax.lax.conv_general_dilated(image, filters, (2, 1), ((1, 1), (1, 1)))
        image = jnp.pad(image, ((0, 0), (0, 0), (1, 0), (0, 0)))
        return jax.lax.reduce_window(image, -np.inf, jax.lax.max, (1, 1, 3, 1), (1, 1, 2, 1), "VALID"), image.mean()

    for n in (6, 9, 20, 47):
        x = np.random.RandomState(n).rand(n, 6).astype("float32")
        listing = unpadded(function).at(Sizes({"n": n}, {"n": n}))
        for found, expected in zip(listing.run([x]), function(x), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_numbers_without_a_form_are_refused():
    with pytest.raises(NoRule, match="does not follow from the sizes"):
        unpadded(lambda x: x.sum() * np.log(np.log(len(x))))


@pytest.fixture
def interprets(monkeypatch):
    """Switch the interpreter on; no compilation pays."""
    monkeypatch.setattr("jfluid.compile.dynamic_shapes.traced.Traced.pays", lambda *_: False)
    fluid.set_flags({"FLAGS_interpret_first_steps": True})
    yield
    fluid.set_flags({"FLAGS_interpret_first_steps": False})


def losses(sizes):
    """Return losses of a small program with dropout for batches of sizes."""
    x, y = fluid.data("x", [None, 4]), fluid.data("y", [None, 1])
    hidden = layers.dropout(layers.fc(x, 8, act="tanh"), 0.2)
    loss = layers.mean(layers.square_error_cost(layers.fc(hidden, 1), y))
    fluid.optimizer.Adam(0.05).minimize(loss)
    program, startup = fluid.default_main_program(), fluid.default_startup_program()
    program.random_seed = startup.random_seed = 5
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    random, found = np.random.RandomState(0), []
    for size in sizes:
        feed = {"x": random.rand(size, 4).astype("float32"), "y": random.rand(size, 1).astype("float32")}
        found.append(float(exe.run(feed=feed, fetch_list=[loss])[0]))
    return found, exe


def test_interpreted_steps_give_the_losses_of_buckets_and_trace_nothing(interprets, monkeypatch):
    sizes = [9, 12, 15, 8]
    traces = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, _, **more: traces.append(more) if event.endswith("jaxpr_trace_duration") else None
    )
    with fluid.scope_guard(fluid.Scope()), fluid.program_guard(fluid.Program(), fluid.Program()):
        found, exe = losses(sizes)
    (*_, step) = exe.engine._steps.values()
    stream = step.segments[-1].call._traces[-1]
    assert stream.interprets and not stream.compiled and not beside._one_at_a_time.locked()
    assert not any("padded" in str(more.get("fun_name")) for more in traces)
    fluid.set_flags({"FLAGS_interpret_first_steps": False})
    with fluid.scope_guard(fluid.Scope()), fluid.program_guard(fluid.Program(), fluid.Program()):
        expected, _ = losses(sizes)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.fixture
def traces(interprets, monkeypatch):
    """The names of the traces of main programs: at a shape of a stream ("recorded"), or for XLA ("traced")."""
    found = []
    jaxpr_of, trace_of = trace.jaxpr_of, executables.Executables.trace

    def traced(self, *arguments):
        if len(arguments) == 3 and arguments[0]:  # a startup program overwrites nothing
            found.append("traced")
        return trace_of(self, *arguments)

    monkeypatch.setattr(trace, "jaxpr_of", lambda *a, **k: found.append("recorded") or jaxpr_of(*a, **k))
    monkeypatch.setattr(executables.Executables, "trace", traced)
    return found


@pytest.mark.parametrize(
    "sizes, expected",
    [
        ([9, 12, 16, 14], ["traced"] + 3 * ["recorded"]),  # the second shape is a sample, beside two others
        ([9, 12, 15, 14], ["traced"] + 6 * ["recorded"]),  # 14 is no multiple of 3
        ([9, 12, 9, 12], ["traced", "recorded", "traced"]),  # it comes again
        ([64, 1, 64, 1], ["traced", "traced"]),  # a size of 1 is no sample
        ([64, 48, 32, 16], ["traced"] + 4 * ["recorded"]),  # multiples of 16 have a further sample
        ([64, 33, 50, 2, 3], ["traced"] + 3 * ["recorded"]),  # a batch may have two examples
    ],
)
def test_a_stream_is_traced_as_often_as_it_must(sizes, expected, traces):
    with fluid.scope_guard(fluid.Scope()), fluid.program_guard(fluid.Program(), fluid.Program()):
        found, _ = losses(sizes)
    assert traces == expected
    fluid.set_flags({"FLAGS_dynamic_shapes": False})
    try:
        with fluid.scope_guard(fluid.Scope()), fluid.program_guard(fluid.Program(), fluid.Program()):
            exact, _ = interpreted(losses, sizes)
    finally:
        fluid.set_flags({"FLAGS_dynamic_shapes": True})
    np.testing.assert_allclose(found, exact, rtol=1e-4)
