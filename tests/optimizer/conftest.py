"""Optimizers append operators and compute nothing: NumPy runs the steps of the tests, which are not compiled."""

import pytest

from tests.dynamic_shapes.interpreted import interpreting


@pytest.fixture(autouse=True, scope="module")
def steps_by_numpy():
    with interpreting():
        yield
