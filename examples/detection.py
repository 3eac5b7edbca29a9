"""Find circles, squares and triangles in pictures: trains a small SSD, scores it and draws what it
sees.

    jfluid-launch configs/detection.yaml
    python examples/detection.py --epochs 6

One to four objects of any colour lie on a background of two others, with noise over all of it.
"""

import argparse
import random
import sys
from pathlib import Path

import numpy as np

import jfluid as fluid
from jfluid.progress import Progress

SIZE = 64
SHAPES = ("background", "circle", "square", "triangle")
# Pixels: the sides of the priors on maps of 16 x 16, 8 x 8 and 4 x 4 cells.
MIN_SIZES, MAX_SIZES = (11.0, 18.0, 26.0), (18.0, 26.0, 36.0)


def inside(shape, box):
    """Which pixels [SIZE, SIZE] an object of a box (left, top, right, bottom) covers."""
    left, top, right, bottom = box
    y, x = np.mgrid[:SIZE, :SIZE] + 0.5
    if SHAPES[shape] == "square":
        return (x > left) & (x < right) & (y > top) & (y < bottom)
    across = np.abs(x - (left + right) / 2) / (right - left)
    if SHAPES[shape] == "circle":
        return across**2 + ((y - (top + bottom) / 2) / (bottom - top)) ** 2 < 0.25
    down = (y - top) / (bottom - top)
    return (down > 0) & (down < 1) & (across < down / 2)


def place(rng, boxes):
    """A box in pixels that touches none of `boxes`, or None when a few tries find none."""
    for _ in range(20):
        side = rng.uniform(11, 34)
        left, top = rng.uniform(1, SIZE - 1 - side, 2)
        box = np.array([left, top, left + side, top + side])
        if all(box[0] > b[2] or b[0] > box[2] or box[1] > b[3] or b[1] > box[3] for b in boxes):
            return box
    return None


def picture(rng):
    """(image [3, SIZE, SIZE] in -1..1, boxes [objects, 4] as shares of it, labels [objects, 1])."""
    colours = rng.uniform(-0.9, 0.9, (2, 3))
    slope = np.linspace(0, 1, SIZE)
    slope = slope[:, None] if rng.rand() < 0.5 else slope[None]
    image = colours[0][:, None, None] * slope + colours[1][:, None, None] * (1 - slope)
    image = np.broadcast_to(image, (3, SIZE, SIZE)).copy()
    boxes, labels = [], []
    for _ in range(rng.randint(1, 5)):
        box = place(rng, boxes)
        if box is None:
            break
        shape = rng.randint(1, len(SHAPES))
        colour = rng.uniform(-0.9, 0.9, 3)
        while np.abs(colours - colour).max(axis=1).min() < 0.5:  # it stands out from both
            colour = rng.uniform(-0.9, 0.9, 3)
        image[:, inside(shape, box)] = colour[:, None]
        boxes.append(box)
        labels.append([shape])
    image += rng.normal(0, 0.08, image.shape)
    return (
        image.astype("float32"),
        (np.array(boxes) / SIZE).astype("float32"),
        np.array(labels, "int32"),
    )


def ssd(image):
    """The codes and scores that three feature maps predict for their priors, the priors and their
    variances.
    """
    x, maps = image, []
    for channels, stride, keep in (
        (16, 2, False),
        (32, 2, False),
        (32, 1, True),
        (64, 2, True),
        (64, 2, True),
    ):
        x = fluid.layers.conv2d(x, channels, filter_size=3, stride=stride, padding=1, bias_attr=False)
        x = fluid.layers.batch_norm(x, act="relu")
        if keep:
            maps.append(x)
    return fluid.layers.multi_box_head(
        inputs=maps,
        image=image,
        base_size=SIZE,
        num_classes=len(SHAPES),
        aspect_ratios=[[1.0]] * 3,
        min_sizes=MIN_SIZES,
        max_sizes=MAX_SIZES,
        kernel_size=3,
        pad=1,
    )


