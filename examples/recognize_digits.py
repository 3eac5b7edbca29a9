"""Recognize handwritten digits: trains a convolutional network, saves it, reloads it and draws what
it sees.

    jfluid-launch configs/recognize_digits.yaml
    python examples/recognize_digits.py --epochs 40
"""

import argparse
import random
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import jfluid as fluid
from jfluid.progress import Progress


def convolutional_network(image):
    """Fluid's network for digits, with filters sized for 8x8 pixels: probabilities of the ten
    classes.
    """
    hidden = fluid.nets.simple_img_conv_pool(
        input=image,
        num_filters=20,
        filter_size=3,
        conv_padding=1,
        pool_size=2,
        pool_stride=2,
        act="relu",
    )
    hidden = fluid.layers.batch_norm(hidden)
    hidden = fluid.nets.simple_img_conv_pool(
        input=hidden,
        num_filters=50,
        filter_size=3,
        conv_padding=1,
        pool_size=2,
        pool_stride=2,
        act="relu",
    )
    return fluid.layers.fc(input=hidden, size=10, act="softmax")


def load_data(seed):
    """The digits as (images, labels) to train with and to test with."""
    digits = load_digits()
    images = (digits.images[:, np.newaxis] / 8 - 1).astype("float32")
    labels = digits.target[:, np.newaxis].astype("int64")
    train_images, test_images, train_labels, test_labels = train_test_split(
        images, labels, test_size=0.2, random_state=seed, stratify=labels
    )
    return (train_images, train_labels), (test_images, test_labels)


def train(executor, program, loss, samples, args):
    """Runs the epochs; returns the loss of every step."""
    reader = fluid.io.batch(
        fluid.io.shuffle(lambda: zip(*samples, strict=True), buf_size=len(samples[0])),
        args.batch_size,
        drop_last=True,
    )
    feeder = fluid.DataFeeder(feed_list=["image", "label"], place=fluid.CPUPlace(), program=program)
    losses = []
    with Progress(total=args.epochs * (len(samples[0]) // args.batch_size)) as progress:
        for _ in range(args.epochs):
            for batch in reader():
                (value,) = executor.run(program, feed=feeder.feed(batch), fetch_list=[loss])
                losses.append(value.item())
                progress.step(examples=len(batch), loss=value)
    return losses


def draw(path, images, labels, probabilities, losses):
    """A picture of the first digits with what the network takes them for, and of the loss."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(10, 7), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=(3, 2))
    above.suptitle("test digits: predicted class (probability)")
    for number, axes in enumerate(above.subplots(3, 8).flat):
        label, row = labels[number, 0], probabilities[number]
        axes.imshow(images[number, 0], cmap="gray_r")
        axes.set_axis_off()
        color = "tab:green" if row.argmax() == label else "tab:red"
        axes.set_title(f"{row.argmax()} ({row.max():.0%})", fontsize=9, color=color)
    axes = below.subplots()
    axes.plot(losses, linewidth=1)
    axes.set(xlabel="step", ylabel="training loss", yscale="log")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--learning_rate", type=float, default=2e-3)
    parser.add_argument("--minimum_accuracy", type=float, default=0.97)
    parser.add_argument("--output_dir", type=Path, default=Path("output/recognize_digits"))
    parser.add_argument("--seed", type=int, default=90)
    args = parser.parse_args()
    args.output_dir.mkdir(parents=True, exist_ok=True)
    training, (test_images, test_labels) = load_data(args.seed)

    main_program, startup_program = fluid.default_main_program(), fluid.default_startup_program()
    random.seed(args.seed)  # fluid.io.shuffle uses Python's generator
    main_program.random_seed = startup_program.random_seed = args.seed
    image = fluid.data(name="image", shape=[None, 1, 8, 8], dtype="float32")
    label = fluid.data(name="label", shape=[None, 1], dtype="int64")
    prediction = convolutional_network(image)
    loss = fluid.layers.mean(fluid.layers.cross_entropy(input=prediction, label=label))
    accuracy = fluid.layers.accuracy(input=prediction, label=label)
    test_program = main_program.clone(for_test=True)
    fluid.optimizer.Adam(learning_rate=args.learning_rate).minimize(loss)

    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(startup_program)
    losses = train(executor, main_program, loss, training, args)
    probabilities, reached = executor.run(
        test_program,
        feed={"image": test_images, "label": test_labels},
        fetch_list=[prediction, accuracy],
    )
    print(f"test accuracy: {reached.item():.2%} of {len(test_labels)} digits")

    model_dir = str(args.output_dir / "model")
    fluid.io.save_inference_model(model_dir, ["image"], [prediction], executor, main_program=test_program)
    with fluid.scope_guard(fluid.Scope()):
        program, feed_names, targets = fluid.io.load_inference_model(model_dir, executor)
        (reloaded,) = executor.run(program, feed={feed_names[0]: test_images}, fetch_list=targets)
    np.testing.assert_allclose(reloaded, probabilities, rtol=1e-5, atol=1e-6)
    print(f"inference model: {model_dir}, reloaded with the same predictions")

    picture = args.output_dir / "digits.png"
    draw(picture, test_images, test_labels, probabilities, losses)
    print(f"picture: {picture}")
    if reached.item() < args.minimum_accuracy:
        sys.exit(f"the test accuracy is below {args.minimum_accuracy:.0%}")


if __name__ == "__main__":
    main()
