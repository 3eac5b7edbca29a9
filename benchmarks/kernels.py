"""Milliseconds a step of programs with all CPU kernels and without a group of kernels, in turn.

    python benchmarks/kernels.py GROUP MODEL ... [--rounds N]

A group is a name of `jfluid.flags.CPU_KERNELS`; a model, one of `fluid_models.py`.
"""

import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import turns

from jfluid.flags import CPU_KERNELS


def compared(model, group, rounds):
    """Times of a model by "with" and "without" the group, as `turns.in_turn` returns times."""
    waits = {"FLAGS_interpret_first_steps": "0", "CPU_NUM": "1"}
    flags = {"with": "1", "without": f"-{group}"}
    workers = {name: turns.Worker("jfluid", model, FLAGS_cpu_kernels=value, **waits) for name, value in flags.items()}
    try:
        return turns.in_turn(workers, rounds)
    finally:
        for worker in workers.values():
            worker.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("group", choices=CPU_KERNELS)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print("| model | without, cpu ms | with, cpu ms | without, ms | with, ms |\n|---|---:|---:|---:|---:|")
    for model in args.models:
        found = compared(model, args.group, args.rounds)
        cells = [found[name][unit] for unit in ("cpu_ms", "ms") for name in ("without", "with")]
        print(f"| {model} | {' | '.join('%.2f' % cell for cell in cells)} |", flush=True)


if __name__ == "__main__":
    main()
