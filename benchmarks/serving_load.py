"""Saved models under load: `jfluid serve` and the predictors of jfluid, ONNX Runtime and Fluid 1.8.5.

    python benchmarks/serving_load.py [--seconds 1] [--rounds 5] [--fluid PYTHON] [--onnxruntime FOLDER]

Dense models run in jfluid and in ONNX Runtime, which gets the model of `jfluid export`; models of sequences run in
jfluid and in Fluid's own predictor, which reads the same saved files. Each engine has a process that loads the models
once; the engines take turns, and each round gives the median time of a call. Each call has new values; sequences have
new lengths in each call, of 1 to 40 rows. The table has the medians of the rounds, and the range of the ratios.

Then `jfluid serve` answers requests of one row from several clients over HTTP, once with jfluid and once with ONNX
Runtime as the engine behind the same server: requests a second, and times of requests.
"""

import argparse
import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DENSE, SEQUENCES = ("mlp", "conv"), ("clicks", "lstm")
BATCHES = (1, 16, 64)
SLOTS, HEIGHT, LONGEST, WORDS = 8, 100000, 40, 5000
FEEDS, WARM_UP = 20, 5  # that a loop draws from; times that it runs them first


# Models, saved in Fluid's format.


def save_models(folder, names=DENSE + SEQUENCES):
    """Save models below a folder."""
    import jfluid as fluid

    for name in names:
        main, start = fluid.Program(), fluid.Program()
        start.random_seed = main.random_seed = 7
        with fluid.program_guard(main, start), fluid.unique_name.guard():
            feeds, output = globals()["build_" + name](fluid)
        executor = fluid.Executor(fluid.CPUPlace())
        with fluid.scope_guard(fluid.Scope()):
            executor.run(start)
            path = os.path.join(folder, name)
            fluid.io.save_inference_model(path, [v.name for v in feeds], [output], executor, main)


def build_mlp(fluid):
    x = fluid.data("x", [None, 256])
    hidden = fluid.layers.fc(fluid.layers.fc(x, 512, act="relu"), 512, act="relu")
    return [x], fluid.layers.fc(hidden, 10, act="softmax")


def build_conv(fluid):
    x = fluid.data("x", [None, 1, 28, 28])
    hidden = fluid.nets.simple_img_conv_pool(x, 16, 5, 2, 2, act="relu")
    hidden = fluid.nets.simple_img_conv_pool(hidden, 32, 5, 2, 2, act="relu")
    return [x], fluid.layers.fc(hidden, 10, act="softmax")


def build_clicks(fluid):
    x = fluid.data("x", [None, 13])
    slots = [fluid.data("C%d" % i, [None, 1], "int64", lod_level=1) for i in range(SLOTS)]
    table = fluid.ParamAttr("table")
    rows = [fluid.layers.embedding(slot, [HEIGHT, 16], param_attr=table) for slot in slots]
    hidden = fluid.layers.concat([fluid.layers.sequence_pool(r, "sum") for r in rows] + [x], axis=1)
    for _ in range(3):
        hidden = fluid.layers.fc(hidden, 400, act="relu")
    return [x] + slots, fluid.layers.fc(hidden, 2, act="softmax")


def build_lstm(fluid):
    words = fluid.data("words", [None, 1], "int64", lod_level=1)
    rows = fluid.layers.fc(fluid.layers.embedding(words, [WORDS, 64]), 512)
    hidden, _ = fluid.layers.dynamic_lstm(rows, 512)
    return [words], fluid.layers.fc(fluid.layers.sequence_pool(hidden, "max"), 2, act="softmax")


def feeds_of(name, batch):
    """Return feeds as lists of (name, rows, lengths or None), the same for all engines."""
    found = []
    for seed in range(FEEDS):
        random = np.random.RandomState(seed)
        if name == "mlp":
            feed = [("x", random.rand(batch, 256).astype("float32"), None)]
        elif name == "conv":
            feed = [("x", random.rand(batch, 1, 28, 28).astype("float32"), None)]
        elif name == "clicks":
            feed = [("x", random.rand(batch, 13).astype("float32"), None)]
            feed += [ids("C%d" % i, random, batch, HEIGHT) for i in range(SLOTS)]
        else:
            feed = [ids("words", random, batch, WORDS)]
        found.append(feed)
    return found


