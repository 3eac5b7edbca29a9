"""The collector of garbage, paused."""

import gc
import subprocess
import sys

from jfluid.host import collector

# in a process of its own: this one has frozen its objects
SETTLED = """
import gc, weakref
from jfluid.host import collector
class Circle:
    def __init__(self):
        self.own = self
with collector.paused(settle=True):
    assert not gc.isenabled()
    alive = weakref.ref(Circle())
    with collector.paused():
        pass
    assert not gc.isenabled()
assert gc.isenabled() and gc.get_freeze_count() == 0 and alive() is not None
gc.collect()
assert alive() is None
gc.freeze()
frozen = gc.get_freeze_count()
with collector.paused(settle=True):
    pass
assert gc.get_freeze_count() == frozen > 0
"""


def test_what_settled_is_still_collected_and_what_is_frozen_stays_so():
    subprocess.run([sys.executable, "-c", SETTLED], check=True)


def test_a_collector_that_is_off_stays_off():
    gc.disable()
    try:
        with collector.paused(settle=True):
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_collector_that_seldom_looks_does_so_as_before_afterwards():
    before = gc.get_threshold()
    try:
        for set_by_user in (700, 0, 60_000):
            gc.set_threshold(set_by_user, 5, 6)
            outer = collector.seldom()
            inner = collector.seldom()
            assert gc.get_threshold() == (50_000 if set_by_user == 700 else set_by_user, 5, 6)
            collector.often(outer)
            collector.often(inner)
            assert gc.get_threshold() == (set_by_user, 5, 6)
        gc.set_threshold(700, 5, 6)
        noted = collector.seldom()
        gc.set_threshold(123, 4, 5)
        collector.often(noted)
        assert gc.get_threshold() == (123, 4, 5)
    finally:
        gc.set_threshold(*before)
