"""Predict clicks from 26 sparse categories and 13 counts: a CTR-DNN, trained by trainers that share
parameter servers.

    jfluid-launch configs/ctr_dnn.yaml
    jfluid-launch --servers 2 --trainers 2 examples/ctr_dnn.py --strategy async
    python examples/ctr_dnn.py                              # one process on its own

The lines have Criteo's format, and come from a model that is known (criteo_data.py): what is
reached is printed against the AUC of the true probabilities, which nothing can beat but by luck. A
pipe command (criteo_slots.py) turns lines into slots while they are read; with --text multislot
this is done once, before, and the files are parsed at full speed.
"""

import argparse
import random
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from criteo_data import ClickModel, area_under_curve, clicks_of, write
from criteo_slots import CATEGORIES, COUNTS, CriteoSlots
from ctr_jobs import STRATEGIES, this_job
from ctr_picture import draw

import jfluid as fluid

SLOTS_SCRIPT = Path(__file__).with_name("criteo_slots.py")


def click_network(dense, categories, args):
    """Probabilities [lines, 2] of no click and of a click."""

    def pooled(ids):
        rows = fluid.layers.embedding(
            ids,
            size=[args.rows, args.width],
            is_sparse=True,
            is_distributed=args.is_distributed,
            param_attr=fluid.ParamAttr(name="categories", initializer=fluid.initializer.Normal(scale=0.01)),
        )
        return fluid.layers.sequence_pool(rows, "sum")

    hidden = fluid.layers.concat([dense, *map(pooled, categories)], axis=1)
    for width in args.hidden:
        hidden = fluid.layers.fc(hidden, size=width, act="relu")
    return fluid.layers.fc(hidden, size=2, act="softmax")


# ---- data ----


def make_files(names, clicks, args):
    """Writes the clicks of each name to a file; returns the files that a dataset reads."""
    paths = [args.output_dir / "data" / name for name in names]
    for path, drawn in zip(paths, clicks, strict=True):
        write(path, drawn)
    if args.text == "multislot":
        return as_slots(paths, args)
    return list(map(str, paths))


def pipe_command(args):
    return shlex.join([sys.executable, str(SLOTS_SCRIPT), "--rows", str(args.rows)])


def as_slots(paths, args):
    """Files of MultiSlot text, made of Criteo's by the pipe command in two processes at a time."""

    def convert(path):
        target = path.with_suffix(".slots")
        with path.open("rb") as lines, target.open("wb") as slots:
            subprocess.run(pipe_command(args), shell=True, check=True, stdin=lines, stdout=slots)
        return str(target)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(convert, paths))


def open_dataset(variables, files, batch_size, args):
    """A dataset of the files; one in memory is loaded."""
    dataset = fluid.DatasetFactory().create_dataset("InMemoryDataset" if args.dataset == "memory" else "QueueDataset")
    dataset.set_use_var(variables)
    dataset.set_batch_size(batch_size)
    dataset.set_thread(args.threads)
    dataset.set_filelist(files)
    if args.text == "criteo":
        dataset.set_pipe_command(pipe_command(args))
    if args.dataset == "memory":
        dataset.load_into_memory()
    return dataset


# ---- training ----


class Losses(fluid.executor.FetchHandler):
    """Keeps the loss, several times a second, with the time."""

    def __init__(self, loss):
        super().__init__({"loss": loss}, period_secs=0.05)
        self.points = []

    def handler(self, res_dict):
        if res_dict["loss"] is not None:  # as it is before the first step
            self.points.append((time.perf_counter(), res_dict["loss"].item()))


class Course:
    """What is seen of the training by the number of lines that all trainers have had: for the
    picture.

    Attributes:
        losses: (lines, loss of a batch).
        tests: (lines, test AUC).
    """

    def __init__(self):
        self.losses, self.tests, self.lines = [], [], 0

    def add(self, lines, points, end, auc):
        """A part of the training, of so many lines, that ended at `end`; `points` are the times and
        losses seen in it.
        """
        begin = points[0][0] if points else end  # not when it started: programs are compiled first
        self.losses += [(self.lines + lines * (moment - begin) / (end - begin), loss) for moment, loss in points]
        self.lines += lines
        self.tests.append((self.lines, auc))


