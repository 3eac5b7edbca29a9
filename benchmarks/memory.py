"""Memory of a model that trains on the CPU: on one device, and in replicas with Reduce.

    python benchmarks/memory.py [--width 4096] [--layers 16] [--replicas 4] [--optimizers adam] [--json FILE]

Each figure is of a process of its own: the most that was resident during three steps, less what was
resident before the startup program ran.
"""

import argparse
import json
import os
import subprocess
import sys

MODES = ("one device", "Reduce")


def resident(field):
    """VmRSS or VmHWM of this process in MiB."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(field))


def one(mode, width, layers, replicas, optimizer):
    """(MiB, the last loss)."""
    os.environ["CPU_NUM"] = str(replicas)
    import numpy as np

    import jfluid as fluid

    x = fluid.data("x", [None, width])
    hidden = x
    for _ in range(layers):
        start = fluid.initializer.Constant(1 / width)
        hidden = fluid.layers.fc(hidden, width, bias_attr=False, param_attr=start)
    loss = fluid.layers.mean(hidden)
    kinds = {
        "sgd": lambda: fluid.optimizer.SGD(1e-6),
        "momentum": lambda: fluid.optimizer.Momentum(1e-6, 0.9),
        "adam": lambda: fluid.optimizer.Adam(1e-6),
    }
    kinds[optimizer]().minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    before = resident("VmRSS")
    exe.run(fluid.default_startup_program())
    program = fluid.default_main_program()
    if mode != "one device":
        build = fluid.BuildStrategy()
        build.reduce_strategy = getattr(build.ReduceStrategy, mode)
        program = fluid.CompiledProgram(program).with_data_parallel(loss.name, build)
    feed = {"x": np.ones((2 * replicas, width), "float32")}
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # VmHWM begins anew
    for _ in range(3):
        (value,) = exe.run(program, feed=feed, fetch_list=[loss])
    return resident("VmHWM") - before, float(np.mean(value))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--replicas", type=int, default=4)
    kinds = ["sgd", "momentum", "adam"]
    parser.add_argument("--optimizers", nargs="*", choices=kinds, default=["adam"])
    parser.add_argument("--json", help="a file for what was found")
    parser.add_argument("--one", nargs=2, metavar=("MODE", "OPTIMIZER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        mode, optimizer = args.one
        print(json.dumps(one(mode, args.width, args.layers, args.replicas, optimizer)))
        return
    megabytes = args.width**2 * 4 * args.layers / 2**20
    print("%d MiB of parameters, %d replicas" % (megabytes, args.replicas))
    found = {"parameters_mb": megabytes, "replicas": args.replicas, "optimizers": {}}
    for optimizer in args.optimizers:
        kept = found["optimizers"][optimizer] = {}
        for mode in MODES:
            sizes = ["--width", "--layers", "--replicas"], (args.width, args.layers, args.replicas)
            command = [sys.executable, os.path.abspath(__file__), "--one", mode, optimizer]
            command += [str(part) for pair in zip(*sizes) for part in pair]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
            kept[mode], loss = json.loads(done.stdout.decode().splitlines()[-1])
            print("%-9s %-10s %5d MiB, loss %.6f" % (optimizer, mode, kept[mode], loss), flush=True)
    if args.json:
        with open(args.json, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
