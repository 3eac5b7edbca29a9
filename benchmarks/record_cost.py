"""Processor time that the record adds to a step.

    python benchmarks/record_cost.py [--steps N] [--rounds N] [--values N]

A step runs a program of about 1 ms through the Executor and logs its loss. Figures are microseconds of a step; lower
is better. "loop" is the median time in the record's functions where the loop calls them, with caches as the program
leaves them, above the median of functions that do nothing, in turn. "thread" is the processor time of the thread that
writes, divided by the number of steps. "without a record" is the difference between a script without a record and
the same script without the record's code: the median of blocks of steps in turn, with its standard error.
"""

import argparse
import contextlib
import statistics
import tempfile
import time
from unittest import mock

import numpy as np

import jfluid as fluid
from jfluid import record
from jfluid.executor import Executor
from jfluid.record.phases import PHASES

_BLOCK, _EMPTY = 500, 50  # steps, and the last steps of a block, which call functions that do nothing


def program(size):
    """The Executor, feed and fetches of a training step."""
    x = fluid.data("x", [None, size])
    loss = fluid.layers.reduce_mean(fluid.layers.fc(fluid.layers.fc(x, size, act="relu"), size))
    fluid.optimizer.SGD(1e-3).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    return exe, {"x": np.ones((16, size), "float32")}, [loss]


@contextlib.contextmanager
def removed():
    """The Executor and `jfluid.log` without the code of the record."""
    run = Executor._run

    def alone(self, program=None, feed=None, fetch_list=None, *_, **__):
        program = fluid.default_main_program() if program is None else program
        return run(self, program, feed, fetch_list, fluid.global_scope(), True, True, False)

    with mock.patch.object(Executor, "run", alone), mock.patch.object(fluid, "log", lambda step, **_: None):
        yield


def with_record(run, steps, more):
    """Seconds of the record's functions in a step, in the loop and in the thread that writes; and of a whole step."""
    ways = [(PHASES.begin, PHASES.end, fluid.log), (lambda: 0, lambda *_: None, lambda step, **_: None)]
    spent, wholes = ([], []), []
    clock = time.pthread_getcpuclockid(record.current()._thread.ident)
    with removed():
        for number in range(-_BLOCK, steps):
            if number == 0:
                thread = time.clock_gettime(clock)
            begin, end, log = ways[number % _BLOCK >= _BLOCK - _EMPTY]
            times = [time.perf_counter()]
            began = begin()
            times.append(time.perf_counter())
            (loss,) = run()
            times.append(time.perf_counter())
            end("compute", began, True)
            log(number, loss=loss, **more)
            times.append(time.perf_counter())
            if number >= 0:
                spent[number % _BLOCK >= _BLOCK - _EMPTY].append(times[1] - times[0] + times[3] - times[2])
                wholes.append(times[3] - times[0])
        thread = (time.clock_gettime(clock) - thread) / len(spent[0])
    return statistics.median(spent[0]) - statistics.median(spent[1]), thread, statistics.median(wholes)


def without_record(step, steps, rounds):
    """Differences of the processor seconds of a step to those without the record's code, of blocks in turn."""
    found = []
    for turn in range(rounds):
        both = {}
        for way in ("off", "removed")[:: 1 if turn % 2 else -1]:
            with removed() if way == "removed" else contextlib.nullcontext():
                step(0)
                begin = time.process_time()
                for number in range(steps):
                    step(number)
                both[way] = (time.process_time() - begin) / steps
        found.append(both["off"] - both["removed"])
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--values", type=int, default=1)
    options = parser.parse_args()
    exe, feed, fetches = program(options.size)
    more = {f"value {number}": 0.1 for number in range(1, options.values)}

    def run():
        return exe.run(feed=feed, fetch_list=fetches)

    def step(number):
        fluid.log(number, loss=run()[0], **more)

    with tempfile.TemporaryDirectory() as folder:
        fluid.set_flags({"FLAGS_record_dir": folder})
        loop, thread, whole = with_record(run, options.steps, more)
        fluid.set_flags({"FLAGS_record_dir": ""})
        assert record.current() is None
    print(f"with a record: {(loop + thread) * 1e6:.1f} us of a step of {whole * 1e3:.2f} ms: ", end="")
    print(f"{loop * 1e6:.1f} in the loop, {thread * 1e6:.1f} in the thread that writes")
    apart = without_record(step, 20, options.rounds)
    error = 1.25 * statistics.stdev(apart) / len(apart) ** 0.5
    print(f"without a record: {statistics.median(apart) * 1e6:+.1f} us (standard error {error * 1e6:.1f})")


if __name__ == "__main__":
    main()
