"""Every recorded case of an operator, forward and gradient, at padded sizes beside exact ones."""

import pytest

from tests.dynamic_shapes import dimensions

PARTS = 8


@pytest.mark.parametrize("part", range(PARTS))
def test_padded_operators_give_what_exact_ones_give(part):
    """What may be padded is, and the file says of every other dimension why not."""
    kept = dimensions.kept()
    for name, found in dimensions.outcomes(dimensions.subjects()[part::PARTS]):
        assert found == kept[name], f"{name}: python -m tests.dynamic_shapes.dimensions"


def test_the_file_has_every_operator():
    assert set(dimensions.kept()) == {case.name for case in dimensions.subjects()}
