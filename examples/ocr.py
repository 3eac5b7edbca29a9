"""Read strings of digits in pictures: trains a small CRNN with CTC, counts its errors and shows
what it reads.

    jfluid-launch configs/ocr.yaml
    python examples/ocr.py --epochs 6

Two to five digits of any size stand slanted on a background with noise. Where each of them stands
is not told: CTC finds that out.
"""

import argparse
import random
import sys
from pathlib import Path

import numpy as np

import jfluid as fluid
from jfluid.progress import Progress

HEIGHT, WIDTH, DIGITS, LONGEST = 16, 80, 10, 5
BLANK = DIGITS
# The digits in three columns and five rows.
GLYPHS = [
    np.array([int(c) for c in rows], float).reshape(5, 3)
    for rows in (
        "111101101101111 010110010010111 111001111100111 111001011001111 101101111001001 "
        "111100111001111 111100111101111 111001001010010 111101111101111 111101111001111"
    ).split()
]


def line(rng):
    """(image [1, HEIGHT, WIDTH] in -1..1, its digits [number, 1])."""
    dark, light = rng.uniform(-0.9, -0.3), rng.uniform(0.3, 0.9)
    if rng.rand() < 0.5:
        dark, light = light, dark
    ink = np.zeros((HEIGHT, WIDTH))
    digits = rng.randint(0, DIGITS, rng.randint(2, LONGEST + 1))
    height, slant = rng.uniform(9, 14), rng.uniform(-0.3, 0.3)
    left, y = rng.uniform(3, 8), np.arange(HEIGHT)[:, None] + 0.5
    for digit in digits:
        width = height * rng.uniform(0.5, 0.75)
        top = rng.uniform(1, HEIGHT - 1 - height)
        down = (y - top) / height * 5
        x = np.arange(WIDTH)[None] + 0.5 + (y - HEIGHT / 2) * slant
        across = (x - left) / width * 3
        covered = (down >= 0) & (down < 5) & (across >= 0) & (across < 3)
        rows, columns = np.clip(down, 0, 4.9).astype(int), np.clip(across, 0, 2.9).astype(int)
        ink = np.maximum(ink, np.where(covered, GLYPHS[digit][rows, columns], 0))
        left += width + rng.uniform(2.5, 5)
    image = dark + (light - dark) * ink + rng.normal(0, 0.12, ink.shape)
    return image[None].astype("float32"), digits[:, None].astype("int32")


def crnn(image):
    """Logits of the digits and the blank for each column, as rows with a LoD."""
    x = image
    for channels, pool in ((16, 2), (32, (2, 1)), (32, (2, 1))):
        x = fluid.layers.conv2d(x, channels, filter_size=3, padding=1, bias_attr=False)
        x = fluid.layers.batch_norm(x, act="relu")
        x = fluid.layers.pool2d(x, pool_size=pool, pool_stride=pool, pool_type="max")
    columns = fluid.layers.im2sequence(x, filter_size=[x.shape[2], 1])
    states = [
        fluid.layers.dynamic_gru(fluid.layers.fc(columns, 3 * 48), 48, is_reverse=backwards)
        for backwards in (False, True)
    ]
    return fluid.layers.fc(states, DIGITS + 1)


