"""Draw handwritten digits: two networks that play against each other, in imperative mode.

    jfluid-launch configs/gan_digits.yaml
    python examples/gan_digits.py --epochs 20

The generator is told which digit to draw, the discriminator which digit it is shown (Mirza and Osindero,
2014). How well they are drawn is said by a third network, which has learnt to read real digits: it
reads those that are drawn, and knows nothing of what they should be.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import jfluid as fluid
from jfluid.progress import Progress

layers, dygraph = fluid.layers, fluid.dygraph
NOISE = 16  # numbers that a drawing begins with
SIZE = 8  # pixels


class Generator(dygraph.Layer):
    """Images [n, 1, 8, 8] in -1..1 from noise [n, NOISE] and wanted digits [n, 10], one of them 1."""

    def __init__(self):
        super().__init__()
        self.begin = dygraph.Linear(NOISE + 10, 64 * 2 * 2)
        self.begin_norm = dygraph.BatchNorm(64 * 2 * 2, act="relu")
        self.double = dygraph.Conv2DTranspose(64, 32, 4, stride=2, padding=1)
        self.norm = dygraph.BatchNorm(32, act="relu")
        self.draw = dygraph.Conv2DTranspose(32, 1, 4, stride=2, padding=1, act="tanh")

    def forward(self, noise, digits):
        seen = self.begin_norm(self.begin(layers.concat([noise, digits], axis=1)))
        seen = self.norm(self.double(layers.reshape(seen, [-1, 64, 2, 2])))
        return self.draw(seen)


class Discriminator(dygraph.Layer):
    """Scores [n, 1], positive for real images, of images and the digits that they show."""

    def __init__(self):
        super().__init__()
        self.fine = dygraph.Conv2D(1 + 10, 32, 3, stride=2, padding=1)
        self.coarse = dygraph.Conv2D(32, 64, 3, stride=2, padding=1)
        self.score = dygraph.Linear(64 * 2 * 2, 1)

    def forward(self, images, digits):
        maps = layers.expand(layers.reshape(digits, [-1, 10, 1, 1]), [1, 1, SIZE, SIZE])
        seen = layers.leaky_relu(self.fine(layers.concat([images, maps], axis=1)), alpha=0.2)
        seen = layers.leaky_relu(self.coarse(seen), alpha=0.2)
        return self.score(layers.reshape(seen, [-1, 64 * 2 * 2]))


class Reader(dygraph.Layer):
    """Scores of the ten digits, [n, 10], of images."""

    def __init__(self):
        super().__init__()
        self.see = dygraph.Conv2D(1, 32, 3, padding=1, act="relu")
        self.pool = dygraph.Pool2D(pool_size=2, pool_stride=2, pool_type="max")
        self.read = dygraph.Linear(32 * 4 * 4, 10)

    def forward(self, images):
        return self.read(layers.reshape(self.pool(self.see(images)), [-1, 32 * 4 * 4]))


def one_hot(digits):
    return dygraph.to_variable(np.eye(10, dtype="float32")[digits])


def batches(rng, size, *arrays):
    """Batches of equally many rows, in random order, of what is left over none."""
    order = rng.permutation(len(arrays[0]))
    for begin in range(0, len(order) - size + 1, size):
        yield [array[order[begin : begin + size]] for array in arrays]


def train_reader(images, digits, rng, args):
    reader = Reader()
    adam = fluid.optimizer.Adam(2e-3, parameter_list=reader.parameters())
    for _ in range(args.reader_epochs):
        for batch, wanted in batches(rng, args.batch_size, images, digits[:, np.newaxis]):
            scores = reader(dygraph.to_variable(batch))
            wanted = dygraph.to_variable(wanted)
            loss = layers.mean(layers.softmax_with_cross_entropy(scores, wanted))
            loss.backward()
            adam.minimize(loss)
            reader.clear_gradients()
    return reader


def share_read(reader, images, digits):
    """How many of the images are read as these digits."""
    with dygraph.no_grad():
        found = reader(dygraph.to_variable(images)).numpy()
    return float(np.mean(found.argmax(axis=1) == digits))


class Game:
    """Both networks and their optimizers.

    Attributes:
        losses: [what the discriminator loses, what the generator loses] of every step.
    """

    def __init__(self, args, rng):
        self._rng, self.losses = rng, []
        self.generator, self._discriminator = Generator(), Discriminator()
        self._of_generator, self._of_discriminator = (
            fluid.optimizer.Adam(args.learning_rate, beta1=0.5, parameter_list=net.parameters())
            for net in (self.generator, self._discriminator)
        )

    def noise(self, count):
        return dygraph.to_variable(self._rng.normal(size=(count, NOISE)).astype("float32"))

    def _lost(self, images, digits, truth):
        """What the discriminator loses on images that are real (1) or not (0)."""
        scores = self._discriminator(images, digits)
        wanted = layers.fill_constant([images.shape[0], 1], "float32", truth)
        return layers.mean(layers.sigmoid_cross_entropy_with_logits(scores, wanted))

    def step(self, images, digits):
        digits, real = one_hot(digits), dygraph.to_variable(images)
        drawn = self.generator(self.noise(len(images)), digits)

        # 0.9: one that is too sure tells the generator nothing (Salimans et al., 2016).
        told = self._lost(real, digits, 0.9) + self._lost(drawn.detach(), digits, 0.0)
        told.backward()
        self._of_discriminator.minimize(told)
        self._discriminator.clear_gradients()

        fooled = self._lost(drawn, digits, 1.0)
        fooled.backward()
        self._of_generator.minimize(fooled)
        self.generator.clear_gradients()
        self._discriminator.clear_gradients()
        self.losses.append([told.numpy().item(), fooled.numpy().item()])
        return fooled


def drawings(generator, noise):
    """Images of all ten digits from each row of noise: [rows * 10, 1, 8, 8]."""
    with dygraph.no_grad():
        digits = one_hot(np.tile(np.arange(10), len(noise)))
        return generator(dygraph.to_variable(np.repeat(noise, 10, axis=0)), digits).numpy()


def draw(path, stages, shares, losses, real):
    """A picture of the same noise drawn at several epochs, of real digits, and of the training."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(11, 9), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=(3, 1))
    titles = [f"after epoch {epoch}" for epoch in stages] + ["real digits"]
    plots = above.subplots(2, 3).ravel()
    for axes in plots:
        axes.set_axis_off()
    for axes, title, images in zip(plots, titles, [*stages.values(), real]):
        framed = np.pad(images[:, 0], [(0, 0), (1, 1), (1, 1)], constant_values=0)
        rows = framed.reshape(-1, 10, SIZE + 2, SIZE + 2).transpose(0, 2, 1, 3)
        axes.imshow(rows.reshape(-1, 10 * (SIZE + 2)), cmap="gray", vmin=-1, vmax=1)
        axes.set_title(title)
    left, right = below.subplots(1, 2)
    left.plot(range(1, len(shares) + 1), shares)
    left.set(xlabel="epoch", ylabel="drawings read as meant", ylim=(0, 1.02))
    for column, name in zip(np.transpose(losses), ("discriminator", "generator")):
        right.plot(column, linewidth=0.7, label=name)
    right.set(xlabel="step", ylabel="loss")
    right.legend()
    figure.savefig(path, dpi=110)


