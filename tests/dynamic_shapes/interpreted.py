"""Steps at exact shapes by NumPy: XLA would compile a program for each shape."""

import pytest

import jfluid as fluid
from jfluid.compile.numpy_steps.beside import Beside


def interpreted(function, *arguments):
    """Return the result of a function, whose steps NumPy interprets. Those without a rule are compiled."""
    before = fluid.get_flags("FLAGS_interpret_first_steps")
    fluid.set_flags({"FLAGS_interpret_first_steps": True})
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Beside, "begin", lambda beside: False)
            return function(*arguments)
    finally:
        fluid.set_flags(before)
