"""What is done to each number of a product, by the machine code that computes it: NumPy's numbers, and programs that
train as with XLA's own loops.
"""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfluid as fluid
from jfluid.compile import update_dependencies
from jfluid.compile.rewrites import jaxpr_rewrites, matmul_epilogues
from jfluid.compile.rewrites.matmul_epilogues import MatmulEpilogues
from jfluid.machine_code import direct_product, functions, product_kernels
from jfluid.machine_code.product_kernels import FINISHED, NAME, UPDATE

pytestmark = pytest.mark.skipif(not product_kernels.names(), reason="machine code is made for CPUs with AVX-512")
LAYER, INPUT, WEIGHT = (1, 0), (1, 1), (0, 0)
# numbers that are added up, rows and columns of the result: whole tiles and panels, parts of them, several blocks
SHAPES = [(64, 28, 64), (100, 31, 57), (33, 15, 40), (777, 45, 10), (1000, 130, 33), (20, 40, 1)]
ACTIVATIONS = {
    "identity": lambda x: x,
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}
SLOPES = {
    "tanh": lambda y: 1 - y**2,
    "relu": lambda y: (y > 0).astype(y.dtype),
    "sigmoid": lambda y: y * (1 - y),
}


@pytest.fixture(scope="module", autouse=True)
def registered():
    assert functions.products_registered()


def _rand(*shape):
    return np.random.RandomState(sum(shape)).randn(*shape).astype("float32")


def _factors(depth, rows, columns, over):
    x, y = _rand(*(rows, depth) if over[0] else (depth, rows)), _rand(depth, columns)
    y = np.ascontiguousarray(y.T) if over[1] else y
    return x, y, np.tensordot(x.astype("float64"), y, (over[:1], over[1:]))


def _close(found, expected, depth):
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6 * depth)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_layer_is_that_of_numpy(shape, activation):
    x, y, product = _factors(*shape, LAYER)
    bias = _rand(shape[2])
    found = jax.jit(lambda *given: direct_product.layer(*given, activation, LAYER))(x, y, bias)
    _close(found, ACTIVATIONS[activation](product + bias), shape[0])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("activation", SLOPES)
def test_a_gradient_times_a_slope_is_that_of_numpy(shape, activation):
    x, y, product = _factors(*shape, INPUT)
    out = ACTIVATIONS[activation](_rand(*product.shape).astype("float64")).astype("float32")
    found = jax.jit(lambda *given: direct_product.sloped(*given, activation, INPUT))(x, y, out)
    _close(found, product * SLOPES[activation](out.astype("float64")), shape[0])


def test_a_slope_of_zero_leaves_nothing_of_what_is_not_finite():
    x, y = np.full((14, 16), np.inf, "float32"), np.ones((16, 32), "float32")
    out = np.where(np.arange(32) % 2, 1, 0).astype("float32") * np.ones((14, 1), "float32")
    found = jax.jit(lambda *given: direct_product.sloped(*given, "relu", LAYER))(x, y, out)
    np.testing.assert_array_equal(found, np.where(out > 0, np.inf, 0))


@pytest.mark.parametrize("donate, in_place", [((), True), ((2,), True), ((), False)])
@pytest.mark.parametrize("shape", SHAPES)
def test_an_update_is_that_of_numpy_and_made_once_where_tiles_overlap(shape, donate, in_place):
    x, y, product = _factors(*shape, WEIGHT)
    parameter, rate = _rand(*product.shape), np.array([0.25], "float32")
    expected = parameter - 0.25 * product
    given = jnp.array(parameter)
    update = jax.jit(lambda *given: direct_product.updated(*given, WEIGHT, in_place), donate_argnums=donate)
    _close(update(x, y, given, rate), expected, shape[0])
    assert given.is_deleted() == bool(donate)
    if not donate:  # whoever reads it finds it as it was
        np.testing.assert_array_equal(given, parameter)


def _network(activations, after=lambda out: out, width=96):
    """Builds a program that trains; returns its loss, a feed, and the output of its first layer."""
    x = fluid.data("x", [None, 64])
    first = hidden = fluid.layers.fc(x, width, act=activations[0])
    for activation in activations[1:]:
        hidden = fluid.layers.fc(hidden, width, act=activation)
    out = after(hidden)
    loss = fluid.layers.mean(fluid.layers.square(out - 1.0))
    return loss, {"x": _rand(128, 64)}, first


