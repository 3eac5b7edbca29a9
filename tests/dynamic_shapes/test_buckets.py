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
    chosen = padded([100, *[20] * 70])
    assert chosen[:2] == [128, 128]
    assert chosen[-1] == 20


def test_a_bucket_is_known_some_steps_before_its_use():
    buckets = Buckets(lambda sizes: sizes["length"], {"length": 1})
    seen = []
    for need in (100, *[20] * 70):
        seen.append((buckets.choose({"length": need})["length"], buckets.is_coming({"length": 20})))
        assert not buckets.is_coming({"length": 21})
    assert seen == sorted(seen, key=[(128, False), (128, True), (20, False)].index)
    assert [seen.count(stage) for stage in ((128, True), (20, False))] == [19, 33]


def test_a_new_bucket_holds_the_batches_so_far_unless_that_doubles_the_work():
    buckets = Buckets(lambda sizes: sizes["a"] + sizes["b"], {"a": 1, "b": 1})
    buckets.note({"a": 60, "b": 20})
    assert buckets.choose({"a": 30, "b": 60}) == {"a": 64, "b": 64}
    assert buckets.choose({"a": 1000, "b": 10}) == {"a": 1024, "b": 64}
    assert buckets.choose({"a": 10, "b": 200}) == {"a": 12, "b": 256}


@pytest.mark.parametrize("need, bucket", [(20, 32), (32, 32), (33, 64), (64, 64)])
def test_sizes_that_the_user_gives(need, bucket):
    chosen = padded([60, *[need] * 60], {"length": [32, 64]})
    assert set(chosen[1:]) == {bucket}


def test_beyond_the_sizes_that_the_user_gives():
    assert padded([70, 60], {"length": [32, 64]}) == [96, 64]
