"""How good the models are that each strategy of parameter servers trains, beside Fluid's own.

    python benchmarks/quality.py [--fluid PYTHON] [--strategies sync,geo] [--runs 3] [--json FILE]

The clicks, the network and the hyperparameters of examples/ctr_dnn.py (lazy Adam, a decaying rate, 204,800
lines, 3 epochs), two trainers and two servers. Run number k of each engine begins with seed k and sees the
same lines in the same order. The model is saved by the first trainer and asked by a process of its own.
Prints the test AUC of each run against the best reachable one. `--fluid` names an interpreter that can
import paddle.fluid: the same script then trains there too.
"""

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile

import numpy as np
from servers import free_ports

HERE = os.path.dirname(os.path.abspath(__file__))
STRATEGIES = ("sync", "half_async", "async", "geo")
SLOTS, WIDTH, HIDDEN, BATCH = 26, 10, (128, 64), 256
SEED = 90  # of the model that the clicks come from


def network(fluid, height):
    """The inputs' names, the probabilities [lines, 2] and the loss."""
    dense = fluid.data("dense", [None, 13], dtype="float32")
    ids = [fluid.data("C%d" % i, [None, 1], dtype="int64") for i in range(SLOTS)]
    click = fluid.data("click", [None, 1], dtype="int64")
    table = fluid.ParamAttr(name="categories", initializer=fluid.initializer.Normal(scale=0.01))
    hidden = [fluid.layers.embedding(i, [height, WIDTH], is_sparse=True, param_attr=table) for i in ids]
    hidden = [fluid.layers.reshape(rows, [-1, WIDTH]) for rows in hidden]
    hidden = fluid.layers.concat([dense] + hidden, axis=1)
    for width in HIDDEN:
        hidden = fluid.layers.fc(hidden, width, act="relu")
    predicted = fluid.layers.fc(hidden, 2, act="softmax")
    loss = fluid.layers.mean(fluid.layers.cross_entropy(predicted, click))
    return ["dense"] + [i.name for i in ids], predicted, loss


def feed_of(data, lines):
    """The feed of some lines of a file."""
    feed = {"C%d" % i: data["ids"][lines, i : i + 1] for i in range(SLOTS)}
    feed["dense"] = data["dense"][lines]
    return feed


