"""Handwritten digits, recognized by a network that several processes train together.

    jfluid-launch configs/collective_digits.yaml
    jfluid-launch --cpus 2 examples/collective_digits.py --epochs 20

Each process feeds its own share of every batch; gradients are summed, so that all hold the same
parameters.
"""

import argparse
import sys

import numpy as np
from jfluid.incubate.fleet.base import role_maker
from jfluid.incubate.fleet.collective import fleet
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import jfluid as fluid
from jfluid.progress import Progress


def load_data(seed):
    """The digits as (images, labels) to train with and to test with."""
    digits = load_digits()
    images, labels = (
        (digits.data / 8 - 1).astype("float32"),
        digits.target[:, np.newaxis].astype("int64"),
    )
    train_images, test_images, train_labels, test_labels = train_test_split(
        images, labels, test_size=0.2, random_state=seed, stratify=labels
    )
    return (train_images, train_labels), (test_images, test_labels)


def network():
    """The image and label variables, the loss and the accuracy."""
    image = fluid.data("image", [None, 64], "float32")
    label = fluid.data("label", [None, 1], "int64")
    hidden = fluid.layers.fc(fluid.layers.fc(image, 64, act="relu"), 64, act="relu")
    probability = fluid.layers.fc(hidden, 10, act="softmax")
    loss = fluid.layers.mean(fluid.layers.cross_entropy(probability, label))
    return loss, fluid.layers.accuracy(probability, label)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch_size", type=int, default=64, help="of all processes together")
    parser.add_argument("--learning_rate", type=float, default=2e-3)
    parser.add_argument("--minimum_accuracy", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    fleet.init(role_maker.PaddleCloudRoleMaker(is_collective=True))
    rank, trainers = fleet.worker_index(), fleet.worker_num()
    fluid.default_main_program().random_seed = fluid.default_startup_program().random_seed = args.seed + 1
    loss, accuracy = network()
    test_program = fluid.default_main_program().clone(for_test=True)
    fleet.distributed_optimizer(fluid.optimizer.Adam(args.learning_rate)).minimize(loss)
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(fleet.startup_program)

    (images, labels), (test_images, test_labels) = load_data(args.seed)
    share = args.batch_size // trainers
    steps = len(images) // args.batch_size
    shuffled = np.random.RandomState(args.seed)  # the same in all processes
    with Progress(total=args.epochs * steps) as progress:
        for _ in range(args.epochs):
            order = shuffled.permutation(len(images))
            for step in range(steps):
                begin = step * args.batch_size + rank * share
                mine = order[begin : begin + share]
                (value,) = executor.run(
                    fleet.main_program,
                    feed={"image": images[mine], "label": labels[mine]},
                    fetch_list=[loss],
                )
                progress.step(examples=share, loss=value.mean())
    (reached,) = executor.run(test_program, feed={"image": test_images, "label": test_labels}, fetch_list=[accuracy])
    if fleet.is_first_worker():
        print(f"{trainers} processes, test accuracy {reached.item():.4f}")
    return int(reached.item() < args.minimum_accuracy)


if __name__ == "__main__":
    sys.exit(main())
