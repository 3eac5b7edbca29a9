"""Steps by NumPy: XLA would compile a program for each of them."""

import contextlib
import math

import jax
import pytest

import jfluid as fluid
from jfluid.compile.numpy_steps.beside import Beside


@contextlib.contextmanager
def interpreting():
    """NumPy interprets the steps of the block. Those without a rule are compiled."""
    before = fluid.get_flags("FLAGS_interpret_first_steps")
    fluid.set_flags({"FLAGS_interpret_first_steps": True})
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Beside, "begin", lambda beside: False)
            yield
    finally:
        fluid.set_flags(before)


def interpreted(function, *arguments):
    """Return the result of a function, whose steps NumPy interprets."""
    with interpreting():
        return function(*arguments)


def by_numpy(function, *arguments):
    """Return the result of a function of JAX, traced and interpreted. One without a rule is compiled."""
    traced = jax.jit(function).trace(*arguments)
    step = Beside(traced, math.inf, lambda: traced.lower().compile(), jax.devices("cpu")[0])
    found = step.run(arguments)
    return step.compiled()(*arguments) if found is None else found


@pytest.fixture
def interprets_steps():
    """Have NumPy interpret the steps of a test."""
    with interpreting():
        yield
