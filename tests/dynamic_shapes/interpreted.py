"""Steps at exact shapes by NumPy: XLA would compile a program for each shape."""

import contextlib
from collections.abc import Iterator

import pytest

import jfluid as fluid
from jfluid.compile.numpy_steps.beside import Beside


@contextlib.contextmanager
def numpy_steps() -> Iterator[None]:
    """Have NumPy interpret all steps, and XLA compile none. Steps without a rule are compiled."""
    before = fluid.get_flags("FLAGS_interpret_first_steps")
    fluid.set_flags({"FLAGS_interpret_first_steps": True})
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Beside, "begin", lambda beside: False)
            yield
    finally:
        fluid.set_flags(before)


def interpreted(function, *arguments):
    """Return the result of a function, whose steps NumPy interprets. Those without a rule are compiled."""
    with numpy_steps():
        return function(*arguments)
