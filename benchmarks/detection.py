"""Milliseconds a step of detectors: jfluid and Fluid 1.8.5 in turn, so that a slow minute of the
machine hits both.

    python benchmarks/detection.py --fluid PYTHON_WITH_PADDLE_1.8.5 [MODEL ...] [--rounds N]

Each engine runs in a process of its own, by `Executor.run` and in two replicas where a model
trains; the ratio is that of the faster ways, the median over the rounds. Python 3.7 syntax: Fluid's
interpreter runs this file, too.
"""

import argparse
import functools
import importlib
import json
import os
import statistics
import subprocess
import sys
import time

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fluid_models
import noisy_neighbours

ANCHORS = [10, 14, 23, 27, 37, 58, 81, 82, 135, 169, 344, 319]


def _conv(fluid, x, channels, width=3):
    x = fluid.layers.conv2d(x, channels, width, padding=width // 2, bias_attr=False)
    return fluid.layers.leaky_relu(fluid.layers.batch_norm(x), alpha=0.1)


def yolov3_tiny(fluid, batch=4, size=256, classes=80, truths=20):
    """A training step of YOLOv3-tiny (Redmon and Farhadi, 2018) on small images."""
    layers = fluid.layers
    image = fluid.data(name="image", shape=[None, 3, size, size], dtype="float32")
    box = fluid.data(name="box", shape=[None, truths, 4], dtype="float32")
    label = fluid.data(name="label", shape=[None, truths], dtype="int32")
    x = image
    for channels in (16, 32, 64, 128, 256):
        fine = _conv(fluid, x, channels)
        x = layers.pool2d(fine, 2, pool_stride=2)
    x = layers.pool2d(_conv(fluid, x, 512), 2, pool_stride=1, pool_padding="SAME")
    x = _conv(fluid, _conv(fluid, x, 1024), 256, 1)
    up = layers.resize_nearest(_conv(fluid, x, 128, 1), scale=2.0)
    maps = (
        (_conv(fluid, x, 512), [3, 4, 5], 32),
        (_conv(fluid, layers.concat([up, fine], axis=1), 256), [1, 2, 3], 16),
    )
    losses = []
    for x, mask, ratio in maps:
        x = layers.conv2d(x, 3 * (5 + classes), 1)
        loss = layers.yolov3_loss(x, box, label, ANCHORS, mask, classes, 0.7, ratio)
        losses.append(layers.reduce_mean(loss))
    loss = layers.sum(losses)
    fluid.optimizer.Momentum(learning_rate=1e-4, momentum=0.9).minimize(loss)

    def feed(r):
        boxes = np.concatenate([r.rand(batch, truths, 2), r.rand(batch, truths, 2) * 0.5], -1)
        boxes[:, truths // 2 :] *= r.rand(batch, 1, 1) > 0.5
        return {
            "image": r.rand(batch, 3, size, size).astype("float32"),
            "box": boxes.astype("float32"),
            "label": r.randint(0, classes, (batch, truths)).astype("int32"),
        }

    return loss, feed


def nms(fluid, power=1, top=400):
    """Suppression of 8 x 1000 boxes in 80 classes: of `top` boxes in each class."""
    boxes = fluid.data(name="boxes", shape=[None, 1000, 4], dtype="float32")
    scores = fluid.data(name="scores", shape=[None, 80, 1000], dtype="float32")
    found = fluid.layers.multiclass_nms(
        boxes,
        scores,
        score_threshold=0.01 if power == 1 else 0.05,
        nms_top_k=top,
        keep_top_k=200,
        nms_threshold=0.45,
        background_label=-1,
    )

    def feed(r):
        centre, size = r.rand(8, 1000, 2), r.rand(8, 1000, 2) * 0.3
        return {
            "boxes": np.concatenate([centre - size / 2, centre + size / 2], -1).astype("float32"),
            "scores": (r.rand(8, 80, 1000) ** power).astype("float32"),
        }

    return fluid.layers.reduce_sum(found), feed


def nms_all(fluid):
    """The same of all 1000 boxes in each class."""
    return nms(fluid, top=1000)


def nms_few(fluid):
    """The same where one box in seven has a score that counts, as behind a trained detector."""
    return nms(fluid, power=20, top=1000)


TRAINED = {f.__name__: f for f in (yolov3_tiny, fluid_models.ssd, fluid_models.crnn)}
MODELS = dict(TRAINED, **{f.__name__: f for f in (nms, nms_all, nms_few)})


def work(engine, model, replicas):
    """Run as many steps as each line of the standard input says, and print their milliseconds."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the engine prints is no answer
    fluid = importlib.import_module(engine)
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        loss, feed = MODELS[model](fluid)
    exe, program = fluid.Executor(fluid.CPUPlace()), main
    exe.run(startup)
    if replicas:
        program = fluid.CompiledProgram(main).with_data_parallel(loss_name=loss.name)
    rng, done = np.random.RandomState(0), 0
    feeds = [feed(rng) for _ in range(4)]
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            begin = time.perf_counter()
            exe.run(program, feed=feeds[done % 4], fetch_list=[loss])
            times.append((time.perf_counter() - begin) * 1e3)
            done += 1
        print(json.dumps(times), file=answers, flush=True)


class Worker:
    """One engine that runs one model in one way, in a process that lives from round to round."""

    def __init__(self, python, engine, model, replicas):
        self.process = subprocess.Popen(
            [python, "-W", "ignore", __file__, "--work", engine, model, str(int(replicas))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(os.environ, CPU_NUM="2" if replicas else "1"),
            universal_newlines=True,
        )

    def steps(self, number):
        """The median milliseconds of so many steps; None where the engine has ended."""
        try:
            self.process.stdin.write("%d\n" % number)
            self.process.stdin.flush()
            return statistics.median(json.loads(self.process.stdout.readline()))
        except (ValueError, OSError):
            return None

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def compare(fluid, model, rounds):
    """(milliseconds by engine and way, median, lowest and highest ratio of the faster ways)."""
    engines = {"paddle.fluid": fluid, "jfluid": sys.executable}
    ways = (False, True) if model in TRAINED else (False,)
    workers = {(e, w): Worker(p, e, model, w) for w in ways for e, p in engines.items()}
    for key in list(workers):
        if workers[key].steps(5) is None:
            print("%s does not run %s, replicas: %s" % (key[0], model, key[1]), file=sys.stderr)
            workers.pop(key).close()
    times = {k: [] for k in workers}
    for _ in range(rounds):
        for key, worker in workers.items():
            take = functools.partial(worker.steps, 3)
            times[key].append(noisy_neighbours.here().undisturbed(take))
    for worker in workers.values():
        worker.close()
    ms = {k: statistics.median(v) for k, v in times.items()}
    best = [min((k for k in ms if k[0] == e), key=ms.get) for e in engines]
    ratios = sorted(a / b for a, b in zip(times[best[0]], times[best[1]]))
    return ms, (statistics.median(ratios), ratios[0], ratios[-1])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("models", nargs="*", help=", ".join(MODELS))
    p.add_argument("--fluid", metavar="PYTHON", required="--work" not in sys.argv)
    p.add_argument("--rounds", type=int, default=8)
    p.add_argument("--json", help="a file for what was found")
    p.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.work:
        engine, model, replicas = a.models
        work(engine, model, int(replicas))
        return
    print("| model | Fluid 1.8.5 ms | jfluid ms | Fluid / jfluid (lowest to highest) |")
    print("|---|---|---|---|")
    found = {}
    for model in a.models or MODELS:
        ms, (ratio, low, high) = compare(a.fluid, model, a.rounds)
        by_way = {e + (", 2 replicas" if w else ""): v for (e, w), v in ms.items()}
        found[model] = {"ms": by_way, "ratio": ratio, "low": low, "high": high}
        by_engine = [
            ", ".join("%.0f%s" % (v, " (2 replicas)" if w else "") for (e, w), v in ms.items() if e == engine)
            for engine in ("paddle.fluid", "jfluid")
        ]
        cells = (model, *by_engine, ratio, low, high)
        print("| %s | %s | %s | %.2f (%.2f to %.2f) |" % cells, flush=True)
    if a.json:
        with open(a.json, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