class Trained:
    """What a few steps gave, and which functions the step calls, counted by name."""

    def __init__(self, monkeypatch, optimizer, fetched=(), **network):
        calls = collections.Counter()
        ffi_call = jax.ffi.ffi_call

        def counted(name, *given, **options):
            calls[name] += 1
            return ffi_call(name, *given, **options)

        monkeypatch.setattr(jax.ffi, "ffi_call", counted)
        main, startup = fluid.Program(), fluid.Program()
        main.random_seed = startup.random_seed = 1
        with fluid.program_guard(main, startup), fluid.unique_name.guard():
            loss, feed, first = _network(**network)
            optimizer().minimize(loss)
        names = [loss, *(first if f == "first" else f for f in fetched)]
        with fluid.scope_guard(fluid.Scope()):
            exe = fluid.Executor(fluid.CPUPlace())
            exe.run(startup)
            calls.clear()
            found = [exe.run(main, feed=feed, fetch_list=names) for _ in range(5)]
            self.parameters = [np.array(p) for p in map(_value, main.all_parameters())]
        self.losses = [float(row[0].item()) for row in found]
        self.fetched = found[-1][1:]
        self.calls = calls


def _value(parameter):
    return fluid.global_scope().find_var(parameter.name).get_tensor()


def _sgd():
    return fluid.optimizer.SGD(0.1)


@pytest.fixture
def compared(monkeypatch, nothing_kept):
    """Trains with finished products and with XLA's loops; returns the first."""

    def trained(optimizer=_sgd, **network):
        with monkeypatch.context() as patch:
            found = Trained(patch, optimizer, **network)
        with monkeypatch.context() as patch:
            patch.setattr(MatmulEpilogues, "apply", lambda self, equation, values: None)
            plain = Trained(patch, optimizer, **network)
        assert not plain.calls[FINISHED] and not plain.calls[UPDATE]
        np.testing.assert_allclose(found.losses, plain.losses, rtol=1e-5)
        for one, other in zip((*found.parameters, *found.fetched), (*plain.parameters, *plain.fetched)):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
        return found

    return trained


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_layers_take_their_bias_activation_and_slope_with_them_and_sgd_its_parameter(compared, activation):
    """Three layers; slopes of the first two come with the gradients of what comes in. Of what is traced, who
    asks for nothing of a plain product gets none: what stands in its place is counted here only.
    """
    found = compared(activations=[activation] * 3)
    assert found.calls[FINISHED] >= 5 and found.calls[UPDATE] == 3


def test_other_optimizers_take_the_gradient(compared):
    found = compared(lambda: fluid.optimizer.Adam(0.01), activations=["tanh", None])
    assert not found.calls[UPDATE]


def test_a_decay_reads_the_gradient_before_the_update(compared):
    def optimizer():
        decay = fluid.regularizer.L2Decay(0.1)
        return fluid.optimizer.SGD(0.1, regularization=decay)

    assert not compared(optimizer, activations=["relu", None]).calls[UPDATE]


def test_what_is_fetched_is_what_the_step_computed(compared):
    found = compared(activations=["relu", "relu"], fetched=["first", "fc_0.w_0@GRAD"])
    assert found.calls[UPDATE] == 1  # the other gradient is fetched, and is an array


def test_a_layer_that_two_operators_read_before_its_activation(compared):
    def after(out):
        return fluid.layers.tanh(out) + fluid.layers.relu(out)

    compared(activations=["tanh", None], after=after)


def test_a_layer_without_an_activation_takes_its_bias(compared):
    assert compared(activations=[None, None]).calls[FINISHED] >= 2


def test_rows_may_have_more_dimensions(compared):
    def after(out):
        rows = fluid.layers.reshape(out, [-1, 4, 96])
        return fluid.layers.fc(rows, 64, num_flatten_dims=2, act="tanh")

    found = compared(activations=["relu"], after=after)
    assert found.calls[FINISHED] >= 2 and found.calls[UPDATE] == 2


def _compiled(function, *given, wanted):
    """Names of the functions that a step calls in which only some results are wanted."""

    def step(*given):
        found = jaxpr_rewrites.evaluate(lambda _: function(*given), wanted=wanted)
        return [found[name] for name in wanted]

    text = jax.jit(step).lower(*given).compile().as_text()
    return [name for name in (NAME, FINISHED, UPDATE) for _ in range(text.count(f'"{name}"'))]


def test_a_product_that_is_wanted_is_computed_once():
    x, w, b = jnp.ones((128, 64)), jnp.ones((64, 96)), jnp.ones(96)

    def layer(x, w, b):
        product = x @ w
        return {"product": product, "out": jnp.tanh(product + b)}

    assert _compiled(layer, x, w, b, wanted=["out"]) == [FINISHED]
    assert _compiled(layer, x, w, b, wanted=["out", "product"]) == [NAME]