def play(game, reader, images, digits, args):
    """Train for all epochs: (shares of drawings that are read as meant by epoch, drawings at five
    of the epochs).
    """
    rng = np.random.RandomState(args.seed)
    judged, shown = (rng.normal(size=(rows, NOISE)).astype("float32") for rows in (40, 5))
    stages, shares = {}, []
    kept = {max(1, round(args.epochs * share)) for share in (0.02, 0.1, 0.3, 0.6, 1.0)}
    with Progress(total=args.epochs * (len(images) // args.batch_size)) as progress:
        for epoch in range(1, args.epochs + 1):
            for batch in batches(rng, args.batch_size, images, digits):
                progress.step(examples=args.batch_size, loss=game.step(*batch).numpy())
            drawn = drawings(game.generator, judged)
            shares.append(share_read(reader, drawn, np.tile(np.arange(10), len(judged))))
            if epoch in kept:
                stages[epoch] = drawings(game.generator, shown)
    return shares, stages


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--reader_epochs", type=int, default=15)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--learning_rate", type=float, default=2e-3)
    parser.add_argument("--minimum_share", type=float, default=0.8)
    parser.add_argument("--output_dir", type=Path, default=Path("output/gan_digits"))
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.output_dir.mkdir(parents=True, exist_ok=True)
    data = load_digits()
    images = (data.images[:, np.newaxis] / 8 - 1).astype("float32")
    digits = data.target.astype("int64")
    rng = np.random.RandomState(args.seed)
    with dygraph.guard(fluid.CPUPlace()):
        fluid.default_startup_program().random_seed = args.seed
        # Some real digits are kept from the reader, to see how well it reads.
        held = len(images) // 5
        reader = train_reader(images[held:], digits[held:], rng, args)
        share = share_read(reader, images[:held], digits[:held])
        print(f"the reader reads {share:.1%} of real digits that it has not seen", flush=True)
        game = Game(args, rng)
        shares, stages = play(game, reader, images, digits, args)
        dygraph.save_dygraph(game.generator.state_dict(), str(args.output_dir / "generator"))
    print(f"it reads {shares[-1]:.1%} of the drawings as meant")
    picture = args.output_dir / "gan_digits.png"
    real = np.stack([images[digits == digit][row] for row in range(5) for digit in range(10)])
    draw(picture, stages, shares, game.losses, real)
    print(f"picture: {picture}")
    if shares[-1] < args.minimum_share:
        sys.exit(f"fewer than {args.minimum_share:.0%} of the drawings are read as meant")


if __name__ == "__main__":
    main()
