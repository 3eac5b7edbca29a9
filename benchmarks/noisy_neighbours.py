"""Whether something else slows this machine just now.

A virtual processor is often half of a core. What another machine on the same host does on the other half makes
arithmetic here up to twice as slow, for a second or for minutes, and no counter of this machine tells: the
processor time of a step grows as its time does. So arithmetic of which the speed is known is done before
and after each turn of a benchmark, and a turn beside a neighbour is taken again.
"""

import functools
import os
import sys
import threading
import time

import numpy as np

PAUSE = 0.25  # seconds in which the threads of a turn cease to spin
SHARE = 0.85  # of its best speed that a machine has when nothing slows it
AGAIN = 4  # how often a turn is taken again at most
_LOOKS = 20  # how often it is seen before a turn whether the machine is whole again; a PAUSE each
_NUMBERS, _CALLS, _SAMPLES = 1 << 15, 60, 3  # exponentials that stay in a core's cache


def speed():
    """Calls a second of the slower processor, of which each computes exponentials."""
    seconds = []

    def compute():
        numbers = np.linspace(-1, 1, _NUMBERS, dtype=np.float32)
        into, samples = np.empty_like(numbers), []
        for _ in range(_SAMPLES):
            begin = time.perf_counter()
            for _ in range(_CALLS):
                np.exp(numbers, out=into)
            samples.append(time.perf_counter() - begin)
        seconds.append(min(samples))

    threads = [threading.Thread(target=compute) for _ in range(os.cpu_count() or 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return _CALLS / max(seconds)


class Machine:
    """This machine, whose best speed is what was seen so far.

    Args:
        speed, sleep: how it is measured, and what waits some seconds.
    """

    def __init__(self, speed=speed, sleep=time.sleep):
        self._speed, self._sleep = speed, sleep
        self._best = max(speed() for _ in range(5))
        self._is_free = False  # nothing has run since it was seen to be whole

    def is_whole(self):
        """Whether it is about as fast as it was at best."""
        now = self._speed()
        self._best = max(self._best, now)
        return now >= SHARE * self._best

    def undisturbed(self, turn):
        """Call `turn` until nothing has slowed it, which is said where it does not come about; returns what
        it gave last.
        """
        for _ in range(1 + AGAIN):
            self._wait()
            found = turn()
            self._sleep(PAUSE)
            self._is_free = self.is_whole()
            if self._is_free:
                return found
        print("a turn that something else on the machine or its host has slowed", file=sys.stderr)
        return found

    def _wait(self):
        """Return when the machine is whole, or some seconds later."""
        for _ in range(_LOOKS):
            if self._is_free:
                break
            self._sleep(PAUSE)
            self._is_free = self.is_whole()
        self._is_free = False


@functools.lru_cache(maxsize=1)
def here():
    """The machine that this process runs on: one object, which has seen its best speed."""
    return Machine()
