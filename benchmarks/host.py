"""Microseconds that a small step takes beyond XLA's call, by the way its feed comes.

    python benchmarks/host.py [KIND ...] [--steps 400] [--rounds 9] [--json FILE]

Each kind trains a program whose computation is small. In turn with `Executor.run` the compiled function
itself is called with what `run` gave it, its state going from call to call, and its loss is brought to
NumPy. Both are measured as processor time of the thread that calls, which other processes do not
change, and on the clock. The goal is at most 60 beyond the call.
"""

import argparse
import functools
import json
import os
import statistics
import time

os.environ.setdefault("CPU_NUM", "2")

import jax
import noisy_neighbours
import numpy as np

import jfluid as fluid

BATCH = 16
GOAL = 60


def mlp():
    """(loss, what makes a feed)."""
    hidden = fluid.data("x", [None, 32])
    label = fluid.data("label", [None, 1], "int64")
    for _ in range(2):
        hidden = fluid.layers.fc(hidden, 32, act="tanh")
    prediction = fluid.layers.fc(hidden, 10, act="softmax")
    loss = fluid.layers.mean(fluid.layers.cross_entropy(prediction, label))
    fluid.optimizer.SGD(0.01).minimize(loss)
    return loss, lambda r: {
        "x": r.randn(BATCH, 32).astype("float32"),
        "label": r.randint(0, 10, (BATCH, 1)),
    }


def sequences():
    """(loss, what makes a feed of two slots of ids)."""
    slots = [fluid.data("slot_%d" % i, [None, 1], "int64", lod_level=1) for i in range(2)]
    rows = [fluid.layers.sequence_pool(fluid.layers.embedding(s, [100, 8], is_sparse=True), "sum") for s in slots]
    loss = fluid.layers.mean(fluid.layers.square(fluid.layers.fc(fluid.layers.concat(rows, 1), 1)))
    fluid.optimizer.SGD(0.01).minimize(loss)

    def feed(r):
        found = {}
        for slot in slots:
            lengths = r.randint(1, 5, BATCH).tolist()
            ids = r.randint(0, 100, (sum(lengths), 1))
            found[slot.name] = fluid.create_lod_tensor(ids, [lengths], fluid.CPUPlace())
        return found

    return loss, feed


def _runner(kind):
    """(where compiled steps are kept, a function that runs `count` steps)."""
    loss, make = sequences() if "LoD" in kind else mlp()
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    program, fetches = fluid.default_main_program(), [loss]
    if "replicas" in kind:
        program = fluid.CompiledProgram(program).with_data_parallel(loss.name)
    kept = program._parallel.steps if "replicas" in kind else exe.engine._steps
    random = np.random.RandomState(0)
    feeds = [make(random) for _ in range(8)]
    if "loader" not in kind:

        def steps(count):
            for i in range(count):
                exe.run(program, feed=feeds[i % 8], fetch_list=fetches)

        return kept, steps
    block = fluid.default_main_program().global_block()
    loader = fluid.io.DataLoader.from_generator([block.var(n) for n in feeds[0]], capacity=8)
    batches = [tuple(feed.values()) for feed in feeds]

    def endless():
        while True:
            yield from batches

    loader.set_batch_generator(endless, fluid.CPUPlace())
    source = iter(loader())

    def steps_of_loader(count):
        for _ in range(count):
            exe.run(program, feed=next(source), fetch_list=fetches)

    return kept, steps_of_loader


class Recorded:
    """A compiled function that keeps what it was called with last, in `given`: the state as a copy,
    since the call overwrites it.
    """

    def __init__(self, function):
        self.function, self.given = function, None

    def __call__(self, donated, kept, key):
        self.given = jax.tree.map(np.array, donated), kept, key
        return self.function(donated, kept, key)


def call_alone(compiled, given, fetch):
    """A function that calls a step's compiled function itself `count` times.

    Args:
        given: what a run gave it: (state, feeds and the rest, key).
        fetch: which of its outputs the run brings to NumPy.
    """
    donated, kept, key = given
    state = [donated]

    def calls(count):
        with jax.enable_x64(True):
            for _ in range(count):
                gives, _ = compiled(state[0], kept, key)
                state[0] = gives[: len(donated)]
                np.asarray(gives[fetch])

    return calls


def _turn(work, steps):
    """Microseconds of processor time of this thread and on the clock, of one of so many steps."""
    begin, clock = time.thread_time(), time.perf_counter()
    work(steps)
    spent = time.thread_time() - begin, time.perf_counter() - clock
    return [1e6 * seconds / steps for seconds in spent]


def measure(kind, steps, rounds):
    """{"run_us", "call_us", "beyond_us": of processor time; "beyond_clock_us", "low", "high"}."""
    programs = fluid.program_guard(fluid.Program(), fluid.Program())
    with programs, fluid.scope_guard(fluid.Scope()), fluid.unique_name.guard():
        kept, run = _runner(kind)
        run(16)
        step = list(kept.values())[-1]
        segment = step.whole
        recorded = segment.exact.plain = Recorded(segment.exact.plain)
        run(1)
        compiled = segment.exact.plain = recorded.function
        calls = call_alone(compiled, recorded.given, segment.gives.index(step.plan.fetches[0]))
        calls(16)
        found = {"run": [], "call": [], "run_clock": [], "call_clock": []}
        for turn in range(rounds):
            for name, work in (("run", run), ("call", calls))[:: 1 if turn % 2 else -1]:
                take = functools.partial(_turn, work, steps)
                mine, clock = noisy_neighbours.here().undisturbed(take)
                found[name].append(mine)
                found[name + "_clock"].append(clock)
    beyond = sorted(a - b for a, b in zip(found["run"], found["call"]))
    clock = [a - b for a, b in zip(found["run_clock"], found["call_clock"])]
    return {
        "run_us": statistics.median(found["run"]),
        "call_us": statistics.median(found["call"]),
        "beyond_us": statistics.median(beyond),
        "low": beyond[0],
        "high": beyond[-1],
        "beyond_clock_us": statistics.median(clock),
    }


KINDS = ("dict", "LoD", "loader", "LoD loader", "replicas", "LoD replicas")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", default=KINDS)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", help="a file for what was found")
    args = parser.parse_args()
    print("| feed | run us | XLA's call us | beyond us (range) | beyond, on the clock |")
    print("|---|---|---|---|---|")
    found = {}
    for kind in args.kinds:
        f = found[kind] = measure(kind, args.steps, args.rounds)
        print(
            "| %s | %.0f | %.0f | %.0f (%.0f - %.0f) | %.0f |"
            % (
                kind,
                f["run_us"],
                f["call_us"],
                f["beyond_us"],
                f["low"],
                f["high"],
                f["beyond_clock_us"],
            ),
            flush=True,
        )
    if args.json:
        with open(args.json, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
