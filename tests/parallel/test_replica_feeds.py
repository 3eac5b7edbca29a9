"""Feeds divided among replicas: sequences at once as one by one."""

import jax
import numpy as np
import pytest

from jfluid.lod_tensor import LoDTensor
from jfluid.parallel.replica_feeds import Stacker, shares


def sequences(random, number, levels, longest):
    """(LoD, rows) of some sequences, empty ones among them; of one row each where `longest` is 1."""
    lod = []
    for _ in range(levels):
        lengths = random.randint(longest == 1, longest + 1, number)
        lod.append(np.cumsum([0, *lengths]))
        number = int(lod[-1][-1])
    return lod, random.rand(number, 2).astype("float32")


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_sequences_are_divided_at_once_as_one_by_one(replicas):
    random = np.random.RandomState(0)
    one_by_one, at_once = Stacker(), Stacker()  # each remembers its sizes
    for batch in range(20):
        levels, longest = 1 + batch % 2, [1, 3, 9][batch % 3]
        lod, rows = sequences(random, 6, levels, longest)
        other, more = sequences(random, 6, levels, longest)
        feeds = {
            "x": LoDTensor(rows, lod),
            "y": LoDTensor(rows + 1, lod),
            "a": LoDTensor(more, other),
        }
        expected = one_by_one.stack(shares(feeds, replicas, set()))
        found = at_once.divided(feeds, replicas)
        assert jax.tree.structure(found) == jax.tree.structure(expected)
        for value, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(expected)):
            assert np.asarray(value).dtype == np.asarray(wanted).dtype
            np.testing.assert_array_equal(value, wanted)


def test_replicas_with_different_numbers_of_sequences_are_not_divided_at_once():
    lod = [np.array([0, 2, 3, 3])]
    assert Stacker().divided({"x": LoDTensor(np.ones((3, 1)), lod)}, 2) is None
    assert Stacker().divided({"x": LoDTensor(np.ones((0, 1)), [np.array([0])])}, 2) is None
