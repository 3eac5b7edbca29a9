"""Predict clicks from 26 sparse categories and 13 counts: a CTR-DNN, trained from files through the Dataset API.

    jfluid-launch configs/ctr_dnn.yaml
    python examples/ctr_dnn.py --epochs 3

The lines have Criteo's format, and come from a model that is known (criteo_data.py): what is reached is printed against
the AUC of the true probabilities, which nothing can beat but by luck. A pipe command (criteo_slots.py) turns lines into
slots while they are read; with --text multislot this is done once, before, and the files are parsed at full speed.
"""
import argparse
import random
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from criteo_data import ClickModel, area_under_curve, write
from criteo_slots import CATEGORIES, COUNTS, CriteoSlots

import jfluid as fluid

SLOTS_SCRIPT = Path(__file__).with_name("criteo_slots.py")


def click_network(dense, categories, args):
    """Probabilities [lines, 2] of no click and of a click."""
    def pooled(ids):
        rows = fluid.layers.embedding(
            ids, size=[args.rows, args.width], is_sparse=True,
            param_attr=fluid.ParamAttr(name="categories", initializer=fluid.initializer.Normal(scale=0.01)))
        return fluid.layers.sequence_pool(rows, "sum")

    hidden = fluid.layers.concat([dense, *map(pooled, categories)], axis=1)
    for width in args.hidden:
        hidden = fluid.layers.fc(hidden, size=width, act="relu")
    return fluid.layers.fc(hidden, size=2, act="softmax")


def make_data(args):
    """Writes the files; returns those to train with, those to test with, and the test clicks with their probabilities."""
    model, draw = ClickModel(args.seed), np.random.default_rng(args.seed + 1)
    test = model.draw(args.test_lines, draw)
    folder = args.output_dir / "data"
    test_files = write(folder, test, "test", 1)
    train_files = write(folder, model.draw(args.lines, draw), "train", args.files)
    if args.text == "multislot":
        train_files, test_files = as_slots(train_files, args), as_slots(test_files, args)
    return train_files, test_files, test


def pipe_command(args):
    return shlex.join([sys.executable, str(SLOTS_SCRIPT), "--rows", str(args.rows)])


def as_slots(paths, args):
    """Files of MultiSlot text, made of Criteo's by the pipe command in two processes at a time."""
    def convert(path):
        target = Path(path).with_suffix(".slots")
        with open(path, "rb") as lines, target.open("wb") as slots:
            subprocess.run(pipe_command(args), shell=True, check=True, stdin=lines, stdout=slots)
        return str(target)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(convert, paths))


def open_dataset(variables, files, args):
    """A dataset of the files; one in memory is loaded."""
    dataset = fluid.DatasetFactory().create_dataset("InMemoryDataset" if args.dataset == "memory" else "QueueDataset")
    dataset.set_use_var(variables)
    dataset.set_batch_size(args.batch_size)
    dataset.set_thread(args.threads)
    dataset.set_filelist(files)
    if args.text == "criteo":
        dataset.set_pipe_command(pipe_command(args))
    if args.dataset == "memory":
        dataset.load_into_memory()
        print(f"{dataset.get_memory_data_size()} lines in memory", flush=True)
    return dataset


class Curve(fluid.executor.FetchHandler):
    """Keeps what the program computes, several times a second: `points[step]` is {name: value}."""

    def __init__(self, step, **variables):
        super().__init__({"step": step, **variables}, period_secs=0.05)
        self.points = {}

    def handler(self, res_dict):
        values = {name: value.item() for name, value in res_dict.items() if value is not None}
        if values:  # none before the first step
            self.points[values.pop("step")] = values


def predict(executor, program, dataset, click, prediction):
    """Labels and predicted probabilities [lines, 2] of a dataset, in the order of its files."""
    labels, probabilities = [], []
    for feed, in fluid.io.DataLoader.from_dataset(dataset, fluid.cpu_places(1), drop_last=False):
        labels.append(np.array(feed[click.name]))
        value, = executor.run(program, feed=feed, fetch_list=[prediction])
        probabilities.append(value)
    return np.concatenate(labels), np.concatenate(probabilities)


def train(executor, program, dataset, step, loss, recent_auc, evaluate, args):
    """Runs the epochs; returns points of the training's curves by step, and the test AUC behind each epoch."""
    curve, test_aucs = Curve(step, loss=loss, auc=recent_auc), []
    for epoch in range(args.epochs):
        if args.dataset == "memory":
            dataset.local_shuffle()
        executor.train_from_dataset(
            program, dataset, fetch_list=[loss, recent_auc], fetch_info=["loss", "auc"], print_period=args.print_period,
            fetch_handler=curve, debug=True)
        test_aucs.append(evaluate())
        print(f"epoch {epoch + 1}: test AUC {test_aucs[-1]:.4f}", flush=True)
    return curve.points, test_aucs


def predict_lines(model_dir, lines, args, executor):
    """Probabilities of a click for Criteo's lines, from the saved model, as a server would find them."""
    sampler = CriteoSlots(args.rows)
    samples = [[values for _, values in sampler.sample(line)[:-1]] for line in lines]
    with fluid.scope_guard(fluid.Scope()):
        program, feed_names, targets = fluid.io.load_inference_model(model_dir, executor)
        feeder = fluid.DataFeeder(feed_list=feed_names, place=fluid.CPUPlace(), program=program)
        probabilities, = executor.run(program, feed=feeder.feed(samples), fetch_list=targets)
    return probabilities[:, 1]