def role(engine, strategy, kind, number, endpoints, job):
    """One process of a job: a server, or a trainer; the first of these saves the model."""
    fluid = importlib.import_module(engine)
    makers = importlib.import_module(engine + ".incubate.fleet.base.role_maker")
    base = engine + ".incubate.fleet.parameter_server.distribute_transpiler"
    fleet = importlib.import_module(base).fleet
    factory = importlib.import_module(base + ".distributed_strategy").StrategyFactory
    arguments = [job["push_every"]] if strategy == "geo" else []
    chosen = getattr(factory, "create_%s_strategy" % strategy)(*arguments)
    trainers, is_server = job["trainers"], kind == "server"
    fleet.init(
        makers.UserDefinedRoleMaker(
            current_id=number,
            role=makers.Role.SERVER if is_server else makers.Role.WORKER,
            worker_num=trainers,
            server_endpoints=endpoints.split(","),
        )
    )
    fluid.default_main_program().random_seed = job["seed"]
    fluid.default_startup_program().random_seed = job["seed"]
    names, predicted, loss = network(fluid, job["rows"])
    data = None if is_server else np.load(os.path.join(job["folder"], "train-%d.npz" % number))
    steps = job["epochs"] * (job["lines"] // trainers // BATCH)
    # servers count the steps of all trainers, but with geo each trainer has a schedule of its own
    counted = 1 if strategy in ("sync", "geo") else trainers
    rate = fluid.layers.polynomial_decay(job["rate"], decay_steps=steps * counted, end_learning_rate=1e-6)
    optimizer = fluid.optimizer.Adam(rate, lazy_mode=True)
    fleet.distributed_optimizer(optimizer, chosen).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    if is_server:
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
    order = np.random.RandomState([job["seed"], number])
    data = {name: data[name] for name in ("dense", "ids", "click")}
    for _ in range(job["epochs"]):
        shuffled = order.permutation(len(data["click"]))
        for begin in range(0, len(shuffled) - BATCH + 1, BATCH):
            lines = shuffled[begin : begin + BATCH]
            feed = feed_of(data, lines)
            feed["click"] = data["click"][lines]
            (value,) = exe.run(program, feed=feed, fetch_list=[loss.name])
    meet(fleet, job, number)
    if number == 0:
        fleet.save_inference_model(exe, job["model"], names, [predicted])
    print(json.dumps({"loss": float(np.mean(value))}), flush=True)
    fleet.stop_worker()


def meet(fleet, job, number):
    """Wait until all trainers have done their steps, by files: Fluid's barrier needs MPI."""
    import time

    open(os.path.join(job["folder"], "done-%d" % number), "w").close()
    while not all(os.path.exists(os.path.join(job["folder"], "done-%d" % n)) for n in range(job["trainers"])):
        time.sleep(0.1)
    time.sleep(2)  # what is on its way to the servers arrives


def ask(engine, job):
    """Print the probabilities' file of a saved model for the test lines."""
    fluid = importlib.import_module(engine)
    exe = fluid.Executor(fluid.CPUPlace())
    program, names, targets = fluid.io.load_inference_model(job["model"], exe)
    data = np.load(os.path.join(job["folder"], "test.npz"))
    feed = feed_of({"ids": data["ids"], "dense": data["dense"]}, slice(None))
    (found,) = exe.run(program, feed={n: feed[n] for n in names}, fetch_list=targets)
    np.save(os.path.join(job["folder"], "found.npy"), np.array(found)[:, 1])


# ---- the driver: jfluid's interpreter ----


def make_data(folder, options):
    """Write the lines of each trainer and those to test with; return the test's labels and true
    probabilities."""
    sys.path[:0] = [os.path.join(os.path.dirname(HERE), "examples"), os.path.dirname(HERE)]
    from criteo_data import ClickModel, clicks_of
    from criteo_slots import CriteoSlots

    model, slots = ClickModel(SEED), CriteoSlots(options.rows)

    def save(name, clicks):
        samples = [dict(slots.sample(line)) for line in clicks.lines()]
        np.savez(
            os.path.join(folder, name),
            dense=np.array([s["dense"] for s in samples], "float32"),
            ids=np.array([[s["C%d" % (i + 1)][0] for i in range(SLOTS)] for s in samples], "int64"),
            click=clicks.labels.astype("int64")[:, None],
        )

    for number in range(options.trainers):
        name = "train-%d" % number
        save(name, clicks_of(model, name + ".txt", options.lines, options.trainers))
    test = clicks_of(model, "test-0.txt", options.test_lines)
    save("test", test)
    return test.labels, test.probabilities


def train(python, engine, strategy, job, options):
    """Train in one job and ask its model; return the probabilities of a click."""
    for name in os.listdir(job["folder"]):
        if name.startswith("done-") or name == "found.npy":
            os.remove(os.path.join(job["folder"], name))
    endpoints = ",".join("127.0.0.1:%d" % port for port in free_ports(options.servers))
    env = dict(os.environ, CPU_NUM="1", PYTHONWARNINGS="ignore", PADDLE_TRAINERS_NUM="1")
    if engine == "jfluid":
        env["PYTHONPATH"] = os.path.dirname(HERE)

    def start(*arguments):
        command = [python, os.path.abspath(__file__), "--role", engine, strategy]
        command += [*map(str, arguments), endpoints, json.dumps(job)]
        return subprocess.Popen(command, env=env, stdout=log, stderr=log)

    with tempfile.TemporaryFile("w+") as log:
        serving = [start("server", i) for i in range(options.servers)]
        training = [start("trainer", i) for i in range(options.trainers)]
        try:
            failed = [p.wait(timeout=options.limit) for p in training]
        finally:
            for process in serving + training:
                process.kill()
                process.wait()
        if not any(failed):
            failed = [start("ask", 0).wait(timeout=options.limit)]
        if any(failed):
            log.seek(0)
            raise SystemExit("a job of %s failed:\n%s" % (engine, log.read()[-3000:]))
    return np.load(os.path.join(job["folder"], "found.npy"))


def main():
    if sys.argv[1:2] == ["--role"]:
        engine, strategy, kind, number, endpoints, job = sys.argv[2:]
        job = json.loads(job)
        if kind == "ask":
            ask(engine, job)
        else:
            role(engine, strategy, kind, int(number), endpoints, job)
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--fluid", help="an interpreter that can import paddle.fluid")
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--trainers", type=int, default=2)
    parser.add_argument("--lines", type=int, default=204_800)
    parser.add_argument("--test_lines", type=int, default=20_480)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--push_every", type=int, default=20, help="steps, with geo")
    parser.add_argument("--rows", type=int, default=100_001, help="height of the table")
    parser.add_argument("--rate", type=float, default=5e-3, help="the learning rate at the start")
    parser.add_argument("--limit", type=float, default=1200, help="seconds that a job may take")
    parser.add_argument("--json", help="a file for what was found")
    options = parser.parse_args()
    engines = {"jfluid": sys.executable}
    if options.fluid:
        engines["paddle.fluid"] = options.fluid
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        labels, truth = make_data(folder, options)
        from criteo_data import area_under_curve

        best = area_under_curve(labels, truth)
        print("best reachable test AUC: %.4f" % best, flush=True)
        for strategy in options.strategies.split(","):
            aucs = {engine: [] for engine in engines}
            for seed in range(1, options.runs + 1):
                for engine, python in engines.items():
                    job = {
                        "folder": folder,
                        "model": os.path.join(folder, "%s-%s-%d" % (engine, strategy, seed)),
                        "seed": seed,
                        "trainers": options.trainers,
                        "lines": options.lines,
                        "epochs": options.epochs,
                        "push_every": options.push_every,
                        "rows": options.rows,
                        "rate": options.rate,
                    }
                    predicted = train(python, engine, strategy, job, options)
                    aucs[engine].append(float(area_under_curve(labels, predicted)))
                    print(
                        "%-11s %-12s run %d: %.4f" % (strategy, engine, seed, aucs[engine][-1]),
                        flush=True,
                    )
            means = {engine: statistics.mean(values) for engine, values in aucs.items()}
            line = "%-11s mean of ours %.4f" % (strategy, means["jfluid"])
            if options.fluid:
                gap = means["jfluid"] - means["paddle.fluid"]
                line += ", of Fluid's %.4f: %+.4f" % (means["paddle.fluid"], gap)
            print(line, flush=True)
            found[strategy] = aucs
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"best": best, "auc": found}, file, indent=1)


if __name__ == "__main__":
    main()
