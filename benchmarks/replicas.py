"""Milliseconds a step in replicas on the CPU, in turn: the program itself on one device, replicas as
one program, replicas on devices of their own, Reduce, and Fluid 1.8.5 where it is at hand.

    python benchmarks/replicas.py [MODEL ...] [--replicas 2] [--rounds 8] [--fluid PYTHON] [--json FILE]

jfluid's modes share a process. In brackets the processor time of a step. "replicas / best": what replicas
take of the faster of one device and devices of their own; the goal is at most 1.05.
"""

import argparse
import json
import sys

import turns

MODES = ("one", "replicas", "apart", "reduce")
GOAL = 1.05


def measure(model, replicas, rounds, fluid=None):
    """{"engine mode": what `turns.in_turn` found}."""
    number = {"CPU_NUM": str(replicas)}
    own = turns.Worker("jfluid", model, "+".join(MODES), **number)
    workers = {"jfluid " + mode: turns.Mode(own, mode) for mode in MODES}
    others = {}
    if fluid:
        for mode in ("one", "replicas", "reduce"):
            others["fluid " + mode] = turns.Worker(
                "paddle.fluid", model, mode, fluid, **(number if mode != "one" else {})
            )
    try:
        return turns.in_turn({**workers, **others}, rounds)
    finally:
        for worker in (own, *others.values()):
            worker.close()


def against_the_best(found):
    """Milliseconds of replicas over those of the faster of one device and devices of their own."""
    best = min(("jfluid one", "jfluid apart"), key=lambda name: found[name]["ms"])
    return 1 / turns.ratio(found["jfluid replicas"], found[best])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=["mlp", "mnist_conv", "resnet_cifar", "ctr_dnn"])
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--fluid", help="an interpreter that can import paddle.fluid")
    parser.add_argument("--json", help="a file for what was found")
    args = parser.parse_args()
    everything = {}
    modes = ["jfluid " + m for m in MODES]
    modes += ["fluid " + m for m in ("one", "replicas", "reduce")] if args.fluid else []
    print("| model | %s | replicas / best |" % " | ".join(modes))
    print("|---|%s" % ("---|" * (len(modes) + 1)))
    for model in args.models:
        found = everything[model] = measure(model, args.replicas, args.rounds, args.fluid)
        cells = ["%.2f (%.2f)" % (found[m]["ms"], found[m]["cpu_ms"]) if m in found else "failed" for m in modes]
        print("| %s | %s | %.3f |" % (model, " | ".join(cells), against_the_best(found)), flush=True)
    if args.json:
        with open(args.json, "w") as file:
            json.dump(everything, file, indent=1)


if __name__ == "__main__":
    sys.exit(main())
