"""Which sizes batches are padded to."""

import numpy as np
import pytest

from jfluid.compile.dynamic_shapes.buckets import MOST, Buckets


def padded(needs, said=None):
    """Return the sizes that a stream is padded to."""
    buckets = Buckets(lambda sizes: sizes["length"] * 4, {"length": 1}, said or {})
    return [buckets.choose({"length": need})["length"] for need in needs]


def test_a_stream_of_many_lengths_has_few_buckets_and_little_padding():
    needs = np.random.RandomState(0).randint(9, 200, 3000).tolist()
    chosen = padded(needs)
    assert len(set(chosen)) < MOST
    assert all(bucket >= need for bucket, need in zip(chosen, needs))
    assert np.sum(chosen[1000:]) < 1.13 * np.sum(needs[1000:])  # of all work; 2.7 with one bucket
    assert chosen == padded(needs)  # sizes decide, and no clock


def tokens(count):
    """Batches of about 512 tokens: many short or few long sentences, and a small size that varies a little."""
    random = np.random.RandomState(1)
    for length in random.randint(24, 97, count).tolist():
        yield {"rows": 512 // length, "length": length, "more": int(random.randint(60, 80))}


def test_sizes_on_a_curve_have_little_padding():
    def work(sizes):
        return 3 * sizes["rows"] * sizes["length"] + 2 * sizes["more"]

    needs = list(tokens(800))
    buckets = Buckets(work, dict.fromkeys(needs[0], 1), others=lambda: 2)
    chosen = [work(buckets.choose(need)) for need in needs]
    assert len(buckets) + 2 < MOST
    assert sum(chosen[:100]) < 1.5 * sum(map(work, needs[:100]))  # a bucket for all batches: 4.2
    assert sum(chosen[400:]) < 1.35 * sum(map(work, needs[400:]))


def test_a_size_that_costs_little_has_room():
    buckets = Buckets(lambda sizes: 100 * sizes["a"] + sizes["b"], {"a": 1, "b": 1})
    assert {buckets.choose({"a": 10, "b": b})["b"] for b in (30, 33, 37)} == {48}


def test_larger_sizes_after_many_steady_batches():
    sizes = [{"length": n} for n in np.random.RandomState(0).randint(9, 200, 2000).tolist()]
    buckets = Buckets(lambda own: own["length"], {"length": 1}, others=lambda: 2)
    for own in sizes:
        buckets.choose(own)
    assert len(buckets) + 2 == MOST - 2
    assert buckets.choose({"length": 300})["length"] >= 4 * 300
    assert buckets.choose({"length": 5000})["length"] >= 8 * 5000
    assert len(buckets) + 2 == MOST


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
