"""Images inside a step on CPUs: the same numbers with channels last, and no turning between layers."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jfluid as fluid
from jfluid.compile.rewrites import jaxpr_rewrites
from jfluid.ops import pool


def _draw(*shapes):
    rng = np.random.RandomState(0)
    return [jnp.asarray(rng.randn(*s), jnp.float32) for s in shapes]


def _conv(x, w, strides=(1, 1), **more):
    return lax.conv_general_dilated(x, w, strides, ((1, 1), (1, 1)), **more)


def _rewritten(function):
    def run(*arguments):
        return jaxpr_rewrites.evaluate(lambda _: {"out": function(*arguments)})["out"]

    return run


def _same(function, *arguments):
    """Check a function's values, and return its rewritten form's primitives by name."""
    rewritten = _rewritten(function)
    expected = jax.tree.leaves(jax.jit(function)(*arguments))
    found = jax.tree.leaves(jax.jit(rewritten)(*arguments))
    for e, f in zip(expected, found, strict=True):
        assert e.shape == f.shape and e.dtype == f.dtype
        np.testing.assert_allclose(f, e, rtol=2e-4, atol=2e-4)
    return [e.primitive.name for e in jax.make_jaxpr(rewritten)(*arguments).jaxpr.eqns]


def _reductions(y):
    last = [y.sum(a) for a in ((0, 2, 3), (0,), (1,), (2, 3), (3,), (0, 1, 2, 3))]
    return [*last, y.max((0, 2)), jnp.argmax(y, 1), jnp.argmin(y, 3), y.prod((1, 2))]


def _shapes(y):
    return [
        jnp.pad(y, ((0, 0), (1, 0), (2, 1), (0, 3))) * 2,
        -jnp.concatenate([y, y * y], 1),
        jnp.concatenate([y, jnp.ones_like(y)], 2) + 1,
        y[:, 1:3, ::2, 1:-1] * 2,
        jnp.flip(y, (1, 3)) * 2,
        y.transpose(0, 2, 3, 1) + 1,
        y.transpose(1, 0, 3, 2) + 1,
        y.reshape(y.shape[0], -1),
        y.reshape(*y.shape[:3], 1, y.shape[3]) * 2,
        y.reshape(*y.shape[:2], -1, 1) * 2,
        y.reshape(y.shape[0], 1, *y.shape[1:]) + 1,
        y.reshape(1, *y.shape) + 1,
        y.reshape(y.shape[0] * y.shape[1], 1, *y.shape[2:]) * 2,
        lax.broadcast_in_dim(y, (*y.shape[:2], y.shape[2], 2, y.shape[3], 3), (0, 1, 2, 4)) * 2,
        lax.broadcast_in_dim(y, (2, *y.shape), (1, 2, 3, 4)) * 2,
    ]


def _elements(y):
    scale = jnp.arange(1.0, 1 + y.shape[1]).reshape(1, -1, 1, 1)
    wide = jnp.broadcast_to(y[:, :, :1, :1], y.shape)
    rows = jnp.arange(1.0, 1 + y.shape[3])
    return [
        jnp.where(y > 0, y, 0.1 * y) * scale + rows,
        jnp.clip(y, -1, 1),
        jax.nn.relu(y.at[0, 0, 0, :3].set(jnp.array([jnp.nan, jnp.inf, -jnp.inf]))),
        jnp.maximum(0.5, y),
        wide + y,
        y.astype(jnp.float16),
        lax.reduce_window(y, -jnp.inf, lax.max, (1, 1, 3, 2), (1, 1, 2, 1), "SAME"),
        lax.fori_loop(0, 2, lambda _, z: z + z[:, ::-1], y),
    ]


def _replicas(y):
    apart = y.reshape(2, 1, *y.shape[1:])
    centred = jax.vmap(lambda z: (z - z.mean((0, 2, 3), keepdims=True)) * z.shape[1])(apart)
    return [jnp.tanh(centred.reshape(y.shape)) + y, apart.max((0, 3)), centred.sum((1, 2))]


@pytest.mark.parametrize("follows", (_reductions, _shapes, _elements, _replicas))
def test_what_follows_a_convolution_gives_the_same_numbers(follows):
    _same(lambda x, w: follows(_conv(x, w)), *_draw((2, 3, 6, 5), (4, 3, 3, 3)))


@pytest.mark.parametrize(
    "shape, filters, options",
    (
        ((2, 3, 7, 6), (4, 3, 3, 3), {"strides": (2, 2)}),
        ((2, 3, 7, 6), (4, 3, 3, 3), {"rhs_dilation": (2, 1)}),
        ((2, 4, 7, 6), (6, 2, 3, 3), {"feature_group_count": 2}),
        ((2, 3, 5, 6), (4, 3, 1, 1), {}),
        ((2, 2, 6, 9), (3, 2, 2, 4), {"strides": (1, 2)}),
        ((2, 3, 5, 6), (4, 3, 2, 3), {"strides": (1, 2), "lhs_dilation": (2, 1)}),
        ((1, 24, 2, 3), (32, 24, 3, 3), {}),  # more filters than positions
        ((2, 5, 12, 6), (4, 5, 3, 3), {}),  # in four bands of rows
        ((2, 5, 6, 7), (4, 5, 5, 5), {}),  # mostly borders
    ),
)
def test_convolutions_and_their_gradients(shape, filters, options):
    def gradients(x, w):
        def loss(x, w):
            y = _conv(jnp.sin(_conv(x, jnp.ones((shape[1], shape[1], 3, 3)) / 9)), w, **options)
            return (jnp.sin(y) * jnp.arange(y.shape[3])).sum()

        return jax.value_and_grad(loss, (0, 1))(x, w)

    _same(gradients, *_draw(shape, filters))


def test_images_are_not_turned_between_layers():
    def loss(x, w, v):
        y = _conv(x, w)
        apart = y.reshape(2, 1, *y.shape[1:])  # as of two replicas
        y = jnp.tanh((apart - apart.mean((1, 3, 4), keepdims=True)) * 2).reshape(y.shape)
        return _conv(jnp.maximum(y[:, :, ::2], y[:, :, 1::2]), v).sum()

    arguments = _draw((2, 3, 6, 4), (5, 3, 3, 3), (7, 5, 3, 3))
    names = _same(lambda *a: jax.grad(loss, (0, 1, 2))(*a), *arguments)
    # The fed image, and its gradient, are turned; broadcasts and filters may be.
    rewritten = _rewritten(lambda *a: jax.grad(loss, (1, 2))(*a))
    equations = jax.make_jaxpr(rewritten)(*arguments).jaxpr.eqns
    turned = [e.invars[0].aval.shape for e in equations if e.primitive.name == "transpose"]
    turned = [s for s in turned if len(s) in (4, 5) and np.prod(s) >= 2 * 5 * 3 * 4]
    assert "conv_general_dilated" in names
    assert set(turned) == {(2, 3, 6, 4)}


@pytest.mark.parametrize("kernel", [(2, 2), (3, 2)])
def test_windows_side_by_side_are_not_turned(kernel):
    """Maxima over them, and their gradient, which is one selection and no sum of arrays."""
    size = 6 // kernel[0], 4 // kernel[1]

    def loss(x, w, v):
        y = pool._max(_conv(x, w), (2, 3), kernel, kernel, size)
        return _conv(y * 2, v).sum()

    arguments = _draw((2, 3, 6, 4), (5, 3, 3, 3), (7, 5, 3, 3))
    gradients = jax.grad(loss, (1, 2))
    _same(gradients, *arguments)
    equations = jax.make_jaxpr(_rewritten(gradients))(*arguments).jaxpr.eqns
    turned = {e.invars[0].aval.shape for e in equations if e.primitive.name == "transpose"}
    assert (2, 5, 6, 4) not in turned and (2, 6, 4, 5) not in turned
    spread = [
        e for e in equations if e.primitive.name == "pad" and any(inside for _, _, inside in e.params["padding_config"])
    ]
    assert not spread


def test_an_image_behind_residual_blocks_is_computed_once():
    """No loop of XLA's reads more than a block's images: it would compute those of others again."""

    def loss(filters, x):
        for v, w in filters:
            x = jax.nn.relu(x + _conv(jax.nn.relu(_conv(x, v)), w))
        return jnp.sum(x * x)

    x, *filters = _draw((2, 8, 6, 6), *[(8, 8, 3, 3)] * 10)
    arguments = list(zip(filters[::2], filters[1::2])), x
    gradients = jax.jit(_rewritten(jax.grad(loss)))
    text = gradients.lower(*arguments).compile().as_text()
    loops = re.findall(r" fusion\((.*?)\), kind=kLoop", text)
    assert loops and max(loop.count("%") for loop in loops) <= 4


def test_what_a_program_without_images_knows_while_it_is_traced_stays_known():
    known = np.arange(3)

    def run():
        return jaxpr_rewrites.evaluate(lambda _: {"known": known, "x": jnp.ones(2)})

    seen = []
    jax.jit(lambda: seen.append(run()) or seen[0]["x"])()
    assert seen[0]["known"] is known


@pytest.mark.parametrize("depthwise", (False, pytest.param(True, marks=pytest.mark.nightly)))
def test_a_program_trains_as_with_channels_last_of_its_own(depthwise):
    """A net in NCHW against the same one whose layers say NHWC."""
    losses = []
    for layout in ("NCHW", "NHWC"):
        main, startup = fluid.Program(), fluid.Program()
        main.random_seed = startup.random_seed = 3
        with fluid.program_guard(main, startup), fluid.unique_name.guard():
            shape = [2, 3, 8, 8] if layout == "NCHW" else [2, 8, 8, 3]
            x = fluid.data("x", shape)
            y = fluid.layers.conv2d(x, 4, 3, padding=1, data_format=layout)
            y = fluid.layers.batch_norm(y, act="relu", data_layout=layout)
            y = fluid.layers.pool2d(y, 2, pool_stride=2, data_format=layout)
            groups = 4 if depthwise else 1
            y = fluid.layers.conv2d(y, 4, 3, groups=groups, data_format=layout)
            loss = fluid.layers.mean(fluid.layers.square(y))
            fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
        scope, exe = fluid.Scope(), fluid.Executor(fluid.CPUPlace())
        image = np.random.RandomState(0).randn(2, 3, 8, 8).astype("float32")
        with fluid.scope_guard(scope):
            exe.run(startup)
            feed = {"x": image if layout == "NCHW" else image.transpose(0, 2, 3, 1)}
            losses.append([float(exe.run(main, feed, [loss])[0][0]) for _ in range(3)])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)
    assert losses[0][2] < losses[0][0]


def test_what_goes_back_through_much_border_is_a_product():
    def back(grad, w):
        _, gradient = jax.vjp(lambda x: _conv(x, w), jnp.zeros((2, 5, 6, 6)))
        return gradient(jnp.tanh(_conv(grad, jnp.ones((4, 4, 3, 3)))))

    names = _same(back, *_draw((2, 4, 4, 4), (4, 5, 5, 5)))
    assert names.count("dot_general") == 1
    assert names.count("conv_general_dilated") == 2  # those forward


@pytest.mark.parametrize(
    "sizes",
    [(2, 6, 5, 7, 3), (1, 3, 40, 5, 3), (2, 6, 5, 7, 5)],
    ids=["many positions", "few positions", "much border"],
)
def test_filters_that_are_held_in_another_order(sizes):
    """They, and what is computed beside them, come in and go out as they are held; only what reads
    their order sees Fluid's.
    """
    batch, size, filters, channels, width = sizes
    x, w, v = _draw((batch, channels, size, size), *[(filters, channels, width, width)] * 2)
    order = (2, 3, 1, 0)

    def step(env, x):
        gradient, other = jax.grad(lambda w, x: (_conv(x, w) ** 2).sum() / 100, (0, 1))(env["w"], x)
        velocity = 0.9 * env["v"] + gradient
        return {"w": env["w"] - 0.1 * velocity, "v": velocity, "flat": env["w"].ravel(), "x": other}

    def held(w, v, x):
        env = {"w": (w, order), "v": (v, order)}
        return jaxpr_rewrites.evaluate(lambda given: step(given, x), env, dict.fromkeys(env, order))

    expected = jax.jit(step)({"w": w, "v": v}, x)
    arguments = w.transpose(order), v.transpose(order), x
    found = jax.jit(held)(*arguments)
    for name, value in expected.items():
        if name in ("w", "v"):
            value = value.transpose(order)
        np.testing.assert_allclose(found[name], value, rtol=2e-4, atol=2e-4)
    equations = jax.make_jaxpr(held)(*arguments).jaxpr.eqns
    turned = [e.invars[0].aval.shape for e in equations if e.primitive.name == "transpose"]
    assert turned.count((width, width, channels, filters)) == 1  # for `flat`
