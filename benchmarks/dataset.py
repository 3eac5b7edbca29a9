"""How fast datasets are read: the parser alone, a QueueDataset against Fluid 1.8.5's, and waiting
in CTR-DNN training.

    python benchmarks/dataset.py [--lines N] [--fluid PYTHON] [--json FILE]

Files hold lines of 13 decimal numbers, 26 slots of ids and a label. `--fluid` names an interpreter
that can import paddle.fluid; it reads the same files in a process of its own. `--one ENGINE FOLDER`
does that for one engine.
"""

import argparse
import contextlib
import importlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time

import numpy as np

SLOTS, BATCH, VOCABULARY = 26, 1024, 1000001


def write(folder, lines, files=4):
    """Files of random records; returns their paths."""
    rng, paths = np.random.RandomState(0), []
    for i in range(files):
        paths.append(os.path.join(folder, "part-%d" % i))
        with open(paths[-1], "w") as out:
            for _ in range(lines // files):
                dense = " ".join("%.6f" % v for v in rng.rand(13))
                ids = " ".join("1 %d" % v for v in np.minimum(rng.zipf(1.2, SLOTS), VOCABULARY - 1))
                out.write("13 %s %s 1 %d\n" % (dense, ids, rng.randint(2)))
    return paths


def variables(fluid):
    """The variables that a line feeds."""
    dense = fluid.layers.data("dense", [13], dtype="float32")
    ids = [fluid.layers.data("C%d" % i, [1], dtype="int64", lod_level=1) for i in range(SLOTS)]
    return dense, ids, fluid.layers.data("label", [1], dtype="int64")


def dataset(fluid, kept, paths):
    """A QueueDataset read by one thread."""
    made = fluid.DatasetFactory().create_dataset("QueueDataset")
    made.set_use_var(kept)
    made.set_batch_size(BATCH)
    made.set_thread(1)
    made.set_pipe_command("cat")
    made.set_filelist(paths)
    return made


def read(engine, paths):
    """Seconds of an epoch of a program that hardly computes, one trainer thread. The first epoch
    does not count.
    """
    fluid = importlib.import_module(engine)
    dense, ids, label = variables(fluid)
    fluid.layers.mean(dense)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    seconds = []
    for _ in range(4):
        made = dataset(fluid, [dense, *ids, label], paths)
        begin = time.time()
        exe.train_from_dataset(fluid.default_main_program(), made, thread=1)
        seconds.append(time.time() - begin)
    return min(seconds[1:])


def parser_speed(paths):
    """Megabytes a second of the parser, on blocks of the size that producers read."""
    from jfluid.dataset.multislot import DatasetSlot, Parser
    from jfluid.dataset.reader_threads import ShellCommands
    from jfluid.dataset.text_files import FileSource

    slots = [
        DatasetSlot("dense", True, (13,)),
        *(DatasetSlot("C%d" % i, False) for i in range(SLOTS)),
        DatasetSlot("label", False, (1,)),
    ]
    parser, best = Parser(slots), 0.0
    blocks = [block.copy() for path in paths for block in FileSource().blocks(path, ShellCommands())]
    for _ in range(5):
        begin = time.perf_counter()
        for block in blocks:
            parser.parse(block, 0, print)
        best = max(best, sum(map(len, blocks)) / 1e6 / (time.perf_counter() - begin))
    return best


def waiting(paths):
    """The part of the second epoch of CTR-DNN training that goes by waiting for data, as it prints
    it.
    """
    import jfluid as fluid

    dense, ids, label = variables(fluid)
    table = fluid.ParamAttr(name="table", initializer=fluid.initializer.Uniform())
    rows = [
        fluid.layers.sequence_pool(fluid.layers.embedding(i, [VOCABULARY, 10], is_sparse=True, param_attr=table), "sum")
        for i in ids
    ]
    x = fluid.layers.concat([*rows, dense], axis=1)
    for _ in range(3):
        x = fluid.layers.fc(x, 400, act="relu")
    loss = fluid.layers.mean(fluid.layers.cross_entropy(fluid.layers.fc(x, 2, act="softmax"), label))
    fluid.optimizer.SGD(1e-3).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    said = io.StringIO()
    for debug in (False, True):
        with contextlib.redirect_stdout(said):
            exe.train_from_dataset(
                fluid.default_main_program(),
                dataset(fluid, [dense, *ids, label], paths),
                debug=debug,
                fetch_list=[loss],
                print_period=1000000,
            )
    return float(re.search(r"waited for data .*\(([\d.]+)%\)", said.getvalue()).group(1)) / 100


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lines", type=int, default=200000)
    parser.add_argument("--fluid", help="an interpreter that can import paddle.fluid")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="a file for what was found")
    parser.add_argument("--one", nargs=2, metavar=("ENGINE", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        engine, folder = args.one
        print(json.dumps(read(engine, sorted(os.path.join(folder, f) for f in os.listdir(folder)))))
        return
    found = {"lines_s": {}}
    # Fluid leaves a file of each run where it runs
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as here:
        paths = write(folder, args.lines)
        found["parser_mb_s"] = parser_speed(paths)
        print("parser alone: %.0f MB/s" % found["parser_mb_s"])
        engines = [("jfluid", sys.executable), ("paddle.fluid", args.fluid)]
        for engine, python in engines * args.rounds:
            if python:
                done = subprocess.run(
                    [python, os.path.abspath(__file__), "--one", engine, folder],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    check=True,
                    cwd=here,
                    env=dict(os.environ, PYTHONWARNINGS="ignore"),
                )
                rate = args.lines / json.loads(done.stdout.decode().splitlines()[-1])
                found["lines_s"].setdefault(engine, []).append(rate)
                print("%-12s %9.0f lines/s" % (engine, rate), flush=True)
        found["waits"] = waiting(paths)
        print("of a CTR-DNN epoch, waits for data: %.1f%%" % (100 * found["waits"]))
    if args.json:
        with open(args.json, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
