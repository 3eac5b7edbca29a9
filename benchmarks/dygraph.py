"""Steps of imperative mode: jfluid and Fluid 1.8.5 in turn, so that a slow minute of the machine hits
both, and the same models as Programs.

    python benchmarks/dygraph.py --fluid PYTHON_WITH_PADDLE_1.8.5 [mlp] [resnet] [--rounds N] [--json FILE]
    python benchmarks/dygraph.py --operators [--fluid PYTHON_WITH_PADDLE_1.8.5]

A step feeds a batch, trains on it and reads the loss. Each engine runs in a process of its own, eagerly and
by `Executor.run`; figures are medians over the rounds, of milliseconds and of processor milliseconds a step, which a
busy machine changes less. `--operators` gives the time of one operator of a chain upon four numbers, whose last
value is read: what an operator costs beyond its arithmetic. Python 3.7 syntax: Fluid's interpreter runs this
file, too.
"""

import argparse
import functools
import importlib
import json
import os
import subprocess
import sys
import time

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fluid_models
import noisy_neighbours

CHAIN = 200  # operators
ROUND = 400  # milliseconds of a round of ours, which has five steps at least


def mlp(fluid):
    """As `fluid_models.mlp`."""
    dygraph = fluid.dygraph
    net = dygraph.Sequential(
        dygraph.Linear(784, 200, act="tanh"),
        dygraph.Linear(200, 200, act="tanh"),
        dygraph.Linear(200, 10, act="softmax"),
    )
    return net, fluid.optimizer.SGD(0.01, parameter_list=net.parameters())


def resnet(fluid, blocks=3):
    """As `fluid_models.resnet_cifar`."""
    dygraph, layers = fluid.dygraph, fluid.layers

    class ConvNorm(dygraph.Layer):
        def __init__(self, before, after, width, stride, act="relu"):
            super(ConvNorm, self).__init__()
            pad = (width - 1) // 2
            self.conv = dygraph.Conv2D(before, after, width, stride, pad, bias_attr=False)
            self.norm = dygraph.BatchNorm(after, act=act)

        def forward(self, x):
            return self.norm(self.conv(x))

    class Block(dygraph.Layer):
        def __init__(self, before, after, stride):
            super(Block, self).__init__()
            self.first = ConvNorm(before, after, 3, stride)
            self.second = ConvNorm(after, after, 3, 1, act=None)
            self.same = before == after
            if not self.same:
                self.short = ConvNorm(before, after, 1, stride, act=None)

        def forward(self, x):
            short = x if self.same else self.short(x)
            return layers.elementwise_add(self.second(self.first(x)), short, act="relu")

    class ResNet(dygraph.Layer):
        def __init__(self):
            super(ResNet, self).__init__()
            parts, inside = [ConvNorm(3, 16, 3, 1)], 16
            for channels, first in ((16, 1), (32, 2), (64, 2)):
                for i in range(blocks):
                    parts.append(Block(inside, channels, 1 if i else first))
                    inside = channels
            self.parts = dygraph.Sequential(*parts)
            self.pool = dygraph.Pool2D(8, "avg", 1)
            self.out = dygraph.Linear(64, 10, act="softmax")

        def forward(self, x):
            return self.out(layers.reshape(self.pool(self.parts(x)), [-1, 64]))

    net = ResNet()
    return net, fluid.optimizer.Momentum(0.01, 0.9, parameter_list=net.parameters())


# The eager model, the same as a Program, and the name and shape of a batch.
MODELS = {
    "mlp": (mlp, fluid_models.mlp, "x", (256, 784)),
    "resnet": (resnet, fluid_models.resnet_cifar, "img", (64, 3, 32, 32)),
}


def batches(model):
    _, _, name, shape = MODELS[model]
    r = np.random.RandomState(0)
    return [
        {
            name: r.randn(*shape).astype("float32"),
            "label": r.randint(0, 10, (shape[0], 1)).astype("int64"),
        }
        for _ in range(4)
    ]


def eager(fluid, model):
    build, _, name, _ = MODELS[model]
    net, optimizer = build(fluid)

    def step(batch):
        images, labels = (fluid.dygraph.to_variable(batch[key]) for key in (name, "label"))
        loss = fluid.layers.mean(fluid.layers.cross_entropy(net(images), labels))
        loss.backward()
        optimizer.minimize(loss)
        net.clear_gradients()
        return loss.numpy()

    return step


def static(fluid, model):
    return fluid_models.trainer(fluid, MODELS[model][1].__name__)[0]