def ids(name, random, batch, height):
    lengths = random.randint(1, LONGEST + 1, batch)
    return name, random.randint(0, height, (int(lengths.sum()), 1)).astype("int64"), lengths


# Engines: each gives a function of a feed for a model.


def predictor(fluid):
    """Return what makes Fluid's predictor of a model, in jfluid and in Fluid itself."""

    def loaded(path):
        config = fluid.core.AnalysisConfig(path)
        config.disable_gpu()
        config.disable_glog_info()
        config.set_cpu_math_library_num_threads(2)
        predict = fluid.core.create_paddle_predictor(config)

        def run(feed):
            tensors = []
            for name, rows, lengths in feed:
                tensor = fluid.core.PaddleTensor(rows)
                tensor.name = name
                if lengths is not None:
                    tensor.lod = [[0] + np.cumsum(lengths).tolist()]
                tensors.append(tensor)
            return [output.as_ndarray() for output in predict.run(tensors)]

        return run

    return loaded


def jfluid():
    import jfluid as fluid

    fluid.set_flags({"FLAGS_interpret_first_steps": False})  # as `jfluid serve` does
    return predictor(fluid)


def fluid():
    import paddle.fluid

    return predictor(paddle.fluid)


def onnxruntime():
    import onnxruntime

    def loaded(path):
        session = onnxruntime.InferenceSession(path + ".onnx")
        return lambda feed: session.run(None, {name: rows for name, rows, _ in feed})

    return loaded


def work(engine, folder):
    """Answer lines `MODEL BATCH SECONDS` of stdin with the times of calls; first calls are not timed."""
    load, models, warm = globals()[engine](), {}, set()
    for line in sys.stdin:
        name, batch, seconds = line.split()
        if name not in models:
            models[name] = load(os.path.join(folder, name))
        run, feeds, times = models[name], feeds_of(name, int(batch)), []
        first = run(feeds[0])[0]
        # compiles, also the sizes to which sequences are padded
        for feed in feeds * (1 if (name, batch) in warm else WARM_UP):
            run(feed)
        warm.add((name, batch))
        until = time.perf_counter() + float(seconds)
        while time.perf_counter() < until:
            begin = time.perf_counter()
            run(feeds[len(times) % FEEDS])
            times.append(time.perf_counter() - begin)
        print(json.dumps({"ms": 1000 * float(np.median(times)), "first": first[0].tolist()}), flush=True)


class Worker:
    """The process of an engine."""

    def __init__(self, engine, python, folder, environment):
        words = [python, os.path.abspath(__file__), "--work", engine, folder]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": sys.stderr}
        self._process = subprocess.Popen(words, env=environment, universal_newlines=True, **pipes)

    def ask(self, name, batch, seconds):
        self._process.stdin.write("%s %d %g\n" % (name, batch, seconds))
        self._process.stdin.flush()
        while True:
            line = self._process.stdout.readline()
            assert line, "an engine has ended"
            if line.startswith("{"):
                return json.loads(line)

    def close(self):
        self._process.stdin.close()
        self._process.wait()


def compare(options, folder):
    """Print a table of the times of calls of all models and batches."""
    ours = {**os.environ, "PYTHONPATH": os.pathsep.join([ROOT, options.onnxruntime])}
    theirs = {**os.environ, "PYTHONPATH": "", "PYTHONWARNINGS": "ignore", "MKL_DEBUG_CPU_TYPE": "5"}
    other = dict.fromkeys(DENSE, ("onnxruntime", sys.executable, ours))
    other.update(dict.fromkeys(SEQUENCES, ("fluid", options.fluid, theirs)))
    print("| model | batch | jfluid, ms | other engine | its ms | its time / jfluid's (range) |")
    print("|---|---|---|---|---|---|")
    for name in options.models:
        engine, python, environment = other[name]
        workers = [Worker("jfluid", sys.executable, folder, ours), Worker(engine, python, folder, environment)]
        for batch in options.batches:
            rounds = [[one.ask(name, batch, options.seconds) for one in workers] for _ in range(options.rounds)]
            for mine, its in rounds:
                assert np.allclose(mine["first"], its["first"], atol=1e-4), (name, mine, its)
            mine, its = (float(np.median([found[i]["ms"] for found in rounds])) for i in (0, 1))
            ratios = sorted(found[1]["ms"] / found[0]["ms"] for found in rounds)
            middle = float(np.median(ratios))
            row = name, batch, mine, engine, its, middle, ratios[0], ratios[-1]
            print("| %s | %d | %.3g | %s | %.3g | %.2f (%.2f to %.2f) |" % row, flush=True)
        for one in workers:
            one.close()


