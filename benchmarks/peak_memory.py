"""Peak memory of large training programs: jfluid and Fluid 1.8.5 on a CPU.

    python benchmarks/peak_memory.py --fluid PYTHON_WITH_PADDLE_1.8.5 [MODEL ...] [--steps N] [--count N] [--json FILE]

Each figure is of a separate process: the largest resident memory from its start until its end (`ru_maxrss`),
with the import of the engine and the compilation of the step. jfluid starts with an empty cache of executables.
Python 3.7 syntax: Fluid's interpreter runs this file, too.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import large_models


def train(engine, name, steps):
    """Train a model in this process, and print the losses."""
    fluid = importlib.import_module(engine)
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        loss, feed = large_models.MODELS[name](fluid)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    rng = np.random.RandomState(0)
    batches = [feed(rng) for _ in range(2)]
    losses = []
    for step in range(steps):
        if step == steps // 2:
            wait_for_compilations()
        (found,) = exe.run(main, feed=batches[step % 2], fetch_list=[loss])
        losses.append(float(np.mean(found)))
    print(json.dumps(losses))


def wait_for_compilations():
    """Wait for threads that compile beside the first steps, so that later steps are the compiled ones."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()


def peak(interpreter, engine, name, steps, environment):
    """Return the peak of resident memory of a process that trains a model, in MiB, and the losses."""
    command = [interpreter, os.path.abspath(__file__), "--one", engine, name, "--steps", str(steps)]
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, stdout=out, env=dict(os.environ, **environment))
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = status
        if status:
            raise SystemExit("%s of %s ended with the status %d" % (name, engine, status))
        out.seek(0)
        return usage.ru_maxrss / 1024, json.loads(out.read().splitlines()[-1])


def compare(name, fluid, steps):
    """Return the peaks of jfluid and Fluid, and the last losses."""
    found = {}
    with tempfile.TemporaryDirectory() as cache:
        given = {"FLAGS_compilation_cache_dir": cache}
        found["jfluid"], losses = peak(sys.executable, "jfluid", name, steps, given)
    found["jfluid_losses"] = losses
    if fluid:
        given = {"PYTHONPATH": "", "PYTHONWARNINGS": "ignore"}
        found["fluid"], found["fluid_losses"] = peak(fluid, "paddle.fluid", name, steps, given)
        found["ratio"] = found["jfluid"] / found["fluid"]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", help="models (all by default): " + " ".join(large_models.MODELS))
    parser.add_argument("--fluid", help="Fluid's interpreter")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--count", type=int, default=12, help="the number of models with the largest peaks to keep")
    parser.add_argument("--json", help="a file for the figures")
    parser.add_argument("--one", nargs=2, metavar=("ENGINE", "MODEL"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        train(*args.one, args.steps)
        return
    found = {}
    for name in args.models or large_models.MODELS:
        found[name] = one = compare(name, args.fluid, args.steps)
        shown = "%-17s jfluid %5d MiB" % (name, one["jfluid"])
        if args.fluid:
            shown += ", Fluid %5d MiB, ratio %.2f" % (one["fluid"], one["ratio"])
        print(shown, flush=True)
    largest = sorted(found, key=lambda name: -found[name].get("fluid", found[name]["jfluid"]))[: args.count]
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"steps": args.steps, "models": {name: found[name] for name in largest}}, file, indent=1)


if __name__ == "__main__":
    main()
