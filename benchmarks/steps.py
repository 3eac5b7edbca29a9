"""Milliseconds a step: jfluid against hand-written JAX, step by step in turn, and Fluid 1.8.5 where
it is at hand.

    python benchmarks/steps.py [MODEL ...] [--steps N] [--fluid PYTHON]

`--fluid` names an interpreter that can import paddle.fluid; it runs the same programs in a process
of its own. `--one ENGINE` times one engine (jfluid, jax or paddle.fluid) in a process of its own,
with its peak memory.
"""

import argparse
import importlib
import json
import os
import resource
import subprocess
import sys
import time

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fluid_models


def _runner(engine, model):
    if engine == "jax":
        import jax_models

        return jax_models.trainer(model)
    return fluid_models.trainer(importlib.import_module(engine), model)[0]


def _feeds(model):
    """Eight batches. The builder needs an engine that has the Fluid API; a recorder of nothing
    would not do.
    """
    engine = importlib.import_module(os.environ.get("FLUID", "jfluid"))
    with engine.program_guard(engine.Program(), engine.Program()), engine.unique_name.guard():
        _, feed = fluid_models.MODELS[model](engine)
    rng = np.random.RandomState(0)
    return [feed(rng) for _ in range(8)]


def one(engine, model, steps):
    """Median milliseconds of one engine alone, seconds to the end of the first step, peak memory in
    MB.
    """
    feeds = _feeds(model)
    if engine == "jax":
        import jax_models

        feeds = [jax_models.PREPARE.get(model, lambda f: f)(f) for f in feeds]
    start = time.perf_counter()
    run = _runner(engine, model)
    run(feeds[0])
    first = time.perf_counter() - start
    times = []
    for i in range(steps + 3):
        begin = time.perf_counter()
        run(feeds[i % 8])
        times.append(time.perf_counter() - begin)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "engine": engine,
        "model": model,
        "ms": 1e3 * float(np.median(times[3:])),
        "first_s": first,
        "peak_mb": peak,
    }


def paired(model, steps):
    """Milliseconds of jfluid and of JAX, one step each in turn, and the median ratio of the
    pairs.
    """
    import jax_models

    if model not in jax_models.TRAINED:
        return one("jfluid", model, steps)["ms"], float("nan"), float("nan")
    feeds = [_feeds(model)] * 2
    runs = [_runner("jfluid", model), _runner("jax", model)]
    if model in jax_models.PREPARE:
        feeds[1] = [jax_models.PREPARE[model](f) for f in feeds[1]]
    times = [[], []]
    for i in range(steps + 5):
        for k in (0, 1) if i % 2 else (1, 0):
            begin = time.perf_counter()
            runs[k](feeds[k][i % 8])
            times[k].append(time.perf_counter() - begin)
    ours, theirs = (np.array(t[5:]) * 1e3 for t in times)
    return float(np.median(ours)), float(np.median(theirs)), float(np.median(ours / theirs))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("models", nargs="*", help=", ".join(fluid_models.MODELS))
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--fluid", metavar="PYTHON")
    p.add_argument("--one", metavar="ENGINE")
    a = p.parse_args()
    models = a.models or list(fluid_models.MODELS)
    if a.one:
        os.environ["FLUID"] = "jfluid" if a.one == "jax" else a.one
        for model in models:
            print(json.dumps(one(a.one, model, a.steps)))
        return
    print(
        "| model | jfluid ms | hand-written JAX ms | ratio (median of pairs) | Fluid 1.8.5 ms |\n|---|---|---|---|---|"
    )
    for model in models:
        ours, theirs, ratio = paired(model, a.steps)
        fluid = ""
        if a.fluid:
            done = subprocess.run(
                [
                    a.fluid,
                    "-W",
                    "ignore",
                    __file__,
                    model,
                    "--one",
                    "paddle.fluid",
                    "--steps",
                    "20",
                ],
                stdout=subprocess.PIPE,
                check=True,
                text=True,
            )
            fluid = "%.1f" % json.loads(done.stdout.splitlines()[-1])["ms"]
        print("| %s | %.2f | %.2f | %.3f | %s |" % (model, ours, theirs, ratio, fluid), flush=True)


if __name__ == "__main__":
    main()
