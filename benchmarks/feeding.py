"""How long steps wait for data, and how fast batches cross from a reader's process.

    python benchmarks/feeding.py [--steps N] [--fluid PYTHON] [--json FILE]

A model trains from a DataLoader whose reader takes a given part of a step's time for a batch. The
wait is the time in which the training loop stands in the loader. `--fluid` names an interpreter
with the real Fluid 1.8.5, which runs the same.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import time

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fluid_models

# of a step's time that the reader takes for a batch, without using the processor
BUSY = (0.0, 0.25, 0.5, 0.9)


def _median_step(exe, main, loss, feeds, steps):
    times = []
    for i in range(steps):
        begin = time.perf_counter()
        exe.run(main, feed=feeds[i % len(feeds)], fetch_list=[loss])
        times.append(time.perf_counter() - begin)
    return float(np.median(times[2:]))


def train(engine, model, steps):
    """Milliseconds of a step that is fed, of one from the loader, and the part of the loop that
    waits, for each of BUSY.
    """
    fluid = importlib.import_module(engine)
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        loss, make = fluid_models.MODELS[model](fluid)
        rng = np.random.RandomState(0)
        feeds = [make(rng) for _ in range(8)]
        variables = [main.global_block().var(name) for name in feeds[0]]
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        step = _median_step(exe, main, loss, feeds, steps)
        rows = []
        for busy in BUSY:

            def reader(busy=busy):
                for i in range(steps + 3):
                    time.sleep(busy * step)
                    yield list(feeds[i % len(feeds)].values())

            loader = fluid.io.DataLoader.from_generator(variables, capacity=4)
            loader.set_batch_generator(reader, fluid.cpu_places(1))
            batches, waited, number = iter(loader()), 0.0, 0
            while True:
                if number == 3:
                    waited, begin = 0.0, time.perf_counter()
                asked = time.perf_counter()
                feed = next(batches, None)
                waited += time.perf_counter() - asked
                if feed is None:
                    break
                exe.run(main, feed=feed, fetch_list=[loss])
                number += 1
            seconds = time.perf_counter() - begin
            rows.append({"busy": busy, "ms": 1e3 * seconds / steps, "waits": waited / seconds})
    return {"engine": engine, "model": model, "fed_ms": 1e3 * step, "loaders": rows}


def crossing(megabytes=32, count=20):
    """Megabytes a second that come from a reader's process."""
    from jfluid.feeding.worker import Worker

    array = np.zeros(megabytes << 18, np.float32)
    items = iter(Worker(lambda: (array for _ in range(count))))
    next(items)
    begin = time.perf_counter()
    for _ in items:
        pass
    return megabytes * (count - 1) / (time.perf_counter() - begin)


def _print(found):
    for row in found["loaders"]:
        print(
            f"| {found['model']} | {found['engine']} | {found['fed_ms']:.2f} | {100 * row['busy']:.0f}% | "
            f"{row['ms']:.2f} | {100 * row['waits']:.1f}% |",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--fluid")
    parser.add_argument("--json", help="a file for what was found")
    parser.add_argument("--one", nargs=2, metavar=("ENGINE", "MODEL"), help="print one result as JSON")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(train(*args.one, args.steps)))
        return
    print("| model | engine | fed ms | reader busy | from the loader ms | waits |\n|---|---|---|---|---|---|")
    found = {"models": {}}
    for model in ("mnist_conv", "stacked_lstm", "ctr_dnn"):
        kept = found["models"][model] = {"jfluid": train("jfluid", model, args.steps)}
        _print(kept["jfluid"])
        if args.fluid:
            command = [
                args.fluid,
                __file__,
                "--one",
                "paddle.fluid",
                model,
                "--steps",
                str(args.steps),
            ]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            kept["Fluid"] = json.loads(output.splitlines()[-1])
            _print(kept["Fluid"])
    rates = sorted(crossing() for _ in range(5))
    found["crossing"] = dict(zip(("low", "median", "high"), rates[::2]))
    print("\nfrom a reader's process: %.0f MB/s (%.0f to %.0f)" % (rates[2], rates[0], rates[4]))
    if args.json:
        with open(args.json, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