def train(job, executor, parts, loss, evaluate, best, args):
    """Runs the epochs over the datasets `parts`; the first trainer looks after each how good the
    model is.
    """
    course = Course()
    lines = args.lines / len(parts)
    for epoch in range(args.epochs):
        for number, part in enumerate(parts):
            if args.dataset == "memory":
                part.local_shuffle()
            losses, begin = Losses(loss), time.perf_counter()
            executor.train_from_dataset(
                job.program,
                part,
                fetch_list=[loss],
                fetch_info=["loss"],
                fetch_handler=losses,
                print_period=args.print_period,
            )
            end = time.perf_counter()
            if job.trainer == 0:
                auc, rows = evaluate(), job.rows()
                course.add(lines, losses.points, end, auc)
                print(
                    f"epoch {epoch + (number + 1) / len(parts):.2f}: test AUC {auc:.4f}, at best {best:.4f}; "
                    f"{lines / (end - begin):,.0f} lines/s"
                    + ("" if rows is None else f"; {rows:,} rows in the tables"),
                    flush=True,
                )
    return course


def predict(executor, program, dataset, click, prediction):
    """Labels and predicted probabilities [lines, 2] of a dataset, in the order of its files."""
    labels, probabilities = [], []
    for (feed,) in fluid.io.DataLoader.from_dataset(dataset, fluid.cpu_places(1), drop_last=False):
        labels.append(np.array(feed[click.name]))
        (value,) = executor.run(program, feed=feed, fetch_list=[prediction])
        probabilities.append(value)
    return np.concatenate(labels), np.concatenate(probabilities)


def predict_lines(model_dir, lines, args):
    """Probabilities of a click for Criteo's lines, from the saved model, as a process that serves
    would find them.
    """
    sampler, executor = CriteoSlots(args.rows), fluid.Executor(fluid.CPUPlace())
    samples = [[values for _, values in sampler.sample(line)[:-1]] for line in lines]
    with fluid.scope_guard(fluid.Scope()):
        program, feed_names, targets = fluid.io.load_inference_model(model_dir, executor)
        feeder = fluid.DataFeeder(feed_list=feed_names, place=fluid.CPUPlace(), program=program)
        (probabilities,) = executor.run(program, feed=feeder.feed(samples), fetch_list=targets)
    return probabilities[:, 1]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add(
        "--strategy",
        choices=sorted(STRATEGIES),
        default="sync",
        help="how trainers work together with servers",
    )
    add(
        "--push_every",
        type=int,
        default=20,
        help="with --strategy geo: steps between two exchanges",
    )
    add(
        "--is_distributed",
        action="store_true",
        help="rows of the table appear at the servers when they are first shown",
    )
    add("--lines", type=int, default=204_800, help="lines to train with, of all trainers together")
    add("--test_lines", type=int, default=20_480)
    add("--files", type=int, default=4, help="files to train with, of all trainers together")
    add(
        "--text",
        choices=("criteo", "multislot"),
        default="criteo",
        help="what the dataset reads: raw lines through the pipe command, or slots made before",
    )
    add(
        "--dataset",
        choices=("memory", "queue"),
        default="memory",
        help="read the files once and shuffle lines, or read them anew in each epoch",
    )
    add("--threads", type=int, default=1, help="threads that read, in each trainer")
    add("--epochs", type=int, default=3)
    add("--batch_size", type=int, default=256, help="of each trainer")
    add("--learning_rate", type=float, default=5e-3)
    add("--rows", type=int, default=100_001, help="height of the embedding table")
    add("--width", type=int, default=10, help="width of the embedding table")
    add("--hidden", type=int, nargs="+", default=[128, 64], help="widths of the hidden layers")
    add("--print_period", type=int, default=1000, help="steps between two lines with the loss")
    add(
        "--largest_gap",
        type=float,
        default=0.02,
        help="fail when the test AUC is farther below the best reachable one",
    )
    add("--output_dir", type=Path, default=Path("output/ctr_dnn"))
    add("--seed", type=int, default=90)
    return parser.parse_args()


