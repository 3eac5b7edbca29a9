"""Milliseconds a step of a click model by the height of its table: a step costs what its rows cost.

    python benchmarks/heights.py [--heights 100000 10000000] [--rounds 7] [--json FILE]

For SGD, Adagrad and lazy Adam the programs of both heights train in turn, on batches of the same ids,
which are spread over the whole table. The goal is a ratio of at most 1.1.
"""

import argparse
import json
import statistics
import time

import fluid_models
import numpy as np

import jfluid as fluid

OPTIMIZERS = {
    "sgd": lambda: fluid.optimizer.SGD(0.01),
    "adagrad": lambda: fluid.optimizer.Adagrad(0.01),
    "lazy_adam": lambda: fluid.optimizer.Adam(0.001, lazy_mode=True),
}
GOAL = 1.1


def trainer(optimizer, height):
    """What runs a step on a number of a batch."""
    scope, exe = fluid.Scope(), fluid.Executor(fluid.CPUPlace())
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        loss, feed = fluid_models.ctr_dnn(fluid, vocab=height, optimizer=OPTIMIZERS[optimizer]())
    exe.run(startup, scope=scope)
    random, feeds = np.random.RandomState(0), []
    for _ in range(4):
        batch = feed(random)
        for name, value in batch.items():
            if name.startswith("slot"):
                # which ids are equal stays as it is; where they lie is spread
                spread = (np.array(value) * 2654435761 % height).astype("int64")
                batch[name] = fluid.LoDTensor(spread, value.lod())
        feeds.append(batch)
    fetches = [loss]
    return lambda i: exe.run(main, feed=feeds[i % 4], fetch_list=fetches, scope=scope)


def measure(optimizer, heights, rounds, steps=6):
    """{"ms": by height, "ratio": of the last height to the first, the median of the rounds}."""
    runs = {height: trainer(optimizer, height) for height in heights}
    found = {height: [] for height in heights}
    for turn in range(rounds + 1):
        for height in heights[:: 1 if turn % 2 else -1]:
            times = []
            for i in range(steps):
                begin = time.perf_counter()
                runs[height](i)
                times.append(1e3 * (time.perf_counter() - begin))
            if turn:
                found[height].append(statistics.median(times))
    ratios = [b / a for a, b in zip(found[heights[0]], found[heights[-1]])]
    return {
        "ms": {str(h): statistics.median(t) for h, t in found.items()},
        "ratio": statistics.median(ratios),
        "low": min(ratios),
        "high": max(ratios),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heights", type=int, nargs=2, default=[10**5, 10**7])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", help="a file for what was found")
    args = parser.parse_args()
    found = {}
    print("| optimizer | %s | ratio (range) |\n|---|---|---|---|" % " | ".join(map(str, args.heights)))
    for optimizer in OPTIMIZERS:
        f = found[optimizer] = measure(optimizer, args.heights, args.rounds)
        cells = " | ".join("%.2f" % ms for ms in f["ms"].values())
        print(
            "| %s | %s | %.3f (%.2f - %.2f) |" % (optimizer, cells, f["ratio"], f["low"], f["high"]),
            flush=True,
        )
    if args.json:
        with open(args.json, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
