"""Cost of the checks of a step's values: offsets and initial states that kernels read.

    python benchmarks/checks.py [--rounds 15] [--steps 20]

A program whose steps have such checks (`jfluid.ops.refusals`): offsets from data, and LSTM and GRU loops with initial
states from data. One process trains it with the checks and without the checks in turn. The figure is the least
processor time of a step, of all threads. The guard of kernels compares arrays while a step is traced and takes no
time of a step.
"""

import argparse
import time
from unittest import mock

import numpy as np

import jfluid as fluid
from jfluid.compile.runtime.specialize import Specialized

BATCH, WIDTH, VOCAB, LENGTH = 32, 128, 5000, 70


def trainer():
    """Return (a function that runs a step of a batch, a batch)."""
    layers = fluid.layers
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        words = fluid.data("words", [None, 1], "int64")
        offsets = fluid.data("offsets", [None], "int32")
        state = fluid.data("state", [None, WIDTH])
        label = fluid.data("label", [None, 1], "int64")
        rows = layers.fc(layers.embedding(words, [VOCAB, WIDTH], is_sparse=True), 4 * WIDTH)
        rows = layers.lod_reset(rows, y=offsets)
        lstm, _ = layers.dynamic_lstm(rows, 4 * WIDTH, h_0=state, c_0=state)
        gru = layers.dynamic_gru(layers.fc(lstm, 3 * WIDTH), WIDTH, h_0=state)
        pooled = [layers.sequence_pool(x, "max") for x in (lstm, gru)]
        loss = layers.mean(layers.cross_entropy(layers.fc(pooled, 2, act="softmax"), label))
        fluid.optimizer.Adagrad(0.01).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup, scope=scope)
    rng = np.random.RandomState(0)
    batch = {
        "words": rng.randint(0, VOCAB, (BATCH * LENGTH, 1)).astype("int64"),
        "offsets": (np.arange(BATCH + 1) * LENGTH).astype("int32"),
        "state": rng.rand(BATCH, WIDTH).astype("float32"),
        "label": rng.randint(0, 2, (BATCH, 1)).astype("int64"),
    }
    return lambda: exe.run(main, feed=batch, fetch_list=[loss], scope=scope), batch


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    step, batch = trainer()
    batch["offsets"][1] = -1
    try:
        step()
    except fluid.core.EnforceNotMet as error:
        print("checked: %s" % str(error).splitlines()[0])
    else:
        raise SystemExit("the program has no checks")
    batch["offsets"][1] = LENGTH
    times = {True: [], False: []}
    for turn in range(2 * options.rounds):
        checks = turn % 2 == 0
        with mock.patch.object(Specialized, "_check", Specialized._check if checks else lambda *_: None):
            step()
            begin = time.process_time()
            for _ in range(options.steps):
                step()
            times[checks].append(1000 * (time.process_time() - begin) / options.steps)
    with_checks, without = (min(times[checks]) for checks in (True, False))
    share = 100 * (with_checks / without - 1)
    print("ms cpu of a step with checks: %.2f, without: %.2f; cost: %.1f%%" % (with_checks, without, share))


if __name__ == "__main__":
    main()
