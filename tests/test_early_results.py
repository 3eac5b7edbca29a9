"""A traced function in two parts gives what it gives whole."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core

from jfluid.compile.early_results import divide

X = np.linspace(-1, 1, 80 * 64, dtype="float32").reshape(80, 64)
W = np.linspace(1, 2, 64 * 64, dtype="float32").reshape(64, 64)


def step(x, w):
    def loss_of(w):
        hidden = jnp.tanh(jnp.maximum(x @ w, 0.0) * 0.5 + 1.0)
        return hidden.mean(), (hidden > 0.5).sum()

    (loss, count), gradient = jax.value_and_grad(loss_of, has_aux=True)(w)
    return [w - 0.1 * gradient, loss, count, x]


def parts(function, wanted, *arguments):
    """(all results of both parts in turn, the division)."""
    divided = divide(jax.make_jaxpr(function)(*arguments), wanted)
    made = core.jaxpr_as_fun(divided.first)(*arguments)
    found = dict(zip(divided.early, made))
    rest = core.jaxpr_as_fun(divided.second)(*arguments, *[made[i] for i in divided.handed])
    late = [i for i in range(len(found) + len(rest)) if i not in found]
    return [v for _, v in sorted((found | dict(zip(late, rest))).items())], divided


def names(closed):
    return [eqn.primitive.name for eqn in closed.jaxpr.eqns]


def test_both_parts_give_what_the_whole_gives():
    found, divided = parts(step, 1, X, W)
    for value, right in zip(found, step(X, W), strict=True):
        np.testing.assert_allclose(value, right, rtol=1e-6)
    assert divided.early == (1,)
    # one product gives the loss; that of the gradient comes after it, and none twice
    assert names(divided.first).count("dot_general") == 1
    assert names(divided.second).count("dot_general") == 1
    assert "tanh" not in names(divided.second)


def test_cheap_operators_are_repeated_and_not_kept():
    def function(x):
        y = jnp.exp(x)
        z = (y + 1.0) * 2.0
        return [z.sum(), jnp.sin(z), y]

    found, divided = parts(function, 0, X)
    for value, right in zip(found, function(X), strict=True):
        np.testing.assert_allclose(value, right, rtol=1e-6)
    assert divided.early == (0, 2)  # y comes with the sum
    assert divided.handed == (1,)  # y alone is handed over: z is computed again
    assert {"add", "mul", "sin"} <= set(names(divided.second))


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (lambda x: [jnp.sin(x).sum()], 0),  # all of it is needed
        (lambda x: [jnp.sin(x), x], 1),  # an argument is there already
        (lambda x: [jnp.sin(x), 1.0], 1),  # so is a number
        (lambda x: [x.sum(), jax.debug.print("{}", x)][:1], 0),  # what it does has an order
    ],
)
def test_what_is_not_divided(function, wanted):
    assert divide(jax.make_jaxpr(function)(X), wanted) is None
