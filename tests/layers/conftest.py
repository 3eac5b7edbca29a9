"""Layers append operators and compute nothing: NumPy runs the steps of the tests, which are not compiled."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def steps_by_numpy(interpreted_module):
    """Use the fixture in all modules of the folder."""