# `jfluid serve` with either engine behind it.


def serve_with_onnxruntime(path):
    """Run `jfluid serve` with ONNX Runtime in place of jfluid's engine."""
    import onnxruntime

    from jfluid import command
    from jfluid.exports.model import LoadedModel

    session = onnxruntime.InferenceSession(path + ".onnx")
    LoadedModel.run = lambda self, feed: session.run(None, dict(feed))
    return command.main(["serve", path, "--port", "0"])


def asked(port, clients, seconds):
    """Return requests a second, p50 and p99 in ms, of clients that each keep a connection and always ask."""
    bodies = [json.dumps({"inputs": {name: rows.tolist() for name, rows, _ in feed}}) for feed in feeds_of("mlp", 1)]
    times = []

    def client(number, until):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        while time.perf_counter() < until:
            begin = time.perf_counter()
            connection.request("POST", "/predict", bodies[number % FEEDS], {"Content-Type": "application/json"})
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            answer.read()
            times.append(1000 * (time.perf_counter() - begin))
            number += 1
        connection.close()

    until = time.perf_counter() + seconds
    threads = [threading.Thread(target=client, args=(number, until)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(times) / seconds, np.percentile(times, 50), np.percentile(times, 99)


def load(options, folder):
    """Print a table of `jfluid serve` under load with either engine."""
    ours = dict(os.environ, PYTHONPATH=os.pathsep.join([ROOT, options.onnxruntime]))
    path = os.path.join(folder, "mlp")
    words = {
        "jfluid": [sys.executable, "-m", "jfluid", "serve", path, "--port", "0"],
        "onnxruntime": [sys.executable, os.path.abspath(__file__), "--serve", path],
    }
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "universal_newlines": True}
    processes = {engine: subprocess.Popen(word, env=ours, **pipes) for engine, word in words.items()}
    try:
        ports = {engine: int(one.stdout.readline().rsplit(":", 1)[1]) for engine, one in processes.items()}
        print("| clients | engine | requests a second | p50, ms | p99, ms |")
        print("|---|---|---|---|---|")
        for clients in (1, 4, 16):
            found = {engine: [] for engine in ports}
            for number in range(options.rounds + 1):
                for engine, port in ports.items():
                    figures = asked(port, clients, options.seconds)
                    if number:  # the first round warms up
                        found[engine].append(figures)
            for engine, own in found.items():
                print(
                    "| %d | %s | %.0f | %.2f | %.2f |" % ((clients, engine) + tuple(np.median(own, axis=0))), flush=True
                )
    finally:
        for one in processes.values():
            one.terminate()
            one.wait()
            one.stdout.close()


def main(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, nargs="+", default=list(BATCHES))
    parser.add_argument("--models", nargs="+", default=list(DENSE + SEQUENCES), choices=DENSE + SEQUENCES)
    parser.add_argument("--fluid", default="python3.7", help="the Python that has PaddlePaddle 1.8.5")
    parser.add_argument("--onnxruntime", default="", help="the folder that has onnxruntime, if this Python lacks it")
    parser.add_argument("--http", action="store_true", help="only the load on jfluid serve")
    options = parser.parse_args(words)
    from jfluid import command

    names = ["mlp"] if options.http else options.models
    with tempfile.TemporaryDirectory() as folder:
        save_models(folder, names)
        for name in set(names) & set(DENSE):
            path = os.path.join(folder, name)
            assert command.main(["export", path, "--to", "onnx", "--output", path + ".onnx"]) == 0
        (load if options.http else compare)(options, folder)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(*sys.argv[2:])
    elif sys.argv[1:2] == ["--serve"]:
        sys.exit(serve_with_onnxruntime(sys.argv[2]))
    else:
        main(sys.argv[1:])
