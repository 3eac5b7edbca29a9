"""The collector of garbage, paused."""

import gc
import subprocess
import sys

from jfluid import collector

# in a process of its own: this one has frozen its objects
SETTLED = """
import gc, weakref
from jfluid import collector
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
