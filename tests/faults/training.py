"""Jobs of this process that are trained through relays, and the same without."""

import functools

import numpy as np

from tests.distributed.job import Job, wide_batch, wide_net

STEPS = 4
FEEDS = [wide_batch(step) for step in range(STEPS)]


def trained(through=None, kind="sparse", feeds=FEEDS):
    """All parameters of a synchronous job of two servers and two trainers at its end."""
    with Job(wide_net(kind), 2, 2, through=through) as job:
        job.begin()
        job.steps(feeds)
        return job.parameters()


@functools.cache
def undisturbed(kind="sparse"):
    return trained(kind=kind)


def assert_same(found, wanted):
    assert found.keys() == wanted.keys() and len(found) > 6
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
