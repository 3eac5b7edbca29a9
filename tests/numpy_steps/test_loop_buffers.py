"""Loops of interpreted steps write their buffers in place, with the results of XLA."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jfluid.compile.numpy_steps import beside, loop_buffers
from jfluid.compile.numpy_steps.interpreter import Listing

BUFFER, WEIGHT = np.arange(40, dtype=np.float32).reshape(10, 4), np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)


def recurrent(buffer, weight):
    """States written into a buffer that the next iteration reads, as DynamicRNN does."""

    def step(buffer, i):
        state = jnp.tanh(lax.dynamic_slice(buffer, (i, 0), (1, 4)) @ weight)
        return lax.dynamic_update_slice(buffer, state, (i + 1, 0)), state

    return lax.scan(step, buffer, jnp.arange(9))


def gradients(buffer, weight):
    """The loop backwards: the gradient of the buffer is read, made zero, and added to."""
    return jax.grad(lambda b, w: (recurrent(b, w)[0] ** 2).sum(), (0, 1))(buffer, weight)


def read_after_write(buffer, weight):
    def step(state):
        i, buffer, total = state
        old = lax.dynamic_slice(buffer, (i, 0), (2, 4))
        buffer = lax.dynamic_update_slice(buffer, old @ weight, (i, 0))
        return i + 1, buffer, total + old + lax.dynamic_slice(buffer, (i, 0), (2, 4))

    return lax.while_loop(lambda s: s[0] < 5, step, (0, buffer, jnp.zeros((2, 4), jnp.float32)))


def kept_slice(buffer, weight):
    """A slice that the next iteration reads, after the buffer has changed."""

    def step(state, i):
        buffer, kept = state
        later = lax.dynamic_slice(buffer, (i, 0), (1, 4))
        return (lax.dynamic_update_slice(buffer, kept * 2, (i, 0)), later), kept

    return lax.scan(step, (buffer, buffer[:1]), jnp.arange(10))


def whole_read(buffer, weight):
    """Not a buffer: the sum reads all elements before the write."""

    def step(buffer, i):
        return lax.dynamic_update_slice(buffer, buffer.sum(0, keepdims=True), (i, 0)), buffer.sum()

    return lax.scan(step, buffer, jnp.arange(4))


def swapped(buffer, weight):
    """Not buffers: each is the other one after an iteration."""

    def step(state, i):
        first, second = state
        return (second, lax.dynamic_update_slice(first, second[:1], (i, 0))), None

    return lax.scan(step, (buffer, buffer + 1), jnp.arange(4))[0]


def batched(buffer, weight):
    """Loops of different length as one: a loop that has ended keeps its buffer."""

    def one(limit):
        def step(state):
            return state[0] + 1, lax.dynamic_update_slice(state[1], jnp.ones((1, 4), jnp.float32), (state[0], 0))

        return lax.while_loop(lambda s: s[0] < limit, step, (0, buffer))

    return jax.vmap(one)(jnp.array([1, 5, 3]))


@pytest.mark.parametrize(
    ("function", "in_place"),
    [
        (recurrent, {"_write"}),
        (gradients, {"_write", "_add_slice"}),
        (read_after_write, {"_write"}),
        (kept_slice, {"_write"}),
        (whole_read, set()),
        (swapped, set()),
        (batched, set()),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_loops_with_buffers(function, in_place, monkeypatch):
    writes = set()
    for name in ("_write", "_add_slice"):
        plain = getattr(loop_buffers, name)
        monkeypatch.setattr(
            loop_buffers, name, lambda *given, name=name, plain=plain: writes.add(name) or plain(*given)
        )
    given = [BUFFER.copy(), WEIGHT.copy()]
    found = Listing(beside.needed(jax.make_jaxpr(function)(*given))).run(given)
    for own, exact in zip(found, jax.tree.leaves(jax.jit(function)(*given)), strict=True):
        np.testing.assert_allclose(own, exact, rtol=2e-5, atol=1e-6)
    np.testing.assert_array_equal(given[0], BUFFER)  # arguments do not change
    assert writes == in_place


def test_operations_that_no_result_needs_do_not_run():
    def function(x):
        unused = lax.scan(lambda c, _: (jnp.sin(c), None), x, None, length=5)[0]
        return x + 1, jax.jit(lambda x, y: (x * 2, jnp.cos(y)))(x, unused)[0]

    closed = beside.needed(jax.make_jaxpr(function)(jnp.ones(3)))
    text = str(closed)
    assert "sin" not in text and "cos" not in text and "scan" not in text
    assert len(closed.jaxpr.invars) == 1
    for own, exact in zip(Listing(closed).run([np.ones(3, np.float32)]), function(jnp.ones(3)), strict=True):
        np.testing.assert_array_equal(own, exact)
