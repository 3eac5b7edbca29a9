"""Processor time that the record adds to a step, in turn: with a record, without one, and with its code removed.

    python benchmarks/record_cost.py [--steps N] [--rounds N]

A step runs a program of about 1 ms through the Executor and logs two numbers. "off" has no record, as a script has
without a launcher. "removed" replaces the code of the record by nothing. Figures are microseconds of processor time
(user and system, all threads; lower is better): the fastest round of each, and the median of the differences to
"removed" in the same round.
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

WAYS = ("on", "off", "removed")


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


def seconds(way, steps, step, folder):
    """Processor seconds of a step."""
    fluid.set_flags({"FLAGS_record_dir": folder if way == "on" else ""})
    record.current()
    with removed() if way == "removed" else contextlib.nullcontext():
        for number in range(20):  # begins the file, with the graph of the program
            step(number)
        if record.current() is not None:
            record.current().flush()
        begin = time.process_time()
        for number in range(steps):
            step(number)
        if record.current() is not None:
            record.current().flush()
        return (time.process_time() - begin) / steps


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--size", type=int, default=512)
    options = parser.parse_args()
    exe, feed, fetches = program(options.size)

    def step(number):
        (loss,) = exe.run(feed=feed, fetch_list=fetches)
        fluid.log(number, loss=loss, rate=0.1)

    found = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        for way in WAYS:
            seconds(way, options.steps, step, folder)
        for turn in range(options.rounds):
            for way in WAYS[turn % 3 :] + WAYS[: turn % 3]:
                found[way].append(seconds(way, options.steps, step, folder) * 1e6)
        fluid.set_flags({"FLAGS_record_dir": ""})
        record.current()
    for way in WAYS:
        more = statistics.median(a - b for a, b in zip(found[way], found["removed"]))
        print(f"{way:8} {min(found[way]):8.1f} us a step; {more:+6.1f} us to removed")


if __name__ == "__main__":
    main()