class Reader:
    """A CRNN with its programs and parameters."""

    def __init__(self, args):
        self._args = args
        self._train, startup = fluid.Program(), fluid.Program()
        self._train.random_seed = startup.random_seed = args.seed
        with fluid.program_guard(self._train, startup):
            image = fluid.data(name="image", shape=[None, 1, HEIGHT, WIDTH], dtype="float32")
            label = fluid.data(name="label", shape=[None, 1], dtype="int32", lod_level=1)
            self._data = [image, label]
            logits = crnn(image)
            self._test = self._train.clone(for_test=True)
            self._loss = fluid.layers.mean(fluid.layers.warpctc(logits, label, blank=BLANK))
            steps = args.epochs * (args.images // args.batch_size)
            rate = fluid.layers.cosine_decay(args.learning_rate, step_each_epoch=steps, epochs=1)
            fluid.optimizer.Adam(learning_rate=rate).minimize(self._loss)
        with fluid.program_guard(self._test, startup):
            self._read = fluid.layers.ctc_greedy_decoder(logits, blank=BLANK)
            self._distance = fluid.layers.edit_distance(self._read, fluid.layers.cast(label, "int64"), normalized=False)
        self._executor = fluid.Executor(fluid.CPUPlace())
        self._executor.run(startup)
        self._feeder = fluid.DataFeeder(self._data, fluid.CPUPlace(), program=self._train)

    def train(self, lines):
        """The loss of each step."""
        batch_size, losses = self._args.batch_size, []
        reader = fluid.io.batch(fluid.io.shuffle(lambda: iter(lines), buf_size=len(lines)), batch_size, drop_last=True)
        with Progress(total=self._args.epochs * (len(lines) // batch_size)) as progress:
            for _ in range(self._args.epochs):
                for batch in reader():
                    (value,) = self._executor.run(self._train, feed=self._feeder.feed(batch), fetch_list=[self._loss])
                    losses.append(value.item())
                    progress.step(examples=len(batch), loss=value)
        return losses

    def read(self, lines):
        """The digits that are read in each line, wrong digits as a share of all, and wrong lines
        as a share of all.
        """
        metric, found = fluid.metrics.EditDistance("digits"), []
        for start in range(0, len(lines), self._args.batch_size):
            rows, distances, number = self._executor.run(
                self._test,
                feed=self._feeder.feed(lines[start : start + self._args.batch_size]),
                fetch_list=[self._read, *self._distance],
                return_numpy=False,
            )
            metric.update(np.array(distances), np.array(number).item())
            (offsets,) = rows.lod()
            values = np.array(rows)[:, 0]
            found += ["".join(map(str, values[a:b])) for a, b in zip(offsets, offsets[1:])]
        wrong, share = metric.eval()
        return found, wrong * len(lines) / sum(len(label) for _, label in lines), share


def draw(path, lines, found, losses):
    """A picture of test lines with what was read in them, and of the loss."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(10, 7), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=(3, 1))
    above.suptitle("test lines and what is read in them")
    for (image, label), text, axes in zip(lines, found, above.subplots(6, 4).flat):
        axes.imshow(image[0], cmap="gray", vmin=-1.2, vmax=1.2)
        axes.set_axis_off()
        right = text == "".join(map(str, label[:, 0]))
        axes.set_title(text or "nothing", fontsize=9, color="black" if right else "red", pad=2)
    axes = below.subplots()
    axes.plot(losses, linewidth=1)
    axes.set(xlabel="step", ylabel="training loss", yscale="log")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2400)
    parser.add_argument("--test_images", type=int, default=320)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--learning_rate", type=float, default=4e-3)
    parser.add_argument("--maximum_error", type=float, default=0.05)
    parser.add_argument("--output_dir", type=Path, default=Path("output/ocr"))
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    args.output_dir.mkdir(parents=True, exist_ok=True)
    random.seed(args.seed)  # fluid.io.shuffle uses Python's generator
    rng = np.random.RandomState(args.seed)
    lines = [line(rng) for _ in range(args.images)]
    test_lines = [line(rng) for _ in range(args.test_images)]

    reader = Reader(args)
    losses = reader.train(lines)
    found, error, wrong = reader.read(test_lines)
    print(f"error rate: {error:.4f} of the digits, {wrong:.3f} of {len(test_lines)} test lines")
    drawn = args.output_dir / "ocr.png"
    draw(drawn, test_lines, found, losses)
    print(f"picture: {drawn}")
    if error > args.maximum_error:
        sys.exit(f"the error rate is above {args.maximum_error}")


if __name__ == "__main__":
    main()