def build(job, args):
    """The variables of the network, with the programs that train it made for this process: inputs,
    prediction, loss.
    """
    main_program, startup_program = fluid.default_main_program(), fluid.default_startup_program()
    main_program.random_seed = startup_program.random_seed = args.seed
    dense = fluid.data(name="dense", shape=[None, len(COUNTS)], dtype="float32")
    categories = [fluid.data(name=name, shape=[None, 1], dtype="int64", lod_level=1) for name in CATEGORIES]
    click = fluid.data(name="click", shape=[None, 1], dtype="int64")
    prediction = click_network(dense, categories, args)
    loss = fluid.layers.mean(fluid.layers.cross_entropy(input=prediction, label=click))
    steps = args.epochs * args.lines // (args.batch_size * job.trainers)  # of each trainer
    rate = fluid.layers.polynomial_decay(
        args.learning_rate, decay_steps=max(steps, 1) * job.updates_per_step, end_learning_rate=1e-6
    )
    job.minimize(fluid.optimizer.Adam(learning_rate=rate, lazy_mode=True), loss)
    return [dense, *categories, click], prediction, loss


def report(job, executor, test, test_data, inputs, prediction, course, best, args):
    """Saves the model, asks it after it was loaded again, and draws; returns the test AUC."""
    model_dir = str(args.output_dir / "model")
    job.save(executor, model_dir, ["dense", *CATEGORIES], [prediction])
    labels, probabilities = predict(executor, job.test_program, test_data, inputs[-1], prediction)
    auc = area_under_curve(labels[:, 0], probabilities[:, 1])
    print(f"test AUC: {auc:.4f}; best reachable: {best:.4f}; gap: {best - auc:.4f}")
    print(f"inference model: {model_dir}; reloaded, it says of the first test lines:")
    print("click  predicted  true")
    lines = (args.output_dir / "data" / "test-0.txt").read_text().splitlines()[:10]
    for number, predicted in enumerate(predict_lines(model_dir, lines, args)):
        print(f"{test.labels[number]:5d}  {predicted:9.3f}  {test.probabilities[number]:.3f}")
    picture = args.output_dir / "ctr_dnn.png"
    draw(picture, course, best, probabilities[:, 1], test.probabilities)
    print(f"picture: {picture}", flush=True)
    return auc


def main():
    args = parse_arguments()
    job = this_job(args.strategy, args.push_every)
    inputs, prediction, loss = build(job, args)
    if job.is_server:
        return job.serve()

    if args.files < job.trainers:
        sys.exit(f"--files {args.files}: each of the {job.trainers} trainers needs a file of its own to read")
    random.seed(args.seed + job.trainer)  # local_shuffle uses Python's generator
    model = ClickModel(args.seed)
    names = job.share([f"train-{number}.txt" for number in range(args.files)])
    files = make_files(names, (clicks_of(model, name, args.lines, args.files) for name in names), args)
    executor = fluid.Executor(fluid.CPUPlace())
    job.begin(executor)
    parts = [open_dataset(inputs, [file], args.batch_size, args) for file in files]
    best, evaluate = 1.0, None
    if job.trainer == 0:
        test = clicks_of(model, "test-0.txt", args.test_lines)
        best = area_under_curve(test.labels, test.probabilities)
        test_data = open_dataset(inputs, make_files(["test-0.txt"], [test], args), 1024, args)

        def evaluate():
            labels, probabilities = predict(executor, job.test_program, test_data, inputs[-1], prediction)
            return area_under_curve(labels[:, 0], probabilities[:, 1])

    job.all_here()
    course = train(job, executor, parts, loss, evaluate, best, args)
    job.all_here()
    auc = best
    if job.trainer == 0:
        auc = report(job, executor, test, test_data, inputs, prediction, course, best, args)
    job.end()
    if best - auc > args.largest_gap:
        sys.exit(f"the test AUC is more than {args.largest_gap} below the best reachable one")


if __name__ == "__main__":
    main()