class Detector:
    """An SSD with its programs and parameters."""

    def __init__(self, args):
        self._args = args
        self._train, startup = fluid.Program(), fluid.Program()
        self._train.random_seed = startup.random_seed = args.seed
        with fluid.program_guard(self._train, startup):
            image = fluid.data(name="image", shape=[None, 3, SIZE, SIZE], dtype="float32")
            box = fluid.data(name="box", shape=[None, 4], dtype="float32", lod_level=1)
            label = fluid.data(name="label", shape=[None, 1], dtype="int32", lod_level=1)
            self._data = [image, box, label]
            codes, scores, priors, variances = ssd(image)
            self._test = self._train.clone(for_test=True)
            losses = fluid.layers.ssd_loss(codes, scores, box, label, priors, variances)
            self._loss = fluid.layers.reduce_sum(losses)
            steps = args.epochs * (args.images // args.batch_size)
            rate = fluid.layers.cosine_decay(args.learning_rate, step_each_epoch=steps, epochs=1)
            fluid.optimizer.Adam(learning_rate=rate).minimize(self._loss)
        with fluid.program_guard(self._test, startup):
            self._found = fluid.layers.detection_output(
                codes, scores, priors, variances, nms_threshold=0.45, keep_top_k=20
            )
            self._metric = fluid.metrics.DetectionMAP(
                self._found, label, box, class_num=len(SHAPES), overlap_threshold=0.5
            )
        self._executor = fluid.Executor(fluid.CPUPlace())
        self._executor.run(startup)
        self._feeder = fluid.DataFeeder(self._data, fluid.CPUPlace(), program=self._train)

    def train(self, pictures):
        """Runs the epochs; returns the loss of every step."""
        args, losses = self._args, []
        reader = fluid.io.batch(
            fluid.io.shuffle(lambda: iter(pictures), len(pictures)), args.batch_size, drop_last=True
        )
        with Progress(total=args.epochs * (len(pictures) // args.batch_size)) as progress:
            for _ in range(args.epochs):
                for batch in reader():
                    (value,) = self._executor.run(self._train, feed=self._feeder.feed(batch), fetch_list=[self._loss])
                    losses.append(value.item())
                    progress.step(examples=len(batch), loss=value)
        return losses

    def detect(self, pictures):
        """Rows (class, score, left, top, right, bottom) for each picture, and the mean average
        precision of all.
        """
        self._metric.reset(self._executor)
        found = []
        for start in range(0, len(pictures), self._args.batch_size):
            rows, precision = self._executor.run(
                self._test,
                feed=self._feeder.feed(pictures[start : start + self._args.batch_size]),
                fetch_list=[self._found, self._metric.get_map_var()[1]],
                return_numpy=False,
            )
            (offsets,) = rows.lod()
            values = np.array(rows)
            found += [values[a:b] for a, b in zip(offsets, offsets[1:])]
        return found, np.array(precision).item()


def draw(path, pictures, found, losses):
    """A picture of test images with the boxes that were found in them, and of the loss."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Rectangle

    figure = pyplot.figure(figsize=(11, 9), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=(4, 1))
    above.suptitle("test pictures: shape and score of what is found")
    for (image, _, _), rows, axes in zip(pictures, found, above.subplots(3, 5).flat):
        axes.imshow(np.clip(image.transpose(1, 2, 0) / 2 + 0.5, 0, 1), extent=(0, 1, 1, 0))
        axes.set_axis_off()
        for label, score, left, top, right, bottom in rows[rows[:, 1] > 0.5]:
            size = (right - left, bottom - top)
            axes.add_patch(Rectangle((left, top), *size, fill=False, edgecolor="white", linewidth=3))
            axes.add_patch(Rectangle((left, top), *size, fill=False, edgecolor="black"))
            text = f"{SHAPES[int(label)]} {score:.0%}"
            axes.text(left, top, text, fontsize=7, va="bottom", bbox={"pad": 1, "color": "white"})
    axes = below.subplots()
    axes.plot(losses, linewidth=1)
    axes.set(xlabel="step", ylabel="training loss", yscale="log")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=3200)
    parser.add_argument("--test_images", type=int, default=320)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--learning_rate", type=float, default=4e-3)
    parser.add_argument("--minimum_precision", type=float, default=0.8)
    parser.add_argument("--output_dir", type=Path, default=Path("output/detection"))
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    args.output_dir.mkdir(parents=True, exist_ok=True)
    random.seed(args.seed)  # fluid.io.shuffle uses Python's generator
    rng = np.random.RandomState(args.seed)
    pictures = [picture(rng) for _ in range(args.images)]
    test_pictures = [picture(rng) for _ in range(args.test_images)]

    detector = Detector(args)
    losses = detector.train(pictures)
    found, precision = detector.detect(test_pictures)
    print(f"mean average precision: {precision:.3f} on {len(test_pictures)} test pictures")
    drawn = args.output_dir / "detection.png"
    draw(drawn, test_pictures, found, losses)
    print(f"picture: {drawn}")
    if precision < args.minimum_precision:
        sys.exit(f"the mean average precision is below {args.minimum_precision}")


if __name__ == "__main__":
    main()