@pytest.mark.parametrize("awaited", ["rows", "divided"])
def test_what_waits_for_a_product_of_replicas_waits_for_what_is_computed_in_its_place(awaited):
    """Rows are divided among replicas before the slope is applied; updates wait for either shape."""
    x, w, out = jnp.ones((128, 64)), jnp.ones((96, 64)), jnp.ones((2, 64, 96))

    def gradient(x, w, out):
        rows = jax.lax.dot_general(x, w, (((1,), (1,)), ((), ())))
        divided = rows.reshape(out.shape)
        slope = jax.lax.select(out > 0, divided, jnp.zeros(out.shape))
        rate = update_dependencies.after(jnp.float32(0.1), [{"rows": rows, "divided": divided}[awaited]])
        return {"slope": slope, "rate": rate}

    assert _compiled(gradient, x, w, out, wanted=["slope", "rate"]) == [FINISHED]


def test_a_parameter_is_copied_neither_where_it_is_written_over_nor_where_a_new_one_is_given():
    """Steps of imperative mode keep small parameters as they were, for who goes another way."""

    def step(x, y, w, rate):
        change = jax.lax.dot_general(x, y, (((0,), (0,)), ((), ())))
        return {"w": w - rate * change}

    given = jnp.ones((128, 64)), jnp.ones((128, 96)), jnp.ones((64, 96)), jnp.float32(0.1)
    for in_place in (True, False):
        with matmul_epilogues.overwriting(in_place):

            def traced(*given):
                return jaxpr_rewrites.evaluate(lambda _: step(*given), wanted=["w"])["w"]

            jitted = jax.jit(traced, donate_argnums=(2,) if in_place else ())
            text = jitted.lower(*given).compile().as_text()
        assert UPDATE in text and " copy(" not in text and "copy-start" not in text


def test_an_eager_step_updates_parameters_with_their_gradients(nothing_kept):
    """The loop of imperative mode gives a program's losses, whose updates are part of products."""
    static = []
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        attr = fluid.ParamAttr(initializer=fluid.initializer.Constant(0.01))
        x = fluid.data("x", [None, 64])
        hidden = fluid.layers.fc(x, 96, act="tanh", param_attr=attr)
        loss = fluid.layers.mean(fluid.layers.fc(hidden, 96, act="relu", param_attr=attr))
        fluid.optimizer.SGD(0.5).minimize(loss)
    with fluid.scope_guard(fluid.Scope()):
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        for i in range(6):
            static += exe.run(main, feed={"x": _rand(128, 64) + i}, fetch_list=[loss])
    with fluid.dygraph.guard(fluid.CPUPlace()):
        attr = fluid.ParamAttr(initializer=fluid.initializer.Constant(0.01))
        net = fluid.dygraph.Sequential(
            fluid.dygraph.Linear(64, 96, act="tanh", param_attr=attr),
            fluid.dygraph.Linear(96, 96, act="relu", param_attr=attr),
        )
        optimizer = fluid.optimizer.SGD(0.5, parameter_list=net.parameters())
        for i in range(6):
            loss = fluid.layers.mean(net(fluid.dygraph.to_variable(_rand(128, 64) + i)))
            loss.backward()
            optimizer.minimize(loss)
            net.clear_gradients()
            np.testing.assert_allclose(loss.numpy(), static[i], rtol=1e-5)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: 1.0 - x,
        lambda x: x > 0.0,
        lambda x: jax.grad(lambda x: jnp.tanh(x).sum())(x),
    ],
    ids=["one less", "positive", "slope of tanh"],
)
def test_what_is_made_for_products_can_be_turned(function):
    x = jnp.arange(15.0).reshape(3, 5) - 7.0

    @jax.jit
    def turned(x):
        return jaxpr_rewrites.evaluate(lambda _: {"y": jnp.transpose(function(x))})["y"]

    np.testing.assert_allclose(turned(x), jnp.transpose(function(x)), rtol=1e-6, atol=1e-6)


def test_filters_may_be_one_less_a_value():
    x, w = jnp.ones((2, 3, 6, 6)), jnp.arange(54.0).reshape(2, 3, 3, 3) / 54

    def convolve(x, w):
        return jax.lax.conv_general_dilated(x, 1.0 - w, (1, 1), "SAME")

    run = jax.jit(lambda x, w: jaxpr_rewrites.evaluate(lambda _: {"y": convolve(x, w)})["y"])
    np.testing.assert_allclose(run(x, w), convolve(x, w), rtol=1e-5, atol=1e-5)