def chain(fluid):
    """Returns a function that runs CHAIN operators upon four numbers and reads the last value."""
    x = fluid.dygraph.to_variable(np.ones((2, 2), "float32"))
    x.stop_gradient = False

    def run(_):
        y = x
        for _ in range(CHAIN // 2):
            y = fluid.layers.relu(y + x)
        return y.numpy()

    return run


def work(engine, what, way):
    """Run as many steps as each line of the standard input says, and print milliseconds and processor
    milliseconds a step: a step may end while the script is at the next one.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the engine prints is no answer
    fluid = importlib.import_module(engine)
    if way == "eager":
        fluid.enable_dygraph(fluid.CPUPlace())
    if what == "operators":
        step, feeds = chain(fluid), [None]
    else:
        step, feeds = (eager if way == "eager" else static)(fluid, what), batches(what)
    done = 0
    for line in sys.stdin:
        begin, begin_processor = time.perf_counter(), time.process_time()
        for _ in range(int(line)):
            step(feeds[done % len(feeds)])
            done += 1
        spent = time.perf_counter() - begin, time.process_time() - begin_processor
        print(json.dumps([1e3 * t / int(line) for t in spent]), file=answers, flush=True)


class Worker:
    """One engine that runs one thing in one way, in a process that lives from round to round."""

    def __init__(self, python, engine, what, way):
        self.name = "%s, %s" % (engine, way)
        self.process = subprocess.Popen(
            [python, "-W", "ignore", __file__, "--work", engine, what, way],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(os.environ, CPU_NUM="1"),
            universal_newlines=True,
        )

    def steps(self, number):
        """(milliseconds, processor milliseconds) a step, of so many steps."""
        try:
            self.process.stdin.write("%d\n" % number)
            self.process.stdin.flush()
            found = json.loads(self.process.stdout.readline())
        except (ValueError, OSError):
            raise SystemExit("%s has ended; what it said is above" % self.name) from None
        return found

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def rounds_of(workers, rounds):
    """Rows of (milliseconds, processor milliseconds) by worker, from rounds in turn."""
    for worker in workers.values():
        worker.steps(20)  # compiles
    first = next(iter(workers.values())).steps(5)[0]
    steps = max(5, min(200, round(ROUND / first)))
    found = {key: [] for key in workers}
    for _ in range(rounds):
        for key, worker in workers.items():
            take = functools.partial(worker.steps, steps)
            found[key].append(noisy_neighbours.here().undisturbed(take))
    for worker in workers.values():
        worker.close()
    return {key: np.array(rows) for key, rows in found.items()}


def compare(model, pythons, rounds):
    """Print a row for each engine and way; returns {"engine, way": what was found}."""
    workers = {
        (engine, way): Worker(python, engine, model, way)
        for way in ("eager", "static")
        for engine, python in pythons.items()
    }
    found = rounds_of(workers, rounds)
    ours, kept = found["jfluid", "eager"], {}
    for (engine, way), rows in found.items():
        kept["%s, %s" % (engine, way)] = summary(rows)
        ratios = np.median(rows / ours, axis=0)
        cells = (model, engine, way, *np.median(rows, axis=0), *ratios)
        print("| %s | %s | %s | %.2f | %.2f | %.2f | %.2f |" % cells, flush=True)
    return kept


def operators(pythons, rounds):
    """The same of microseconds of one operator of a chain."""
    workers = {e: Worker(python, e, "operators", "eager") for e, python in pythons.items()}
    print("| engine | us an operator | processor us |\n|---|---|---|")
    kept = {}
    for engine, rows in rounds_of(workers, rounds).items():
        kept[engine] = summary(rows * 1e3 / CHAIN)
        print("| %s | %.1f | %.1f |" % (engine, *np.median(rows * 1e3 / CHAIN, axis=0)))
    return kept


def summary(rows):
    """{"median", "low", "high", "processor": of (time, processor time) in rounds, "rounds"}."""
    clock = rows[:, 0]
    found = {"median": np.median(clock), "low": clock.min(), "high": clock.max()}
    found["processor"] = np.median(rows[:, 1])
    return dict({k: float(v) for k, v in found.items()}, rounds=clock.tolist())


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("models", nargs="*", help=", ".join(MODELS))
    p.add_argument("--fluid", metavar="PYTHON")
    p.add_argument("--rounds", type=int, default=8)
    p.add_argument("--operators", action="store_true", help="the time of one operator")
    p.add_argument("--json", help="a file for what was found")
    p.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.work:
        work(*a.models)
        return
    pythons = {"jfluid": sys.executable}
    if a.fluid:
        pythons["paddle.fluid"] = a.fluid
    if a.operators:
        found = operators(pythons, a.rounds)
    else:
        print("| model | engine | way | ms | processor ms | ms / jfluid's eager | processor |")
        print("|---|---|---|---|---|---|---|")
        found = {model: compare(model, pythons, a.rounds) for model in a.models or MODELS}
    if a.json:
        with open(a.json, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
