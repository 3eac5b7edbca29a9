"""How fast jobs with parameter servers train, and where a trainer's step spends its time.

    python benchmarks/servers.py [--fluid PYTHON] [--servers N] [--trainers N] [--strategies sync,geo] [--times 3]

Trains a click model (26 slots of ids below a million, 13 numbers, three layers of 400) in each
strategy, over real sockets on this machine, one process for each server and trainer. `--fluid`
names an interpreter that can import paddle.fluid: the same script then trains there too, turn by
turn, and the ratio of examples a second is printed.
"""

import argparse
import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time

import numpy as np

SLOTS, BATCH, VOCABULARY, WIDTH = 26, 512, 1000001, 10
STRATEGIES = ("sync", "half_async", "async", "geo")
PARTS = ("rows", "feed", "compute", "gradients", "exchange", "install")


def model(fluid):
    """The loss of the click model."""
    dense = fluid.layers.data("dense", [13], dtype="float32")
    ids = [fluid.layers.data("C%d" % i, [1], dtype="int64", lod_level=1) for i in range(SLOTS)]
    label = fluid.layers.data("label", [1], dtype="int64")
    table = fluid.ParamAttr(name="table", initializer=fluid.initializer.Uniform())
    rows = [
        fluid.layers.embedding(i, [VOCABULARY, WIDTH], is_sparse=True, param_attr=table)
        for i in ids
    ]
    hidden = fluid.layers.concat(
        [fluid.layers.sequence_pool(r, "sum") for r in rows] + [dense], axis=1
    )
    for _ in range(3):
        hidden = fluid.layers.fc(hidden, 400, act="relu")
    predicted = fluid.layers.fc(hidden, 2, act="softmax")
    return fluid.layers.reduce_mean(fluid.layers.cross_entropy(predicted, label))


def batches(fluid, seed):
    """Sixteen batches."""
    random = np.random.RandomState(seed)
    for _ in range(16):
        dense = random.rand(BATCH, 13).astype("float32")
        feed = {"dense": dense, "label": (dense.sum(1) > 6.5).astype("int64")[:, None]}
        for i in range(SLOTS):
            ids = np.minimum(random.zipf(1.2, (BATCH, 1)), VOCABULARY - 1).astype("int64")
            feed["C%d" % i] = fluid.create_lod_tensor(ids, [[1] * BATCH], fluid.CPUPlace())
        yield feed


def role(engine, strategy, kind, number, endpoints, trainers, steps):
    """One process of a job; a trainer prints a line of JSON."""
    fluid = importlib.import_module(engine)
    makers = importlib.import_module(engine + ".incubate.fleet.base.role_maker")
    base = engine + ".incubate.fleet.parameter_server.distribute_transpiler"
    fleet = importlib.import_module(base).fleet
    factory = importlib.import_module(base + ".distributed_strategy").StrategyFactory
    chosen = getattr(factory, "create_%s_strategy" % strategy)()
    fleet.init(
        makers.UserDefinedRoleMaker(
            current_id=number,
            role=makers.Role.SERVER if kind == "server" else makers.Role.WORKER,
            worker_num=trainers,
            server_endpoints=endpoints.split(","),
        )
    )
    loss = model(fluid)
    fleet.distributed_optimizer(fluid.optimizer.SGD(0.01), chosen).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    if kind == "server":
        fleet.init_server()
        fleet.run_server()
        return
    fleet.init_worker()
    exe.run(fleet.startup_program)
    program = fluid.compiler.CompiledProgram(fleet.main_program).with_data_parallel(
        loss_name=loss.name,
        build_strategy=chosen.get_build_strategy(),
        exec_strategy=chosen.get_execute_strategy(),
    )
    feeds = list(batches(fluid, number))
    parts = getattr(fleet._communicator, "seconds", dict)
    for step in range(10 + steps):
        if step == 10:
            before, begin = parts(), time.time()
        exe.run(program, feed=feeds[step % len(feeds)], fetch_list=[loss.name])
    seconds = time.time() - begin
    after = parts()
    print(
        json.dumps(
            {
                "examples_s": steps * BATCH / seconds,
                "ms": seconds / steps * 1e3,
                "parts": {p: (after[p] - before.get(p, 0)) / steps * 1e3 for p in after},
            }
        ),
        flush=True,
    )
    fleet.stop_worker()


def free_ports(count):
    """Ports that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    found = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return found


def job(python, engine, strategy, servers, trainers, steps):
    """What the trainers of one job printed."""
    endpoints = ",".join("127.0.0.1:%d" % port for port in free_ports(servers))
    env = dict(os.environ, CPU_NUM="1", PYTHONWARNINGS="ignore")
    if engine == "jfluid":
        env["PYTHONPATH"] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

    def start(kind, number):
        command = [
            python,
            os.path.abspath(__file__),
            "--role",
            engine,
            strategy,
            kind,
            str(number),
            endpoints,
            str(trainers),
            str(steps),
        ]
        return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=log, text=True)

    with tempfile.TemporaryFile("w+") as log:
        serving = [start("server", i) for i in range(servers)]
        training = [start("trainer", i) for i in range(trainers)]
        try:
            texts = [p.communicate(timeout=300)[0] for p in training]
        finally:
            for process in serving + training:
                process.terminate()
                process.wait()
        lines = [
            line for text in texts for line in text.splitlines() if line.startswith('{"examples_s"')
        ]
        if len(lines) < trainers:
            log.seek(0)
            raise SystemExit("a job of %s failed:\n%s" % (engine, log.read()[-3000:]))
    return [json.loads(line) for line in lines]


def mean(found, key):
    """The mean over trainers."""
    return sum(f[key] for f in found) / len(found)


def compare(strategy, options):
    """Train in both engines in turn; print the medians."""
    ours, theirs = [], []
    for _ in range(options.times):
        ours.append(
            job(
                sys.executable, "jfluid", strategy, options.servers, options.trainers, options.steps
            )
        )
        if options.fluid:
            theirs.append(
                job(
                    options.fluid,
                    "paddle.fluid",
                    strategy,
                    options.servers,
                    options.trainers,
                    options.steps,
                )
            )
    middle = sorted(ours, key=lambda found: mean(found, "examples_s"))[len(ours) // 2]
    line = "%-11s %9.0f examples/s of each trainer" % (strategy, mean(middle, "examples_s"))
    if theirs:
        fluid = float(np.median([mean(found, "examples_s") for found in theirs]))
        line += ", Fluid %7.0f: %.2f times" % (fluid, mean(middle, "examples_s") / fluid)
    parts = {p: sum(f["parts"].get(p, 0.0) for f in middle) / len(middle) for p in PARTS}
    print(
        line
        + "\n            ms a step: %.1f = " % mean(middle, "ms")
        + " + ".join("%s %.1f" % (p, parts[p]) for p in PARTS),
        flush=True,
    )


def main():
    if sys.argv[1:2] == ["--role"]:
        engine, strategy, kind, number, endpoints, trainers, steps = sys.argv[2:]
        role(engine, strategy, kind, int(number), endpoints, int(trainers), int(steps))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fluid", metavar="PYTHON")
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--trainers", type=int, default=1)
    parser.add_argument("--strategies", type=lambda text: text.split(","), default=STRATEGIES)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    print("%d servers, %d trainers, %d cores" % (options.servers, options.trainers, os.cpu_count()))
    for strategy in options.strategies:
        compare(strategy, options)


if __name__ == "__main__":
    main()
