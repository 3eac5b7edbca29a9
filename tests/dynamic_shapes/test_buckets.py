"""Which sizes batches are padded to."""

import numpy as np
import pytest

from jfluid.compile.dynamic_shapes.buckets import Buckets


def padded(needs, said=None):
    """Return the sizes that a stream is padded to."""
    buckets = Buckets(lambda sizes: sizes["length"] * 4, {"length": 1}, said or {})
    return [buckets.choose({"length": need})["length"] for need in needs]


def test_a_stream_of_many_lengths_has_few_buckets_and_little_padding():
    needs = np.random.RandomState(0).randint(9, 200, 3000).tolist()
    chosen = padded(needs)
    assert len(set(chosen)) <= 9
    assert all(bucket >= need for bucket, need in zip(chosen, needs))
    assert np.sum(chosen[1000:]) < 1.15 * np.sum(needs[1000:])  # of all work; 2.7 with one bucket
    assert chosen == padded(needs)  # sizes decide, and no clock


def test_first_buckets_are_coarse():
    assert len(set(padded([100, 110, 120, 70, 127]))) == 1


def test_a_bucket_that_saves_most_comes_next():
    chosen = padded([100, *[20] * 40])
    assert chosen[:2] == [128, 128]
    assert chosen[-1] == 20


@pytest.mark.parametrize("need, bucket", [(20, 32), (32, 32), (33, 64), (64, 64)])
def test_sizes_that_the_user_gives(need, bucket):
    chosen = padded([60, *[need] * 60], {"length": [32, 64]})
    assert set(chosen[1:]) == {bucket}


def test_beyond_the_sizes_that_the_user_gives():
    assert padded([70, 60], {"length": [32, 64]}) == [96, 64]
