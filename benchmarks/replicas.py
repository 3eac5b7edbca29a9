"""Milliseconds a step in replicas on the CPU: jfluid's modes, and Fluid 1.8.5's where it is at
hand.

    python benchmarks/replicas.py [MODEL ...] [--replicas 1 2 4 8] [--steps N] [--fluid PYTHON]

Each figure is the median of one process's steps. 0 replicas: `Executor.run` of the program itself.
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


def one(engine, model, replicas, reduce, steps):
    """Median milliseconds of a step."""
    os.environ["CPU_NUM"] = str(max(replicas, 1))
    fluid = importlib.import_module(engine)
    loss, feed = fluid_models.MODELS[model](fluid)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    program = fluid.default_main_program()
    if replicas:
        build = fluid.BuildStrategy()
        if reduce:
            build.reduce_strategy = fluid.BuildStrategy.ReduceStrategy.Reduce
        program = fluid.CompiledProgram(program).with_data_parallel(
            loss_name=loss.name, build_strategy=build
        )
    rng, times = np.random.RandomState(0), []
    feeds = [feed(rng) for _ in range(4)]
    for i in range(steps + 3):
        begin = time.time()
        exe.run(program, feed=feeds[i % 4], fetch_list=[loss])
        times.append(time.time() - begin)
    return 1e3 * float(np.median(times[3:]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=["mlp", "mnist_conv", "resnet_cifar"])
    parser.add_argument("--replicas", nargs="*", type=int, default=[0, 1, 2, 4, 8])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--fluid", help="an interpreter that can import paddle.fluid")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        engine, model, replicas, reduce = args.one
        print(json.dumps(one(engine, model, int(replicas), reduce == "reduce", args.steps)))
        return
    engines = [("jfluid", sys.executable)] + ([("paddle.fluid", args.fluid)] if args.fluid else [])
    for model in args.models:
        for replicas in args.replicas:
            for engine, python in engines:
                found = []
                for mode in ("allreduce", "reduce") if replicas > 1 else ("allreduce",):
                    command = [
                        python,
                        os.path.abspath(__file__),
                        "--steps",
                        str(args.steps),
                        "--one",
                        engine,
                        model,
                        str(replicas),
                        mode,
                    ]
                    done = subprocess.run(
                        command,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.DEVNULL,
                        check=False,
                        env=dict(os.environ, PYTHONWARNINGS="ignore"),
                    )
                    lines = done.stdout.decode().splitlines()
                    found.append(
                        "%s %s"
                        % (
                            mode,
                            "%.1f ms" % json.loads(lines[-1]) if done.returncode == 0 else "failed",
                        )
                    )
                print(
                    "%-13s %d replicas  %-12s %s" % (model, replicas, engine, ", ".join(found)),
                    flush=True,
                )


if __name__ == "__main__":
    main()