def draw(path, points, steps, test_aucs, best, predicted, true):
    """A picture of the loss, of the AUC behind epochs of `steps`, and of predicted against true probabilities."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(15, 4.5), layout="constrained")
    losses, aucs = ([point[name] for point in points.values()] for name in ("loss", "auc"))
    left.plot(list(points), losses, linewidth=0.8)
    left.set(xlabel="step", ylabel="training loss of a batch")
    middle.plot(list(points), aucs, linewidth=0.8, label="training, 20 batches")
    middle.plot(steps * np.arange(1, len(test_aucs) + 1), test_aucs, "o-", label="test")
    middle.axhline(best, color="black", linestyle="--", label=f"best reachable: {best:.4f}")
    middle.set(xlabel="step", ylabel="AUC", ylim=(best - 0.15, best + 0.05))
    middle.legend(loc="lower right")
    right.hexbin(true, predicted, gridsize=50, extent=(0, 1, 0, 1), bins="log", cmap="Blues")
    right.plot([0, 1], [0, 1], color="black", linestyle="--", linewidth=0.8)
    right.set(xlabel="true probability of a click", ylabel="predicted probability", title="test lines")
    for axes in (left, middle):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=204_800, help="lines to train with")
    parser.add_argument("--test_lines", type=int, default=20_480)
    parser.add_argument("--files", type=int, default=4, help="files to train with")
    parser.add_argument("--text", choices=("criteo", "multislot"), default="criteo",
                        help="what the dataset reads: raw lines through the pipe command, or slots made before")
    parser.add_argument("--dataset", choices=("memory", "queue"), default="memory",
                        help="read the files once and shuffle lines, or read them anew in each epoch")
    parser.add_argument("--threads", type=int, default=2, help="threads that read")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch_size", type=int, default=256)
    parser.add_argument("--learning_rate", type=float, default=5e-3)
    parser.add_argument("--rows", type=int, default=100_001, help="height of the embedding table")
    parser.add_argument("--width", type=int, default=10, help="width of the embedding table")
    parser.add_argument("--hidden", type=int, nargs="+", default=[128, 64], help="widths of the hidden layers")
    parser.add_argument("--print_period", type=int, default=200)
    parser.add_argument("--largest_gap", type=float, default=0.02,
                        help="fail when the test AUC is farther below the best reachable one")
    parser.add_argument("--output_dir", type=Path, default=Path("output/ctr_dnn"))
    parser.add_argument("--seed", type=int, default=90)
    return parser.parse_args()


def main():
    args = parse_arguments()
    random.seed(args.seed)  # local_shuffle uses Python's generator
    train_files, test_files, test = make_data(args)
    best = area_under_curve(test.labels, test.probabilities)

    main_program, startup_program = fluid.default_main_program(), fluid.default_startup_program()
    main_program.random_seed = startup_program.random_seed = args.seed
    dense = fluid.data(name="dense", shape=[None, len(COUNTS)], dtype="float32")
    categories = [fluid.data(name=name, shape=[None, 1], dtype="int64", lod_level=1) for name in CATEGORIES]
    click = fluid.data(name="click", shape=[None, 1], dtype="int64")
    prediction = click_network(dense, categories, args)
    loss = fluid.layers.mean(fluid.layers.cross_entropy(input=prediction, label=click))
    test_program = main_program.clone(for_test=True)
    _, recent_auc, _ = fluid.layers.auc(input=prediction, label=click, slide_steps=20)
    steps = -(-args.lines // args.batch_size)  # an epoch's
    rate = fluid.layers.polynomial_decay(args.learning_rate, decay_steps=args.epochs * steps, end_learning_rate=1e-6)
    fluid.optimizer.Adam(learning_rate=rate, lazy_mode=True).minimize(loss)
    step = fluid.layers.autoincreased_step_counter()

    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(startup_program)
    variables = [dense, *categories, click]
    train_data, test_data = (open_dataset(variables, files, args) for files in (train_files, test_files))

    def evaluate():
        auc = fluid.metrics.Auc("test")
        labels, probabilities = predict(executor, test_program, test_data, click, prediction)
        auc.update(probabilities, labels)
        return auc.eval()

    points, test_aucs = train(executor, main_program, train_data, step, loss, recent_auc, evaluate, args)
    gap = best - test_aucs[-1]
    print(f"test AUC: {test_aucs[-1]:.4f}; best reachable: {best:.4f}; gap: {gap:.4f}")

    model_dir = str(args.output_dir / "model")
    fluid.io.save_inference_model(
        model_dir, ["dense", *CATEGORIES], [prediction], executor, main_program=test_program)
    lines = (args.output_dir / "data" / "test-0.txt").read_text().splitlines()[:10]
    print(f"inference model: {model_dir}; reloaded, it says of the first test lines:")
    print("click  predicted  true")
    for number, predicted in enumerate(predict_lines(model_dir, lines, args, executor)):
        print(f"{test.labels[number]:5d}  {predicted:9.3f}  {test.probabilities[number]:.3f}")

    picture = args.output_dir / "ctr_dnn.png"
    _, probabilities = predict(executor, test_program, test_data, click, prediction)
    draw(picture, points, steps, test_aucs, best, probabilities[:, 1], test.probabilities)
    print(f"picture: {picture}")
    if gap > args.largest_gap:
        sys.exit(f"the test AUC is more than {args.largest_gap} below the best reachable one")


if __name__ == "__main__":
    main()
